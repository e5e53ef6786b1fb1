"""Deployments -> ReplicaSets: one set per pod template, rolling update or Recreate, history, status.

The set of the current template is found by its hash label, so undoing a rollout reuses the old set.  Each
plan takes one step (create the set, resize sets, clean up) and the next change of a set's status brings
the next step: the rollout is driven by what became available, not by timers.

A set with the current template's name may be there without being ours: one that was orphaned is adopted, for one of
another owner (an earlier Deployment of this name, not collected yet) its end is waited for.
"""

from __future__ import annotations

from typing import Any

from sliceplane.api.apps import Deployment, ReplicaSet
from sliceplane.api.codec import encode
from sliceplane.api.meta import Document, Object
from sliceplane.api.scheme import Deployments, Pods, ReplicaSets
from sliceplane.controllers.base import ControllerInfo, Done, Watched, Write
from sliceplane.controllers.emulation.deployment_status import REVISION, is_complete, status_patch
from sliceplane.controllers.emulation.rollout import Counts, limits, newest_size, older_sizes
from sliceplane.controllers.emulation.templates import (
    LABEL_TEMPLATE_HASH,
    controller_uid,
    owner_reference,
    template_hash,
    with_hash_label,
)
from sliceplane.controllers.expectations import Expectations
from sliceplane.controllers.keyed import KeyedController
from sliceplane.informer.changes import Change
from sliceplane.kit.integers import NotAnInteger, parse_uint64

_NOT_COPIED = ("kubectl.kubernetes.io/last-applied-configuration", REVISION)


def revision_of(item: Object) -> int:
    text = (item.metadata.annotations or {}).get(REVISION, "")
    try:
        return parse_uint64(text)
    except NotAnInteger:
        return 0


def counts(item: ReplicaSet) -> Counts:
    wanted = 1 if item.spec.replicas is None else item.spec.replicas
    return Counts(item.metadata.name, wanted, item.status.available_replicas)


class DeploymentController(KeyedController):
    """Keys are ``namespace/name`` of Deployments."""

    def __init__(self) -> None:
        watches = (Watched(Deployments), Watched(ReplicaSets), Watched(Pods))
        super().__init__(ControllerInfo("deployment-emulation", watches))
        self._deployments: dict[str, Deployment] = {}
        self._key_of_uid: dict[str, str] = {}
        self._sets: dict[str, dict[str, ReplicaSet]] = {}  # owner uid -> name -> set
        self._set_named: dict[str, ReplicaSet] = {}  # namespace/name -> set, whoever owns it
        self._owner_of_set: dict[str, str] = {}  # ReplicaSet uid -> Deployment uid
        self._pods: dict[str, set[str]] = {}  # ReplicaSet uid -> uids of its Pods, terminating ones included
        self._expectations = Expectations()

    def on_change(self, change: Change[Object], now: float) -> None:
        self._expectations.observe(change)
        if change.resource == Pods.key:
            self._on_pod(change, now)
            return
        if change.resource == ReplicaSets.key:
            for item in (change.old, change.new):
                if isinstance(item, ReplicaSet) and controller_uid(item):
                    self._on_set(item, present=item is change.new, now=now)
            self._on_name(change, now)
            return
        key = change.object.metadata.key
        self.alive_or_over(change)
        if change.old is not None:
            self._key_of_uid.pop(change.old.metadata.uid, None)
        if isinstance(change.new, Deployment):
            self._deployments[key] = change.new
            self._key_of_uid[change.new.metadata.uid] = key
        else:
            self._deployments.pop(key, None)
            self._expectations.forget(key)
        self.enqueue(key, now)

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

    def _on_name(self, change: Change[Object], now: float) -> None:
        """Whoever would give a set this name learns what has it now."""
        name = change.object.metadata.key
        if isinstance(change.new, ReplicaSet):
            self._set_named[name] = change.new
        else:
            self._set_named.pop(name, None)
        key = name.rpartition("-")[0]
        if key in self._deployments:
            self.enqueue(key, now)

    def _on_pod(self, change: Change[Object], now: float) -> None:
        """Recreate must know when the last Pod of an old set is really gone; statuses do not count the dying."""
        for pod in (change.old, change.new):
            if pod is None:
                continue
            owner = controller_uid(pod)
            uids = self._pods.setdefault(owner, set())
            if pod is change.new:
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
        if deployment is None or deployment.metadata.deletion_timestamp is not None:
            return ()
        if self.rests(key, deployment.metadata.uid, now):
            return ()
        again = self._expectations.pending(key, now)
        if again is not None:
            self.enqueue_after(key, again - now, now)
            return ()
        hashed = template_hash(deployment.spec.template)
        owned = self._sets.get(deployment.metadata.uid, {})
        ordered = sorted(owned.values(), key=lambda item: (revision_of(item), item.metadata.name))
        newest = next((s for s in ordered if (s.metadata.labels or {}).get(LABEL_TEMPLATE_HASH) == hashed), None)
        older = [item for item in ordered if item is not newest]
        if deployment.spec.progress_deadline_seconds is not None and not is_complete(deployment):
            # Nothing may change any more; the deadline itself must then be noticed.
            self.enqueue_after(key, deployment.spec.progress_deadline_seconds + 1.0, now)
        writes = self._step(deployment, newest, older, hashed)
        return writes + status_patch(deployment, newest, older, now)

    def _step(
        self, deployment: Deployment, newest: ReplicaSet | None, older: list[ReplicaSet], hashed: str
    ) -> tuple[Write, ...]:
        replicas = 1 if deployment.spec.replicas is None else deployment.spec.replicas
        surge, unavailable = limits(deployment.spec.strategy, replicas)
        recreate = deployment.spec.strategy.type == "Recreate"
        old_counts = [counts(item) for item in older]
        if newest is None:
            if deployment.spec.paused:
                return self._resize_paused(older, replicas)
            if recreate and any(item.wanted for item in old_counts):
                return tuple(_resize(item, 0) for item in older if counts(item).wanted)
            if recreate and any(item.metadata.uid in self._pods for item in older):
                return ()  # their Pods must be gone first
            room = newest_size(replicas, surge, Counts("", 0, 0), old_counts)
            standing = self._set_named.get(f"{deployment.metadata.key}-{hashed}")
            if standing is not None:
                return _adopt(standing, deployment, hashed)
            return (self._create(deployment, older, hashed, room),)
        if deployment.spec.paused:
            return self._resize_paused([*older, newest], replicas)
        writes = self._revise(newest, older)
        size = newest_size(replicas, surge, counts(newest), old_counts)
        if size != counts(newest).wanted:
            return (*writes, _resize(newest, size))
        sizes = older_sizes(replicas, unavailable, counts(newest), old_counts)
        resized = tuple(_resize(s, sizes[s.metadata.name]) for s in older if counts(s).wanted != sizes[s.metadata.name])
        return (*writes, *resized, *self._forget_history(deployment, older))

    @staticmethod
    def _resize_paused(ordered: list[ReplicaSet], replicas: int) -> tuple[Write, ...]:
        """Paused: no rollout, but ``scale`` still works where one set is active."""
        active = [item for item in ordered if counts(item).wanted] or ordered[-1:]
        if len(active) == 1 and counts(active[0]).wanted != replicas:
            return (_resize(active[0], replicas),)
        return ()

    @staticmethod
    def _revise(newest: ReplicaSet, older: list[ReplicaSet]) -> tuple[Write, ...]:
        """A set that became current again (an undone rollout) gets the highest revision number."""
        highest = max((revision_of(item) for item in older), default=0)
        if revision_of(newest) > highest:
            return ()
        annotations = {REVISION: str(highest + 1)}
        return (_patch(newest, {"metadata": {"annotations": annotations}}),)

    @staticmethod
    def _forget_history(deployment: Deployment, older: list[ReplicaSet]) -> tuple[Write, ...]:
        kept = 10 if deployment.spec.revision_history_limit is None else deployment.spec.revision_history_limit
        idle = [
            item
            for item in older
            if not counts(item).wanted and not item.status.replicas and not item.metadata.deletion_timestamp
        ]
        return tuple(
            Write(
                verb="delete",
                resource=ReplicaSets,
                namespace=item.metadata.namespace,
                name=item.metadata.name,
                body=encode({"preconditions": {"uid": item.metadata.uid}}),
                tolerate=("NotFound", "Conflict"),
            )
            for item in idle[: max(len(idle) - kept, 0)]
        )

    @staticmethod
    def _create(deployment: Deployment, older: list[ReplicaSet], hashed: str, replicas: int) -> Write:
        template: dict[str, Any] = deployment.spec.template
        metadata: Document = template.get("metadata") or {}
        labels = with_hash_label(metadata.get("labels"), hashed)
        annotations = {k: v for k, v in (deployment.metadata.annotations or {}).items() if k not in _NOT_COPIED}
        revision = 1 + max((revision_of(item) for item in older), default=0)
        selector: Document = {
            "matchLabels": with_hash_label(deployment.spec.selector.match_labels, hashed),
        }
        if deployment.spec.selector.match_expressions:
            selector["matchExpressions"] = deployment.spec.selector.match_expressions
        body = {
            "apiVersion": ReplicaSets.api_version,
            "kind": ReplicaSets.kind,
            "metadata": {
                "name": f"{deployment.metadata.name}-{hashed}",
                "namespace": deployment.metadata.namespace,
                "labels": labels,
                "annotations": {**annotations, REVISION: str(revision)},
                "ownerReferences": [owner_reference(deployment, Deployments)],
            },
            "spec": {
                "replicas": replicas,
                "minReadySeconds": deployment.spec.min_ready_seconds,
                "selector": selector,
                "template": {**template, "metadata": {**metadata, "labels": labels}},
            },
        }
        return Write(verb="create", resource=ReplicaSets, namespace=deployment.metadata.namespace, body=encode(body))

    def finished(self, done: Done, now: float) -> None:
        deployment = self._deployments.get(done.job.key)
        if deployment is not None:
            self.note_gone(deployment.metadata.uid, done, Deployments, now)
        self.expect_results(self._expectations, done, now)

    def check(self) -> None:
        super().check()
        self._expectations.check()
        assert set(self._key_of_uid.values()) == set(self._deployments), "uid index differs from the cache"
        assert all(self._sets.values()), "an owner without sets is kept"
        owners = {item.metadata.uid: uid for uid, owned in self._sets.items() for item in owned.values()}
        assert owners == self._owner_of_set, f"{owners} != {self._owner_of_set}"
        named = {item.metadata.key for owned in self._sets.values() for item in owned.values()}
        assert named <= set(self._set_named), f"{named} not in {sorted(self._set_named)}"


def _patch(item: ReplicaSet, change: Document) -> Write:
    body = {**change, "metadata": {**change.get("metadata", {}), "uid": item.metadata.uid}}
    return Write(
        verb="patch",
        resource=ReplicaSets,
        namespace=item.metadata.namespace,
        name=item.metadata.name,
        body=encode(body),
        tolerate=("NotFound", "Conflict"),
    )


def _adopt(standing: ReplicaSet, deployment: Deployment, hashed: str) -> tuple[Write, ...]:
    """Take over a set that nobody owns and that is of the current template; nothing in every other case."""
    metadata = standing.metadata
    labels = metadata.labels or {}
    if controller_uid(standing) or metadata.deletion_timestamp or labels.get(LABEL_TEMPLATE_HASH) != hashed:
        return ()
    owners = [owner_reference(deployment, Deployments)]
    body = {"metadata": {"uid": metadata.uid, "ownerReferences": owners}}
    return (
        Write(
            verb="patch",
            resource=ReplicaSets,
            namespace=metadata.namespace,
            name=metadata.name,
            body=encode(body),
            patch_type="strategic",
            tolerate=("NotFound", "Conflict"),
        ),
    )


def _resize(item: ReplicaSet, replicas: int) -> Write:
    return _patch(item, {"spec": {"replicas": replicas}})
