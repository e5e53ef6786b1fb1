"""Digests of what nodes hold: what a change costs, and what 5,000 nodes that report every ten
seconds cost.

*A change*: an EndpointSlice as a node proxy digests it, and as a controller does, with thousands of
zones that slices are for. *Leases*: reports of 5,000 nodes with two readings each, every one new,
taken in and judged; the share is of one core at a report of every node each ten seconds.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

from benchmarks.harness import Result, main
from sliceplane.api.codec import encode
from sliceplane.api.core import Lease, LeaseSpec
from sliceplane.api.discovery import LABEL_FOR_ZONE, EndpointSlice
from sliceplane.api.meta import ObjectMeta, OwnerReference
from sliceplane.api.scheme import EndpointSlices
from sliceplane.consume.progress import (
    ANNOTATION_PROGRESS,
    CHANGED_PERIOD_S,
    COMPONENT,
    LABEL_COMPONENT,
    LEASE_DURATION_S,
    AppliedRevision,
    ProgressReport,
)
from sliceplane.controllers.node_progress import NodeProgress
from sliceplane.watch.cache import Change, Mark
from sliceplane.watch.digest import Digest, digest_of

SLICES = 20_000
ZONES = 4_000
CHANGES = 100_000
NODES = 5_000
ROUNDS = 3
CHANGE_US = 1.0
SHARE_PERCENT = 1.0
MEMORY_MIB = 100.0


def slice_of(number: int, version: int, zone: str = "") -> EndpointSlice:
    labels = {LABEL_FOR_ZONE: zone} if zone else None
    meta = ObjectMeta(
        namespace="shop",
        name=f"web-{number:05}-x7k2p",
        resource_version=str(version),
        labels=labels,
    )
    return EndpointSlice(metadata=meta)


def lease(node: str, report: ProgressReport) -> Lease:
    meta = ObjectMeta(
        name=f"sliceplane-proxy-{node}",
        labels={LABEL_COMPONENT: COMPONENT},
        annotations={ANNOTATION_PROGRESS: encode(report).decode()},
        owner_references=(OwnerReference(kind="Node", name=node, uid=node),),
    )
    return Lease(
        metadata=meta, spec=LeaseSpec(holder_identity=node, lease_duration_seconds=LEASE_DURATION_S)
    )


def rss_mib() -> float:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


def change_us(changes: int) -> float:
    """Of a node: the digest alone, best of three."""
    versions = [slice_of(number % 100, number + 1) for number in range(changes + 100)]
    best = float("inf")
    for _ in range(3):
        digest = Digest()
        for item in versions[:100]:
            digest.on_change(None, item)
        began = time.process_time()
        for old, new in zip(versions, versions[100:], strict=False):
            digest.on_change(old, new)
        best = min(best, (time.process_time() - began) / changes)
    return best * 1e6


def fleet(small: bool) -> list[Result]:
    slices, nodes = (200, 50) if small else (SLICES, NODES)
    before = rss_mib()
    progress = NodeProgress()
    held = [
        slice_of(number, number + 1, f"z{number % ZONES}" if number % 2 else "")
        for number in range(slices)
    ]
    for item in held:
        progress.on_change(Change(EndpointSlices.key, None, item))
    progress.on_mark(Mark(EndpointSlices.key, str(slices), listed=True), 0.0)
    shared = digest_of(item for number, item in enumerate(held) if not number % 2)

    changes = 1_000 if small else 20_000
    began = time.process_time()
    for number in range(changes):
        which = 1 + 2 * (number % (slices // 2))
        old = held[which]
        new = held[which] = slice_of(which, slices + number + 1, f"z{which % ZONES}")
        progress.on_change(Change(EndpointSlices.key, old, new))
        progress.on_mark(Mark(EndpointSlices.key, str(slices + number + 1)), number / 100)
    per_change_us = (time.process_time() - began) / changes * 1e6

    version = slices + changes
    zone = digest_of(held[number] for number in range(1, slices, ZONES))
    reports = [
        ProgressReport(
            endpointslices={
                "shared": AppliedRevision(version, shared),
                "zone=z1": AppliedRevision(version, zone),
            }
        )
        for _ in range(nodes)
    ]
    leases = [lease(f"node-{number:04}", reports[number]) for number in range(nodes)]
    best = float("inf")
    for turn in range(ROUNDS):
        began = time.process_time()
        for number in range(nodes):
            progress.on_lease(f"sliceplane-proxy-node-{number:04}", leases[number], 300.0 + turn)
        best = min(best, time.process_time() - began)
    began = time.process_time()
    lag = progress.lag({"shared": version, "zone=z1": version}, 400.0)
    lag_ms = (time.process_time() - began) * 1e3
    size = f"{slices:,} slices, {nodes:,} nodes"
    assert (lag.nodes, lag.behind) == (nodes, 0), lag
    return [
        Result(
            name="a change of a slice, kept by version", size=size, value=per_change_us, unit="us"
        ),
        Result(
            name="reports of all nodes, one in 10 s each",
            size=size,
            value=best / CHANGED_PERIOD_S * 100,
            unit="% of a core",
            budget=SHARE_PERCENT,
        ),
        Result(name="who is behind, at most once a second", size=size, value=lag_ms, unit="ms"),
        Result(
            name="memory of digests and reports",
            size=size,
            value=rss_mib() - before,
            unit="MiB",
            budget=MEMORY_MIB,
        ),
    ]


def run(small: bool = False) -> list[Result]:
    changes = 1_000 if small else CHANGES
    digest = Result(
        name="the digest of a change",
        size=f"{changes:,} changes",
        value=change_us(changes),
        unit="us",
        budget=CHANGE_US,
    )
    return [digest, *fleet(small)]


if __name__ == "__main__":
    main(run)
