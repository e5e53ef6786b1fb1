"""The EndpointSlice controller's own work: one Pod of a service flips, and the first sync of a
service.

What runs is the production core, ``EndpointSliceController``, between an informer's change and the
encoded body of the write; no server, no sockets. A *flip* is measured from the Pod's change to the
job in the host's hands; the answer and the watch's echo, which cost a turn too, are a row of their
own. A *first sync* is a service that appears when its Pods are known: from the Service's change to
the encoded bodies of all its slices, as upstream's begins with full caches; what filling them costs
is the next row.

The peer is upstream's own library, ``k8s.io/endpointslice``, in the same run
(``peers/endpointslice``): its figure is ``Reconcile`` alone, without the lists and the trigger time
that its controller works out before (4% more at 20,000), and its objects are encoded as protobuf.
"""

from __future__ import annotations

import statistics
import time
from pathlib import Path
from typing import NamedTuple

import msgspec

from benchmarks.harness import UPSTREAM, Result, main
from benchmarks.tools import peers
from benchmarks.tools.objects import (
    PODS_PER_NODE,
    node_document,
    pod_document,
    pod_ip,
    pod_name,
    pod_status,
    service_document,
    uid,
)
from sliceplane.api.codec import decode, encode
from sliceplane.api.core import Node, Pod, Service
from sliceplane.api.discovery import EndpointSlice
from sliceplane.api.meta import Object
from sliceplane.api.scheme import EndpointSlices, Nodes, Pods, Services
from sliceplane.cli.entry import spare_collector
from sliceplane.controllers.endpointslice import EndpointSliceController
from sliceplane.watch.cache import Change
from sliceplane.watch.controller.base import Done, Job

FLIPS = 1000
PEER_FLIPS = 11
UPSTREAM_LIBRARY = "k8s.io/endpointslice 0.36.2"
FLIP_GROWTH_BUDGET = 2.0
FLIP_BUDGET_MS = 0.05
#: one question about zones more
HEURISTIC_FLIP_BUDGET_MS = 0.25
#: recorded, for a machine that cannot build the peer
UPSTREAM_FLIP_MS = {100: 1.3, 1_000: 14.7, 20_000: 247.0, 100_000: 1284.0}
FIRST_SYNC_BUDGET_MS = {20_000: 60.0, 100_000: 300.0}
UPSTREAM_FIRST_SYNC_MS = {20_000: 199.0, 100_000: 1369.0}
BALANCED = "sliceplane.dev/Balanced"
AUTO = {"service.kubernetes.io/topology-mode": "Auto"}
NODE_STATUS = {
    "status": {"conditions": [{"type": "Ready", "status": "True"}], "allocatable": {"cpu": "8"}}
}
SIZES = (100, 1_000, 20_000, 100_000)
SMALL_SIZES = (100,)

replace = msgspec.structs.replace


class Bench:
    """A controller, the Pods that it knows, and just enough of a server to answer its writes."""

    def __init__(self, count: int, *, hints: bool = False, heuristic: str = "") -> None:
        """*hints*: topology-mode Auto, over Nodes of equal CPU.  *heuristic*: the Service's
        trafficDistribution.
        """
        self.count = count
        self.controller = EndpointSliceController()
        self.now = 1_800_000_000.0
        self.revision = 1
        self.slices: dict[str, EndpointSlice] = {}
        nodes = range((count + PODS_PER_NODE - 1) // PODS_PER_NODE)
        self.nodes = [decode(encode(node_document(number) | NODE_STATUS), Node) for number in nodes]
        self.service = decode(
            encode(self._stored(service_document(cluster_ip="10.96.0.10"), 0)), Service
        )
        if hints:
            self.service = replace(
                self.service, metadata=replace(self.service.metadata, annotations=AUTO)
            )
        if heuristic:
            spec = replace(self.service.spec, traffic_distribution=heuristic)
            self.service = replace(self.service, spec=spec)
        self.pods = [self._pod(number, ready=True) for number in range(count)]

    def _stored(self, document: dict[str, object], number: int) -> dict[str, object]:
        self.revision += 1
        metadata = {
            **document["metadata"],
            "uid": uid(number),
            "resourceVersion": str(self.revision),
        }  # type: ignore[dict-item]
        return {**document, "metadata": metadata}

    def _pod(self, number: int, *, ready: bool) -> Pod:
        document = pod_document(number) | pod_status(
            pod_ip(number), ready=ready, turn=self.revision
        )
        return decode(encode(self._stored(document, number)), Pod)

    def show(self, resource: str, old: Object | None, new: Object) -> None:
        self.controller.on_change(Change(resource, old, new), self.now)

    def fill(self) -> float:
        """Seconds to take in the Nodes and Pods that the first lists bring."""
        started = time.perf_counter()
        for node in self.nodes:
            self.show(Nodes.key, None, node)
        for pod in self.pods:
            self.show(Pods.key, None, pod)
        self.controller.on_synced(self.now)
        return time.perf_counter() - started

    def take(self) -> Job:
        (job,) = self.controller.take_work(self.now, 10).jobs
        return job

    def perform(self, job: Job) -> Done:
        """Accept every write; the watch's echoes come after the answers."""
        answers = []
        for write in job.writes:
            new = decode(write.body, EndpointSlice)
            name = new.metadata.name or f"{new.metadata.generate_name}{len(self.slices):06d}"
            self.revision += 1
            metadata = replace(
                new.metadata, name=name, uid=f"slice-{name}", resource_version=str(self.revision)
            )
            answers.append((self.slices.get(name), replace(new, metadata=metadata)))
            self.slices[name] = answers[-1][1]
        self.echoes = answers
        return Done(job, tuple(encode(new) for _, new in answers))

    def close_turn(self, done: Done) -> float:
        """Seconds for the answer, the echoes and the sync that they cause, which must find nothing
        to do.
        """
        started = time.perf_counter()
        self.controller.on_done(done, self.now)
        for old, new in self.echoes:
            self.show(EndpointSlices.key, old, new)
        self.now += 2.0
        work = self.controller.take_work(self.now, 10)
        spent = time.perf_counter() - started
        assert not work.jobs, f"a sync without a change writes {len(work.jobs[0].writes)} times"
        return spent

    def flip(self, number: int) -> tuple[float, float]:
        """Seconds from the Pod's change to the job, and for the rest of the turn."""
        old = self.pods[number]
        new = self._pod(number, ready=old.status.conditions[0].status != "True")
        self.pods[number] = new
        started = time.perf_counter()
        self.show(Pods.key, old, new)
        job = self.take()
        spent = time.perf_counter() - started
        (write,) = job.writes
        assert pod_name(number).encode() in write.body, (
            f"{write.verb} {write.name} is not about {pod_name(number)}"
        )
        return spent, self.close_turn(self.perform(job))


class Peer(NamedTuple):
    """Upstream's figures for one size, in ms."""

    label: str
    flip: float
    first_sync: float | None


def recorded(count: int) -> Peer:
    return Peer(UPSTREAM, UPSTREAM_FLIP_MS[count], UPSTREAM_FIRST_SYNC_MS.get(count))


def peer_of(program: Path | None, count: int, flips: int) -> Peer:
    if program is None:
        return recorded(count)
    (row,) = peers.run(program, "-sizes", str(count), "-flips", str(flips))
    return Peer(UPSTREAM_LIBRARY, row["flip_reconcile_ms"], row["first_sync_ms"])


def measure(count: int, flips: int, peer: Peer) -> list[Result]:
    bench = Bench(count)
    filled = bench.fill()
    started = time.perf_counter()
    bench.show(Services.key, None, bench.service)
    job = bench.take()
    synced = time.perf_counter() - started
    assert len(job.writes) == (count + 99) // 100, f"{count} endpoints in {len(job.writes)} slices"
    bench.close_turn(bench.perform(job))
    step = 7919  # a prime: flips visit all slices
    turns = [bench.flip(number * step % count) for number in range(flips)]
    size = f"{count:,} endpoints"
    results = [
        Result(
            name="one pod flips, to the encoded write",
            size=size,
            value=statistics.median(first for first, _ in turns) * 1e3,
            unit="ms",
            budget=FLIP_BUDGET_MS,
            peer=peer.label,
            peer_value=peer.flip,
        ),
        Result(
            name="  the rest: answer, echo, empty sync",
            size=size,
            value=statistics.median(rest for _, rest in turns) * 1e3,
            unit="ms",
        ),
    ]
    if count in FIRST_SYNC_BUDGET_MS:
        results += [
            Result(
                name="first sync of a service",
                size=size,
                value=synced * 1e3,
                unit="ms",
                budget=FIRST_SYNC_BUDGET_MS[count],
                peer=peer.label,
                peer_value=peer.first_sync,
            ),
            Result(name="  filling the caches before", size=size, value=filled * 1e3, unit="ms"),
        ]
    return results


def measure_hints(count: int, flips: int, heuristic: str = "") -> Result:
    """A flip where the zones keep enough endpoints each, so that no hint moves: topology-mode Auto,
    or *heuristic*.
    """
    bench = Bench(count, hints=not heuristic, heuristic=heuristic)
    bench.fill()
    bench.show(Services.key, None, bench.service)
    job = bench.take()
    assert all(b'"hints"' in write.body for write in job.writes), "the first sync gave no hints"
    bench.close_turn(bench.perform(job))
    # each Pod goes and comes back, so that zones keep what they need
    turns = [bench.flip(number // 2 * 7919 % count)[0] for number in range(flips)]
    name = f"one pod flips, with {heuristic or 'topology-mode Auto'}"
    size = f"{count:,} endpoints"
    budget = HEURISTIC_FLIP_BUDGET_MS if heuristic else FLIP_BUDGET_MS
    return Result(
        name=name, size=size, value=statistics.median(turns) * 1e3, unit="ms", budget=budget
    )


def run(small: bool = False) -> list[Result]:
    spare_collector()  # as every process that runs the controllers
    if small:
        rows = [result for count in SMALL_SIZES for result in measure(count, 20, recorded(count))]
        return [*rows, measure_hints(1_000, 20), measure_hints(1_000, 20, BALANCED)]
    program = peers.build("endpointslice")
    results: list[Result] = []
    flips: dict[int, float] = {}
    for count in SIZES:
        rows = measure(count, FLIPS, peer_of(program, count, PEER_FLIPS))
        flips[count] = rows[0].value
        results += rows
    growth = Result(
        name="a flip's growth, largest size to smallest",
        size=f"{SIZES[-1]:,} / {SIZES[0]:,}",
        value=flips[SIZES[-1]] / flips[SIZES[0]],
        unit="x",
        budget=FLIP_GROWTH_BUDGET,
    )
    hinted = [measure_hints(count, FLIPS, BALANCED) for count in (1_000, 100_000)]
    return [*results, growth, measure_hints(SIZES[-1], FLIPS), *hinted]


if __name__ == "__main__":
    main(run)
