"""One Service as a set of resources: what there is by name, and what differs since the last time.

Clusters, listeners and routes follow from the Service alone and are made when a client asks;
assignments and members come of ``model.PortEndpoints``. When the settings of a port change its
endpoints are merged anew, so that collections have new names: Envoy loses those that it knew by an
older name when a Cluster changes.

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
    XdsPlace,
    XdsShared,
)
from sliceplane.xds.names import ASSIGNMENT, CLUSTER, ENDPOINT, LISTENER, ROUTES, GrpcTarget
from sliceplane.xds.pools import EndpointList, PoolKey
from sliceplane.xds.resource import ClientKind, ListenerMode, XdsClient, XdsResource
from sliceplane.xds.settings import PortSettings, settings_of, unserved_ports

#: new or changed resources go first, in this order; Clusters that went go last
CHANGED: Final = {CLUSTER: 0, ASSIGNMENT: 1, ENDPOINT: 2, LISTENER: 3, ROUTES: 4}
GONE_CLUSTER: Final = 5


class ResourceChange(NamedTuple):
    rank: int
    type_url: str
    topic: str


class ServiceChanges(NamedTuple):
    """``resettled``: ports whose settings changed, came or went.  ``reread``: other slices count
    for places now.
    """

    resettled: tuple[str, ...]
    reread: bool
    ports: dict[tuple[str, Audience], PortChanges]


class ServedService:
    """See the module."""

    def __init__(self, key: ServiceKey, shared: XdsShared) -> None:
        self.key: Final = key
        self._shared = shared
        self.settings: dict[str, PortSettings] = {}
        #: what is wrong with annotations
        self.problems: list[str] = []
        #: ports that no client can have
        self.unserved = 0
        self.exists = False
        self._slices: dict[str, EndpointSlice] = {}
        #: of slices that are for some places: the zone and the region of their labels
        self._for_some: dict[str, tuple[str, str]] = {}
        self._labels: frozenset[tuple[str, str]] = frozenset()
        self._ports: dict[tuple[str, Audience], PortEndpoints] = {}
        self._made: dict[tuple[str, str, str], XdsResource | None] = {}
        self._resettled: dict[str, None] = {}
        self._reread = False

    @property
    def is_empty(self) -> bool:
        return not self.exists and not self._slices

    @property
    def left_out(self) -> int:
        """Endpoints without an address that a client could use, of ports that clients ask for; of
        slices of names, too.
        """
        named = (held for held in self._slices.values() if held.address_type not in FAMILIES)
        return sum(len(held.endpoints or ()) for held in named) + sum(
            port.left_out for port in self._ports.values()
        )

    def too_large(self) -> list[str]:
        """Ports that have more endpoints than clients are told."""
        return sorted(
            {
                str(self.settings[port].key)
                for (port, _), held in self._ports.items()
                if held.is_too_large
            }
        )

    # -- changes

    def on_service(self, service: Service | None) -> bool:
        """False: nothing that xDS looks at is another."""
        before = self.settings
        was_there = self.exists
        self.exists = service is not None
        self.settings, self.problems = ({}, []) if service is None else settings_of(service)
        self.unserved = 0 if service is None else unserved_ports(service)
        changed = [
            port
            for port in {**before, **self.settings}
            if before.get(port) != self.settings.get(port)
        ]
        for port in changed:
            self._resettled[port] = None
            for held in [held for held in self._ports if held[0] == port]:
                self._ports.pop(held).drop_pools(_no_pool)
        if changed:
            self._made.clear()
        return bool(changed) or was_there != self.exists

    def on_slice(self, key: str, new: EndpointSlice | None) -> None:
        """The slice *key* is now *new* (``None``: gone, or another Service's)."""
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
            self._reread = True
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
        for held in [held for held in self._ports if not is_used(held[1])]:
            self._ports.pop(held).drop_pools(_no_pool)

    def settle(self) -> ServiceChanges:
        resettled = tuple(sorted(self._resettled))
        reread = self._reread
        self._resettled.clear()
        self._reread = False
        return ServiceChanges(
            resettled, reread, {held: port.settle() for held, port in self._ports.items()}
        )

    def changes_for(
        self, changes: ServiceChanges, client: XdsClient, place: XdsPlace
    ) -> Iterator[ResourceChange]:
        """Yields the part of *changes* that a client of this kind at *place* must get; a resource
        may come twice.
        """
        for port in changes.resettled:
            yield from self._resettled_for(port, client)
        if changes.resettled and client.kind == "grpc":
            yield ResourceChange(CHANGED[LISTENER], LISTENER, str(self.key))
        if changes.reread:
            yield from self.assignments()
        audience = self.audience(place)
        for (port, of), changed in changes.ports.items():
            if of == audience and not changed.is_empty:
                used = self._ports[port, of].select(place)
                if changed.reassigns(place, used, collected=client.leds):
                    yield ResourceChange(
                        CHANGED[ASSIGNMENT], ASSIGNMENT, str(self.settings[port].key)
                    )
            # Also of pools that the place does not use now: its clients may hold them, and come to
            # use them again before they have heard of another one.
            for pool in changed.pools.values() if client.leds else ():
                for member in pool.members:
                    yield ResourceChange(CHANGED[ENDPOINT], ENDPOINT, member)

    def assignments(self) -> Iterator[ResourceChange]:
        """All of them, as changed."""
        for settings in self.settings.values():
            yield ResourceChange(CHANGED[ASSIGNMENT], ASSIGNMENT, str(settings.key))

    def _resettled_for(self, port: str, client: XdsClient) -> Iterator[ResourceChange]:
        key = f"{self.key}:{port}"
        yield ResourceChange(
            CHANGED[CLUSTER] if port in self.settings else GONE_CLUSTER, CLUSTER, key
        )
        # Also of one that is the same: a Cluster that changed waits for its assignment. A port that
        # went from a Service keeps its endpoints until listeners lead elsewhere; a Service that
        # went loses them first.
        if port in self.settings or not self.exists:
            yield ResourceChange(CHANGED[ASSIGNMENT], ASSIGNMENT, key)
        if client.kind == "envoy":
            if client.listeners != "none":
                yield ResourceChange(CHANGED[LISTENER], LISTENER, key)
            yield ResourceChange(CHANGED[ROUTES], ROUTES, key)

    # -- resources

    def audience(self, place: XdsPlace) -> Audience:
        """Places that read the same slices are one: a zone that a client makes up is no audience of
        its own.
        """
        if not self._for_some:
            return EVERYBODY
        zone = place.zone if any(place.zone == zone for zone, _ in self._labels) else ""
        return Audience(
            zone, place.region if any(place.region == region for _, region in self._labels) else ""
        )

    def endpoints(self, port: str, place: XdsPlace) -> PortEndpoints:
        """Returns the endpoints of an existing port; merged at the first request of a client."""
        audience = self.audience(place)
        held = self._ports.get((port, audience))
        if held is None:
            held = self._ports[port, audience] = PortEndpoints(self.settings[port], self._shared)
            for key in sorted(self._slices):
                if audience.reads(self._slices[key]):
                    held.on_slice(key, self._slices[key])
            held.settle()
        return held

    def assignment(self, port: str, place: XdsPlace, *, collected: bool) -> XdsResource:
        pool: EndpointList = self.endpoints(port, place).pool(place)
        regions = self._shared.regions
        return pool.collected_assignment(regions) if collected else pool.assignment(regions)

    def cluster(self, port: str, kind: ClientKind) -> XdsResource | None:
        return self._kept(CLUSTER, port, kind, lambda settings: cluster(settings, kind))

    def listener(self, port: str, mode: ListenerMode) -> XdsResource | None:
        return self._kept(LISTENER, port, mode, lambda settings: envoy_listener(settings, mode))

    def routes(self, port: str) -> XdsResource | None:
        return self._kept(ROUTES, port, "", envoy_routes)

    def grpc_listener(self, name: str, target: GrpcTarget) -> XdsResource:
        settings = self.asked(target.port)
        kept = self._made.get((LISTENER, "grpc", name))
        if kept is None:
            kept = XdsResource(LISTENER, name, grpc_listener(name, settings))
            if (
                settings is not None and name == name.lower()
            ):  # there are too many other spellings to keep them
                self._made[LISTENER, "grpc", name] = kept
        return kept

    def asked(self, port: str) -> PortSettings | None:
        """The port that a gRPC client means by name, by number, or by saying none."""
        if not port:
            return (
                next(iter(self.settings.values()))
                if len(self.settings) == 1
                else self.settings.get("grpc")
            )
        numbered: Iterable[PortSettings] = (
            held for held in self.settings.values() if str(held.number) == port
        )
        return self.settings.get(port) or next(iter(numbered), None)

    def absence(self, port: str, *, as_key: bool) -> str:
        """Why no port of the Service is *port*, as ``asked`` resolves it or, *as_key*, to the
        letter; "" if one is.
        """
        if port in self.settings or (not as_key and self.asked(port) is not None):
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

    def _kept(
        self, type_url: str, port: str, variant: str, make: Callable[[PortSettings], bytes | None]
    ) -> XdsResource | None:
        settings = self.settings.get(port)
        if settings is None:
            return None
        held = (type_url, variant, port)
        if held not in self._made:
            body = make(settings)
            self._made[held] = (
                None if body is None else XdsResource(type_url, str(settings.key), body)
            )
        return self._made[held]

    def check(self, places: Iterable[XdsPlace]) -> None:
        assert self._for_some.keys() <= self._slices.keys(), "a slice is labelled that is not there"
        for (port, audience), held in self._ports.items():
            assert port in self.settings, f"endpoints of {self.key}:{port}, which is no port"
            held.check(place for place in places if self.audience(place) == audience)


def _no_pool(_: PoolKey) -> bool:
    return False
