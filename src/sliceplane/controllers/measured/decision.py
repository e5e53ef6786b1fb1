"""The law: from rates of connections to the shares of zones, and when a change of hints is worth it.

**Shares.** A zone's share is (connections + ``PRIOR`` * its share of CPU) / (all connections +
``PRIOR``), over the connections that the average is based on. So few connections change little, and
there is no threshold. Shares are written in parts of 64, by Adams' method of apportionment, which
makes the greatest quotient of share and parts the least possible: rounding adds at most
zones / (64 - zones) to the greatest load, and each zone with Nodes has a part.

**Change.** Hints change if they must or if it pays:

- the greatest load of the hints in effect exceeds (1 + overload) fair shares, and is above that of
  the new hints, even if every share were ``NOISE`` standard errors lower than measured; or
- the traffic that leaves its zone falls by ``GAIN``, and as many standard errors.

The errors are those of independent connections. Without them, hints that are exactly good enough
would change with every fluctuation.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import sqrt
from typing import Final, NamedTuple

from msgspec.structs import replace

from sliceplane.api.core import Service
from sliceplane.controllers.measured.meter import WINDOW_S
from sliceplane.slices.heuristics.balanced import overload_of
from sliceplane.slices.heuristics.measured import (
    ANNOTATION_SHARES,
    PARTS,
    MeasuredZones,
    read_shares,
    write_shares,
)
from sliceplane.slices.heuristics.queries import query_zonal
from sliceplane.slices.heuristics.sharing import Cost, Placement, cost_of
from sliceplane.slices.heuristics.types import (
    HeuristicError,
    ServiceView,
    ZonalHeuristic,
    ZoneView,
)

#: connections that a zone's share of CPU counts as much as
PRIOR: Final = 200.0
NOISE: Final = 3.0
#: part of all traffic
GAIN: Final = 0.05
#: part of the allowed load by which rounding may exceed it unmentioned
ROUNDING: Final = 0.05

_HEURISTIC: Final = MeasuredZones()


class Estimate(NamedTuple):
    """Measured shares: their standard errors, and the number of connections seen in the window."""

    shares: dict[str, float]
    errors: dict[str, float]
    connections: float


@dataclass(frozen=True, slots=True)
class HintInputs:
    """The inputs of hints: Service, ready endpoints by zone, zones with ready Nodes; and the hints
    that they gave, by annotation. A decision compares the same ones again and again, and with many
    zones they take long to find.
    """

    service: ServiceView
    endpoints: Mapping[str, int]
    zones: tuple[ZoneView, ...]
    placements: dict[str, Placement] = field(default_factory=dict, init=False, compare=False)

    @property
    def bound(self) -> float:
        """The greatest load that the Service allows. Raises ``HeuristicError``."""
        return 1.0 + overload_of(self.service.annotations)

    def query(self, heuristic: ZonalHeuristic, text: str) -> Placement | str:
        """Returns the hints for the annotation *text*, or the reason why there are none."""
        annotations = {**self.service.annotations, ANNOTATION_SHARES: text}
        service = replace(self.service, annotations=annotations)
        return query_zonal(heuristic, service, self.endpoints, self.zones)

    def placement(self, text: str) -> Placement:
        """Returns the hints for the annotation *text*. Raises ``HeuristicError``."""
        if text not in self.placements:
            found = self.query(_HEURISTIC, text)
            if isinstance(found, str):
                raise HeuristicError(found)
            self.placements[text] = found
        return self.placements[text]

    def cost(self, hints: str | Placement, shares: Mapping[str, float]) -> Cost:
        """Returns the cost of *hints*, or those for an annotation, if traffic has *shares*;
        ``crossing`` is a part of all traffic. Raises ``HeuristicError``.
        """
        placement = self.placement(hints) if isinstance(hints, str) else hints
        total = sum(self.endpoints.values())
        cost = cost_of(placement, {zone: share * total for zone, share in shares.items()})
        return cost._replace(crossing=cost.crossing / max(total, 1))


def hint_inputs(
    service: Service, endpoints: Mapping[str, int], zones: tuple[ZoneView, ...]
) -> HintInputs:
    """Returns the inputs for *service*."""
    meta = service.metadata
    view = ServiceView(namespace=meta.namespace, name=meta.name, annotations=meta.annotations or {})
    return HintInputs(view, endpoints, zones)


def estimate(rates: Mapping[str, float], zones: tuple[ZoneView, ...]) -> Estimate:
    """Returns the shares of *zones* for *rates*, connections per second by zone."""
    connections = {zone.name: rates.get(zone.name, 0.0) * WINDOW_S for zone in zones}
    total = sum(connections.values())
    cpu = sum(zone.share for zone in zones)
    shares = {
        zone.name: (connections[zone.name] + PRIOR * (zone.share / cpu if cpu else 1 / len(zones)))
        / (total + PRIOR)
        for zone in zones
    }
    # Reports older than the half-life count less, so the average has the error of twice as many.
    errors = {
        zone: sqrt(share * max(0.0, 1 - share) / (2 * (total + PRIOR)))
        for zone, share in shares.items()
    }
    return Estimate(shares, errors, total)


def round_shares(shares: Mapping[str, float]) -> dict[str, int]:
    """Returns *shares* in parts of 64, by Adams' method. If there are more zones, the largest 64
    have one part each.
    """
    largest = sorted(shares, key=lambda zone: (-shares[zone], zone))[:PARTS]
    parts = {zone: 1 for zone in largest if shares[zone] > 0}
    for _ in range(PARTS - len(parts) if parts else 0):
        neediest = max(parts, key=lambda zone: (shares[zone] / parts[zone], zone))
        parts[neediest] += 1
    return dict(sorted(parts.items()))


def decide(inputs: HintInputs, current: str, measured: Estimate) -> str:
    """Returns the annotation with which hints are as they should be: *current*, or another. Raises
    ``HeuristicError``.
    """
    parts = round_shares(measured.shares)
    text = write_shares(parts)
    if text == current or not inputs.endpoints:
        return current
    if read_shares(current).keys() != parts.keys():
        return text
    new = inputs.cost(text, measured.shares)
    if inputs.cost(current, _lowest(measured)).load > max(inputs.bound, new.load):
        return text
    gain = inputs.cost(current, measured.shares).crossing - new.crossing
    return text if gain >= GAIN + NOISE * max(measured.errors.values()) else current


def is_overload(load: float, allowed: float) -> bool:
    """Returns True if *load* exceeds *allowed* by more than the rounding of few zones."""
    return load > allowed * (1 + ROUNDING)


def overloaded_zone(inputs: HintInputs, current: str, measured: Estimate) -> str:
    """Returns the zone because of which the hints for *current* are worse than ``PreferSameZone``, and
    than the bound; "" if they are not. Raises ``HeuristicError``.
    """
    same_zone = inputs.cost(same_zone_placement(inputs.endpoints), measured.shares)
    if inputs.cost(current, _lowest(measured)).load <= max(inputs.bound, same_zone.load):
        return ""
    hinted = {
        zone: sum(
            count
            for by_names in inputs.placement(current).values()
            for names, count in by_names.items()
            if zone in names or not names
        )
        for zone in measured.shares
    }
    return max(hinted, key=lambda zone: (measured.shares[zone] / max(1, hinted[zone]), zone))


def same_zone_placement(endpoints: Mapping[str, int]) -> Placement:
    """Returns the hints of ``PreferSameZone``."""
    return {zone: {(zone,) if zone else (): count} for zone, count in endpoints.items()}


def _lowest(measured: Estimate) -> dict[str, float]:
    return {
        zone: max(0.0, share - NOISE * measured.errors[zone])
        for zone, share in measured.shares.items()
    }


def moves_between(before: Placement, after: Placement) -> int:
    """Returns the number of endpoints with other hints."""
    return sum(
        max(0, count - before.get(zone, {}).get(names, 0))
        for zone, by_names in after.items()
        for names, count in by_names.items()
    )
