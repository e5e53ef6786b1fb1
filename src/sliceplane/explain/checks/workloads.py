"""What makes the Pods of a Service: their root owner, how many there are to be, and why no more could be made."""

from __future__ import annotations

from typing import Final, NamedTuple

from sliceplane.explain.case import name_of, seen
from sliceplane.explain.facts import Facts
from sliceplane.explain.objects import (
    DAEMON_SETS,
    DEPLOYMENTS,
    EVENTS,
    REPLICA_SETS,
    REPLICATION_CONTROLLERS,
    STATEFUL_SETS,
    WORKLOADS,
    FullPod,
    Readable,
    Workload,
)
from sliceplane.explain.wording import clipped, since
from sliceplane.findings.finding import Evidence, ObjectName

#: what people make, of which there are few; ReplicaSets are many, and of Deployments
MAKERS: Final = (DEPLOYMENTS, STATEFUL_SETS, DAEMON_SETS)
BY_KIND: Final = {
    readable.resource.kind: readable for readable in (*MAKERS, REPLICA_SETS, REPLICATION_CONTROLLERS)
}  # fmt: skip
#: controllers of workloads try again every 16 minutes at the least
FAILURE_RECENT_S: Final = 1800.0
#: the label by which a ReplicaSet's Pods are told from its siblings', which its name ends with, and whose label it is
_HASH_LABELS: Final = (("pod-template-hash", "Deployment"), ("rollouts-pod-template-hash", "Rollout"))


class Root(NamedTuple):
    """The object at the head of a Pod's owners; the Pod itself where it has none."""

    kind: str
    name: str

    def __str__(self) -> str:
        return f"{self.kind} {self.name}"


def root_of(pod: FullPod) -> Root:
    """Told by names alone: a ReplicaSet of a Deployment is called after it and the hash of the template."""
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
    """Lists of an API server leave the kind of items out in some versions: the members decide then."""
    return next((readable for readable in WORKLOADS if readable.resource.kind == workload.kind), DEPLOYMENTS)


def name_of_workload(workload: Workload) -> ObjectName:
    return name_of(readable_of(workload), workload)


def wanted_pods(workload: Workload) -> int:
    if workload.kind == "DaemonSet":
        return workload.status.desired_number_scheduled
    return 1 if workload.spec.replicas is None else workload.spec.replicas


class Failure(NamedTuple):
    """Why the last Pod could not be made."""

    message: str
    evidence: Evidence


def failure_of(facts: Facts, workload: Workload) -> Failure | None:
    """From the condition ReplicaFailure, or a late Event where the kind has no such condition."""
    for condition in workload.status.conditions or ():
        if condition.type == "ReplicaFailure" and condition.status == "True":
            evidence = seen(readable_of(workload), workload, "status.conditions[ReplicaFailure]", condition.reason)
            return Failure(clipped(condition.message or condition.reason), evidence)
    name = name_of_workload(workload)
    for event in facts.events_of(name.namespace, name.kind, name.name):
        age = since(event.last_seen, facts.now)
        if event.reason == "FailedCreate" and age is not None and age < FAILURE_RECENT_S:
            return Failure(clipped(event.message), seen(EVENTS, event, "reason", event.reason))
    return None
