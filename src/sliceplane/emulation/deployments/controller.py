"""Deployments -> ReplicaSets: one set per pod template, rolling update or Recreate, history,
status.

The newest set is the one whose template equals the Deployment's but for the hash label, so undoing
a rollout reuses the old set. Each plan takes one step (``strategy``), and the next change of a
set's status brings the next step: a rollout is driven by what became available, not by timers.

Sets are claimed like Pods (``owner``). Where the name of a new set is taken by an object that
cannot be claimed, the Deployment counts a collision in its status, and its sets get another hash.
"""

from __future__ import annotations

from collections.abc import Iterable

from sliceplane.api.apps import Deployment, ReplicaSet
from sliceplane.api.core import Pod
from sliceplane.api.errors import StatusError
from sliceplane.api.meta import LabelSelector, Object
from sliceplane.api.scheme import Deployments, Pods, ReplicaSets
from sliceplane.emulation.deployments.revisions import revision_of
from sliceplane.emulation.deployments.status import CREATE_ERROR, creation_failure, status_patch
from sliceplane.emulation.deployments.strategy import Rollout, next_steps
from sliceplane.emulation.owner import OwnerController
from sliceplane.emulation.templates import Fingerprints, controller_uid, template_hash
from sliceplane.watch.cache import Change
from sliceplane.watch.controller.base import Done, Selection, Write


class DeploymentController(OwnerController[Deployment, ReplicaSet]):
    def __init__(self) -> None:
        super().__init__(Deployments, ReplicaSets, "deployment-controller", Selection(Pods))
        self._set_named: dict[str, ReplicaSet] = {}  # namespace/name -> set, of any owner
        self._owner_of_set: dict[str, str] = {}  # ReplicaSet uid -> Deployment uid
        #: ReplicaSet uid -> uids of its Pods that have not ended, terminating ones included
        self._pods: dict[str, set[str]] = {}
        self._fingerprints = Fingerprints()
        #: key -> texts of the Events about the writes of its job, "" for none
        self._notes_of_job: dict[str, tuple[str, ...]] = {}

    def selector_of(self, owner: Deployment) -> LabelSelector:
        return owner.spec.selector

    def on_owner(self, old: Deployment | None, new: Deployment | None) -> None:
        if old is not None and (new is None or new.metadata.uid != old.metadata.uid):
            self._fingerprints.forget(old.metadata.uid)
            self._notes_of_job.pop(old.metadata.key, None)

    def on_child(self, old: ReplicaSet | None, new: ReplicaSet | None, now: float) -> None:
        if old is not None:
            self._owner_of_set.pop(old.metadata.uid, None)
            if new is None or new.metadata.uid != old.metadata.uid:
                self._fingerprints.forget(old.metadata.uid)
            del self._set_named[old.metadata.key]
        if new is not None:
            self._set_named[new.metadata.key] = new
            owner = controller_uid(new, Deployments)
            if owner:
                self._owner_of_set[new.metadata.uid] = owner
        item = old if new is None else new
        assert item is not None, "a change has an old or a new object"
        # A Deployment that would give a set this name must learn that it is taken, or free.
        key = item.metadata.key.rpartition("-")[0]
        if key in self._owners:
            self.enqueue(key, now)

    def on_other(self, change: Change[Object], now: float) -> None:
        """Recreate must know when the last Pod of an old set is gone; statuses do not count the
        terminating ones.
        """
        for pod in change.typed(Pod):
            if pod is None:
                continue
            owner = controller_uid(pod)
            uids = self._pods.setdefault(owner, set())
            if pod is change.new and not pod.has_ended:
                uids.add(pod.metadata.uid)
            else:
                uids.discard(pod.metadata.uid)
            if not uids:
                del self._pods[owner]
                key = self._key_of_uid.get(self._owner_of_set.get(owner, ""))
                if key is not None:
                    self.enqueue(key, now)

    def decide(
        self, owner: Deployment, children: list[ReplicaSet], now: float
    ) -> tuple[Write, ...]:
        key = owner.metadata.key
        rollout = self._rollout(owner, children, now)
        steps = next_steps(rollout)
        self._notes_of_job[key] = tuple(step.note for step in steps)
        creating = any(step.write.verb == "create" for step in steps)
        status, due = status_patch(rollout, now, creating=creating)
        if due is not None:
            # If nothing changes any more, the deadline itself must be noticed.
            self.enqueue_after(key, max(due - now, 1.0), now)
        return (*(step.write for step in steps), *status)

    def _rollout(self, deployment: Deployment, owned: list[ReplicaSet], now: float) -> Rollout:
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
            taken=f"{deployment.metadata.key}-{hashed}" in self._set_named,
            refusal=self.refusal_under_backoff(deployment, now),
            old_pods=any(item.metadata.uid in self._pods for item in older),
        )

    def successes(self, owner: Deployment, done: Done) -> Iterable[tuple[str, str]]:
        notes = self._notes_of_job.pop(done.job.key, ())
        for note, result in zip(notes, done.results, strict=False):
            if note and result:
                yield "ScalingReplicaSet", note

    def is_refusal(self, failed: Write, error: StatusError) -> bool:
        # A set that exists already is in the cache soon: it is ours, or a collision.
        exists = error.reason == "AlreadyExists"
        return failed.verb == "create" and not exists and super().is_refusal(failed, error)

    def event_text(self, owner: Deployment, verb: str, child: str, error: str) -> str:
        return creation_failure(child, error)

    def _failure_reason(self, failed: Write) -> str:
        return CREATE_ERROR

    def check(self) -> None:
        super().check()
        owners = {
            item.metadata.uid: uid
            for uid, owned in self._children.items()
            for item in owned.values()
        }
        assert owners == self._owner_of_set, f"{owners} != {self._owner_of_set}"
        named = {key for owned in self._children.values() for key in owned}
        assert named <= set(self._set_named), f"{named} not in {sorted(self._set_named)}"
        alive = set(self._key_of_uid) | {item.metadata.uid for item in self._set_named.values()}
        assert self._fingerprints.uids() <= alive, "fingerprints of removed objects are kept"
