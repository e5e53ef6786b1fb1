"""The resources that clients of one kind at one location may see, by name.

Views share the octets of equal resources. If a view has several clients, it caches requested
assignments until the next change: after a restart a thousand clients request the same thousands.
While changes are not merged yet, it caches none.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from sliceplane.consume.model import ServiceKey
from sliceplane.xds.collections import XdsCollection
from sliceplane.xds.endpoints import assignment
from sliceplane.xds.listeners import CAPTURE, capture_listener, grpc_listener
from sliceplane.xds.model import PortEndpoints, XdsLocation
from sliceplane.xds.names import (
    ASSIGNMENT,
    CLUSTER,
    ENDPOINT,
    LISTENER,
    ROUTES,
    collection_of,
    may_be_target,
    parse_key,
    parse_target,
    why_no_target,
)
from sliceplane.xds.resource import XdsClient, XdsResource
from sliceplane.xds.served import ServedService

if TYPE_CHECKING:
    from sliceplane.xds.catalog import XdsCatalog


class XdsView:
    """The resources that clients of one kind at one location may see. ``location``: the location by
    the API's Nodes, else by the client's claim.
    """

    def __init__(self, catalog: XdsCatalog, client: XdsClient, location: XdsLocation) -> None:
        self._catalog = catalog
        self.client: Final = client
        self.location = location
        self.users = 0
        #: assignments that clients requested since the catalog's revision; a fleet that reconnects
        #: requests each again
        self._assignments: dict[str, XdsResource] = {}
        self._assignments_at = -1

    @property
    def claims_another_zone(self) -> bool:
        """Returns True if the client claims another zone than that of its Node."""
        return bool(self.client.zone) and self.client.zone != self.location.zone

    @property
    def built_assignments(self) -> Mapping[str, XdsResource]:
        """Returns the assignments by name that clients requested since the catalog changed."""
        if self._assignments_at != self._catalog.revision:
            self._assignments.clear()
            self._assignments_at = self._catalog.revision
        return self._assignments

    def get(self, type_url: str, name: str) -> XdsResource | None:
        """Returns the resource *name*; ``None``: there is none, and no replacement for it."""
        catalog = self._catalog
        if type_url == ASSIGNMENT:
            cached = self.built_assignments.get(name)
            if cached is not None:
                return cached
        assert catalog.is_synced, "nothing is answered before everything was read"
        if type_url == ENDPOINT:
            members = catalog.shared.registry.get(collection_of(name))
            return members.by_name.get(name) if members is not None else None
        if type_url == LISTENER and self.client.kind == "grpc":
            return self._grpc_listener(name)
        if type_url == LISTENER and name == CAPTURE:
            return (
                XdsResource(LISTENER, CAPTURE, capture_listener())
                if self.client.listeners == "capture"
                else None
            )
        key = parse_key(name)
        if key is None:
            return None
        served = catalog.services.get(key.service)
        if served is None or key.port not in served.settings:
            return (
                XdsResource(ASSIGNMENT, name, assignment(key, ()))
                if type_url == ASSIGNMENT
                else None
            )
        if type_url != ASSIGNMENT:
            return self._of(served, type_url, key.port)
        built = served.assignment(key.port, self.location, collected=self.client.leds)
        if self.users > 1 and not catalog.has_pending:
            self._assignments[name] = built
        return built

    def check(self) -> None:
        """Asserts that cached resources are up to date."""
        cached = dict(self._assignments) if self._assignments_at == self._catalog.revision else {}
        self._assignments.clear()
        for name, resource in cached.items():
            now = self.get(ASSIGNMENT, name)
            assert now is not None, f"{name} is cached, and there is none"
            assert now.version == resource.version, (
                f"{name} is cached as {resource.version}, it is {now.version}"
            )

    def _of(self, served: ServedService, type_url: str, port: str) -> XdsResource | None:
        if type_url == CLUSTER:
            return served.cluster(port, self.client.kind)
        if self.client.kind == "envoy" and type_url == LISTENER:
            return served.listener(port, self.client.listeners)
        return served.routes(port) if self.client.kind == "envoy" and type_url == ROUTES else None

    def _grpc_listener(self, name: str) -> XdsResource | None:
        if not may_be_target(name):
            return None
        target = parse_target(name, self.client.namespace, self._catalog.config.domains)
        served = None if target is None else self._catalog.services.get(target.service)
        if target is None or served is None:
            return XdsResource(LISTENER, name, grpc_listener(name, None))
        return served.grpc_listener(name, target)

    def all(self, type_url: str) -> list[XdsResource]:
        """Returns the resources of a wildcard, by name: Clusters, and Envoy's listeners.
        O(Services).
        """
        assert self._catalog.is_synced, "nothing is answered before everything was read"
        if type_url not in (CLUSTER, LISTENER) or (
            type_url == LISTENER and self.client.kind == "grpc"
        ):
            return []
        resources = [
            resource
            for served in self._catalog.services.values()
            for port in served.settings
            if (resource := self._of(served, type_url, port)) is not None
        ]
        capture = self.get(type_url, CAPTURE) if type_url == LISTENER else None
        return sorted(
            [*resources, *([capture] if capture is not None else [])],
            key=lambda resource: resource.name,
        )

    def collection(self, glob: str) -> XdsCollection | None:
        """Returns the collection *glob*; ``None``: it does not exist any more, and the assignment leads
        to another.
        """
        return self._catalog.shared.registry.get(glob)

    def endpoints(self, name: str) -> PortEndpoints | None:
        """Returns the endpoints from which the assignment *name* takes the usable ones; ``None``:
        there is no such port.
        """
        key = parse_key(name)
        served = None if key is None else self._catalog.services.get(key.service)
        if key is None or served is None or key.port not in served.settings:
            return None
        return served.endpoints(key.port, self.location)

    def absence(self, type_url: str, name: str) -> str:
        """Returns why *name* resolves to no port of a Service, as a sentence; "" if it does."""
        if type_url == LISTENER and self.client.kind == "grpc":
            domains = self._catalog.config.domains
            target = parse_target(name, self.client.namespace, domains)
            if target is None:
                return why_no_target(name, self.client.namespace, domains)
            return self._catalog.absence(target.service, target.port, as_key=False)
        key = parse_key(name)
        if key is None:
            return "it is not spelled like NAMESPACE/SERVICE:PORT"
        return self._catalog.absence(key.service, key.port, as_key=True)

    def topic(self, type_url: str, name: str) -> str:
        """Returns the topic of changes of *name*: the name itself, or ``NAMESPACE/SERVICE`` for listeners
        of gRPC.
        """
        if type_url == LISTENER and self.client.kind == "grpc":
            target = parse_target(name, self.client.namespace, self._catalog.config.domains)
            return name if target is None else str(target.service)
        return name

    def namespace_of(self, type_url: str, name: str) -> str | None:
        """Returns the namespace of *name*, for visibility checks; ``None`` if it has none."""
        service = self.service_of(type_url, name)
        return None if service is None else service.namespace

    def service_of(self, type_url: str, name: str) -> ServiceKey | None:
        """Returns the Service of *name*; ``None`` if it has none, or its collection does not exist any
        more.
        """
        if type_url == ENDPOINT:
            members = self._catalog.shared.registry.get(collection_of(name))
            return None if members is None else members.key.service
        if type_url == LISTENER and self.client.kind == "grpc":
            target = parse_target(name, self.client.namespace, self._catalog.config.domains)
            return None if target is None else target.service
        key = parse_key(name)
        return None if key is None else key.service
