"""The mirroring controller's own work: 50,000 Endpoints without a selector are mirrored, one
changes, it starts again.

What runs is the production core, ``EndpointSliceMirroringController``, between informers' changes
and encoded writes; the answers come from just enough of a server. Memory is what the core allocates
(``tracemalloc``, so in a pass of its own), beside the objects that the informers' caches hold
anyway.
"""

from __future__ import annotations

import statistics
import time
import tracemalloc

import msgspec

from benchmarks.harness import Result, main
from sliceplane.api.codec import decode, encode
from sliceplane.api.core import Endpoints, Service
from sliceplane.api.discovery import EndpointSlice
from sliceplane.api.meta import Object
from sliceplane.api.scheme import EndpointSlices, EndpointsObjects, Services
from sliceplane.controllers.endpointslice_mirroring import EndpointSliceMirroringController
from sliceplane.watch.cache import Change
from sliceplane.watch.controller.base import Done, Job

SIZE = 50_000
SMALL_SIZE = 500
ADDRESSES = 2
CHANGES = 500

replace = msgspec.structs.replace


def endpoints_document(number: int, turn: int) -> dict[str, object]:
    high, low = divmod(number, 250)
    addresses = [
        {"ip": f"10.{turn % 250}.{high}.{low + 1}"},
        {"ip": f"10.{turn % 250 + 1}.{high}.{low + 1}"},
    ]
    return {
        "apiVersion": "v1",
        "kind": "Endpoints",
        "metadata": {
            "name": f"database-{number:05d}",
            "namespace": "default",
            "uid": f"6f1c7a0e-0000-4000-8000-{number:012d}",
            "labels": {"team": f"team-{number % 50}"},
        },
        "subsets": [
            {
                "addresses": addresses[:ADDRESSES],
                "ports": [{"name": "sql", "port": 5432, "protocol": "TCP"}],
            }
        ],
    }


class Bench:
    """A controller, the objects that it knows, and just enough of a server to answer its writes."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.now = 1_800_000_000.0
        self.revision = 1
        self.slices: dict[str, EndpointSlice] = {}
        self.services = [self._service(number) for number in range(count)]
        self.endpoints = [self._endpoints(number, 0) for number in range(count)]

    def _version(self) -> str:
        self.revision += 1
        return str(self.revision)

    def _service(self, number: int) -> Service:
        metadata = {"name": f"database-{number:05d}", "namespace": "default", "uid": str(number)}
        return decode(
            encode({"metadata": {**metadata, "resourceVersion": self._version()}, "spec": {}}),
            Service,
        )

    def _endpoints(self, number: int, turn: int) -> Endpoints:
        new = decode(encode(endpoints_document(number, turn)), Endpoints)
        return replace(new, metadata=replace(new.metadata, resource_version=self._version()))

    def show(self, resource: str, old: Object | None, new: Object) -> None:
        self.controller.on_change(Change(resource, old, new), self.now)

    def start(self) -> float:
        """Seconds until a new controller has taken in everything and nothing is left to write."""
        began = time.process_time()
        self.controller = EndpointSliceMirroringController()
        for service in self.services:
            self.show(Services.key, None, service)
        for endpoints in self.endpoints:
            self.show(EndpointsObjects.key, None, endpoints)
        for slice_ in self.slices.values():
            self.show(EndpointSlices.key, None, slice_)
        self.controller.on_synced(self.now)
        self.writes = 0
        serving = self.settle()
        return time.process_time() - began - serving

    def settle(self) -> float:
        """Seconds that the server took."""
        serving = 0.0
        while True:
            jobs = self.controller.take_work(self.now, 5).jobs
            due = self.controller.next_deadline()
            if not jobs and (due is None or due > self.now):
                return serving
            for job in jobs:
                began = time.process_time()
                done, echoes = self.perform(job)
                serving += time.process_time() - began
                self.controller.on_done(done, self.now)
                for old, new in echoes:
                    self.show(EndpointSlices.key, old, new)

    def perform(self, job: Job) -> tuple[Done, list[tuple[EndpointSlice | None, EndpointSlice]]]:
        echoes: list[tuple[EndpointSlice | None, EndpointSlice]] = []
        for write in job.writes:
            assert write.verb != "delete", f"{write.name} is deleted for nothing"
            self.writes += 1
            new = decode(write.body, EndpointSlice)
            name = new.metadata.name or f"{new.metadata.generate_name}{len(self.slices):05d}"
            old = self.slices.get(name)
            generation = 1 if old is None else old.metadata.generation + 1
            uid = f"slice-{name}"
            metadata = replace(
                new.metadata,
                name=name,
                uid=uid,
                generation=generation,
                resource_version=self._version(),
            )
            self.slices[name] = replace(new, metadata=metadata)
            echoes.append((old, self.slices[name]))
        return Done(job, tuple(encode(new) for _, new in echoes)), echoes

    def change(self, number: int, turn: int) -> float:
        """Seconds from one object's change to the end of everything that it causes, the server's
        apart.
        """
        old = self.endpoints[number]
        new = self._endpoints(number, turn)
        self.endpoints[number] = new
        began = time.process_time()
        self.show(EndpointsObjects.key, old, new)
        serving = self.settle()
        return time.process_time() - began - serving


def memory_mib(bench: Bench) -> float:
    """What a controller allocates that finds everything in place."""
    tracemalloc.start()
    try:
        bench.start()
        return tracemalloc.get_traced_memory()[0] / 2**20
    finally:
        tracemalloc.stop()


def run(small: bool = False) -> list[Result]:
    count = SMALL_SIZE if small else SIZE
    bench = Bench(count)
    size = f"{count:,} Endpoints"
    mirrored = bench.start()
    created = bench.writes
    assert created == count, f"{created} writes for {count} objects"
    step = 7919  # a prime: changes visit all objects
    bench.writes = 0
    changes = [
        bench.change(number * step % count, 100 + number % 100)
        for number in range(min(CHANGES, count))
    ]
    per_change = bench.writes / len(changes)
    again = bench.start()
    assert bench.writes == 0, f"a restart wrote {bench.writes} times"
    return [
        Result(name="all are mirrored, processor time", size=size, value=mirrored * 1e3, unit="ms"),
        Result(name="  writes", size=size, value=created, unit="writes", budget=count),
        Result(
            name="one changes, processor time",
            size=size,
            value=statistics.median(changes) * 1e3,
            unit="ms",
        ),
        Result(name="  writes", size=size, value=per_change, unit="writes", budget=1),
        Result(name="a restart with everything in place", size=size, value=again * 1e3, unit="ms"),
        Result(name="  writes", size=size, value=bench.writes, unit="writes", budget=0),
        Result(name="  memory beside the caches", size=size, value=memory_mib(bench), unit="MiB"),
    ]


if __name__ == "__main__":
    main(run)
