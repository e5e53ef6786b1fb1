"""A plane for tests of mirroring: a Service without a selector, and whatever Endpoints a test
makes.
"""

from __future__ import annotations

from typing import Any

from tests.controllers.controller_plane import ControllerPlane
from tests.slices.fake_cluster import make_service

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


class Plane(ControllerPlane):
    """A Service without a selector, and whatever Endpoints a test makes."""

    controller: EndpointSliceMirroringController

    def __init__(
        self,
        *objects: Endpoints | EndpointSlice,
        config: MirroringConfig | None = None,
        **service: Any,
    ) -> None:
        self.config = config
        super().__init__(make_service(**{"selector": None, **service}), *objects)

    def make(self) -> EndpointSliceMirroringController:
        return EndpointSliceMirroringController(self.config)

    def put(self, new: Endpoints | EndpointSlice) -> list[str]:
        self.cluster.put(new)
        return self.settle()

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
