"""ReplicaSets and ReplicationControllers -> Pods: as many active Pods as ``spec.replicas``, and a
status that tells.

A plan has three parts, in this order: claim Pods (``pod_owner``), create or delete as many as are
missing or too many (``pods`` says which go first), and tell the status, with the condition
ReplicaFailure while the server refuses Pods.
"""

from __future__ import annotations

from collections import Counter

from sliceplane.api.apps import ReplicaSet, ReplicationController
from sliceplane.api.codec import encode
from sliceplane.api.core import Pod
from sliceplane.api.meta import LabelSelector
from sliceplane.api.scheme import Pods, ReplicaSets, Resource
from sliceplane.emulation.pod_owner import CREATES_PER_JOB_MAX, PodOwnerController
from sliceplane.emulation.pods import deletion_rank, is_active, is_terminating
from sliceplane.emulation.replicaset_status import ReplicaOwner, replicas_of, status_patch
from sliceplane.emulation.templates import controller_uid, pod_document
from sliceplane.watch.controller.base import Write, deletion


class ReplicaSetController(PodOwnerController[ReplicaOwner]):
    """For one of the two kinds."""

    def __init__(self, owners: Resource = ReplicaSets) -> None:
        if owners is ReplicaSets:
            super().__init__(owners, ReplicaSet, "replicaset-controller")
        else:
            super().__init__(owners, ReplicationController, "replication-controller")
        self._siblings: dict[str, set[str]] = {}  # uid of a set's owner -> uids of its sets

    def selector_of(self, owner: ReplicaOwner) -> LabelSelector:
        selector = owner.spec.selector
        return (
            selector
            if isinstance(selector, LabelSelector)
            else LabelSelector(match_labels=selector)
        )

    def on_owner(self, old: ReplicaOwner | None, new: ReplicaOwner | None) -> None:
        if old is not None:
            parent = controller_uid(old)
            self._siblings[parent].discard(old.metadata.uid)
            if not self._siblings[parent]:
                del self._siblings[parent]
        if new is not None:
            self._siblings.setdefault(controller_uid(new), set()).add(new.metadata.uid)

    def decide(self, owner: ReplicaOwner, pods: list[Pod], now: float) -> tuple[Write, ...]:
        active = [pod for pod in pods if is_active(pod)]
        writes: tuple[Write, ...] = ()
        if owner.metadata.deletion_timestamp is None:
            writes = self._scale(owner, active, now)
        status = status_patch(
            owner,
            self._resource,
            active,
            now,
            available=len(self.available(owner, active, owner.spec.min_ready_seconds, now)),
            terminating=sum(is_terminating(pod) for pod in pods),
            refusal=self._refusals.of(owner.metadata.uid),
        )
        return writes + status

    def _scale(self, owner: ReplicaOwner, active: list[Pod], now: float) -> tuple[Write, ...]:
        missing = replicas_of(owner) - len(active)
        if not missing:
            self._refusals.forget(owner.metadata.uid)
            return ()
        if self.held_back(owner, now):
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
        related = (pod for uid in sorted(family) for pod in self._pods.get(uid, {}).values())
        crowd = Counter(pod.spec.node_name for pod in related if is_active(pod))
        return sorted(active, key=lambda pod: deletion_rank(pod, crowd, now))[:count]

    def check(self) -> None:
        super().check()
        siblings = {uid for uids in self._siblings.values() for uid in uids}
        assert siblings == set(self._key_of_uid), f"{siblings} != {sorted(self._key_of_uid)}"
