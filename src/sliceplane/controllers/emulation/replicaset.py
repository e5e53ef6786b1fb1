"""ReplicaSets -> Pods: as many active Pods as ``spec.replicas``, and a status that says what is there.

A plan has three parts, in this order: claim Pods (``claims``: adopt what matches and has no owner, release what does
not match any more), create or delete as many as are missing or too many (``pods`` says which go first), and tell the
status.

What the server refuses (a spent quota, say) becomes a ``FailedCreate`` Event, the condition ReplicaFailure and a
back-off (``refusals``).  Pods are created one after the other and the first refusal ends the job, so a set that may
have none costs one request a try, however many it wants.
"""

from __future__ import annotations

from collections import Counter
from typing import Final, Literal

from sliceplane.api.apps import ReplicaSet
from sliceplane.api.codec import decode, encode
from sliceplane.api.core import Pod
from sliceplane.api.errors import StatusError, is_namespace_terminating
from sliceplane.api.meta import Object
from sliceplane.api.scheme import Pods, ReplicaSets
from sliceplane.controllers.base import ControllerInfo, Done, EventNote, Selection, Write, deletion
from sliceplane.controllers.emulation.claims import Claims
from sliceplane.controllers.emulation.pods import available_at, deletion_rank, is_active, is_terminating
from sliceplane.controllers.emulation.refusals import Refusals
from sliceplane.controllers.emulation.replicaset_status import replicas_of, status_patch
from sliceplane.controllers.emulation.templates import controller_uid, pod_document
from sliceplane.controllers.expectations import Expectations
from sliceplane.controllers.keyed import KeyedController
from sliceplane.informer.changes import Change

#: creations in one job; a larger gap takes several rounds, so that other keys get their turn
CREATES_PER_JOB_MAX: Final = 250
COMPONENT: Final = "replicaset-controller"


class ReplicaSetController(KeyedController):
    """Keys are ``namespace/name`` of ReplicaSets."""

    def __init__(self) -> None:
        watches = (Selection(ReplicaSets), Selection(Pods))
        super().__init__(ControllerInfo("replicaset-emulation", watches))
        self._sets: dict[str, ReplicaSet] = {}
        self._key_of_uid: dict[str, str] = {}
        self._siblings: dict[str, set[str]] = {}  # uid of a set's owner -> uids of its sets
        self._pods: dict[str, dict[str, Pod]] = {}  # owner uid -> pod key -> pod
        self._claims: Claims[Pod] = Claims(ReplicaSets, Pods)
        self._refusals = Refusals()
        self._expectations = Expectations()

    def on_change(self, change: Change[Object], now: float) -> None:
        self._expectations.observe(change)
        if change.resource == ReplicaSets.key:
            self._on_set(change, now)
            return
        old, new = (pod if isinstance(pod, Pod) else None for pod in (change.old, change.new))
        for pod in (old, new):
            owner = controller_uid(pod) if pod is not None else ""
            if pod is None or not owner:
                continue
            owned = self._pods.setdefault(owner, {})
            if pod is new:
                owned[pod.metadata.key] = pod
            else:
                owned.pop(pod.metadata.key, None)
                if not owned:
                    del self._pods[owner]
            if owner in self._key_of_uid:
                self.enqueue(self._key_of_uid[owner], now)
        for key in self._claims.on_child(old, new):
            self.enqueue(key, now)

    def _on_set(self, change: Change[Object], now: float) -> None:
        self.alive_or_over(change)
        key = change.object.metadata.key
        old, new = (item if isinstance(item, ReplicaSet) else None for item in (change.old, change.new))
        if old is not None:
            self._leave_siblings(old)
            if new is None or new.metadata.uid != old.metadata.uid:
                uid = old.metadata.uid
                self._key_of_uid.pop(uid, None)
                self._refusals.forget(uid)
                self._claims.forget(uid)
        if new is not None:
            self._sets[key] = new
            self._key_of_uid[new.metadata.uid] = key
            self._siblings.setdefault(controller_uid(new), set()).add(new.metadata.uid)
            if old is None or old.spec.selector != new.spec.selector:
                self._claims.on_owner(key, new.spec.selector)
        else:
            del self._sets[key]
            self._claims.on_owner(key, None)
            self._expectations.forget(key)
        self.enqueue(key, now)

    def _leave_siblings(self, item: ReplicaSet) -> None:
        owner = controller_uid(item)
        self._siblings[owner].discard(item.metadata.uid)
        if not self._siblings[owner]:
            del self._siblings[owner]

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
        claims = self._claims.plan(wanted, active, is_active)
        if claims:
            return claims
        writes: tuple[Write, ...] = ()
        if wanted.metadata.deletion_timestamp is None:
            writes = self._scale(wanted, active, now)
        terminating = sum(is_terminating(pod) for pod in pods.values())
        return writes + self._status(wanted, active, terminating, now)

    def _scale(self, wanted: ReplicaSet, active: list[Pod], now: float) -> tuple[Write, ...]:
        missing = replicas_of(wanted) - len(active)
        uid, generation = wanted.metadata.uid, wanted.metadata.generation
        if not missing:
            self._refusals.forget(uid)
            return ()
        refusal = self._refusals.holding(uid, generation, now)
        if refusal is not None:
            self.enqueue_after(wanted.metadata.key, refusal.until - now, now)
            return ()
        if missing > 0:
            body = encode(pod_document(wanted.spec.template, wanted, ReplicaSets))
            create = Write(verb="create", resource=Pods, namespace=wanted.metadata.namespace, body=body)
            return (create,) * min(missing, CREATES_PER_JOB_MAX)
        return tuple(deletion(Pods, pod.metadata) for pod in self._surplus(wanted, active, -missing, now))

    def _surplus(self, wanted: ReplicaSet, active: list[Pod], count: int, now: float) -> list[Pod]:
        if count == len(active):
            return active
        owner = controller_uid(wanted)
        family = self._siblings[owner] if owner else {wanted.metadata.uid}
        related = (pod for uid in sorted(family) for pod in self._pods.get(uid, {}).values())
        crowd = Counter(pod.spec.node_name for pod in related if is_active(pod))
        return sorted(active, key=lambda pod: deletion_rank(pod, crowd, now))[:count]

    def _status(self, wanted: ReplicaSet, active: list[Pod], terminating: int, now: float) -> tuple[Write, ...]:
        moments = [available_at(pod, wanted.spec.min_ready_seconds) for pod in active]
        later = [moment - now for moment in moments if moment is not None and moment > now]
        if later:
            self.enqueue_after(wanted.metadata.key, min(later), now)
        available = sum(moment is not None and moment <= now for moment in moments)
        refusal = self._refusals.of(wanted.metadata.uid)
        return status_patch(wanted, active, now, available=available, terminating=terminating, refusal=refusal)

    def finished(self, done: Done, now: float) -> None:
        wanted = self._sets.get(done.job.key)
        if wanted is not None:
            self.note_gone(wanted.metadata.uid, done, ReplicaSets, now)
            if self._claims.heard(wanted, done):
                self.enqueue(done.job.key, now)
            self._tell(wanted, done, now)
        self.expect_results(self._expectations, done, now)

    def _tell(self, wanted: ReplicaSet, done: Done, now: float) -> None:
        """Events of what was done and refused; what was refused is kept for status and back-off."""
        meta = wanted.metadata
        for write, result in zip(done.job.writes, done.results, strict=False):
            if write.resource is Pods and write.verb == "create":
                name = decode(result, Object).metadata.name
                self._event(wanted, "Normal", "SuccessfulCreate", f"Created pod: {name}")
            elif write.resource is Pods and write.verb == "delete" and result:
                self._event(wanted, "Normal", "SuccessfulDelete", f"Deleted pod: {write.name}")
        if done.error is None:
            if self._refusals.of(meta.uid) is not None and any(_scales(write) for write in done.job.writes):
                self._refusals.forget(meta.uid)
                self.enqueue(meta.key, now)  # the status still tells of it
            return
        failed = done.job.writes[len(done.results)]
        if not _scales(failed) or is_namespace_terminating(done.error):
            return
        creating = failed.verb == "create"
        reason = "FailedCreate" if creating else "FailedDelete"
        message = _without_made_name(done.error, meta.name) if creating else done.error.message
        self._refusals.note(meta.uid, meta.generation, reason, message, now)
        self._event(wanted, "Warning", reason, f"Error {'creating' if creating else 'deleting'}: {message}")
        self.enqueue(meta.key, now)  # the status tells at once

    def _event(self, wanted: ReplicaSet, kind: Literal["Normal", "Warning"], reason: str, text: str) -> None:
        self.note(
            EventNote(
                regarding=wanted,
                regarding_resource=ReplicaSets,
                type=kind,
                reason=reason,
                note=text,
                component=COMPONENT,
                action="Scaling",
            )
        )

    def check(self) -> None:
        super().check()
        self._expectations.check()
        self._claims.check()
        assert set(self._key_of_uid.values()) == set(self._sets), f"{self._key_of_uid} != {sorted(self._sets)}"
        assert all(self._pods.values()), "an owner without pods is kept"
        siblings = {uid for uids in self._siblings.values() for uid in uids}
        assert siblings == set(self._key_of_uid), f"{siblings} != {sorted(self._key_of_uid)}"
        assert self._refusals.uids() <= siblings, f"{self._refusals.uids()} not in {siblings}"


def _without_made_name(error: StatusError, owner: str) -> str:
    """The message with the prefix in the place of the name that was made for this try: Events of one cause are one."""
    name, prefix = (error.details or {}).get("name", ""), f"{owner}-"
    return error.message.replace(f'"{name}"', f'"{prefix}"') if name.startswith(prefix) else error.message


def _scales(write: Write) -> bool:
    return write.resource is Pods and write.verb in ("create", "delete")
