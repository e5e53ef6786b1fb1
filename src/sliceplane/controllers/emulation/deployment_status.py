"""A Deployment's status: what ``kubectl rollout status`` and ``kubectl wait --for=condition`` read."""

from __future__ import annotations

import msgspec

from sliceplane.api.apps import Deployment, ReplicaSet
from sliceplane.api.codec import encode
from sliceplane.api.meta import Condition, Document
from sliceplane.api.scheme import Deployments
from sliceplane.controllers.base import Write
from sliceplane.controllers.emulation.rollout import limits
from sliceplane.kit.times import format_time, parse_time

REVISION = "deployment.kubernetes.io/revision"


def is_complete(deployment: Deployment) -> bool:
    """The status already says that the rollout has ended, well or not."""
    progressing = _previous(deployment, "Progressing")
    return progressing is not None and progressing.reason in ("NewReplicaSetAvailable", "ProgressDeadlineExceeded")


def _condition(
    previous: Condition | None, kind: str, *, status: str, reason: str, message: str, now: float
) -> Document:
    """The condition, with its transition time kept while ``status`` stays and its update time while all stays."""
    stamp = format_time(now)
    same_status = previous is not None and previous.status == status
    same = same_status and previous is not None and (previous.reason, previous.message) == (reason, message)
    return {
        "type": kind,
        "status": status,
        "lastUpdateTime": previous.last_update_time if same and previous else stamp,
        "lastTransitionTime": previous.last_transition_time if same_status and previous else stamp,
        "reason": reason,
        "message": message,
    }


def _available(deployment: Deployment, available: int, replicas: int, now: float) -> Document:
    _, unavailable = limits(deployment.spec.strategy, replicas)
    enough = available >= replicas - unavailable
    return _condition(
        _previous(deployment, "Available"),
        "Available",
        status="True" if enough else "False",
        reason="MinimumReplicasAvailable" if enough else "MinimumReplicasUnavailable",
        message=f"Deployment {'has' if enough else 'does not have'} minimum availability.",
        now=now,
    )


def _progressing(deployment: Deployment, newest: ReplicaSet | None, counts: dict[str, int], now: float) -> Document:
    previous = _previous(deployment, "Progressing")
    replicas = 1 if deployment.spec.replicas is None else deployment.spec.replicas
    name = newest.metadata.name if newest else ""
    complete = counts["updatedReplicas"] == counts["replicas"] == counts["availableReplicas"] == replicas
    status, reason = "True", "ReplicaSetUpdated"
    message = f'ReplicaSet "{name}" is progressing.'
    if newest is None:
        reason, message = "NewReplicaSetCreated", "A new ReplicaSet is being created."
    elif complete:
        reason, message = "NewReplicaSetAvailable", f'ReplicaSet "{name}" has successfully progressed.'
    elif _overdue(deployment, previous, counts, now):
        status, reason = "False", "ProgressDeadlineExceeded"
        message = f'ReplicaSet "{name}" has timed out progressing.'
    condition = _condition(previous, "Progressing", status=status, reason=reason, message=message, now=now)
    if reason == "ReplicaSetUpdated" and _moved(deployment, counts):
        condition["lastUpdateTime"] = format_time(now)
    return condition


def _moved(deployment: Deployment, counts: dict[str, int]) -> bool:
    status = deployment.status
    return (status.updated_replicas, status.available_replicas) != (
        counts["updatedReplicas"],
        counts["availableReplicas"],
    )


def _overdue(deployment: Deployment, previous: Condition | None, counts: dict[str, int], now: float) -> bool:
    deadline_s = deployment.spec.progress_deadline_seconds
    if deadline_s is None or deployment.spec.paused or previous is None or _moved(deployment, counts):
        return False
    if deployment.status.observed_generation != deployment.metadata.generation:
        return False
    if previous.reason == "ProgressDeadlineExceeded":
        return True
    return previous.last_update_time is not None and now > parse_time(previous.last_update_time) + deadline_s


def _previous(deployment: Deployment, kind: str) -> Condition | None:
    return next((one for one in deployment.status.conditions or () if one.type == kind), None)


def status_patch(
    deployment: Deployment, newest: ReplicaSet | None, older: list[ReplicaSet], now: float
) -> tuple[Write, ...]:
    """The write that brings status up to date; none if it is."""
    sets = [*older, *([newest] if newest else [])]
    replicas = 1 if deployment.spec.replicas is None else deployment.spec.replicas
    available = sum(item.status.available_replicas for item in sets)
    counts = {
        "replicas": sum(item.status.replicas for item in sets),
        "updatedReplicas": newest.status.replicas if newest else 0,
        "readyReplicas": sum(item.status.ready_replicas for item in sets),
        "availableReplicas": available,
        "unavailableReplicas": max(max(replicas, sum(item.status.replicas for item in sets)) - available, 0),
        "observedGeneration": deployment.metadata.generation,
    }
    conditions = [_available(deployment, available, replicas, now), _progressing(deployment, newest, counts, now)]
    current = msgspec.to_builtins(deployment.status)
    same_counts = all(current.get(member, 0) == value for member, value in counts.items())
    revision = (newest.metadata.annotations or {}).get(REVISION) if newest else None
    writes: list[Write] = []
    if not same_counts or current.get("conditions") != conditions:
        status: Document = {member: value or None for member, value in counts.items()}
        status["conditions"] = conditions
        writes.append(_patch(deployment, {"status": status}, subresource="status"))
    if revision and (deployment.metadata.annotations or {}).get(REVISION) != revision:
        writes.append(_patch(deployment, {"metadata": {"annotations": {REVISION: revision}}}))
    return tuple(writes)


def _patch(deployment: Deployment, change: Document, subresource: str = "") -> Write:
    body = {**change, "metadata": {**change.get("metadata", {}), "uid": deployment.metadata.uid}}
    return Write(
        verb="patch",
        resource=Deployments,
        namespace=deployment.metadata.namespace,
        name=deployment.metadata.name,
        subresource=subresource,
        body=encode(body),
        tolerate=("NotFound", "Conflict"),
    )
