"""The garbage collector: objects go when their owners are gone (reference B9).

A graph of every watched object and its ownerReferences is kept up to date from the caches.  For an object with
owners, each owner is one of

    solid     it exists, as far as the cache knows
    waiting   it is being deleted in the foreground: it wants its dependents gone first
    dangling  it does not exist
    unsure    not in the cache, yet never seen to go

With no solid and no unsure owner left the object is deleted, with its uid and version as preconditions.  Beside a
solid owner, references to others are taken out.

**An owner is never believed to be gone because a cache does not have it**: caches of different kinds lag behind each
other, and a dependent may well be seen before its owner.  An owner is dangling if we saw its deletion (uids do not
come back), or if the server says so: an unsure owner is asked for after ``VERIFY_DELAY_S`` with a patch that sets its
uid to the uid that it must have.  That changes nothing if it is there, and fails if it is not or is another.

An owner of a kind that is not watched, or a namespaced owner of a cluster-wide object, is taken as solid.

An object that is being deleted itself may ask, by finalizer, for its dependents to be deleted first
(``foregroundDeletion``; only those that block it are waited for) or to be let go (``orphan``).
"""

from __future__ import annotations

from typing import Final, Literal, NamedTuple

from sliceplane.api.codec import encode
from sliceplane.api.errors import StatusError
from sliceplane.api.meta import Object, OwnerReference
from sliceplane.api.scheme import RESOURCES, Events, Resource
from sliceplane.controllers.base import ControllerInfo, Done, Job, PatchType, Watched, Work, Write
from sliceplane.controllers.ownership import FOREGROUND, ORPHAN, Item, OwnershipGraph
from sliceplane.informer.changes import Change
from sliceplane.kit.backoff import Backoff
from sliceplane.kit.samples import Family
from sliceplane.workqueue.queue import WorkQueue
from sliceplane.workqueue.samples import queue_families

#: how long a cache may lag before an owner that it does not have is asked for
VERIFY_DELAY_S: Final = 1.0
_RETRY: Final = Backoff(base_s=0.5, cap_s=60.0)
_MERGE: Final[PatchType] = "merge"

Policy = Literal["Background", "Foreground", "Orphan"]
#: Events have no owners worth following, and there are many of them
DEFAULT_RESOURCES: Final = tuple(each for each in RESOURCES if each.storage_key != Events.key)


class _Token(NamedTuple):
    """``version``: of the object when the job was made.  ``asked``: the owner that the job asks for."""

    version: str
    asked: OwnerReference | None = None


class GarbageCollector:
    """A ``controllers.base.Controller``.  Queue and jobs are keyed by uid."""

    def __init__(self, resources: tuple[Resource, ...] = DEFAULT_RESOURCES) -> None:
        self._graph = OwnershipGraph(resources)
        self._queue: WorkQueue[str] = WorkQueue(backoff=_RETRY)
        self._synced = False
        #: the version of an object on which we acted last: nothing more is due before the cache shows another
        self._acted: dict[str, str] = {}
        self._info = ControllerInfo(
            name="garbage-collector-controller",
            aliases=("garbagecollector",),
            watches=tuple(Watched(each) for each in resources),
        )

    @property
    def info(self) -> ControllerInfo:
        return self._info

    def on_change(self, change: Change[Object], now: float) -> None:
        for uid in self._graph.on_change(change):
            self._queue.add(uid, now)
        if change.new is None:
            self._acted.pop(change.object.metadata.uid, None)

    def on_synced(self, now: float) -> None:
        self._synced = True

    def take_work(self, now: float, max_jobs: int) -> Work:
        jobs: list[Job] = []
        while self._synced and len(jobs) < max_jobs:
            uid = self._queue.get(now)
            if uid is None:
                break
            job = self._process(uid, now)
            if job is None:
                self._queue.forget(uid)
                self._queue.done(uid, now)
            else:
                jobs.append(job)
        return Work(jobs=tuple(jobs))

    def on_done(self, done: Done, now: float) -> None:
        uid, token, error = done.job.key, done.job.token, done.error
        assert isinstance(token, _Token), f"job {uid} has a foreign token {token!r}"
        if token.asked is not None:
            self._on_verified(uid, token.asked, error, now)
        elif error is not None:
            # a conflict, mostly: the cache is behind
            self._queue.add_rate_limited(uid, now)
        else:
            self._queue.forget(uid)
            if uid in self._graph.items:
                self._acted[uid] = token.version
        self._queue.done(uid, now)

    def _on_verified(self, uid: str, owner: OwnerReference, error: StatusError | None, now: float) -> None:
        if error is not None and _says_gone(error, owner):
            self._queue.forget(uid)
            for dependent in self._graph.note_gone(owner.uid):
                self._queue.add(dependent, now)
        else:
            # it exists after all (or could not be asked): its own event will say more, else ask again later
            self._queue.add_rate_limited(uid, now)

    def next_deadline(self) -> float | None:
        return self._queue.next_deadline() if self._synced else None

    # -- one object -------------------------------------------------------------------------------------

    def _process(self, uid: str, now: float) -> Job | None:
        item = self._graph.items.get(uid)
        if item is None or self._acted.get(uid) == item.version:
            return None
        if item.deleting:
            return self._finish_deletion(item, now)
        if not item.owners:
            return None
        solid, waiting, dangling, unsure = self._graph.classify(item)
        if unsure and not solid:
            return self._verify(item, unsure[0], now)
        if solid:
            return self._release(item, [*waiting, *dangling])
        if waiting and self._graph.dependents(uid):
            return self._delete_waiting(item)
        return _job(item, _delete(item, _policy(item)))

    def _verify(self, item: Item, owner: OwnerReference, now: float) -> Job | None:
        """Ask the server for *owner*, once the caches had time to show it."""
        due = item.seen + VERIFY_DELAY_S if item.seen is not None else None
        if due is None:
            item.seen = now
            due = now + VERIFY_DELAY_S
        if now < due:
            self._queue.add_after(item.uid, due - now, now)
            return None
        resource = self._graph.resource_of(owner)
        assert resource is not None, f"{owner} is of no watched kind, so never unsure"
        body = encode({"metadata": {"uid": owner.uid}})
        namespace = item.namespace if resource.namespaced else ""
        write = Write(
            verb="patch", resource=resource, namespace=namespace, name=owner.name, body=body, patch_type=_MERGE
        )
        return Job(key=item.uid, writes=(write,), token=_Token(item.version, owner))

    def _release(self, item: Item, owners: list[OwnerReference]) -> Job | None:
        """Take references to *owners* out: another owner holds the object."""
        if not owners:
            return None
        out = {owner.uid for owner in owners}
        return _job(item, _patch_owners(item, [owner for owner in item.owners if owner.uid not in out]))

    def _delete_waiting(self, item: Item) -> Job:
        """The owner waits for *item*, which has dependents itself: they go first, too.

        If one of those waits for *item* in turn, that is a circle; it is cut by not blocking any owner.
        """
        circle = any(self._graph.items[uid].foreground for uid in self._graph.dependents(item.uid))
        if not circle or not any(owner.block_owner_deletion for owner in item.owners):
            return _job(item, _delete(item, "Foreground"))
        free = [
            OwnerReference(api_version=o.api_version, kind=o.kind, name=o.name, uid=o.uid, controller=o.controller)
            for o in item.owners
        ]
        return _job(item, _patch_owners(item, free))

    def _finish_deletion(self, item: Item, now: float) -> Job | None:
        """*item* is being deleted: what do its finalizers ask us for?"""
        dependents = [self._graph.items[uid] for uid in self._graph.dependents(item.uid)]
        if item.foreground:
            if any(each.blocks(item.uid) for each in dependents):
                for each in dependents:
                    self._queue.add(each.uid, now)
                return None
            return _job(item, _drop_finalizer(item, FOREGROUND))
        if ORPHAN in item.finalizers:
            left = [
                _patch_owners(each, [owner for owner in each.owners if owner.uid != item.uid]) for each in dependents
            ]
            return _job(item, *left, _drop_finalizer(item, ORPHAN))
        return None

    def samples(self, now: float) -> tuple[Family, ...]:
        return queue_families("garbage_collector_attempt_to_delete", self._queue, now)

    def check(self) -> None:
        self._graph.check()
        self._queue.check()
        assert set(self._acted) <= set(self._graph.items), "acted on objects that are not there"


def _job(item: Item, *writes: Write) -> Job:
    return Job(key=item.uid, writes=writes, token=_Token(item.version))


def _says_gone(error: StatusError, owner: OwnerReference) -> bool:
    """The answer to ``_verify`` that leaves no doubt: no such object, or its uid is another one.

    A 404 must name the object (one for an unknown path does not), a 422 must be about the uid.
    """
    details = error.details or {}
    if error.reason == "NotFound":
        return bool(details.get("name") == owner.name)
    causes = details.get("causes") or ()
    return error.reason == "Invalid" and any(
        isinstance(cause, dict) and cause.get("field") == "metadata.uid" for cause in causes
    )


def _policy(item: Item) -> Policy:
    """A finalizer that was put on before the deletion decides what becomes of the dependents."""
    if ORPHAN in item.finalizers:
        return "Orphan"
    return "Foreground" if FOREGROUND in item.finalizers else "Background"


def _delete(item: Item, policy: Policy) -> Write:
    options = {
        "kind": "DeleteOptions",
        "apiVersion": "v1",
        "preconditions": {"uid": item.uid, "resourceVersion": item.version},
        "propagationPolicy": policy,
    }
    return Write(
        verb="delete",
        resource=item.resource,
        namespace=item.namespace,
        name=item.name,
        body=encode(options),
        tolerate=("NotFound",),
    )


def _patch_owners(item: Item, owners: list[OwnerReference]) -> Write:
    return _patch(item, {"ownerReferences": owners or None})


def _drop_finalizer(item: Item, finalizer: str) -> Write:
    return _patch(item, {"finalizers": [each for each in item.finalizers if each != finalizer] or None})


def _patch(item: Item, metadata: dict[str, object]) -> Write:
    """A merge patch that holds only for the version that we know."""
    body = encode({"metadata": {"uid": item.uid, "resourceVersion": item.version, **metadata}})
    return Write(
        verb="patch",
        resource=item.resource,
        namespace=item.namespace,
        name=item.name,
        body=body,
        patch_type=_MERGE,
        tolerate=("NotFound",),
    )
