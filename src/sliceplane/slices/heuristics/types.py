"""What a heuristic is asked, what it answers, and what holds for every answer.

Both sorts are values without state: the same question gets the same answer, in every process and at
any time. A heuristic that raises or answers nonsense costs its own Services their hints, and an
Event says so; nothing else.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Literal, Protocol

import msgspec

from sliceplane.api.discovery import HINTS_MAX
from sliceplane.kit.names import check_dns_subdomain, check_label_value

ENTRY_POINT_GROUP: Final = "sliceplane.slices.heuristics"


class HeuristicError(Exception):
    """The Service asks for something that the heuristic cannot do.  The text is a sentence for its
    owner.
    """


class ServiceView(msgspec.Struct, frozen=True, kw_only=True):
    """``annotations`` carry a heuristic's parameters."""

    namespace: str
    name: str
    annotations: Mapping[str, str] = msgspec.field(default_factory=dict)


class EndpointPlace(msgspec.Struct, frozen=True, kw_only=True):
    """One ready endpoint.  ``zone`` and ``region`` are "" where the Node does not say.

    ``topology_keys``: those of the Pod's ``topologySpreadConstraints``, in their order.
    """

    zone: str = ""
    region: str = ""
    node: str = ""
    topology_keys: tuple[str, ...] = ()


class ZoneView(msgspec.Struct, frozen=True, kw_only=True):
    """A zone with ready Nodes. ``share``: its part of their allocatable CPU, all zones together 1;
    it stands for the part of the clients that live there.
    """

    name: str
    region: str = ""
    share: float = 0.0


class Hints(msgspec.Struct, frozen=True):
    """Of one endpoint; empty: none.  At most ``HINTS_MAX`` of each."""

    zones: tuple[str, ...] = ()
    nodes: tuple[str, ...] = ()


class Portion(msgspec.Struct, frozen=True):
    """So many of a zone's endpoints get hints for these zones; without zones, none."""

    count: int
    zones: tuple[str, ...]


#: the zone of the endpoints -> what becomes of them; the counts add up to the zone's endpoints
Allocation = Mapping[str, tuple[Portion, ...]]


class LocalHeuristic(Protocol):
    """Looks at one endpoint at a time."""

    @property
    def name(self) -> str:
        """``domain/Name``, the value of ``trafficDistribution``."""

    @property
    def kind(self) -> Literal["local"]: ...

    def hints(
        self, service: ServiceView, endpoint: EndpointPlace, zones: tuple[ZoneView, ...]
    ) -> Hints:
        """*zones* are sorted by name.  Raises ``HeuristicError``."""


class ZonalHeuristic(Protocol):
    """Looks at how many ready endpoints each zone has."""

    @property
    def name(self) -> str: ...

    @property
    def kind(self) -> Literal["zonal"]: ...

    def allocate(
        self, service: ServiceView, endpoints: Mapping[str, int], zones: tuple[ZoneView, ...]
    ) -> Allocation:
        """*endpoints*: zone -> count, at least 1, in the order of zones; *zones* sorted by name.

        An endpoint's zone may be one without ready Nodes.  Raises ``HeuristicError``.
        """


Heuristic = LocalHeuristic | ZonalHeuristic


def problem_of_hints(hints: Hints) -> str:
    """Why these *hints* are no answer; "" if they are one.  What passes, an API server takes."""
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
    """Why *allocation* is no answer for *endpoints*; "" if it is one."""
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
