"""Node proxies of ours, by what their Leases tell (``consume.progress``): do they live, does the
kernel take their rules, do they hold the Service's slices and hear of changes, are they called what
their Nodes are called.

What is wrong with a proxy is told once, in the same words for each Service; ``sliceplane drift``
says more of it: at which object a cache differs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Final

import msgspec

from sliceplane.api.findings.finding import Evidence, Finding
from sliceplane.api.findings.wording import count, lasting, misnamed_proxy, some
from sliceplane.api.requests import Selection
from sliceplane.consume.progress import (
    ANNOTATION_PROGRESS,
    COMPONENT,
    LABEL_COMPONENT,
    LEASE_NAMESPACE,
    UNASKED_S,
    Held,
    Place,
)
from sliceplane.diagnose.drift import reports
from sliceplane.diagnose.drift.facts import Listed, ToldNode, listed, told_of
from sliceplane.diagnose.explain.case import NodeCase, ServiceCase
from sliceplane.diagnose.explain.facts import Facts
from sliceplane.diagnose.explain.objects import LEASES, NODES, SLICES

PROXIES: Final = LEASES.in_namespace(LEASE_NAMESPACE, f"{LABEL_COMPONENT}={COMPONENT}")
#: so many nodes must agree on what a version holds before another is said to have lost an event
OTHERS_MIN: Final = 2


def wants(case: ServiceCase) -> Iterator[Selection]:
    if case.service is None or case.is_headless:
        return  # no proxy serves it
    yield PROXIES
    yield from _nodes_of_doubt(case.facts, ())


def node_wants(case: NodeCase) -> Iterator[Selection]:
    yield PROXIES
    mine = _called(case.facts, case.name)
    yield from _nodes_of_doubt(case.facts, mine)
    newest = max((proxy.revision for proxy in case.facts.derived(_proxies)), default=0)
    if any(proxy.revision < newest for proxy in mine):
        yield SLICES.everywhere()  # what it is that others hold


def _nodes_of_doubt(facts: Facts, mine: Iterable[ToldNode]) -> Iterator[Selection]:
    """Nodes that must be known before something is said of a proxy."""
    doubtful = [
        proxy.node
        for proxy in facts.derived(_proxies)
        if not proxy.owner or proxy.is_late(facts.now)
    ]
    names = {*doubtful, *(proxy.node for proxy in mine)} - {""}
    yield from NODES.each_of("", names)
    if any(
        facts.was_read(NODES.named("", name)) and facts.get(NODES, "", name) is None
        for name in names
    ):
        yield NODES.everywhere()  # which one is meant


def of_service(case: ServiceCase) -> Iterable[Finding]:
    """N1 to N5, N7, N15: one of each, of the node where it is worst."""
    if case.service is None or case.is_headless:
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


def balancer_that_never_asks(case: ServiceCase) -> Iterable[Finding]:
    """X6.  Some balancers lead to Pods and ask no node: possible, and a note."""
    service = case.service
    port = service.spec.health_check_node_port if service is not None else 0
    if service is None or not port or service.spec.type != "LoadBalancer":
        return
    alive = [proxy for proxy in case.facts.derived(_proxies) if not proxy.is_late(case.facts.now)]
    told = [proxy.report for proxy in alive if proxy.report is not None]
    if told and all(port in report.unasked for report in told):
        yield Finding(
            code="X6",
            subject=case.subject,
            certainty="possible",
            sentence=(
                f"nobody asked health check port {port} of {count(len(told), 'node')} for "
                f"{lasting(UNASKED_S)}"
            ),
            evidence=(case.field("spec.healthCheckNodePort", str(port)),),
            effect="a balancer that leads to nodes has none that is healthy",
            remedy=f"let the balancer's health checks through to TCP port {port} of the nodes",
        )


def of_node(case: NodeCase) -> Iterable[Finding]:
    """The same of one node.  One that has no proxy of ours while others have: N1 too, if less
    surely.
    """
    proxies = case.facts.derived(_proxies)
    mine = _called(case.facts, case.name)
    names = {proxy.node for proxy in mine}
    yield from (
        finding
        for finding in case.facts.derived(_findings)
        if finding.subject.name in {case.name, *names}
    )
    if case.node is not None and proxies and not mine:
        others = f"{count(len(proxies), 'other node', 'has')} one"
        yield Finding(
            code="N1",
            subject=case.subject,
            certainty="possible",
            weight="warning",
            sentence=f"no proxy of ours ever told anything on {case.name}; {others}",
            evidence=(
                Evidence(
                    subject=case.subject,
                    field="Lease",
                    value=f"no {COMPONENT} tells of {case.name}",
                ),
            ),
            effect="if nothing else serves Services there, its clients reach none",
            remedy="start sliceplane proxy there, or see why it does not start: its log",
        )


def _called(facts: Facts, name: str) -> tuple[ToldNode, ...]:
    """The proxies that can be that of the Node *name*: those that call themselves so, or almost."""
    proxies = facts.derived(_proxies)
    return tuple(
        proxy
        for proxy in proxies
        if name in (proxy.node, proxy.owner)
        or (not proxy.owner and proxy.node.startswith(f"{name}."))
    )


def _proxies(facts: Facts) -> tuple[ToldNode, ...]:
    """By name."""
    leases = facts.of(LEASES, LEASE_NAMESPACE)
    return tuple(
        told_of(lease)
        for lease in leases
        if (lease.metadata.labels or {}).get(LABEL_COMPONENT) == COMPONENT
    )


def _slices(facts: Facts) -> tuple[Listed, ...]:
    return tuple(listed(item, item.written_at) for item in facts.of(SLICES))


def _findings(facts: Facts) -> tuple[Finding, ...]:
    """Of all proxies, the worst of each code first."""
    proxies = facts.derived(_proxies)
    silent = [
        proxy for proxy in proxies if proxy.is_late(facts.now) and _is_well_otherwise(facts, proxy)
    ]
    alive = [proxy for proxy in proxies if not proxy.is_late(facts.now)]
    deaf = [proxy for proxy in alive if reports.inputs_since(proxy)]
    slices = facts.derived(_slices)
    missing = [
        (proxy, lacks)
        for proxy in alive
        if proxy not in deaf
        and (lacks := tuple(reports.missing_of(proxy, slices)))
        and reports.is_behind(lacks, facts.now)
    ]
    missing.sort(key=lambda pair: (-reports.behind_s(pair[1], facts.now), pair[0].node))
    return (
        *(
            reports.stopped(proxy, facts.now)
            for proxy in sorted(silent, key=lambda proxy: (proxy.renewed, proxy.node))
        ),
        *(reports.behind(proxy, lacks, facts.now) for proxy, lacks in missing),
        *(finding for proxy in alive if (finding := reports.of_kernel(proxy)) is not None),
        *(_lost_event(*found) for found in _unlike_others(alive)),
        *(reports.hears_nothing(proxy, facts.now) for proxy in deaf),
        *(finding for proxy in alive for finding in _misnamed(facts, proxy)),
    )


def _is_well_otherwise(facts: Facts, proxy: ToldNode) -> bool:
    """Of a node that is gone or silent itself, the node is what there is to tell."""
    node = facts.get(NODES, "", proxy.node)
    if node is None:
        return not facts.was_read(NODES.named("", proxy.node))
    ready = node.ready_condition
    return ready is None or ready.status == "True"


def _unlike_others(proxies: Iterable[ToldNode]) -> Iterator[tuple[ToldNode, Place, Held]]:
    """Those alone with their digest where at least two others have the same version of the same
    reading, and agree: caches of one version are equal, but where an event was lost.
    """
    alike: dict[tuple[Place, int], list[tuple[ToldNode, Held]]] = {}
    for proxy in proxies:
        for place, held in (proxy.report.places() if proxy.report is not None else {}).items():
            if held.revision:
                alike.setdefault((place, held.revision), []).append((proxy, held))
    named: set[str] = set()
    for (place, _), group in sorted(alike.items()):
        counts = Counter(held.digest for _, held in group)
        usual, number = counts.most_common(1)[0]
        for proxy, held in group if number >= OTHERS_MIN else ():
            if held.digest != usual and counts[held.digest] == 1 and proxy.node not in named:
                named.add(proxy.node)
                yield proxy, place, held


def _lost_event(proxy: ToldNode, place: Place, held: Held) -> Finding:
    """N4.  Which object it is only the two contents can tell, which ``sliceplane drift``
    compares.
    """
    resource, reading = place
    return reports.finding(
        "N4",
        proxy,
        f"it holds {resource} ({reading}) of version {held.revision} with another content than "
        "other nodes",
        evidence=reports.in_lease(
            proxy, f"metadata.annotations[{ANNOTATION_PROGRESS}]", f"{held.revision} {held.digest}"
        ),
        effect=(
            "it goes on with endpoints that are no more, or without new ones, until that object "
            "changes again"
        ),
        remedy=f"sliceplane drift --node {proxy.node}",
    )


def _misnamed(facts: Facts, proxy: ToldNode) -> Iterator[Finding]:
    """N7.  Where there is no Node at all no name is wrong: machines outside Kubernetes may run a
    proxy, too.
    """
    if (
        proxy.owner
        or facts.get(NODES, "", proxy.node) is not None
        or not facts.was_read(NODES.named("", proxy.node))
    ):
        return
    names = sorted(node.metadata.name for node in facts.of(NODES))
    if not names:
        return
    said, flag = misnamed_proxy(proxy.node, names)
    yield reports.finding(
        "N7",
        proxy,
        f"its proxy says that it is {proxy.node}; {said}",
        evidence=reports.in_lease(proxy, "spec.holderIdentity", proxy.node),
        effect="hints and local endpoints do not count there: with a policy of Local all is dropped",
        remedy=f"start that proxy with {flag}",
    )


CHECKS = (of_service, balancer_that_never_asks)
NODE_CHECKS = (of_node,)
