"""Runs that take minutes or hours, one after the other: ``make soak``, or ``python tools/soak.py
NAME...`` for some.

Each is a process of its own; what it took and what it said becomes a line of
``tools/long_runs.jsonl``, and the newest line of each run a row of the tables in
``docs/figures.md``. ``--list`` prints the runs, ``--table`` writes the tables alone. Exit code:
1 when a run failed; the others are run nevertheless.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import textwrap
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from tests.figures import VARIABLE

ROOT: Final = Path(__file__).parents[1]
FIGURES: Final = ROOT / "tools" / "long_runs.jsonl"
PAGE: Final = ROOT / "docs" / "figures.md"
RUNS_MARK: Final = "<!-- runs: made by tools/soak.py -->"
FIGURES_MARK: Final = "<!-- figures: made by tools/soak.py -->"
END_MARK: Final = "<!-- end -->"
_SLOW: Final = ("-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", "slow", "--timeout=14400")
#: how often the load of the machine is looked at
_LOOK_S: Final = 10.0
#: of a result on the page; ``FIGURES`` has all of it
_SHOWN_CHARACTERS: Final = 320


@dataclass(frozen=True, slots=True)
class SoakRun:
    """``arguments`` are Python's; ``finds``: what it would find.  A benchmark's rows are its
    figures.
    """

    what: str
    arguments: tuple[str, ...]
    size: str
    finds: str


@dataclass(frozen=True, slots=True)
class RunFigures:
    """A line of the file.  ``load``: the median of the machine's, this run's own included; 2 is two
    busy cores.
    """

    run: str
    commit: str
    began: str
    wall_s: int
    cpu_s: int
    load: float
    passed: bool
    said: tuple[str, ...]


def _slow(*places: str) -> tuple[str, ...]:
    return (*_SLOW, *places)


RUNS: Final = {
    "engine": SoakRun(
        "random histories of the slice engine",
        _slow("tests/slices/test_engine_history.py"),
        "10,000,000 steps",
        "an endpoint that the plain specification has otherwise; more writes or bytes than "
        "upstream's packing",
    ),
    "clusters": SoakRun(
        "simulated clusters under faults",
        _slow("tests/lab/sim/test_simulation.py"),
        "2,000 seeds of 100 steps",
        "an invariant of [these](guarantees.md#invariants) that breaks",
    ),
    "drains": SoakRun(
        "drains in the simulator",
        _slow("tests/lab/sim/test_drains.py"),
        "10,000 seeds",
        '"drained" that is said too early',
    ),
    "removals": SoakRun(
        "mass removals",
        _slow("tests/lab/sim/test_guard.py"),
        "10,000 seeds",
        "endpoints held that should go, and the other way",
    ),
    "recordings": SoakRun(
        "recordings",
        _slow("tests/diagnose/timeline/test_replay.py"),
        "1,000 incidents",
        "a replay with other writes",
    ),
    "replicas": SoakRun(
        "interleavings of two servers",
        _slow("tests/replicated/test_replica_interleavings.py"),
        "1,000 seeds",
        "a replica that differs from the log",
    ),
    "chaos": SoakRun(
        "chaos over etcd",
        ("-m", "tests.replicated.chaos", "--seconds", "1800", "--seed", "2"),
        "30 minutes",
        "a lost write, a stale read, a gap in a watch",
    ),
    "relays": SoakRun(
        "relays in two levels under faults",
        ("-m", "tests.relay.chaos", "--events", "1000000", "--seed", "1"),
        "1,000,000 events",
        "an event that is lost, repeated, late in order or altered; a read of the past",
    ),
    "relayed-cases": SoakRun(
        "the conformance kit's cases behind one and two relays",
        _slow("tests/relay/test_conformance_through_relays.py"),
        "102 cases each",
        "a belief of our view that is wrong",
    ),
    "kills": SoakRun(
        "kill -9 of the storage, and of a plane under load",
        _slow("tests/server/storage/test_kill.py", "tests/e2e/test_kill9.py"),
        "1,000 kills each",
        "an acknowledged write that is gone",
    ),
    "churn": SoakRun(
        "everything at once",
        ("-m", "tests.e2e.churn", "--seconds", "1800", "--seed", "1"),
        "30 minutes",
        "wrong state after kills, stops, slow clients and a full disk; growth of memory, files, "
        "threads",
    ),
    "drain-packets": SoakRun(
        "drains under load",
        _slow("tests/kernel/test_drain_packets.py"),
        "1,000 drains, 1,000 connections a second",
        "a failed connection",
    ),
    "rollouts": SoakRun(
        "rolling updates under load",
        _slow("tests/kernel/test_rolling_update_packets.py"),
        "100 updates",
        "a failed request",
    ),
    "proxy-kills": SoakRun(
        "node proxy killed under load",
        _slow("tests/kernel/test_restart_under_load.py"),
        "20 kills",
        "a failed request",
    ),
    "kernel": SoakRun(
        "kernel against shadow",
        _slow("tests/kernel/test_shadow_equals_kernel.py"),
        "1,000,000 events",
        "rules that are left behind",
    ),
    "worlds": SoakRun(
        "`explain` against packets, with our proxy",
        ("-m", "tests.kernel.oracle", "--proxy", "ours nftables", "ours iptables"),
        "200 worlds in each mode",
        "[well](#explain-against-packets) of what fails, broken of what works",
    ),
    "kube-proxy-worlds": SoakRun(
        "`explain` against packets, with kube-proxy (builds it with Go)",
        (
            *("-m", "tests.kernel.oracle", "--first", "200"),
            *("--proxy", "kube-proxy iptables", "kube-proxy nftables"),
        ),
        "200 worlds in each mode",
        "the same",
    ),
    "proxy-memory": SoakRun(
        "node proxy's memory",
        _slow("tests/proxy/test_proxy_history.py"),
        "1,000,000 events",
        "memory that grows with history",
    ),
    "agents": SoakRun(
        "agents outside",
        _slow("tests/agent"),
        "200 histories; 1,000 agents, 600 cut off",
        "endpoints taken away, or kept, wrongly",
    ),
    "xds": SoakRun(
        "xDS against the node proxy",
        _slow("tests/xds/test_model_against_node_proxy.py"),
        "10,000 states",
        "an endpoint that Envoy is told and a node would not use",
    ),
    "grpc": SoakRun(
        "xDS under rolling updates",
        _slow("tests/xds/test_grpc_programs.py"),
        "50 rolling updates, 500 calls a second",
        "a failed call",
    ),
    "load": SoakRun(
        "HTTP load",
        ("-m", "benchmarks.load", "--json"),
        "200 clients, a minute",
        "a failed request; growth",
    ),
    "garbage": SoakRun(
        "garbage collection",
        ("-m", "benchmarks.garbage", "--json"),
        "1,000 owners of 100; 100,000 of one, Foreground",
        "an object that is left; growth",
    ),
    "fuzz-requests": SoakRun(
        "fuzzing: requests in process",
        ("-m", "tests.fuzz", "--seconds", "720"),
        "12 minutes",
        "a 500, a broken promise, growth over 32 MiB",
    ),
    "fuzz-names": SoakRun(
        "fuzzing: packets to the name server",
        ("-m", "tests.fuzz.names", "--seconds", "720"),
        "12 minutes",
        "an error, a slow answer, growth",
    ),
    "fuzz-sockets": SoakRun(
        "fuzzing: sockets",
        ("-m", "tests.fuzz.wire", "--seconds", "720"),
        "12 minutes",
        "a 500, a traceback, growth",
    ),
    "fuzz-http2": SoakRun(
        "fuzzing: HTTP/2",
        ("-m", "tests.fuzz.http2", "--seconds", "720"),
        "12 minutes",
        "an error, memory without bound",
    ),
    "fuzz-xds": SoakRun(
        "fuzzing: requests of xDS",
        ("-m", "tests.fuzz.xds_requests", "--seconds", "720"),
        "12 minutes",
        "an error",
    ),
    "properties": SoakRun(
        "every property, fifty times as long; all other slow tests",
        (
            "-m",
            "pytest",
            "-q",
            "-p",
            "no:cacheprovider",
            "-m",
            "slow or hypothesis",
            "--timeout=14400",
        ),
        "5,000 examples each",
        "whatever a test finds",
    ),
}


def run(name: str) -> RunFigures:
    """What it prints goes to standard error, so that a person can follow it."""
    chosen = RUNS[name]
    arguments = list(chosen.arguments)
    if name == "properties":
        places = {
            place
            for each in RUNS.values()
            for place in each.arguments
            if place.startswith("tests/")
        }
        arguments += [f"--ignore={place}" for place in sorted(places)]
    with tempfile.TemporaryDirectory(prefix="sliceplane-soak-") as folder:
        told = Path(folder) / "figures"
        environment = {
            **os.environ,
            "PYTHONPATH": "src:.",
            "HYPOTHESIS_PROFILE": "soak",
            VARIABLE: str(told),
        }
        began, cpu_before, loads = time.time(), _cpu_of_children_s(), [os.getloadavg()[0]]
        with (Path(folder) / "output").open("w+", encoding="utf-8") as output:
            process = subprocess.Popen(
                [sys.executable, *arguments], cwd=ROOT, env=environment, stdout=output
            )
            try:
                while True:
                    try:
                        code = process.wait(_LOOK_S)
                        break
                    except subprocess.TimeoutExpired:
                        loads.append(os.getloadavg()[0])
            finally:
                process.kill()
                process.wait()
            output.seek(0)
            printed = output.read()
        sys.stderr.write(printed)
        return RunFigures(
            run=name,
            commit=_commit(),
            began=time.strftime("%Y-%m-%d %H:%M", time.gmtime(began)),
            wall_s=round(time.time() - began),
            cpu_s=round(_cpu_of_children_s() - cpu_before),
            load=round(statistics.median(loads), 1),
            passed=code == 0,
            said=_said(arguments, printed, told),
        )


def _said(arguments: list[str], printed: str, told: Path) -> tuple[str, ...]:
    lines = [line.strip() for line in printed.splitlines() if line.strip()]
    if "--json" in arguments:
        rows = (json.loads(line) for line in lines if line.startswith("{"))
        return tuple(map(_row_in_words, rows))
    figures = tuple(told.read_text(encoding="utf-8").splitlines()) if told.exists() else ()
    return figures + tuple(lines[-1:]) if "pytest" in arguments else figures or tuple(lines[-1:])


def _row_in_words(row: dict[str, Any]) -> str:
    words = " ".join(
        str(row[key]).strip()
        for key in ("name", "size", "value", "unit")
        if row[key] not in ("", None)
    )
    return f"{words} (missed: {row['budget']:g})" if row["met"] is False else words


def _commit() -> str:
    """``unknown`` outside of a repository."""
    try:
        changed = _git("status", "--porcelain", "--", "src", "tests", "benchmarks")
        return _git("rev-parse", "--short=8", "HEAD") + (" and changes" if changed else "")
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def _git(*words: str) -> str:
    return subprocess.run(
        ["git", *words], cwd=ROOT, check=True, capture_output=True, text=True
    ).stdout.strip()


def _cpu_of_children_s() -> float:
    """Of all that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def newest() -> dict[str, RunFigures]:
    """By run, in the order of ``RUNS``."""
    found: dict[str, RunFigures] = {}
    for line in FIGURES.read_text(encoding="utf-8").splitlines() if FIGURES.exists() else ():
        row = json.loads(line)
        found[row["run"]] = RunFigures(**{**row, "said": tuple(row["said"])})
    return {name: found[name] for name in RUNS if name in found}


def page() -> str:
    """``docs/figures.md`` with its tables made anew."""
    text = PAGE.read_text(encoding="utf-8")
    for mark, lines in ((RUNS_MARK, _table_of_runs()), (FIGURES_MARK, _table_of_figures())):
        before, _, rest = text.partition(mark)
        _, _, after = rest.partition(END_MARK)
        text = "\n".join([f"{before}{mark}", *lines, f"{END_MARK}{after}"])
    return text


def _table_of_runs() -> list[str]:
    rows = [
        f"| `{name}` | {chosen.what} | {chosen.size} | {chosen.finds} |"
        for name, chosen in RUNS.items()
    ]
    return ["| name | run | size | what it would find |", "|---|---|---|---|", *rows]


def _table_of_figures() -> list[str]:
    lines = ["| run | version, began (UTC) | wall; CPU; load | result |", "|---|---|---|---|"]
    known = newest()
    for name in RUNS:
        figures = known.get(name)
        if figures is None:
            lines.append(f"| `{name}` | no figures yet | | |")
            continue
        said = "; ".join(figures.said).replace("|", "/") or "nothing said"
        said = textwrap.shorten(said, _SHOWN_CHARACTERS, placeholder=" ...")
        took = f"{_duration(figures.wall_s)}; {_duration(figures.cpu_s)}; {figures.load:g}"
        result = said if figures.passed else f"**FAILED** {said}"
        lines.append(f"| `{name}` | {figures.commit}, {figures.began} | {took} | {result} |")
    return lines


def _duration(seconds: int) -> str:
    minutes, rest = divmod(seconds, 60)
    return f"{minutes} min {rest} s" if minutes else f"{rest} s"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python tools/soak.py", description=__doc__)
    parser.add_argument(
        "runs", nargs="*", metavar="NAME", help="of --list; all of them where none is given"
    )
    parser.add_argument("--list", action="store_true", help="print the runs and end")
    parser.add_argument(
        "--table", action="store_true", help="write the tables of docs/figures.md and end"
    )
    arguments = parser.parse_args()
    unknown = [name for name in arguments.runs if name not in RUNS]
    if unknown:
        parser.error(f"no run is named {unknown[0]}; --list prints them")
    if arguments.list:
        for name, chosen in RUNS.items():
            print(f"{name:14} {chosen.what}: {chosen.size}")
        return
    failed = []
    for name in () if arguments.table else arguments.runs or RUNS:
        print(f"\n{name}: {RUNS[name].what}, {RUNS[name].size}", file=sys.stderr, flush=True)
        figures = run(name)
        with FIGURES.open("a", encoding="utf-8") as file:
            file.write(json.dumps(asdict(figures)) + "\n")
        if not figures.passed:
            failed.append(name)
        print(
            f"{name}: {'passed' if figures.passed else 'FAILED'} after {_duration(figures.wall_s)}",
            flush=True,
        )
    PAGE.write_text(page(), encoding="utf-8")
    if failed:
        sys.exit(f"failed: {', '.join(failed)}")


if __name__ == "__main__":
    main()
