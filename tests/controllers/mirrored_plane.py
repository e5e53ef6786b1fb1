"""A plane for tests of mirroring: a Service without a selector, and whatever Endpoints a test
makes.
"""

from __future__ import annotations

from typing import Any

from tests.slices.fake_cluster import FakeCluster, make_service

from sliceplane.api.core import CoreEndpointPort, EndpointAddress, Endpoints, EndpointSubset
from sliceplane.api.discovery import (
    LABEL_MANAGED_BY,
    LABEL_SERVICE_NAME,
    LABEL_SKIP_MIRROR,
    MANAGED_BY_CONTROLLER,
    MANAGED_BY_MIRRORING,
    EndpointSlice,
)
from sliceplane.api.meta import ObjectMeta
from sliceplane.api.scheme import EndpointSlices
from sliceplane.controllers.endpointslice_mirroring import (
    EndpointSliceMirroringController,
    MirroringConfig,
)
from sliceplane.watch.controller.base import Job

HTTP = (CoreEndpointPort(name="http", port=80, app_protocol="h2c"),)
SKIPPED = {LABEL_SKIP_MIRROR: "true"}
Shown = dict[tuple[str, tuple[int | None, ...]], list[str]]


def subset(
    *ips: str, ports: tuple[CoreEndpointPort, ...] = HTTP, not_ready: tuple[str, ...] = ()
) -> EndpointSubset:
    return EndpointSubset(
        addresses=tuple(EndpointAddress(ip=ip) for ip in ips) or None,
        not_ready_addresses=tuple(EndpointAddress(ip=ip) for ip in not_ready) or None,
        ports=ports,
    )


def custom(*subsets: EndpointSubset, name: str = "web", **meta: Any) -> Endpoints:
    found = subsets or (subset("192.0.2.1"),)
    uid = meta.pop("uid", f"custom-{name}")
    return Endpoints(
        metadata=ObjectMeta(name=name, namespace="shop", uid=uid, **meta), subsets=found
    )


class Plane:
    """A Service without a selector, and whatever Endpoints a test makes."""

    def __init__(
        self,
        *objects: Endpoints | EndpointSlice,
        config: MirroringConfig | None = None,
        **service: Any,
    ) -> None:
        self.cluster = FakeCluster()
        self.cluster.put(make_service(**{"selector": None, **service}))
        for each in objects:
            self.cluster.put(each)
        self.config = config
        self.now = 1000.0
        self.begin()

    def begin(self) -> None:
        self.controller = EndpointSliceMirroringController(self.config)
        self.cluster.start(self.controller, self.now)

    def settle(self) -> list[str]:
        self.now, notes = self.cluster.settle(self.controller, self.now)
        return [f"{note.type} {note.reason}: {note.note}" for note in notes]

    def put(self, new: Endpoints | EndpointSlice) -> list[str]:
        self.cluster.put(new)
        return self.settle()

    def deliver(self) -> None:
        self.cluster.deliver(self.controller, self.now)

    def jobs(self, seconds: float = 0.0) -> tuple[Job, ...]:
        self.now += seconds
        return self.controller.take_work(self.now, 10).jobs

    def slices(self) -> list[EndpointSlice]:
        found = self.cluster.slices()
        return [
            s
            for s in found
            if (s.metadata.labels or {}).get(LABEL_MANAGED_BY) == MANAGED_BY_MIRRORING
        ]

    def one(self) -> EndpointSlice:
        (found,) = self.slices()
        return found

    def shown(self) -> Shown:
        return {
            (each.address_type, tuple(port.port for port in each.ports or ())): sorted(
                e.addresses[0] for e in each.endpoints or ()
            )
            for each in self.slices()
        }

    def verbs(self) -> list[str]:
        return [write.verb for write in self.cluster.writes]

    def native(self, *, there: bool = True, kind: str = "IPv4") -> None:
        """The EndpointSlice controller's slice comes or goes."""
        labels = {LABEL_SERVICE_NAME: "web", LABEL_MANAGED_BY: MANAGED_BY_CONTROLLER}
        meta = ObjectMeta(
            name=f"native-{kind.lower()}", namespace="shop", uid=f"native-{kind}", labels=labels
        )
        if there:
            self.cluster.put(EndpointSlice(metadata=meta, address_type=kind))
        else:
            self.cluster.remove(EndpointSlices, "shop", meta.name)


def foreign(name: str, manager: str, **meta: Any) -> EndpointSlice:
    labels = {LABEL_SERVICE_NAME: "web", LABEL_MANAGED_BY: manager}
    return EndpointSlice(
        metadata=ObjectMeta(name=name, namespace="shop", uid=f"uid-{name}", labels=labels, **meta),
        address_type="IPv4",
    )


def too_many(limit: int, skipped: int) -> str:
    return (
        f"A max of {limit} addresses can be mirrored to EndpointSlices per Endpoints subset. "
        f"{skipped} addresses were skipped"
    )
