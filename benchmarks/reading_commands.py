"""The commands that only read, at a managed cluster of 5,000 Nodes and 50,000 slices: time, peak
memory and requests of each.  On a busy machine the seconds of a processor tell more than the time.

The API server is ours behind ``tools.managed_api``, which counts; a command is a process of its own.
The figures of a command are noted as soon as it has ended, and neither one that does not end nor
one that fails keeps the others from running.
"""

from __future__ import annotations

import asyncio
import resource
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryFile
from typing import Final, NamedTuple

from benchmarks.harness import Result, main, note
from benchmarks.tools.cluster import populate
from benchmarks.tools.managed_api import ManagedApi, release
from benchmarks.tools.managed_cluster import Size, objects
from benchmarks.tools.process import PlaneProcess, child_environment, scratch

LARGE: Final = Size(nodes=5000, namespaces=100, services=10_000, slices=5, pods=2)
SMALL: Final = Size(nodes=20, namespaces=4, services=20, slices=2, pods=2)
#: of a small run; tests run each command at such a cluster in their own process
FEW: Final = ("check", "explain service", "timeline", "drain pod --dry-run")
#: Kubernetes 1.31, in the middle of the releases that providers support
RELEASE: Final = 31
#: requests in any second
RATE_MAX: Final = 20
MEMORY_MIB_MAX: Final = 1024
SECONDS_MAX: Final = 120.0
#: a command is ended after so long
END_S: Final = 300.0
#: between two looks at the memory of a command
LOOK_S: Final = 0.01


def commands(size: Size) -> dict[str, tuple[str, ...]]:
    """The arguments of each command; names of objects are those of the first Service."""
    namespace, service = size.service(0)
    pod, node = size.pod(0, 0), size.node(0)
    of = ("-n", namespace)
    return {
        "check": ("check",),
        "check -n": ("check", *of),
        "status": ("status",),
        "lint": ("lint",),
        "lint -n": ("lint", *of),
        "explain service": ("explain", "service", service, *of),
        "explain pod": ("explain", "pod", pod, *of),
        "explain node": ("explain", "node", node),
        "explain zone": ("explain", "zone", "zone-a"),
        "trace": ("trace", "--from", f"node/{node}", "--to", service, *of),
        "trace --via xds": ("trace", "--via", "xds", "--client", node, "--to", service, *of),
        "drift": ("drift",),
        "timeline": ("timeline", "service", service, *of),
        "what-if": ("what-if", service, "--set", "replicas=12", *of),
        "endpoints audit": ("endpoints", "audit", "--second-look", "0s"),
        "guard status": ("guard", "status"),
        "agent list -A": ("agent", "list", "-A"),
        "dns query": ("dns", "query", f"{service}.{namespace}", "--why"),
        "drain pod --dry-run": ("drain", "pod", pod, "--dry-run", *of),
        "drain node --dry-run": ("drain", "node", node, "--dry-run"),
        "adopt --dry-run": ("adopt", "service", service, "--dry-run", *of),
    }


class Run(NamedTuple):
    """``exit_code`` is that of the command; ``None``: it did not end within ``END_S``.  ``most``:
    requests in the busiest second.
    """

    exit_code: int | None
    seconds: float
    processor_s: float
    mib: float
    requests: int
    most: int
    output: str

    @property
    def is_failure(self) -> bool:
        return self.exit_code not in (0, 1, 2, None) or "Traceback" in self.output

    def __str__(self) -> str:
        ended = {None: f"not ended in {self.seconds:.0f} s", 2: f"{self.seconds:.1f} s, no answer"}
        return (
            f"{ended.get(self.exit_code, f'{self.seconds:.1f} s')}, {self.processor_s:.1f} s of a "
            f"processor, {self.mib:.0f} MiB, {self.requests} requests, {self.most} in the busiest "
            "second"
        )


@contextmanager
def managed(folder: Path, size: Size) -> Iterator[PlaneProcess]:
    """An API server of ours with the objects of *size*, without controllers."""
    data = folder / "data"
    asyncio.run(populate(data, objects(size, time.time())))
    with PlaneProcess(folder, "--data-dir", str(data), command="apiserver") as plane:
        yield plane


def measured(api: ManagedApi, kubeconfig: str, words: tuple[str, ...]) -> Run:
    """Runs one command in a process of its own."""
    api.requests.clear()
    command = [sys.executable, "-m", "sliceplane", *words, "--kubeconfig", kubeconfig]
    before = _processor_s()
    began = time.monotonic()
    with TemporaryFile("w+") as output:
        child = subprocess.Popen(
            command, env=child_environment(), stdout=output, stderr=subprocess.STDOUT
        )
        mib = 0.0
        while child.poll() is None and time.monotonic() < began + END_S:
            mib = max(mib, _peak_mib(child.pid))
            time.sleep(LOOK_S)
        seconds = time.monotonic() - began
        exit_code = child.poll()
        child.kill()
        child.wait()
        output.seek(0)
        said = output.read()
    used = _processor_s() - before
    return Run(exit_code, seconds, used, mib, len(api.requests), api.most_within(1.0), said)


def _processor_s() -> float:
    """The seconds that children which have ended kept a processor busy."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def _peak_mib(pid: int) -> float:
    """The most that the process had in memory so far; 0: it has ended.  ``getrusage`` would count
    the memory of the parent, whose copy a child begins as.
    """
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return sum(int(line.split()[1]) / 1024 for line in lines if line.startswith("VmHWM:"))


def figures(
    api: ManagedApi, kubeconfig: str, words_by_name: Mapping[str, tuple[str, ...]], label: str
) -> list[Result]:
    """Runs every command.  Raises ``RuntimeError`` at the end if one of them failed."""
    results: list[Result] = []
    failures: list[str] = []
    for name, words in words_by_name.items():
        seen = measured(api, kubeconfig, words)
        note(f"{name}: {seen}")
        if seen.is_failure:
            failures.append(f"{name}: exit code {seen.exit_code}: {seen.output[-2000:]}")
        elif seen.exit_code == 2:
            note(f"{name}: {seen.output.strip().splitlines()[0]}")
        rows = (
            ("time", seen.seconds, "s", SECONDS_MAX),
            ("processor", seen.processor_s, "s", None),
            ("memory", seen.mib, "MiB", MEMORY_MIB_MAX),
            ("requests", seen.requests, "requests", None),
            ("busiest second", seen.most, "requests", RATE_MAX),
        )
        results += [
            Result(name=f"{name}: {what}", size=label, value=value, unit=unit, budget=budget)
            for what, value, unit, budget in rows
        ]
    if failures:
        raise RuntimeError("\n".join(failures))
    return results


def run(small: bool) -> list[Result]:
    size = SMALL if small else LARGE
    label = f"{size.nodes:,} Nodes, {size.all_slices:,} slices"
    chosen = commands(size)
    if small:
        chosen = {name: chosen[name] for name in FEW}
    with (
        scratch() as folder,
        managed(Path(folder), size) as plane,
        ManagedApi(plane.kubeconfig, release(RELEASE)) as api,
    ):
        return figures(api, api.kubeconfig(Path(folder)), chosen, label)


if __name__ == "__main__":
    main(run)
