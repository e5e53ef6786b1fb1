"""ReplicaSets and ReplicationControllers -> Pods: as many active Pods as ``spec.replicas``, and the
status.

A plan has three parts, in this order: claim Pods (``owner``), create missing or delete surplus
Pods, and write the status, with the condition ReplicaFailure while the server refuses Pods.

The order of deletion is upstream's published one: without a node, not yet running, not ready, of
lower ``pod-deletion-cost``, on a node with more of its kind, ready for a shorter time, restarted
more often, younger. Ages count on a logarithmic scale, so that of Pods of about one age no one is
always the victim; the uid decides there.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from sliceplane.api.apps import ReplicaSet, ReplicationController
from sliceplane.api.codec import encode
from sliceplane.api.core import Pod
from sliceplane.api.meta import Condition, Document, LabelSelector, find_condition
from sliceplane.api.scheme import Pods, ReplicaSets, Resource
from sliceplane.emulation.owner import CREATES_PER_JOB_MAX, OwnerController, Refusal, status_write
from sliceplane.emulation.templates import controller_uid, pod_document
from sliceplane.kit.times import format_time, parse_time
from sliceplane.watch.controller.base import Write, deletion

ReplicaOwner = ReplicaSet | ReplicationController
REPLICA_FAILURE: Final = "ReplicaFailure"
DELETION_COST: Final = "controller.kubernetes.io/pod-deletion-cost"
_COST_DIGITS_MAX: Final = 10  # of a 32 bit number
_PHASES: Final = {"Pending": 0, "Unknown": 1, "Running": 2}
#: members of the status that are shown even if they are zero
_ALWAYS: Final = ("replicas", "observedGeneration", "terminatingReplicas")


class ReplicaSetController(OwnerController[ReplicaOwner, Pod]):
    """A controller of ReplicaSets, or of ReplicationControllers."""

    def __init__(self, owners: Resource = ReplicaSets) -> None:
        name = "replicaset" if owners is ReplicaSets else "replication"
        super().__init__(owners, Pods, f"{name}-controller")
        self._siblings: dict[str, set[str]] = {}  # uid of a set's owner -> uids of its sets

    def selector_of(self, owner: ReplicaOwner) -> LabelSelector:
        selector = owner.spec.selector
        return (
            selector
            if isinstance(selector, LabelSelector)
            else LabelSelector(match_labels=selector)
        )

    def is_live(self, child: Pod) -> bool:
        return child.is_active

    def on_owner(self, old: ReplicaOwner | None, new: ReplicaOwner | None) -> None:
        if old is not None:
            parent = controller_uid(old)
            self._siblings[parent].discard(old.metadata.uid)
            if not self._siblings[parent]:
                del self._siblings[parent]
        if new is not None:
            self._siblings.setdefault(controller_uid(new), set()).add(new.metadata.uid)

    def decide(self, owner: ReplicaOwner, children: list[Pod], now: float) -> tuple[Write, ...]:
        active = [pod for pod in children if pod.is_active]
        writes: tuple[Write, ...] = ()
        if not owner.metadata.is_deleting:
            writes = self._scale(owner, active, now)
        counts = _counts(owner, active)
        counts["availableReplicas"] = len(
            self.available(owner, active, owner.spec.min_ready_seconds, now)
        )
        is_complete = True
        if isinstance(owner, ReplicaSet):
            counts["terminatingReplicas"] = sum(
                pod.metadata.is_deleting and not pod.has_ended for pod in children
            )
            is_complete = owner.status.terminating_replicas is not None
        conditions = _conditions(owner, self._refusals.of(owner.metadata.uid), now)
        return writes + status_write(
            self._resource, owner, counts, conditions, always=_ALWAYS, is_complete=is_complete
        )

    def _scale(self, owner: ReplicaOwner, active: list[Pod], now: float) -> tuple[Write, ...]:
        missing = owner.spec.desired_replicas - len(active)
        if not missing:
            self._refusals.forget(owner.metadata.uid)
            return ()
        if self.refusal_under_backoff(owner, now):
            return ()
        if missing > 0:
            body = encode(pod_document(owner.spec.template, owner, self._resource))
            create = Write(
                verb="create", resource=Pods, namespace=owner.metadata.namespace, body=body
            )
            return (create,) * min(missing, CREATES_PER_JOB_MAX)
        return tuple(
            deletion(Pods, pod.metadata) for pod in self._surplus(owner, active, -missing, now)
        )

    def _surplus(self, owner: ReplicaOwner, active: list[Pod], count: int, now: float) -> list[Pod]:
        if count == len(active):
            return active
        parent = controller_uid(owner)
        family = self._siblings[parent] if parent else {owner.metadata.uid}
        related = (pod for uid in sorted(family) for pod in self._children.get(uid, {}).values())
        crowd = Counter(pod.spec.node_name for pod in related if pod.is_active)
        return sorted(active, key=lambda pod: deletion_rank(pod, crowd, now))[:count]

    def check(self) -> None:
        super().check()
        siblings = {uid for uids in self._siblings.values() for uid in uids}
        assert siblings == set(self._key_of_uid), f"{siblings} != {sorted(self._key_of_uid)}"


def _counts(owner: ReplicaOwner, active: Sequence[Pod]) -> Document:
    labels: dict[str, str] = (owner.spec.template.get("metadata") or {}).get("labels") or {}
    return {
        "replicas": len(active),
        "fullyLabeledReplicas": sum(
            labels.items() <= (pod.metadata.labels or {}).items() for pod in active
        ),
        "readyReplicas": sum(pod.is_ready for pod in active),
        "observedGeneration": owner.metadata.generation,
    }


def replica_failure(owner: ReplicaOwner) -> Condition | None:
    return find_condition(owner.status.conditions, REPLICA_FAILURE)


def _conditions(owner: ReplicaOwner, refusal: Refusal | None, now: float) -> list[Document]:
    """ReplicaFailure from the first refusal to the first success; others' conditions are kept."""
    conditions: list[Document] = [
        msgspec.to_builtins(one)
        for one in owner.status.conditions or ()
        if one.type != REPLICA_FAILURE or refusal is not None
    ]
    if refusal is not None and replica_failure(owner) is None:
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


def deletion_cost(pod: Pod) -> int:
    """Returns the value of the annotation; 0 if it is no 32 bit number as Go writes it."""
    text = (pod.metadata.annotations or {}).get(DELETION_COST, "")
    digits = text[1:] if text.startswith("-") else text
    if not (digits.isascii() and digits.isdigit()) or len(digits) > _COST_DIGITS_MAX:
        return 0
    if text != "0" and text.startswith("0"):
        return 0
    cost = int(text)
    return cost if -(2**31) <= cost < 2**31 else 0


def deletion_rank(pod: Pod, crowd: Mapping[str, int], now: float) -> tuple[int | str, ...]:
    """Returns the sort key by which the lowest Pod is deleted first.  *crowd*: Pods on each node
    that belong to the same owner of owners.
    """
    restarts = max((one.restart_count for one in pod.status.container_statuses or ()), default=0)
    ready = pod.condition("Ready") if pod.is_ready else None
    return (
        int(pod.spec.node_name != ""),
        _PHASES.get(pod.status.phase, 0),
        int(ready is not None),
        deletion_cost(pod),
        -crowd.get(pod.spec.node_name, 0),
        _age(ready.last_transition_time, now) if ready else 0,
        -restarts,
        _age(pod.metadata.creation_timestamp, now),
        pod.metadata.uid,
    )


def _age(since: str | None, now: float) -> int:
    """Returns the whole part of the binary logarithm of an age in nanoseconds; -1 for no age."""
    elapsed_s = now - parse_time(since) if since else 0.0
    return int(math.log2(elapsed_s * 1e9)) if elapsed_s > 1e-9 else -1
