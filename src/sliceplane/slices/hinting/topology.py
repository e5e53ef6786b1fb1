"""The zones' shares of CPU for topology-mode ``Auto``, and the arithmetic of hints.

Everything is pure except ``ZoneShares``, which updates its sums incrementally. Numbers are whole: a
zone's share is its CPU divided by the sum of all, and every comparison is between products, so
rounding never decides where an endpoint goes.

Nothing here depends on slices. ``allocate`` and ``transfers`` are functions of counts by zone
alone; another heuristic would replace only these two.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

import msgspec

from sliceplane.api.core import Node
from sliceplane.kit.containers import adjust_count
from sliceplane.slices.facts import NodeFacts
from sliceplane.slices.heuristics.types import ZoneView

#: A zone may get 20% more traffic per endpoint than an even spread would give it. Enough for n
#: endpoints of a share is therefore ceil(n * share / 1.2) = ceil(5 * n * share / 6).
_ENOUGH: Final = (5, 6)
#: maximum number of cached allocations
_ALLOCATIONS_MAX: Final = 4096

NO_NODE_INFORMATION: Final = (
    "Insufficient Node information: allocatable CPU or zone not specified on one or more nodes"
)
NO_ZONE: Final = "One or more endpoints do not have a zone specified"
DISABLED: Final = "Topology Aware Hints has been disabled"
ENABLED: Final = "Topology Aware Hints has been enabled"

#: allocatable CPU in thousandths, by zone
Shares = Mapping[str, int]


class ZoneShares:
    """Allocatable CPU of each zone. Owned by ``SliceEngine``. A change of a Node costs O(1).

    Nodes that are not ready, or are part of the control plane, do not count. Any other Node without
    a zone or CPU makes the shares unknown for ``Auto``, since the origin of traffic is then
    unknown. Heuristics get the partial facts.
    """

    def __init__(self) -> None:
        self._cpu: dict[str, int] = {}
        self._nodes: dict[str, int] = {}
        self._nodes_without_share = 0
        #: for each zone with counted Nodes, even without CPU: number of Nodes by region, and CPU
        self._regions: dict[str, dict[str, int]] = {}
        self._cpu_by_zone: dict[str, int] = {}
        self._views: tuple[ZoneView, ...] | None = ()
        self._shares: Shares | None = None
        #: allocations of the present shares by number of endpoints: most Services vary between few
        #: numbers
        self._allocations: dict[int, Allocation] = {}

    def replace(self, old: NodeFacts | None, new: NodeFacts | None) -> bool:
        """Handles a Node that was added, changed or removed. Returns False if nothing
        here changed.
        """
        if old is not None and new is not None and old.topology == new.topology:
            return False
        return bool(self._add(old, -1)) | bool(self._add(new, 1))

    def _add(self, node: NodeFacts | None, step: int) -> bool:
        if node is None or not node.counted:
            return False
        self._shares = None
        self._allocations.clear()
        self._add_view(node, step)
        if not node.zone or not node.cpu_milli:
            self._nodes_without_share += step
            return True
        if adjust_count(self._nodes, node.zone, step):
            self._cpu[node.zone] = self._cpu.get(node.zone, 0) + step * node.cpu_milli
        else:
            del self._cpu[node.zone]
        return True

    def _add_view(self, node: NodeFacts, step: int) -> None:
        zone = node.zone
        region = node.view.region
        if not zone:
            return
        self._views = None
        regions = self._regions.setdefault(zone, {})
        adjust_count(regions, region, step)
        self._cpu_by_zone[zone] = self._cpu_by_zone.get(zone, 0) + step * node.cpu_milli
        if not regions:
            del self._regions[zone], self._cpu_by_zone[zone]

    @property
    def views(self) -> tuple[ZoneView, ...]:
        """The zones as heuristics get them; the same tuple until a change. A zone is in the region
        that most of its Nodes name.
        """
        if self._views is None:
            whole = sum(self._cpu_by_zone.values()) or 1
            self._views = tuple(
                ZoneView(
                    name=zone, region=_most_frequent(regions), share=self._cpu_by_zone[zone] / whole
                )
                for zone, regions in sorted(self._regions.items())
            )
        return self._views

    @property
    def shares(self) -> Shares:
        """Shares by zone, sorted; empty if they are unknown, or if there is only one zone."""
        if self._shares is None:
            has_shares = not self._nodes_without_share and len(self._cpu) > 1
            self._shares = dict(sorted(self._cpu.items())) if has_shares else {}
        return self._shares

    def allocation(self, total: int) -> Allocation:
        """Returns ``allocate`` for the present shares, cached."""
        allocation = self._allocations.get(total)
        if allocation is None:
            if len(self._allocations) >= _ALLOCATIONS_MAX:
                self._allocations.clear()
            allocation = self._allocations[total] = allocate(total, self.shares)
        return allocation


def zone_shares(nodes: Iterable[Node]) -> ZoneShares:
    """Returns the shares of the zones of *nodes*."""
    shares = ZoneShares()
    for node in nodes:
        shares.replace(None, NodeFacts(node))
    return shares


def _most_frequent(counts: Mapping[str, int]) -> str:
    """Returns the name with the highest count, the least of equals."""
    return min(counts, key=lambda name: (-counts[name], name))


class Allocation(msgspec.Struct, frozen=True):
    """The minimum number of endpoints that each zone needs, or the reason why there can be no hints
    (``problem``).
    """

    minimum: Mapping[str, int]
    problem: str = ""


def allocate(total: int, shares: Shares) -> Allocation:
    """Returns the allocation of *total* ready endpoints. Problems are worded as upstream, without
    the address type.
    """
    if not shares:
        return Allocation({}, NO_NODE_INFORMATION)
    if len(shares) > total:
        return Allocation({}, f"Insufficient number of endpoints {_size(total, shares)}")
    part = _ENOUGH[0] * total
    whole = _ENOUGH[1] * sum(shares.values())
    minimum = {zone: -(-part * cpu // whole) for zone, cpu in shares.items()}
    if sum(minimum.values()) > total:
        reason = (
            "Unable to allocate minimum required endpoints to each zone without exceeding "
            "overload threshold"
        )
        return Allocation({}, f"{reason} {_size(total, shares)}")
    return Allocation(minimum)


def _size(total: int, shares: Shares) -> str:
    return f"({total} endpoints, {len(shares)} zones)"


def is_sufficient(counts: Mapping[str, int], minimum: Mapping[str, int]) -> bool:
    """Returns True if an assignment may stay: each zone has enough endpoints, and no endpoint is
    for a zone that does not count.

    The minima also bound each zone from above, since a zone cannot have the endpoints that others
    need.
    """
    for zone, least in minimum.items():
        if counts.get(zone, 0) < least:
            return False
    return all(zone in minimum or not count for zone, count in counts.items())


def transfers(
    counts: Mapping[str, int], minimum: Mapping[str, int], shares: Shares
) -> tuple[dict[str, int], ...]:
    """Returns how many endpoints each zone must give, and how many each gets: from the largest
    surplus to the largest deficit, one at a time, until no move is worthwhile.

    A zone without a share gives all its endpoints. If the shares would leave a zone without enough,
    the minimum decides. The least name wins ties.
    """
    all_cpu = sum(shares.values())
    total = sum(counts.values())
    #: surplus of each zone over its share, times all CPU
    surplus = {
        zone: count * all_cpu
        for zone, count in sorted(counts.items())
        if count and zone not in shares
    }
    for zone, cpu in shares.items():
        surplus[zone] = counts.get(zone, 0) * all_cpu - max(total * cpu, minimum[zone] * all_cpu)
    moves = _Moves(surplus, {zone: counts.get(zone, 0) for zone in surplus}, all_cpu)
    for stray in [zone for zone in surplus if zone not in shares]:
        for _ in range(moves.now[stray]):
            moves.add(stray, min(shares, key=lambda zone: surplus[zone]))
    while True:
        giver = max(shares, key=lambda zone: surplus[zone])
        receiver = min(shares, key=lambda zone: surplus[zone])
        most = surplus[giver]
        least = -surplus[receiver]
        if 2 * most < all_cpu or 2 * least < all_cpu or (most < all_cpu and least < all_cpu):
            break
        moves.add(giver, receiver)
    while True:
        receiver = min(minimum, key=lambda zone: moves.now[zone] - minimum[zone])
        if moves.now[receiver] >= minimum[receiver]:
            break
        moves.add(max(minimum, key=lambda zone: moves.now[zone] - minimum[zone]), receiver)
    return moves.net()


class _Moves:
    """Moves of endpoints between zones. Each updates *surplus* and *now*, the counts."""

    def __init__(self, surplus: dict[str, int], now: dict[str, int], all_cpu: int) -> None:
        self._surplus = surplus
        self.now = now
        self._all_cpu = all_cpu
        self._net: dict[str, int] = {}

    def add(self, giver: str, receiver: str) -> None:
        for zone, step in ((giver, -1), (receiver, 1)):
            self._surplus[zone] += step * self._all_cpu
            self.now[zone] += step
            adjust_count(self._net, zone, step)

    def net(self) -> tuple[dict[str, int], dict[str, int]]:
        """Returns the number of endpoints that each zone gives, and that each gets,
        sorted by zone.
        """
        giving = {zone: -step for zone, step in sorted(self._net.items()) if step < 0}
        getting = {zone: step for zone, step in sorted(self._net.items()) if step > 0}
        return giving, getting
