"""The node proxy: from lists to rules in the kernel, its memory, and one endpoint changed until the kernel has it.

Real ``nft`` and kernel, in a network namespace made for it and removed again; needs root.  The API server is replaced
by its bytes (see ``tools/proxied.py``), so a first sync is decoding, tracking, rules, nft and the kernel.  Kubernetes'
own kube-proxy is measured beside it, at the largest size, once, as its syncs take seconds (``tools/kube_proxy.py``).

When the kernel has a change, it says so itself (its notice of a new generation).  ``nft`` ends some 10 ms later:
closing its socket waits until the kernel has freed what the transaction replaced.  Packets do not wait for that, the
next transaction does, so both times are shown.
"""

from __future__ import annotations

import json
import os
import shutil
import statistics
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from demo.net import run_ip

from benchmarks.harness import UPSTREAM, Result, main, note, percentile
from benchmarks.tools.peers import build
from benchmarks.tools.process import Process, scratch

RUN_SECONDS_MAX = 300.0
RUNS = 3
#: services x endpoints of each; the first service is the one that changes
MANY, HUGE, SMALL = "1000x10", "5000x40,1x10000,6x50", "20x3"
CHANGES, SMALL_CHANGES, PEER_CHANGES = 40, 4, 5
PROXIED = "benchmarks.tools.proxied"
#: Kubernetes' own programs, for tests too
KUBERNETES = Path(__file__).parents[1] / "tests" / "peers" / "kubernetes"


def missing() -> str:
    """What is needed and not there; "" if nothing is."""
    lacking = [] if os.geteuid() == 0 else ["root"]
    return ", ".join(lacking + [program for program in ("nft", "ip") if shutil.which(program) is None])


@contextmanager
def namespace() -> Iterator[str]:
    name = f"sp-bench-{os.getpid()}"
    run_ip("netns", "add", name)
    try:
        yield name
    finally:
        run_ip("netns", "del", name)


def measure(*arguments: str) -> dict[str, Any]:
    """*arguments*: a module of ``benchmarks.tools`` and its own."""
    with namespace() as name:
        command = ("ip", "netns", "exec", name, sys.executable, "-m", *arguments)
        with scratch() as folder, Process(*command, log=Path(folder) / "proxy.log") as child:
            return dict(json.loads(child.line(RUN_SECONDS_MAX)))


def many(sizes: str, runs: int, changes: int) -> list[Result]:
    measured = [measure(PROXIED, sizes, str(changes)) for _ in range(runs)]
    full = sizes == MANY
    return [
        Result(
            name="first sync",
            size=_size(measured[0]),
            value=statistics.median(one["first_sync_s"] for one in measured),
            unit="s",
            budget=0.2 if full else None,
            peer=UPSTREAM if full else "",
            peer_value=0.27 if full else None,
        ),
        Result(
            name="one endpoint changes, until the kernel has it, median",
            size=_size(measured[0]),
            value=statistics.median(time for one in measured for time in one["change_s"]) * 1e3,
            unit="ms",
        ),
    ]


@dataclass(frozen=True)
class Peer:
    name: str
    first_sync_s: float
    rss_mib: float
    change_ms: float


def kube_proxy() -> Peer:
    """Upstream's proxy at the largest size, measured in this run if it can be built here."""
    program = build("kube-proxy", KUBERNETES, "./kube-proxy")
    if program is None:
        return Peer(UPSTREAM, 4.26, 616.0, 2650.0)
    one = measure("benchmarks.tools.kube_proxy", str(program), HUGE, str(PEER_CHANGES))
    note(f"kube-proxy's first sync with its lists, which our server serves: {one['listed_and_synced_s']:.2f} s")
    change_ms = statistics.median(one["change_s"]) * 1e3
    return Peer("kube-proxy 1.36.2 (this run)", one["first_sync_s"], one["rss_mib"], change_ms)


def huge() -> list[Result]:
    measured = [measure(PROXIED, HUGE, str(CHANGES)) for _ in range(RUNS)]
    peer = kube_proxy()
    times = [time for one in measured for time in one["change_s"]]
    rows = (
        ("first sync", statistics.median(one["first_sync_s"] for one in measured), "s", 2.5, peer.first_sync_s),
        ("  memory after it", statistics.median(one["rss_mib"] for one in measured), "MiB", 300.0, peer.rss_mib),
        (
            "one endpoint changes, until the kernel has it, median",
            statistics.median(times) * 1e3,
            "ms",
            20.0,
            peer.change_ms,
        ),
    )
    size = _size(measured[0])
    results = [
        Result(name=name, size=size, value=value, unit=unit, budget=budget, peer=peer.name, peer_value=theirs)
        for name, value, unit, budget, theirs in rows
    ]
    ends = [time for one in measured for time in one["nft_s"]]
    return [
        *results,
        Result(name="  p99", size=size, value=percentile(times, 99) * 1e3, unit="ms"),
        Result(name="  until nft has ended, median", size=size, value=statistics.median(ends) * 1e3, unit="ms"),
    ]


def _size(measured: dict[str, Any]) -> str:
    return f"{measured['services']:,} services, {measured['endpoints']:,} endpoints"


def run(small: bool = False) -> list[Result]:
    lacking = missing()
    if lacking:
        note(f"the node proxy was not measured; missing: {lacking}")
        return []
    if small:
        return many(SMALL, 1, SMALL_CHANGES)
    return many(MANY, RUNS, CHANGES) + huge()


if __name__ == "__main__":
    main(run)
