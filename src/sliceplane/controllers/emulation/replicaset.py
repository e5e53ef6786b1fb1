"""ReplicaSets -> Pods: as many active Pods as ``spec.replicas``, and a status that says what is there.

A Pod is *active* unless it is terminating or has ended (phase Succeeded or Failed).  Pods are owned by
their controlling ownerReference; Pods that match the selector without one are not adopted.
"""

from __future__ import annotations

import msgspec

from sliceplane.api.apps import ReplicaSet
from sliceplane.api.codec import encode
from sliceplane.api.core import Pod
from sliceplane.api.meta import Condition, Document, Object
from sliceplane.api.scheme import Pods, ReplicaSets
from sliceplane.controllers.base import ControllerInfo, Done, Watched, Write
from sliceplane.controllers.emulation.templates import controller_uid, pod_document
from sliceplane.controllers.expectations import Expectations
from sliceplane.controllers.keyed import KeyedController
from sliceplane.informer.changes import Change
from sliceplane.kit.times import parse_time

#: creations in one job; a larger gap takes several rounds, so that other keys get their turn
CREATES_PER_JOB_MAX = 250


def ready_condition(pod: Pod) -> Condition | None:
    for condition in pod.status.conditions or ():
        if condition.type == "Ready":
            return condition
    return None


def is_ready(pod: Pod) -> bool:
    condition = ready_condition(pod)
    return condition is not None and condition.status == "True"


def is_active(pod: Pod) -> bool:
    return pod.metadata.deletion_timestamp is None and pod.status.phase not in ("Succeeded", "Failed")


def available_at(pod: Pod, min_ready_s: int) -> float | None:
    """From when on the Pod counts as available; ``None`` while it is not ready."""
    condition = ready_condition(pod)
    if condition is None or condition.status != "True":
        return None
    if not min_ready_s or not condition.last_transition_time:
        return 0.0
    return parse_time(condition.last_transition_time) + min_ready_s


class ReplicaSetController(KeyedController):
    """Keys are ``namespace/name`` of ReplicaSets."""

    def __init__(self) -> None:
        watches = (Watched(ReplicaSets), Watched(Pods))
        super().__init__(ControllerInfo("replicaset-emulation", watches))
        self._sets: dict[str, ReplicaSet] = {}
        self._key_of_uid: dict[str, str] = {}
        self._pods: dict[str, dict[str, Pod]] = {}  # owner uid -> pod key -> pod
        self._expectations = Expectations()

    def on_change(self, change: Change[Object], now: float) -> None:
        if change.resource == ReplicaSets.key:
            self._on_set(change, now)
            return
        for pod in (change.old, change.new):
            if not isinstance(pod, Pod):
                continue
            owner = controller_uid(pod)
            if not owner:
                continue
            owned = self._pods.setdefault(owner, {})
            if pod is change.new:
                owned[pod.metadata.key] = pod
            else:
                owned.pop(pod.metadata.key, None)
                if not owned:
                    del self._pods[owner]
            if owner in self._key_of_uid:
                self.enqueue(self._key_of_uid[owner], now)
        self._expectations.observe(change)

    def _on_set(self, change: Change[Object], now: float) -> None:
        self.alive_or_over(change)
        key = change.object.metadata.key
        if isinstance(change.new, ReplicaSet):
            self._sets[key] = change.new
            self._key_of_uid[change.new.metadata.uid] = key
        if change.old is not None and (change.new is None or change.new.metadata.uid != change.old.metadata.uid):
            self._key_of_uid.pop(change.old.metadata.uid, None)
            if change.new is None:
                del self._sets[key]
                self._expectations.forget(key)
        self._expectations.observe(change)
        self.enqueue(key, now)

    def plan(self, key: str, now: float) -> tuple[Write, ...]:
        wanted = self._sets.get(key)
        if wanted is None or self.rests(key, wanted.metadata.uid, now):
            return ()
        again = self._expectations.pending(key, now)
        if again is not None:
            self.enqueue_after(key, again - now, now)
            return ()
        pods = self._pods.get(wanted.metadata.uid, {})
        active = [pods[name] for name in sorted(pods) if is_active(pods[name])]
        writes: tuple[Write, ...] = ()
        if wanted.metadata.deletion_timestamp is None:
            writes = self._scale(wanted, active)
        return writes + self._status(wanted, active, now)

    def _scale(self, wanted: ReplicaSet, active: list[Pod]) -> tuple[Write, ...]:
        replicas = 1 if wanted.spec.replicas is None else wanted.spec.replicas
        missing = replicas - len(active)
        namespace = wanted.metadata.namespace
        if missing > 0:
            body = encode(pod_document(wanted.spec.template, wanted, ReplicaSets))
            create = Write(verb="create", resource=Pods, namespace=namespace, body=body)
            return (create,) * min(missing, CREATES_PER_JOB_MAX)
        surplus = sorted(active, key=_deletion_rank)[: max(-missing, 0)]
        return tuple(
            Write(
                verb="delete",
                resource=Pods,
                namespace=namespace,
                name=pod.metadata.name,
                body=encode({"preconditions": {"uid": pod.metadata.uid}}),
                tolerate=("NotFound", "Conflict"),
            )
            for pod in surplus
        )

    def _status(self, wanted: ReplicaSet, active: list[Pod], now: float) -> tuple[Write, ...]:
        moments = [available_at(pod, wanted.spec.min_ready_seconds) for pod in active]
        later = [moment - now for moment in moments if moment is not None and moment > now]
        if later:
            self.enqueue_after(wanted.metadata.key, min(later), now)
        counts = {
            "replicas": len(active),
            "fullyLabeledReplicas": len(active),
            "readyReplicas": sum(is_ready(pod) for pod in active),
            "availableReplicas": sum(moment is not None and moment <= now for moment in moments),
            "observedGeneration": wanted.metadata.generation,
        }
        current = msgspec.to_builtins(wanted.status)
        if all(current.get(member, 0) == value for member, value in counts.items()):
            return ()
        # Zero is "absent" upstream; null in a merge patch removes the member.
        status: Document = {
            k: (v or None) if k not in ("replicas", "observedGeneration") else v for k, v in counts.items()
        }
        patch = Write(
            verb="patch",
            resource=ReplicaSets,
            namespace=wanted.metadata.namespace,
            name=wanted.metadata.name,
            subresource="status",
            body=encode({"metadata": {"uid": wanted.metadata.uid}, "status": status}),
            tolerate=("NotFound", "Conflict"),
        )
        return (patch,)

    def finished(self, done: Done, now: float) -> None:
        wanted = self._sets.get(done.job.key)
        if wanted is not None:
            self.note_gone(wanted.metadata.uid, done, ReplicaSets, now)
        self.expect_results(self._expectations, done, now)

    def check(self) -> None:
        super().check()
        self._expectations.check()
        assert set(self._key_of_uid.values()) == set(self._sets), f"{self._key_of_uid} != {sorted(self._sets)}"
        assert all(self._pods.values()), "an owner without pods is kept"


def _deletion_rank(pod: Pod) -> tuple[bool, bool, bool, str, str]:
    """Lowest goes first: without a node, not running, not ready; of equals the youngest, then by name."""
    created = pod.metadata.creation_timestamp or ""
    youngest_first = "".join(chr(0x10FFFF - ord(c)) for c in created)
    return (pod.spec.node_name != "", pod.status.phase == "Running", is_ready(pod), youngest_first, pod.metadata.name)
