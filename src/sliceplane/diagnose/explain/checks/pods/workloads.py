"""Workloads that create the Pods of a Service: their root owners, of which there should be one, the
desired number of Pods, and why no more could be created.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

from sliceplane.api.findings.codes import Severity
from sliceplane.api.findings.finding import Evidence, Finding, ObjectName, TooYoung
from sliceplane.api.findings.wording import clipped, lasting, pairs_text, part, since, some
from sliceplane.diagnose.explain.case import ServiceCase, evidence_of, name_of
from sliceplane.diagnose.explain.facts import Facts
from sliceplane.diagnose.explain.objects import (
    DAEMON_SETS,
    DEPLOYMENTS,
    EVENTS,
    PODS,
    REPLICA_SETS,
    REPLICATION_CONTROLLERS,
    STATEFUL_SETS,
    WORKLOADS,
    FullPod,
    Readable,
    Workload,
)

#: workloads that people create, which are few; ReplicaSets are many, and belong to Deployments
MAKERS: Final = (DEPLOYMENTS, STATEFUL_SETS, DAEMON_SETS)
BY_KIND: Final = {
    readable.resource.kind: readable
    for readable in (*MAKERS, REPLICA_SETS, REPLICATION_CONTROLLERS)
}
#: controllers of workloads retry at least every 16 minutes
FAILURE_RECENT_S: Final = 1800.0
#: seconds in which the dependents of a new object may not exist yet
STARTING_S: Final = 60.0
#: two workloads are different programs if their images have a smaller fraction in common
_SAME_PROGRAM_MIN: Final = 0.5
NO_ENDPOINTS: Final = "no slice has an endpoint: every node refuses connections"
#: labels that controllers write on Pods, with another value at each rollout
GENERATED_LABELS: Final = (
    "pod-template-hash",
    "rollouts-pod-template-hash",
    "controller-revision-hash",
    "pod-template-generation",
    "controller-uid",
    "batch.kubernetes.io/controller-uid",
)
#: the label that distinguishes a ReplicaSet's Pods from its siblings' and ends its name, and the
#: kind of the label's owner
_HASH_LABELS: Final = (
    ("pod-template-hash", "Deployment"),
    ("rollouts-pod-template-hash", "Rollout"),
)


class Root(NamedTuple):
    """The object at the head of a Pod's owners; the Pod itself if it has none."""

    kind: str
    name: str

    def __str__(self) -> str:
        return f"{self.kind} {self.name}"


def root_of(pod: FullPod) -> Root:
    """Returns the root owner, by names alone: a ReplicaSet has the name of its Deployment and the
    hash of the template.
    """
    owner = next((entry for entry in pod.metadata.owner_references or () if entry.controller), None)
    if owner is None:
        return Root("Pod", pod.metadata.name)
    if owner.kind == "ReplicaSet":
        for label, kind in _HASH_LABELS:
            suffix = f"-{pod.labels.get(label, '')}"
            if len(suffix) > 1 and owner.name.endswith(suffix):
                return Root(kind, owner.name.removesuffix(suffix))
    return Root(owner.kind, owner.name)


def readable_of(workload: Workload) -> Readable[Workload]:
    """Returns the readable of the workload's kind; some API servers omit the kind of items in
    lists.
    """
    return next(
        (readable for readable in WORKLOADS if readable.resource.kind == workload.kind), DEPLOYMENTS
    )


def name_of_workload(workload: Workload) -> ObjectName:
    return name_of(readable_of(workload), workload)


def desired_pods(workload: Workload) -> int:
    if workload.kind == "DaemonSet":
        return workload.status.desired_number_scheduled
    return 1 if workload.spec.replicas is None else workload.spec.replicas


class Failure(NamedTuple):
    """The reason why the last Pod could not be created."""

    message: str
    evidence: Evidence


def failure_of(facts: Facts, workload: Workload) -> Failure | None:
    """Returns the failure from the condition ReplicaFailure, or from a recent Event if the kind has
    no such condition.
    """
    for condition in workload.status.conditions or ():
        if condition.type == "ReplicaFailure" and condition.status == "True":
            evidence = evidence_of(
                readable_of(workload),
                workload,
                "status.conditions[ReplicaFailure]",
                condition.reason,
            )
            return Failure(clipped(condition.message or condition.reason), evidence)
    name = name_of_workload(workload)
    for event in facts.events_of(name.namespace, name.kind, name.name):
        age = since(event.last_observed, facts.now)
        if event.reason == "FailedCreate" and age is not None and age < FAILURE_RECENT_S:
            return Failure(
                clipped(event.message), evidence_of(EVENTS, event, "reason", event.reason)
            )
    return None


def workloads(case: ServiceCase) -> Iterator[Workload]:
    for readable in MAKERS:
        yield from case.of(readable)


def matching(case: ServiceCase) -> tuple[Workload, ...]:
    """Returns the workloads whose Pods the Service selects, or would if they had any; none if Pods
    could not be read.
    """
    if not case.selector or not case.was_read(case.pods_selection()):
        return ()
    if case.live:
        roots = sorted({root_of(pod) for pod in case.live})
        heads = (
            case.facts.get(BY_KIND[kind], case.namespace, name)
            for kind, name in roots
            if kind in BY_KIND
        )
        return tuple(workload for workload in heads if workload is not None)
    return tuple(workload for workload in by_template(case) if not pods_of(case, workload))


def by_template(case: ServiceCase) -> Iterator[Workload]:
    """Yields the workloads whose templates have the labels of the selector."""
    required = case.selector.items()
    for workload in workloads(case):
        if required <= (workload.spec.template.metadata.labels or {}).items():
            yield workload


def pods_of(case: ServiceCase, workload: Workload) -> list[FullPod]:
    """Returns the live Pods of *workload* that were read, selected or not."""
    name = name_of_workload(workload)
    pods = case.of(PODS)
    return [pod for pod in pods if not pod.has_ended and root_of(pod) == Root(name.kind, name.name)]


def scaled_down(case: ServiceCase) -> Iterable[Finding]:
    """B7"""
    heads = matching(case) if not case.live else ()
    if not heads or any(desired_pods(workload) for workload in heads):
        return
    name = name_of_workload(heads[0])
    if name.kind == "DaemonSet":
        return
    yield case.finding(
        "B7",
        f"{name.kind} {name.name} is scaled to 0, and no other Pod matches",
        evidence_of(readable_of(heads[0]), heads[0], "spec.replicas", "0"),
        effect=NO_ENDPOINTS,
        remedy=f"kubectl -n {case.namespace} scale {name.kind.lower()} {name.name} --replicas=1",
    )


def short(case: ServiceCase) -> Iterator[Workload]:
    """Yields the workloads with fewer Pods than desired, or with a failure to create one."""
    pod_counts = Counter(root_of(pod) for pod in case.live)
    for workload in matching(case):
        name = name_of_workload(workload)
        if pod_counts[Root(name.kind, name.name)] < desired_pods(workload) or failure_of(
            case.facts, workload
        ):
            yield workload


def cannot_make_pods(case: ServiceCase) -> Iterable[Finding]:
    """B8"""
    pod_counts = Counter(root_of(pod) for pod in case.live)
    for workload in short(case):
        name = name_of_workload(workload)
        failure = failure_of(case.facts, workload)
        age = since(workload.metadata.creation_timestamp, case.now) or 0.0
        if failure is None and case.live:
            continue
        weight: Severity | None = "warning" if case.is_served else None
        number = pod_counts[Root(name.kind, name.name)]
        status = evidence_of(readable_of(workload), workload, "status.replicas", str(number))
        yield case.finding(
            "B8",
            f"{name.kind} {name.name} has {part(number, desired_pods(workload), 'Pod')}: "
            + (failure.message if failure is not None else f"none was made for {lasting(age)}"),
            failure.evidence if failure is not None else status,
            weight=weight,
            too_young=TooYoung(age, STARTING_S) if failure is None and age < STARTING_S else None,
            certainty="certain" if failure is not None else "possible",
            effect="fewer endpoints than asked for" if case.is_served else NO_ENDPOINTS,
            remedy=_of_refusal(case, failure.message, name.kind, name.name)
            if failure is not None
            else "see whether the controller manager runs, and what its log says",
        )


def _of_refusal(case: ServiceCase, message: str, kind: str, name: str) -> str:
    if "exceeded quota" in message:
        return f"kubectl -n {case.namespace} describe resourcequota"
    if "violates PodSecurity" in message:
        return f"give the template of {kind} {name} the securityContext that the message asks for"
    if "webhook" in message:
        return "kubectl get mutatingwebhookconfigurations,validatingwebhookconfigurations"
    if "serviceaccount" in message.lower():
        return f"kubectl -n {case.namespace} get serviceaccounts"
    return f"kubectl -n {case.namespace} describe {kind.lower()} {name}"


def multiple_programs(case: ServiceCase) -> Iterable[Finding]:
    """B3"""
    groups: dict[Root, list[FullPod]] = {}
    for pod in case.live:
        if pod.is_ready and root_of(pod).kind != "Job":
            groups.setdefault(root_of(pod), []).append(pod)
    if len(groups) < 2 or case.is_headless:
        return
    main = max(sorted(groups), key=lambda root: len(groups[root]))
    for root, pods in sorted(groups.items()):
        if _likeness(groups[main][0], pods[0]) >= _SAME_PROGRAM_MIN:
            continue
        total = sum(map(len, groups.values()))
        yield case.finding(
            "B3",
            f"{part(len(pods), total, 'endpoint', 'is')} of {root}, "
            f"{len(groups[main])} of {main}: other images",
            case.field("spec.selector", pairs_text(case.selector)),
            evidence_of(PODS, pods[0], "spec.containers", some(sorted(_images(pods[0])))),
            certainty="likely",
            effect=f"{100 * len(pods) // total} of 100 connections reach {root.name}",
            remedy=_narrower(case, groups[main][0], pods[0]),
        )


def _images(pod: FullPod) -> set[str]:
    """Returns the images without tags and digests: a canary is the same program."""
    images = (container.image.partition("@")[0] for container in pod.spec.containers or ())
    return {
        image.rpartition(":")[0] if ":" in image.rpartition("/")[2] else image for image in images
    }


def _likeness(one: FullPod, other: FullPod) -> float:
    own, others = _images(one), _images(other)
    return len(own & others) / max(1, len(own | others))


def _narrower(case: ServiceCase, desired: FullPod, unwanted: FullPod) -> str:
    for key, value in sorted(desired.labels.items()):
        if unwanted.labels.get(key) != value and key not in GENERATED_LABELS:
            return case.patch({"spec": {"selector": {key: value}}})
    return "give the Pods of the two different labels, and narrow spec.selector"


def pods_of_jobs(case: ServiceCase) -> Iterable[Finding]:
    """B4. A Service whose Pods are all of Jobs is meant for them."""
    if all(root_of(pod).kind == "Job" for pod in case.live):
        return
    for pod in case.live:
        root = root_of(pod)
        if root.kind == "Job" and pod.is_ready and not pod.metadata.is_deleting:
            yield case.finding(
                "B4",
                f"Pod {pod.metadata.name} of {root} is an endpoint while it runs, "
                f"1 of {sum(each.is_ready for each in case.live)}",
                case.field("spec.selector", pairs_text(case.selector)),
                evidence_of(PODS, pod, "metadata.labels", pairs_text(pod.labels)),
                effect="its share of the connections reaches a Pod that serves nothing",
                remedy=f"give the template of {root} labels that {case.name} does not select",
            )
            return


CHECKS: Final = (multiple_programs, pods_of_jobs, scaled_down, cannot_make_pods)
