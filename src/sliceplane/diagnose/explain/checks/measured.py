"""Services with ``sliceplane.dev/Measured``: are their zones measured, and if not, why; and which
endpoints serve other zones, and why.

The controller (``controllers.measured``) says in a condition of the Service whether it measures.
The checks name the cause behind the condition: which nodes are silent, which annotation is
malformed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Final

from sliceplane.api.findings.finding import Finding, ObjectName
from sliceplane.api.findings.wording import clipped, count, lasting, part, since, some, verb
from sliceplane.api.meta import Condition, find_condition
from sliceplane.api.requests import Selection
from sliceplane.api.selectors.distribution import requested_distribution
from sliceplane.consume.demand import CONNECTIONS, MEASURED, REQUESTS, demand_source, is_measured
from sliceplane.consume.progress import (
    ANNOTATION_DEMAND,
    LEASE_DURATION_S,
    LEASE_NAMESPACE,
    LEASE_PREFIX,
)
from sliceplane.controllers.measured.controller import (
    CAPPED_TOLD_S,
    CONDITION,
    DEMAND_CAPPED,
    KEPT_S,
)
from sliceplane.controllers.measured.meter import CAP
from sliceplane.diagnose.explain.case import NodeCase, ServiceCase, ZoneCase, evidence_of
from sliceplane.diagnose.explain.checks.consumers import PROXIES
from sliceplane.diagnose.explain.checks.zones import hinted_zones, hints_unavailable
from sliceplane.diagnose.explain.facts import Facts
from sliceplane.diagnose.explain.objects import (
    EVENTS,
    LEASES,
    NODES,
    SERVICES,
    FullEvent,
    warnings_in,
)
from sliceplane.diagnose.zone_loads import counted_nodes
from sliceplane.kit.times import time_or_zero
from sliceplane.slices.heuristics.balanced import ANNOTATION_MAX_OVERLOAD, Balanced, overload_of
from sliceplane.slices.heuristics.measured import (
    ANNOTATION_SHARES,
    PARTS,
    measured_shares,
    read_shares,
    source_problem,
)
from sliceplane.slices.heuristics.types import HeuristicError

#: what happens while zones are not measured
_EFFECT: Final = "its hints follow the last shares for 10 minutes, then the zones' CPU"
_COUNTERS: Final = "sliceplane proxy, or sliceplane observe --demand beside kube-proxy,"


def reads(case: ServiceCase) -> Iterator[Selection]:
    condition = _condition(case)
    if _counts_connections(case):
        yield warnings_in(LEASE_NAMESPACE)
    if condition is not None and condition.reason == "NodesSilent":
        yield PROXIES
        yield NODES.everywhere()


def _condition(case: ServiceCase) -> Condition | None:
    """Returns the condition of a Service that asks for measured zones."""
    if not is_measured(case.service):
        return None
    return find_condition(case.service.status.conditions, CONDITION)


def not_measured(case: ServiceCase) -> Iterable[Finding]:
    """Z14, Z15, Z16, from the condition."""
    service = case.service
    if not is_measured(service) or not case.selector or source_problem(demand_source(service)):
        return
    condition = _condition(case)
    if condition is None:
        yield case.finding(
            "Z14",
            f"{case.name} asks for {MEASURED}, and no controller measures its zones",
            case.field(f"status.conditions[{CONDITION}]", "(not set)"),
            effect="its hints follow the zones' CPU, or there are none",
            remedy="run sliceplane controllers --controllers='*,measured-zones'",
            certainty="likely",
        )
    elif condition.status == "False" and (problem := _problem(case, condition)) is not None:
        code, sentence, remedy = problem
        yield case.finding(
            code,
            sentence,
            case.field(f"status.conditions[{CONDITION}]", f"False, {condition.reason}"),
            effect=_EFFECT
            if condition.reason != "LocalPolicy"
            else "connections stay on their node",
            remedy=remedy,
        )


def _problem(case: ServiceCase, condition: Condition) -> tuple[str, str, str] | None:
    """Returns code, sentence and remedy."""
    name = case.name
    match condition.reason:
        case "NotMeasured":
            if demand_source(case.service) == REQUESTS:
                counted = "no xDS server or EndpointView reports requests to"
                counter = "run sliceplane xds, or give views tells= and zone="
            else:
                counted = "no node counts connections to"
                counter = f"run {_COUNTERS} on the nodes"
            return "Z14", f"{counted} {name}, which asks for {MEASURED}", counter
        case "NodesSilent":
            silent, expected = case.facts.derived(_silent)
            nodes = (
                f"{part(len(silent), len(expected), 'ready Node', 'does not')} report connections: "
                f"{some(silent)}"
                if silent
                else clipped(condition.message)
            )
            return (
                "Z15",
                f"the zones of {name} are not measured: {nodes}",
                (
                    f"run {_COUNTERS} there; explain node {silent[0] if silent else 'NODE'} says why a "
                    "proxy is silent"
                ),
            )
        case "TooLittleTraffic":
            age = since(condition.last_transition_time, case.now)
            if age is None or age < KEPT_S:
                return None
            sentence = f"too few connections to measure the zones of {name} for {lasting(age)}"
            return (
                "Z16",
                sentence,
                (
                    f"give fixed shares: kubectl annotate service -n {case.namespace} {name} "
                    f'--overwrite {ANNOTATION_DEMAND}="weights: zone-a=3,zone-b=1"; or leave it'
                ),
            )
        case "LocalPolicy":
            sentence = f"{name} asks for {MEASURED}, and internalTrafficPolicy Local ignores hints"
            return "Z14", sentence, case.patch({"spec": {"internalTrafficPolicy": "Cluster"}})
    return None


def _silent(facts: Facts) -> tuple[list[str], list[str]]:
    """Returns the ready Nodes with a zone that do not report connections, and all of them."""
    reporting = {
        lease.metadata.name.removeprefix(LEASE_PREFIX)
        for lease in facts.of(LEASES)
        if (lease.metadata.annotations or {}).get(ANNOTATION_DEMAND)
        and facts.now - time_or_zero(lease.spec.renew_time or "") <= LEASE_DURATION_S
    }
    expected = counted_nodes(facts.of(NODES))
    return [name for name in expected if name not in reporting], expected


def _counts_connections(case: ServiceCase) -> bool:
    return is_measured(case.service) and demand_source(case.service) == CONNECTIONS


def node_reads(case: NodeCase) -> Iterator[Selection]:
    lease = case.facts.get(LEASES, LEASE_NAMESPACE, f"{LEASE_PREFIX}{case.name}")
    if lease is not None and (lease.metadata.annotations or {}).get(ANNOTATION_DEMAND):
        yield warnings_in(LEASE_NAMESPACE)


def capped(case: ServiceCase) -> Iterable[Finding]:
    """Z18: nodes whose reports count only in part; the same for each Service, so told once."""
    for event in case.facts.derived(_capped_events) if _counts_connections(case) else ():
        yield _capped(case, event)


def capped_node(case: NodeCase) -> Iterable[Finding]:
    for event in case.facts.derived(_capped_events):
        if event.involved_object.name == f"{LEASE_PREFIX}{case.name}":
            yield _capped(case, event)


def _capped(case: ServiceCase | NodeCase, event: FullEvent) -> Finding:
    node = event.involved_object.name.removeprefix(LEASE_PREFIX)
    return case.finding(
        "Z18",
        f"node {node} reports more than {CAP:g} times the connections of the median of its zone's "
        "nodes, and counts as that much",
        evidence_of(EVENTS, event, "reason", event.reason),
        subject=ObjectName(NODES.resource.key, NODES.resource.kind, "", node),
        effect="hints of Services with measured zones follow its clients in part only",
        remedy="nothing for a gateway or a load test, else see who may write its Lease; its "
        f"clients: kubectl get pods -A --field-selector spec.nodeName={node}",
        certainty="likely",
    )


def _capped_events(facts: Facts) -> list[FullEvent]:
    """Returns the Events about capped nodes that the controller would have repeated by now."""
    return [
        event
        for event in facts.of(EVENTS, LEASE_NAMESPACE)
        if event.reason == DEMAND_CAPPED
        and facts.now - time_or_zero(event.last_observed) <= CAPPED_TOLD_S + LEASE_DURATION_S
    ]


def malformed(case: ServiceCase) -> Iterable[Finding]:
    """Z17: annotations of Measured, and of Balanced."""
    service = case.service
    annotations = service.metadata.annotations or {}
    present = requested_distribution(annotations, service.spec.traffic_distribution)
    if present not in (MEASURED, Balanced.name):
        return
    problems: list[tuple[str, str, str, str]] = []
    try:
        overload_of(annotations)
    except HeuristicError as error:
        if not list(hints_unavailable(case)):
            problems.append(
                (ANNOTATION_MAX_OVERLOAD, str(error), "the Service gets no hints", "20%")
            )
    shares = annotations.get(ANNOTATION_SHARES, "")
    if present == MEASURED and (problem := source_problem(demand_source(service))):
        problems.append((ANNOTATION_DEMAND, problem, _EFFECT, CONNECTIONS))
    if present == MEASURED and shares and not read_shares(shares):
        sentence = (
            f"{ANNOTATION_SHARES} is {clipped(shares)!r}, not parts of {PARTS} that add up, such as "
            f"zone-a=48/{PARTS},zone-b=16/{PARTS}"
        )
        effect = "hints follow the zones' CPU until the controller's next decision replaces it"
        problems.append((ANNOTATION_SHARES, sentence, effect, ""))
    for annotation, sentence, effect, example in problems:
        change = f"--overwrite {annotation}={example}" if example else f"{annotation}-"
        yield case.finding(
            "Z17",
            f"{case.name}: {sentence}",
            case.field(f"metadata.annotations[{annotation}]", clipped(annotations[annotation])),
            effect=effect,
            remedy=f"kubectl annotate service -n {case.namespace} {case.name} {change}",
        )


# -- sentences


def describe(case: ServiceCase) -> str:
    """Returns the shares in effect, the condition, and which endpoints serve other zones; "" for
    Services without measured zones.
    """
    condition = _condition(case)
    if not is_measured(case.service):
        return ""
    shares = measured_shares(case.service)
    phrases = [
        f"its hints follow measured zones: {_listed(shares)}"
        if shares
        else "its hints follow the zones' CPU, for no zone is measured"
    ]
    if condition is not None:
        phrases.append(f"{CONDITION} is {condition.status} ({condition.reason})")
    for zone, by_zone in _serving_others(case).items():
        own = sum((endpoint.zone or "") == zone for _, endpoint in case.ready)
        helpers = (
            f"{count(by_zone.total(), 'endpoint', 'serves')} {zone} from {some(sorted(by_zone))}"
        )
        start = f"{shares[zone] / PARTS:.0%} of the connections start there and " * (zone in shares)
        phrases.append(
            f"{helpers}, since {start}{part(own, len(case.ready), 'endpoint', 'is')} there"
        )
    return "; ".join(phrases)


def describe_zone(case: ZoneCase) -> str:
    """Returns the same about each Service with measured zones, as far as it concerns the zone."""
    phrases = []
    for service in case.facts.of(SERVICES):
        meta = service.metadata
        of = ServiceCase(case.facts, case.question, meta.namespace, meta.name)
        others = _serving_others(of)
        shares = measured_shares(service)
        if case.name in shares:
            helpers = others.get(case.name, Counter())
            served = sorted(zone for zone, by_zone in others.items() if by_zone[case.name])
            also = (
                f", {count(helpers.total(), 'endpoint')} of {some(sorted(helpers))} "
                f"{verb(helpers.total(), 'serves')} it"
            ) * bool(helpers)
            gives = f", its endpoints also serve {some(served)}" * bool(served)
            phrases.append(
                f"{shares[case.name] / PARTS:.0%} of the connections to {meta.key} start in it{also}{gives}"
            )
    return f"{case.name}: {some(phrases)}" if phrases else ""


def _listed(shares: dict[str, int]) -> str:
    return some(
        [f"{zone} {shares[zone] / PARTS:.0%}" for zone in sorted(shares, key=lambda z: -shares[z])]
    )


def _serving_others(case: ServiceCase) -> dict[str, Counter[str]]:
    """Returns the ready endpoints of other zones by their zone, by the zone that they serve."""
    others: dict[str, Counter[str]] = {}
    for _, endpoint in case.ready:
        for zone in hinted_zones(endpoint):
            if zone != endpoint.zone:
                others.setdefault(zone, Counter())[endpoint.zone or ""] += 1
    return dict(sorted(others.items()))


CHECKS = (not_measured, malformed, capped)
