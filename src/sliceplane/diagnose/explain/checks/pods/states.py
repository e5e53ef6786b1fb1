"""Why a Pod is not an endpoint: the state in its own object.

A Pod without a node waits for the scheduler; for the others ``DIAGNOSES`` are tried in order, and
the first that applies is reported. Pods with the same trouble are one finding.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Final

from sliceplane.api.findings.finding import Evidence, Finding
from sliceplane.api.findings.wording import clipped, count, lasting, since
from sliceplane.api.requests import Selection
from sliceplane.diagnose.explain.case import PodsCase, evidence_of
from sliceplane.diagnose.explain.checks.pods.troubles import (
    Trouble,
    age_of,
    condition_evidence,
    effect_on,
    gate_is_closed,
    last_event,
    names_of,
    not_ready,
    statuses_of,
    weigh,
)
from sliceplane.diagnose.explain.checks.pods.workloads import root_of
from sliceplane.diagnose.explain.checks.slices import LEADERS
from sliceplane.diagnose.explain.objects import (
    EVENTS,
    LEASES,
    NODES,
    PODS,
    FullContainer,
    FullPod,
    events_about,
)

#: seconds since the last exit of a container that crashes repeatedly
RECENT_CRASH_S: Final = 600.0
CRASHES_MIN: Final = 3
#: Pods whose Events are read
EVENTS_OF_MAX: Final = 3
LEASES_OF_NODES: Final = "kube-node-lease"
_IMAGE_REASONS: Final = (
    "ImagePullBackOff",
    "ErrImagePull",
    "InvalidImageName",
    "ErrImageNeverPull",
)
_NO_FAULT_YET: Final = ("", "ContainerCreating", "PodInitializing")
_MOUNT_REASONS: Final = ("FailedMount", "FailedAttachVolume", "FailedMapVolume")


def state_reads(case: PodsCase) -> Iterator[Selection]:
    names = {pod.spec.node_name for pod in case.judged if not pod.has_ended}
    if case.question.kind == "everything":
        yield LEASES.in_namespace(LEASES_OF_NODES)
    else:
        yield from NODES.each_of("", names)
        yield from LEASES.each_of(LEASES_OF_NODES, names)
        if len(names) == 1:
            yield from leases_of_leaders()
    if any(pod.spec.node_selector and not pod.spec.node_name for pod in case.judged):
        yield NODES.everywhere()
    unready = [pod for pod in case.judged if not pod.has_ended and not pod.is_ready]
    for pod in unready[:EVENTS_OF_MAX]:
        yield events_about(pod.metadata.namespace, "Pod", pod.metadata.name)


def leases_of_leaders() -> Iterable[Selection]:
    """Returns the reads of leaders' Leases. They are renewed every few seconds, so that the age of
    a single kubelet's Lease is compared with theirs instead of the reader's clock.
    """
    return (LEASES.named("kube-system", name) for name in LEADERS)


def troubles(case: PodsCase) -> Iterable[Finding]:
    """R1 to R7"""
    groups: dict[tuple[str, str], list[tuple[FullPod, Trouble]]] = {}
    for pod in case.judged:
        trouble = None if pod.has_ended or pod.metadata.is_deleting else _diagnosis(case, pod)
        if trouble is not None:
            groups.setdefault((trouble.code, trouble.key), []).append((pod, trouble))
    for (code, _), members in groups.items():
        pods = [pod for pod, _ in members]
        worst = max((trouble for _, trouble in members), key=lambda trouble: trouble.age_s)
        weight = weigh(case, worst)
        if weight is not None:
            yield case.finding(
                code,
                f"{names_of(case, pods)}: {worst.sentence}",
                *worst.evidence,
                weight=weight.severity,
                too_young=weight.too_young,
                certainty=worst.certainty,
                effect=effect_on(case, pods),
                remedy=worst.remedy,
            )


def _diagnosis(case: PodsCase, pod: FullPod) -> Trouble | None:
    if not pod.spec.node_name:
        return unscheduled(case, pod)
    if node_is_silent(case, pod):
        return None
    return next(
        (trouble for diagnose in DIAGNOSES if (trouble := diagnose(case, pod)) is not None), None
    )


def node_is_silent(case: PodsCase, pod: FullPod) -> bool:
    """Returns True if the Pod's kubelet is silent, so that the Pod's own state is outdated."""
    node = case.facts.get(NODES, "", pod.spec.node_name)
    ready = node.ready_condition if node else None
    return ready is not None and ready.status != "True"


def unscheduled(case: PodsCase, pod: FullPod) -> Trouble:
    """R1"""
    condition = pod.condition("PodScheduled")
    age = since(pod.metadata.creation_timestamp, case.now) or 0.0
    describe = f"kubectl -n {pod.metadata.namespace} describe pod {pod.metadata.name}"
    if condition is None or not condition.message:
        evidence = (evidence_of(PODS, pod, "spec.nodeName", "(none)"),)
        pairs = ",".join(
            f"{key}={value}" for key, value in sorted((pod.spec.node_selector or {}).items())
        )
        if pairs and not _nodes_with(case, pod):
            evidence = (evidence_of(PODS, pod, "spec.nodeSelector", pairs),)
            label = f"kubectl label node NODE {pairs.replace(',', ' ')}"
            sentence = (
                f"no node for {lasting(age)}: no Node of {len(case.facts.of(NODES))} has {pairs}"
            )
            return Trouble("R1", sentence, age, evidence, label, key=pairs, is_sure=True)
        sentence = f"no node for {lasting(age)}, and no scheduler has said why"
        return Trouble(
            "R1",
            sentence,
            age,
            evidence,
            "see whether the scheduler runs, and its log",
            certainty="likely",
        )
    evidence = (
        condition_evidence(pod, "PodScheduled", f"{condition.status} ({condition.reason})"),
    )
    message = clipped(condition.message)
    return Trouble(
        "R1", f"no node for {lasting(age)}: {message}", age, evidence, describe, key=message
    )


def _nodes_with(case: PodsCase, pod: FullPod) -> bool:
    """Returns True if a Node has the labels that the Pod requires, or Nodes could not be read."""
    required = (pod.spec.node_selector or {}).items()
    if not case.was_read(NODES.everywhere()):
        return True
    return any(required <= (node.metadata.labels or {}).items() for node in case.facts.of(NODES))


def never_starts(case: PodsCase, pod: FullPod) -> Trouble | None:
    """R4"""
    age = age_of(case, pod)
    for status, is_init in statuses_of(pod):
        waiting = status.state.waiting
        if (
            waiting is None
            or waiting.reason in _NO_FAULT_YET
            or waiting.reason == "CrashLoopBackOff"
        ):
            continue
        image = next((each.image for each in _containers(pod) if each.name == status.name), "")
        what = image if waiting.reason in _IMAGE_REASONS else clipped(waiting.message)
        field = f"{_status_field(is_init, status.name)}.state.waiting"
        return Trouble(
            "R4",
            f"container {status.name} never starts, {waiting.reason}: {what}",
            age,
            (evidence_of(PODS, pod, field, clipped(waiting.message or waiting.reason)),),
            _mend_start(pod, status.name, waiting.reason, waiting.message),
            key=f"{status.name} {what}",
            is_sure=True,
        )
    event = last_event(case, pod, *_MOUNT_REASONS)
    if event is not None and not pod.is_ready and not _has_run(pod):
        return Trouble(
            "R4",
            f"a volume cannot be mounted: {clipped(event.message)}",
            age,
            (evidence_of(EVENTS, event, "reason", event.reason),),
            f"kubectl -n {pod.metadata.namespace} describe pod {pod.metadata.name}",
            key="volume",
        )
    return None


def _status_field(is_init: bool, container: str) -> str:
    return f"status.{'initContainerStatuses' if is_init else 'containerStatuses'}[{container}]"


def _mend_start(pod: FullPod, container: str, reason: str, message: str) -> str:
    namespace, root = pod.metadata.namespace, root_of(pod)
    target = f"{root.kind.lower()}/{root.name}"
    if reason in _IMAGE_REASONS and root.kind == "Job":
        return f"make {root} anew with another image: the template of a Job never changes"
    if reason in _IMAGE_REASONS:
        return f"kubectl -n {namespace} set image {target} {container}=IMAGE"
    for kind in ("configmap", "secret"):
        if f"{kind} " in message and "not found" in message:
            return f"kubectl -n {namespace} get {kind}s"
    return f"kubectl -n {namespace} describe pod {pod.metadata.name}"


def crashes(case: PodsCase, pod: FullPod) -> Trouble | None:
    """R5"""
    for status, is_init in statuses_of(pod):
        waiting, ended = (
            status.state.waiting,
            status.state.terminated or status.last_state.terminated,
        )
        backs_off = waiting is not None and waiting.reason == "CrashLoopBackOff"
        ended_s = since(ended.finished_at, case.now) if ended is not None else None
        is_recent = (
            ended_s is not None and ended_s < RECENT_CRASH_S and status.restart_count >= CRASHES_MIN
        )
        if not backs_off and not is_recent:
            continue
        if not backs_off and is_init and status.ready:
            continue
        why = (
            f", last {ended.reason or 'Error'} (exit code {ended.exit_code})"
            if ended is not None
            else ""
        )
        age = f" {lasting(ended_s)} ago" if ended_s is not None else ""
        field = f"{_status_field(is_init, status.name)}.lastState"
        value = f"{ended.reason} {ended.exit_code}" if ended is not None else "CrashLoopBackOff"
        namespace, name = pod.metadata.namespace, pod.metadata.name
        return Trouble(
            "R5",
            f"container {status.name} restarted {count(status.restart_count, 'time')}{why}{age}",
            age_of(case, pod),
            (evidence_of(PODS, pod, field, value),),
            f"kubectl -n {namespace} logs {name} -c {status.name} --previous",
            key=status.name,
            is_sure=True,
        )
    return None


def no_address(case: PodsCase, pod: FullPod) -> Trouble | None:
    """R2"""
    if pod.status.ips:
        return None
    age = age_of(case, pod)
    event = last_event(case, pod, "FailedCreatePodSandBox")
    sentence = f"no address for {lasting(age)}"
    evidence: tuple[Evidence, ...] = (evidence_of(PODS, pod, "status.podIPs", "(none)"),)
    describe = f"kubectl -n {pod.metadata.namespace} describe pod {pod.metadata.name}"
    if event is None:
        return Trouble(
            "R2", f"{sentence} on {pod.spec.node_name}", age, evidence, describe, certainty="likely"
        )
    evidence = (*evidence, evidence_of(EVENTS, event, "reason", event.reason))
    return Trouble("R2", f"{sentence}: {clipped(event.message)}", age, evidence, describe)


def init_hangs(case: PodsCase, pod: FullPod) -> Trouble | None:
    """R3"""
    containers = pod.spec.init_containers or ()
    sidecars = {container.name for container in containers if container.restart_policy == "Always"}
    for number, status in enumerate(pod.status.init_container_statuses or (), 1):
        running = status.state.running
        age = since(running.started_at, case.now) if running is not None else None
        if age is not None and status.name not in sidecars:
            return Trouble(
                "R3",
                f"init container {status.name} ({number} of {len(containers)}) runs for "
                f"{lasting(age)}",
                age,
                (
                    evidence_of(
                        PODS,
                        pod,
                        f"status.initContainerStatuses[{status.name}].state.running",
                        f"since {running.started_at}" if running is not None else "",
                    ),
                ),
                f"kubectl -n {pod.metadata.namespace} logs {pod.metadata.name} -c {status.name}",
            )
    return None


DIAGNOSES: Final[tuple[Callable[[PodsCase, FullPod], Trouble | None], ...]] = (
    never_starts,
    crashes,
    no_address,
    init_hangs,
    not_ready,
    gate_is_closed,
)


def _containers(pod: FullPod) -> tuple[FullContainer, ...]:
    return (*(pod.spec.init_containers or ()), *(pod.spec.containers or ()))


def _has_run(pod: FullPod) -> bool:
    return any(status.state.running is not None for status, _ in statuses_of(pod))
