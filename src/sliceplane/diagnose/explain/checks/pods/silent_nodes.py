"""Nodes that are silent, not ready or shut down, and the effect on their Pods.

A fault of a node is reported once, whichever of its Pods led to it: in a list of all Services the
sentence is the same for each of them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import Final

import msgspec

from sliceplane.api.core import Node
from sliceplane.api.findings.finding import Finding
from sliceplane.api.findings.wording import clipped, count, lasting, since, some, verb
from sliceplane.api.meta import Condition
from sliceplane.api.requests import Selection
from sliceplane.diagnose.explain.case import NodeCase, PodsCase, evidence_of, list_names, name_of
from sliceplane.diagnose.explain.checks.pods.states import LEASES_OF_NODES, leases_of_leaders
from sliceplane.diagnose.explain.checks.pods.troubles import STARTING_S, condition_evidence
from sliceplane.diagnose.explain.facts import Facts
from sliceplane.diagnose.explain.objects import LEASES, NODES, PODS, FullPod

#: a kubelet renews its Lease every 10 s (kubernetes.io, "Nodes", heartbeats)
KUBELET_SILENT_S: Final = 20.0
#: seconds until a silent kubelet's node counts as lost
KUBELET_LOST_S: Final = 40.0
#: seconds in which a node that just joined may be not ready
NODE_STARTING_S: Final = 120.0
_TAINT_SHUTDOWN: Final = "node.cloudprovider.kubernetes.io/shutdown"


class _NodeView(msgspec.Struct, frozen=True):
    """A node with the Pods of a query on it. ``label``: a phrase for these Pods. ``is_lone``: no
    Pod elsewhere serves instead of them.
    """

    facts: Facts
    node: Node
    ready: Condition
    pods: list[FullPod]
    label: str
    is_lone: bool

    @property
    def name(self) -> str:
        return self.node.metadata.name


def silent_nodes(case: PodsCase) -> Iterable[Finding]:
    """R8, R9, R12"""
    by_node: dict[str, list[FullPod]] = defaultdict(list)
    for pod in case.judged:
        if pod.spec.node_name and not pod.has_ended:
            by_node[pod.spec.node_name].append(pod)
    for name, pods in sorted(by_node.items()):
        node = case.facts.get(NODES, "", name)
        ready = node.ready_condition if node is not None else None
        if node is None or ready is None:
            continue
        if case.question.kind == "everything":
            # The same sentence for each Service, so that the node is reported once.
            node_pods = case.facts.derived(_pods_by_node).get(name, [])
            yield from _of_node(
                _NodeView(case.facts, node, ready, node_pods, _running(node_pods), True)
            )
        else:
            label = (
                f"Pod {case.name}"
                if case.subject.kind == "Pod"
                else f"{count(len(pods), 'Pod')} of {case.name}"
            )
            yield from _of_node(_NodeView(case.facts, node, ready, pods, label, not case.is_served))


def node_reads(case: NodeCase) -> Iterator[Selection]:
    yield NODES.named("", case.name)
    if case.node is not None:
        yield LEASES.named(LEASES_OF_NODES, case.name)
        yield from leases_of_leaders()
        yield Selection(PODS.resource, field_selector=f"spec.nodeName={case.name}")


def silent_node(case: NodeCase) -> Iterable[Finding]:
    """R8, R9, R12"""
    ready = case.node.ready_condition if case.node is not None else None
    if case.node is not None and ready is not None:
        pods = case.facts.derived(_pods_by_node).get(case.name, [])
        yield from _of_node(_NodeView(case.facts, case.node, ready, pods, _running(pods), True))


def _of_node(view: _NodeView) -> Iterator[Finding]:
    # A node is checked for each Service with a Pod there: visit its Pods only if there is a fault.
    is_ending = _is_shutting_down(view)
    unaware = (
        [pod for pod in view.pods if pod.is_ready and not pod.metadata.is_deleting]
        if is_ending
        else []
    )
    if unaware:
        yield _shutting_down(view, unaware)
    elif view.ready.status != "True":
        yield from _silent(view)
    else:
        yield from _growing_silent(view)


def _running(pods: list[FullPod]) -> str:
    return count(len(pods), "Pod")


def _pods_by_node(facts: Facts) -> dict[str, list[FullPod]]:
    grouped: dict[str, list[FullPod]] = defaultdict(list)
    for pod in facts.of(PODS):
        if pod.spec.node_name and not pod.has_ended:
            grouped[pod.spec.node_name].append(pod)
    return dict(grouped)


def _silent(view: _NodeView) -> Iterator[Finding]:
    ready, now = view.ready, view.facts.now
    age = since(ready.last_transition_time, now) or 0.0
    born = since(view.node.metadata.creation_timestamp, now)
    if born is not None and born < NODE_STARTING_S:
        return
    marked = sorted(
        condition.last_transition_time or ""
        for pod in view.pods
        if (condition := pod.condition("Ready")) is not None and condition.status != "True"
    )
    state = f"is silent for {lasting(age)}"
    effect = "its Pods are no ready endpoints until it is back, or others are made elsewhere"
    if ready.status == "False":
        state = f"is not ready for {lasting(age)}: {clipped(ready.message)}"
        if not marked:
            effect = (
                "its Pods stay ready endpoints while its kubelet calls them ready, and are "
                "evicted after 5 min"
            )
    yield Finding(
        code="R8",
        subject=name_of(NODES, view.node),
        weight=None if view.is_lone else "warning",
        sentence=f"{view.name} {state}; {view.label} there"
        + (f", marked at {marked[-1][11:]}" if marked else ""),
        evidence=(
            evidence_of(
                NODES,
                view.node,
                "status.conditions[Ready]",
                f"{ready.status} ({ready.reason}) since {ready.last_transition_time}",
            ),
        ),
        effect=effect,
        remedy=f"look at its kubelet and its link; to give it up: kubectl drain {view.name} "
        "--ignore-daemonsets --force",
    )


def _growing_silent(view: _NodeView) -> Iterator[Finding]:
    lease = view.facts.get(LEASES, LEASES_OF_NODES, view.name)
    age = since(lease.spec.renew_time, view.facts.now) if lease is not None else None
    # If no Lease is fresh, the reader's clock differs, or the API server was unavailable.
    if (
        lease is None
        or age is None
        or age < KUBELET_SILENT_S
        or view.facts.derived(_freshest) >= KUBELET_SILENT_S
    ):
        return
    until = "the Node still says Ready"
    if age < KUBELET_LOST_S + STARTING_S:
        until = f"its Pods stay endpoints until {KUBELET_LOST_S:.0f} s"
    yield Finding(
        code="R9",
        subject=name_of(NODES, view.node),
        certainty="likely",
        sentence=f"the kubelet of {view.name} is silent for {lasting(age)}; {until}: "
        f"{view.label} there",
        evidence=(evidence_of(LEASES, lease, "spec.renewTime", lease.spec.renew_time or ""),),
        effect="if the node is lost, connections to its Pods hang until then",
        remedy=f"kubectl drain {view.name} --ignore-daemonsets --delete-emptydir-data",
    )


def _freshest(facts: Facts) -> float:
    """Returns the seconds since the last renewal of any Lease that was read."""
    ages = (since(lease.spec.renew_time, facts.now) for lease in facts.of(LEASES))
    return min((age for age in ages if age is not None), default=KUBELET_SILENT_S)


def _is_shutting_down(view: _NodeView) -> bool:
    """Returns True if the kubelet reports a graceful shutdown, or a cloud's taint does."""
    tainted = any(taint.key == _TAINT_SHUTDOWN for taint in view.node.spec.taints or ())
    return tainted or (view.ready.status != "True" and "shutting down" in view.ready.message)


def _shutting_down(view: _NodeView, unaware: list[FullPod]) -> Finding:
    names = some(list_names(unaware))
    return Finding(
        code="R12",
        subject=name_of(NODES, view.node),
        sentence=f"{view.name} shuts down; {count(len(unaware), 'Pod')} there "
        f"{verb(len(unaware), 'does')} not say so ({names})",
        evidence=(
            evidence_of(
                NODES,
                view.node,
                "status.conditions[Ready]",
                f"{view.ready.status}: {clipped(view.ready.message)}",
            ),
            condition_evidence(unaware[0], "Ready", "True"),
        ),
        effect="they stay ready endpoints, and refuse connections as soon as they are ended",
        remedy=f"kubectl drain {view.name} --ignore-daemonsets --delete-emptydir-data",
    )
