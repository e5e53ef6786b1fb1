"""The zones of a Service whose hints follow shares of zones: the demand of each, and the load of its
endpoints now, with the hints that are decided, and with ``PreferSameZone``.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from sliceplane.api.core import Node, Service
from sliceplane.api.discovery import EndpointSlice
from sliceplane.api.selectors.distribution import requested_distribution
from sliceplane.controllers.measured.decision import same_zone_placement
from sliceplane.diagnose.trace.answer import LoadView
from sliceplane.diagnose.zone_loads import SAME_ZONE, cpu_parts, hint_loads, parts, read_hints
from sliceplane.kit.ip import Family
from sliceplane.slices.heuristics.balanced import Balanced
from sliceplane.slices.heuristics.measured import (
    ANNOTATION_SHARES,
    MeasuredZones,
    measured_shares,
)

_HEURISTICS: Final = {heuristic.name: heuristic for heuristic in (Balanced(), MeasuredZones())}


def load_view(
    service: Service,
    slices: Iterable[EndpointSlice],
    family: Family | None,
    nodes: Iterable[Node],
) -> LoadView | None:
    """Returns the load of the zones; ``None`` if the Service asks for another value, no endpoint is
    ready, or no zone has ready Nodes.
    """
    annotations = service.metadata.annotations or {}
    value = requested_distribution(annotations, service.spec.traffic_distribution)
    if value not in _HEURISTICS:
        return None
    keyed = ((item.metadata.key, item) for item in slices)
    present, inputs = read_hints(service, keyed, family, nodes)
    if not present or not inputs.zones:
        return None
    measured = measured_shares(service)
    demand = parts(measured) if measured else cpu_parts(inputs.zones)
    decided = inputs.query(_HEURISTICS[value], annotations.get(ANNOTATION_SHARES, ""))
    hints = {"now": present, "decided": decided, SAME_ZONE: same_zone_placement(inputs.endpoints)}
    loads = {name: hint_loads(name, hints[name], inputs, demand).shares.load for name in hints}
    zones = sorted({*demand, *inputs.endpoints})
    return LoadView(
        value=value,
        origin=ANNOTATION_SHARES if measured else "allocatable CPU",
        problem=decided if isinstance(decided, str) else "",
        demand={zone: float(demand.get(zone, 0)) for zone in zones},
        endpoints={zone: inputs.endpoints.get(zone, 0) for zone in zones},
        loads={name: {zone: float(load(zone)) for zone in zones} for name, load in loads.items()},
    )
