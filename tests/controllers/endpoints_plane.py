"""A plane for tests of classic Endpoints: one Service, the Pods a test gives it, and what came of
them.
"""

from __future__ import annotations

from typing import Any

from tests.controllers.controller_plane import ControllerPlane
from tests.slices.fake_cluster import make_pod, make_service

from sliceplane.api.core import (
    CoreEndpointPort,
    EndpointAddress,
    Endpoints,
    EndpointSubset,
    Pod,
    ServicePort,
)
from sliceplane.api.discovery import (
    LABEL_ENDPOINTS_MANAGED_BY,
    LABEL_SKIP_MIRROR,
)
from sliceplane.api.meta import ObjectMeta
from sliceplane.api.scheme import EndpointsObjects
from sliceplane.controllers.endpoints import EndpointsConfig, EndpointsController
from sliceplane.controllers.service_syncs import FirstSync

OURS = {LABEL_ENDPOINTS_MANAGED_BY: "endpoint-controller", LABEL_SKIP_MIRROR: "true"}
NAMED = (
    ServicePort(name="http", port=80, target_port="http"),
    ServicePort(name="x", port=81, target_port=9000),
)


class Plane(ControllerPlane):
    controller: EndpointsController

    def __init__(self, *pods: Pod, config: EndpointsConfig | None = None, **service: Any) -> None:
        self.config = config
        super().__init__(make_service(**service), *pods)

    def make(self) -> EndpointsController:
        self.first_sync = FirstSync()
        return EndpointsController(self.config, self.first_sync)

    def maybe(self, name: str = "web") -> Endpoints | None:
        found = self.cluster.objects.get((EndpointsObjects.key, "shop", name))
        assert found is None or isinstance(found, Endpoints)
        return found

    def one(self, name: str = "web") -> Endpoints:
        found = self.maybe(name)
        assert found is not None
        return found

    def subsets(self) -> list[tuple[list[str], list[str], list[int]]]:
        return [
            (
                [each.ip for each in subset.addresses or ()],
                [each.ip for each in subset.not_ready_addresses or ()],
                [port.port for port in subset.ports or ()],
            )
            for subset in self.one().subsets or ()
        ]


def custom(name: str = "web", *ips: str, **meta: Any) -> Endpoints:
    subset = EndpointSubset(
        addresses=tuple(EndpointAddress(ip=ip) for ip in ips or ("192.0.2.1",)),
        ports=(CoreEndpointPort(port=80),),
    )
    return Endpoints(
        metadata=ObjectMeta(name=name, namespace="shop", uid=f"custom-{name}", **meta),
        subsets=(subset,),
    )


def many(count: int, *, ready: bool = True, first: int = 0) -> list[Pod]:
    return [
        make_pod(f"p-{number}", ips=(f"10.{number >> 8}.0.{number & 255}",), ready=ready)
        for number in range(first, first + count)
    ]
