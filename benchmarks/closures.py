"""What the modules of each program cost before it does anything: modules and lines of ours, memory,
and CPU time of the import.

A module that one line imports by mistake (a kind of the server in the node proxy, say) is paid for
on every node. Contracts in ``pyproject.toml`` name what a program never loads; these figures show
the rest. Modules that a program loads later, as YAML with its first file, are not counted.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
from typing import Final, NamedTuple

from benchmarks.harness import Result, main
from benchmarks.tools.process import child_environment

RUNS: Final = 7
PEER: Final = "import asyncio, aiohttp"
#: prints modules of ours, their lines, resident bytes, and seconds of CPU that the import took
_IMPORT: Final = """
import importlib, json, resource, sys, time
began = time.process_time()
for name in sys.argv[1:]:
    importlib.import_module(name)
took = time.process_time() - began
with open("/proc/self/statm") as file:
    resident = int(file.read().split()[1]) * resource.getpagesize()
files = [module.__file__ for name, module in list(sys.modules.items())
         if name.partition(".")[0] == "sliceplane" and module.__file__]
lines = sum(open(name, encoding="utf-8").read().count("\\n") for name in files)
print(json.dumps([len(files), lines, resident, took]))
"""


class Program(NamedTuple):
    """``modules``: those that its command imports.  Budgets: ``None`` where the design has none."""

    name: str
    modules: tuple[str, ...]
    modules_max: int | None = None
    lines_max: int | None = None
    memory_max_mb: float | None = None
    import_max_s: float | None = None


PROGRAMS: Final = (
    Program(
        "node proxy",
        ("sliceplane.node.io.setup", "sliceplane.node.io.node_proxy", "sliceplane.node.io.healthz"),
        modules_max=130,
        memory_max_mb=26,
    ),
    Program("dns", ("sliceplane.dns.io.service",)),
    Program("xds", ("sliceplane.xds.io.serving", "sliceplane.xds.io.server")),
    Program("agent", ("sliceplane.agent.io.start",)),
    Program("client", ("sliceplane.client",), lines_max=10_000, import_max_s=0.1),
)


class Closure(NamedTuple):
    """The cost of importing some modules in a process of their own."""

    modules: int
    lines: int
    memory_bytes: int
    import_s: float


def closure_of(names: tuple[str, ...]) -> Closure:
    done = subprocess.run(
        [sys.executable, "-c", _IMPORT, *names],
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        env=child_environment(),
    )
    return Closure(*json.loads(done.stdout))


def _median(names: tuple[str, ...], runs: int) -> Closure:
    """The first run compiles what has changed, and does not count if there are several."""
    if runs > 1:
        closure_of(names)
    closures = [closure_of(names) for _ in range(runs)]
    return Closure(
        closures[0].modules,
        closures[0].lines,
        round(statistics.median(closure.memory_bytes for closure in closures)),
        statistics.median(closure.import_s for closure in closures),
    )


def run(small: bool = False) -> list[Result]:
    runs = 1 if small else RUNS
    peer = _median(("asyncio", "aiohttp"), runs)
    results = []
    for program in PROGRAMS:
        closure = _median(program.modules, runs)
        for what, value, unit, budget, peer_value in (
            ("modules", closure.modules, "modules of ours", program.modules_max, None),
            ("lines", closure.lines, "lines of ours", program.lines_max, None),
            (
                "memory",
                closure.memory_bytes / 1e6,
                "MB",
                program.memory_max_mb,
                peer.memory_bytes / 1e6,
            ),
            ("import", closure.import_s, "s of CPU", program.import_max_s, peer.import_s),
        ):
            results.append(
                Result(
                    name=f"{program.name}: {what}",
                    size=f"median of {runs}",
                    value=value,
                    unit=unit,
                    budget=budget,
                    peer="" if peer_value is None else PEER,
                    peer_value=peer_value,
                )
            )
    return results


if __name__ == "__main__":
    main(run)
