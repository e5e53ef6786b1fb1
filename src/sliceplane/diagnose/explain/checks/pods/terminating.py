"""Pods that stop being endpoints, because they ended or terminate; and Pods that are endpoints
nevertheless (one address twice, published before they are ready).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from sliceplane.api.discovery import ANNOTATION_DRAIN, EndpointSlice
from sliceplane.api.findings.codes import Severity
from sliceplane.api.findings.finding import Evidence, Finding
from sliceplane.api.findings.wording import clipped, count, lasting, part, since, some
from sliceplane.api.requests import Selection
from sliceplane.diagnose.explain.case import PodCase, PodsCase, ServiceCase, evidence_of, list_names
from sliceplane.diagnose.explain.checks.pods.rollouts import fallback
from sliceplane.diagnose.explain.checks.pods.states import state_reads
from sliceplane.diagnose.explain.checks.pods.troubles import (
    STARTING_S,
    Trouble,
    condition_evidence,
    effect_on,
    names_of,
    weigh,
)
from sliceplane.diagnose.explain.checks.pods.workloads import cannot_make_pods, root_of, scaled_down
from sliceplane.diagnose.explain.objects import PODS, SLICES, FullPod, pods_with_address

#: seconds that the kubelet needs to end a Pod, beyond its grace period
ENDING_S: Final = 60.0
GRACE_DEFAULT_S: Final = 30


def reads(case: PodsCase) -> Iterator[Selection]:
    """Yields the reads of ``state_reads``, and those of the current owner of an address: if the
    query is about a Pod, or an endpoint is of a Pod that ended.
    """
    yield from state_reads(case)
    if case.question.kind == "everything":
        return
    if isinstance(case, PodCase):
        yield from (
            pods_with_address(address)
            for pod in case.judged
            if _has_own_address(pod)
            for address in pod.status.ips[:1]
        )
    if isinstance(case, ServiceCase):
        yield from (
            pods_with_address(address) for address, _, _ in list(_endpoints_of_ended(case))[:1]
        )


def ended(case: PodsCase) -> Iterable[Finding]:
    """R10. If other Pods live, or the workload is scaled down, an ended Pod is no loss."""
    over = [pod for pod in case.judged if pod.has_ended]
    if not over or any(not pod.has_ended for pod in case.judged):
        return
    if isinstance(case, ServiceCase) and (list(scaled_down(case)) or list(cannot_make_pods(case))):
        return
    pod = over[-1]
    reason = f" ({pod.status.reason})" if pod.status.reason else ""
    root, name = root_of(pod), pod.metadata.name
    subject = (
        f"{count(len(over), 'matching Pod', 'has')} ended; {name}" if len(over) > 1 else f"{name}"
    )
    is_done = pod.status.phase == "Succeeded" and (root.kind == "Job" or case.subject.kind == "Pod")
    # A Service without an endpoint is never well, even if that is intended.
    done_weight: Severity = "note" if case.subject.kind == "Pod" else "warning"
    command = f"kubectl -n {pod.metadata.namespace} get {root.kind.lower()} {root.name} -o wide"
    yield case.finding(
        "R10",
        f"{subject}: {pod.status.phase}{reason}"
        + (f", {clipped(pod.status.message)}" if pod.status.message else ""),
        evidence_of(PODS, pod, "status.phase", f"{pod.status.phase}{reason}"),
        weight=done_weight if is_done else None,
        effect="a Pod that ended is no endpoint, and never starts again",
        remedy="make the Pod anew: it has no owner that would" if root.kind == "Pod" else command,
    )


def terminating(case: PodsCase) -> Iterable[Finding]:
    """R11. If proxies fall back to terminating Pods, D6 reports it."""
    deleting = [pod for pod in case.judged if pod.metadata.is_deleting and not pod.has_ended]
    if (
        not deleting
        or case.is_served
        or any(not pod.metadata.is_deleting and not pod.has_ended for pod in case.judged)
    ):
        return
    pod = deleting[0]
    metadata = pod.metadata
    grace = metadata.deletion_grace_period_seconds
    grace = GRACE_DEFAULT_S if grace is None else grace
    # deletionTimestamp is the end of the grace period.
    age = max(0.0, (since(metadata.deletion_timestamp, case.now) or 0.0) + grace)
    serving = "still serving, which counts while no Pod is ready" if pod.is_ready else "not serving"
    if isinstance(case, PodCase) and not case.services:
        serving = "still running" if pod.is_ready else "not ready"
    waits = f"; it waits for {some(metadata.finalizers)}" if metadata.finalizers else ""
    delete = f"kubectl -n {metadata.namespace} delete pod {metadata.name} --force --grace-period=0"
    remedy = "wait until another Pod is ready, or see why none is made"
    if waits:
        remedy = f"see why the owner of {some(metadata.finalizers or ())} does not act: its log"
    elif age > grace + ENDING_S:
        remedy = delete
    trouble = Trouble(
        "R11",
        f"terminating for {lasting(age)}, {grace} s allowed; {serving}{waits}",
        age,
        (evidence_of(PODS, pod, "metadata.deletionTimestamp", metadata.deletion_timestamp or ""),),
        remedy,
        allowed_s=grace + ENDING_S,
    )
    weight = weigh(case, trouble)
    severity = weight.severity if weight is not None else None
    if severity == "note" and isinstance(case, ServiceCase) and list(fallback(case)):
        return
    yield case.finding(
        "R11",
        f"{names_of(case, deleting)}: {trouble.sentence}",
        *trouble.evidence,
        weight="warning" if severity == "note" else severity,
        effect="connections that it has go on until it ends"
        if pod.is_ready
        else effect_on(case, deleting),
        remedy=trouble.remedy,
    )


def drained(case: PodsCase) -> Iterable[Finding]:
    """R11, about drained Pods that nothing deletes. If others serve, a Service lacks nothing."""
    marked = [
        pod
        for pod in case.judged
        if pod.is_drained and pod.is_ready and not pod.metadata.is_deleting and not pod.has_ended
    ]
    if not marked or case.is_served or (isinstance(case, ServiceCase) and case.ready):
        return
    if isinstance(case, PodCase) and all(
        service.spec.publish_not_ready_addresses for service in case.services
    ):
        return
    marks = [(pod.metadata.annotations or {})[ANNOTATION_DRAIN] for pod in marked]
    age = since(marks[0], case.now)
    names = " ".join(pod.metadata.name for pod in marked)
    yield case.finding(
        "R11",
        f"{names_of(case, marked)}: ready, and marked by sliceplane drain"
        + (f" for {lasting(age)}" if age is not None else ""),
        evidence_of(PODS, marked[0], f"metadata.annotations[{ANNOTATION_DRAIN}]", marks[0]),
        weight="error" if isinstance(case, ServiceCase) else "note",
        effect=effect_on(case, marked),
        remedy=f"kubectl -n {case.namespace} annotate pod {names} {ANNOTATION_DRAIN}-",
    )


def one_address_twice(case: PodsCase) -> Iterable[Finding]:
    """R13"""
    for pod in case.judged:
        if not _has_own_address(pod) or pod.has_ended:
            continue
        for address in pod.status.ips:
            others = _others_at(case, address, pod)
            if others:
                yield _twice(case, address, pod, others[0])
                return
    if isinstance(case, ServiceCase):
        for address, endpoint_slice, dead in _endpoints_of_ended(case):
            others = _others_at(case, address, dead)
            if others:
                yield _twice(
                    case,
                    address,
                    others[0],
                    dead,
                    evidence_of(SLICES, endpoint_slice, "endpoints", address),
                )
                return


def _has_own_address(pod: FullPod) -> bool:
    """Returns False for a Pod in its node's network, which shares the node's address."""
    return not pod.spec.host_network


def _others_at(case: PodsCase, address: str, pod: FullPod) -> list[FullPod]:
    return [
        other
        for other in case.facts.pods_at(address)
        if _has_own_address(other) and other.metadata.uid != pod.metadata.uid
    ]


def _endpoints_of_ended(case: ServiceCase) -> Iterator[tuple[str, EndpointSlice, FullPod]]:
    for endpoint_slice, endpoint in case.endpoints:
        target = endpoint.target_ref
        pod = case.get(PODS, target.name) if target is not None and target.kind == "Pod" else None
        if pod is not None and pod.has_ended and endpoint.addresses:
            yield endpoint.addresses[0], endpoint_slice, pod


def _twice(
    case: PodsCase, address: str, pod: FullPod, other: FullPod, *evidence: Evidence
) -> Finding:
    phase = f", {other.status.phase}," if other.has_ended else ""
    unlike = other.has_ended or not other.is_ready
    loser = other if unlike else pod
    return case.finding(
        "R13",
        f"{address} is {pod.metadata.key}'s and{phase} {other.metadata.key}'s",
        evidence_of(PODS, pod, "status.podIPs", ", ".join(pod.status.ips)),
        evidence_of(PODS, other, "status.podIPs", ", ".join(other.status.ips)),
        *evidence,
        effect="which of the two answers is up to the network",
        remedy=f"kubectl -n {loser.metadata.namespace} delete pod {loser.metadata.name}",
    )


def published_unready(case: ServiceCase) -> Iterable[Finding]:
    """R14. Peers behind a headless Service find each other before they are ready, which is its
    purpose.
    """
    service = case.service
    if not service.spec.publish_not_ready_addresses or case.pod is not None:
        return
    unready = [
        pod
        for pod in case.live
        if not pod.is_ready and not pod.metadata.is_deleting and pod.status.ips
    ]
    old = [pod for pod in unready if (since(pod.status.start_time, case.now) or 0.0) >= STARTING_S]
    if not old or (case.is_headless and case.question.kind == "everything"):
        return
    yield case.finding(
        "R14",
        f"{part(len(old), len(case.live), 'Pod', 'is')} published on purpose without being ready "
        f"({some(list_names(old))})",
        case.field("spec.publishNotReadyAddresses", "true"),
        condition_evidence(old[0], "Ready", "False"),
        weight=None if case.is_headless else "warning",
        effect="they get connections before they can answer them",
        remedy=case.patch({"spec": {"publishNotReadyAddresses": False}}),
    )


CHECKS: Final = (ended, terminating, drained, one_address_twice, published_unready)
POD_CHECKS: Final = (ended, terminating, drained, one_address_twice)
