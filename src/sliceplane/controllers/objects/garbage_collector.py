"""The garbage collector: deletes objects whose owners are gone (``pkg/controller/garbagecollector``
upstream).

A graph of every watched object and its ownerReferences is updated from the caches. For an object
with owners, each owner is one of

    solid     it exists in the cache
    waiting   it is being deleted in the foreground: its dependents must be deleted first
    dangling  the server reported that it does not exist
    unsure    the cache does not have it

An object whose owners are all waiting or dangling is deleted, with its uid and version as
preconditions. If it has a solid owner, references to waiting and dangling ones are removed.

**A cache alone never justifies a deletion.**  Caches of different kinds lag behind each other, and
a list may come from a server that is behind, too. Before a missing owner counts as dangling, a live
GET asks the server itself: at once if there is other evidence against the owner (a cache showed its
deletion, or has another object with its uid), else after ``VERIFY_DELAY_S``, in which most caches
catch up. A waiting owner is confirmed in the same way before its dependents are deleted. The query
belongs to the *claim* (uid, kind, namespace and name), not to the object that makes it, so an owner
with a hundred thousand dependents costs one request. The result for one claim is not applied to
another claim with the same uid.

An owner of a kind or version that is not watched, and a namespaced owner of a cluster-scoped
object, count as solid: what cannot be looked up leads to no deletion. An Event reports owners that
are visibly in another namespace.

An object that is being deleted may, by finalizer, require that its dependents are deleted first
(``foregroundDeletion``; only those that block it are waited for) or released (``orphan``).
"""

from __future__ import annotations

from typing import Final, Literal, NamedTuple

import msgspec

from sliceplane.api.codec import decode
from sliceplane.api.errors import StatusError
from sliceplane.api.meta import Document, Object, OwnerReference
from sliceplane.api.scheme import RESOURCES, Events, Resource
from sliceplane.controllers.objects.ownership import (
    FOREGROUND,
    ORPHAN,
    OwnedItem,
    OwnerClaim,
    OwnershipGraph,
)
from sliceplane.kit.delays import Backoff
from sliceplane.watch.cache import Change
from sliceplane.watch.controller.base import (
    ControllerInfo,
    Done,
    Job,
    Selection,
    Write,
    deletion,
    object_patch,
)
from sliceplane.watch.controller.keyed import QueueController, is_steady

NAME: Final = "garbage-collector-controller"
#: seconds that a cache may lag before a missing owner is looked up
VERIFY_DELAY_S: Final = 1.0
#: dependents released in one job; the rest follows in the next
ORPHANS_MAX: Final = 500
_GONE: Final = ("NotFound",)
_RETRY: Final = Backoff(base_s=0.5, cap_s=60.0)

Policy = Literal["Background", "Foreground", "Orphan"]
#: Events have no owners worth following, and are many; resources that cannot be deleted are not
#: collected
DEFAULT_RESOURCES: Final = tuple(
    resource
    for resource in RESOURCES
    if resource.storage_key != Events.key and "delete" in resource.verbs
)


class _CollectorToken(NamedTuple):
    """The purpose of a job. ``version``: the object's version at that time. ``released``: the
    dependents that it releases.
    """

    version: str = ""
    claim: OwnerClaim | None = None
    released: tuple[str, ...] = ()


class GarbageCollector(QueueController):
    """The controller. Queue and jobs are keyed by an object's uid, or by a claim's key."""

    def __init__(self, resources: tuple[Resource, ...] = DEFAULT_RESOURCES) -> None:
        super().__init__(
            ControllerInfo(
                name=NAME,
                aliases=("garbagecollector",),
                watches=tuple(Selection(resource) for resource in resources),
                queue="garbage_collector_attempt_to_delete",
            ),
            backoff=_RETRY,
        )
        self._graph = OwnershipGraph(resources)
        #: the version of an object on which we acted last: nothing is due before the cache has
        #: another
        self._acted: dict[str, str] = {}
        #: claims to look up or being looked up, by ``OwnerClaim.key``
        self._lookups: dict[str, OwnerClaim] = {}
        #: keys of claims that wait for a cache to catch up, at most ``VERIFY_DELAY_S``
        self._delayed: set[str] = set()
        #: released dependents, by the uid of an owner with the finalizer ``orphan``; the cache may
        #: not show it yet
        self._released: dict[str, set[str]] = {}
        #: reported owners in wrong namespaces, by the uid of the object
        self._reported: dict[str, set[str]] = {}

    def on_change(self, change: Change[Object], now: float) -> None:
        if change.new is not None and is_steady(change):
            item = self._graph.items.get(change.new.metadata.uid)
            if item is not None:
                item.version = change.new.metadata.resource_version
                item.confirmed = False
                return
        for uid in self._graph.on_change(change):
            self.enqueue(uid, now)
        for version in (change.old, change.new):
            uid = "" if version is None else version.metadata.uid
            if uid and uid not in self._graph.items:
                self._acted.pop(uid, None)
                self._released.pop(uid, None)
                self._reported.pop(uid, None)

    def job(self, key: str, now: float) -> Job | None:
        return self._lookup_job(key) if key in self._lookups else self._process(key, now)

    def on_done(self, done: Done, now: float) -> None:
        key = done.job.key
        token = done.job.token
        assert isinstance(token, _CollectorToken), f"job {key} has a foreign token {token!r}"
        if token.claim is not None:
            self._on_answer(token.claim, done, now)
        elif done.error is not None:
            # mostly a conflict: the cache is behind
            self._queue.add_rate_limited(key, now)
        else:
            self._queue.forget(key)
            if key in self._graph.items:
                if token.released:
                    self._released.setdefault(key, set()).update(token.released)
                    self.enqueue(key, now)
                else:
                    self._acted[key] = token.version
        self._queue.done(key, now)

    # -- look-ups of owners

    def _request_lookup(self, claim: OwnerClaim, now: float) -> None:
        """Requests a look-up of *claim*; its claimants are queued again after the result."""
        key = claim.key
        suspect = self._graph.is_suspect(claim)
        if suspect and (key not in self._lookups or key in self._delayed):
            self._delayed.discard(key)
            self.enqueue(key, now)
        elif key not in self._lookups:
            self._delayed.add(key)
            self.enqueue_after(key, VERIFY_DELAY_S, now)
        self._lookups[key] = claim

    def _lookup_job(self, key: str) -> Job | None:
        claim = self._lookups[key]
        self._delayed.discard(key)
        owner = self._graph.find(claim)
        is_resolved = owner is not None and (owner.confirmed or not owner.foreground)
        if is_resolved or not self._graph.is_claimed(claim):
            del self._lookups[key]
            return None
        resource = self._graph.resource(claim)
        read = Write(verb="get", resource=resource, namespace=claim.namespace, name=claim.name)
        return Job(key=key, writes=(read,), token=_CollectorToken(claim=claim))

    def _on_answer(self, claim: OwnerClaim, done: Done, now: float) -> None:
        answer = _interpret(claim, done)
        owner = self._graph.find(claim)
        if answer == "gone":
            affected = self._graph.note_gone(claim)
        elif owner is None or (owner.foreground and answer != "waits"):
            # The outcome is unclear, or the cache is behind the server.
            self._queue.add_rate_limited(claim.key, now)
            return
        else:
            owner.confirmed = owner.foreground
            affected = self._graph.claimants(claim)
        self._queue.forget(claim.key)
        self._lookups.pop(claim.key, None)
        for dependent in affected:
            self.enqueue(dependent, now)

    # -- one object

    def _process(self, uid: str, now: float) -> Job | None:
        item = self._graph.items.get(uid)
        if item is None or self._acted.get(uid) == item.version:
            return None
        self._report_misplaced(item)
        if item.deleting:
            return self._finish_deletion(item)
        if not item.owners:
            return None
        solid, waiting, dangling, unsure = self._graph.classify(item)
        if not solid:
            unsure = [
                *unsure,
                *(owner for owner in waiting if not self._graph.items[owner.uid].confirmed),
            ]
        for owner in unsure:
            claim = self._graph.claim(item, owner)
            assert claim is not None, f"{owner} is not judged, so never unsure"
            self._request_lookup(claim, now)
        if solid:
            return self._release(item, [*waiting, *dangling])
        if unsure:
            return None
        if waiting and self._graph.has_dependents(item):
            return self._delete_waiting(item)
        return _job(item, _delete(item, _policy(item)))

    def _release(self, item: OwnedItem, owners: list[OwnerReference]) -> Job | None:
        """Removes references to *owners*: another owner keeps the object."""
        return _job(item, _drop_owners(item, owners)) if owners else None

    def _delete_waiting(self, item: OwnedItem) -> Job:
        """Deletes *item* in the foreground: an owner waits for it, and it has dependents that must
        be deleted first.

        If one of those waits for *item* in turn, the circle is broken by not blocking any owner.
        """
        circle = any(self._graph.items[uid].foreground for uid in self._graph.dependents(item))
        if not circle or not any(owner.block_owner_deletion for owner in item.owners):
            return _job(item, _delete(item, "Foreground"))
        return _job(item, _unblock(item))

    def _finish_deletion(self, item: OwnedItem) -> Job | None:
        """Handles the finalizers of *item*, which is being deleted."""
        if item.foreground:
            # Dependents were queued with the deletion event, and each deleted one queues its
            # owners.
            if not self._graph.is_blocked(item):
                return _job(item, _drop_finalizer(item, FOREGROUND))
            return _job(item, _unblock(item)) if self._graph.is_in_circle(item) else None
        if ORPHAN not in item.finalizers:
            return None
        released = self._released.get(item.uid, set())
        remaining = [uid for uid in self._graph.dependents(item) if uid not in released][
            :ORPHANS_MAX
        ]
        if not remaining:
            return _job(item, _drop_finalizer(item, ORPHAN))
        writes = [_drop_owner_uids(self._graph.items[uid], [item.uid]) for uid in remaining]
        return Job(
            key=item.uid,
            writes=tuple(writes),
            token=_CollectorToken(item.version, released=tuple(remaining)),
        )

    def _report_misplaced(self, item: OwnedItem) -> None:
        reported = self._reported.pop(item.uid, set()) & {owner.uid for owner in item.owners}
        if reported:
            self._reported[item.uid] = reported
        for owner in self._graph.misplaced(item):
            if owner.uid in reported:
                continue
            self._reported.setdefault(item.uid, set()).add(owner.uid)
            reference = (
                f"[{owner.api_version}/{owner.kind}, namespace: {item.namespace}, name: "
                f"{owner.name}, uid: {owner.uid}]"
            )
            self.report(
                item.resource,
                Object(metadata=item.meta),
                "Warning",
                "OwnerRefInvalidNamespace",
                f'ownerRef {reference} does not exist in namespace "{item.namespace}"',
                action="CollectGarbage",
            )

    def check(self) -> None:
        self._graph.check()
        super().check()
        existing = set(self._graph.items)
        for what, uids in (
            ("acted on", self._acted),
            ("frees for", self._released),
            ("told of", self._reported),
        ):
            assert set(uids) <= existing, f"{what} {set(uids) - existing}, which do not exist"
        for key, claim in self._lookups.items():
            assert claim.key == key, f"{claim} filed under {key}"
        assert self._delayed <= set(self._lookups), (
            f"{self._delayed - set(self._lookups)} wait without a look-up"
        )


def _job(item: OwnedItem, write: Write) -> Job:
    return Job(key=item.uid, writes=(write,), token=_CollectorToken(item.version))


def _interpret(claim: OwnerClaim, done: Done) -> Literal["gone", "waits", "exists"] | None:
    """Interprets the answer to a look-up of *claim*; ``None``: it is not reliable.

    A 404 must name the object (one for an unknown path does not).
    """
    error: StatusError | None = done.error
    if error is not None:
        named = (error.details or {}).get("name") == claim.name
        return "gone" if error.code == 404 and error.reason == "NotFound" and named else None
    meta = decode(done.results[0], Object).metadata
    if not meta.uid:
        return None
    if meta.uid != claim.uid:
        return "gone"
    waits = meta.deletion_timestamp is not None and FOREGROUND in (meta.finalizers or ())
    return "waits" if waits else "exists"


def _policy(item: OwnedItem) -> Policy:
    """Returns the policy for dependents: a finalizer that was set before the deletion decides."""
    if ORPHAN in item.finalizers:
        return "Orphan"
    return "Foreground" if FOREGROUND in item.finalizers else "Background"


def _delete(item: OwnedItem, policy: Policy) -> Write:
    return deletion(item.resource, item.meta, item.version, _GONE, propagationPolicy=policy)


def _drop_owners(item: OwnedItem, owners: list[OwnerReference]) -> Write:
    return _drop_owner_uids(item, [owner.uid for owner in owners])


def _drop_owner_uids(item: OwnedItem, uids: list[str]) -> Write:
    """Removes references one by one. It needs the object's uid but no version, so other changes do
    not matter.
    """
    out = [{"$patch": "delete", "uid": uid} for uid in dict.fromkeys(uids)]
    change = {"metadata": {"ownerReferences": out}}
    return object_patch(item.resource, item.meta, change, "", "strategic", tolerate=_GONE)


def _unblock(item: OwnedItem) -> Write:
    """Makes no owner wait for *item* any more."""
    free = [msgspec.structs.replace(owner, block_owner_deletion=None) for owner in item.owners]
    return _patch_version(item, {"ownerReferences": free})


def _drop_finalizer(item: OwnedItem, finalizer: str) -> Write:
    return _patch_version(
        item, {"finalizers": [kept for kept in item.finalizers if kept != finalizer] or None}
    )


def _patch_version(item: OwnedItem, metadata: Document) -> Write:
    """Returns a merge patch that applies only to the cached version."""
    change = {"metadata": {"resourceVersion": item.version, **metadata}}
    return object_patch(item.resource, item.meta, change, tolerate=_GONE)
