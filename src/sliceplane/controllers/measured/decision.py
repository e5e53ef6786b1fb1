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

from sliceplane.controllers.measured.meter import WINDOW_S
from sliceplane.slices.heuristics.balanced import overload_of
from sliceplane.slices.heuristics.measured import (
    ANNOTATION_SHARES,
    PARTS,
    MeasuredZones,
    read_shares,
    write_shares,
)
from sliceplane.slices.heuristics.sharing import Cost, Placement, cost_of
from sliceplane.slices.heuristics.types import ServiceView, ZonalHeuristic, ZoneView

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


class PredictedHints(NamedTuple):
    """Hints, and what they cost with the measured shares; ``crossing`` is a part of all traffic."""

    placement: Placement
    cost: Cost


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


def placement_of(
    inputs: HintInputs, text: str, heuristic: ZonalHeuristic = _HEURISTIC
) -> Placement:
    """Returns the hints for the annotation *text*. Raises ``HeuristicError``."""
    if heuristic is not _HEURISTIC:
        return _find_placement(inputs, text, heuristic)
    if text not in inputs.placements:
        inputs.placements[text] = _find_placement(inputs, text, heuristic)
    return inputs.placements[text]


def _find_placement(inputs: HintInputs, text: str, heuristic: ZonalHeuristic) -> Placement:
    service = inputs.service
    annotations = {**service.annotations, ANNOTATION_SHARES: text}
    view = ServiceView(namespace=service.namespace, name=service.name, annotations=annotations)
    placement: Placement = {}
    for zone, portions in heuristic.allocate(view, inputs.endpoints, inputs.zones).items():
        by_names = placement.setdefault(zone, {})
        for portion in portions:
            by_names[portion.zones] = by_names.get(portion.zones, 0) + portion.count
    return placement


def predict(inputs: HintInputs, text: str, shares: Mapping[str, float]) -> PredictedHints:
    """Returns the hints for the annotation *text*, and their cost if traffic has *shares*. Raises
    ``HeuristicError``.
    """
    placement = placement_of(inputs, text)
    total = sum(inputs.endpoints.values())
    cost = cost_of(placement, {zone: share * total for zone, share in shares.items()})
    return PredictedHints(
        placement, cost._replace(crossing=cost.crossing / total if total else 0.0)
    )


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
    bound = 1.0 + overload_of(inputs.service.annotations)
    new = predict(inputs, text, measured.shares).cost
    if predict(inputs, current, _lowest(measured)).cost.load > max(bound, new.load):
        return text
    gain = predict(inputs, current, measured.shares).cost.crossing - new.crossing
    return text if gain >= GAIN + NOISE * max(measured.errors.values()) else current


def is_overload(load: float, allowed: float) -> bool:
    """Returns True if *load* exceeds *allowed* by more than the rounding of few zones."""
    return load > allowed * (1 + ROUNDING)


def overloaded_zone(inputs: HintInputs, current: str, measured: Estimate) -> str:
    """Returns the zone because of which the hints for *current* are worse than ``PreferSameZone``, and
    than the bound; "" if they are not. Raises ``HeuristicError``.
    """
    service, endpoints = inputs.service, inputs.endpoints
    hints = predict(inputs, current, _lowest(measured))
    total = sum(endpoints.values())
    same_zone: Placement = {zone: {(zone,): count} for zone, count in endpoints.items()}
    traffic = {zone: share * total for zone, share in measured.shares.items()}
    if hints.cost.load <= max(
        1.0 + overload_of(service.annotations), cost_of(same_zone, traffic).load
    ):
        return ""
    hinted = dict.fromkeys(traffic, 0)
    for by_names in hints.placement.values():
        for names, count in by_names.items():
            hinted |= {name: hinted.get(name, 0) + count for name in names or traffic}
    return max(traffic, key=lambda zone: (traffic[zone] / max(1, hinted[zone]), zone))


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
