"""The status of a ReplicaSet or ReplicationController: Pods in each state, and whether some could
not be made.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

from sliceplane.api.apps import ReplicaSet, ReplicationController
from sliceplane.api.codec import encode
from sliceplane.api.core import Pod
from sliceplane.api.meta import Condition, Document
from sliceplane.api.scheme import ReplicaSets, Resource
from sliceplane.emulation.pods import is_ready
from sliceplane.emulation.refusals import Refusal
from sliceplane.kit.times import format_time
from sliceplane.watch.controller.base import Write

ReplicaOwner = ReplicaSet | ReplicationController
REPLICA_FAILURE: Final = "ReplicaFailure"
#: members that are shown even if they are zero
_ALWAYS: Final = ("replicas", "observedGeneration", "terminatingReplicas")


def replicas_of(item: ReplicaOwner) -> int:
    return 1 if item.spec.replicas is None else item.spec.replicas


def replica_failure(item: ReplicaOwner) -> Condition | None:
    return next((one for one in item.status.conditions or () if one.type == REPLICA_FAILURE), None)


def status_patch(
    item: ReplicaOwner,
    resource: Resource,
    active: Sequence[Pod],
    now: float,
    *,
    available: int,
    terminating: int,
    refusal: Refusal | None,
) -> tuple[Write, ...]:
    """The write that brings status up to date; none if it is."""
    labels: dict[str, str] = (item.spec.template.get("metadata") or {}).get("labels") or {}
    counts = {
        "replicas": len(active),
        "fullyLabeledReplicas": sum(
            labels.items() <= (pod.metadata.labels or {}).items() for pod in active
        ),
        "readyReplicas": sum(is_ready(pod) for pod in active),
        "availableReplicas": available,
        "observedGeneration": item.metadata.generation,
    }
    if resource is ReplicaSets:
        counts["terminatingReplicas"] = terminating
    conditions = _conditions(item, refusal, now)
    current = msgspec.to_builtins(item.status)
    same = all(current.get(member, 0) == value for member, value in counts.items())
    is_complete = resource is not ReplicaSets or item.status.terminating_replicas is not None
    if same and is_complete and conditions == (current.get("conditions") or []):
        return ()
    # Zero is "absent" upstream; null in a merge patch removes the member.
    status: Document = {
        member: value if value or member in _ALWAYS else None for member, value in counts.items()
    }
    status["conditions"] = conditions or None
    return (
        Write(
            verb="patch",
            resource=resource,
            namespace=item.metadata.namespace,
            name=item.metadata.name,
            subresource="status",
            body=encode({"metadata": {"uid": item.metadata.uid}, "status": status}),
            tolerate=("NotFound", "Conflict"),
        ),
    )


def _conditions(item: ReplicaOwner, refusal: Refusal | None, now: float) -> list[Document]:
    """One ReplicaFailure from the first refusal to the first success; others' conditions stay."""
    conditions: list[Document] = [
        msgspec.to_builtins(one)
        for one in item.status.conditions or ()
        if one.type != REPLICA_FAILURE or refusal is not None
    ]
    if refusal is not None and replica_failure(item) is None:
        conditions.append(
            {
                "type": REPLICA_FAILURE,
                "status": "True",
                "lastTransitionTime": format_time(now),
                "reason": refusal.reason,
                "message": refusal.message,
            }
        )
    return conditions
