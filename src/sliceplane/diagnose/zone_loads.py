"""The load of endpoints by zone: with the hints of a Service's slices, and with those that a
heuristic would give. Hints come from the production heuristics, and ``consume.balancing.shares``
computes what consumers make of them, for all values alike.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from fractions import Fraction
from typing import Final

import msgspec

from sliceplane.api.core import Node, Service
from sliceplane.api.discovery import EndpointSlice
from sliceplane.consume.balancing.shares import (
    EndpointKind,
    Kinds,
    TrafficShares,
    at_zones,
    kinds_of,
    shares,
)
from sliceplane.controllers.measured.decision import HintInputs, hint_inputs
from sliceplane.kit.ip import Family
from sliceplane.slices.facts import NodeFacts
from sliceplane.slices.heuristics.sharing import Placement
from sliceplane.slices.heuristics.types import ZoneView
from sliceplane.slices.hinting.topology import zone_shares

SAME_ZONE: Final = "PreferSameZone"


class HintLoads(msgspec.Struct, frozen=True):
    """The loads with the hints of ``name``, a value of trafficDistribution. ``problem``: the reason
    why it has no hints.
    """

    name: str
    shares: TrafficShares
    problem: str = ""


def hint_loads(
    name: str, hints: Placement | str, inputs: HintInputs, weights: Mapping[str, Fraction]
) -> HintLoads:
    """Returns the loads with *hints*, or without any for a reason, if connections start in zones as
    *weights* say.
    """
    placement: Placement = {zone: {(): count} for zone, count in inputs.endpoints.items()}
    problem = hints if isinstance(hints, str) else ""
    kinds = {
        EndpointKind(zone=zone, zone_hints=names): count
        for zone, by_names in (placement if isinstance(hints, str) else hints).items()
        for names, count in by_names.items()
    }
    return HintLoads(name, shares(kinds, at_zones(weights, ())), problem)


def _placement_of(kinds: Kinds) -> Placement:
    """Returns the hints of the ready endpoints."""
    placement: Placement = {}
    for kind, number in kinds.items():
        if kind.ready:
            by_names = placement.setdefault(kind.zone, {})
            names = tuple(sorted(kind.zone_hints))
            by_names[names] = by_names.get(names, 0) + number
    return dict(sorted(placement.items()))


def read_hints(
    service: Service,
    slices: Iterable[tuple[str, EndpointSlice]],
    family: Family | None,
    nodes: Iterable[Node],
) -> tuple[Placement, HintInputs]:
    """Returns the hints of the ready endpoints in *slices* (with their keys), and the inputs of
    others.
    """
    placement = _placement_of(kinds_of(slices, family, by_node=False))
    endpoints = {zone: sum(by_names.values()) for zone, by_names in placement.items()}
    return placement, hint_inputs(service, endpoints, zone_shares(nodes).views)


def parts(weights: Mapping[str, Fraction | float]) -> dict[str, Fraction]:
    """Returns *weights* as parts of their sum, sorted; equal ones if all are 0."""
    total = sum((Fraction(weight) for weight in weights.values()), Fraction(0))
    return {
        zone: Fraction(weight) / total if total else Fraction(1, len(weights))
        for zone, weight in sorted(weights.items())
    }


def cpu_parts(zones: Iterable[ZoneView]) -> dict[str, Fraction]:
    return parts({zone.name: zone.share for zone in zones})


def factor(load: Fraction | float) -> str:
    return f"{float(load):.2f} x" if load else "-"


def counted_nodes(nodes: Iterable[Node]) -> list[str]:
    """Returns the ready Nodes with a zone, which should report connections."""
    return sorted(
        node.metadata.name for node in nodes if (facts := NodeFacts(node)).counted and facts.zone
    )
