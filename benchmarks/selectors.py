"""Many services in one namespace: what a Pod's event costs, from the informer's change to the
encoded write.

Every Service has four Pods, and every event is one of them turning unready or ready. *Disjoint*:
each Service selects by its own ``app`` and by what all have in common. *Grid*: a pair of labels of
which each is shared by many Services. *Overlapping*: every Pod is in two Services, so two writes
come of each event. Upstream lists all Services of the namespace for each event.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from itertools import cycle

import msgspec

from benchmarks.harness import Result, main
from benchmarks.tools.objects import (
    node_document,
    pod_document,
    pod_ip,
    pod_status,
    service_document,
    uid,
)
from sliceplane.api.codec import decode, encode
from sliceplane.api.core import Node, Pod, Service
from sliceplane.api.discovery import EndpointSlice
from sliceplane.api.meta import Object
from sliceplane.api.scheme import Nodes, Pods, Services
from sliceplane.controllers.endpointslice import EndpointSliceController
from sliceplane.watch.cache import Change
from sliceplane.watch.controller.base import Done, Job

SERVICES = (50, 5_000)
SMALL_SERVICES = (20,)
EVENTS = 100_000
PODS_PER_SERVICE = 4
#: how much dearer an event among the most services may be than among the fewest
FLAT = 2.0

replace = msgspec.structs.replace
Labels = dict[str, str]


def disjoint(number: int) -> Labels:
    return {"part-of": "shop", "tier": "web", "app": f"app-{number}"}


def grid(number: int) -> Labels:
    return {"part-of": "shop", "row": f"r{number % 71}", "column": f"c{number // 71}"}


def overlapping(number: int) -> Labels:
    """Services 2n and 2n+1 select the same Pods, by different labels."""
    return (
        {"app": f"app-{number // 2}"}
        if number % 2
        else {"part-of": "shop", "name": f"name-{number // 2}"}
    )


def pod_labels(kind: Callable[[int], Labels], number: int) -> Labels:
    other = overlapping(number ^ 1) if kind is overlapping else {}
    return {**kind(number), **other, "pod-template-hash": "5d4f"}


class Namespace:
    """A controller that knows *count* services and their Pods, at rest."""

    def __init__(self, kind: Callable[[int], Labels], count: int) -> None:
        self.controller = EndpointSliceController()
        self.now = 1_800_000_000.0
        self.revision = 1
        self.names = 0
        self.pods: list[tuple[Pod, Pod]] = []
        self._show(Nodes.key, None, decode(encode(node_document(0)), Node))
        template = decode(encode(service_document(cluster_ip="10.96.0.10")), Service)
        for number in range(count):
            meta = replace(
                template.metadata, name=f"s{number}", uid=uid(number), resource_version="1"
            )
            spec = replace(template.spec, selector=kind(number))
            self._show(Services.key, None, replace(template, metadata=meta, spec=spec))
        ready, unready = (
            decode(encode(pod_document(0) | pod_status(pod_ip(0), ready=state, turn=0)), Pod)
            for state in (True, False)
        )
        for number in range(count * PODS_PER_SERVICE):
            labels = pod_labels(kind, number // PODS_PER_SERVICE)
            meta = replace(
                ready.metadata,
                name=f"p{number}",
                uid=uid(number),
                labels=labels,
                resource_version="1",
            )
            first, second = (replace(state, metadata=meta) for state in (ready, unready))
            self._show(Pods.key, None, first)
            self.pods.append((first, second))
        self.controller.on_synced(self.now)
        while jobs := self.controller.take_work(self.now, 5).jobs:
            for job in jobs:
                self.controller.on_done(self._perform(job), self.now)

    def _show(self, resource: str, old: Object | None, new: Object) -> None:
        self.controller.on_change(Change(resource, old, new), self.now)

    def _perform(self, job: Job) -> Done:
        answers = []
        for write in job.writes:
            new = decode(write.body, EndpointSlice)
            self.revision += 1
            self.names += not new.metadata.name
            name = new.metadata.name or f"{new.metadata.generate_name}{self.names:06d}"
            version = str(self.revision)
            meta = replace(
                new.metadata,
                name=name,
                uid=f"slice-{name}",
                resource_version=version,
                generation=new.metadata.generation + 1,
            )
            answers.append(encode(replace(new, metadata=meta)))
        return Done(job, tuple(answers))

    def flips(self, events: int) -> tuple[float, int]:
        """Mean seconds of CPU for an event, and how many writes came of all."""
        spent = 0.0
        writes = 0
        step = 7919  # a prime: events visit all services
        turns = [0] * len(self.pods)
        for event, which in zip(
            range(events), cycle(range(0, step * len(self.pods), step)), strict=False
        ):
            index = which % len(self.pods)
            old, new = self.pods[index]
            self.revision += 1
            new = replace(new, metadata=replace(new.metadata, resource_version=str(self.revision)))
            self.pods[index] = new, old
            turns[index] += 1
            started = time.process_time()
            self._show(Pods.key, old, new)
            jobs = self.controller.take_work(self.now, 5).jobs
            spent += time.process_time() - started
            assert jobs, f"event {event} caused no write"
            for job in jobs:
                writes += len(job.writes)
                self.controller.on_done(self._perform(job), self.now)
        return spent / events, writes


def run(small: bool = False) -> list[Result]:
    counts, events = (SMALL_SERVICES, 100) if small else (SERVICES, EVENTS)
    results = []
    for kind in (disjoint, grid, overlapping):
        first: float | None = None
        for count in counts:
            seconds, writes = Namespace(kind, count).flips(events)
            assert writes == events * (2 if kind is overlapping else 1), (
                f"{writes} writes of {events} events"
            )
            value = seconds * 1e6
            budget = None if first is None else first * FLAT
            first = first or value
            name = f"one Pod event of {events:,}, {kind.__name__} selectors"
            results.append(
                Result(name=name, size=f"{count:,} services", value=value, unit="us", budget=budget)
            )
    return results


if __name__ == "__main__":
    main(run)
