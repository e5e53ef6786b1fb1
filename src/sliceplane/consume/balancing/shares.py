"""The distribution of a Service's connections: shares by location of the client, by the rule of
``consume.usable``.

Endpoints that no rule tells apart are one *kind*, with a count: a choice that is made among kinds
is the choice among their endpoints. A *location* is where clients are, with its share of all
connections. Each endpoint that may be used from a location gets as many connections as any other.

The *load factor* of an endpoint is its share of all connections times the number of endpoints: 1 is
an even spread.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from fractions import Fraction
from math import ceil, log, sqrt
from typing import Final, Literal

import msgspec
from msgspec.structs import replace

from sliceplane.api.discovery import LABEL_FOR_ZONE, EndpointSlice
from sliceplane.consume.balancing.merge import EndpointMerge, PortChoice
from sliceplane.consume.usable import Locality, choose, choose_local, is_still_serving
from sliceplane.kit.ip import Family

#: an endpoint with so many times an even share is overloaded: upstream's threshold of topology mode
#: Auto, a constant (kubernetes/kubernetes#121516)
OVERLOAD: Final = Fraction(12, 10)
#: rounds of adding Pods before there is no cure
_ROUNDS_MAX: Final = 500

#: ``inside``: Pods that dial the cluster IP; ``outside``: what a load balancer or a node port
#: brings
Way = Literal["inside", "outside"]


class EndpointKind(msgspec.Struct, frozen=True, order=True):
    """``node`` is "" where no rule looks at it. ``subset``: the zone whose nodes alone read it; ""
    is all. ``is_local``: on the node that is looked at.
    """

    zone: str = ""
    node: str = ""
    ready: bool = True
    serving: bool = True
    terminating: bool = False
    zone_hints: tuple[str, ...] = ()
    node_hints: tuple[str, ...] = ()
    subset: str = ""
    is_local: bool = False


Kinds = Mapping[EndpointKind, int]


class AllowedLoad(msgspec.Struct, frozen=True):
    """The load that an endpoint may get: its *capacity*, as a share of all connections; ``None``:
    as ``OVERLOAD`` says.
    """

    capacity: Fraction | None = None

    def exceeded(self, result: TrafficShares) -> list[EndpointKind]:
        """Kinds whose endpoints get more."""
        most = self.of(result.candidates)
        return [kind for kind, share in result.each.items() if share > most]

    def of(self, candidates: int) -> Fraction:
        """The share of one of so many endpoints."""
        return OVERLOAD / max(candidates, 1) if self.capacity is None else self.capacity


class ClientLocation(msgspec.Struct, frozen=True):
    """A location with clients. ``share`` is of all connections."""

    at: Locality
    share: Fraction


class TrafficShares(msgspec.Struct, frozen=True):
    """``flows``: zone of the client, zone of the endpoint, share. ``each``: a kind's endpoint, its
    share of all. ``dropped``: for which no endpoint may be used.
    """

    flows: Mapping[tuple[str, str], Fraction]
    each: Mapping[EndpointKind, Fraction]
    dropped: Fraction
    #: endpoints that are used wherever the client is not looked at: those that are ready, else
    #: those still serving
    candidates: int

    def of_zone(self, zone: str) -> Fraction:
        """The share that comes to *zone*."""
        return sum((share for (_, to), share in self.flows.items() if to == zone), Fraction(0))

    @property
    def leaving(self) -> Fraction:
        """The share of connections that leave the client's zone, or for which one of both zones is
        unknown.
        """
        return sum(
            (share for (came, to), share in self.flows.items() if came != to or not came),
            Fraction(0),
        )

    def factor(self, kind: EndpointKind) -> Fraction:
        return self.each[kind] * self.candidates

    def load(self, zone: str) -> Fraction:
        """The greatest load factor of an endpoint in *zone*."""
        return max(
            (self.factor(kind) for kind in self.each if kind.zone == zone), default=Fraction(0)
        )

    @property
    def greatest(self) -> tuple[Fraction, str]:
        """The greatest load factor, and its zone; 0 where nothing is answered."""
        return max(
            ((self.factor(kind), kind.zone) for kind in self.each), default=(Fraction(0), "")
        )


def kinds_of(
    slices: Iterable[tuple[str, EndpointSlice]],
    family: Family | None,
    *,
    by_node: bool,
    by_subset: bool = False,
) -> Counter[EndpointKind]:
    """Returns the endpoints of *slices* (with their keys), each Pod once. *by_node*: a rule looks
    at nodes; *by_subset*: nodes read the slices for all and those for their zone.
    """
    merges: dict[str, EndpointMerge] = {}
    for key, item in slices:
        subset = (item.metadata.labels or {}).get(LABEL_FOR_ZONE, "") if by_subset else ""
        merges.setdefault(subset, merge_of_pods(family)).on_slice(key, item)
    return merged_kinds(merges, by_node=by_node)


def merge_of_pods(family: Family | None) -> EndpointMerge:
    """Each Pod once, whatever its ports."""
    return EndpointMerge(PortChoice(0), family)


def merged_kinds(merges: Mapping[str, EndpointMerge], *, by_node: bool) -> Counter[EndpointKind]:
    """As ``kinds_of``, of *merges* by subset."""
    nodes = by_node or any(
        endpoint.node_hints for merge in merges.values() for endpoint in merge.visible.values()
    )
    return Counter(
        EndpointKind(
            endpoint.zone,
            endpoint.node if nodes else "",
            endpoint.ready,
            endpoint.serving,
            endpoint.terminating,
            endpoint.zone_hints,
            endpoint.node_hints,
            subset,
        )
        for subset, merge in merges.items()
        for endpoint in merge.visible.values()
    )


def shares(
    kinds: Kinds, locations: Sequence[ClientLocation], *, local: bool = False, way: Way = "inside"
) -> TrafficShares:
    """Under the policy ``Local`` or ``Cluster``. From outside with ``Local``, only nodes that have
    an endpoint get connections, each as many as another: load balancers ask the nodes (*locations*
    are nodes then).
    """
    if way == "outside" and local:
        locations = _healthy(kinds, locations)
    flows: defaultdict[tuple[str, str], Fraction] = defaultdict(Fraction)
    each: defaultdict[EndpointKind, Fraction] = defaultdict(Fraction)
    dropped = Fraction(0)
    candidates = _LocalCandidates(kinds) if local else _Candidates(kinds)
    for location in _joined(locations, candidates):
        used = candidates.used(location.at)
        number = sum(kinds[kind] for kind in used)
        if not number:
            dropped += location.share
            continue
        for kind in used:
            each[kind] += location.share / number
            flows[location.at.zone, kind.zone] += location.share * kinds[kind] / number
    return TrafficShares(
        dict(sorted(flows.items())), dict(sorted(each.items())), dropped, _candidates(kinds)
    )


class _Candidates:
    """The kinds among which clients of a location choose. If every ready endpoint names nodes, only
    those that name the location's node may be used; other nodes are like the rest of their zone.
    """

    def __init__(self, kinds: Kinds) -> None:
        self._kinds = sorted(kinds)
        self._read: dict[str, list[EndpointKind]] = {}
        self._naming: dict[str, dict[str, list[EndpointKind]]] = {}

    def distinguishes_node(self, at: Locality) -> bool:
        """Returns True if a rule distinguishes the node of *at* from others of its zone."""
        return at.node in self._of(at.zone)

    def used(self, at: Locality) -> list[EndpointKind]:
        naming = self._of(at.zone)
        return list(choose(naming.get(at.node, self._read[at.zone]), at).endpoints)

    def _of(self, zone: str) -> dict[str, list[EndpointKind]]:
        """Returns the ready endpoints in *zone* whose hints name nodes, by node."""
        naming = self._naming.get(zone)
        if naming is None:
            naming = self._naming[zone] = {}
            self._read[zone] = [kind for kind in self._kinds if kind.subset in ("", zone)]
            ready = [kind for kind in self._read[zone] if kind.ready]
            if all(kind.node_hints for kind in ready):
                for kind in ready:
                    for node in dict.fromkeys(filter(None, kind.node_hints)):
                        naming.setdefault(node, []).append(kind)
        return naming


class _LocalCandidates:
    """Under the policy ``Local``: those on the node."""

    def __init__(self, kinds: Kinds) -> None:
        self._on: dict[str, list[EndpointKind]] = {}
        for kind in sorted(kinds):
            if kind.node:
                self._on.setdefault(kind.node, []).append(kind)

    def distinguishes_node(self, at: Locality) -> bool:
        return at.node in self._on

    def used(self, at: Locality) -> list[EndpointKind]:
        here = [msgspec.structs.replace(kind, is_local=True) for kind in self._on.get(at.node, ())]
        return [
            msgspec.structs.replace(kind, is_local=False)
            for kind in choose_local(here, at).endpoints
        ]


def _healthy(kinds: Kinds, locations: Sequence[ClientLocation]) -> list[ClientLocation]:
    """Returns the nodes that pass a load balancer's health check: those with a ready endpoint of
    their own.
    """
    ready = {kind.node for kind in kinds if kind.ready}
    healthy = [location for location in locations if location.at.node in ready]
    return [ClientLocation(location.at, Fraction(1, len(healthy))) for location in healthy]


def _joined(
    locations: Sequence[ClientLocation], candidates: _Candidates | _LocalCandidates
) -> Iterator[ClientLocation]:
    """Yields the locations, merged where no rule distinguishes them."""
    sums: defaultdict[tuple[str, str], Fraction] = defaultdict(Fraction)
    for location in locations:
        sums[
            location.at.node if candidates.distinguishes_node(location.at) else "", location.at.zone
        ] += location.share
    for (node, zone), share in sorted(sums.items()):
        if share:
            yield ClientLocation(Locality(node, zone), share)


def _candidates(kinds: Kinds) -> int:
    ready = sum(count for kind, count in kinds.items() if kind.ready)
    return ready or sum(count for kind, count in kinds.items() if is_still_serving(kind))


def ready_by_zone(kinds: Kinds) -> Counter[str]:
    """Returns the number of ready endpoints by zone; of zones with unready ones alone, 0."""
    ready: Counter[str] = Counter()
    for kind, number in kinds.items():
        ready[kind.zone] += number if kind.ready else 0
    return ready


def cure(
    kinds: Kinds,
    locations: Sequence[ClientLocation],
    *,
    local: bool = False,
    allowed: AllowedLoad | None = None,
) -> Counter[str] | None:
    """By zone, the Pods to add so that no endpoint is overloaded; each is like those that are. The
    fewest: a kind gets what it needs at the number of endpoints that there are, and again while
    others made that number grow; what another kind's new Pods made needless is taken back.
    ``None``: adding does not help.
    """
    allowed = allowed or AllowedLoad()
    grown = Counter(kinds)
    rounds = _ROUNDS_MAX
    while over := allowed.exceeded(result := shares(grown, locations, local=local)):
        rounds -= 1
        if not rounds:
            return None
        for kind in over:
            load = result.each[kind] * grown[kind]
            grown[kind] = max(grown[kind] + 1, ceil(load / allowed.of(result.candidates)))
    if allowed.capacity is not None and not local:
        # Kinds that are used together got more than they need together.
        while rounds and (spare := _needless(grown, kinds, locations, allowed)):
            rounds -= 1
            grown[spare] -= 1
    added: Counter[str] = Counter()
    for kind, number in (grown - Counter(kinds)).items():
        added[kind.zone] += number
    return added


def _needless(
    grown: Counter[EndpointKind],
    kinds: Kinds,
    locations: Sequence[ClientLocation],
    allowed: AllowedLoad,
) -> EndpointKind | None:
    """A kind of which one Pod that was added is not needed; of several the one with the most
    Pods.
    """
    for kind in sorted(grown - Counter(kinds), key=lambda kind: (-grown[kind], kind)):
        if not allowed.exceeded(shares(grown - Counter([kind]), locations)):
            return kind
    return None


def chance(endpoints: int, connections: int) -> float | None:
    """How many times its fair share the fullest of so many endpoints gets by chance alone, about: 1
    + sqrt(2 n ln n / m) (Raab and Steger, "Balls into Bins", 1998). ``None`` where connections are
    too few for it.
    """
    if endpoints < 2:
        return 1.0
    spread = endpoints * log(endpoints)
    return 1 + sqrt(2 * spread / connections) if connections > spread else None


def at_nodes(nodes: Sequence[Locality]) -> tuple[ClientLocation, ...]:
    """Clients on *nodes*, on each as many as on another."""
    return tuple(ClientLocation(node, Fraction(1, len(nodes))) for node in nodes)


def at_zones(
    weights: Mapping[str, Fraction], nodes: Sequence[Locality]
) -> tuple[ClientLocation, ...]:
    """Returns locations for shares of zones: a zone's share on its *nodes* in equal parts, or on
    none where it has none.
    """
    total = sum(weights.values(), Fraction(0))
    result: list[ClientLocation] = []
    for zone, weight in sorted(weights.items()):
        members = [node for node in nodes if node.zone == zone] or [Locality("", zone)]
        result += [
            ClientLocation(member, Fraction(weight) / total / len(members)) for member in members
        ]
    return tuple(result)


def without(locations: Sequence[ClientLocation], zone: str) -> tuple[ClientLocation, ...]:
    """*locations* without those of *zone*; the others' shares grow."""
    remaining = [location for location in locations if location.at.zone != zone and location.share]
    total = sum((location.share for location in remaining), Fraction(0))
    return tuple(replace(location, share=location.share / total) for location in remaining)
