"""``sliceplane what-if measured``: the load of endpoints and the traffic that leaves its zone, with
the hints of now, with ``sliceplane.dev/Measured``, and with two other values beside.

Demand is the part of all new connections that start in each zone. It is given (``--traffic``, or
weights of the Service's annotation), counted (``count_demand``, from two reads of the nodes'
reports), the last decision's, or assumed to follow the zones' CPU; the answer says which. Hints come
from the production heuristics, and the decision about them is the controller's own. What consumers
make of hints is computed by ``consume.balancing.shares``, for all values alike. No controller runs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from fractions import Fraction
from typing import Final

import msgspec

from sliceplane.api.core import Lease, Service
from sliceplane.api.discovery import LABEL_ZONE
from sliceplane.api.findings.wording import count, part, some
from sliceplane.api.selectors.distribution import requested_distribution
from sliceplane.consume.balancing.shares import (
    EndpointKind,
    Kinds,
    TrafficShares,
    at_zones,
    kinds_of,
    shares,
)
from sliceplane.consume.demand import CONNECTIONS, UID_LENGTH, is_measured, read_demand
from sliceplane.consume.progress import ANNOTATION_DEMAND, LEASE_PREFIX
from sliceplane.controllers.measured.controller import CONNECTIONS_MIN, WEIGHTS, read_weights
from sliceplane.controllers.measured.decision import (
    Estimate,
    HintInputs,
    decide,
    estimate,
    is_overload,
    moves_between,
    placement_of,
    round_shares,
)
from sliceplane.controllers.measured.meter import WINDOW_S
from sliceplane.kit.times import time_or_zero
from sliceplane.lab.whatif.picture import family_of
from sliceplane.lab.whatif.state import ClusterState, WhatIfError
from sliceplane.slices.facts import NodeFacts
from sliceplane.slices.heuristics.balanced import Balanced, overload_of
from sliceplane.slices.heuristics.measured import (
    ANNOTATION_SHARES,
    MeasuredZones,
    read_shares,
    write_shares,
)
from sliceplane.slices.heuristics.sharing import Placement
from sliceplane.slices.heuristics.types import HeuristicError, ServiceView, ZoneView
from sliceplane.slices.hinting.topology import ZoneShares

#: seconds between the two reads of reports: more than a node's longest period
COUNTED_S: Final = 40.0
NOW: Final = "now"
_SAME_ZONE: Final = "PreferSameZone"


class CountedDemand(msgspec.Struct, frozen=True):
    """``rates``: connections per second by zone. ``reporters``: nodes, or xDS servers and views, with
    a report in both reads.
    """

    rates: Mapping[str, float]
    reporters: frozenset[str]


class ZoneDemand(msgspec.Struct, frozen=True):
    """``parts``: of all connections, by zone. ``origin``: a sentence. ``law``: what the controller
    would decide with; ``None``: the parts are fixed. ``unknown``: sentences.
    """

    parts: Mapping[str, Fraction]
    origin: str
    law: Estimate | None = None
    unknown: tuple[str, ...] = ()


class PredictedValue(msgspec.Struct, frozen=True):
    """A value of trafficDistribution. ``problem``: why it has no hints."""

    name: str
    shares: TrafficShares
    problem: str = ""


class MeasuredPrediction(msgspec.Struct, frozen=True, kw_only=True):
    """``values``: ``NOW``, Measured, and others for comparison. ``allowed``: the greatest load of
    the annotation, in fair shares. ``moved``: endpoints whose hints Measured changes.
    """

    service: Service
    origin: str
    demand: ZoneDemand
    endpoints: Mapping[str, int]
    values: tuple[PredictedValue, ...]
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
    counted: CountedDemand | None = None,
    unknown: Iterable[str] = (),
) -> MeasuredPrediction:
    """Returns the prediction. *weights* count before *counted*; *unknown* are sentences about what
    could not be read. Raises ``WhatIfError``.
    """
    meta = service.metadata
    _check(service)
    kinds = kinds_of(state.slices(meta.namespace, meta.name), family_of(service), by_node=False)
    ready: Counter[str] = Counter()
    for kind, number in kinds.items():
        ready[kind.zone] += number if kind.ready else 0
    ready = +ready
    zones = _zone_views(state)
    if not ready:
        raise WhatIfError(f"Service {meta.key} has no ready endpoint: sliceplane explain says why")
    if len(zones) < 2:
        raise WhatIfError(
            f"{count(len(zones), 'zone', 'has')} ready Nodes: there is nothing to prefer"
        )
    annotations = meta.annotations or {}
    view = ServiceView(namespace=meta.namespace, name=meta.name, annotations=annotations)
    inputs = HintInputs(view, dict(sorted(ready.items())), zones)
    demand = _demand(state, service, weights, counted, zones)
    try:
        allowed = 1 + overload_of(annotations)
        annotation = _decision(inputs, demand)
    except HeuristicError as error:
        raise WhatIfError(f"Service {meta.key} gets no hints: {error}") from error
    present = requested_distribution(annotations, service.spec.traffic_distribution)
    measured, placement = _value(MeasuredZones.name, inputs, demand, annotation)
    return MeasuredPrediction(
        service=service,
        origin=state.origin,
        demand=demand,
        endpoints=inputs.endpoints,
        values=(
            PredictedValue(f"{NOW} ({present or 'no value'})", _shares(kinds, demand)),
            measured,
            _value(_SAME_ZONE, inputs, demand, "")[0],
            _value(Balanced.name, inputs, demand, "")[0],
        ),
        allowed=allowed,
        moved=moves_between(_placement(kinds), placement),
        annotation=annotation,
        unknown=(*unknown, *demand.unknown, *_always_unknown(service, demand, zones)),
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


def _zone_views(state: ClusterState) -> tuple[ZoneView, ...]:
    zones = ZoneShares()
    for node in state.nodes:
        zones.replace(None, NodeFacts(node))
    return zones.views


# -- demand


def count_demand(
    first: Iterable[Lease], last: Iterable[Lease], service: Service, zone_by_node: Mapping[str, str]
) -> CountedDemand:
    """Counts between two reads of Leases, each over the time between its own two reports. A total
    below the first one is that of a new counter; one without a first counts nothing.
    """
    uid = service.metadata.uid[:UID_LENGTH]
    before = {lease.metadata.key: lease for lease in first}
    rates: dict[str, float] = {}
    reporters: set[str] = set()
    for lease in last:
        name = lease.metadata.name
        earlier = before.get(lease.metadata.key)
        span_s = 0.0 if earlier is None else _renewed_at(lease) - _renewed_at(earlier)
        text = _report_of(lease)
        if earlier is None or span_s <= 0 or not text:
            continue
        reporter = name.removeprefix(LEASE_PREFIX)
        reporters.add(reporter)
        totals = read_demand(_report_of(earlier)).counts
        for key, total in read_demand(text).counts.items():
            zone, _, of = key.rpartition("/")
            if reporter != name:  # a node reports for its own zone alone
                zone = "" if zone else zone_by_node.get(reporter, "")
            if of == uid and zone:
                start = totals.get(key, total)
                grown = total - start if total >= start else total
                rates[zone] = rates.get(zone, 0.0) + grown / span_s
    return CountedDemand(rates, frozenset(reporters))


def are_counted(leases: Iterable[Lease], service: Service) -> bool:
    """Returns True if a report has a total of *service*."""
    uid = service.metadata.uid[:UID_LENGTH]
    return any(
        key.rpartition("/")[2] == uid
        for lease in leases
        for key in read_demand(_report_of(lease)).counts
    )


def demand_source(service: Service) -> str:
    """Returns the annotation that names the source of demand."""
    return (service.metadata.annotations or {}).get(ANNOTATION_DEMAND, CONNECTIONS)


def _report_of(lease: Lease) -> str:
    return (lease.metadata.annotations or {}).get(ANNOTATION_DEMAND, "")


def _renewed_at(lease: Lease) -> float:
    return time_or_zero(lease.spec.renew_time or "")


def _demand(
    state: ClusterState,
    service: Service,
    weights: Mapping[str, Fraction],
    counted: CountedDemand | None,
    zones: tuple[ZoneView, ...],
) -> ZoneDemand:
    source = demand_source(service)
    fixed = read_weights(source.removeprefix(WEIGHTS)) if source.startswith(WEIGHTS) else {}
    if weights:
        return ZoneDemand(_parts(weights), "Connections start as the command line says")
    if fixed:
        origin = f"Connections start as the annotation {ANNOTATION_DEMAND} says"
        return ZoneDemand(
            _parts({zone: Fraction(weight) for zone, weight in fixed.items()}), origin
        )
    if counted is not None and any(counted.rates.values()):
        return _counted(state, source, counted, zones)
    last = read_shares((service.metadata.annotations or {}).get(ANNOTATION_SHARES, ""))
    if last:
        return ZoneDemand(
            _parts({zone: Fraction(number) for zone, number in last.items()}),
            f"Connections start as the last decision says, the annotation {ANNOTATION_SHARES}",
            unknown=("What nodes report now: nothing was counted.",),
        )
    cpu = {zone.name: Fraction(zone.share) for zone in zones}
    why = (
        f"no report has {source} to it"
        if is_measured(service)
        else f"{source} are counted of Services that ask for {MeasuredZones.name} alone"
    )
    return ZoneDemand(
        _parts(cpu if any(cpu.values()) else dict.fromkeys(cpu, Fraction(1))),
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
        expected = sorted(
            node.metadata.name
            for node in state.nodes
            if (facts := NodeFacts(node)).counted and facts.zone
        )
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
        _parts({zone: Fraction(rate) for zone, rate in counted.rates.items()}),
        f"{source.capitalize()} start as {len(counted.reporters)} reporters counted them, "
        f"{total:,.1f} a second",
        law,
        tuple(unknown),
    )


def _parts(weights: Mapping[str, Fraction]) -> dict[str, Fraction]:
    total = sum(weights.values(), Fraction(0))
    return {zone: weight / total for zone, weight in sorted(weights.items())}


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


def _value(
    name: str, inputs: HintInputs, demand: ZoneDemand, annotation: str
) -> tuple[PredictedValue, Placement]:
    placement: Placement = {zone: {(): count} for zone, count in inputs.endpoints.items()}
    problem = ""
    try:
        if name == _SAME_ZONE:
            placement = {
                zone: {(zone,) if zone else (): count} for zone, count in inputs.endpoints.items()
            }
        elif name == MeasuredZones.name:
            placement = placement_of(inputs, annotation)
        else:
            placement = placement_of(inputs, "", Balanced())
    except HeuristicError as error:
        problem = str(error)
    kinds = Counter(
        {
            EndpointKind(zone=zone, zone_hints=names): count
            for zone, by_names in placement.items()
            for names, count in by_names.items()
        }
    )
    return PredictedValue(name, _shares(kinds, demand), problem), placement


def _placement(kinds: Kinds) -> Placement:
    placement: Placement = {}
    for kind, number in kinds.items():
        if kind.ready:
            by_names = placement.setdefault(kind.zone, {})
            names = tuple(sorted(kind.zone_hints))
            by_names[names] = by_names.get(names, 0) + number
    return placement


def _shares(kinds: Kinds, demand: ZoneDemand) -> TrafficShares:
    return shares(kinds, at_zones(demand.parts, ()))


def zone_of_nodes(state: ClusterState) -> dict[str, str]:
    return {
        node.metadata.name: (node.metadata.labels or {}).get(LABEL_ZONE, "") for node in state.nodes
    }
