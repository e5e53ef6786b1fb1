"""The server's state at one moment as projections, for invariants."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeVar

from sliceplane.api.codec import decode
from sliceplane.api.core import Endpoints, Namespace, Node, Pod, ResourceQuota, Service
from sliceplane.api.discovery import (
    LABEL_MANAGED_BY,
    LABEL_SERVICE_NAME,
    MANAGED_BY_CONTROLLER,
    EndpointSlice,
)
from sliceplane.api.meta import Object
from sliceplane.api.scheme import (
    EndpointSlices,
    EndpointsObjects,
    Namespaces,
    Nodes,
    Pods,
    Resource,
    ResourceQuotas,
    Services,
)
from sliceplane.lab.sim.server import Server

T = TypeVar("T", bound=Object)


class View:
    """A snapshot; nothing in it changes."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self.services: Sequence[Service] = self._all(Services, Service)
        self.quotas: Sequence[ResourceQuota] = self._all(ResourceQuotas, ResourceQuota)
        self.nodes: Mapping[str, Node] = {
            node.metadata.name: node for node in self._all(Nodes, Node)
        }
        self.pods: Mapping[str, Sequence[Pod]] = _by_namespace(self._all(Pods, Pod))
        self.slices: Mapping[str, Sequence[EndpointSlice]] = _by_namespace(
            self._all(EndpointSlices, EndpointSlice)
        )
        self.endpoints: Mapping[str, Endpoints] = {
            item.metadata.key: item for item in self._all(EndpointsObjects, Endpoints)
        }
        spaces = self._all(Namespaces, Namespace)
        #: namespaces that are not being deleted
        self.namespaces = tuple(
            space.metadata.name for space in spaces if space.metadata.deletion_timestamp is None
        )

    def _all(self, resource: Resource, kind: type[T]) -> list[T]:
        return [decode(record.body, kind) for record in self.server.records(resource)]

    def lasting_services(self) -> list[Service]:
        """Returns the Services that are not being deleted, themselves or with their namespace."""
        return [
            service
            for service in self.services
            if service.metadata.deletion_timestamp is None
            and service.metadata.namespace in self.namespaces
        ]


def _by_namespace(objects: Sequence[T]) -> dict[str, list[T]]:
    spaces: dict[str, list[T]] = {}
    for item in objects:
        spaces.setdefault(item.metadata.namespace, []).append(item)
    return spaces


def service_of(observed: EndpointSlice) -> str:
    """Returns the key of the Service of a slice that the controller manages; "" for other slices."""
    labels = observed.metadata.labels or {}
    if labels.get(LABEL_MANAGED_BY) != MANAGED_BY_CONTROLLER or not labels.get(LABEL_SERVICE_NAME):
        return ""
    return f"{observed.metadata.namespace}/{labels[LABEL_SERVICE_NAME]}"
