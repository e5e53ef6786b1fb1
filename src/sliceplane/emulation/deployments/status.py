"""A Deployment's status: what ``kubectl rollout status`` and ``kubectl wait --for=condition`` read.

Conditions, reasons and messages are upstream's. A condition is left as it is while its status and
reason stay, but for Progressing, whose update time is the time of the last progress:
``progressDeadlineSeconds`` counts from there. While a Deployment is paused or being scaled,
progress is not estimated.
"""

from __future__ import annotations

from typing import Final

import msgspec

from sliceplane.api.apps import Deployment, ReplicaSet
from sliceplane.api.meta import Document
from sliceplane.api.scheme import Deployments
from sliceplane.emulation.deployments.revisions import REVISION
from sliceplane.emulation.deployments.rollout import limits
from sliceplane.emulation.deployments.strategy import Rollout
from sliceplane.emulation.owner import status_write
from sliceplane.emulation.replicaset import REPLICA_FAILURE, replica_failure
from sliceplane.kit.times import format_time, parse_time
from sliceplane.watch.controller.base import Write, object_patch

CREATE_ERROR: Final = "ReplicaSetCreateError"
#: as a deadline it means that there is none
_INT32_MAX: Final = 2**31 - 1
#: the deadline is looked at so much later than it passes: times have whole seconds
_LATE_S: Final = 1.0
_ALWAYS: Final = ("terminatingReplicas",)


class _Conditions:
    """Conditions by type, in the order in which they were last changed."""

    def __init__(self, deployment: Deployment, now: float) -> None:
        self._stamp = format_time(now)
        self.by_type: dict[str, Document] = {
            one.type: msgspec.to_builtins(one) for one in deployment.status.conditions or ()
        }

    def reason(self, kind: str) -> str:
        reason: str = self.by_type.get(kind, {}).get("reason", "")
        return reason

    def put(
        self, kind: str, status: str, reason: str, message: str, *, touch: bool = False
    ) -> None:
        """*touch*: set the update time even if nothing else has changed."""
        before = self.by_type.get(kind, {})
        same_status = before.get("status") == status
        if same_status and before.get("reason") == reason and not touch:
            return
        changed = before.get("lastTransitionTime") if same_status else self._stamp
        self.by_type.pop(kind, None)
        self.by_type[kind] = {
            "type": kind,
            "status": status,
            "lastUpdateTime": self._stamp,
            "lastTransitionTime": changed or self._stamp,
            "reason": reason,
            "message": message,
        }


def has_deadline(deployment: Deployment) -> bool:
    return deployment.spec.progress_deadline_seconds not in (None, _INT32_MAX)


def creation_failure(name: str, message: str) -> str:
    return f'Failed to create new replica set "{name}": {message}'


def _pause_or_resume(rollout: Rollout, conditions: _Conditions) -> None:
    reason = conditions.reason("Progressing")
    if not has_deadline(rollout.deployment) or reason == "ProgressDeadlineExceeded":
        return
    if rollout.mode == "paused":
        conditions.put("Progressing", "Unknown", "DeploymentPaused", "Deployment is paused")
    elif reason == "DeploymentPaused":
        conditions.put("Progressing", "Unknown", "DeploymentResumed", "Deployment is resumed")


def _estimate_progress(
    rollout: Rollout, conditions: _Conditions, counts: dict[str, int], now: float
) -> None:
    deployment = rollout.deployment
    newest = rollout.newest
    what = (
        f'ReplicaSet "{newest.metadata.name}"'
        if newest
        else f'Deployment "{deployment.metadata.name}"'
    )
    if (
        counts["replicas"] == counts["updatedReplicas"]
        and conditions.reason("Progressing") == "NewReplicaSetAvailable"
    ):
        return  # that rollout is over; what happens to its Pods later is no progress
    if rollout.is_complete():
        message = f"{what} has successfully progressed."
        conditions.put("Progressing", "True", "NewReplicaSetAvailable", message)
    elif _has_moved(deployment, counts):
        conditions.put(
            "Progressing", "True", "ReplicaSetUpdated", f"{what} is progressing.", touch=True
        )
    elif _is_overdue(deployment, conditions, now):
        conditions.put(
            "Progressing", "False", "ProgressDeadlineExceeded", f"{what} has timed out progressing."
        )


def _has_moved(deployment: Deployment, counts: dict[str, int]) -> bool:
    before = deployment.status
    return (
        counts["updatedReplicas"] > before.updated_replicas
        or counts["replicas"] - counts["updatedReplicas"]
        < before.replicas - before.updated_replicas
        or counts["readyReplicas"] > before.ready_replicas
        or counts["availableReplicas"] > before.available_replicas
    )


def _due_at(deployment: Deployment, conditions: _Conditions) -> float | None:
    """Returns when the deadline passes if nothing moves; ``None``: there is none, or nothing to
    wait for.
    """
    progressing = conditions.by_type.get("Progressing")
    deadline_s = deployment.spec.progress_deadline_seconds
    if progressing is None or deadline_s is None or not has_deadline(deployment):
        return None
    if progressing.get("reason") in ("NewReplicaSetAvailable", "ProgressDeadlineExceeded"):
        return None
    updated_at = progressing.get("lastUpdateTime")
    return None if updated_at is None else parse_time(updated_at) + deadline_s


def _is_overdue(deployment: Deployment, conditions: _Conditions, now: float) -> bool:
    due = _due_at(deployment, conditions)
    return due is not None and now > due


def _conditions(
    rollout: Rollout, counts: dict[str, int], now: float, *, creating: bool
) -> _Conditions:
    deployment = rollout.deployment
    newest = rollout.newest
    replicas = rollout.deployment.spec.desired_replicas
    conditions = _Conditions(deployment, now)
    deadline = has_deadline(deployment)
    _pause_or_resume(rollout, conditions)
    name = newest.metadata.name if newest else f"{deployment.metadata.name}-{rollout.hashed}"
    if deadline and newest is not None and "Progressing" not in conditions.by_type:
        conditions.put(
            "Progressing", "True", "FoundNewReplicaSet", f'Found new replica set "{name}"'
        )
    _, unavailable = limits(deployment.spec.strategy, replicas)
    if counts["availableReplicas"] >= replicas - unavailable:
        message = "Deployment has minimum availability."
        conditions.put("Available", "True", "MinimumReplicasAvailable", message)
    else:
        message = "Deployment does not have minimum availability."
        conditions.put("Available", "False", "MinimumReplicasUnavailable", message)
    if rollout.mode != "rollout":
        return conditions
    if not deadline:
        conditions.by_type.pop("Progressing", None)
    elif rollout.refusal is not None and newest is None:
        message = creation_failure(name, rollout.refusal.message)
        conditions.put("Progressing", "False", CREATE_ERROR, message)
    elif creating:
        conditions.put(
            "Progressing", "True", "NewReplicaSetCreated", f'Created new replica set "{name}"'
        )
    else:
        _estimate_progress(rollout, conditions, counts, now)
    _copy_failure(rollout, conditions)
    return conditions


def _copy_failure(rollout: Rollout, conditions: _Conditions) -> None:
    """Copies ReplicaFailure from the sets, the newest before the others."""
    ordered: list[ReplicaSet] = [*reversed(rollout.sets)]
    failure = next(
        (condition for item in ordered if (condition := replica_failure(item)) is not None), None
    )
    if failure is None:
        conditions.by_type.pop(REPLICA_FAILURE, None)
    else:
        conditions.put(REPLICA_FAILURE, failure.status, failure.reason, failure.message)


def _counts(rollout: Rollout) -> dict[str, int]:
    sets = rollout.sets
    newest = rollout.newest
    available = sum(item.status.available_replicas for item in sets)
    return {
        "replicas": sum(item.status.replicas for item in sets),
        "updatedReplicas": newest.status.replicas if newest else 0,
        "readyReplicas": sum(item.status.ready_replicas for item in sets),
        "availableReplicas": available,
        "unavailableReplicas": max(sum(item.spec.desired_replicas for item in sets) - available, 0),
        "terminatingReplicas": sum(item.status.terminating_replicas or 0 for item in sets),
        "collisionCount": rollout.deployment.status.collision_count + rollout.collides,
        "observedGeneration": rollout.deployment.metadata.generation,
    }


def status_patch(
    rollout: Rollout, now: float, *, creating: bool
) -> tuple[tuple[Write, ...], float | None]:
    """The writes that bring status up to date, and when to check again without an event.

    *creating*: the newest set is created by the same job.
    """
    deployment = rollout.deployment
    counts = _counts(rollout)
    conditions = _conditions(rollout, counts, now, creating=creating)
    writes = list(
        status_write(
            Deployments,
            deployment,
            counts,
            list(conditions.by_type.values()),
            always=_ALWAYS,
            is_complete=deployment.status.terminating_replicas is not None,
        )
    )
    revision = (rollout.newest.metadata.annotations or {}).get(REVISION) if rollout.newest else None
    if (
        revision
        and rollout.mode != "deleted"
        and (deployment.metadata.annotations or {}).get(REVISION) != revision
    ):
        annotation = {"metadata": {"annotations": {REVISION: revision}}}
        writes.append(object_patch(Deployments, deployment.metadata, annotation))
    due = _due_at(deployment, conditions) if rollout.mode == "rollout" else None
    return tuple(writes), None if due is None else due + _LATE_S
