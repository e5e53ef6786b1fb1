"""The controller of Services with ``sliceplane.dev/Measured``: it writes the annotation
``sliceplane.dev/measured-shares`` with each decision, and the condition
``TrafficDistributionMeasured``.

A decision is due every ``CHECK_S``, and at once when a zone with ready Nodes comes or goes. It is
based on the nodes' Leases (``meter``) and mostly changes nothing (``decision``); it changes shares
once in ``PERIOD_S`` at most. If demand swings, the shares are those of its peaks (``swings``). While
nothing sound is measured, the last shares stay for ``KEPT_S``; then the annotation is removed, and the
shares are those of CPU. The condition says why.

All state but averages and peaks is in the Service, so a restart writes nothing: the condition stays
while the averages warm up.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final

from sliceplane.api.core import Lease, Node, Service
from sliceplane.api.discovery import EndpointSlice
from sliceplane.api.meta import Object
from sliceplane.api.scheme import EndpointSlices, Leases, Nodes, Services
from sliceplane.api.selectors.adoption import Scope, selector_of
from sliceplane.consume.demand import (
    CONNECTIONS,
    DEMAND_SERVICES_MAX,
    MEASURED,
    REQUESTS,
    UID_LENGTH,
    demand_source,
    is_measured,
)
from sliceplane.consume.progress import ANNOTATION_DEMAND, LEASE_NAMESPACE, LEASE_PREFIX
from sliceplane.controllers.measured.decision import (
    Estimate,
    HintInputs,
    decide,
    estimate,
    hint_inputs,
    is_overload,
    moves_between,
    overloaded_zone,
    round_shares,
)
from sliceplane.controllers.measured.endpoints import EndpointCounts
from sliceplane.controllers.measured.meter import CAP, DemandMeter
from sliceplane.controllers.measured.swings import Swings
from sliceplane.controllers.node_progress import PROXY_LEASES, REQUEST_LEASES, requests_of
from sliceplane.controllers.traffic_distribution import (
    DesiredCondition,
    condition_writes,
    conditions_of,
    is_outdated,
    newest_answer,
)
from sliceplane.kit.metrics import Family, Labels, Metrics, merged
from sliceplane.slices.facts import NodeFacts
from sliceplane.slices.heuristics.measured import (
    ANNOTATION_SHARES,
    read_weights,
    source_problem,
    write_shares,
)
from sliceplane.slices.heuristics.sharing import Cost
from sliceplane.slices.heuristics.types import HeuristicError
from sliceplane.slices.hinting.topology import ZoneShares
from sliceplane.watch.cache import Change
from sliceplane.watch.controller.base import ControllerInfo, Done, Selection, Write, object_patch
from sliceplane.watch.controller.keyed import KeyedController

CONDITION: Final = "TrafficDistributionMeasured"
SHARES_REPLACED: Final = "MeasuredSharesReplaced"
SHARES_DECIDED: Final = "MeasuredSharesDecided"
DEMAND_CAPPED: Final = "DemandCapped"
#: seconds between two Events about one node
CAPPED_TOLD_S: Final = 3600.0

#: seconds between two decisions of a Service, just below the interval of nodes' reports; and between
#: two changes of its shares
CHECK_S: Final = 9.0
PERIOD_S: Final = 60.0
#: seconds from the first event of a Service to its first decision: two half-lives
WARMING_S: Final = 120.0
#: seconds for which shares stay without a sound measurement
KEPT_S: Final = 600.0
#: part of the ready Nodes that must report
COVERAGE_MIN: Final = 0.8
#: connections in the window below which the shares of CPU decide more than the measured ones; half
#: of that, if they were enough before
CONNECTIONS_MIN: Final = 200.0

_MEASURED: Final = DesiredCondition(CONDITION, "True", "Measured", "")
#: the message of shares by weights
_FIXED: Final = f"the shares are those of the annotation {ANNOTATION_DEMAND}"
#: the message while nothing reports, by source of demand
_UNREPORTED: Final = {
    CONNECTIONS: "no node counts connections: sliceplane proxy and sliceplane observe do",
    REQUESTS: "no xDS server reports requests, and no EndpointView: see docs/hints.md",
}


@dataclass(slots=True)
class _Followed:
    """A Service with measured shares. Times are seconds since the epoch."""

    service: Service
    since: float
    #: when the measurement was sound last
    sound_at: float
    decided_at: float = float("-inf")
    changed_at: float = float("-inf")
    #: the annotation of the write under way, and the one that was written last; ``None``: none by
    #: this process
    writing: str | None = None
    written: str | None = None
    rates: dict[str, float] = field(default_factory=dict)
    swings: Swings = field(default_factory=Swings)
    cost: Cost | None = None
    #: a clause if the decision in effect overloads an endpoint
    overload: str = ""

    @property
    def uid(self) -> str:
        return self.service.metadata.uid[:UID_LENGTH]

    @property
    def annotation(self) -> str:
        return (self.service.metadata.annotations or {}).get(ANNOTATION_SHARES, "")

    @property
    def is_edited(self) -> bool:
        """True if the annotation is not the one that this process wrote."""
        return self.written is not None and self.written != self.annotation


class MeasuredZonesController(KeyedController):
    """The controller. Keys are ``namespace/name`` of Services of *scope*."""

    def __init__(self, scope: Scope = Scope.SELECTING) -> None:
        super().__init__(
            ControllerInfo(
                name="measured-zones-controller",
                aliases=("measured-zones",),
                component="sliceplane-controllers",
                watches=(
                    Selection(Services),
                    Selection(EndpointSlices),
                    Selection(Nodes),
                    PROXY_LEASES,
                    REQUEST_LEASES,
                ),
            )
        )
        self._scope = scope
        self._followed: dict[str, _Followed] = {}
        self._endpoints = EndpointCounts(scope.manager)
        self._meter = DemandMeter()
        #: when Events were reported about nodes
        self._capped_told: dict[str, float] = {}
        self._zones = ZoneShares()
        self._nodes: dict[str, NodeFacts] = {}
        self._metrics = Metrics()
        self._moves = self._metrics.counter(
            "sliceplane_service_hint_moves_total",
            "Endpoints whose hints decisions by measured demand changed.",
        )
        self._declare_metrics()

    # -- events

    def on_change(self, change: Change[Object], now: float) -> None:
        name = change.object.metadata.name
        match change.object:
            case Service() as service:
                self._on_service(service, gone=change.new is None, now=now)
            case EndpointSlice():
                self._endpoints.on_slice(*change.typed(EndpointSlice))
            case Node() as node:
                self._on_node(name, None if change.new is None else NodeFacts(node), now)
            case Lease() as lease:
                self._on_lease(lease, gone=change.new is None, now=now)
            case unexpected:
                raise AssertionError(f"{change.resource} is not watched: {unexpected!r}")

    def _on_lease(self, lease: Lease, *, gone: bool, now: float) -> None:
        name, namespace = lease.metadata.name, lease.metadata.namespace
        text = None if gone else (lease.metadata.annotations or {}).get(ANNOTATION_DEMAND)
        if namespace == LEASE_NAMESPACE and name.startswith(LEASE_PREFIX):
            node = name.removeprefix(LEASE_PREFIX)
            self._meter.on_report(node, text, now)
            if gone:
                self._capped_told.pop(node, None)
            elif node in self._meter.capped:
                self._tell_capped(node, lease, now)
        elif (of := requests_of(lease)) is not None:
            self._meter.on_requests(lease.metadata.key, text, now, of)

    def _tell_capped(self, node: str, lease: Lease, now: float) -> None:
        if now - self._capped_told.get(node, float("-inf")) < CAPPED_TOLD_S:
            return
        self._capped_told[node] = now
        note = (
            f"node {node} reports more connections than {CAP:g} times the median of its zone's "
            "nodes, and counts as that much: it has a gateway or a load test, or does not tell the "
            "truth"
        )
        self.report(Leases, lease, "Warning", DEMAND_CAPPED, note, action="Measure")

    def _on_service(self, service: Service, *, gone: bool, now: float) -> None:
        key = service.metadata.key
        followed = self._followed.get(key)
        ours = is_measured(service) or bool(conditions_of(service, (CONDITION,)))
        if followed is not None and followed.service.metadata.uid != service.metadata.uid:
            self._forget(key)
            followed = None
        if gone or not ours or not selector_of(service, self._scope):
            self._forget(key)
            return
        if followed is None:
            followed = self._followed[key] = _Followed(service, now, now)
            self._meter.follow(followed.uid, service.metadata.namespace)
            self._endpoints.follow(key)
        elif not is_outdated(service, followed.service):
            before, followed.service = followed.annotation, service
            if followed.annotation not in (before, followed.writing):
                followed.changed_at = now  # edited
        self.enqueue(key, now)

    def _forget(self, key: str) -> None:
        followed = self._followed.pop(key, None)
        if followed is not None:
            self._meter.forget(followed.uid, followed.service.metadata.namespace)
            self._endpoints.forget(key)

    def _on_node(self, name: str, facts: NodeFacts | None, now: float) -> None:
        before = [zone.name for zone in self._zones.views]
        self._zones.replace(self._nodes.pop(name, None), facts)
        if facts is not None:
            self._nodes[name] = facts
        zone = "" if facts is None else facts.zone
        self._meter.on_node(name, zone, is_expected=facts is not None and facts.counted)
        if before != [zone.name for zone in self._zones.views]:
            for key, followed in self._followed.items():
                followed.decided_at = followed.changed_at = float("-inf")
                self.enqueue(key, now)

    # -- work

    def plan(self, key: str, now: float) -> tuple[Write, ...]:
        followed = self._followed.get(key)
        if followed is None or followed.service.metadata.is_deleting:
            return ()
        service = followed.service
        conditions: tuple[DesiredCondition, ...] = ()
        text, cause = "", f"the Service does not ask for {MEASURED}"
        if is_measured(service):
            condition, text = self._decision(key, followed, now)
            conditions, cause = (condition,), condition.message
            due_s = followed.decided_at + CHECK_S - now
            self.enqueue_after(key, due_s if due_s > 0 else CHECK_S, now)
        return (
            *self._shares_write(followed, text, cause),
            *condition_writes(service, conditions, now, (CONDITION,)),
        )

    def _shares_write(self, followed: _Followed, text: str, cause: str) -> tuple[Write, ...]:
        if text == followed.annotation:
            return ()
        service = followed.service
        before = followed.annotation
        if followed.is_edited:
            reason = SHARES_REPLACED
            note = (
                f"the annotation {ANNOTATION_SHARES} was edited: a decision replaces "
                f"{before!r:.100}; sliceplane.dev/demand: weights: ... fixes shares"
            )
        else:
            reason = SHARES_DECIDED
            note = f"shares {before or '(none)':.300} -> {text or '(none)':.300}: {cause}"
        self.report(Services, service, "Normal", reason, note, action="Decide")
        followed.writing = text
        annotations = {ANNOTATION_SHARES: text or None}
        change = {"metadata": {"annotations": annotations}}
        return (object_patch(Services, service.metadata, change, tolerate=("NotFound",)),)

    def finished(self, done: Done, now: float) -> None:
        """Takes the answers before the cache shows them, so that nothing is written twice."""
        if (followed := self._followed.get(done.job.key)) is not None:
            followed.service = newest_answer(done, followed.service)
            if followed.annotation == followed.writing:
                followed.written = followed.writing

    # -- the decision

    def _decision(self, key: str, followed: _Followed, now: float) -> tuple[DesiredCondition, str]:
        """Returns the condition, and the annotation; "" for none."""
        service, current = followed.service, followed.annotation
        source = demand_source(service)
        read_rates = self._meter.request_rates if source == REQUESTS else self._meter.rates
        rates = read_rates(followed.uid, now)
        measured = estimate(rates or {}, self._zones.views)
        problem = self._problem(followed, source, measured, now, has_reports=rates is not None)
        if problem is not None:
            return problem, current if now - followed.sound_at < KEPT_S else ""
        followed.sound_at = now
        if weights := read_weights(source):
            return _MEASURED._replace(message=_FIXED), write_shares(round_shares(weights))
        text = current
        if now - followed.decided_at >= CHECK_S:
            followed.decided_at = now
            inputs = hint_inputs(service, self._endpoints.of(key), self._zones.views)
            with suppress(HeuristicError):  # an Event of the controller of EndpointSlices has it
                text = self._decide(followed, inputs, measured, now)
                followed.rates = rates or {}
        message = f"zones have hints for the {source} that start in them{followed.overload}"
        return _MEASURED._replace(message=message), text

    def _decide(
        self, followed: _Followed, inputs: HintInputs, measured: Estimate, now: float
    ) -> str:
        """Returns the annotation for *measured*. Raises ``HeuristicError``."""
        current = text = followed.annotation
        zone = overloaded_zone(inputs, current, measured)
        shares = followed.swings.shares(measured.shares, zone, now)
        if now - followed.changed_at >= PERIOD_S:
            before = "" if followed.is_edited else current
            text = decide(inputs, before, measured._replace(shares=shares))
        cost = inputs.cost(text, measured.shares)
        if text != current or followed.cost is None:
            followed.overload = _overload(cost.load, inputs.bound)
        if text != current:
            followed.changed_at = now
            self._moves.value += moves_between(inputs.placement(current), inputs.placement(text))
        followed.cost = cost
        return text

    def _problem(
        self, followed: _Followed, source: str, measured: Estimate, now: float, *, has_reports: bool
    ) -> DesiredCondition | None:
        """Returns the condition unless *measured* is sound, or the shares are fixed. *has_reports*: of
        *source*.
        """
        service = followed.service
        if service.spec.internal_traffic_policy == "Local":
            text = "internalTrafficPolicy is Local: connections stay on their node, without hints"
            return _unmeasured("LocalPolicy", text)
        if text := source_problem(source):
            return _unmeasured("NotMeasured", text)
        if read_weights(source):
            return None
        before = conditions_of(service, (CONDITION,)).get(CONDITION)
        if now - followed.since < WARMING_S:
            text = f"{source} are counted for {WARMING_S:.0f} s before the first decision"
            if before is None or before.message == _FIXED:
                return DesiredCondition(CONDITION, "Unknown", "Warming", text)
            return DesiredCondition(CONDITION, before.status, before.reason, before.message)
        if not has_reports:
            return _unmeasured("NotMeasured", _UNREPORTED[source])
        if source == CONNECTIONS and (self._meter.coverage(now) or 0.0) < COVERAGE_MIN:
            text = f"less than {COVERAGE_MIN:.0%} of the ready Nodes report connections"
            return _unmeasured("NodesSilent", text)
        were_enough = before is not None and before.status == "True"
        if measured.connections < CONNECTIONS_MIN / (2 if were_enough else 1):
            text = f"fewer than {CONNECTIONS_MIN:.0f} {source} in the last minutes"
            return _unmeasured("TooLittleTraffic", text)
        return None

    # -- metrics

    def samples(self, now: float) -> tuple[Family, ...]:
        return merged(super().samples(now), self._metrics.families())

    def _declare_metrics(self) -> None:
        computed = self._metrics.computed
        labels = ("namespace", "service")
        computed(
            "gauge",
            "sliceplane_service_zone_demand",
            "Connections per second that start in a zone, at the last decision.",
            lambda: [
                ((*name, zone), rate)
                for name, rates, _ in self._decided()
                for zone, rate in sorted(rates.items())
            ],
            *labels,
            "zone",
        )
        computed(
            "gauge",
            "sliceplane_service_overload",
            "Greatest expected load of an endpoint in fair shares, at the last decision.",
            lambda: [(name, cost.load) for name, _, cost in self._decided()],
            *labels,
        )
        computed(
            "gauge",
            "sliceplane_service_cross_zone_share",
            "Part of the connections that leave their zone by hints, at the last decision.",
            lambda: [(name, cost.crossing) for name, _, cost in self._decided()],
            *labels,
        )
        computed(
            "counter",
            "sliceplane_demand_reports_invalid_total",
            "Entries of nodes' reports of demand that are invalid.",
            lambda: self._meter.invalid,
        )
        computed(
            "gauge",
            "sliceplane_demand_nodes_capped",
            "Nodes that report more than three times the median of their zone.",
            lambda: len(self._meter.capped),
        )

    def _decided(self) -> Iterator[tuple[Labels, dict[str, float], Cost]]:
        """Yields the first ``DEMAND_SERVICES_MAX`` Services by name, if they have a decision."""
        for _, followed in sorted(self._followed.items())[:DEMAND_SERVICES_MAX]:
            meta = followed.service.metadata
            if followed.cost is not None:
                yield (meta.namespace, meta.name), followed.rates, followed.cost

    def check(self) -> None:
        super().check()
        self._endpoints.check()


def _overload(load: float, allowed: float) -> str:
    if not is_overload(load, allowed):
        return ""
    return (
        f"; the busiest endpoint is expected to carry {load:.1f} fair shares, the least found, and "
        f"{allowed:g} are allowed"
    )


def _unmeasured(reason: str, message: str) -> DesiredCondition:
    return DesiredCondition(CONDITION, "False", reason, message)
