"""Nodes that are silent, not ready or shut down, with what becomes of the Pods there.

What is wrong with a node is told once for the node, whichever of its Pods led there: in a list of
all Services the words are the same for each of them.
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
from sliceplane.diagnose.explain.case import NodeCase, PodsCase, list_names, name_of, seen
from sliceplane.diagnose.explain.checks.pods.states import LEASES_OF_NODES, leases_of_leaders
from sliceplane.diagnose.explain.checks.pods.troubles import STARTING_S, seen_condition
from sliceplane.diagnose.explain.facts import Facts
from sliceplane.diagnose.explain.objects import LEASES, NODES, PODS, FullPod

#: a kubelet renews its Lease every 10 s (kubernetes.io, "Nodes", heartbeats)
KUBELET_SILENT_S: Final = 20.0
#: and is given up after so long
KUBELET_LOST_S: Final = 40.0
#: a node that just joined is not ready for a while
NODE_STARTING_S: Final = 120.0
_TAINT_SHUTDOWN: Final = "node.cloudprovider.kubernetes.io/shutdown"


class _NodeHere(msgspec.Struct, frozen=True):
    """A node as a question sees it. ``pods``: those there that the question is about; ``told``:
    what they are called. ``is_lone``: no Pod elsewhere serves in their place, as far as the
    question goes.
    """

    facts: Facts
    node: Node
    ready: Condition
    pods: list[FullPod]
    told: str
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
            # The same words for each Service, so that the node is told once.
            here = case.facts.derived(_pods_by_node).get(name, [])
            yield from _of_node(_NodeHere(case.facts, node, ready, here, _running(here), True))
        else:
            told = (
                f"Pod {case.name}"
                if case.subject.kind == "Pod"
                else f"{count(len(pods), 'Pod')} of {case.name}"
            )
            yield from _of_node(_NodeHere(case.facts, node, ready, pods, told, not case.is_served))


def node_wants(case: NodeCase) -> Iterator[Selection]:
    yield NODES.named("", case.name)
    if case.node is not None:
        yield LEASES.named(LEASES_OF_NODES, case.name)
        yield from leases_of_leaders()
        yield Selection(PODS.resource, field_selector=f"spec.nodeName={case.name}")


def silent_node(case: NodeCase) -> Iterable[Finding]:
    """R8, R9, R12"""
    ready = case.node.ready_condition if case.node is not None else None
    if case.node is not None and ready is not None:
        here = case.facts.derived(_pods_by_node).get(case.name, [])
        yield from _of_node(_NodeHere(case.facts, case.node, ready, here, _running(here), True))


def _of_node(here: _NodeHere) -> Iterator[Finding]:
    # A node is looked at for each Service with a Pod there: its Pods are gone through only where
    # something is wrong.
    is_ending = _is_shutting_down(here)
    unaware = (
        [pod for pod in here.pods if pod.is_ready and not pod.metadata.is_deleting]
        if is_ending
        else []
    )
    if unaware:
        yield _shutting_down(here, unaware)
    elif here.ready.status != "True":
        yield from _silent(here)
    else:
        yield from _growing_silent(here)


def _running(pods: list[FullPod]) -> str:
    return count(len(pods), "Pod")


def _pods_by_node(facts: Facts) -> dict[str, list[FullPod]]:
    grouped: dict[str, list[FullPod]] = defaultdict(list)
    for pod in facts.of(PODS):
        if pod.spec.node_name and not pod.has_ended:
            grouped[pod.spec.node_name].append(pod)
    return dict(grouped)


def _silent(here: _NodeHere) -> Iterator[Finding]:
    ready, now = here.ready, here.facts.now
    age = since(ready.last_transition_time, now) or 0.0
    born = since(here.node.metadata.creation_timestamp, now)
    if born is not None and born < NODE_STARTING_S:
        return
    marked = sorted(
        condition.last_transition_time or ""
        for pod in here.pods
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
        subject=name_of(NODES, here.node),
        weight=None if here.is_lone else "warning",
        sentence=f"{here.name} {state}; {here.told} there"
        + (f", marked at {marked[-1][11:]}" if marked else ""),
        evidence=(
            seen(
                NODES,
                here.node,
                "status.conditions[Ready]",
                f"{ready.status} ({ready.reason}) since {ready.last_transition_time}",
            ),
        ),
        effect=effect,
        remedy=f"look at its kubelet and its link; to give it up: kubectl drain {here.name} "
        "--ignore-daemonsets --force",
    )


def _growing_silent(here: _NodeHere) -> Iterator[Finding]:
    lease = here.facts.get(LEASES, LEASES_OF_NODES, here.name)
    age = since(lease.spec.renew_time, here.facts.now) if lease is not None else None
    # None is fresh: the clock of the reader differs from the others', or the API server was away.
    if (
        lease is None
        or age is None
        or age < KUBELET_SILENT_S
        or here.facts.derived(_freshest) >= KUBELET_SILENT_S
    ):
        return
    until = "the Node still says Ready"
    if age < KUBELET_LOST_S + STARTING_S:
        until = f"its Pods stay endpoints until {KUBELET_LOST_S:.0f} s"
    yield Finding(
        code="R9",
        subject=name_of(NODES, here.node),
        certainty="likely",
        sentence=f"the kubelet of {here.name} is silent for {lasting(age)}; {until}: "
        f"{here.told} there",
        evidence=(seen(LEASES, lease, "spec.renewTime", lease.spec.renew_time or ""),),
        effect="if the node is lost, connections to its Pods hang until then",
        remedy=f"kubectl drain {here.name} --ignore-daemonsets --delete-emptydir-data",
    )


def _freshest(facts: Facts) -> float:
    """Seconds since the last renewal of any Lease that was read."""
    ages = (since(lease.spec.renew_time, facts.now) for lease in facts.of(LEASES))
    return min((age for age in ages if age is not None), default=KUBELET_SILENT_S)


def _is_shutting_down(here: _NodeHere) -> bool:
    """The kubelet's words at a graceful shutdown, or a cloud's taint."""
    tainted = any(taint.key == _TAINT_SHUTDOWN for taint in here.node.spec.taints or ())
    return tainted or (here.ready.status != "True" and "shutting down" in here.ready.message)


def _shutting_down(here: _NodeHere, unaware: list[FullPod]) -> Finding:
    names = some(list_names(unaware))
    return Finding(
        code="R12",
        subject=name_of(NODES, here.node),
        sentence=f"{here.name} shuts down; {count(len(unaware), 'Pod')} there "
        f"{verb(len(unaware), 'does')} not say so ({names})",
        evidence=(
            seen(
                NODES,
                here.node,
                "status.conditions[Ready]",
                f"{here.ready.status}: {clipped(here.ready.message)}",
            ),
            seen_condition(unaware[0], "Ready", "True"),
        ),
        effect="they stay ready endpoints, and refuse connections as soon as they are ended",
        remedy=f"kubectl drain {here.name} --ignore-daemonsets --delete-emptydir-data",
    )
