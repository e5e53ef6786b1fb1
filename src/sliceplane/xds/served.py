"""One Service as a set of resources: its resources by name, and their changes since the last call.

Clusters, listeners and routes depend on the Service alone and are built at a client's request;
``model.PortEndpoints`` has assignments and members. When the settings of a port change, its endpoints
are merged again, so that collections have new names: Envoy loses those with an older name when a
Cluster changes.

Owned by ``catalog``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Final, NamedTuple

from sliceplane.api.core import Service
from sliceplane.api.discovery import LABEL_FOR_REGION, LABEL_FOR_ZONE, EndpointSlice
from sliceplane.consume.model import ServiceKey
from sliceplane.kit.ip import FAMILIES
from sliceplane.xds.clusters import cluster
from sliceplane.xds.listeners import envoy_listener, envoy_routes, grpc_listener
from sliceplane.xds.model import (
    EVERYBODY,
    Audience,
    PortChanges,
    PortEndpoints,
    XdsLocation,
    XdsShared,
)
from sliceplane.xds.names import ASSIGNMENT, CLUSTER, ENDPOINT, LISTENER, ROUTES, GrpcTarget
from sliceplane.xds.pools import EndpointList, PoolKey
from sliceplane.xds.resource import ClientKind, ListenerMode, XdsClient, XdsResource
from sliceplane.xds.settings import PortSettings, settings_of, unserved_ports

#: order of changes: new or changed resources first, removed Clusters last
CHANGED: Final = {CLUSTER: 0, ASSIGNMENT: 1, ENDPOINT: 2, LISTENER: 3, ROUTES: 4}
REMOVED_CLUSTER: Final = 5


class ResourceChange(NamedTuple):
    rank: int
    type_url: str
    topic: str


class ServiceChanges(NamedTuple):
    """``changed_ports``: ports whose settings changed, came or went.  ``slices_changed``: other slices count
    for places now.
    """

    changed_ports: tuple[str, ...]
    slices_changed: bool
    ports: dict[tuple[str, Audience], PortChanges]


class ServedService:
    """See the module."""

    def __init__(self, key: ServiceKey, shared: XdsShared) -> None:
        self.key: Final = key
        self._shared = shared
        self.settings: dict[str, PortSettings] = {}
        #: problems of annotations
        self.problems: list[str] = []
        #: number of ports that no client can have
        self.unserved = 0
        self.exists = False
        self._slices: dict[str, EndpointSlice] = {}
        #: zone and region of slices with a label for some locations, by key
        self._for_some: dict[str, tuple[str, str]] = {}
        self._labels: frozenset[tuple[str, str]] = frozenset()
        self._ports: dict[tuple[str, Audience], PortEndpoints] = {}
        self._built: dict[tuple[str, str, str], XdsResource | None] = {}
        self._changed_ports: dict[str, None] = {}
        self._slices_changed = False

    @property
    def is_empty(self) -> bool:
        return not self.exists and not self._slices

    @property
    def unusable(self) -> int:
        """Returns the number of endpoints without an address that a client could use: of requested
        ports, and of slices of names.
        """
        named = (item for item in self._slices.values() if item.address_type not in FAMILIES)
        return sum(len(item.endpoints or ()) for item in named) + sum(
            port.unusable for port in self._ports.values()
        )

    def too_large(self) -> list[str]:
        """Returns the keys of ports with more endpoints than their assignment has."""
        return sorted(
            {
                str(self.settings[port].key)
                for (port, _), endpoints in self._ports.items()
                if endpoints.is_too_large
            }
        )

    # -- changes

    def on_service(self, service: Service | None) -> bool:
        """Notes a change of the Service; returns True if it concerns xDS."""
        before = self.settings
        existed = self.exists
        self.exists = service is not None
        self.settings, self.problems = ({}, []) if service is None else settings_of(service)
        self.unserved = 0 if service is None else unserved_ports(service)
        changed = [
            port
            for port in {**before, **self.settings}
            if before.get(port) != self.settings.get(port)
        ]
        for port in changed:
            self._changed_ports[port] = None
            self._note_measured(port)
            for key in [key for key in self._ports if key[0] == port]:
                self._ports.pop(key).drop_pools(_no_pool)
        if changed:
            self._built.clear()
        return bool(changed) or existed != self.exists

    def _note_measured(self, port: str) -> None:
        settings = self.settings.get(port)
        if settings is not None and settings.measured:
            self._shared.measured[str(settings.key)] = settings.measured
        else:
            self._shared.measured.pop(f"{self.key}:{port}", None)

    def on_slice(self, key: str, new: EndpointSlice | None) -> None:
        """Notes that the slice *key* is now *new* (``None``: removed, or another Service's)."""
        before = self._labels
        labels = new.metadata.labels or {} if new is not None else {}
        if LABEL_FOR_ZONE in labels or LABEL_FOR_REGION in labels:
            self._for_some[key] = labels.get(LABEL_FOR_ZONE, ""), labels.get(LABEL_FOR_REGION, "")
        else:
            self._for_some.pop(key, None)
        if new is None:
            self._slices.pop(key, None)
        else:
            self._slices[key] = new
        self._labels = frozenset(self._for_some.values())
        if before != self._labels:
            self.drop_pools(_no_pool)
            self._ports.clear()
            self._slices_changed = True
            return
        for (_, audience), port in self._ports.items():
            port.on_slice(key, new if new is not None and audience.reads(new) else None)

    def on_regions(self) -> None:
        for port in self._ports.values():
            port.on_regions()

    def drop_pools(self, is_used: Callable[[PoolKey], bool]) -> None:
        for port in self._ports.values():
            port.drop_pools(is_used)

    def drop_audiences(self, is_used: Callable[[Audience], bool]) -> None:
        for key in [key for key in self._ports if not is_used(key[1])]:
            self._ports.pop(key).drop_pools(_no_pool)

    def take_changes(self) -> ServiceChanges:
        changed_ports = tuple(sorted(self._changed_ports))
        slices_changed = self._slices_changed
        self._changed_ports.clear()
        self._slices_changed = False
        return ServiceChanges(
            changed_ports,
            slices_changed,
            {key: port.take_changes() for key, port in self._ports.items()},
        )

    def changes_for(
        self, changes: ServiceChanges, client: XdsClient, location: XdsLocation
    ) -> Iterator[ResourceChange]:
        """Yields the part of *changes* that a client of this kind at *location* must get; a
        resource may come twice.
        """
        for port in changes.changed_ports:
            yield from self._changes_of_port(port, client)
        if changes.changed_ports and client.kind == "grpc":
            yield ResourceChange(CHANGED[LISTENER], LISTENER, str(self.key))
        if changes.slices_changed:
            yield from self.assignments()
        audience = self.audience(location)
        for (port, of), changed in changes.ports.items():
            if of == audience and not changed.is_empty:
                used = self._ports[port, of].select(location)
                if changed.reassigns(location, used, collected=client.leds):
                    yield ResourceChange(
                        CHANGED[ASSIGNMENT], ASSIGNMENT, str(self.settings[port].key)
                    )
            # Includes pools that the location does not use now: its clients may have them, and may
            # use them again before they receive another one.
            for pool in changed.pools.values() if client.leds else ():
                for member in pool.members:
                    yield ResourceChange(CHANGED[ENDPOINT], ENDPOINT, member)

    def assignments(self) -> Iterator[ResourceChange]:
        """Yields all assignments, as changed."""
        for settings in self.settings.values():
            yield ResourceChange(CHANGED[ASSIGNMENT], ASSIGNMENT, str(settings.key))

    def _changes_of_port(self, port: str, client: XdsClient) -> Iterator[ResourceChange]:
        key = f"{self.key}:{port}"
        yield ResourceChange(
            CHANGED[CLUSTER] if port in self.settings else REMOVED_CLUSTER, CLUSTER, key
        )
        # Includes an unchanged assignment: a changed Cluster waits for it. A port that was removed
        # from a Service keeps its endpoints until listeners lead elsewhere; a deleted Service loses
        # them first.
        if port in self.settings or not self.exists:
            yield ResourceChange(CHANGED[ASSIGNMENT], ASSIGNMENT, key)
        if client.kind == "envoy":
            if client.listeners != "none":
                yield ResourceChange(CHANGED[LISTENER], LISTENER, key)
            yield ResourceChange(CHANGED[ROUTES], ROUTES, key)

    # -- resources

    def audience(self, location: XdsLocation) -> Audience:
        """Returns the audience of *location*. Locations that read the same slices share one: a zone
        that a client invents has no audience of its own.
        """
        if not self._for_some:
            return EVERYBODY
        zone = location.zone if any(location.zone == zone for zone, _ in self._labels) else ""
        return Audience(
            zone,
            location.region if any(location.region == region for _, region in self._labels) else "",
        )

    def endpoints(self, port: str, location: XdsLocation) -> PortEndpoints:
        """Returns the endpoints of an existing port; merged at the first request of a client."""
        audience = self.audience(location)
        endpoints = self._ports.get((port, audience))
        if endpoints is None:
            endpoints = self._ports[port, audience] = PortEndpoints(
                self.settings[port], self._shared
            )
            for key in sorted(self._slices):
                if audience.reads(self._slices[key]):
                    endpoints.on_slice(key, self._slices[key])
            endpoints.take_changes()
        return endpoints

    def assignment(self, port: str, location: XdsLocation, *, collected: bool) -> XdsResource:
        pool: EndpointList = self.endpoints(port, location).pool(location)
        regions = self._shared.regions
        return pool.collected_assignment(regions) if collected else pool.assignment(regions)

    def cluster(self, port: str, kind: ClientKind) -> XdsResource | None:
        return self._cached(CLUSTER, port, kind, lambda settings: cluster(settings, kind))

    def listener(self, port: str, mode: ListenerMode) -> XdsResource | None:
        return self._cached(LISTENER, port, mode, lambda settings: envoy_listener(settings, mode))

    def routes(self, port: str) -> XdsResource | None:
        return self._cached(ROUTES, port, "", envoy_routes)

    def grpc_listener(self, name: str, target: GrpcTarget) -> XdsResource:
        settings = self.resolve_port(target.port)
        cached = self._built.get((LISTENER, "grpc", name))
        if cached is None:
            cached = XdsResource(LISTENER, name, grpc_listener(name, settings))
            if (
                settings is not None and name == name.lower()
            ):  # other spellings are too many to cache them
                self._built[LISTENER, "grpc", name] = cached
        return cached

    def resolve_port(self, port: str) -> PortSettings | None:
        """Returns the port that a gRPC client requests by name, by number, or by default."""
        if not port:
            return (
                next(iter(self.settings.values()))
                if len(self.settings) == 1
                else self.settings.get("grpc")
            )
        numbered: Iterable[PortSettings] = (
            settings for settings in self.settings.values() if str(settings.number) == port
        )
        return self.settings.get(port) or next(iter(numbered), None)

    def absence(self, port: str, *, as_key: bool) -> str:
        """Returns why the Service has no port *port*, resolved by ``resolve_port`` or, *as_key*,
        literally; "" if it has one.
        """
        if port in self.settings or (not as_key and self.resolve_port(port) is not None):
            return ""
        if not self.settings:
            return (
                f"Service {self.key} has no port that xDS serves (TCP, and not of the type "
                "ExternalName)"
            )
        ports = ", ".join(
            name if name == str(settings.number) else f"{name} ({settings.number})"
            for name, settings in self.settings.items()
        )
        if not port:
            return f"Service {self.key} has several ports, so the name needs one: {ports}"
        return f"Service {self.key} has no port {port}: it has {ports}"

    def _cached(
        self, type_url: str, port: str, variant: str, make: Callable[[PortSettings], bytes | None]
    ) -> XdsResource | None:
        settings = self.settings.get(port)
        if settings is None:
            return None
        key = (type_url, variant, port)
        if key not in self._built:
            body = make(settings)
            self._built[key] = (
                None if body is None else XdsResource(type_url, str(settings.key), body)
            )
        return self._built[key]

    def check(self, locations: Iterable[XdsLocation]) -> None:
        assert self._for_some.keys() <= self._slices.keys(), "labels of a slice that does not exist"
        for (port, audience), endpoints in self._ports.items():
            assert port in self.settings, f"endpoints of {self.key}:{port}, which is no port"
            endpoints.check(
                location for location in locations if self.audience(location) == audience
            )


def _no_pool(_: PoolKey) -> bool:
    return False
