"""Hints by a heuristic (``trafficDistribution: domain/Name``) for one Service and one address type.

*Local* heuristics are queried once for each distinct location, not for each endpoint: a Pod that
changes, or is replaced by one at the same location, costs a look-up. A change of zones queries each
location anew.

*Zonal* heuristics are queried when the number of ready endpoints of a zone changed. The portion of
each endpoint is kept: a new endpoint gets the portion that lacks most, and others move only as the
new allocation requires, within their zone. They come from slices that are written anyway if these
suffice, else from the fewest slices. The first plan takes over the hints of existing slices.
If only the Service's annotations changed, the hints of a *gradual* heuristic move in steps of at most
a tenth of the endpoints, ``STEP_S`` apart. A zone that comes or goes, and a restart, end that.

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
from sliceplane.slices.heuristics.queries import Find, Portions, query_local, query_zonal
from sliceplane.slices.heuristics.types import (
    EndpointLocation,
    Heuristic,
    LocalHeuristic,
    ServiceView,
    ZonalHeuristic,
    ZoneView,
)
from sliceplane.slices.hinting.hint_policy import HintPolicy, hinted_zones
from sliceplane.slices.hinting.hints import ZoneHints
from sliceplane.slices.hinting.moves import Movable, pick
from sliceplane.slices.hinting.topology import ZoneShares
from sliceplane.slices.packing.packer import SlicePacker
from sliceplane.slices.shape import HintMode, ServiceShape

REASON_ENABLED: Final = "TrafficDistributionEnabled"
REASON_FAILED: Final = "TrafficDistributionFailed"
REASON_UNSUPPORTED: Final = "TrafficDistributionUnsupported"

#: seconds between two steps of a gradual change, and the part of the endpoints that one step moves
STEP_S: Final = 10.0
STEP_PART: Final = 0.1

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
        super().__init__(address_type, reported_active=True)
        self._name = name

    def inherit(self, earlier: HintPolicy) -> None:
        if isinstance(earlier, _PluginPolicy) and earlier._name == self._name:
            self._reported_active = earlier._reported_active
            self._reported_problem = earlier._reported_problem
            self._reported_at = earlier._reported_at

    def _message(self, message: str) -> str:
        return super()._message(f"{self._name}: {message}")


class Unsupported(_PluginPolicy):
    """The policy for a name that no heuristic has."""

    reason_disabled: ClassVar[str] = REASON_UNSUPPORTED

    def __init__(self, address_type: str, problem: str) -> None:
        super().__init__(address_type, problem)
        self.problem = problem

    @property
    def is_converged(self) -> bool:
        return True

    def set(self, pod: str, location: EndpointLocation | None) -> bytes:
        return b""

    def switch(self, packer: SlicePacker) -> tuple[str, ...]:
        return ()

    def rebalance(self, packer: SlicePacker, now: float) -> tuple[str, ...]:
        return ()

    def check(self) -> None:
        assert not self.active, "hints without a heuristic"

    def _message(self, message: str) -> str:
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
        self._location_by_pod: dict[str, EndpointLocation] = {}
        #: for each location with ready endpoints: their number, and the answer, which is hints or a
        #: problem
        self._pods_by_location: dict[EndpointLocation, int] = {}
        self._pieces: dict[EndpointLocation, bytes] = {}
        self._problems: dict[EndpointLocation, str] = {}
        #: the zones for which the answers are valid
        self._queried_zones: tuple[ZoneView, ...] = zones.views
        #: locations whose answer changed with the zones, until their endpoints are rebuilt
        self._changed: dict[EndpointLocation, None] = {}
        self._is_outdated = False

    def set_service(self, service: ServiceView) -> None:
        self._service = service
        self._is_outdated = True

    def set(self, pod: str, location: EndpointLocation | None) -> bytes:
        earlier = self._location_by_pod.get(pod)
        if earlier != location:
            if earlier is not None:
                self._remove(pod, earlier)
            if location is not None:
                self._location_by_pod[pod] = location
                if adjust_count(self._pods_by_location, location, 1) == 1:
                    self._query(location)
        return self._pieces.get(location, b"") if location is not None and self.active else b""

    def _remove(self, pod: str, earlier: EndpointLocation) -> None:
        del self._location_by_pod[pod]
        if not adjust_count(self._pods_by_location, earlier, -1):
            self._pieces.pop(earlier, None)
            self._problems.pop(earlier, None)
            self._changed.pop(earlier, None)

    def _query(self, location: EndpointLocation) -> None:
        hints = query_local(self._heuristic, self._service, location, self._queried_zones)
        self._pieces.pop(location, None)
        self._problems.pop(location, None)
        if isinstance(hints, str):
            self._problems[location] = hints
        else:
            self._pieces[location] = hint_piece(hints.zones, hints.nodes)

    @property
    def is_converged(self) -> bool:
        if self._is_outdated or self._zones.views != self._queried_zones:
            self._is_outdated = False
            self._queried_zones = self._zones.views
            for location in self._pods_by_location:
                before = self._pieces.get(location)
                self._query(location)
                if self._pieces.get(location) != before:
                    self._changed[location] = None
        problem = self._current_problem()
        return problem == self.problem and self.active is not bool(problem) and not self._changed

    def _current_problem(self) -> str:
        return self._problems[min(self._problems, key=astuple)] if self._problems else ""

    def switch(self, packer: SlicePacker) -> tuple[str, ...]:
        self.problem = self._current_problem()
        changed = self._changed
        self._changed = {}
        if self.active is bool(self.problem):
            self.active = not self.problem
            return tuple(self._location_by_pod)
        return (
            tuple(pod for pod, location in self._location_by_pod.items() if location in changed)
            if self.active and changed
            else ()
        )

    def rebalance(self, packer: SlicePacker, now: float) -> tuple[str, ...]:
        return ()

    def check(self) -> None:
        pods_by_location = Counter(self._location_by_pod.values())
        assert pods_by_location == self._pods_by_location, (
            f"counted {self._pods_by_location}, there are {pods_by_location}"
        )
        locations = [*self._pieces, *self._problems]
        text = f"answers for {locations}, not {pods_by_location}"
        assert len(locations) == len(pods_by_location), text
        assert set(locations) == pods_by_location.keys(), text


class ZonalHints(_PluginPolicy):
    """Hints by a zonal heuristic. Inactive until the first plan, which takes over the hints of
    existing slices.
    """

    def __init__(
        self, address_type: str, heuristic: ZonalHeuristic, service: ServiceView, zones: ZoneShares
    ) -> None:
        super().__init__(address_type, heuristic.name)
        self._heuristic = heuristic
        self._heuristic_is_gradual = bool(getattr(heuristic, "is_gradual", False))
        self._service = service
        self._zones = zones
        #: zone of each ready endpoint by Pod, and number of endpoints by zone, without zeros
        self._zone_by_pod: dict[str, str] = {}
        self._counts: dict[str, int] = {}
        #: while active: the hinted zones of each endpoint, and the number of endpoints with each,
        #: without zeros
        self._hinted: dict[str, _Names] = {}
        self._placed: Portions = {}
        #: the last query and its answer
        self._queried_counts: dict[str, int] | None = None
        self._queried_zones: tuple[ZoneView, ...] = ()
        self._answer: Portions | str = {}
        self._pieces: dict[_Names, bytes] = {}
        #: the Service changed since the last query; its hints move gradually
        self._is_outdated = False
        self._moves_gradually = False

    def set_service(self, service: ServiceView) -> None:
        self._service = service
        self._is_outdated = True

    def set(self, pod: str, location: EndpointLocation | None) -> bytes:
        zone = None if location is None else location.zone
        own = self._zone_by_pod.get(pod)
        if own == zone:
            return self._piece(self._hinted.get(pod, ()))
        if own is not None:
            del self._zone_by_pod[pod]
            adjust_count(self._counts, own, -1)
            if self.active:
                self._place(own, self._hinted.pop(pod), -1)
        if zone is None:
            return b""
        self._zone_by_pod[pod] = zone
        adjust_count(self._counts, zone, 1)
        if not self.active:
            return b""
        portion = self._hinted[pod] = self._lacking(zone)
        self._place(zone, portion, 1)
        return self._piece(portion)

    def _lacking(self, zone: str) -> _Names:
        """Returns the portion of *zone* that lacks most endpoints of the last allocation; the first
        of equals.
        """
        desired = {} if isinstance(self._answer, str) else self._answer.get(zone, {})
        placed = self._placed.get(zone, {})
        return max(desired, key=lambda names: desired[names] - placed.get(names, 0), default=())

    def _place(self, zone: str, portion: _Names, step: int) -> None:
        by_portion = self._placed.setdefault(zone, {})
        adjust_count(by_portion, portion, step)
        if not by_portion:
            del self._placed[zone]

    def _piece(self, names: _Names) -> bytes:
        piece = self._pieces.get(names)
        if piece is None:
            piece = self._pieces[names] = hint_piece(names)
        return piece

    # -- before a plan

    def _query(self) -> Portions | str:
        """Returns the heuristic's answer for the present counts. Queries it only after a change of
        counts, zones or the Service.
        """
        if (
            self._is_outdated
            or self._queried_counts != self._counts
            or self._queried_zones != self._zones.views
        ):
            self._moves_gradually = self._may_move_gradually()
            self._is_outdated = False
            self._queried_counts = dict(sorted(self._counts.items()))
            self._queried_zones = self._zones.views
            self._answer = {}
            self._pieces.clear()
            if self._queried_counts:
                self._answer = query_zonal(
                    self._heuristic, self._service, self._queried_counts, self._queried_zones
                )
        return self._answer

    def _may_move_gradually(self) -> bool:
        """Returns True if the annotations changed, now or during the gradual change under way, and
        no zone did.
        """
        before = [zone.name for zone in self._queried_zones]
        return (
            self._heuristic_is_gradual
            and (self._is_outdated or (self._moves_gradually and self._answer != self._placed))
            and self._queried_counts is not None
            and self._queried_counts.keys() == self._counts.keys()
            and before == [zone.name for zone in self._zones.views]
        )

    @property
    def is_converged(self) -> bool:
        portions = self._query()
        if isinstance(portions, str):
            return portions == self.problem and not self.active
        return self.active and portions == self._placed

    def switch(self, packer: SlicePacker) -> tuple[str, ...]:
        portions = self._query()
        self.problem = portions if isinstance(portions, str) else ""
        if self.active is not bool(self.problem):
            return ()
        self.active = not self.problem
        self._hinted = {}
        self._placed = {}
        if not isinstance(portions, str):
            for pod in sorted(self._zone_by_pod):
                zone = self._zone_by_pod[pod]
                hinted = hinted_zones(packer.stored(pod))
                if self._placed.get(zone, {}).get(hinted, 0) < portions[zone].get(hinted, 0):
                    self._hinted[pod] = hinted
                    self._place(zone, hinted, 1)
            for pod in sorted(self._zone_by_pod.keys() - self._hinted.keys()):
                portion = self._hinted[pod] = self._lacking(self._zone_by_pod[pod])
                self._place(self._zone_by_pod[pod], portion, 1)
        return tuple(self._zone_by_pod)

    def rebalance(self, packer: SlicePacker, now: float) -> tuple[str, ...]:
        """Moves endpoints to other portions if necessary. Costs O(endpoints) then, O(zones)
        otherwise.
        """
        portions = self._query()
        if isinstance(portions, str) or portions == self._placed:
            self.next_step = None
            return ()
        if self._moves_gradually and self.next_step is not None and now < self.next_step:
            return ()
        giving, getting = self._due_moves(portions)
        movable: dict[str, list[Movable[tuple[str, _Names]]]] = {}
        for pod in sorted(self._zone_by_pod):
            zone = self._zone_by_pod[pod]
            portion = self._hinted[pod]
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
            zone, before = candidate.hinted
            after = self._hinted[candidate.pod] = open_portions[zone].pop(0)
            self._place(zone, before, -1)
            self._place(zone, after, 1)
        is_complete = portions == self._placed
        assert is_complete or self._moves_gradually, f"{self._placed} were placed, not {portions}"
        self._moves_gradually = self._moves_gradually and not is_complete
        self.next_step = None if is_complete else now + STEP_S
        return tuple(candidate.pod for candidate in moved)

    def _due_moves(
        self, portions: Portions
    ) -> tuple[dict[tuple[str, _Names], int], dict[tuple[str, _Names], int]]:
        """Returns how many endpoints each portion gives, and how many each gets: all, or those of
        one step of a gradual change.
        """
        giving: dict[tuple[str, _Names], int] = {}
        getting: dict[tuple[str, _Names], int] = {}
        for zone, portion, difference in self._differences(portions):
            (getting if difference > 0 else giving)[zone, portion] = abs(difference)
        if self._moves_gradually:
            most = max(1, int(len(self._zone_by_pod) * STEP_PART))
            # Both are in the order of zones, and a zone gives as many as it gets.
            return _first_moves(giving, most), _first_moves(getting, most)
        return giving, getting

    def _differences(self, portions: Portions) -> Iterator[tuple[str, _Names, int]]:
        """Yields zone, portion, and the number of endpoints that must be added to it (negative:
        removed).
        """
        for zone in self._counts:
            desired = portions[zone]
            placed = self._placed.get(zone, {})
            for portion in dict.fromkeys((*desired, *sorted(placed))):
                difference = desired.get(portion, 0) - placed.get(portion, 0)
                if difference:
                    yield zone, portion, difference

    def check(self) -> None:
        counts = Counter(self._zone_by_pod.values())
        placed: Portions = {}
        for pod, zone in self._zone_by_pod.items():
            if self.active:
                adjust_count(placed.setdefault(zone, {}), self._hinted[pod], 1)
        assert counts == self._counts, f"counted {self._counts}, there are {counts}"
        assert placed == self._placed, f"placed {self._placed}, there are {placed}"
        assert self._hinted.keys() == (self._zone_by_pod.keys() if self.active else set()), (
            "hints are not the ready endpoints"
        )


def _first_moves(moves: dict[tuple[str, _Names], int], most: int) -> dict[tuple[str, _Names], int]:
    """Returns the first *most* of *moves*, which are numbers of endpoints."""
    first = {}
    for key, count in moves.items():
        if most > 0:
            first[key] = min(count, most)
            most -= first[key]
    return first
