"""The controller of measured zones at 5,000 nodes and 200 Services: what each node's Lease costs it,
which comes every ten seconds with connections to every Service, and the decisions.

What runs is the production core, ``MeasuredZonesController``, from the bytes of an object to the
write's body, for some virtual minutes; no server, no sockets. Times are processor times.
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from typing import Any

from benchmarks.harness import Result, main
from benchmarks.tools.objects import (
    Document,
    node_document,
    node_name,
    service_document,
    slice_document,
)
from sliceplane.api.codec import decode, decode_document, encode
from sliceplane.api.core import Lease, Node, Service
from sliceplane.api.discovery import EndpointSlice
from sliceplane.api.meta import Object
from sliceplane.api.scheme import EndpointSlices, Leases, Nodes, Resource, Services
from sliceplane.consume.demand import MEASURED, UID_LENGTH, write_demand
from sliceplane.consume.progress import ANNOTATION_DEMAND, CHANGED_PERIOD_S, LEASE_PREFIX
from sliceplane.controllers.measured.controller import PERIOD_S, MeasuredZonesController
from sliceplane.watch.cache import Change
from sliceplane.watch.controller.base import Done, Write

NODES = 5_000
SERVICES = 200
ENDPOINTS = 36
#: connections from each node of a zone to one Service in ten seconds; half of the Services have the
#: zones the other way round
CONNECTIONS = (30, 10, 2)
#: seconds of virtual time: until all Services are decided, and measured
WARM_UP_S = 2.5 * PERIOD_S
PLAYED_S = PERIOD_S
BUDGET = 10.0


class Bench:
    """A controller, and just enough of a server to answer its writes."""

    def __init__(self, nodes: int, services: int) -> None:
        self.controller = MeasuredZonesController()
        self.now = 1_800_000_000.0
        self.writes = 0
        self._rng = random.Random(1)
        self._stored: dict[tuple[str, str], Object] = {}
        self._services = {f"web-{number}": _service(number) for number in range(services)}
        self._nodes = nodes
        self._totals = [[0] * services for _ in CONNECTIONS]
        self._uids = [each["metadata"]["uid"][:UID_LENGTH] for each in self._services.values()]
        for number in range(nodes):
            self._deliver(Nodes, Node, encode(_node(number)))
        for name, document in self._services.items():
            endpoints = slice_document(f"{name}-1", name, range(ENDPOINTS))
            self._deliver(EndpointSlices, EndpointSlice, encode(endpoints))
            self._deliver(Services, Service, encode(document))
        self.controller.on_synced(self.now)

    def _deliver(self, resource: Resource, of: type[Object], body: bytes) -> None:
        new = decode(body, of)
        key = (resource.key, new.metadata.name)
        old, self._stored[key] = self._stored.get(key), new
        self.controller.on_change(Change(resource.key, old, new), self.now)

    def _leases(self) -> Iterator[bytes]:
        """The Leases that nodes write in ten seconds, in their order; those of a zone are alike."""
        demands = []
        for zone, totals in enumerate(self._totals):
            for index in range(len(totals)):
                mean = CONNECTIONS[zone if index % 2 else -1 - zone]
                totals[index] += self._rng.randint(0, 2 * mean)
            demands.append(write_demand(dict(zip(self._uids, totals, strict=True))))
        for number in range(self._nodes):
            yield encode(_lease(number, demands[number % len(demands)]))

    def run(self, seconds: float) -> float:
        """Returns the processor seconds of the controller."""
        spent, step_s = 0.0, CHANGED_PERIOD_S / self._nodes
        for _ in range(round(seconds / CHANGED_PERIOD_S)):
            leases = list(self._leases())
            started = time.process_time()
            for number, body in enumerate(leases):
                self.now += step_s
                self._deliver(Leases, Lease, body)
                if number % 50 == 0:
                    self._work()
            spent += time.process_time() - started
        return spent

    def _work(self) -> None:
        while jobs := self.controller.take_work(self.now, 10).jobs:
            for job in jobs:
                answers = tuple(map(self._answer, job.writes))
                self.controller.on_done(Done(job, answers), self.now)

    def _answer(self, write: Write) -> bytes:
        self.writes += 1
        document, change = self._services[write.name], decode_document(write.body)
        if write.subresource:
            document["status"] = change["status"]
        else:
            document["metadata"]["annotations"] |= change["metadata"]["annotations"]
        document["metadata"]["resourceVersion"] = str(self.writes)
        answer = encode(document)
        self._deliver(Services, Service, answer)
        return answer


def _service(number: int) -> Document:
    document = service_document(f"web-{number}")
    document["spec"]["trafficDistribution"] = MEASURED
    document["metadata"] |= {"uid": f"{number:08x}-0000-4000-8000-000000000000", "annotations": {}}
    return document


def _node(number: int) -> Document:
    ready = [{"type": "Ready", "status": "True"}]
    status = {"conditions": ready, "allocatable": {"cpu": "4"}}
    return {**node_document(number), "status": status}


def _lease(number: int, demand: str) -> dict[str, Any]:
    annotations = {
        "sliceplane.dev/endpointslices-revision": "123456",
        "sliceplane.dev/progress": "{}",
        ANNOTATION_DEMAND: demand,
    }
    name = f"{LEASE_PREFIX}{node_name(number)}"
    metadata = {"name": name, "namespace": "kube-node-lease", "annotations": annotations}
    return {"kind": "Lease", "metadata": metadata, "spec": {"leaseDurationSeconds": 90}}


def run(small: bool = False) -> list[Result]:
    nodes, services = (30, 4) if small else (NODES, SERVICES)
    bench = Bench(nodes, services)
    bench.run(WARM_UP_S)
    assert bench.writes >= 2 * services, "every Service has a condition and shares"
    settled = bench.writes
    spent_s = bench.run(PLAYED_S)
    size = f"{nodes:,} nodes, {services} services"
    leases = nodes * PLAYED_S / CHANGED_PERIOD_S
    return [
        Result(
            name="controller of measured zones",
            size=size,
            value=spent_s / PLAYED_S * 100,
            unit="% of a core",
            budget=BUDGET,
        ),
        Result(name="of it, for each Lease", size=size, value=spent_s / leases * 1e6, unit="us"),
        Result(name="writes meanwhile", size=size, value=bench.writes - settled, unit="", budget=0),
    ]


if __name__ == "__main__":
    main(run)
