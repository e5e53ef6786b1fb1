"""Hints of topology-mode ``Auto`` for one service and one address type (reference 2.1), kept by differences.

Every ready endpoint is hinted for one zone: its own, as long as each zone then has enough endpoints for its share of
CPU (``slices.topology``).  An assignment stays while it is good enough: an endpoint that comes, goes or flips costs
a comparison per zone.  Only when a zone falls short are endpoints moved, as few as bring all zones near their shares,
and out of as few slices as possible; so the next shortage is far.

What the slices say when a service is seen first is taken over, so that a restart moves nothing.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping
from typing import Final, NamedTuple

import msgspec

from sliceplane.slices.packer import Packer
from sliceplane.slices.topology import DISABLED, ENABLED, NO_ZONE, ZoneShares, holds, transfers

REASON_ENABLED: Final = "TopologyAwareHintsEnabled"
REASON_DISABLED: Final = "TopologyAwareHintsDisabled"
#: a problem that stays is told again by the next sync after this; servers keep Events for an hour
REPEAT_S: Final = 1800.0


class Notice(NamedTuple):
    """What an Event is to tell about a service."""

    warning: bool
    reason: str
    message: str


class _ForZone(msgspec.Struct):
    name: str = ""


class _Hints(msgspec.Struct, rename="camel"):
    for_zones: list[_ForZone] = []


class _Hinted(msgspec.Struct):
    hints: _Hints = msgspec.field(default_factory=_Hints)


class ZoneHints:
    """Owned by ``Members``, which tells it the zone of every ready endpoint and asks for the hint of each.

    ``active``: hints are given.  Otherwise ``problem`` says why not, in the words of the Event.
    """

    def __init__(self, address_type: str, zones: ZoneShares, *, was_active: bool = False) -> None:
        self._address_type = address_type
        self._zones = zones
        #: zone of each ready endpoint, by pod ("": it has none)
        self._own: dict[str, str] = {}
        self._zoneless = 0
        #: while active: the zone that each is hinted for, and how many each zone has
        self._given: dict[str, str] = {}
        self._counts: dict[str, int] = {}
        self.active = False
        self.problem = ""
        self._told_active = was_active
        self._told_problem = ""
        self._told_at = 0.0

    def set(self, pod: str, zone: str | None) -> str:
        """The endpoint of *pod* is ready and in *zone*; ``None``: it is not ready, or not there.  Gives the hint."""
        own = self._own.get(pod)
        if own == zone:
            return self._given.get(pod, "")
        if own is not None:
            del self._own[pod]
            self._zoneless -= not own
            if self.active:
                self._counts[self._given.pop(pod)] -= 1
        if zone is None:
            return ""
        self._own[pod] = zone
        self._zoneless += not zone
        if not self.active:
            return ""
        shares = self._zones.shares
        if zone and shares and zone not in shares:  # nobody asks from there
            zone = min(shares, key=lambda each: self._counts.get(each, 0) / shares[each])
        self._given[pod] = zone
        self._counts[zone] = self._counts.get(zone, 0) + 1
        return zone

    def get(self, pod: str) -> str:
        """The zone that the endpoint of *pod* is hinted for, "" for none."""
        return self._given.get(pod, "")

    # -- before a plan ----------------------------------------------------------------------------------

    @property
    def settled(self) -> bool:
        """What is given may stay as it is.  Costs O(zones)."""
        allocation = self._zones.allocation(len(self._own))
        problem = allocation.problem or (NO_ZONE if self._zoneless else "")
        if problem or not self.active:
            return bool(problem) and problem == self.problem and not self.active
        return holds(self._counts, allocation.minimum)

    def switch(self, packer: Packer) -> tuple[str, ...]:
        """Begin or cease to give hints, if that has to change; gives the pods concerned."""
        allocation = self._zones.allocation(len(self._own))
        self.problem = allocation.problem or (NO_ZONE if self._zoneless else "")
        if self.active is not bool(self.problem):
            return ()
        self.active = not self.problem
        self._given, self._counts = {}, {}
        if self.active:
            shares = self._zones.shares
            for pod, own in self._own.items():
                shown = _zone_shown(packer.stored(pod))
                zone = self._given[pod] = shown if shown in shares else own
                self._counts[zone] = self._counts.get(zone, 0) + 1
        return tuple(self._own)

    def rebalance(self, packer: Packer) -> tuple[str, ...]:
        """Move hints if a zone falls short; gives the pods concerned.  Costs O(endpoints) then, O(zones) else."""
        shares = self._zones.shares
        minimum = self._zones.allocation(len(self._own)).minimum if self.active else {}
        if not self.active or holds(self._counts, minimum):
            return ()
        giving, getting = transfers(self._counts, minimum, shares)
        movable: dict[str, list[Candidate]] = {}
        for pod in sorted(self._own):
            zone = self._given[pod]
            if zone in giving:
                movable.setdefault(packer.home_name(pod), []).append(Candidate(pod, self._own[pod], zone))
        moves = choose(movable, giving, getting, packer.changed_slices())
        for pod, zone in moves.items():
            self._counts[self._given[pod]] -= 1
            self._counts[zone] = self._counts.get(zone, 0) + 1
            self._given[pod] = zone
        return tuple(moves)

    # -- for people -------------------------------------------------------------------------------------

    def take_notices(self, now: float) -> tuple[Notice, ...]:
        """Each state is told when it begins; a problem again when its words change, or the Event could be gone."""
        if self.active and not self._told_active:
            self._told_active, self._told_problem = True, ""
            return (Notice(False, REASON_ENABLED, self._worded(ENABLED)),)
        if self.problem and (self.problem != self._told_problem or now - self._told_at >= REPEAT_S):
            self._told_active, self._told_problem, self._told_at = False, self.problem, now
            return (Notice(True, REASON_DISABLED, self._worded(self.problem)),)
        return ()

    def farewell(self) -> tuple[Notice, ...]:
        """The annotation went."""
        return (Notice(True, REASON_DISABLED, self._worded(DISABLED)),) if self._told_active else ()

    @property
    def told_active(self) -> bool:
        return self._told_active

    def _worded(self, message: str) -> str:
        return f"{message}, addressType: {self._address_type}"

    def check(self) -> None:
        assert self._zoneless == sum(not zone for zone in self._own.values()), f"{self._zoneless} without zone"
        assert self._given.keys() == (self._own.keys() if self.active else set()), "hints are not the ready endpoints"
        counts: dict[str, int] = {}
        for zone in self._given.values():
            counts[zone] = counts.get(zone, 0) + 1
        assert counts == {z: k for z, k in self._counts.items() if k}, f"counted {self._counts}, there are {counts}"


def _zone_shown(endpoint: bytes) -> str:
    """The one zone that an endpoint's JSON is hinted for; "" if it is not exactly one."""
    if b'"hints"' not in endpoint:
        return ""
    zones = msgspec.json.decode(endpoint, type=_Hinted).hints.for_zones
    return zones[0].name if len(zones) == 1 else ""


# -- which endpoints move -------------------------------------------------------------------------------


class Candidate(NamedTuple):
    """An endpoint that could be hinted for another zone than *given*; *own* is where it runs."""

    pod: str
    own: str
    given: str


def choose(
    movable: Mapping[str, list[Candidate]],
    giving: Mapping[str, int],
    getting: Mapping[str, int],
    free: frozenset[str],
) -> dict[str, str]:
    """Which pods are hinted for which other zone: as many as *giving* and *getting* say.

    *movable* is by slice ("": in none yet); those in *free* are written anyway.  Others are taken by how much they
    can give, most first: the fewest slices where one zone gives, and nearly that where several do.  Within a slice
    endpoints that come home go first, then those that are away already.
    """
    give = dict(giving)
    chosen: list[Candidate] = []

    def take(name: str) -> None:
        for each in sorted(movable[name], key=lambda c: (getting.get(c.own, 0) == 0, c.own == c.given, c.pod)):
            if give.get(each.given, 0):
                give[each.given] -= 1
                chosen.append(each)

    def use(name: str) -> int:
        counts: dict[str, int] = {}
        for each in movable[name]:
            counts[each.given] = counts.get(each.given, 0) + 1
        return sum(min(count, give.get(zone, 0)) for zone, count in counts.items())

    for name in sorted(movable):
        if not name or name in free:
            take(name)
    heap = [(-use(name), name) for name in sorted(movable) if name and name not in free]
    heapq.heapify(heap)
    while heap and any(give.values()):
        _, name = heapq.heappop(heap)
        now = use(name)
        if heap and -now > heap[0][0]:
            heapq.heappush(heap, (-now, name))  # others took what it would have given
        else:
            take(name)
    assert not any(give.values()), f"nobody can give {give}"
    return _send(chosen, dict(getting))


def _send(chosen: list[Candidate], get: dict[str, int]) -> dict[str, str]:
    """Each to its own zone if that gets any, the rest to where most are missing."""
    sent: dict[str, str] = {}
    for each in chosen:
        if get.get(each.own, 0):
            get[each.own] -= 1
            sent[each.pod] = each.own
    for each in chosen:
        if each.pod not in sent:
            zone = max(sorted(get), key=lambda zone: get[zone])
            get[zone] -= 1
            sent[each.pod] = zone
    return sent
