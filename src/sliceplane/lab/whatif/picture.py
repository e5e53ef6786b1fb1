"""A Service at one moment: its slices, the locations of its clients, the distribution of their
connections, and overload.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from fractions import Fraction
from typing import Final

import msgspec

from sliceplane.api.codec import decode
from sliceplane.api.core import Node, Service
from sliceplane.api.discovery import LABEL_SERVICE_NAME, LABEL_ZONE, EndpointSlice
from sliceplane.api.scheme import EndpointSlices
from sliceplane.api.selectors.distribution import ANNOTATION_TOPOLOGY_MODE
from sliceplane.api.selectors.grammar import parse_labels
from sliceplane.api.service_rules import is_externally_accessible
from sliceplane.consume.balancing.shares import (
    AllowedLoad,
    ClientLocation,
    EndpointKind,
    TrafficShares,
    at_nodes,
    at_zones,
    cure,
    kinds_of,
    ready_by_zone,
    shares,
    without,
)
from sliceplane.consume.usable import Locality
from sliceplane.diagnose.explain.checks.zones import is_working, takes_pods
from sliceplane.kit.ip import FAMILIES, Family
from sliceplane.lab.whatif.state import ClusterState, WhatIfError
from sliceplane.lab.whatif.world import WhatIfWorld
from sliceplane.lab.wire import event_bytes

CONNECTIONS_DEFAULT: Final = 10_000


class Clients(msgspec.Struct, frozen=True, kw_only=True):
    """The locations of clients: on the Nodes (the default), at the Pods of a *selector*, or
    measured as *traffic*. ``rate``: requests per second of all clients, if known; ``capacity``:
    requests per second that one Pod can serve.
    """

    selector: str = ""
    traffic: Mapping[str, Fraction] = msgspec.field(default_factory=dict)
    connections: int = CONNECTIONS_DEFAULT
    rate: Fraction | None = None
    capacity: Fraction | None = None


class Loads(msgspec.Struct, frozen=True):
    """Shares and their consequences. ``rate``: requests per second of the remaining clients, if
    known; ``fix``: Pods to add by zone so that none is overloaded, ``None``: adding Pods does not
    help.
    """

    shares: TrafficShares
    rate: Fraction | None
    allowed: AllowedLoad
    fix: Counter[str] | None

    @property
    def used(self) -> Fraction:
        """The load of the busiest endpoint over its capacity: more than 1 is overload."""
        most = max(self.shares.each.values(), default=Fraction(0))
        return most / self.allowed.of(self.shares.candidates)

    def rate_in(self, zone: str) -> Fraction:
        """Returns the requests per second of the busiest endpoint in *zone*; only if the rate is
        known.
        """
        assert self.rate is not None
        return self.shares.load(zone) / max(self.shares.candidates, 1) * self.rate


class Picture(msgspec.Struct, frozen=True, kw_only=True):
    """A Service at one moment. ``each_json``: mean bytes to all watchers when one endpoint changes."""

    slices: int
    kinds: Counter[EndpointKind]
    client_locations: tuple[ClientLocation, ...]
    loads: Loads
    outside: TrafficShares | None
    each_json: Fraction
    each_protobuf: Fraction
    distribution: str
    topology_mode: str
    policy: str
    watchers: int

    @property
    def shares(self) -> TrafficShares:
        return self.loads.shares

    @property
    def ready(self) -> Counter[str]:
        return ready_by_zone(self.kinds)

    @property
    def endpoints(self) -> int:
        return self.kinds.total()

    @property
    def clients(self) -> dict[str, Fraction]:
        """The shares of clients by zone."""
        zones = sorted({location.at.zone for location in self.client_locations})
        return {
            zone: sum(
                (location.share for location in self.client_locations if location.at.zone == zone),
                Fraction(0),
            )
            for zone in zones
        }

    @property
    def zones(self) -> tuple[str, ...]:
        return tuple(
            sorted(
                {kind.zone for kind in self.kinds}
                | {location.at.zone for location in self.client_locations}
            )
        )


def loads(
    kinds: Counter[EndpointKind],
    client_locations: Sequence[ClientLocation],
    clients: Clients,
    remaining: Fraction,
    *,
    local: bool,
) -> Loads:
    """Returns the loads. *remaining*: the fraction of all clients that still exists."""
    rate = None if clients.rate is None else clients.rate * remaining
    allowed = AllowedLoad(None if clients.capacity is None or not rate else clients.capacity / rate)
    return Loads(
        shares(kinds, client_locations, local=local),
        rate,
        allowed,
        cure(kinds, client_locations, local=local, allowed=allowed),
    )


def picture(
    world: WhatIfWorld,
    subject: Service,
    clients: Clients,
    *,
    others: int,
    lost: Collection[str] = (),
    remaining: Fraction = Fraction(1),
) -> Picture:
    """Returns the picture of the current world. *others*: watchers besides the Nodes' proxies.
    Clients in *lost* zones are removed; *remaining* is the fraction of all clients that is left.
    """
    state = world.state
    meta = subject.metadata
    service = state.service(meta.namespace, meta.name)
    local = service.spec.internal_traffic_policy == "Local"
    reachable = is_externally_accessible(service.spec.type, service.spec.external_ips)
    external = reachable and service.spec.external_traffic_policy == "Local"
    slices = state.slices(meta.namespace, meta.name)
    kinds = kinds_of(
        slices,
        family_of(service),
        by_node=local or external,
        by_subset=world.running.subsetting.by_zone,
    )
    client_locations = _client_locations(state, clients, lost)
    if not client_locations:
        raise WhatIfError(
            "there is no client: no Node takes Pods, or none of the Pods of --clients runs on a "
            "Node"
        )
    outside = None
    if reachable:
        entries = _of_nodes([node for node in state.nodes if is_working(node)])
        outside = shares(kinds, entries, local=external, way="outside")
    each_json, each_protobuf = _each(state, world, meta.namespace, meta.name)
    return Picture(
        slices=len(slices),
        kinds=kinds,
        client_locations=client_locations,
        loads=loads(kinds, client_locations, clients, remaining, local=local),
        outside=outside,
        each_json=each_json,
        each_protobuf=each_protobuf,
        distribution=service.spec.traffic_distribution or "",
        topology_mode=(service.metadata.annotations or {}).get(ANNOTATION_TOPOLOGY_MODE, ""),
        policy="Local" if local else "Cluster",
        watchers=world.audience.proxies + others,
    )


def _each(
    state: ClusterState, world: WhatIfWorld, namespace: str, name: str
) -> tuple[Fraction, Fraction]:
    json = protobuf = Fraction(0)
    total = 0
    for record in state.raw(EndpointSlices, namespace):
        if record.labels.get(LABEL_SERVICE_NAME) != name:
            continue
        number = len(decode(record.body, EndpointSlice).endpoints or ())
        total += number
        json += number * world.audience.count_watchers(record) * event_bytes(record.body, "json")
        protobuf += (
            number * world.audience.count_watchers(record) * event_bytes(record.body, "protobuf")
        )
    return json / max(total, 1), protobuf / max(total, 1)


def family_of(service: Service) -> Family | None:
    """Returns the IP family of a Service; the first of two, since the shares of the other are the
    same.
    """
    first = (service.spec.ip_families or ("",))[0]
    return next((family for family in FAMILIES if family == first), None)


def _client_locations(
    state: ClusterState, clients: Clients, lost: Collection[str]
) -> tuple[ClientLocation, ...]:
    working = [node for node in state.nodes if is_working(node) and _zone(node) not in lost]
    if clients.traffic:
        client_locations = at_zones(
            clients.traffic, [_locality(node) for node in working if takes_pods(node)]
        )
        for zone in lost:
            client_locations = without(client_locations, zone)
        return client_locations
    if not clients.selector:
        return _of_nodes([node for node in working if takes_pods(node)])
    selector = parse_labels(clients.selector)
    by_name = {node.metadata.name: node for node in working}
    return _of_nodes(
        [
            by_name[pod.spec.node_name]
            for pod in state.pods()
            if selector.matches(pod.metadata.labels or {})
            and pod.spec.node_name in by_name
            and pod.is_active
        ]
    )


def _of_nodes(nodes: Sequence[Node]) -> tuple[ClientLocation, ...]:
    return at_nodes([_locality(node) for node in nodes])


def _locality(node: Node) -> Locality:
    return Locality(node.metadata.name, _zone(node))


def _zone(node: Node) -> str:
    return (node.metadata.labels or {}).get(LABEL_ZONE, "")
