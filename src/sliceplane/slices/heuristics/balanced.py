"""``sliceplane.dev/Balanced``: endpoints serve their own zone first, and none is expected to carry
more than a given bound.

The model: a zone sends its ``share`` of the traffic evenly to the endpoints hinted for it. With n
endpoints, the load of an endpoint is measured in fair shares, 1 being the n-th part of all traffic;
the bound is ``1 + overload``. A zone with traffic ``t = share * n`` needs ``ceil(t / bound)``
endpoints.

1. A zone that lacks endpoints borrows exactly as many, from the zones that are then still least
   loaded. A borrowed endpoint serves only the borrower, as with topology-aware hints. All other
   zones keep their endpoints to themselves. No hints within the bound send less traffic out of its
   zone: each zone with too few endpoints has all of its own, and the fewest that it needs.
2. If zones together need more endpoints than there are (few endpoints, coarse numbers), some share;
   topology-aware hints give up at this point. Either endpoints serve several zones (``sharing``),
   or zones share all of theirs: the zone that lacks most is joined with the least loaded one, until
   the needs fit. All zones joined is plain even spreading with load 1, so this always ends. The
   cheaper of both is used.
3. A zone without traffic is added to endpoints that serve others, if it has none left.

Endpoints in a zone without ready Nodes, or without a zone, are lent first. Those that no group
needs go to the group with the highest load, since proxies ignore all hints of a Service if one
endpoint has none.

The overload is 20% unless the Service has the annotation ``sliceplane.dev/max-overload`` ("50%" or
"0.5"). The cost is O(zones), independent of the number of endpoints.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import ceil, floor
from typing import Final, Literal

from sliceplane.api.discovery import HINTS_MAX
from sliceplane.slices.heuristics.sharing import (
    EPSILON,
    Placement,
    ZoneGroup,
    cost_of,
    share_endpoints,
)
from sliceplane.slices.heuristics.types import (
    Allocation,
    HeuristicError,
    Portion,
    ServiceView,
    ZoneView,
)

ANNOTATION_MAX_OVERLOAD: Final = "sliceplane.dev/max-overload"
OVERLOAD_DEFAULT: Final = 0.2
OVERLOAD_MAX: Final = 100.0
#: halvings in the search for a pressure; the remainder is assigned one by one
_HALVINGS: Final = 60


@dataclass(slots=True)
class _Group:
    """Zones that share their endpoints; usually one. ``endpoints_by_zone``: number of endpoints
    that serve the group, by their zone.

    The group without names has the endpoints outside all zones with Nodes. Lenders have the same
    ``pressure`` on each endpoint that they keep, as far as possible: their traffic, or what they had.
    """

    names: tuple[str, ...]
    traffic: float
    endpoints_by_zone: dict[str, int]
    pressure: float

    @property
    def count(self) -> int:
        return sum(self.endpoints_by_zone.values())

    @property
    def load(self) -> float:
        """The expected load of its endpoints."""
        return _divided(self.traffic, self.count)

    def needs(self, bound: float) -> int:
        return ceil(self.traffic / bound - EPSILON)

    def surplus(self, bound: float) -> int:
        return max(0, self.count - self.needs(bound))


def _divided(traffic: float, endpoints: int) -> float:
    if endpoints > 0:
        return traffic / endpoints
    return float("inf") if traffic > EPSILON else 0.0


class Balanced:
    """A ``ZonalHeuristic``. *lends_evenly*: zones lend equal parts of their endpoints, as far as the
    bound allows, and not so that loads are equal: the traffic of each may become any other's.
    """

    name: Final = "sliceplane.dev/Balanced"
    kind: Literal["zonal"] = "zonal"

    def __init__(self, *, lends_evenly: bool = False) -> None:
        self._lends_evenly = lends_evenly

    def allocate(
        self, service: ServiceView, endpoints: Mapping[str, int], zones: tuple[ZoneView, ...]
    ) -> Allocation:
        bound = 1.0 + overload_of(service.annotations)
        total = sum(endpoints.values())
        whole = sum(zone.share for zone in zones)
        if whole <= 0:
            return {zone: (Portion(count, ()),) for zone, count in endpoints.items()}
        traffic = {zone.name: zone.share / whole * total for zone in zones}
        groups = [
            _own_group(zone, traffic[zone.name], endpoints, self._lends_evenly) for zone in zones
        ]
        if _needed(groups, bound) <= total:
            placement = _lent(groups, endpoints, bound)
        else:
            placement = _share(groups, endpoints, traffic, bound)
        if not any(names for by in placement.values() for names in by):
            return {zone: (Portion(count, ()),) for zone, count in endpoints.items()}
        _cover(placement, zones)
        return {zone: _portions(zone, placement[zone]) for zone in endpoints}


def _share(
    groups: list[_Group],
    endpoints: Mapping[str, int],
    traffic: Mapping[str, float],
    bound: float,
) -> Placement:
    """Returns the cheaper of two placements: endpoints that serve several zones, and joined
    zones.
    """
    total = sum(endpoints.values())
    joined = groups
    shared = None
    while shared is None and _needed(joined, bound) > total:
        shared = share_endpoints(
            [ZoneGroup(group.names, group.traffic) for group in joined], endpoints, traffic, bound
        )
        if shared is None:
            joined = _join(joined, bound)
    while _needed(joined, bound) > total:
        joined = _join(joined, bound)
    most = max(len(group.names) for group in joined)
    if len(joined) > 1 and most > HINTS_MAX:
        if shared is None:
            raise HeuristicError(
                f"{most} zones would have to share endpoints, and an endpoint can name {HINTS_MAX}"
            )
        return shared
    lent = _lent(joined, endpoints, bound)
    if shared is None:
        return lent
    return min((lent, shared), key=lambda placement: cost_of(placement, traffic))


def _needed(groups: list[_Group], bound: float) -> int:
    return sum(group.needs(bound) for group in groups)


def _lent(groups: list[_Group], endpoints: Mapping[str, int], bound: float) -> Placement:
    """Returns the placement of *groups*, whose needs fit, after they lent to one another."""
    if len(groups) < 2:
        # With one group for all zones, endpoints need no hints.
        return {zone: {(): count} for zone, count in endpoints.items()}
    names = {name for group in groups for name in group.names}
    others = {zone: count for zone, count in endpoints.items() if zone not in names}
    spare = _Group((), 0.0, others, 0.0)
    _lend([spare, *groups], bound)
    _lend_all(spare, max(groups, key=lambda group: (group.load, group.names)))
    return {
        zone: {
            group.names: group.endpoints_by_zone[zone]
            for group in groups
            if group.endpoints_by_zone.get(zone)
        }
        for zone in endpoints
    }


def _cover(placement: Placement, zones: tuple[ZoneView, ...]) -> None:
    """Adds each zone that no endpoint serves, which has no traffic so far, to its own endpoints, or
    else to those of its region, or else to all: consumers in it would ignore all hints. Changes
    *placement*.
    """
    region_by_zone = {zone.name: zone.region for zone in zones}
    for zone in zones:
        if any(zone.name in names for by in placement.values() for names in by):
            continue
        near = [other for other in placement if region_by_zone.get(other) == zone.region]
        for other in [zone.name] if zone.name in placement else near or list(placement):
            placement[other] = {
                tuple(sorted({*names, zone.name})) if len(names) < HINTS_MAX else names: count
                for names, count in placement[other].items()
            }


def overload_of(annotations: Mapping[str, str]) -> float:
    """Returns the part of a fair share that an endpoint may carry on top of it. Raises
    ``HeuristicError``.
    """
    text = annotations.get(ANNOTATION_MAX_OVERLOAD)
    if text is None:
        return OVERLOAD_DEFAULT
    try:
        value = float(text[:-1]) / 100 if text.endswith("%") else float(text)
    except ValueError:
        value = -1.0
    if not 0.0 <= value <= OVERLOAD_MAX:
        raise HeuristicError(
            f"{ANNOTATION_MAX_OVERLOAD} is {text!r}, not a part such as 20% or 0.2"
        )
    return value


def _own_group(
    zone: ZoneView, traffic: float, endpoints: Mapping[str, int], lends_evenly: bool
) -> _Group:
    count = endpoints.get(zone.name, 0)
    own = {zone.name: count} if count else {}
    return _Group((zone.name,), traffic, own, count if lends_evenly else traffic)


def _join(groups: list[_Group], bound: float) -> list[_Group]:
    """Joins the group that lacks most with the least loaded one. One group of all zones, with load
    1, always fits.
    """
    neediest = max(groups, key=lambda group: (group.needs(bound) - group.count, group.names))
    others = [group for group in groups if group is not neediest]
    partner = min(others, key=lambda group: (group.load, group.names))
    joined = _Group(
        tuple(sorted((*neediest.names, *partner.names))),
        neediest.traffic + partner.traffic,
        {**neediest.endpoints_by_zone, **partner.endpoints_by_zone},
        neediest.pressure + partner.pressure,
    )
    return [joined if group is neediest else group for group in groups if group is not partner]


def _lend(groups: list[_Group], bound: float) -> None:
    """Moves endpoints to groups that lack some. Changes *groups*."""
    shortages = [(group, group.needs(bound) - group.count) for group in groups]
    lacking = sum(amount for _, amount in shortages if amount > 0)
    loans: list[tuple[str, int]] = []
    for group, amount in zip(groups, _amounts(groups, lacking, bound), strict=True):
        loans += _take(group, amount)
    loans.reverse()  # taken from the end
    for group, amount in shortages:
        while amount > 0:
            zone, count = loans.pop()
            taken = min(count, amount)
            group.endpoints_by_zone[zone] = group.endpoints_by_zone.get(zone, 0) + taken
            amount -= taken
            if taken < count:
                loans.append((zone, count - taken))
    assert not loans, f"{loans} were lent and not taken"


def _amounts(groups: list[_Group], needed: int, bound: float) -> list[int]:
    """Returns how many endpoints each group lends, *needed* in all, so that the highest pressure on
    an endpoint of a lender is the least possible. Lenders keep a load of 1 or less, if that is
    enough.
    """
    amounts = [0] * len(groups)
    for index, group in enumerate(groups):
        if group.traffic <= EPSILON:  # lending does not increase its load
            amounts[index] = min(group.count, needed)
            needed -= amounts[index]
    lenders = [
        index
        for index, group in enumerate(groups)
        if group.traffic > EPSILON and group.surplus(bound)
    ]
    if sum(groups[index].surplus(1.0) for index in lenders) >= needed:
        bound = 1.0
    low = 0.0
    high = max((_divided(each.pressure, max(1, each.needs(bound))) for each in groups), default=0.0)
    for _ in range(_HALVINGS if needed else 0):
        most = (low + high) / 2
        if sum(_lendable(groups[index], most, bound) for index in lenders) < needed:
            low = most
        else:
            high = most
    for index in lenders if needed else ():
        amounts[index] = _lendable(groups[index], low, bound)
    for _ in range(needed - sum(amounts[index] for index in lenders)):
        able = [index for index in lenders if amounts[index] < groups[index].surplus(bound)]
        next_one = min(
            able,
            key=lambda index: (
                _divided(groups[index].pressure, groups[index].count - amounts[index] - 1),
                groups[index].names,
            ),
        )
        amounts[next_one] += 1
    return amounts


def _lendable(group: _Group, most: float, bound: float) -> int:
    """Returns how many endpoints *group* can lend without a pressure beyond *most*."""
    if most <= 0:
        return 0
    return max(0, min(group.surplus(bound), floor(group.count - group.pressure / most + EPSILON)))


def _take(group: _Group, amount: int) -> Iterator[tuple[str, int]]:
    """Takes *amount* endpoints out of *group* and yields their numbers, zone by zone."""
    for zone in sorted(group.endpoints_by_zone):
        taken = min(group.endpoints_by_zone[zone], amount)
        if taken:
            group.endpoints_by_zone[zone] -= taken
            amount -= taken
            yield zone, taken


def _lend_all(spare: _Group, to: _Group) -> None:
    for zone, count in _take(spare, spare.count):
        to.endpoints_by_zone[zone] = to.endpoints_by_zone.get(zone, 0) + count


def _portions(zone: str, by_names: Mapping[tuple[str, ...], int]) -> tuple[Portion, ...]:
    """Returns the portions of *zone*: those that serve it first, then the others by name."""
    ordered = sorted(by_names.items(), key=lambda item: (zone not in item[0], item[0]))
    return tuple(Portion(count, names) for names, count in ordered)
