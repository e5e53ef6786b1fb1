"""The node proxy: from lists to rules in the kernel, its memory, and one endpoint changed until the
kernel has it.

A real kernel, in a network namespace made for it and removed again; needs root. The API server is
replaced by its bytes (see ``tools/proxied.py``), so a first sync is decoding, tracking, rules,
messages and the kernel. Kubernetes' own kube-proxy is measured beside it, at the largest size,
once, as its syncs take seconds (``tools/kube_proxy.py``).

Three changes are told apart: *one endpoint is replaced*, *one endpoint goes or comes*, *one service
comes*. The services here have cluster IPs alone, so each is data of maps and no rule, whatever else
the node serves (``node.nft.buckets``); what a rule would cost is told by ``tools/kernel_walk.py``.
When the kernel has a change, it says so itself (its notice of a new generation).
"""

from __future__ import annotations

import functools
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

RUN_MAX_S = 300.0
RUNS = 3
#: services x endpoints of each; the first service is the one that changes
MANY = "1000x10"
SEVERAL = "5006x50"
SINGLE = "44000x1"
PAIRS = "22000x2"
SMALL = "20x3"
#: that of the budgets
HUGE = "4007x50,1000x10"
EVENTS = (
    ("change", "one endpoint is replaced"),
    ("scaled", "one endpoint goes or comes"),
    ("added", "one service comes"),
)
CHANGES = 40
#: one endpoint goes or comes, at any size
CHANGE_BUDGET_MS = 1.5
SMALL_CHANGES = 4
PEER_CHANGES = 5
PROXIED = "benchmarks.tools.proxied"
#: Kubernetes' own programs, for tests too
KUBERNETES = Path(__file__).parents[1] / "tests" / "peers" / "kubernetes"


def missing() -> str:
    """What is needed and not there; "" if nothing is."""
    lacking = [] if os.geteuid() == 0 else ["root"]
    return ", ".join(
        lacking + [program for program in ("nft", "ip") if shutil.which(program) is None]
    )


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
            return dict(json.loads(child.line(RUN_MAX_S)))


def _median(measured: list[dict[str, Any]], what: str) -> float:
    return statistics.median(run[what] for run in measured)


def _all(measured: list[dict[str, Any]], event: str, what: str) -> list[float]:
    return [value for run in measured for value in run[event][what]]


def parts(measured: list[dict[str, Any]]) -> list[Result]:
    """Where the time goes, and what ``nft`` takes for the same rules as text and nothing else."""
    size = _size(measured[0])
    ours_s = statistics.median(run["first_sync_s"] - run["first_write_s"] for run in measured)
    rows = [
        ("  first sync: until the transaction is finished", ours_s, "s"),
        ("  first sync: messages and kernel", _median(measured, "first_write_s"), "s"),
        ("  first sync: CPU", _median(measured, "first_cpu_s"), "s"),
        ("  first sync: text", _median(measured, "first_bytes") / 1e6, "MB"),
        ("  writes that nft had to make", _median(measured, "by_program"), ""),
        ("  the same text, bare nft -f", _median(measured, "load_s"), "s"),
        ("  the same text, bare nft -f: CPU", _median(measured, "load_cpu_s"), "s"),
        ("  one listing of the table", _median(measured, "list_s"), "s"),
    ]
    for event, name in EVENTS:
        kernel = _all(measured, event, "kernel_s")
        ours = _all(measured, event, "ours_s")
        in_kernel = statistics.median(kernel) - statistics.median(ours)
        rows += [
            (f"  {name}: until the transaction is finished", statistics.median(ours) * 1e3, "ms"),
            (f"  {name}: messages and kernel", in_kernel * 1e3, "ms"),
            (f"  {name}: CPU", statistics.median(_all(measured, event, "cpu_s")) * 1e3, "ms"),
            (f"  {name}: text", statistics.median(_all(measured, event, "bytes")), "bytes"),
            (f"  {name}: p99", percentile(kernel, 99) * 1e3, "ms"),
        ]
    return [Result(name=name, size=size, value=value, unit=unit) for name, value, unit in rows]


def events(
    measured: list[dict[str, Any]], budget_ms: float | None = None, peer: Peer | None = None
) -> list[Result]:
    """The budget, and the peer, are for an endpoint that goes or comes."""
    size = _size(measured[0])
    return [
        Result(
            name=f"{name}, until the kernel has it, median",
            size=size,
            value=statistics.median(_all(measured, event, "kernel_s")) * 1e3,
            unit="ms",
            budget=budget_ms if event == "scaled" else None,
            peer="" if peer is None or event != "scaled" else peer.name,
            peer_value=None if peer is None or event != "scaled" else peer.change_ms,
        )
        for event, name in EVENTS
    ]


def many(sizes: str, runs: int, changes: int) -> list[Result]:
    measured = [measure(PROXIED, sizes, str(changes)) for _ in range(runs)]
    full = sizes == MANY
    size = _size(measured[0])
    return [
        Result(
            name="first sync",
            size=size,
            value=_median(measured, "first_sync_s"),
            unit="s",
            budget=0.2 if full else None,
            peer=UPSTREAM if full else "",
            peer_value=0.27 if full else None,
        ),
        Result(name="  memory after it", size=size, value=_median(measured, "rss_mib"), unit="MiB"),
        *events(measured, None if sizes == SMALL else CHANGE_BUDGET_MS),
        *parts(measured),
    ]


@dataclass(frozen=True)
class Peer:
    name: str
    first_sync_s: float
    rss_mib: float
    change_ms: float
    idle_cpu: float | None = None
    change_cpu_s: float | None = None
    ready_cpu_s: float | None = None


@functools.cache
def kube_proxy() -> Peer:
    """Upstream's proxy at the largest size, measured in this run if it can be built here."""
    program = build("kube-proxy", KUBERNETES, "./kube-proxy")
    if program is None:
        return Peer(UPSTREAM, 4.26, 616.0, 2650.0)
    one = measure("benchmarks.tools.kube_proxy", str(program), HUGE, str(PEER_CHANGES))
    note(
        "kube-proxy's first sync with its lists, which our server serves: "
        f"{one['listed_and_synced_s']:.2f} s"
    )
    change_ms = statistics.median(one["change_s"]) * 1e3
    costs = (one["idle_cpu"], one["change_cpu_s"], one["ready_cpu_s"])
    name = "kube-proxy 1.36.2 (this run)"
    return Peer(name, one["first_sync_s"], one["rss_mib"], change_ms, *costs)


def huge() -> list[Result]:
    measured = [measure(PROXIED, HUGE, str(CHANGES)) for _ in range(RUNS)]
    peer = kube_proxy()
    rows = (
        ("first sync", _median(measured, "first_sync_s"), "s", 1.6, peer.first_sync_s),
        ("  memory after it", _median(measured, "rss_mib"), "MiB", 250.0, peer.rss_mib),
    )
    size = _size(measured[0])
    return [
        *(
            Result(
                name=name,
                size=size,
                value=value,
                unit=unit,
                budget=budget,
                peer=peer.name,
                peer_value=theirs,
            )
            for name, value, unit, budget, theirs in rows
        ),
        *events(measured, CHANGE_BUDGET_MS, peer),
        *parts(measured),
    ]


def observer() -> list[Result]:
    """What the observer costs a node that runs another proxy, as ``tools/observed.py`` has it, beside
    that proxy's own costs.
    """
    measured = measure("benchmarks.tools.observed", HUGE, str(CHANGES))
    peer = kube_proxy()
    rows: tuple[tuple[str, str, float, str, float | None, float | None], ...] = (
        ("observer: memory", "rss_mib", 1, "MiB", 150.0, peer.rss_mib),
        ("  its maximum until then", "peak_mib", 1, "MiB", None, None),
        ("observer: CPU while nothing changes", "idle_cpu", 100, "% of a core", 1.0, peer.idle_cpu),
        ("  CPU of one change", "change_cpu_s", 1e3, "ms", None, peer.change_cpu_s),
        ("  CPU until all is compared", "ready_cpu_s", 1, "s", None, peer.ready_cpu_s),
    )
    size = _size(measured)
    return [
        Result(
            name=name,
            size=size,
            value=measured[key] * scale,
            unit=unit,
            budget=budget,
            peer="" if theirs is None else peer.name,
            peer_value=None if theirs is None else theirs * scale,
        )
        for name, key, scale, unit, budget, theirs in rows
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
    others = [row for sizes in (SEVERAL, SINGLE, PAIRS) for row in many(sizes, 1, CHANGES)]
    return [*many(MANY, RUNS, CHANGES), *huge(), *observer(), *others]


if __name__ == "__main__":
    main(run)
