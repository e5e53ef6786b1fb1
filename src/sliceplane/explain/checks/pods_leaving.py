"""Pods that stop being endpoints, or should: their node is silent or goes down, they ended, they leave; and those that
are endpoints all the same (one address twice, published before they are ready).

What is wrong with a node is told once for the node.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import Final

from sliceplane.api.core import Node
from sliceplane.api.discovery import EndpointSlice
from sliceplane.api.meta import Condition
from sliceplane.api.requests import Selection
from sliceplane.explain.case import PodCase, PodsCase, ServiceCase, name_of, pod_name, seen
from sliceplane.explain.checks.pods import (
    LEASES_OF_NODES,
    STARTING_S,
    Trouble,
    effect_on,
    names_of,
    seen_condition,
    wants_of_state,
    weigh,
)
from sliceplane.explain.checks.rollouts import fallback
from sliceplane.explain.checks.selection import cannot_make_pods, scaled_down
from sliceplane.explain.checks.workloads import root_of
from sliceplane.explain.facts import Facts
from sliceplane.explain.objects import LEASES, NODES, PODS, SLICES, FullPod
from sliceplane.explain.wording import clipped, count, lasting, patch, since, some
from sliceplane.findings.finding import Evidence, Finding

#: a kubelet renews its Lease every 10 s (kubernetes.io, "Nodes", heartbeats)
KUBELET_SILENT_S: Final = 20.0
#: and is given up after so long
KUBELET_LOST_S: Final = 40.0
#: a node that just joined is not ready for a while
NODE_STARTING_S: Final = 120.0
#: beyond its grace period, what the kubelet needs to end a Pod
ENDING_S: Final = 60.0
GRACE_DEFAULT_S: Final = 30
_TAINT_SHUTDOWN: Final = "node.cloudprovider.kubernetes.io/shutdown"


def wants(case: PodsCase) -> Iterator[Selection]:
    """Besides what the state of Pods needs, whose an address is now: where a Pod is the question, or an endpoint is of
    a Pod that ended."""
    yield from wants_of_state(case)
    if case.question.kind == "everything":
        return
    if isinstance(case, PodCase):
        yield from (_pods_at(address) for pod in case.judged if _is_apart(pod) for address in pod.addresses[:1])
    if isinstance(case, ServiceCase):
        yield from (_pods_at(address) for address, _, _ in list(_endpoints_of_ended(case))[:1])


def _pods_at(address: str) -> Selection:
    return Selection(PODS.resource, field_selector=f"status.podIP={address}")


# Nodes


def silent_nodes(case: PodsCase) -> Iterable[Finding]:
    """R8, R9, R12"""
    by_node: dict[str, list[FullPod]] = defaultdict(list)
    for pod in case.judged:
        if pod.spec.node_name and not pod.is_over:
            by_node[pod.spec.node_name].append(pod)
    for name, pods in sorted(by_node.items()):
        node = case.facts.get(NODES, "", name)
        ready = _condition(node, "Ready") if node is not None else None
        if node is None or ready is None:
            continue
        here = case.facts.derived(_pods_by_node).get(name, []) if case.question.kind == "everything" else pods
        if _is_shutting_down(node, ready):
            yield from _shutting_down(case, node, ready, here)
        elif ready.status != "True":
            yield from _silent(case, node, ready, here)
        else:
            yield from _growing_silent(case, node, here)


def _pods_by_node(facts: Facts) -> dict[str, list[FullPod]]:
    grouped: dict[str, list[FullPod]] = defaultdict(list)
    for pod in facts.of(PODS):
        if pod.spec.node_name and not pod.is_over:
            grouped[pod.spec.node_name].append(pod)
    return dict(grouped)


def _condition(node: Node, kind: str) -> Condition | None:
    return next((entry for entry in node.status.conditions or () if entry.type == kind), None)


def _its_pods(case: PodsCase, pods: list[FullPod]) -> str:
    """In a list of all Services the same words for each, so that the node is told once."""
    if case.subject.kind == "Pod":
        return f"Pod {case.name} is there"
    there = count(len(pods), "Pod")
    return f"{there} run there" if case.question.kind == "everything" else f"{there} of {case.name} there"


def _silent(case: PodsCase, node: Node, ready: Condition, pods: list[FullPod]) -> Iterator[Finding]:
    age = since(ready.last_transition_time, case.now) or 0.0
    born = since(node.metadata.creation_timestamp, case.now)
    if born is not None and born < NODE_STARTING_S:
        return
    name = node.metadata.name
    marked = sorted(
        condition.last_transition_time or ""
        for pod in pods
        if (condition := pod.condition("Ready")) is not None and condition.status != "True"
    )
    is_known = ready.status == "False"
    state = (
        f"is not ready for {lasting(age)}: {clipped(ready.message)}" if is_known else f"is silent for {lasting(age)}"
    )
    told = f", marked at {marked[-1][11:]}" if marked and case.question.kind != "everything" else ""
    lone = case.question.kind == "everything" or not case.is_served
    yield Finding(
        code="R8",
        subject=name_of(NODES, node),
        weight=None if lone else "warning",
        sentence=f"{name} {state}; {_its_pods(case, pods)}{told}",
        evidence=(
            seen(NODES, node, "status.conditions[Ready]", f"{ready.status} ({ready.reason}) since "
                 f"{ready.last_transition_time}"),
        ),
        effect="its Pods are no ready endpoints until it is back, or others are made elsewhere",
        remedy=f"look at its kubelet and its link; to give it up: kubectl drain {name} --ignore-daemonsets --force",
    )  # fmt: skip


def _growing_silent(case: PodsCase, node: Node, pods: list[FullPod]) -> Iterator[Finding]:
    ages = case.facts.derived(_kubelet_silences)
    age = ages.get(node.metadata.name)
    # All of them old: the clocks of reader and kubelets differ, or the API server was away.
    if age is None or age < KUBELET_SILENT_S or (len(ages) > 1 and min(ages.values()) >= KUBELET_SILENT_S):
        return
    until = (
        f"its Pods stay endpoints until {KUBELET_LOST_S:.0f} s"
        if age < KUBELET_LOST_S + STARTING_S
        else "the Node still says Ready"
    )
    lease = case.facts.get(LEASES, LEASES_OF_NODES, node.metadata.name)
    assert lease is not None, "its age is known"
    yield Finding(
        code="R9",
        subject=name_of(NODES, node),
        certainty="likely",
        sentence=f"the kubelet of {node.metadata.name} is silent for {lasting(age)}; {until}: {_its_pods(case, pods)}",
        evidence=(seen(LEASES, lease, "spec.renewTime", lease.spec.renew_time or ""),),
        effect="if the node is lost, connections to its Pods hang until then",
        remedy=f"kubectl drain {node.metadata.name} --ignore-daemonsets --delete-emptydir-data",
    )


def _kubelet_silences(facts: Facts) -> dict[str, float]:
    """Seconds since each node's kubelet renewed its Lease."""
    ages = (
        (lease.metadata.name, since(lease.spec.renew_time, facts.now)) for lease in facts.of(LEASES, LEASES_OF_NODES)
    )
    return {name: age for name, age in ages if age is not None}


def _is_shutting_down(node: Node, ready: Condition) -> bool:
    """The kubelet's words at a graceful shutdown, or a cloud's taint."""
    tainted = any(taint.key == _TAINT_SHUTDOWN for taint in node.spec.taints or ())
    return tainted or (ready.status != "True" and "shutting down" in ready.message)


def _shutting_down(case: PodsCase, node: Node, ready: Condition, pods: list[FullPod]) -> Iterator[Finding]:
    unaware = [pod for pod in pods if pod.is_ready and not pod.is_going]
    if not unaware:
        yield from _silent(case, node, ready, pods)
        return
    name = node.metadata.name
    yield Finding(
        code="R12",
        subject=name_of(NODES, node),
        sentence=f"{name} shuts down; {count(len(unaware), 'Pod')} there neither leave nor say that they are not ready "
        f"({some([pod.metadata.name for pod in unaware])})",
        evidence=(
            seen(NODES, node, "status.conditions[Ready]", f"{ready.status}: {clipped(ready.message)}"),
            seen_condition(unaware[0], "Ready", "True"),
        ),
        effect="they stay ready endpoints, and refuse connections as soon as they are ended",
        remedy=f"kubectl drain {name} --ignore-daemonsets --delete-emptydir-data",
    )


# Pods


def ended(case: PodsCase) -> Iterable[Finding]:
    """R10.  Where others live or were asked not to, one that ended is no loss."""
    over = [pod for pod in case.judged if pod.is_over]
    if not over or any(not pod.is_over for pod in case.judged):
        return
    if isinstance(case, ServiceCase) and (list(scaled_down(case)) or list(cannot_make_pods(case))):
        return
    pod = over[-1]
    reason = f" ({pod.status.reason})" if pod.status.reason else ""
    root, name = root_of(pod), pod.metadata.name
    several = f"{count(len(over), 'Pod')} that match have ended; {name}" if len(over) > 1 else f"{name}"
    is_job = root.kind == "Job" or (case.subject.kind == "Pod" and pod.status.phase == "Succeeded")
    again = f"kubectl -n {pod.metadata.namespace} get {root.kind.lower()} {root.name} -o wide"
    yield Finding(
        code="R10",
        subject=case.subject,
        weight="note" if is_job and case.subject.kind == "Pod" else None,
        sentence=f"{several}: {pod.status.phase}{reason}"
        + (f", {clipped(pod.status.message)}" if pod.status.message else ""),
        evidence=(Evidence(subject=pod_name(pod), field="status.phase", value=f"{pod.status.phase}{reason}"),),
        effect="a Pod that ended is no endpoint, and never starts again",
        remedy="make the Pod anew: it has no owner that would" if root.kind == "Pod" else again,
    )


def leaving(case: PodsCase) -> Iterable[Finding]:
    """R11.  Where proxies fall back to Pods that leave in time, D6 says so."""
    going = [pod for pod in case.judged if pod.is_going and not pod.is_over]
    if not going or case.is_served or any(not pod.is_going and not pod.is_over for pod in case.judged):
        return
    pod = going[0]
    metadata = pod.metadata
    grace = metadata.deletion_grace_period_seconds
    grace = GRACE_DEFAULT_S if grace is None else grace
    # The time of deletion is when the grace period ends.
    age = max(0.0, (since(metadata.deletion_timestamp, case.now) or 0.0) + grace)
    serving = "serving, used only while no Pod is ready" if pod.is_ready else "not serving"
    held = f"; it waits for {some(metadata.finalizers)}" if metadata.finalizers else ""
    delete = f"kubectl -n {metadata.namespace} delete pod {metadata.name} --force --grace-period=0"
    trouble = Trouble(
        "R11",
        f"terminating for {lasting(age)} of {grace} s; {serving}{held}",
        age,
        (Evidence(subject=pod_name(pod), field="metadata.deletionTimestamp", value=metadata.deletion_timestamp or ""),),
        delete if age > grace + ENDING_S and not held else "wait until another Pod is ready, or see why none is made",
        allowed_s=grace + ENDING_S,
    )
    weight = weigh(case, trouble)
    if weight == "note" and isinstance(case, ServiceCase) and list(fallback(case)):
        return
    yield Finding(
        code="R11",
        subject=case.subject,
        weight="warning" if weight == "note" else weight,
        sentence=f"{names_of(case, going)}: {trouble.words}",
        evidence=trouble.evidence,
        effect="connections that it has go on until it ends" if pod.is_ready else effect_on(case, going),
        remedy=trouble.remedy,
    )


def one_address_twice(case: PodsCase) -> Iterable[Finding]:
    """R13"""
    holders = case.facts.derived(_holders)
    for pod in case.judged:
        if not _is_apart(pod) or pod.is_over:
            continue
        for address in pod.addresses:
            others = [other for other in holders.get(address, []) if other.metadata.uid != pod.metadata.uid]
            if others:
                yield _twice(case, address, pod, others[0])
                return
    if isinstance(case, ServiceCase):
        for address, endpoint_slice, dead in _endpoints_of_ended(case):
            others = [other for other in holders.get(address, []) if other.metadata.uid != dead.metadata.uid]
            if others:
                yield _twice(case, address, others[0], dead, seen(SLICES, endpoint_slice, "endpoints", address))
                return


def _is_apart(pod: FullPod) -> bool:
    """Pods in the network of their node share its address."""
    return not pod.spec.host_network


def _holders(facts: Facts) -> dict[str, list[FullPod]]:
    grouped: dict[str, list[FullPod]] = defaultdict(list)
    for pod in facts.of(PODS):
        if _is_apart(pod) and not pod.is_over:
            for address in pod.addresses:
                grouped[address].append(pod)
    return dict(grouped)


def _endpoints_of_ended(case: ServiceCase) -> Iterator[tuple[str, EndpointSlice, FullPod]]:
    for endpoint_slice, endpoint in case.endpoints:
        target = endpoint.target_ref
        pod = case.facts.get(PODS, case.namespace, target.name) if target is not None and target.kind == "Pod" else None
        if pod is not None and pod.is_over and endpoint.addresses:
            yield endpoint.addresses[0], endpoint_slice, pod


def _twice(case: PodsCase, address: str, pod: FullPod, other: FullPod, *evidence: Evidence) -> Finding:
    phase = f", {other.status.phase}," if other.is_over else ""
    unlike = other.is_over or not other.is_ready
    loser = other if unlike else pod
    return Finding(
        code="R13",
        subject=case.subject,
        sentence=f"{address} is {pod.metadata.key}'s and{phase} {other.metadata.key}'s",
        evidence=(
            Evidence(subject=pod_name(pod), field="status.podIPs", value=", ".join(pod.addresses)),
            Evidence(subject=pod_name(other), field="status.podIPs", value=", ".join(other.addresses)),
            *evidence,
        ),
        effect="which of the two answers is up to the network",
        remedy=f"kubectl -n {loser.metadata.namespace} delete pod {loser.metadata.name}",
    )


def published_unready(case: ServiceCase) -> Iterable[Finding]:
    """R14.  Behind a headless Service peers look for one another before they are ready, which is what it is for."""
    service = case.service
    if service is None or not service.spec.publish_not_ready_addresses or case.pod is not None:
        return
    unready = [pod for pod in case.live if not pod.is_ready and not pod.is_going and pod.addresses]
    old = [pod for pod in unready if (since(pod.status.start_time, case.now) or 0.0) >= STARTING_S]
    if not old or (case.is_headless and case.question.kind == "everything"):
        return
    yield Finding(
        code="R14",
        subject=case.subject,
        weight=None if case.is_headless else "warning",
        sentence=f"{len(old)} of {count(len(case.live), 'Pod')} that are not ready are published on purpose "
        f"({some([pod.metadata.name for pod in old])})",
        evidence=(case.field("spec.publishNotReadyAddresses", "true"), seen_condition(old[0], "Ready", "False")),
        effect="they get connections before they can answer them",
        remedy=patch(case.namespace, "service", case.name, {"spec": {"publishNotReadyAddresses": False}}),
    )


CHECKS: Final = (silent_nodes, ended, leaving, one_address_twice, published_unready)
POD_CHECKS: Final = (silent_nodes, ended, leaving, one_address_twice)
