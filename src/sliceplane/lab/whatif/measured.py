"""``sliceplane what-if measured``: the load of endpoints and the traffic that leaves its zone, with
the hints of now, with ``sliceplane.dev/Measured``, and with two other values beside.

Demand is the part of all new connections that start in each zone. It is given (``--traffic``, or
weights of the Service's annotation), counted (``count_demand``, from two reads of the nodes'
reports), the last decision's, or assumed to follow the zones' CPU; the answer says which. Hints come
from the production heuristics, and the decision about them is the controller's own. What consumers
make of hints is computed by ``consume.balancing.shares``, for all values alike. No controller runs.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from fractions import Fraction
from typing import Final

import msgspec

from sliceplane.api.core import Lease, Service
from sliceplane.api.findings.wording import count, part, some
from sliceplane.api.selectors.distribution import requested_distribution
from sliceplane.consume.balancing.shares import TrafficShares
from sliceplane.consume.demand import (
    CONNECTIONS,
    MEASURED,
    UID_LENGTH,
    count_since,
    demand_source,
    is_measured,
    read_demand,
)
from sliceplane.consume.progress import ANNOTATION_DEMAND, LEASE_PREFIX
from sliceplane.controllers.measured.controller import CONNECTIONS_MIN
from sliceplane.controllers.measured.decision import (
    Estimate,
    HintInputs,
    decide,
    estimate,
    is_overload,
    moves_between,
    round_shares,
    same_zone_placement,
)
from sliceplane.controllers.measured.meter import WINDOW_S
from sliceplane.diagnose.zone_loads import (
    SAME_ZONE,
    HintLoads,
    counted_nodes,
    cpu_parts,
    hint_loads,
    parts,
    read_hints,
)
from sliceplane.kit.times import time_or_zero
from sliceplane.lab.whatif.picture import family_of
from sliceplane.lab.whatif.state import ClusterState, WhatIfError
from sliceplane.slices.heuristics.balanced import Balanced
from sliceplane.slices.heuristics.measured import (
    ANNOTATION_SHARES,
    read_shares,
    read_weights,
    write_shares,
)
from sliceplane.slices.heuristics.sharing import Placement
from sliceplane.slices.heuristics.types import HeuristicError, ZoneView

#: seconds between the two reads of reports: more than a node's longest period
COUNTED_S: Final = 40.0
NOW: Final = "now"


class CountedDemand(msgspec.Struct, frozen=True):
    """``rates``: connections per second by zone. ``reporters``: nodes, or xDS servers and views, with
    a report in both reads. ``unknown``: sentences about what could not be read.
    """

    rates: Mapping[str, float] = {}
    reporters: frozenset[str] = frozenset()
    unknown: tuple[str, ...] = ()


UNCOUNTED: Final = CountedDemand()


class ZoneDemand(msgspec.Struct, frozen=True):
    """``parts``: of all connections, by zone. ``origin``: a sentence. ``law``: what the controller
    would decide with; ``None``: the parts are fixed. ``unknown``: sentences.
    """

    parts: Mapping[str, Fraction]
    origin: str
    law: Estimate | None = None
    unknown: tuple[str, ...] = ()


class MeasuredPrediction(msgspec.Struct, frozen=True, kw_only=True):
    """``values``: ``NOW``, Measured, and others for comparison. ``allowed``: the greatest load of
    the annotation, in fair shares. ``moved``: endpoints whose hints Measured changes.
    """

    service: Service
    origin: str
    demand: ZoneDemand
    endpoints: Mapping[str, int]
    values: tuple[HintLoads, ...]
    allowed: float
    moved: int
    annotation: str
    unknown: tuple[str, ...]

    @property
    def before(self) -> TrafficShares:
        return self.values[0].shares

    @property
    def after(self) -> TrafficShares:
        return self.values[1].shares

    @property
    def zones(self) -> tuple[str, ...]:
        return tuple(sorted({*self.demand.parts, *self.endpoints}))

    @property
    def is_worse(self) -> bool:
        """Returns True if Measured overloads an endpoint more than the hints of now."""
        most = self.after.greatest[0]
        return is_overload(float(most), self.allowed) and most > self.before.greatest[0]


def predict_measured(
    state: ClusterState,
    service: Service,
    weights: Mapping[str, Fraction],
    counted: CountedDemand = UNCOUNTED,
) -> MeasuredPrediction:
    """Returns the prediction. *weights* count before *counted*. Raises ``WhatIfError``."""
    meta = service.metadata
    _check(service)
    slices = state.slices(meta.namespace, meta.name)
    before, inputs = read_hints(service, slices, family_of(service), state.nodes)
    endpoints, zones = inputs.endpoints, inputs.zones
    if not endpoints:
        raise WhatIfError(f"Service {meta.key} has no ready endpoint: sliceplane explain says why")
    if len(zones) < 2:
        raise WhatIfError(
            f"{count(len(zones), 'zone', 'has')} ready Nodes: there is nothing to prefer"
        )
    demand = _demand(state, service, weights, counted, zones)
    try:
        allowed, annotation = inputs.bound, _decision(inputs, demand)
        after = inputs.placement(annotation)
    except HeuristicError as error:
        raise WhatIfError(f"Service {meta.key} gets no hints: {error}") from error
    present = requested_distribution(meta.annotations or {}, service.spec.traffic_distribution)
    hints: dict[str, Placement | str] = {
        f"{NOW} ({present or 'no value'})": before,
        MEASURED: after,
        SAME_ZONE: same_zone_placement(endpoints),
        Balanced.name: inputs.query(Balanced(), ""),
    }
    return MeasuredPrediction(
        service=service,
        origin=state.origin,
        demand=demand,
        endpoints=endpoints,
        values=tuple(hint_loads(name, hints[name], inputs, demand.parts) for name in hints),
        allowed=allowed,
        moved=moves_between(before, after),
        annotation=annotation,
        unknown=(*counted.unknown, *demand.unknown, *_always_unknown(service, demand, zones)),
    )


def _check(service: Service) -> None:
    key = service.metadata.key
    if service.spec.internal_traffic_policy == "Local":
        raise WhatIfError(
            f"Service {key} has internalTrafficPolicy Local: connections stay on their node, and "
            "hints do not count"
        )
    if not service.spec.selector:
        raise WhatIfError(f"Service {key} has no selector: no controller writes its hints")


# -- demand


def count_demand(
    first: Iterable[Lease], last: Iterable[Lease], service: Service, zone_by_node: Mapping[str, str]
) -> CountedDemand:
    """Counts between two reads of Leases, each over the time between its own two reports. A total
    below the first one is that of a new counter; one without a first counts nothing.
    """
    before = {lease.metadata.key: lease for lease in first}
    rates: dict[str, float] = {}
    reporters: set[str] = set()
    for lease in last:
        name = lease.metadata.name
        earlier = before.get(lease.metadata.key)
        span_s = 0.0 if earlier is None else _renewed_at(lease) - _renewed_at(earlier)
        if earlier is None or span_s <= 0 or not _report_of(lease):
            continue
        reporter = name.removeprefix(LEASE_PREFIX)
        reporters.add(reporter)
        totals = _totals(earlier, service)
        for zone, total in _totals(lease, service).items():
            connections = count_since(totals.get(zone, total), total)
            if reporter != name:  # a node reports for its own zone alone
                zone = "" if zone else zone_by_node.get(reporter, "")
            if zone:
                rates[zone] = rates.get(zone, 0.0) + connections / span_s
    return CountedDemand(rates, frozenset(reporters))


def are_counted(leases: Iterable[Lease], service: Service) -> bool:
    """Returns True if a report has a total of *service*."""
    return any(_totals(lease, service) for lease in leases)


def _totals(lease: Lease, service: Service) -> dict[str, int]:
    """Returns the totals of *service* by the zone that the report names; "": none."""
    uid = service.metadata.uid[:UID_LENGTH]
    counts = read_demand(_report_of(lease)).counts
    keys = [(key, *key.rpartition("/")) for key in counts]
    return {zone: counts[key] for key, zone, _, of in keys if of == uid}


def _report_of(lease: Lease) -> str:
    return (lease.metadata.annotations or {}).get(ANNOTATION_DEMAND, "")


def _renewed_at(lease: Lease) -> float:
    return time_or_zero(lease.spec.renew_time or "")


def _demand(
    state: ClusterState,
    service: Service,
    weights: Mapping[str, Fraction],
    counted: CountedDemand,
    zones: tuple[ZoneView, ...],
) -> ZoneDemand:
    source = demand_source(service)
    if weights:
        return ZoneDemand(parts(weights), "Connections start as the command line says")
    if fixed := read_weights(source):
        origin = f"Connections start as the annotation {ANNOTATION_DEMAND} says"
        return ZoneDemand(parts(fixed), origin)
    if any(counted.rates.values()):
        return _counted(state, source, counted, zones)
    if last := read_shares((service.metadata.annotations or {}).get(ANNOTATION_SHARES, "")):
        return ZoneDemand(
            parts(last),
            f"Connections start as the last decision says, the annotation {ANNOTATION_SHARES}",
            unknown=("What nodes report now: nothing was counted.",),
        )
    why = (
        f"no report has {source} to it"
        if is_measured(service)
        else f"{source} are counted of Services that ask for {MEASURED} alone"
    )
    return ZoneDemand(
        cpu_parts(zones),
        "Connections start where Nodes have CPU, for want of anything better",
        unknown=(
            f"Where connections start: {why}. --weights zone-a=3,zone-b=1 says what you expect.",
        ),
    )


def _counted(
    state: ClusterState, source: str, counted: CountedDemand, zones: tuple[ZoneView, ...]
) -> ZoneDemand:
    law = estimate(counted.rates, zones)
    total = sum(counted.rates.values())
    unknown = []
    if source == CONNECTIONS:
        expected = counted_nodes(state.nodes)
        silent = [name for name in expected if name not in counted.reporters]
        if silent:
            unknown.append(
                f"Connections from {part(len(silent), len(expected), 'ready Node')} without a "
                f"report: {some(silent)}."
            )
    if law.connections < CONNECTIONS_MIN:
        unknown.append(
            f"If that is enough: the controller decides from {CONNECTIONS_MIN:.0f} {source} in "
            f"{WINDOW_S:.0f} s on, and these are {law.connections:.0f}."
        )
    return ZoneDemand(
        parts(counted.rates),
        f"{source.capitalize()} start as {len(counted.reporters)} reporters counted them, "
        f"{total:,.1f} a second",
        law,
        tuple(unknown),
    )


def _always_unknown(
    service: Service, demand: ZoneDemand, zones: tuple[ZoneView, ...]
) -> Iterable[str]:
    empty = sorted(demand.parts.keys() - {zone.name for zone in zones})
    if empty:
        yield f"Who connects from {some(empty)}, where no ready Node is: hints do not count there."
    yield "How busy a connection is, and how long it lasts: each counts once."
    if service.spec.session_affinity == "ClientIP":
        yield "Which clients session affinity keeps where they are."


# -- hints


def _decision(inputs: HintInputs, demand: ZoneDemand) -> str:
    """Returns the annotation after the controller's next decision."""
    if demand.law is None:
        return write_shares(round_shares({zone: float(p) for zone, p in demand.parts.items()}))
    current = inputs.service.annotations.get(ANNOTATION_SHARES, "")
    return decide(inputs, current, demand.law)
