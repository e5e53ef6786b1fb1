"""The resources of all Services for each location of clients, and their changes, computed from
Services, EndpointSlices and Nodes.

Clients of one kind at one location share a view (``view``), which returns the present resource of a
name. ``take_changes`` returns the names whose resources may have changed since the last call:
Clusters, assignments, members, then listeners and routes, and last the removed Clusters (make before
break). A stream compares versions before it sends, with one exception: the assignment of a changed
Cluster is sent even if it is the same, since Envoy waits for it.

An assignment is never removed, since Envoy would ignore that: each possible name has an assignment,
which is empty if there is no such Service. So a deleted Service first loses its endpoints, then its
Cluster.

Nothing is answered before ``on_synced``: names that were not listed yet must not appear deleted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Final, NamedTuple

import msgspec

from sliceplane.api.core import Node, Service
from sliceplane.api.discovery import LABEL_REGION, LABEL_SERVICE_NAME, LABEL_ZONE, EndpointSlice
from sliceplane.consume.model import ServiceKey
from sliceplane.xds.model import Audience, XdsLocation, XdsShared
from sliceplane.xds.pools import PoolKey
from sliceplane.xds.resource import XdsClient
from sliceplane.xds.served import ResourceChange, ServedService
from sliceplane.xds.view import XdsView

#: maximum octets of the endpoints of one assignment: gRPC accepts messages of at most 4 MiB
ASSIGNMENT_BYTES_MAX: Final = 4032 * 1024


class XdsConfig(msgspec.Struct, frozen=True, kw_only=True):
    """``namespaces``: all if empty. ``collected_from``: number of endpoints from which on Envoy
    receives them as members of collections. ``assignment_max``: maximum octets of the endpoints of one
    assignment. ``with_names``: metadata of endpoints has names of Pods and nodes.
    """

    domains: tuple[str, ...] = ("cluster.local",)
    namespaces: tuple[str, ...] = ()
    collected_from: int = 20
    assignment_max: int = ASSIGNMENT_BYTES_MAX
    with_names: bool = False


class XdsChange(NamedTuple):
    """A resource at *topic* (``XdsView.topic``) may have changed."""

    view: XdsView
    type_url: str
    topic: str


class XdsCatalog:
    """See the module.  *process*: a unique text of this process, a part of the epochs of
    collections.
    """

    def __init__(self, config: XdsConfig, process: str) -> None:
        self.config: Final = config
        self.is_synced = False
        #: number of events that changed something
        self.revision = 0
        self._process = process
        self._epochs = 0
        self.shared: Final = XdsShared(
            self._next_epoch, config.collected_from, config.assignment_max, config.with_names
        )
        self.services: Final[dict[ServiceKey, ServedService]] = {}
        #: number of served Services by namespace
        self.namespaces: Final[dict[str, int]] = {}
        self._views: dict[XdsClient, XdsView] = {}
        self._dirty: dict[ServiceKey, None] = {}
        self._moved: dict[XdsView, None] = {}
        #: number of locations that views left since unused pools were last dropped
        self._abandoned = 0
        self._nodes: dict[str, XdsLocation] = {}
        #: number of nodes by zone and region
        self._regions: dict[str, dict[str, int]] = {}

    @property
    def has_pending(self) -> bool:
        """Returns True if changes since ``take_changes`` are not merged yet."""
        return bool(self._dirty)

    @property
    def unusable(self) -> int:
        """Returns the number of endpoints of requested Services whose address no client could use."""
        return sum(served.unusable for served in self.services.values())

    @property
    def unserved(self) -> int:
        """Returns the number of ports that no client can have: UDP, SCTP, and the type ExternalName.
        O(Services).
        """
        return sum(served.unserved for served in self.services.values())

    @property
    def measured(self) -> Mapping[str, str]:
        """The clusters whose clients report their requests, with the start of the Service's UID."""
        return self.shared.measured

    def zone_of(self, client: XdsClient) -> str:
        """Returns the zone of *client*; "" if no Node is in it."""
        zone = self._location_of(client).zone
        return zone if any(node.zone == zone for node in self._nodes.values()) else ""

    def too_large(self) -> dict[str, str]:
        """Returns the keys whose assignment omits endpoints because there are too many, with their
        Services.  O(Services).
        """
        return {
            port: str(key)
            for key, served in sorted(self.services.items())
            for port in served.too_large()
        }

    def problems(self, service: str) -> tuple[str, ...]:
        """Returns the problems of the annotations of ``NAMESPACE/NAME``."""
        namespace, _, name = service.partition("/")
        served = self.services.get(ServiceKey(namespace, name))
        return () if served is None else tuple(served.problems)

    def absence(self, service: ServiceKey, port: str, *, as_key: bool) -> str:
        """Returns why clients cannot have *port* of *service*, as a sentence; "" if they can. *as_key*:
        the port is part of a key, not of a user's target.
        """
        if not self._is_served(service):
            return f"this server serves other namespaces alone: {', '.join(self.config.namespaces)}"
        served = self.services.get(service)
        if served is not None and served.exists:
            return served.absence(port, as_key=as_key)
        if service.namespace not in self.namespaces:
            return f"there is no Service in the namespace {service.namespace}"
        return f"there is no Service {service}"

    def _next_epoch(self) -> str:
        self._epochs += 1
        return f"{self._process}-{self._epochs:x}"

    # -- events

    def on_service(self, before: Service | None, after: Service | None) -> None:
        subject = after if after is not None else before
        assert subject is not None, "an event has an old or a new object"
        key = ServiceKey(subject.metadata.namespace, subject.metadata.name)
        if not self._is_served(key):
            return
        served = self._served(key)
        before_exists = served.exists
        if served.on_service(after):
            self._note(key)
        self._count_service(key.namespace, served.exists - before_exists)

    def _count_service(self, namespace: str, by: int) -> None:
        count = self.namespaces.get(namespace, 0) + by
        if count:
            self.namespaces[namespace] = count
        else:
            self.namespaces.pop(namespace, None)

    def on_slice(self, before: EndpointSlice | None, after: EndpointSlice | None) -> None:
        was, now = (
            None if subject is None else _service_of(subject) for subject in (before, after)
        )
        subject = after if after is not None else before
        assert subject is not None, "an event has an old or a new object"
        for key, new in ((was, None), (now, after)) if was != now else ((now, after),):
            if key is not None and self._is_served(key):
                self._served(key).on_slice(subject.metadata.key, new)
                self._note(key)

    def on_node(self, before: Node | None, after: Node | None) -> None:
        subject = after if after is not None else before
        assert subject is not None, "an event has an old or a new object"
        name = subject.metadata.name
        labels = after.metadata.labels or {} if after is not None else {}
        was = self._nodes.pop(name, None)
        now = XdsLocation(name, labels.get(LABEL_ZONE, ""), labels.get(LABEL_REGION, ""))
        if after is not None:
            self._nodes[name] = now
        if was == (now if after is not None else None):
            return
        self.revision += 1
        regions_changed = self._count(was, -1) | self._count(now if after is not None else None, 1)
        if regions_changed:
            for key, served in self.services.items():
                served.on_regions()
                self._dirty[key] = None
        for view in self._views.values():
            if regions_changed or view.client.node == name:
                self._relocate(view)

    def on_synced(self) -> None:
        """Notes that the first lists were delivered."""
        self.is_synced = True

    def _is_served(self, key: ServiceKey) -> bool:
        return not self.config.namespaces or key.namespace in self.config.namespaces

    def _served(self, key: ServiceKey) -> ServedService:
        served = self.services.get(key)
        if served is None:
            served = self.services[key] = ServedService(key, self.shared)
        return served

    def _note(self, key: ServiceKey) -> None:
        self.revision += 1
        self._dirty[key] = None

    def _count(self, location: XdsLocation | None, by: int) -> bool:
        """Counts a Node; returns True if that changes the region of its zone: that of the zone's Nodes,
        the first by name if they differ.
        """
        if location is None or not location.zone or not location.region:
            return False
        regions = self._regions.setdefault(location.zone, {})
        regions[location.region] = regions.get(location.region, 0) + by
        if not regions[location.region]:
            del regions[location.region]
        before = self.shared.regions.pop(location.zone, None)
        if regions:
            self.shared.regions[location.zone] = min(regions)
        else:
            del self._regions[location.zone]
        return before != self.shared.regions.get(location.zone)

    # -- views

    def view(self, client: XdsClient) -> XdsView:
        """Returns the view of clients like this one.  Release it once for each call."""
        if client.kind == "grpc":
            client = XdsClient(
                kind="grpc", zone=client.zone, node=client.node, namespace=client.namespace
            )
        else:
            client = XdsClient(
                kind="envoy",
                zone=client.zone,
                node=client.node,
                leds=client.leds,
                listeners=client.listeners,
            )
        view = self._views.get(client)
        if view is None:
            view = self._views[client] = XdsView(self, client, self._location_of(client))
        view.users += 1
        return view

    def release(self, view: XdsView) -> None:
        """Releases a view and drops everything that no other view can use."""
        assert view.users > 0, "a view was released more often than it was requested"
        view.users -= 1
        if view.users:
            return
        del self._views[view.client]
        self._moved.pop(view, None)
        self._drop_unused()

    def _drop_unused(self) -> None:
        """Notes that a view left its location.  From time to time, drops what no other location uses:
        that is O(Services).
        """
        self._abandoned += 1
        if self._abandoned * 4 <= len(self._views):
            return
        self._abandoned = 0
        locations = [view.location for view in self._views.values()]
        nodes = {other.node for other in locations}
        zones = {other.zone for other in locations}
        audiences = {
            Audience(zone, region)
            for other in locations
            for zone in ("", other.zone)
            for region in ("", other.region)
        }
        is_used = _use_of(nodes, zones) if locations else _is_unused
        for served in self.services.values():
            served.drop_audiences(audiences.__contains__)
            served.drop_pools(is_used)

    def _location_of(self, client: XdsClient) -> XdsLocation:
        location = self._nodes.get(client.node) if client.node else None
        if location is not None:
            return location._replace(
                region=location.region or self.shared.regions.get(location.zone, "")
            )
        return XdsLocation(client.node, client.zone, self.shared.regions.get(client.zone, ""))

    def _relocate(self, view: XdsView) -> None:
        before = view.location
        view.location = self._location_of(view.client)
        if view.location != before:
            self._moved[view] = None
            self._drop_unused()

    def take_changes(self) -> list[XdsChange]:
        """Returns the possible changes since the last call, each once, in the order in which to
        send them; none before ``on_synced``.
        """
        if not self.is_synced:
            return []
        result: dict[tuple[XdsView, ResourceChange], None] = {}
        for key in sorted(self._dirty):
            served = self.services[key]
            changes = served.take_changes()
            for view in self._views.values():
                for change in served.changes_for(changes, view.client, view.location):
                    result[view, change] = None
            if served.is_empty:
                del self.services[key]
        for view in self._moved:
            for key in sorted(self.services):
                result |= dict.fromkeys(
                    (view, change) for change in self.services[key].assignments()
                )
        self._dirty.clear()
        self._moved.clear()
        return [XdsChange(view, of.type_url, of.topic) for view, of in sorted(result, key=_rank)]

    def check(self) -> None:
        """Asserts every invariant.  O(everything)."""
        locations = [view.location for view in self._views.values()]
        for key, served in self.services.items():
            assert not served.is_empty or key in self._dirty, f"{key} is empty and unmarked"
            served.check(locations)
        for view in self._views.values():
            view.check()
        for glob, collection in self.shared.registry.items():
            assert collection.glob == glob, f"{collection.glob} is registered as {glob}"


def catalog_of(
    services: Iterable[Service],
    slices: Iterable[EndpointSlice],
    nodes: Iterable[Node],
    process: str,
) -> XdsCatalog:
    """Returns a catalog built from lists; its assignments contain their endpoints, however many."""
    catalog = XdsCatalog(XdsConfig(collected_from=0), process)
    for node in nodes:
        catalog.on_node(None, node)
    for service in services:
        catalog.on_service(None, service)
    for item in slices:
        catalog.on_slice(None, item)
    catalog.on_synced()
    return catalog


def _service_of(subject: EndpointSlice) -> ServiceKey | None:
    name = (subject.metadata.labels or {}).get(LABEL_SERVICE_NAME, "")
    return ServiceKey(subject.metadata.namespace, name) if name else None


def _rank(result: tuple[XdsView, ResourceChange]) -> int:
    return result[1].rank


def _use_of(nodes: set[str], zones: set[str]) -> Callable[[PoolKey], bool]:
    def is_used(pool: PoolKey) -> bool:
        if pool.kind == "zone":
            return pool.value in zones
        return pool.value in nodes if pool.value else True

    return is_used


def _is_unused(_: PoolKey) -> bool:
    return False
