"""The rule by which endpoints may be used from a location, or not: one rule for every consumer.

Node proxies (``consume.model.categorize``), ``sliceplane trace`` (``diagnose.trace.reasons`` words
it) and clients (``consume.balancing.usable`` keeps it by differences) ask here, so that they cannot
disagree. Upstream's rule is in ``pkg/proxy/topology.go``; KEP-4444 and KEP-1669 describe it:

1. The policy ``Local`` admits the endpoints on this node, ``Cluster`` all.
2. Of these, the *ready* ones are used. ``Cluster`` narrows them by hints, all or nothing, and only
   where that leaves an endpoint: if every one names nodes and one names this node, to this node's;
   else if every one names zones and one names this zone, to the zone's. So a slice that is half-way
   through an update, or a node without a zone label, never empties a Service.
3. If none is ready, those are used that terminate and still serve, whatever their hints say.

The Service's trafficDistribution and its annotations have no part in it. Never: decides what
becomes of a packet for which no endpoint may be used; that is the consumer's.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import Enum
from operator import attrgetter
from typing import Generic, Literal, NamedTuple, Protocol, TypeVar

import msgspec

Policy = Literal["Cluster", "Local"]

#: what became of the hints of one kind. ``for others``: every ready endpoint has some, none of them
#: names this place; ``incomplete``: a ready endpoint has none; ``place unknown``: the node has no
#: name, or no zone; ``nobody ready``; ``not needed``: hints of the kind before were honoured
HintOutcome = Literal[
    "honoured", "for others", "incomplete", "place unknown", "nobody ready", "not needed"
]


class Locality(msgspec.Struct, frozen=True):
    """Where a consumer is.  An empty string is "unknown" and matches no hint."""

    node: str = ""
    zone: str = ""


class AnyEndpoint(Protocol):
    """The part of an endpoint that the rule reads. Absent conditions are already read as KEP-0752
    says: ready and serving are true, terminating is false.
    """

    @property
    def ready(self) -> bool: ...
    @property
    def serving(self) -> bool: ...
    @property
    def terminating(self) -> bool: ...
    @property
    def zone_hints(self) -> tuple[str, ...]: ...
    @property
    def node_hints(self) -> tuple[str, ...]: ...


class PlacedEndpoint(AnyEndpoint, Protocol):
    """One that says whether it is on this node."""

    @property
    def is_local(self) -> bool: ...


class HintUse(NamedTuple):
    """How hints for nodes and hints for zones were read."""

    node: HintOutcome
    zone: HintOutcome


E = TypeVar("E", bound=AnyEndpoint)
P = TypeVar("P", bound=PlacedEndpoint)


class Choice(NamedTuple, Generic[E]):
    """The endpoints that a policy leaves, in the order of the argument. ``hints`` is ``None`` where
    they do not count.
    """

    endpoints: tuple[E, ...]
    policy: Policy
    location: Locality
    hints: HintUse | None
    #: hints left out some that are ready
    narrowed: bool = False

    @property
    def falls_back(self) -> bool:
        """No endpoint is ready, and terminating ones are used."""
        return bool(self.endpoints) and not self.endpoints[0].ready


class Why(Enum):
    """The verdict of the rule on one endpoint. The first four are used."""

    READY = "ready"
    NODE_NAMED = "its hint names this node"
    ZONE_NAMED = "its hint names this zone"
    STILL_SERVING = "terminating and serving, and none is ready"
    NOT_LOCAL = "on another node, under the policy Local"
    NOT_READY = "not ready"
    STOPPED = "terminating, and serves no more"
    OTHERS_READY = "terminating and serving, and others are ready"
    OTHER_NODE_NAMED = "its hint names another node"
    OTHER_ZONE_NAMED = "its hint names another zone"

    @property
    def used(self) -> bool:
        return self in _USED


_USED = frozenset({Why.READY, Why.NODE_NAMED, Why.ZONE_NAMED, Why.STILL_SERVING})
_NOT_NEEDED = HintUse("nobody ready", "nobody ready")
_hints_of_nodes: Callable[[AnyEndpoint], tuple[str, ...]] = attrgetter("node_hints")
_hints_of_zones: Callable[[AnyEndpoint], tuple[str, ...]] = attrgetter("zone_hints")


def choose(endpoints: Sequence[E], location: Locality, *, honour_hints: bool = True) -> Choice[E]:
    """Under the policy ``Cluster``."""
    ready = tuple([endpoint for endpoint in endpoints if endpoint.ready])
    used = ready
    hints = _NOT_NEEDED if honour_hints else None
    if ready and honour_hints:
        of_zone: HintOutcome = "not needed"
        used, of_node = _naming(ready, location.node, _hints_of_nodes)
        if of_node != "honoured":
            used, of_zone = _naming(ready, location.zone, _hints_of_zones)
            used = used if of_zone == "honoured" else ready
        hints = HintUse(of_node, of_zone)
    # Hints never leave none of several ready endpoints, so where none is used, none is ready
    # anywhere.
    return Choice(
        used or _still_serving(endpoints), "Cluster", location, hints, len(used) != len(ready)
    )


def choose_local(endpoints: Sequence[P], location: Locality) -> Choice[P]:
    """Under the policy ``Local``."""
    here = [endpoint for endpoint in endpoints if endpoint.is_local]
    used = tuple([endpoint for endpoint in here if endpoint.ready])
    return Choice(used or _still_serving(here), "Local", location, None)


def why(endpoint: P, choice: Choice[P]) -> Why:
    """Why *endpoint*, one of those that the *choice* was made of, is used or is not."""
    if choice.policy == "Local" and not endpoint.is_local:
        return Why.NOT_LOCAL
    if not endpoint.ready:
        if not endpoint.terminating:
            return Why.NOT_READY
        if not endpoint.serving:
            return Why.STOPPED
        return Why.STILL_SERVING if choice.falls_back else Why.OTHERS_READY
    if choice.hints is not None and choice.hints.node == "honoured":
        return (
            Why.NODE_NAMED if choice.location.node in endpoint.node_hints else Why.OTHER_NODE_NAMED
        )
    if choice.hints is not None and choice.hints.zone == "honoured":
        return (
            Why.ZONE_NAMED if choice.location.zone in endpoint.zone_hints else Why.OTHER_ZONE_NAMED
        )
    return Why.READY


def is_still_serving(endpoint: AnyEndpoint) -> bool:
    """Returns True if *endpoint* may be used where none is ready (and it is not either)."""
    return endpoint.serving and endpoint.terminating


def outcome_of(location: str, *, every_one_names: bool, one_names_it: bool) -> HintOutcome:
    """Returns the outcome of the hints of one kind, for at least one ready endpoint.
    *every_one_names*: every ready endpoint names places of the kind; *one_names_it*: one names
    *location*.
    """
    if not location:
        return "place unknown"
    if not every_one_names:
        return "incomplete"
    return "honoured" if one_names_it else "for others"


def _still_serving(endpoints: Sequence[E]) -> tuple[E, ...]:
    return tuple([endpoint for endpoint in endpoints if is_still_serving(endpoint)])


def _naming(
    ready: tuple[E, ...], location: str, hints_of: Callable[[AnyEndpoint], tuple[str, ...]]
) -> tuple[tuple[E, ...], HintOutcome]:
    """Returns the endpoints that name *location*, and the outcome of the hints."""
    every_one_names = all(map(hints_of, ready))
    naming = (
        tuple([endpoint for endpoint in ready if location in hints_of(endpoint)])
        if location and every_one_names
        else ()
    )
    return naming, outcome_of(location, every_one_names=every_one_names, one_names_it=bool(naming))
