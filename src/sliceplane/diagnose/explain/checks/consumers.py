"""Our consumers of slices, by the reports in their Leases (``consume.progress``): node proxies, the
relays through which they read (``consume.drain.relays``), and Python views, which follow the slices
of a Service themselves (docs/drain.md, "Other consumers").

A fault of a proxy has the same sentence for each Service, so that it is reported once; ``sliceplane
drift`` names the object in which a cache differs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Final

import msgspec

from sliceplane.api.findings.finding import Evidence, Finding, ObjectName
from sliceplane.api.findings.wording import count, lasting, some
from sliceplane.api.requests import Selection
from sliceplane.consume.drain.relayed import NODE_LEASES_SELECTOR, flatten
from sliceplane.consume.drain.relays import relay_name
from sliceplane.consume.progress import (
    ANNOTATION_PROGRESS,
    COMPONENT,
    LABEL_COMPONENT,
    LEASE_NAMESPACE,
    UNASKED_S,
    AppliedRevision,
    Scope,
)
from sliceplane.consume.selections import SERVICE_SELECTION_PREFIX
from sliceplane.diagnose.drift import reports
from sliceplane.diagnose.drift.facts import LeaseReport, Listed, listed, report_of_lease
from sliceplane.diagnose.drift.relays import relay_findings, relay_tree
from sliceplane.diagnose.drift.reports import judge_report
from sliceplane.diagnose.explain.case import NodeCase, ServiceCase
from sliceplane.diagnose.explain.facts import Facts
from sliceplane.diagnose.explain.objects import LEASES, NODES, SLICES

PROXIES: Final = LEASES.in_namespace(LEASE_NAMESPACE, NODE_LEASES_SELECTOR)
#: nodes that must have the same digest of a version before another one has lost an event
OTHERS_MIN: Final = 2


def reads(case: ServiceCase) -> Iterator[Selection]:
    if case.is_headless:
        return  # no proxy serves it
    yield PROXIES
    yield from _nodes_to_verify(case.facts, ())


def node_reads(case: NodeCase) -> Iterator[Selection]:
    yield PROXIES
    mine = _called(case.facts, case.name)
    yield from _nodes_to_verify(case.facts, mine)
    newest = max((proxy.revision for proxy in case.facts.derived(_proxies)), default=0)
    if any(proxy.revision < newest for proxy in mine):
        yield SLICES.everywhere()  # the objects that others have applied


def is_silent(case: NodeCase | ServiceCase) -> bool:
    """Returns True if no node reports what it applies, as where Cilium serves Services."""
    return not case.facts.derived(_proxies)


def _nodes_to_verify(facts: Facts, mine: Iterable[LeaseReport]) -> Iterator[Selection]:
    """Yields the reads of Nodes that are needed to judge proxies."""
    unconfirmed = [
        proxy.node
        for proxy in facts.derived(_proxies)
        if not proxy.owner or proxy.is_late(facts.now)
    ]
    names = {*unconfirmed, *(proxy.node for proxy in mine)} - {""}
    yield from NODES.each_of("", names)
    if any(
        facts.was_read(NODES.named("", name)) and facts.get(NODES, "", name) is None
        for name in names
    ):
        yield NODES.everywhere()  # to find the Node with a similar name


def of_service(case: ServiceCase) -> Iterable[Finding]:
    """N1 to N5, N7, N15 to N19: one finding of each code, about the worst node or relay."""
    if case.is_headless:
        return
    grouped: dict[str, list[Finding]] = {}
    for finding in case.facts.derived(_findings):
        grouped.setdefault(finding.code, []).append(finding)
    for findings in grouped.values():
        first, *others = findings
        if others:
            also = f"; so with {some(sorted(finding.subject.name for finding in others))}"
            first = msgspec.structs.replace(first, sentence=f"{first.sentence}{also}")
        yield first


def unqueried_health_check(case: ServiceCase) -> Iterable[Finding]:
    """X6. Some balancers lead to Pods and query no node, so it is possible, and a note."""
    service = case.service
    port = service.spec.health_check_node_port
    if not port or service.spec.type != "LoadBalancer":
        return
    alive = [proxy for proxy in case.facts.derived(_proxies) if not proxy.is_late(case.facts.now)]
    reported = [proxy.report for proxy in alive if proxy.report is not None]
    if reported and all(port in report.unasked for report in reported):
        yield case.finding(
            "X6",
            f"no health check of port {port} of {count(len(reported), 'node')} for "
            f"{lasting(UNASKED_S)}",
            case.field("spec.healthCheckNodePort", str(port)),
            certainty="possible",
            effect="a balancer that leads to nodes has none that is healthy",
            remedy=f"let the balancer's health checks through to TCP port {port} of the nodes",
        )


def of_node(case: NodeCase) -> Iterable[Finding]:
    """The same codes for one node. A node without our proxy, while others have one, is N1 too, but
    less certain.
    """
    proxies = case.facts.derived(_proxies)
    mine = _called(case.facts, case.name)
    names = {name for proxy in mine for name in (proxy.node, relay_name(proxy.relayed.lease))}
    yield from (
        finding
        for finding in case.facts.derived(_findings)
        if finding.subject.name in {case.name, *names}
    )
    if case.node is not None and proxies and not mine:
        others = f"{count(len(proxies), 'other node', 'has')} one"
        yield case.finding(
            "N1",
            f"none of our proxies ever reported on {case.name}; {others}",
            case.field("Lease", f"no {COMPONENT} reports {case.name}"),
            certainty="possible",
            weight="warning",
            effect="if nothing else serves Services there, its clients reach none",
            remedy="start sliceplane observe there if kube-proxy serves it, else sliceplane proxy; if "
            "it is there, its log says why it does not report",
        )


def _called(facts: Facts, name: str) -> tuple[LeaseReport, ...]:
    """Returns the proxies that may run on the Node *name*: their own name is equal or similar."""
    proxies = facts.derived(_proxies)
    return tuple(
        proxy
        for proxy in proxies
        if name in (proxy.node, proxy.owner)
        or (not proxy.owner and proxy.node.startswith(f"{name}."))
    )


def _proxies(facts: Facts) -> tuple[LeaseReport, ...]:
    """Returns the reports of all proxies, by name."""
    leases = facts.of(LEASES, LEASE_NAMESPACE)
    return tuple(
        report_of_lease(lease)
        for lease in flatten(leases)
        if (lease.metadata.labels or {}).get(LABEL_COMPONENT) == COMPONENT
    )


def _slices(facts: Facts) -> tuple[Listed, ...]:
    return tuple(listed(item, item.written_at) for item in facts.of(SLICES))


def _findings(facts: Facts) -> tuple[Finding, ...]:
    """Findings about all relays and proxies, the worst of each code first."""
    judged = [
        reports.judge_report(proxy, facts.derived(_slices), facts.now)
        for proxy in facts.derived(_proxies)
        if not proxy.is_late(facts.now) or _is_well_otherwise(facts, proxy)
    ]
    judged.sort(key=lambda each: (-each.age_s, each.consumer.node))
    alive = [each.consumer for each in judged if not each.is_late]
    return (
        *relay_findings(relay_tree(facts.of(LEASES, LEASE_NAMESPACE), facts.now)),
        *(finding for each in judged for finding in each.findings),
        *(finding for proxy in alive if (finding := reports.of_kernel(proxy)) is not None),
        *(
            reports.lost_event(
                *lost, " than other nodes", remedy=f"sliceplane drift --node {lost[0].node}"
            )
            for lost in _unlike_others(alive)
        ),
        *(finding for proxy in alive for finding in _misnamed(facts, proxy)),
    )


def _is_well_otherwise(facts: Facts, proxy: LeaseReport) -> bool:
    """Returns False for a proxy whose node is gone or silent: other findings report the node."""
    node = facts.get(NODES, "", proxy.node)
    if node is None:
        return not facts.was_read(NODES.named("", proxy.node))
    return node.ready_condition is None or node.is_ready


def _unlike_others(
    proxies: Iterable[LeaseReport],
) -> Iterator[tuple[LeaseReport, Scope, AppliedRevision]]:
    """Yields consumers that are alone with their digest while at least two others agree on the same
    version of the same selection: caches of one version are equal, unless an event was lost.
    """
    by_version: dict[tuple[Scope, int], list[tuple[LeaseReport, AppliedRevision]]] = {}
    for proxy in proxies:
        for scope, applied in (
            proxy.report.applied_by_scope() if proxy.report is not None else {}
        ).items():
            if applied.revision and applied.digest:
                by_version.setdefault((scope, applied.revision), []).append((proxy, applied))
    named: set[str] = set()
    for (scope, _), group in sorted(by_version.items()):
        counts = Counter(applied.digest for _, applied in group)
        usual, number = counts.most_common(1)[0]
        for proxy, applied in group if number >= OTHERS_MIN else ():
            if applied.digest != usual and counts[applied.digest] == 1 and proxy.node not in named:
                named.add(proxy.node)
                yield proxy, scope, applied


def _misnamed(facts: Facts, proxy: LeaseReport) -> Iterator[Finding]:
    """N7. Without any Node no name is wrong: machines outside Kubernetes may run a proxy, too."""
    if (
        proxy.owner
        or facts.get(NODES, "", proxy.node) is not None
        or not facts.was_read(NODES.named("", proxy.node))
    ):
        return
    names = [node.metadata.name for node in facts.of(NODES)]
    if names:
        yield reports.misnamed(proxy, names)


CHECKS = (of_service, unqueried_health_check)


_LABEL: Final = f"{LABEL_COMPONENT}=view"
VIEWS: Final = LEASES.in_namespace("", _LABEL)


def view_reads(case: ServiceCase) -> Iterator[Selection]:
    yield VIEWS if case.question.is_of_cluster else LEASES.in_namespace(case.namespace, _LABEL)


def view_behind(case: ServiceCase) -> Iterable[Finding]:
    """C6, about the view that is furthest behind."""
    selection = f"{SERVICE_SELECTION_PREFIX}{case.namespace}/{case.name}"
    views = [
        view
        for view in map(report_of_lease, case.of(LEASES))
        if view.report is not None and not view.is_late(case.now)
    ]
    slices = [
        listed(item, item.written_at)._replace(selections=(selection,))
        for item in (case.slices if views else ())
    ]
    judged = [judge_report(view, slices, case.now) for view in views]
    late = sorted(
        (each for each in judged if each.is_behind),
        key=lambda each: (-each.behind_s, each.consumer.node),
    )
    for view, missing, _ in late[:1]:
        applied = view.report.endpointslices[selection].revision if view.report is not None else 0
        others = [each.consumer.node for each in late[1:]]
        also = f"; so with {some(others)}" if others else ""
        yield case.finding(
            "C6",
            f"view {view.node} is {lasting(late[0].behind_s)} behind: it holds version {applied}, "
            f"and a slice is of {max(item.revision for item in missing)}{also}",
            Evidence(
                subject=ObjectName(LEASES.resource.key, "Lease", case.namespace, view.lease),
                field=f"metadata.annotations[{ANNOTATION_PROGRESS}]",
                value=str(applied),
            ),
            # Without managedFields the time of a slice is that of the change that triggered it.
            certainty="likely",
            effect="it uses outdated endpoints, while the nodes have newer ones",
            remedy=f"look at the log of {view.node}: its watch; restart it",
        )
