"""Two servers over one etcd: what a write takes with one writer at each, and with 64 at both.

The peer is a pair of kube-apiservers over an etcd of its own, with the same writers, in the same
run: rounds alternate, so both meet the same neighbours. A write replaces a ConfigMap of 1 kB that
no other writer touches. Budgets are upper bounds, and those of the design are about writes a
second; so what is printed is the inverse, the time for one write of all writers together, and the
median of the rounds.
"""

from __future__ import annotations

import json
import shutil
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from benchmarks.harness import Result, main, percentile
from benchmarks.node_proxy import KUBERNETES
from benchmarks.tools.peers import build
from benchmarks.tools.process import PlaneProcess, Process, scratch

PEER: Final = "two kube-apiservers, same run"
ROUNDS: Final = 7
ROUND_S: Final = 3.0
SMALL_ROUND_S: Final = 0.1
#: a kube-apiserver makes its roles first
START_S_MAX: Final = 180.0
#: writers in all -> how many times as fast as the peer we are to be
CASES: Final = {2: 1.0, 64: 2.5}
SMALL_CASES: Final = {2: 1.0, 8: 2.5}


@contextmanager
def etcd(folder: Path) -> Iterator[str]:
    """The URL of one with one member."""
    from tests.replicated.members import cluster

    folder.mkdir(parents=True)
    with cluster(folder, 1, durable=True) as (member,):
        yield member.url


@contextmanager
def ours(folder: Path) -> Iterator[list[Path]]:
    """The kubeconfigs of two servers."""
    with etcd(folder / "etcd") as url, ExitStack() as stack:
        kubeconfigs = []
        for name in ("one", "two"):
            home = folder / name
            home.mkdir()
            if kubeconfigs:
                shutil.copytree(folder / "one" / "data" / "pki", home / "data" / "pki")
                shutil.copy(folder / "one" / "data" / "tokens.csv", home / "data")
            server = PlaneProcess(home, "--etcd", url, command="apiserver")
            stack.enter_context(server)
            kubeconfigs.append(server.kubeconfig)
        yield kubeconfigs


@contextmanager
def theirs(folder: Path, program: Path) -> Iterator[list[Path]]:
    """The kubeconfigs of two kube-apiservers, which may not answer yet."""
    from tests.peers.kubernetes import api_server_flags
    from tests.ports import free_port

    with etcd(folder / "etcd") as url, ExitStack() as stack:
        kubeconfigs = []
        for name in ("one", "two"):
            home = folder / name
            home.mkdir()
            flags = api_server_flags(home, url, "127.0.0.1", free_port())
            stack.enter_context(Process(str(program), *flags, log=home / "log"))
            kubeconfigs.append(home / "admin.kubeconfig")
        yield kubeconfigs


def writers(count: int, kubeconfigs: list[Path], log: Path) -> Process:
    """They run when each of them has its object."""
    deadline = time.monotonic() + START_S_MAX
    command = (sys.executable, "-m", "benchmarks.tools.writers", str(count), *map(str, kubeconfigs))
    while True:
        process = Process(*command, log=log)
        try:
            assert process.line() == "open"
        except RuntimeError:  # a server is not there yet
            process.stop()
            if time.monotonic() > deadline:
                raise
            time.sleep(1.0)
        else:
            return process


@dataclass(frozen=True, slots=True)
class Rounds:
    """``took_ms``: for one write of all, in each round; ``waits_ms``: of every write."""

    took_ms: list[float]
    waits_ms: list[float]


def measure(
    planes: dict[str, list[Path]], count: int, rounds: int, seconds: float, log: Path
) -> dict[str, Rounds]:
    """Of each plane, by its name."""
    with ExitStack() as stack:
        processes = {
            name: stack.enter_context(writers(count, each, log)) for name, each in planes.items()
        }
        figures = {name: Rounds([], []) for name in planes}
        for _ in range(rounds):
            for name, process in processes.items():
                process.say(str(seconds))
                answer = json.loads(process.line())
                figures[name].took_ms.append(answer["seconds"] / sum(answer["writes"]) * 1e3)
                figures[name].waits_ms.extend(wait * 1e3 for wait in answer["waits"])
    return figures


def rows(count: int, factor: float, ours: Rounds, theirs: Rounds | None) -> Iterator[Result]:
    size = f"{count} writers, 2 servers"
    peer = PEER if theirs is not None else ""

    def row(name: str, figure: Callable[[Rounds], float], *, is_budget: bool) -> Result:
        peer_value = figure(theirs) if theirs is not None else None
        budget = peer_value / factor if peer_value is not None and is_budget else None
        return Result(
            name=name,
            size=size,
            value=figure(ours),
            unit="ms",
            budget=budget,
            peer=peer,
            peer_value=peer_value,
        )

    yield row(
        "time for one of all writes", lambda each: statistics.median(each.took_ms), is_budget=True
    )
    yield row(
        "  a write waits, median", lambda each: statistics.median(each.waits_ms), is_budget=False
    )
    yield row("  a write waits, p99", lambda each: percentile(each.waits_ms, 99), is_budget=False)


def run(small: bool = False) -> list[Result]:
    rounds, seconds, cases = (1, SMALL_ROUND_S, SMALL_CASES) if small else (ROUNDS, ROUND_S, CASES)
    program = None if small else build("kube-apiserver", KUBERNETES, "./kube-apiserver")
    with scratch() as name, ExitStack() as stack:
        folder = Path(name)
        planes = {"": stack.enter_context(ours(folder / "ours"))}
        if program is not None:
            planes[PEER] = stack.enter_context(theirs(folder / "theirs", program))
        results: list[Result] = []
        for count, factor in cases.items():
            figures = measure(planes, count, rounds, seconds, folder / "writers.log")
            results += rows(count, factor, figures[""], figures.get(PEER))
    return results


if __name__ == "__main__":
    main(run)
