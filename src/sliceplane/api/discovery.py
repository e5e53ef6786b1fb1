"""EndpointSlice v1 as readers see it (KEP-0752, section "EndpointSlice API")."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

from sliceplane.api.meta import Object, ObjectReference, Projection

AddressType = Literal["IPv4", "IPv6", "FQDN"]

#: zones, and nodes, that one endpoint may name in its hints (KEP-4444; Kubernetes' API validation)
HINTS_MAX = 8
LABEL_SERVICE_NAME = "kubernetes.io/service-name"
LABEL_MANAGED_BY = "endpointslice.kubernetes.io/managed-by"
LABEL_HEADLESS = "service.kubernetes.io/headless"
LABEL_SERVICE_PROXY_NAME = "service.kubernetes.io/service-proxy-name"
LABEL_FOR_ZONE = "endpointslice.kubernetes.io/for-zone"
LABEL_FOR_REGION = "endpointslice.kubernetes.io/for-region"
LABEL_ZONE = "topology.kubernetes.io/zone"
LABEL_REGION = "topology.kubernetes.io/region"
LABEL_HOSTNAME = "kubernetes.io/hostname"
ANNOTATION_TRIGGER_TIME = "endpoints.kubernetes.io/last-change-trigger-time"
#: on a Pod: it leaves its Services although nothing deletes it; its endpoints neither are ready nor
#: serve
ANNOTATION_DRAIN = "sliceplane.dev/drain"
#: on a Pod: its condition sliceplane.dev/Drained is wanted, and its preStop hook may be answered by
#: the node proxy
ANNOTATION_DRAIN_BARRIER = "sliceplane.dev/drain-barrier"
MANAGED_BY_CONTROLLER = "endpointslice-controller.k8s.io"
MANAGED_BY_MIRRORING = "endpointslicemirroring-controller.k8s.io"
# of Endpoints
LABEL_ENDPOINTS_MANAGED_BY = "endpoints.kubernetes.io/managed-by"
ENDPOINTS_MANAGED_BY_CONTROLLER = "endpoint-controller"
LABEL_SKIP_MIRROR = "endpointslice.kubernetes.io/skip-mirror"
ANNOTATION_OVER_CAPACITY = "endpoints.kubernetes.io/over-capacity"
ANNOTATION_LEADER = "control-plane.alpha.kubernetes.io/leader"
MANAGED_BY_REVERSE_MIRROR = "reverse-mirror.sliceplane.dev"


class EndpointConditions(Projection, frozen=True, kw_only=True):
    """``None`` is "not said": consumers read ready and serving as true, terminating as false."""

    ready: bool | None = None
    serving: bool | None = None
    terminating: bool | None = None


class ForZone(Projection, frozen=True, kw_only=True):
    name: str = ""


class ForNode(Projection, frozen=True, kw_only=True):
    name: str = ""


class EndpointHints(Projection, frozen=True, kw_only=True):
    for_zones: tuple[ForZone, ...] | None = None
    for_nodes: tuple[ForNode, ...] | None = None


class SliceEndpoint(Projection, frozen=True, kw_only=True):
    addresses: tuple[str, ...] = ()
    conditions: EndpointConditions = EndpointConditions()
    hostname: str | None = None
    target_ref: ObjectReference | None = None
    deprecated_topology: dict[str, str] | None = None
    node_name: str | None = None
    zone: str | None = None
    hints: EndpointHints | None = None


class EndpointPort(Projection, frozen=True, kw_only=True):
    """``port`` None means "all ports" to the API; kube-proxy ignores such a port."""

    name: str | None = None
    protocol: str | None = None
    port: int | None = None
    app_protocol: str | None = None


# Decoded as a tuple; caches of many slices replace it by a smaller sequence (``consume.packed``).
if TYPE_CHECKING:
    SliceEndpoints = Sequence[SliceEndpoint]
else:
    SliceEndpoints = tuple[SliceEndpoint, ...]


class EndpointSlice(Object, frozen=True, kw_only=True):
    """An EndpointSlice (discovery.k8s.io/v1): endpoints of one address family, and their ports."""

    address_type: str = ""
    endpoints: SliceEndpoints | None = None
    ports: tuple[EndpointPort, ...] | None = None

    @property
    def manager(self) -> str:
        """The controller that keeps the slice, by its label; "" without one."""
        return (self.metadata.labels or {}).get(LABEL_MANAGED_BY, "")

    @property
    def service(self) -> str:
        """The name of the Service that the slice is labelled for; "" without one."""
        return (self.metadata.labels or {}).get(LABEL_SERVICE_NAME, "")
