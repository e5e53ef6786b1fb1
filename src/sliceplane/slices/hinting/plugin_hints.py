"""Hints by a heuristic (``trafficDistribution: domain/Name``) for one Service and one address type.

*Local* heuristics are queried once for each distinct location, not for each endpoint: a Pod that
changes, or is replaced by one at the same location, costs a look-up. A change of zones queries each
location anew.

*Zonal* heuristics are queried when the number of ready endpoints of a zone changed. The portion of
each endpoint is kept: a new endpoint gets the portion that lacks most, and others move only as the
new allocation requires, within their zone. They come from slices that are written anyway if these
suffice, else from the fewest slices. The first plan takes over the hints of existing slices.

A failure of a heuristic is a ``problem``: the Service's endpoints then have no hints.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import ClassVar, Final

from msgspec.structs import astuple

from sliceplane.kit.containers import adjust_count
from sliceplane.kit.ip import Family
from sliceplane.slices.facts import hint_piece
from sliceplane.slices.heuristics.asking import Find, Portions, ask_local, ask_zonal
from sliceplane.slices.heuristics.types import (
    EndpointPlace,
    Heuristic,
    LocalHeuristic,
    ServiceView,
    ZonalHeuristic,
    ZoneView,
)
from sliceplane.slices.hinting.hint_policy import HintPolicy, zones_shown
from sliceplane.slices.hinting.hints import ZoneHints
from sliceplane.slices.hinting.moves import Movable, pick
from sliceplane.slices.hinting.topology import ZoneShares
from sliceplane.slices.packing.packer import SlicePacker
from sliceplane.slices.shape import HintMode, ServiceShape

REASON_ENABLED: Final = "TrafficDistributionEnabled"
REASON_FAILED: Final = "TrafficDistributionFailed"
REASON_UNSUPPORTED: Final = "TrafficDistributionUnsupported"

_Names = tuple[str, ...]


def hint_policies(
    shape: ServiceShape, families: Iterable[Family], zones: ZoneShares, find: Find
) -> dict[Family, HintPolicy]:
    """Returns the policy of each address type; empty if hints depend on one endpoint alone."""
    if shape.hints is HintMode.AUTO:
        return {family: ZoneHints(family, zones) for family in families}
    if shape.hints is HintMode.PLUGIN:
        heuristic = find(shape.distribution)
        view = shape.view
        return {family: policy_of(heuristic, view, family, zones) for family in families}
    return {}


def policy_of(
    heuristic: Heuristic | str, service: ServiceView, address_type: str, zones: ZoneShares
) -> HintPolicy:
    """Returns the policy for *heuristic*, which is a heuristic or the reason why there is none."""
    if isinstance(heuristic, str):
        return Unsupported(address_type, heuristic)
    if heuristic.kind == "local":
        return LocalHints(address_type, heuristic, service, zones)
    return ZonalHints(address_type, heuristic, service, zones)


class _PluginPolicy(HintPolicy):
    """A policy of heuristics. It reports the start of hints only after it reported that there are
    none.
    """

    reason_enabled: ClassVar[str] = REASON_ENABLED
    reason_disabled: ClassVar[str] = REASON_FAILED
    enabled_message: ClassVar[str] = "hints are given again"

    def __init__(self, address_type: str, name: str) -> None:
        super().__init__(address_type, told_active=True)
        self._name = name

    def inherit(self, earlier: HintPolicy) -> None:
        if isinstance(earlier, _PluginPolicy) and earlier._name == self._name:
            self._told_active = earlier._told_active
            self._told_problem = earlier._told_problem
            self._told_at = earlier._told_at

    def _worded(self, message: str) -> str:
        return super()._worded(f"{self._name}: {message}")


class Unsupported(_PluginPolicy):
    """The policy for a name that no heuristic has."""

    reason_disabled: ClassVar[str] = REASON_UNSUPPORTED

    def __init__(self, address_type: str, problem: str) -> None:
        super().__init__(address_type, problem)
        self.problem = problem

    @property
    def settled(self) -> bool:
        return True

    def set(self, pod: str, at: EndpointPlace | None) -> bytes:
        return b""

    def switch(self, packer: SlicePacker) -> tuple[str, ...]:
        return ()

    def rebalance(self, packer: SlicePacker) -> tuple[str, ...]:
        return ()

    def check(self) -> None:
        assert not self.active, "hints without a heuristic"

    def _worded(self, message: str) -> str:
        return message  # the same for every address type


class LocalHints(_PluginPolicy):
    """Hints by a local heuristic. Active from the start: an endpoint's hints do not wait for
    others.
    """

    def __init__(
        self, address_type: str, heuristic: LocalHeuristic, service: ServiceView, zones: ZoneShares
    ) -> None:
        super().__init__(address_type, heuristic.name)
        self._heuristic = heuristic
        self._service = service
        self._zones = zones
        self.active = True
        self._at: dict[str, EndpointPlace] = {}
        #: for each location with ready endpoints: their number, and the answer, which is hints or a
        #: problem
        self._users: dict[EndpointPlace, int] = {}
        self._pieces: dict[EndpointPlace, bytes] = {}
        self._faults: dict[EndpointPlace, str] = {}
        #: the zones for which the answers are valid
        self._asked: tuple[ZoneView, ...] = zones.views
        #: locations whose answer changed with the zones, until their endpoints are rebuilt
        self._changed: dict[EndpointPlace, None] = {}

    def set(self, pod: str, at: EndpointPlace | None) -> bytes:
        known = self._at.get(pod)
        if known != at:
            if known is not None:
                self._leave(pod, known)
            if at is not None:
                self._at[pod] = at
                if adjust_count(self._users, at, 1) == 1:
                    self._ask(at)
        return self._pieces.get(at, b"") if at is not None and self.active else b""

    def _leave(self, pod: str, known: EndpointPlace) -> None:
        del self._at[pod]
        if not adjust_count(self._users, known, -1):
            self._pieces.pop(known, None)
            self._faults.pop(known, None)
            self._changed.pop(known, None)

    def _ask(self, at: EndpointPlace) -> None:
        hints = ask_local(self._heuristic, self._service, at, self._asked)
        self._pieces.pop(at, None)
        self._faults.pop(at, None)
        if isinstance(hints, str):
            self._faults[at] = hints
        else:
            self._pieces[at] = hint_piece(hints.zones, hints.nodes)

    @property
    def settled(self) -> bool:
        if self._zones.views != self._asked:
            self._asked = self._zones.views
            for at in self._users:
                before = self._pieces.get(at)
                self._ask(at)
                if self._pieces.get(at) != before:
                    self._changed[at] = None
        problem = self._present_problem()
        return problem == self.problem and self.active is not bool(problem) and not self._changed

    def _present_problem(self) -> str:
        return self._faults[min(self._faults, key=astuple)] if self._faults else ""

    def switch(self, packer: SlicePacker) -> tuple[str, ...]:
        self.problem = self._present_problem()
        changed = self._changed
        self._changed = {}
        if self.active is bool(self.problem):
            self.active = not self.problem
            return tuple(self._at)
        return (
            tuple(pod for pod, at in self._at.items() if at in changed)
            if self.active and changed
            else ()
        )

    def rebalance(self, packer: SlicePacker) -> tuple[str, ...]:
        return ()

    def check(self) -> None:
        users = Counter(self._at.values())
        assert users == self._users, f"counted {self._users}, there are {users}"
        answered = [*self._pieces, *self._faults]
        assert len(answered) == len(users) and set(answered) == users.keys(), (  # noqa: PT018
            f"answers for {answered}, not {users}"
        )


class ZonalHints(_PluginPolicy):
    """Hints by a zonal heuristic. Inactive until the first plan, which takes over the hints of
    existing slices.
    """

    def __init__(
        self, address_type: str, heuristic: ZonalHeuristic, service: ServiceView, zones: ZoneShares
    ) -> None:
        super().__init__(address_type, heuristic.name)
        self._heuristic = heuristic
        self._service = service
        self._zones = zones
        #: zone of each ready endpoint by Pod, and number of endpoints by zone, without zeros
        self._own: dict[str, str] = {}
        self._counts: dict[str, int] = {}
        #: while active: the hinted zones of each endpoint, and the number of endpoints with each,
        #: without zeros
        self._given: dict[str, _Names] = {}
        self._placed: Portions = {}
        #: the last query and its answer
        self._asked_counts: dict[str, int] | None = None
        self._asked_zones: tuple[ZoneView, ...] = ()
        self._answer: Portions | str = {}
        self._pieces: dict[_Names, bytes] = {}

    def set(self, pod: str, at: EndpointPlace | None) -> bytes:
        zone = None if at is None else at.zone
        own = self._own.get(pod)
        if own == zone:
            return self._piece(self._given.get(pod, ()))
        if own is not None:
            del self._own[pod]
            adjust_count(self._counts, own, -1)
            if self.active:
                self._place(own, self._given.pop(pod), -1)
        if zone is None:
            return b""
        self._own[pod] = zone
        adjust_count(self._counts, zone, 1)
        if not self.active:
            return b""
        portion = self._given[pod] = self._lacking(zone)
        self._place(zone, portion, 1)
        return self._piece(portion)

    def _lacking(self, zone: str) -> _Names:
        """Returns the portion of *zone* that lacks most endpoints of the last allocation; the first
        of equals.
        """
        wanted = {} if isinstance(self._answer, str) else self._answer.get(zone, {})
        placed = self._placed.get(zone, {})
        return max(wanted, key=lambda names: wanted[names] - placed.get(names, 0), default=())

    def _place(self, zone: str, portion: _Names, step: int) -> None:
        mine = self._placed.setdefault(zone, {})
        adjust_count(mine, portion, step)
        if not mine:
            del self._placed[zone]

    def _piece(self, names: _Names) -> bytes:
        piece = self._pieces.get(names)
        if piece is None:
            piece = self._pieces[names] = hint_piece(names)
        return piece

    # -- before a plan

    def _ask(self) -> Portions | str:
        """Returns the heuristic's answer for the present counts. Queries it only after a change of
        counts or zones.
        """
        if self._asked_counts != self._counts or self._asked_zones != self._zones.views:
            self._asked_counts = dict(sorted(self._counts.items()))
            self._asked_zones = self._zones.views
            self._answer = {}
            self._pieces.clear()
            if self._asked_counts:
                self._answer = ask_zonal(
                    self._heuristic, self._service, self._asked_counts, self._asked_zones
                )
        return self._answer

    @property
    def settled(self) -> bool:
        portions = self._ask()
        if isinstance(portions, str):
            return portions == self.problem and not self.active
        return self.active and portions == self._placed

    def switch(self, packer: SlicePacker) -> tuple[str, ...]:
        portions = self._ask()
        self.problem = portions if isinstance(portions, str) else ""
        if self.active is not bool(self.problem):
            return ()
        self.active = not self.problem
        self._given = {}
        self._placed = {}
        if not isinstance(portions, str):
            for pod in sorted(self._own):
                zone = self._own[pod]
                shown = zones_shown(packer.stored(pod))
                if self._placed.get(zone, {}).get(shown, 0) < portions[zone].get(shown, 0):
                    self._given[pod] = shown
                    self._place(zone, shown, 1)
            for pod in sorted(self._own.keys() - self._given.keys()):
                portion = self._given[pod] = self._lacking(self._own[pod])
                self._place(self._own[pod], portion, 1)
        return tuple(self._own)

    def rebalance(self, packer: SlicePacker) -> tuple[str, ...]:
        """Moves endpoints to other portions if necessary. Costs O(endpoints) then, O(zones)
        otherwise.
        """
        portions = self._ask()
        if isinstance(portions, str) or portions == self._placed:
            return ()
        giving: dict[tuple[str, _Names], int] = {}
        getting: dict[tuple[str, _Names], int] = {}
        for zone, portion, more in self._differences(portions):
            (getting if more > 0 else giving)[zone, portion] = abs(more)
        movable: dict[str, list[Movable[tuple[str, _Names]]]] = {}
        for pod in sorted(self._own):
            zone = self._own[pod]
            portion = self._given[pod]
            if (zone, portion) in giving:
                home = (zone, (zone,))
                movable.setdefault(packer.home_name(pod), []).append(
                    Movable(pod, home, (zone, portion))
                )
        moved = pick(movable, giving, getting, packer.changed_slices())
        open_portions: dict[str, list[_Names]] = {}
        for (zone, portion), count in getting.items():
            open_portions.setdefault(zone, []).extend([portion] * count)
        for candidate in moved:
            zone, before = candidate.given
            after = self._given[candidate.pod] = open_portions[zone].pop(0)
            self._place(zone, before, -1)
            self._place(zone, after, 1)
        assert portions == self._placed, f"{self._placed} were placed, not {portions}"
        return tuple(candidate.pod for candidate in moved)

    def _differences(self, portions: Portions) -> Iterator[tuple[str, _Names, int]]:
        """Yields zone, portion, and the number of endpoints that must be added to it (negative:
        removed).
        """
        for zone in self._counts:
            wanted = portions[zone]
            placed = self._placed.get(zone, {})
            for portion in dict.fromkeys((*wanted, *sorted(placed))):
                more = wanted.get(portion, 0) - placed.get(portion, 0)
                if more:
                    yield zone, portion, more

    def check(self) -> None:
        counts = Counter(self._own.values())
        placed: Portions = {}
        for pod, zone in self._own.items():
            if self.active:
                adjust_count(placed.setdefault(zone, {}), self._given[pod], 1)
        assert counts == self._counts, f"counted {self._counts}, there are {counts}"
        assert placed == self._placed, f"placed {self._placed}, there are {placed}"
        assert self._given.keys() == (self._own.keys() if self.active else set()), (
            "hints are not the ready endpoints"
        )
