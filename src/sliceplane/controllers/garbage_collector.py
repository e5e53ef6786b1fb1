"""The garbage collector: objects go when their owners are gone (``pkg/controller/garbagecollector``
upstream).

A graph of every watched object and its ownerReferences is kept up to date from the caches. For an
object with owners, each owner is one of

    solid     it exists, as far as the cache knows
    waiting   it is being deleted in the foreground: it wants its dependents gone first
    dangling  the server said that it does not exist
    unsure    the cache does not show it

With no owner but waiting and dangling ones the object is deleted, with its uid and version as
preconditions. Beside a solid owner, references to others are taken out.

**A cache is never believed to the harm of an object.**  Caches of different kinds lag behind each
other, and a list may be answered by a server that is behind, too. Before a missing owner counts as
dangling the server itself is asked, by a live GET: at once if there is more against the owner than
silence (a cache showed it going, or shows another object under its uid), else after
``VERIFY_DELAY_S``, in which most caches catch up. A waiting owner is confirmed in the same way
before its dependents go. The question belongs to the *claim* (uid, kind, namespace and name), not
to the object that makes it, so an owner with a hundred thousand dependents costs one request; and
what is learned about one claim is not held against another that names the same uid.

An owner of a kind or version that is not watched, and a namespaced owner of a cluster-wide object,
are taken as solid: what cannot be looked up leads to no deletion. Owners that can be seen to be in
another namespace are told about in an Event.

An object that is being deleted itself may ask, by finalizer, for its dependents to be deleted first
(``foregroundDeletion``; only those that block it are waited for) or to be let go (``orphan``).
"""

from __future__ import annotations

from typing import Final, Literal, NamedTuple

import msgspec

from sliceplane.api.codec import decode
from sliceplane.api.errors import StatusError
from sliceplane.api.meta import Document, Object, OwnerReference
from sliceplane.api.scheme import RESOURCES, Events, Resource
from sliceplane.controllers.ownership import (
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
    EventNote,
    Job,
    Selection,
    Write,
    deletion,
    object_patch,
)
from sliceplane.watch.controller.keyed import QueueController, is_steady

NAME: Final = "garbage-collector-controller"
#: how long a cache may lag before an owner that it does not have is asked for
VERIFY_DELAY_S: Final = 1.0
#: dependents let go in one job; the rest follows in the next
ORPHANS_MAX: Final = 500
_GONE: Final = ("NotFound",)
_RETRY: Final = Backoff(base_s=0.5, cap_s=60.0)

Policy = Literal["Background", "Foreground", "Orphan"]
#: Events have no owners worth following, and there are many of them; what cannot be deleted is not
#: collected
DEFAULT_RESOURCES: Final = tuple(
    resource
    for resource in RESOURCES
    if resource.storage_key != Events.key and "delete" in resource.verbs
)


class _CollectorToken(NamedTuple):
    """What a job was for.  ``version``: of the object then.  ``freed``: the dependents that it lets
    go.
    """

    version: str = ""
    claim: OwnerClaim | None = None
    freed: tuple[str, ...] = ()


class GarbageCollector(QueueController):
    """Queue and jobs are keyed by an object's uid, or by a claim's key."""

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
        #: the version of an object on which we acted last: nothing more is due before the cache
        #: shows another
        self._acted: dict[str, str] = {}
        #: owners that the server is to be asked for, or is being asked for, by ``OwnerClaim.key``
        self._open: dict[str, OwnerClaim] = {}
        #: those of them that wait for a cache to catch up, ``VERIFY_DELAY_S`` at most
        self._patient: set[str] = set()
        #: owner with the finalizer ``orphan`` -> dependents that were let go, though the cache may
        #: not show it
        self._freed: dict[str, set[str]] = {}
        #: object -> owners in wrong namespaces that were told about
        self._told: dict[str, set[str]] = {}

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
                self._freed.pop(uid, None)
                self._told.pop(uid, None)

    def job(self, key: str, now: float) -> Job | None:
        return self._look_up(key) if key in self._open else self._process(key, now)

    def on_done(self, done: Done, now: float) -> None:
        key = done.job.key
        token = done.job.token
        assert isinstance(token, _CollectorToken), f"job {key} has a foreign token {token!r}"
        if token.claim is not None:
            self._on_answer(token.claim, done, now)
        elif done.error is not None:
            # a conflict, mostly: the cache is behind
            self._queue.add_rate_limited(key, now)
        else:
            self._queue.forget(key)
            if key in self._graph.items:
                if token.freed:
                    self._freed.setdefault(key, set()).update(token.freed)
                    self.enqueue(key, now)
                else:
                    self._acted[key] = token.version
        self._queue.done(key, now)

    # -- owners that the server must be asked for

    def _ask(self, claim: OwnerClaim, now: float) -> None:
        """Have *claim* looked up; its claimants are queued again when more is known."""
        key = claim.key
        suspect = self._graph.is_suspect(claim)
        if suspect and (key not in self._open or key in self._patient):
            self._patient.discard(key)
            self.enqueue(key, now)
        elif key not in self._open:
            self._patient.add(key)
            self.enqueue_after(key, VERIFY_DELAY_S, now)
        self._open[key] = claim

    def _look_up(self, key: str) -> Job | None:
        claim = self._open[key]
        self._patient.discard(key)
        known = self._graph.find(claim)
        settled = known is not None and (known.confirmed or not known.foreground)
        if settled or not self._graph.is_claimed(claim):
            del self._open[key]
            return None
        resource = self._graph.resource(claim)
        read = Write(verb="get", resource=resource, namespace=claim.namespace, name=claim.name)
        return Job(key=key, writes=(read,), token=_CollectorToken(claim=claim))

    def _on_answer(self, claim: OwnerClaim, done: Done, now: float) -> None:
        answer = _understand(claim, done)
        known = self._graph.find(claim)
        if answer == "gone":
            concerned = self._graph.note_gone(claim)
        elif known is None or (known.foreground and answer != "waits"):
            # Not known yet, or the cache is behind what the server says.
            self._queue.add_rate_limited(claim.key, now)
            return
        else:
            known.confirmed = known.foreground
            concerned = self._graph.claimants(claim)
        self._queue.forget(claim.key)
        self._open.pop(claim.key, None)
        for dependent in concerned:
            self.enqueue(dependent, now)

    # -- one object

    def _process(self, uid: str, now: float) -> Job | None:
        item = self._graph.items.get(uid)
        if item is None or self._acted.get(uid) == item.version:
            return None
        self._tell_misplaced(item)
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
            assert claim is not None, f"{owner} is not for us to judge, so never unsure"
            self._ask(claim, now)
        if solid:
            return self._release(item, [*waiting, *dangling])
        if unsure:
            return None
        if waiting and self._graph.has_dependents(item):
            return self._delete_waiting(item)
        return _job(item, _delete(item, _policy(item)))

    def _release(self, item: OwnedItem, owners: list[OwnerReference]) -> Job | None:
        """Take references to *owners* out: another owner holds the object."""
        return _job(item, _drop_owners(item, owners)) if owners else None

    def _delete_waiting(self, item: OwnedItem) -> Job:
        """The owner waits for *item*, which has dependents itself: they go first, too.

        If one of those waits for *item* in turn, that is a circle; it is cut by not blocking any
        owner.
        """
        circle = any(self._graph.items[uid].foreground for uid in self._graph.dependents(item))
        if not circle or not any(owner.block_owner_deletion for owner in item.owners):
            return _job(item, _delete(item, "Foreground"))
        return _job(item, _unblock(item))

    def _finish_deletion(self, item: OwnedItem) -> Job | None:
        """*item* is being deleted: what do its finalizers ask us for?"""
        if item.foreground:
            # Dependents were queued when the deletion was seen, and each one that goes queues its
            # owners.
            if not self._graph.is_blocked(item):
                return _job(item, _drop_finalizer(item, FOREGROUND))
            return _job(item, _unblock(item)) if self._graph.is_in_circle(item) else None
        if ORPHAN not in item.finalizers:
            return None
        freed = self._freed.get(item.uid, set())
        left = [uid for uid in self._graph.dependents(item) if uid not in freed][:ORPHANS_MAX]
        if not left:
            return _job(item, _drop_finalizer(item, ORPHAN))
        writes = [_drop_owner_uids(self._graph.items[uid], [item.uid]) for uid in left]
        return Job(
            key=item.uid,
            writes=tuple(writes),
            token=_CollectorToken(item.version, freed=tuple(left)),
        )

    def _tell_misplaced(self, item: OwnedItem) -> None:
        known = self._told.pop(item.uid, set()) & {owner.uid for owner in item.owners}
        if known:
            self._told[item.uid] = known
        for owner in self._graph.misplaced(item):
            if owner.uid in known:
                continue
            self._told.setdefault(item.uid, set()).add(owner.uid)
            shown = (
                f"[{owner.api_version}/{owner.kind}, namespace: {item.namespace}, name: "
                f"{owner.name}, uid: {owner.uid}]"
            )
            self.note(
                EventNote(
                    regarding=Object(metadata=item.meta),
                    regarding_resource=item.resource,
                    type="Warning",
                    reason="OwnerRefInvalidNamespace",
                    note=f'ownerRef {shown} does not exist in namespace "{item.namespace}"',
                    component=NAME,
                    action="CollectGarbage",
                )
            )

    def check(self) -> None:
        self._graph.check()
        super().check()
        there = set(self._graph.items)
        for what, uids in (
            ("acted on", self._acted),
            ("frees for", self._freed),
            ("told of", self._told),
        ):
            assert set(uids) <= there, f"{what} {set(uids) - there}, which are not there"
        for key, claim in self._open.items():
            assert claim.key == key, f"{claim} filed under {key}"
        assert self._patient <= set(self._open), (
            f"{self._patient - set(self._open)} wait with nothing to ask"
        )


def _job(item: OwnedItem, write: Write) -> Job:
    return Job(key=item.uid, writes=(write,), token=_CollectorToken(item.version))


def _understand(claim: OwnerClaim, done: Done) -> Literal["gone", "waits", "there"] | None:
    """What the answer to a look-up of *claim* says; ``None``: nothing that one may rely on.

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
    return "waits" if waits else "there"


def _policy(item: OwnedItem) -> Policy:
    """A finalizer that was put on before the deletion decides what becomes of the dependents."""
    if ORPHAN in item.finalizers:
        return "Orphan"
    return "Foreground" if FOREGROUND in item.finalizers else "Background"


def _delete(item: OwnedItem, policy: Policy) -> Write:
    return deletion(item.resource, item.meta, item.version, _GONE, propagationPolicy=policy)


def _drop_owners(item: OwnedItem, owners: list[OwnerReference]) -> Write:
    return _drop_owner_uids(item, [owner.uid for owner in owners])


def _drop_owner_uids(item: OwnedItem, uids: list[str]) -> Write:
    """Removes references one by one, whatever else changes meanwhile: it needs no version, only
    the right object.
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
    """A merge patch that holds only for the version that we know."""
    change = {"metadata": {"resourceVersion": item.version, **metadata}}
    return object_patch(item.resource, item.meta, change, tolerate=_GONE)
