"""The interface of heuristics: the facts that they get, their answers, and the rules for every
answer.

Both kinds are values without state: equal facts get equal answers, in every process and at any
time. A heuristic that raises, or whose answer is invalid, costs only its own Services their hints,
and an Event reports it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Literal, Protocol

import msgspec

from sliceplane.api.discovery import HINTS_MAX
from sliceplane.kit.names import check_dns_subdomain, check_label_value

ENTRY_POINT_GROUP: Final = "sliceplane.slices.heuristics"


class HeuristicError(Exception):
    """The Service requests something that the heuristic cannot do. The text is a sentence for its
    owner.
    """


class ServiceView(msgspec.Struct, frozen=True, kw_only=True):
    """The Service as a heuristic gets it. ``annotations`` contain a heuristic's parameters."""

    namespace: str
    name: str
    annotations: Mapping[str, str] = msgspec.field(default_factory=dict)


class EndpointLocation(msgspec.Struct, frozen=True, kw_only=True):
    """The location of one ready endpoint. ``zone`` and ``region`` are "" if the Node has no such
    label.

    ``topology_keys``: keys of the Pod's ``topologySpreadConstraints``, in their order.
    """

    zone: str = ""
    region: str = ""
    node: str = ""
    topology_keys: tuple[str, ...] = ()


class ZoneView(msgspec.Struct, frozen=True, kw_only=True):
    """A zone with ready Nodes. ``share``: its part of the CPU that is allocatable in all zones, 0
    to 1; an estimate of the part of the clients in it.
    """

    name: str
    region: str = ""
    share: float = 0.0


class Hints(msgspec.Struct, frozen=True):
    """The hints of one endpoint; empty for none. At most ``HINTS_MAX`` zones and nodes."""

    zones: tuple[str, ...] = ()
    nodes: tuple[str, ...] = ()


class Portion(msgspec.Struct, frozen=True):
    """A number of a zone's endpoints, and the zones that they are hinted for; without zones, no
    hints.
    """

    count: int
    zones: tuple[str, ...]


#: portions by the zone of the endpoints; the counts add up to the zone's endpoints
Allocation = Mapping[str, tuple[Portion, ...]]


class LocalHeuristic(Protocol):
    """A heuristic that gets one endpoint at a time."""

    @property
    def name(self) -> str:
        """``domain/Name``, the value of ``trafficDistribution``."""

    @property
    def kind(self) -> Literal["local"]: ...

    def hints(
        self, service: ServiceView, endpoint: EndpointLocation, zones: tuple[ZoneView, ...]
    ) -> Hints:
        """Returns the hints of *endpoint*. *zones* are sorted by name. Raises
        ``HeuristicError``.
        """


class ZonalHeuristic(Protocol):
    """A heuristic that gets the number of ready endpoints in each zone."""

    @property
    def name(self) -> str: ...

    @property
    def kind(self) -> Literal["zonal"]: ...

    def allocate(
        self, service: ServiceView, endpoints: Mapping[str, int], zones: tuple[ZoneView, ...]
    ) -> Allocation:
        """Returns the portions of each zone. *endpoints*: number by zone, at least 1, in the order
        of zones; *zones* are sorted by name.

        A zone of endpoints may have no ready Nodes. Raises ``HeuristicError``.
        """


Heuristic = LocalHeuristic | ZonalHeuristic


def problem_of_hints(hints: Hints) -> str:
    """Returns the reason why *hints* are invalid; "" if an API server accepts them."""
    for what, names, check in (
        ("zones", hints.zones, check_label_value),
        ("nodes", hints.nodes, check_dns_subdomain),
    ):
        listed: object = names
        if not isinstance(listed, tuple | list):
            return f"hinted {what} are {names!r}, not a tuple of names"
        if len(names) > HINTS_MAX:
            return f"{len(names)} {what} are hinted, {HINTS_MAX} are allowed"
        if len(set(names)) != len(names) or "" in names:
            return f"hinted {what} {list(names)} have an empty or a repeated name"
        for name in names:
            if check(name):
                return f"{name!r} cannot be the name of a {what[:-1]}: {check(name)[0]}"
    return ""


def problem_of_allocation(allocation: Allocation, endpoints: Mapping[str, int]) -> str:
    """Returns the reason why *allocation* is invalid for *endpoints*; "" if it is valid."""
    if set(allocation) != set(endpoints):
        return (
            f"the allocation is for zones {sorted(allocation)}, the endpoints are in "
            f"{sorted(endpoints)}"
        )
    for zone, portions in allocation.items():
        if any(type(portion.count) is not int for portion in portions):
            return f"the portions of zone {zone} are not whole numbers"
        total = sum(portion.count for portion in portions)
        if total != endpoints[zone] or any(portion.count < 0 for portion in portions):
            return f"the portions of zone {zone} add up to {total} of {endpoints[zone]} endpoints"
        for portion in portions:
            problem = problem_of_hints(Hints(zones=portion.zones))
            if problem:
                return problem
    return ""
