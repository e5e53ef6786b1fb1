"""Endpoints that serve several zones, for Services with few endpoints (``balanced``).

A zone with traffic t that is hinted on n endpoints puts a load of t / n on each of them, so this is
packing into bins: each endpoint carries at most the bound, and a group of zones places n equal
pieces on as many endpoints, its own first. Groups are placed one after the other. Each takes the
number of pieces with which the least of its traffic leaves its zones; endpoints that later groups
need are used last. The result depends on the order and on how widely a group spreads over its own
endpoints, so 4 * groups + 2 combinations are tried, with more than ``MOVED_MAX`` groups as many as
with these: each combination takes time by the square of zones.

This is a heuristic. Over random worlds of three zones with at most five endpoints each, the traffic
that leaves its zone is on average 0.3 points above the least possible, and more than one point above
it in one world of 25, mostly with a bound of 1.05 (a test compares with brute force).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import ceil
from typing import Final, NamedTuple

from sliceplane.api.discovery import HINTS_MAX

#: number of endpoints by hinted zones, by the zone of the endpoints
Placement = dict[str, dict[tuple[str, ...], int]]
#: groups, those with most traffic, whose places in the order are tried
MOVED_MAX: Final = 8
#: tolerance for sums of shares, which are floats
EPSILON: Final = 1e-9


class ZoneGroup(NamedTuple):
    """Zones that share all their endpoints, and their traffic in fair shares."""

    names: tuple[str, ...]
    traffic: float


class _Bin(NamedTuple):
    """Equal endpoints: zone, hinted zones, number, and load of each."""

    zone: str
    names: tuple[str, ...]
    size: int
    load: float


class Cost(NamedTuple):
    """The cost of a placement: fair shares of traffic that leave their zone, then the greatest load
    of an endpoint.
    """

    crossing: float
    load: float


def cost_of(placement: Placement, traffic: Mapping[str, float]) -> Cost:
    """Returns what consumers do that choose evenly among the endpoints hinted for their zone. A
    zone that no endpoint is hinted for uses all, as kube-proxy does.
    """
    portions = [(zone, *item) for zone, by in placement.items() for item in by.items()]
    total = sum(count for _, _, count in portions)
    hinted = dict.fromkeys(traffic, 0)
    own = dict.fromkeys(traffic, 0)
    ignored = any(not names and count for _, names, count in portions)
    for zone, names, count in portions:
        for name in traffic if ignored else names:
            hinted[name] = hinted.get(name, 0) + count
            own[name] = own.get(name, 0) + (count if name == zone else 0)
    lost = [zone for zone in traffic if not hinted[zone]]
    for zone in lost:
        hinted[zone] = total
        own[zone] = sum(placement.get(zone, {}).values())
    crossing = sum(part * (1 - own[zone] / hinted[zone]) for zone, part in traffic.items() if total)
    load = max(
        (
            sum(
                traffic.get(name, 0.0) / hinted[name]
                for name in {*(traffic if ignored else names), *lost}
            )
            for _, names, count in portions
            if count
        ),
        default=0.0,
    )
    return Cost(round(crossing, 9), round(load, 9))


def share_endpoints(
    groups: Sequence[ZoneGroup],
    endpoints: Mapping[str, int],
    traffic: Mapping[str, float],
    bound: float,
) -> Placement | None:
    """Returns the cheapest placement found in which no endpoint exceeds *bound*; ``None`` if no
    order of *groups* has one.
    """
    needing = [group for group in groups if group.traffic > EPSILON]
    found: list[Placement] = []
    for order in _orders(needing):
        for wide in (False, True):
            bins = _place_all(order, endpoints, bound, wide=wide)
            if bins is not None:
                found.append(_placement(bins, traffic))
    return min(found, key=lambda placement: cost_of(placement, traffic), default=None)


def _orders(groups: Sequence[ZoneGroup]) -> Iterator[list[ZoneGroup]]:
    """Yields *groups* by traffic, then that order with each of the largest moved to an end."""
    largest_first = sorted(groups, key=lambda group: (-group.traffic, group.names))
    yield largest_first
    for group in largest_first[:MOVED_MAX]:
        others = [other for other in largest_first if other is not group]
        yield [*others, group]
        yield [group, *others]


def _place_all(
    order: Sequence[ZoneGroup], endpoints: Mapping[str, int], bound: float, *, wide: bool
) -> list[_Bin] | None:
    bins = [_Bin(zone, (), count, 0.0) for zone, count in endpoints.items()]
    for index, group in enumerate(order):
        pieces = _pieces(group, bins, bound, wide=wide)
        if not pieces:
            return None
        reserved = {
            name: ceil(later.traffic / bound - EPSILON)
            for later in order[index + 1 :]
            for name in later.names
        }
        bins = _place(group, pieces, bins, bound, reserved)
    return bins


def _fits(group: ZoneGroup, piece: float, free: _Bin, bound: float) -> bool:
    return free.load + piece <= bound + EPSILON and len(free.names) + len(group.names) <= HINTS_MAX


def _pieces(group: ZoneGroup, bins: Sequence[_Bin], bound: float, *, wide: bool) -> int:
    """Returns the number of endpoints with which the least traffic leaves the group; 0 if the group
    cannot be placed. *wide*: all own endpoints, if none leaves.
    """
    loads = {free.load for free in bins if bound - free.load > EPSILON}
    numbers = {max(1, ceil(group.traffic / (bound - load) - EPSILON)) for load in loads}
    best, crossing = 0, group.traffic
    for pieces in sorted(numbers):
        fitting = [free for free in bins if _fits(group, group.traffic / pieces, free, bound)]
        own = sum(free.size for free in fitting if free.zone in group.names)
        if own >= pieces:
            return own if wide else pieces
        leaving = group.traffic * (pieces - own) / pieces
        if sum(free.size for free in fitting) >= pieces and (
            not best or leaving < crossing - EPSILON
        ):
            best, crossing = pieces, leaving
    return best


def _place(
    group: ZoneGroup,
    pieces: int,
    bins: Sequence[_Bin],
    bound: float,
    reserved: Mapping[str, int],
) -> list[_Bin]:
    """Returns *bins* with *pieces* of *group* on those that fit. *reserved*: endpoints that each
    zone still needs itself.
    """
    piece = group.traffic / pieces
    available = [
        0
        if not _fits(group, piece, free, bound)
        else free.size
        if free.load or free.zone in group.names
        else max(0, free.size - reserved.get(free.zone, 0))
        for free in bins
    ]
    order = sorted(
        range(len(bins)),
        key=lambda index: (
            bins[index].zone not in group.names,
            bins[index].load,
            -available[index],
            bins[index].zone,
            bins[index].names,
        ),
    )
    taken = [0] * len(bins)
    for amounts in (available, [free.size for free in bins]):
        for index in order:
            if _fits(group, piece, bins[index], bound):
                more = min(pieces - sum(taken), amounts[index] - taken[index])
                taken[index] += max(0, more)
    result = []
    for free, count in zip(bins, taken, strict=True):
        if count:
            names = tuple(sorted((*free.names, *group.names)))
            result.append(_Bin(free.zone, names, count, free.load + piece))
        if count < free.size:
            result.append(free._replace(size=free.size - count))
    return result


def _placement(bins: Sequence[_Bin], traffic: Mapping[str, float]) -> Placement:
    """Returns the placement of *bins*; endpoints without a hint serve their own zone, or the one
    with most traffic.
    """
    busiest = max(traffic, key=lambda zone: (traffic[zone], zone))
    placement: Placement = {}
    for free in bins:
        names = free.names or ((free.zone,) if free.zone in traffic else (busiest,))
        by_names = placement.setdefault(free.zone, {})
        by_names[names] = by_names.get(names, 0) + free.size
    return placement
