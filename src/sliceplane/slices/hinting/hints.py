"""Hints of topology-mode ``Auto`` for one Service and one address type, kept incrementally.

Every ready endpoint is hinted for one zone: its own, as long as each zone then has enough endpoints
for its share of CPU (``slices.hinting.topology``). An assignment stays while it is good enough: an
endpoint that is added, removed or changed costs a comparison for each zone. Endpoints are moved
only when a zone lacks some: as few as bring all zones near their shares, so that the next shortage
is far, from as few slices as possible.

The first plan takes over the hints of existing slices, so a restart moves nothing.
"""

from __future__ import annotations

from collections import Counter
from typing import ClassVar, Final

from sliceplane.slices.facts import zone_hint
from sliceplane.slices.heuristics.types import EndpointPlace
from sliceplane.slices.hinting.hint_policy import HintPolicy, Notice, zones_shown
from sliceplane.slices.hinting.moves import Movable, choose
from sliceplane.slices.hinting.topology import (
    DISABLED,
    ENABLED,
    NO_ZONE,
    ZoneShares,
    holds,
    transfers,
)
from sliceplane.slices.packing.packer import SlicePacker

REASON_ENABLED: Final = "TopologyAwareHintsEnabled"
REASON_DISABLED: Final = "TopologyAwareHintsDisabled"


class ZoneHints(HintPolicy):
    """A ``HintPolicy`` by shares of CPU. Problems are worded as upstream."""

    reason_enabled: ClassVar[str] = REASON_ENABLED
    reason_disabled: ClassVar[str] = REASON_DISABLED
    enabled_message: ClassVar[str] = ENABLED

    def __init__(self, address_type: str, zones: ZoneShares) -> None:
        super().__init__(address_type, told_active=False)
        self._zones = zones
        #: zone of each ready endpoint, by Pod; "" without a zone
        self._own: dict[str, str] = {}
        self._zoneless = 0
        #: while active: the hinted zone of each endpoint, and the number of endpoints for each zone
        self._given: dict[str, str] = {}
        self._counts: dict[str, int] = {}
        self._pieces: dict[str, bytes] = {}

    def set(self, pod: str, at: EndpointPlace | None) -> bytes:
        zone = None if at is None else at.zone
        own = self._own.get(pod)
        if own == zone:
            return self._piece(self._given.get(pod, ""))
        if own is not None:
            del self._own[pod]
            self._zoneless -= not own
            if self.active:
                self._counts[self._given.pop(pod)] -= 1
        if zone is None:
            return b""
        self._own[pod] = zone
        self._zoneless += not zone
        if not self.active:
            return b""
        shares = self._zones.shares
        if zone and shares and zone not in shares:  # the zone has no clients
            zone = min(shares, key=lambda zone: self._counts.get(zone, 0) / shares[zone])
        self._given[pod] = zone
        self._counts[zone] = self._counts.get(zone, 0) + 1
        return self._piece(zone)

    def _piece(self, zone: str) -> bytes:
        piece = self._pieces.get(zone)
        if piece is None:
            piece = self._pieces[zone] = zone_hint(zone)
        return piece

    # -- before a plan

    @property
    def settled(self) -> bool:
        allocation = self._zones.allocation(len(self._own))
        problem = allocation.problem or (NO_ZONE if self._zoneless else "")
        if problem or not self.active:
            return bool(problem) and problem == self.problem and not self.active
        return holds(self._counts, allocation.minimum)

    def switch(self, packer: SlicePacker) -> tuple[str, ...]:
        allocation = self._zones.allocation(len(self._own))
        self.problem = allocation.problem or (NO_ZONE if self._zoneless else "")
        if self.active is not bool(self.problem):
            return ()
        self.active = not self.problem
        self._given = {}
        self._counts = {}
        if self.active:
            shares = self._zones.shares
            for pod, own in self._own.items():
                shown = zones_shown(packer.stored(pod))
                zone = self._given[pod] = (
                    shown[0] if len(shown) == 1 and shown[0] in shares else own
                )
                self._counts[zone] = self._counts.get(zone, 0) + 1
        return tuple(self._own)

    def rebalance(self, packer: SlicePacker) -> tuple[str, ...]:
        """Moves hints if a zone lacks endpoints. Costs O(endpoints) then, O(zones) otherwise."""
        shares = self._zones.shares
        minimum = self._zones.allocation(len(self._own)).minimum if self.active else {}
        if not self.active or holds(self._counts, minimum):
            return ()
        giving, getting = transfers(self._counts, minimum, shares)
        movable: dict[str, list[Movable[str]]] = {}
        for pod in sorted(self._own):
            zone = self._given[pod]
            if zone in giving:
                movable.setdefault(packer.home_name(pod), []).append(
                    Movable(pod, self._own[pod], zone)
                )
        moves = choose(movable, giving, getting, packer.changed_slices())
        for pod, zone in moves.items():
            self._counts[self._given[pod]] -= 1
            self._counts[zone] = self._counts.get(zone, 0) + 1
            self._given[pod] = zone
        return tuple(moves)

    def farewell(self) -> tuple[Notice, ...]:
        return (Notice(True, REASON_DISABLED, self._worded(DISABLED)),) if self._told_active else ()

    def check(self) -> None:
        assert self._zoneless == sum(not zone for zone in self._own.values()), (
            f"{self._zoneless} without zone"
        )
        assert self._given.keys() == (self._own.keys() if self.active else set()), (
            "hints are not the ready endpoints"
        )
        counts = Counter(self._given.values())
        assert counts == Counter(self._counts), f"counted {self._counts}, there are {counts}"
