"""The Endpoints controller's own work: one Pod of a Service flips, and the first sync of a Service.

What runs is the production core, ``EndpointsController``, between an informer's change and the
encoded body of the write; no server, no sockets. The object is written whole, up to its 1,000
addresses; finding out what changed does not depend on the number of Pods. Times are processor
times.
"""

from __future__ import annotations

import statistics
import time

import msgspec

from benchmarks.harness import Result, main
from benchmarks.tools.objects import pod_document, pod_ip, pod_status, service_document, uid
from sliceplane.api.codec import decode, encode
from sliceplane.api.core import Endpoints, Pod, Service
from sliceplane.api.scheme import EndpointsObjects, Pods, Services
from sliceplane.controllers.endpoints import EndpointsController
from sliceplane.watch.cache import Change
from sliceplane.watch.controller.base import Done, Job

FLIPS = 500
SIZES = (100, 1_000, 20_000, 100_000)
SMALL_SIZES = (100,)

replace = msgspec.structs.replace


class Bench:
    """A controller, the Pods that it knows, and just enough of a server to answer its writes."""

    def __init__(self, count: int) -> None:
        self.controller = EndpointsController()
        self.now = 1_800_000_000.0
        self.revision = 1
        self.stored: Endpoints | None = None
        self.pods = [self._pod(number, ready=True) for number in range(count)]

    def _pod(self, number: int, *, ready: bool) -> Pod:
        self.revision += 1
        document = pod_document(number) | pod_status(
            pod_ip(number), ready=ready, turn=self.revision
        )
        new = decode(encode(document), Pod)
        return replace(
            new,
            metadata=replace(new.metadata, uid=uid(number), resource_version=str(self.revision)),
        )

    def fill(self) -> None:
        for pod in self.pods:
            self.controller.on_change(Change(Pods.key, None, pod), self.now)
        self.controller.on_synced(self.now)

    def first_sync(self) -> float:
        """Seconds from the Service's change to the job."""
        service = decode(encode(service_document(cluster_ip="10.96.0.10")), Service)
        started = time.process_time()
        self.controller.on_change(Change(Services.key, None, service), self.now)
        (job,) = self.controller.take_work(self.now, 10).jobs
        spent = time.process_time() - started
        self.close_turn(job)
        return spent

    def close_turn(self, job: Job) -> None:
        """The answer, the echo and the sync that they cause, which must find nothing to do."""
        new = decode(job.writes[0].body, Endpoints)
        self.revision += 1
        old = self.stored
        self.stored = replace(
            new, metadata=replace(new.metadata, uid="e", resource_version=str(self.revision))
        )
        self.controller.on_done(Done(job, (encode(self.stored),)), self.now)
        self.controller.on_change(Change(EndpointsObjects.key, old, self.stored), self.now)
        self.now += 2.0
        assert not self.controller.take_work(self.now, 10).jobs, "a sync without a change writes"

    def flip(self, number: int) -> float:
        """Seconds from the Pod's change to the job (or to the finding that there is nothing to
        write).
        """
        old = self.pods[number]
        new = self.pods[number] = self._pod(number, ready=old.status.conditions[0].status != "True")  # type: ignore[index]
        started = time.process_time()
        self.controller.on_change(Change(Pods.key, old, new), self.now)
        jobs = self.controller.take_work(self.now, 10).jobs
        spent = time.process_time() - started
        for job in jobs:
            self.close_turn(job)
        return spent


def measure(count: int, flips: int) -> list[Result]:
    bench = Bench(count)
    bench.fill()
    synced = bench.first_sync()
    step = 7919  # a prime: flips visit addresses everywhere
    turns = [bench.flip(number * step % count) for number in range(flips)]
    size = f"{count:,} Pods"
    return [
        Result(
            name="one Pod flips, to the encoded write",
            size=size,
            value=statistics.median(turns) * 1e3,
            unit="ms",
        ),
        Result(name="first sync of a Service", size=size, value=synced * 1e3, unit="ms"),
    ]


def run(small: bool = False) -> list[Result]:
    sizes, flips = (SMALL_SIZES, 20) if small else (SIZES, FLIPS)
    return [result for count in sizes for result in measure(count, flips)]


if __name__ == "__main__":
    main(run)
