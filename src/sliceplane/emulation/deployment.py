"""Deployments -> ReplicaSets: one set per pod template, rolling update or Recreate, history,
status.

The newest set is the one whose template equals the Deployment's but for the hash label, so undoing
a rollout reuses the old set. Each plan takes one step (``strategy``), and the next change of a
set's status brings the next step: a rollout is driven by what became available, not by timers.

Sets are claimed like Pods (``claims``). Where the name of a new set is taken by an object that
cannot be claimed, the Deployment counts a collision in its status, and its sets get another hash.
"""

from __future__ import annotations

from typing import Final, Literal

from sliceplane.api.apps import Deployment, ReplicaSet
from sliceplane.api.core import Pod
from sliceplane.api.errors import is_namespace_terminating
from sliceplane.api.meta import Object
from sliceplane.api.scheme import Deployments, Pods, ReplicaSets
from sliceplane.emulation.claims import Claims
from sliceplane.emulation.deployment_status import CREATE_ERROR, creation_failure, status_patch
from sliceplane.emulation.pods import has_ended
from sliceplane.emulation.refusals import Refusals
from sliceplane.emulation.revisions import revision_of
from sliceplane.emulation.strategy import Rollout, next_steps
from sliceplane.emulation.templates import Fingerprints, controller_uid, template_hash
from sliceplane.watch.cache import Change
from sliceplane.watch.controller.base import ControllerInfo, Done, EventNote, Selection, Write
from sliceplane.watch.controller.keyed import KeyedController

COMPONENT: Final = "deployment-controller"


class DeploymentController(KeyedController):
    """Keys are ``namespace/name`` of Deployments."""

    def __init__(self) -> None:
        watches = (Selection(Deployments), Selection(ReplicaSets), Selection(Pods))
        super().__init__(ControllerInfo("deployment-emulation", watches))
        self._deployments: dict[str, Deployment] = {}
        self._key_of_uid: dict[str, str] = {}
        self._sets: dict[str, dict[str, ReplicaSet]] = {}  # owner uid -> name -> set
        self._set_named: dict[str, ReplicaSet] = {}  # namespace/name -> set, of any owner
        self._owner_of_set: dict[str, str] = {}  # ReplicaSet uid -> Deployment uid
        self._pods: dict[
            str, set[str]
        ] = {}  # ReplicaSet uid -> uids of its Pods that have not ended, dying ones included
        self._claims: Claims[ReplicaSet] = Claims(Deployments, ReplicaSets)
        self._fingerprints = Fingerprints()
        self._refusals = Refusals()
        self._telling: dict[
            str, tuple[str, ...]
        ] = {}  # key -> what Events say of its job's writes, "" for nothing

    def on_change(self, change: Change[Object], now: float) -> None:
        self._expectations.observe(change)
        if change.resource == Pods.key:
            self._on_pod(change, now)
            return
        if change.resource == ReplicaSets.key:
            self._on_sets(change, now)
            return
        key = change.object.metadata.key
        self.alive_or_over(change)
        old, new = (
            item if isinstance(item, Deployment) else None for item in (change.old, change.new)
        )
        if old is not None and (new is None or new.metadata.uid != old.metadata.uid):
            uid = old.metadata.uid
            self._key_of_uid.pop(uid, None)
            self._claims.forget(uid)
            self._refusals.forget(uid)
            self._fingerprints.forget(uid)
        if new is not None:
            self._deployments[key] = new
            self._key_of_uid[new.metadata.uid] = key
            if old is None or old.spec.selector != new.spec.selector:
                self._claims.on_owner(key, new.spec.selector)
        else:
            self._deployments.pop(key, None)
            self._claims.on_owner(key, None)
            self._expectations.forget(key)
        self.enqueue(key, now)

    def _on_sets(self, change: Change[Object], now: float) -> None:
        old, new = (
            item if isinstance(item, ReplicaSet) else None for item in (change.old, change.new)
        )
        for item in (old, new):
            if item is not None and controller_uid(item):
                self._on_set(item, present=item is new, now=now)
        if old is not None and (new is None or new.metadata.uid != old.metadata.uid):
            self._fingerprints.forget(old.metadata.uid)
        # Whoever would give a set this name learns what has it now.
        name = change.object.metadata.key
        if new is not None:
            self._set_named[name] = new
        else:
            self._set_named.pop(name, None)
        key = name.rpartition("-")[0]
        for owner in (
            *((key,) if key in self._deployments else ()),
            *self._claims.on_child(old, new),
        ):
            self.enqueue(owner, now)

    def _on_set(self, item: ReplicaSet, *, present: bool, now: float) -> None:
        owner = controller_uid(item)
        owned = self._sets.setdefault(owner, {})
        if present:
            owned[item.metadata.name] = item
            self._owner_of_set[item.metadata.uid] = owner
        else:
            owned.pop(item.metadata.name, None)
            self._owner_of_set.pop(item.metadata.uid, None)
            if not owned:
                del self._sets[owner]
        if owner in self._key_of_uid:
            self.enqueue(self._key_of_uid[owner], now)

    def _on_pod(self, change: Change[Object], now: float) -> None:
        """Recreate must know when the last Pod of an old set is really gone; statuses do not count
        the dying.
        """
        for pod in (change.old, change.new):
            if not isinstance(pod, Pod):
                continue
            owner = controller_uid(pod)
            uids = self._pods.setdefault(owner, set())
            if pod is change.new and not has_ended(pod):
                uids.add(pod.metadata.uid)
            else:
                uids.discard(pod.metadata.uid)
            if not uids:
                del self._pods[owner]
                self._on_last_pod_gone(owner, now)

    def _on_last_pod_gone(self, owner: str, now: float) -> None:
        key = self._key_of_uid.get(self._owner_of_set.get(owner, ""))
        if key is not None:
            self.enqueue(key, now)

    def plan(self, key: str, now: float) -> tuple[Write, ...]:
        deployment = self._deployments.get(key)
        if deployment is None or self.rests(key, deployment.metadata.uid, now):
            return ()
        if self.waits_for_cache(key, now):
            return ()
        owned = self._sets.get(deployment.metadata.uid, {})
        claims = self._claims.plan(
            deployment, owned.values(), lambda item: item.metadata.deletion_timestamp is None
        )
        if claims:
            return claims
        rollout = self._rollout(deployment, list(owned.values()), now)
        if rollout.refusal is not None:
            self.enqueue_after(key, rollout.refusal.until - now, now)
        steps = next_steps(rollout)
        self._telling[key] = tuple(step.note for step in steps)
        creating = any(step.write.verb == "create" for step in steps)
        status, due = status_patch(rollout, now, creating=creating)
        if due is not None:
            # Nothing may change any more; the deadline itself must then be noticed.
            self.enqueue_after(key, max(due - now, 1.0), now)
        return (*(step.write for step in steps), *status)

    def _rollout(self, deployment: Deployment, owned: list[ReplicaSet], now: float) -> Rollout:
        meta = deployment.metadata
        ordered = sorted(
            owned, key=lambda item: (item.metadata.creation_timestamp or "", revision_of(item))
        )
        template = self._fingerprints.of(deployment)
        newest = next((item for item in ordered if self._fingerprints.of(item) == template), None)
        older = [item for item in ordered if item is not newest]
        hashed = template_hash(deployment.spec.template, deployment.status.collision_count)
        return Rollout(
            deployment=deployment,
            newest=newest,
            older=older,
            hashed=hashed,
            taken=f"{meta.key}-{hashed}" in self._set_named,
            refusal=self._refusals.holding(meta.uid, meta.generation, now),
            old_pods=any(item.metadata.uid in self._pods for item in older),
        )

    def finished(self, done: Done, now: float) -> None:
        key = done.job.key
        deployment = self._deployments.get(key)
        notes = self._telling.pop(key, ())
        if deployment is not None:
            self.note_gone(deployment.metadata.uid, done, Deployments, now)
            if self._claims.heard(deployment, done):
                self.enqueue(key, now)
            for note, result in zip(notes, done.results, strict=False):
                if note and result:
                    self._event(deployment, "Normal", "ScalingReplicaSet", note)
            self._note_refusal(deployment, done, now)
        self._expectations.expect(done, now)

    def _note_refusal(self, deployment: Deployment, done: Done, now: float) -> None:
        meta = deployment.metadata
        if done.error is None:
            if any(write.verb == "create" for write in done.job.writes):
                self._refusals.forget(meta.uid)
            return
        failed = done.job.writes[len(done.results)]
        if (
            failed.verb != "create"
            or done.error.reason == "AlreadyExists"
            or is_namespace_terminating(done.error)
        ):
            return  # one that is there already is in the cache soon: it is ours, or a collision
        self._refusals.note(meta.uid, meta.generation, CREATE_ERROR, done.error.message, now)
        name = f"{meta.name}-{template_hash(deployment.spec.template, deployment.status.collision_count)}"
        self._event(deployment, "Warning", CREATE_ERROR, creation_failure(name, done.error.message))
        self.enqueue(meta.key, now)  # the status tells at once

    def _event(
        self, deployment: Deployment, kind: Literal["Normal", "Warning"], reason: str, text: str
    ) -> None:
        self.note(
            EventNote(
                regarding=deployment,
                regarding_resource=Deployments,
                type=kind,
                reason=reason,
                note=text,
                component=COMPONENT,
                action="Scaling",
            )
        )

    def check(self) -> None:
        super().check()
        self._claims.check()
        assert set(self._key_of_uid.values()) == set(self._deployments), (
            "uid index differs from the cache"
        )
        assert all(self._sets.values()), "an owner without sets is kept"
        owners = {
            item.metadata.uid: uid for uid, owned in self._sets.items() for item in owned.values()
        }
        assert owners == self._owner_of_set, f"{owners} != {self._owner_of_set}"
        named = {item.metadata.key for owned in self._sets.values() for item in owned.values()}
        assert named <= set(self._set_named), f"{named} not in {sorted(self._set_named)}"
        alive = set(self._key_of_uid) | {item.metadata.uid for item in self._set_named.values()}
        assert self._fingerprints.uids() | self._refusals.uids() <= alive, (
            "what is gone is remembered"
        )
