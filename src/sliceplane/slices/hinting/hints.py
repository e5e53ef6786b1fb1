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
from sliceplane.slices.heuristics.types import EndpointLocation
from sliceplane.slices.hinting.hint_policy import HintPolicy, Notice, hinted_zones
from sliceplane.slices.hinting.moves import Movable, choose_moves
from sliceplane.slices.hinting.topology import (
    DISABLED,
    ENABLED,
    NO_ZONE,
    ZoneShares,
    is_sufficient,
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
        super().__init__(address_type, reported_active=False)
        self._zones = zones
        #: zone of each ready endpoint, by Pod; "" without a zone
        self._zone_by_pod: dict[str, str] = {}
        self._zoneless = 0
        #: while active: the hinted zone of each endpoint, and the number of endpoints for each zone
        self._hinted: dict[str, str] = {}
        self._counts: dict[str, int] = {}
        self._pieces: dict[str, bytes] = {}

    def set(self, pod: str, location: EndpointLocation | None) -> bytes:
        zone = None if location is None else location.zone
        own = self._zone_by_pod.get(pod)
        if own == zone:
            return self._piece(self._hinted.get(pod, ""))
        if own is not None:
            del self._zone_by_pod[pod]
            self._zoneless -= not own
            if self.active:
                self._counts[self._hinted.pop(pod)] -= 1
        if zone is None:
            return b""
        self._zone_by_pod[pod] = zone
        self._zoneless += not zone
        if not self.active:
            return b""
        shares = self._zones.shares
        if zone and shares and zone not in shares:  # the zone has no clients
            zone = min(shares, key=lambda zone: self._counts.get(zone, 0) / shares[zone])
        self._hinted[pod] = zone
        self._counts[zone] = self._counts.get(zone, 0) + 1
        return self._piece(zone)

    def _piece(self, zone: str) -> bytes:
        piece = self._pieces.get(zone)
        if piece is None:
            piece = self._pieces[zone] = zone_hint(zone)
        return piece

    # -- before a plan

    @property
    def is_converged(self) -> bool:
        allocation = self._zones.allocation(len(self._zone_by_pod))
        problem = allocation.problem or (NO_ZONE if self._zoneless else "")
        if problem or not self.active:
            return bool(problem) and problem == self.problem and not self.active
        return is_sufficient(self._counts, allocation.minimum)

    def switch(self, packer: SlicePacker) -> tuple[str, ...]:
        allocation = self._zones.allocation(len(self._zone_by_pod))
        self.problem = allocation.problem or (NO_ZONE if self._zoneless else "")
        if self.active is not bool(self.problem):
            return ()
        self.active = not self.problem
        self._hinted = {}
        self._counts = {}
        if self.active:
            shares = self._zones.shares
            for pod, own in self._zone_by_pod.items():
                hinted = hinted_zones(packer.stored(pod))
                zone = self._hinted[pod] = (
                    hinted[0] if len(hinted) == 1 and hinted[0] in shares else own
                )
                self._counts[zone] = self._counts.get(zone, 0) + 1
        return tuple(self._zone_by_pod)

    def rebalance(self, packer: SlicePacker, now: float) -> tuple[str, ...]:
        """Moves hints if a zone lacks endpoints. Costs O(endpoints) then, O(zones) otherwise."""
        shares = self._zones.shares
        minimum = self._zones.allocation(len(self._zone_by_pod)).minimum if self.active else {}
        if not self.active or is_sufficient(self._counts, minimum):
            return ()
        giving, getting = transfers(self._counts, minimum, shares)
        movable: dict[str, list[Movable[str]]] = {}
        for pod in sorted(self._zone_by_pod):
            zone = self._hinted[pod]
            if zone in giving:
                movable.setdefault(packer.home_name(pod), []).append(
                    Movable(pod, self._zone_by_pod[pod], zone)
                )
        moves = choose_moves(movable, giving, getting, packer.changed_slices())
        for pod, zone in moves.items():
            self._counts[self._hinted[pod]] -= 1
            self._counts[zone] = self._counts.get(zone, 0) + 1
            self._hinted[pod] = zone
        return tuple(moves)

    def final_notices(self) -> tuple[Notice, ...]:
        return (
            (Notice(True, REASON_DISABLED, self._message(DISABLED)),)
            if self._reported_active
            else ()
        )

    def check(self) -> None:
        assert self._zoneless == sum(not zone for zone in self._zone_by_pod.values()), (
            f"{self._zoneless} without zone"
        )
        assert self._hinted.keys() == (self._zone_by_pod.keys() if self.active else set()), (
            "hints are not the ready endpoints"
        )
        counts = Counter(self._hinted.values())
        assert counts == Counter(self._counts), f"counted {self._counts}, there are {counts}"
