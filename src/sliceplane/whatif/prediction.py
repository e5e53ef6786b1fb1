"""The whole question: a state, changes, and where clients are in; what was, what would be, and what it takes, out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Final

from sliceplane.api.codec import decode
from sliceplane.api.core import Node, Service
from sliceplane.api.discovery import LABEL_SERVICE_NAME, LABEL_ZONE, EndpointSlice
from sliceplane.api.scheme import EndpointSlices, Services
from sliceplane.api.selectors.grammar import parse_labels
from sliceplane.api.service_rules import is_externally_accessible
from sliceplane.balancing.shares import (
    OVERLOAD,
    EndpointKind,
    Place,
    TrafficShares,
    at_nodes,
    at_zones,
    chance,
    cure,
    kinds_of,
    shares,
    without,
)
from sliceplane.controllers.emulation.pods import is_active
from sliceplane.estimate.wire import event_bytes
from sliceplane.explain.checks.zones import is_working, takes_pods
from sliceplane.kit.ip import FAMILIES, Family
from sliceplane.proxy.usable import Locality
from sliceplane.slices.shape import ANNOTATION_TOPOLOGY_MODE
from sliceplane.whatif.assumptions import assumptions
from sliceplane.whatif.changes import Changes, Running
from sliceplane.whatif.state import CannotTell, ClusterState
from sliceplane.whatif.world import SliceEvent, WhatIfWorld

CONNECTIONS_DEFAULT: Final = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Clients:
    """Where they are: on the Nodes (the default), where Pods of a *selector* are, or by *traffic* that was measured."""

    selector: str = ""
    traffic: Mapping[str, Fraction] = field(default_factory=dict)
    connections: int = CONNECTIONS_DEFAULT


@dataclass(frozen=True, slots=True, kw_only=True)
class Price:
    """``per_gb``: of what crosses zones, requests and answers together.  ``gigabytes``: measured, of both; 0: nobody
    measured."""

    per_gb: Fraction
    of: str
    gigabytes: Fraction = Fraction(0)


@dataclass(frozen=True, slots=True, kw_only=True)
class WhatIfQuestion:
    service: Service
    changes: Changes
    now: Running
    clients: Clients
    price: Price
    watchers: int = 0


@dataclass(frozen=True, slots=True)
class Written:
    """Of slices.  ``took_s``: until the last one, on virtual time."""

    creates: int = 0
    updates: int = 0
    deletes: int = 0
    events: int = 0
    json: int = 0
    protobuf: int = 0
    took_s: float = 0.0

    @property
    def writes(self) -> int:
        return self.creates + self.updates + self.deletes


@dataclass(frozen=True, slots=True, kw_only=True)
class Picture:
    """The Service at one moment.  ``each_json``: bytes to all watchers when one endpoint changes, the mean over them;
    ``fix``: Pods to add by zone so that none is overloaded, ``None``: adding does not help."""

    slices: int
    kinds: Counter[EndpointKind]
    places: tuple[Place, ...]
    shares: TrafficShares
    outside: TrafficShares | None
    each_json: Fraction
    each_protobuf: Fraction
    fix: Counter[str] | None
    distribution: str
    topology_mode: str
    policy: str
    watchers: int

    @property
    def ready(self) -> Counter[str]:
        found: Counter[str] = Counter()
        for kind, number in self.kinds.items():
            found[kind.zone] += number if kind.ready else 0
        return found

    @property
    def endpoints(self) -> int:
        return self.kinds.total()

    @property
    def clients(self) -> dict[str, Fraction]:
        """Their shares by zone."""
        zones = sorted({place.at.zone for place in self.places})
        return {
            zone: sum((place.share for place in self.places if place.at.zone == zone), Fraction(0)) for zone in zones
        }

    @property
    def zones(self) -> tuple[str, ...]:
        return tuple(sorted({kind.zone for kind in self.kinds} | {place.at.zone for place in self.places}))


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """``pending``: what controllers would write without any change.  ``stays``: shares if clients of a lost zone go on
    elsewhere."""

    question: WhatIfQuestion
    origin: str
    assumed: tuple[str, ...]
    pending: Written
    before: Picture
    after: Picture
    written: Written
    everything: Written
    #: those of this Service since *began*, in virtual time
    events: tuple[SliceEvent, ...]
    began: float
    stays: TrafficShares | None
    #: what the controller tells of this Service in Events
    notes: tuple[str, ...]
    #: how controllers run after the change
    running: Running
    state: ClusterState

    @property
    def bad_news(self) -> bool:
        """Connections are dropped, or an endpoint is overloaded, that were not."""
        return self.after.shares.dropped > self.before.shares.dropped or self.after.shares.greatest[0] > max(
            OVERLOAD, self.before.shares.greatest[0]
        )

    @property
    def chance(self) -> float | None:
        return chance(self.after.shares.candidates, self.question.clients.connections)


def predict(state: ClusterState, question: WhatIfQuestion) -> Prediction:
    """Raises ``CannotTell``."""
    service = question.service
    if not service.spec.selector:
        raise CannotTell(
            f"Service {service.metadata.key} has no selector: its slices are written by hand, and no change makes them"
        )
    world = WhatIfWorld(state, service, question.now, question.watchers)
    pending_s = world.settle()
    pending = _written(world.events, service.metadata.key, pending_s)
    before = _picture(world.state, world, question, ())
    world.events.clear()
    world.cluster.notes.clear()
    began = world.cluster.now
    world.apply(question.changes)
    took_s = world.settle()
    after_state = world.state
    after = _picture(after_state, world, question, question.changes.zones_lost)
    stays = None
    if question.changes.zones_lost:
        stays = shares(after.kinds, before.places, local=after.policy == "Local")
    return Prediction(
        question=question,
        origin=state.origin,
        assumed=assumptions(question, world, before.places, pending.writes),
        pending=pending,
        before=before,
        after=after,
        written=_written(world.events, service.metadata.key, took_s),
        everything=_written(world.events, "", took_s),
        events=tuple(event for event in world.events if event.service == service.metadata.key),
        began=began,
        stays=stays,
        notes=_notes(world, service),
        running=world.running,
        state=after_state,
    )


def _notes(world: WhatIfWorld, service: Service) -> tuple[str, ...]:
    """In their order, each once."""
    said = [
        f"{note.reason}: {note.note}"
        for note in world.cluster.notes
        if note.regarding_resource is Services and note.regarding.metadata.key == service.metadata.key
    ]
    return tuple(dict.fromkeys(said))


def _written(events: Sequence[SliceEvent], service: str, took_s: float) -> Written:
    """*service* "": of all."""
    counted = [event for event in events if service in ("", event.service)]
    verbs = Counter(event.verb for event in counted)
    return Written(
        verbs["create"],
        verbs["update"],
        verbs["delete"],
        sum(event.watchers for event in counted),
        sum(event.json for event in counted),
        sum(event.protobuf for event in counted),
        took_s if counted else 0.0,
    )


def _picture(state: ClusterState, world: WhatIfWorld, question: WhatIfQuestion, lost: Sequence[str]) -> Picture:
    meta = question.service.metadata
    service = state.service(meta.namespace, meta.name)
    local = service.spec.internal_traffic_policy == "Local"
    reachable = is_externally_accessible(service.spec.type, service.spec.external_ips)
    external = reachable and service.spec.external_traffic_policy == "Local"
    slices = state.slices(meta.namespace, meta.name)
    kinds = kinds_of(slices, family_of(service), by_node=local or external, by_subset=world.running.subsetting.by_zone)
    places = _places(state, question.clients, lost)
    if not places:
        raise CannotTell("there is no client: no Node takes Pods, or none of the Pods of --clients runs on a Node")
    outside = None
    if reachable:
        entries = _of_nodes([node for node in state.nodes if is_working(node)])
        outside = shares(kinds, entries, local=external, way="outside")
    each_json, each_protobuf = _each(state, world, meta.namespace, meta.name)
    return Picture(
        slices=len(slices),
        kinds=kinds,
        places=places,
        shares=shares(kinds, places, local=local),
        outside=outside,
        each_json=each_json,
        each_protobuf=each_protobuf,
        fix=cure(kinds, places, local=local),
        distribution=service.spec.traffic_distribution or "",
        topology_mode=(service.metadata.annotations or {}).get(ANNOTATION_TOPOLOGY_MODE, ""),
        policy="Local" if local else "Cluster",
        watchers=world.proxies + question.watchers,
    )


def _each(state: ClusterState, world: WhatIfWorld, namespace: str, name: str) -> tuple[Fraction, Fraction]:
    json = protobuf = Fraction(0)
    total = 0
    for record in state.raw(EndpointSlices, namespace):
        if record.labels.get(LABEL_SERVICE_NAME) != name:
            continue
        number = len(decode(record.body, EndpointSlice).endpoints or ())
        total += number
        json += number * world.watchers_of(record) * event_bytes(record.body, "json")
        protobuf += number * world.watchers_of(record) * event_bytes(record.body, "protobuf")
    return json / max(total, 1), protobuf / max(total, 1)


def family_of(service: Service) -> Family | None:
    """Of a Service with two, the first: the shares of the other are the same."""
    first = (service.spec.ip_families or ("",))[0]
    return next((family for family in FAMILIES if family == first), None)


def _places(state: ClusterState, clients: Clients, lost: Sequence[str]) -> tuple[Place, ...]:
    nodes = [node for node in state.nodes if takes_pods(node) and is_working(node)]
    if clients.traffic:
        places = at_zones(clients.traffic, [_locality(node) for node in nodes])
        for zone in lost:
            places = without(places, zone)
        return places
    if not clients.selector:
        return _of_nodes(nodes)
    selector = parse_labels(clients.selector)
    working = {node.metadata.name: node for node in state.nodes if is_working(node)}
    return _of_nodes([
        working[pod.spec.node_name]
        for pod in state.pods()
        if selector.matches(pod.metadata.labels or {}) and pod.spec.node_name in working and is_active(pod)
    ])  # fmt: skip


def _of_nodes(nodes: Sequence[Node]) -> tuple[Place, ...]:
    return at_nodes([_locality(node) for node in nodes])


def _locality(node: Node) -> Locality:
    return Locality(node.metadata.name, (node.metadata.labels or {}).get(LABEL_ZONE, ""))
