"""Node proxies of ours, by what their Leases tell (``proxy.progress``): do they live, does the kernel take their
rules, do they hold the Service's slices and hear of changes, are they called what their Nodes are called.

What is wrong with a proxy is told once, in the same words for each Service; ``sliceplane drift`` says more of it: at
which object a cache differs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

import msgspec

from sliceplane.api.core import Lease
from sliceplane.api.discovery import ANNOTATION_TRIGGER_TIME, LABEL_SERVICE_NAME, EndpointSlice
from sliceplane.api.requests import Selection
from sliceplane.explain.case import NodeCase, ServiceCase, name_of
from sliceplane.explain.facts import Facts
from sliceplane.explain.objects import LEASES, NODES, SLICES
from sliceplane.findings.finding import Evidence, Finding, ObjectName
from sliceplane.findings.wording import clipped, count, lasting, misnamed_proxy, since, some
from sliceplane.proxy.progress import (
    ANNOTATION_PROGRESS,
    ANNOTATION_REVISION,
    COMPONENT,
    LABEL_COMPONENT,
    LEASE_DURATION_S,
    LEASE_NAMESPACE,
    UNASKED_S,
    Held,
    Place,
    ProgressReport,
    read_report,
)
from sliceplane.proxy.selections import readings_of_slice

PROXIES: Final = LEASES.in_namespace(LEASE_NAMESPACE, f"{LABEL_COMPONENT}={COMPONENT}")
#: from the change of a Pod to a report of a node that holds it: the controller batches, the proxy tells every 10 s
BEHIND_S: Final = 30.0
#: so many nodes must agree on what a version holds before another is said to have lost an event
OTHERS_MIN: Final = 2
#: what a proxy says where rules of its own were gone (``shell.node``)
_GONE: Final = "rules were gone"


class _Proxy(NamedTuple):
    """``node``: as it calls itself.  ``report`` ``None``: of an older release, which tells ``revision`` alone."""

    node: str
    lease: Lease
    report: ProgressReport | None
    revision: int
    owned: bool

    def evidence(self, field: str, value: str) -> tuple[Evidence, ...]:
        return (Evidence(subject=name_of(LEASES, self.lease), field=field, value=value),)

    def held(self, item: EndpointSlice) -> int | None:
        """Up to which version it holds what shows *item*; ``None``: it reads nothing that does, or says nothing."""
        readings = readings_of_slice(item)
        if self.report is None:
            return self.revision if readings and self.revision else None
        held = self.report.endpointslices
        return min((held[reading].revision for reading in readings if reading in held), default=None)


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


def _nodes_of_doubt(facts: Facts, mine: Iterable[_Proxy]) -> Iterator[Selection]:
    """Nodes that must be known before something is said of a proxy."""
    doubtful = [proxy.node for proxy in facts.derived(_proxies) if not proxy.owned or _is_silent(facts, proxy)]
    names = {*doubtful, *(proxy.node for proxy in mine)} - {""}
    yield from NODES.each_of("", names)
    if any(facts.was_read(NODES.named("", name)) and facts.get(NODES, "", name) is None for name in names):
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
    alive = [proxy for proxy in case.facts.derived(_proxies) if not _is_silent(case.facts, proxy)]
    told = [proxy.report for proxy in alive if proxy.report is not None]
    if told and all(port in report.unasked for report in told):
        yield Finding(
            code="X6",
            subject=case.subject,
            certainty="possible",
            sentence=f"nobody asked health check port {port} of {count(len(told), 'node')} for {lasting(UNASKED_S)}",
            evidence=(case.field("spec.healthCheckNodePort", str(port)),),
            effect="a balancer that leads to nodes has none that is healthy",
            remedy=f"let the balancer's health checks through to TCP port {port} of the nodes",
        )


def of_node(case: NodeCase) -> Iterable[Finding]:
    """The same of one node.  One that has no proxy of ours while others have: N1 too, if less surely."""
    proxies = case.facts.derived(_proxies)
    mine = _called(case.facts, case.name)
    names = {proxy.node for proxy in mine}
    yield from (finding for finding in case.facts.derived(_findings) if finding.subject.name in {case.name, *names})
    if case.node is not None and proxies and not mine:
        others = f"{count(len(proxies), 'other node', 'has')} one"
        yield Finding(
            code="N1",
            subject=case.subject,
            certainty="possible",
            weight="warning",
            sentence=f"no proxy of ours ever told anything on {case.name}; {others}",
            evidence=(Evidence(subject=case.subject, field="Lease", value=f"no {COMPONENT} tells of {case.name}"),),
            effect="if nothing else serves Services there, its clients reach none",
            remedy="start sliceplane proxy there, or see why it does not start: its log",
        )


def _called(facts: Facts, name: str) -> tuple[_Proxy, ...]:
    """The proxies that can be that of the Node *name*: those that call themselves so, or almost."""
    proxies = facts.derived(_proxies)
    return tuple(proxy for proxy in proxies if proxy.node == name or _owner(proxy.lease) == name
                 or (not proxy.owned and proxy.node.startswith(f"{name}.")))  # fmt: skip


def _proxies(facts: Facts) -> tuple[_Proxy, ...]:
    """By name."""
    found = []
    for lease in facts.of(LEASES, LEASE_NAMESPACE):
        if (lease.metadata.labels or {}).get(LABEL_COMPONENT) != COMPONENT:
            continue
        annotations = lease.metadata.annotations or {}
        told = annotations.get(ANNOTATION_REVISION, "")
        revision = int(told) if told.isascii() and told.isdecimal() else 0
        report = read_report(annotations.get(ANNOTATION_PROGRESS, ""))
        found.append(_Proxy(lease.spec.holder_identity or "", lease, report, revision, bool(_owner(lease))))
    return tuple(found)


def _owner(lease: Lease) -> str:
    owners = lease.metadata.owner_references or ()
    return next((owner.name for owner in owners if owner.kind == "Node"), "")


def _findings(facts: Facts) -> tuple[Finding, ...]:
    """Of all proxies, the worst of each code first."""
    proxies = facts.derived(_proxies)
    silent = [proxy for proxy in proxies if _is_silent(facts, proxy) and _is_well_otherwise(facts, proxy)]
    silent.sort(key=lambda proxy: (proxy.lease.spec.renew_time or "", proxy.node))
    alive = [proxy for proxy in proxies if not _is_silent(facts, proxy)]
    behind = sorted(
        (finding for proxy in alive if not _inputs_since(proxy) for finding in _behind(facts, proxy)),
        key=lambda pair: (-pair[0], pair[1].subject),
    )
    return (
        *(_stopped(facts, proxy) for proxy in silent),
        *(finding for _, finding in behind),
        *(finding for proxy in alive for finding in _refused(proxy)),
        *(_lost_event(*pair) for pair in _unlike_others(alive)),
        *(_frozen(facts, proxy) for proxy in alive if _inputs_since(proxy)),
        *(finding for proxy in alive for finding in _misnamed(facts, proxy)),
    )


def _age(facts: Facts, proxy: _Proxy) -> float:
    return since(proxy.lease.spec.renew_time, facts.now) or 0.0


def _is_silent(facts: Facts, proxy: _Proxy) -> bool:
    return _age(facts, proxy) > (proxy.lease.spec.lease_duration_seconds or LEASE_DURATION_S)


def _is_well_otherwise(facts: Facts, proxy: _Proxy) -> bool:
    """Of a node that is gone or silent itself, the node is what there is to tell."""
    node = facts.get(NODES, "", proxy.node)
    if node is None:
        return not facts.was_read(NODES.named("", proxy.node))
    ready = next((entry for entry in node.status.conditions or () if entry.type == "Ready"), None)
    return ready is None or ready.status == "True"


def _finding(
    code: str, proxy: _Proxy, sentence: str, evidence: tuple[Evidence, ...], *, effect: str, remedy: str
) -> Finding:
    return Finding(
        code=code,
        subject=ObjectName(NODES.resource.key, "Node", "", proxy.node),
        sentence=sentence,
        evidence=evidence,
        effect=effect,
        remedy=remedy,
    )  # fmt: skip


def _stopped(facts: Facts, proxy: _Proxy) -> Finding:
    """N1"""
    return _finding(
        "N1",
        proxy,
        f"{proxy.node}: its proxy tells nothing for {lasting(_age(facts, proxy))}",
        proxy.evidence("spec.renewTime", proxy.lease.spec.renew_time or ""),
        effect="its kernel goes on with the rules of then: what changed since does not reach clients there",
        remedy=f"start the proxy of {proxy.node}, or see why it stopped: its log; if it was taken away on purpose, "
        f"kubectl -n {LEASE_NAMESPACE} delete lease {proxy.lease.metadata.name}",
    )


def _behind(facts: Facts, proxy: _Proxy) -> Iterator[tuple[float, Finding]]:
    """N2, with for how long.  A slice that does not say when its change began tells nothing."""
    missing: dict[str, float] = {}
    for item in facts.of(SLICES):
        held = proxy.held(item)
        age = since((item.metadata.annotations or {}).get(ANNOTATION_TRIGGER_TIME), facts.now)
        if held is not None and age is not None and age > BEHIND_S and item.metadata.revision > held:
            service = f"{item.metadata.namespace}/{(item.metadata.labels or {}).get(LABEL_SERVICE_NAME, '')}"
            missing[service] = max(age, missing.get(service, 0.0))
    if missing:
        worst_s = max(missing.values())
        finding = _finding(
            "N2",
            proxy,
            f"{proxy.node} is {lasting(worst_s)} behind: it does not hold the slices of {some(sorted(missing))}",
            proxy.evidence(f"metadata.annotations[{ANNOTATION_REVISION}]", str(proxy.revision)),
            effect="its kernel sends to the endpoints of then",
            remedy=f"look at the log of the proxy of {proxy.node}: its watch, its writes",
        )
        # A controller that comes late writes now for a change of long ago: the report is on its way then.
        yield worst_s, msgspec.structs.replace(finding, certainty="likely")


def _refused(proxy: _Proxy) -> Iterator[Finding]:
    """N3; N5 where somebody took rules away."""
    for problem in proxy.report.problems[:1] if proxy.report is not None else ():
        sentence = f"{proxy.node}: {clipped(problem)}"
        evidence = proxy.evidence(f"metadata.annotations[{ANNOTATION_PROGRESS}]", f"problems: {clipped(problem)}")
        if _GONE in problem:
            yield _finding(
                "N5", proxy, sentence, evidence,
                effect="while they were gone, Services were not reached from there", remedy="nft monitor",
            )  # fmt: skip
        else:
            yield _finding(
                "N3", proxy, sentence, evidence,
                effect="its kernel goes on with the rules of before",
                remedy=f"give the kernel of {proxy.node} what it lacks; its proxy tries again by itself",
            )  # fmt: skip


def _inputs_since(proxy: _Proxy) -> int:
    return proxy.report.inputs_since if proxy.report is not None else 0


def _frozen(facts: Facts, proxy: _Proxy) -> Finding:
    """N15"""
    since_s = facts.now - _inputs_since(proxy)
    return _finding(
        "N15",
        proxy,
        f"{proxy.node}: its inputs are {lasting(since_s)} old: its proxy lives, and hears nothing of the API server",
        proxy.evidence(f"metadata.annotations[{ANNOTATION_PROGRESS}]", f"inputs_since: {_inputs_since(proxy)}"),
        effect="its rules stay as they were then; what changed since does not reach clients there",
        remedy=f"see why its watches fail: the API server that it asks, and the log of the proxy of {proxy.node}",
    )


def _unlike_others(proxies: Iterable[_Proxy]) -> Iterator[tuple[_Proxy, Place, Held]]:
    """Those alone with their digest where at least two others have the same version of the same reading, and agree:
    caches of one version are equal, but where an event was lost."""
    alike: dict[tuple[Place, int], list[tuple[_Proxy, Held]]] = {}
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


def _lost_event(proxy: _Proxy, place: Place, held: Held) -> Finding:
    """N4.  Which object it is only the two contents can tell, which ``sliceplane drift`` compares."""
    resource, reading = place
    return _finding(
        "N4",
        proxy,
        f"{proxy.node} holds {resource} ({reading}) of version {held.revision} with another content than other nodes",
        proxy.evidence(f"metadata.annotations[{ANNOTATION_PROGRESS}]", f"{held.revision} {held.digest}"),
        effect="it goes on with endpoints that are no more, or without new ones, until that object changes again",
        remedy=f"sliceplane drift --node {proxy.node}",
    )


def _misnamed(facts: Facts, proxy: _Proxy) -> Iterator[Finding]:
    """N7.  Where there is no Node at all no name is wrong: machines outside Kubernetes may run a proxy, too."""
    if proxy.owned or facts.get(NODES, "", proxy.node) is not None or not facts.was_read(NODES.named("", proxy.node)):
        return
    names = sorted(node.metadata.name for node in facts.of(NODES))
    if not names:
        return
    said, flag = misnamed_proxy(proxy.node, names)
    yield _finding(
        "N7",
        proxy,
        f"a proxy says that it is {proxy.node}; {said}",
        proxy.evidence("spec.holderIdentity", proxy.node),
        effect="hints and local endpoints do not count there: with a policy of Local all is dropped",
        remedy=f"start that proxy with {flag}",
    )


CHECKS = (of_service, balancer_that_never_asks)
NODE_CHECKS = (of_node,)
