"""The xDS core's own work, before anything is sent: one endpoint of one slice changes, and there
are its octets.

What runs is ``xds.catalog``, between a change of the informer's cache and the encoded resource for
one place; slices hold 100 endpoints each. By EDS the resource is the whole assignment, by LEDS the
one member. The peer is the same assignment made of objects of the protobuf library (xds-protos),
which is what a server does that does not keep pieces.
"""

from __future__ import annotations

import statistics
import time
import tracemalloc
from collections.abc import Callable
from typing import Literal

from envoy.config.endpoint.v3 import endpoint_pb2

from benchmarks.harness import Result, main, median, note
from benchmarks.tools.objects import NAMESPACE, service_document, slice_document
from sliceplane.api.codec import decode, encode
from sliceplane.api.core import Service
from sliceplane.api.discovery import EndpointSlice
from sliceplane.cli.entry import spare_collector
from sliceplane.xds.catalog import XdsCatalog, XdsConfig
from sliceplane.xds.names import ASSIGNMENT, ENDPOINT
from sliceplane.xds.resource import XdsClient
from sliceplane.xds.view import XdsView

Way = Literal["EDS", "LEDS"]

PER_SLICE = 100
CHANGES = 300
#: before them, as the first ones meet code that never ran
WARM_CHANGES = 100
SIZES = (100, 1_000, 20_000)
SERVICES = (10, 5_000)
BUDGETS_MS: dict[Way, dict[int, float]] = {
    "LEDS": dict.fromkeys(SIZES, 0.1),
    "EDS": {1_000: 0.15, 20_000: 1.5},
}
#: of the cost with most Services to that with fewest
GROWTH_BUDGET = 1.5
CLIENTS = {
    "EDS": XdsClient(kind="grpc", zone="zone-a"),
    "LEDS": XdsClient(kind="envoy", zone="zone-a", leds=True),
}


def service(name: str, number: int) -> Service:
    document = service_document(name, cluster_ip=f"10.96.{number // 250}.{number % 250 + 1}")
    return decode(encode(document), Service)


def slice_of(name: str, numbers: range, revision: int, *, unready: int = -1) -> EndpointSlice:
    document = slice_document(f"{name}-{numbers.start}", name, numbers)
    document["metadata"]["resourceVersion"] = str(revision)
    if unready >= 0:
        document["endpoints"][unready]["conditions"]["ready"] = False
    return decode(encode(document), EndpointSlice)


class Bench:
    """A catalog with Services of *size* endpoints, and a client that follows all of them."""

    def __init__(self, services: int, size: int, ways: tuple[Way, ...]) -> None:
        self.catalog = XdsCatalog(XdsConfig(), "bench")
        self.names = [f"web-{number:04}" for number in range(services)]
        self.slices: dict[tuple[str, int], EndpointSlice] = {}
        self.revision = 0
        for number, name in enumerate(self.names):
            self.catalog.on_service(None, service(name, number))
            for start in range(0, size, PER_SLICE):
                self.change(name, range(start, min(start + PER_SLICE, size)))
        self.catalog.on_synced()
        self.catalog.take_changes()
        self.views: dict[Way, XdsView] = {way: self.catalog.view(CLIENTS[way]) for way in ways}
        for view in self.views.values():
            for name in self.names:
                resource = view.get(ASSIGNMENT, f"{NAMESPACE}/{name}:http")
                assert resource is not None, f"{name} is not served"

    def change(self, name: str, numbers: range, unready: int = -1) -> None:
        self.revision += 1
        made = slice_of(name, numbers, self.revision, unready=unready)
        self.catalog.on_slice(self.slices.get((name, numbers.start)), made)
        self.slices[name, numbers.start] = made

    def changed_ms(self, way: Way, size: int) -> float:
        """The median of changes of one endpoint, each of another slice than the last."""
        starts = range(0, size, PER_SLICE)
        times = []
        for turn in range(WARM_CHANGES + CHANGES):
            name = self.names[turn * 7919 % len(self.names)]
            start = starts[turn * 7 % len(starts)]
            numbers = range(start, min(start + PER_SLICE, size))
            before = self.slices[name, start]
            self.revision += 1
            # Every other time all are ready again, so that one endpoint goes or comes back.
            unready = turn // len(starts) % len(numbers) if all_ready(before) else -1
            after = slice_of(name, numbers, self.revision, unready=unready)
            self.slices[name, start] = after
            times.append(cpu_s(lambda: self._told(way, before, after)))  # noqa: B023
        return statistics.median(times[WARM_CHANGES:]) * 1e3

    def _told(self, way: Way, before: EndpointSlice, after: EndpointSlice) -> None:
        self.catalog.on_slice(before, after)
        told = 0
        for change in self.catalog.take_changes():
            if change.type_url == ENDPOINT:
                member = change.view.get(ENDPOINT, change.topic)
                told += 1 if member is None else len(member.as_delta)
            elif change.type_url == ASSIGNMENT:
                resource = change.view.get(ASSIGNMENT, change.topic)
                assert resource is not None, "an assignment is never removed"
                told += len(resource.as_any)
        assert told, f"nothing was told by {way}"


def cpu_s(work: Callable[[], object]) -> float:
    """Processor time: what else runs on the machine matters less."""
    started = time.process_time()
    work()
    return time.process_time() - started


def all_ready(held: EndpointSlice) -> bool:
    return all(endpoint.conditions.ready for endpoint in held.endpoints or ())


def library_ms(size: int) -> float:
    """The assignment made of objects."""
    endpoints = [
        endpoint for held in Bench(1, size, ()).slices.values() for endpoint in held.endpoints or ()
    ]

    def make() -> bytes:
        made = endpoint_pb2.ClusterLoadAssignment(cluster_name=f"{NAMESPACE}/web:http")
        locality = made.endpoints.add()
        locality.locality.zone = "zone-a"
        for endpoint in endpoints:
            address = locality.lb_endpoints.add().endpoint.address.socket_address
            address.address = endpoint.addresses[0]
            address.port_value = 8080
        locality.load_balancing_weight.value = len(endpoints)
        encoded: bytes = made.SerializeToString()
        return encoded

    return median(lambda: cpu_s(make), 5) * 1e3


def memory(services: int, size: int, way: Way) -> float:
    """Octets for each endpoint, of a catalog whose client follows all Services; without the slices
    themselves.
    """
    bench = Bench(services, size, ())
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    view = bench.catalog.view(CLIENTS[way])
    for name in bench.names:
        resource = view.get(ASSIGNMENT, f"{NAMESPACE}/{name}:http")
        assert resource is not None, f"{name} is not served"
    held = tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()
    return held / (services * size)


def changed(way: Way, size: int) -> Result:
    return Result(
        name=f"a changed endpoint until its octets, {way}",
        size=f"{size:,} endpoints",
        value=Bench(1, size, (way,)).changed_ms(way, size),
        unit="ms",
        budget=BUDGETS_MS[way].get(size),
        peer="" if way == "LEDS" else "xds-protos objects",
        peer_value=None if way == "LEDS" else library_ms(size),
    )


def growth(way: Way, services: tuple[int, int]) -> Result:
    few, many = (Bench(count, 30, (way,)).changed_ms(way, 30) for count in services)
    note(
        f"30 endpoints each, {way}: {few:.4f} ms with {services[0]} Services, {many:.4f} ms with "
        f"{services[1]:,}"
    )
    return Result(
        name=f"the same, growth from {services[0]} Services, {way}",
        size=f"{services[1]:,} Services of 30",
        value=many / few,
        unit="x",
        budget=GROWTH_BUDGET,
    )


def run(small: bool) -> list[Result]:
    spare_collector()
    sizes = SIZES[:1] if small else SIZES
    ways: tuple[Way, ...] = ("LEDS", "EDS")
    results = [changed(way, size) for size in sizes for way in ways]
    results += [growth(way, (10, 50) if small else SERVICES) for way in ways]
    return results + [
        Result(
            name=f"memory for each endpoint, {way}",
            size=f"{sizes[-1]:,} endpoints",
            value=memory(1, sizes[-1], way),
            unit="B",
        )
        for way in ways
    ]


if __name__ == "__main__":  # python -m benchmarks.tools.xds_core
    main(run)
