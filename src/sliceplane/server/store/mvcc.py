"""The store: every object's newest version, the history of the last minutes, one revision counter.

A commit passes through three states, and this class is the only one that moves it on:

    staged    stage_put / stage_delete gave it a revision; only writers see it (latest, iter_latest)
    taken     take_staged handed it to the committer, which writes it to the back end
    durable   on_durable: readers, lists and watchers see it; exactly then, and in the order of revisions

When the back end fails, ``abort_staged`` forgets everything that is not durable.

Costs, with n objects of a resource: get O(1), put and delete O(log n), a page O(log n + page), a
page of the past O(log n + page + keys of that range which were deleted since the compaction point),
events_since O(log history + result), owned_by O(result log result), compact O(dropped).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from heapq import merge
from itertools import islice
from operator import attrgetter
from typing import Final

from sliceplane.kit.shares import Shares
from sliceplane.server.store.shelf import Shelf
from sliceplane.server.store.staging import BatchLimit, Staging, overlaid
from sliceplane.server.store.types import EventType, Key, Record, RecordPage, StoreEvent

Build = Callable[[int], Record]
#: of the newest versions of all objects, as etcd bounds its file (``--quota-backend-bytes``)
OBJECT_BYTES_MAX: Final = 2 * 1024 * 1024 * 1024


class Compacted(Exception):
    """The history that was asked for is gone.  Readers answer with a 410 (Kubernetes API Concepts,
    410 Gone).
    """

    def __init__(self, revision: int, oldest: int) -> None:
        super().__init__(f"revision {revision} was asked for; the oldest that is kept is {oldest}")
        self.revision = revision
        #: the smallest revision that may still be asked for
        self.oldest = oldest


class Store:
    """Called from one thread by the registry (reads, stage_*), the hub (reads) and the committer
    (the rest).

    Record bodies are never read here; ``build`` callables put the revision into them.
    """

    def __init__(self, *, revision: int = 1, compacted: int = 1) -> None:
        assert 1 <= compacted <= revision, f"compacted {compacted} and revision {revision}"
        #: the newest durable and published revision
        self.revision = revision
        #: the oldest revision that can be listed, and watched from
        self.compacted = compacted
        self._shelves = defaultdict[str, Shelf](Shelf)
        self._staging = Staging(revision)
        #: uid of an owner -> keys of the durable records that name it
        self._owned: dict[str, set[Key]] = {}
        #: bytes of durable bodies by namespace ("": cluster scope); the registry sets the bound and
        #: asks for room
        self.object_bytes = Shares(OBJECT_BYTES_MAX)

    @classmethod
    def restore(cls, history: Iterable[StoreEvent], revision: int, compacted: int) -> Store:
        """The store that a back end remembers (``backend.Loaded``).

        *history* is in the order of revisions. Events up to *compacted* are ADDED and stand for the
        state at that revision; later ones are history.
        """
        store = cls(revision=compacted, compacted=compacted)
        store.replace(history, revision, compacted)
        return store

    def replace(self, history: Iterable[StoreEvent], revision: int, compacted: int) -> None:
        """Forget everything, what is staged too, and be what a back end remembers.  Arguments as of
        ``restore``.
        """
        last_assigned = self._staging.last_assigned
        self.revision = self.compacted = compacted
        self._shelves.clear()
        self._owned.clear()
        for namespace in self.object_bytes:
            self.object_bytes.release_all(namespace)
        for event in history:
            if event.revision <= compacted:
                assert event.type is EventType.ADDED, (
                    f"{event.type} at {event.revision}, compacted at {compacted}"
                )
                key = event.record.key
                self._shelves[key.resource].load(event.record)
                self.object_bytes.add(key.namespace, len(event.record.body))
                for uid in event.record.owners:
                    self._owned.setdefault(uid, set()).add(key)
            else:
                self._publish(event)
        assert self.revision <= revision, (
            f"history reaches {self.revision}, the back end says {revision}"
        )
        self.revision = revision
        self._staging = Staging(max(revision, last_assigned))

    # Reading what is durable

    def get(self, key: Key) -> Record | None:
        shelf = self._shelves.get(key.resource)
        return shelf.live.get(key.path) if shelf else None

    def get_at(self, key: Key, revision: int) -> Record | None:
        """The object as it was at *revision*.  Raises ``Compacted``."""
        self._check_readable(revision)
        shelf = self._shelves.get(key.resource)
        return shelf.at(key.path, revision) if shelf else None

    def list(
        self,
        resource: str,
        *,
        namespace: str = "",
        revision: int | None = None,
        after: str = "",
        limit: int = 0,
    ) -> RecordPage:
        """Records in key order, as they were at *revision* (``None``: now), at most *limit* (0:
        all).

        *after* is a ``Key.path`` (with the namespace also where *namespace* is given): records with
        a greater path follow. Raises ``Compacted``.
        """
        at = self.revision if revision is None else revision
        records = self.scan(
            resource, namespace=namespace, revision=at, after=after, limit=limit + 1 if limit else 0
        )
        if not limit or len(records) <= limit:
            return RecordPage(records, at)
        records = records[:limit]
        remaining = self._shelves[resource].count(namespace, records[-1].key.path, at)
        return RecordPage(records, at, more=True, remaining=remaining)

    def scan(
        self, resource: str, *, namespace: str, revision: int, after: str, limit: int
    ) -> tuple[Record, ...]:
        """The records of a page without counting the rest.  Raises ``Compacted``."""
        self._check_readable(revision)
        shelf = self._shelves.get(resource)
        if shelf is None:
            return ()
        records = shelf.walk(namespace, after, revision)
        return tuple(islice(records, limit) if limit else records)

    def count_after(self, resource: str, *, namespace: str, after: str, revision: int) -> int:
        """Returns the number of records after a page that ends at *after*."""
        return self._shelves[resource].count(namespace, after, revision)

    def count(self, resource: str, namespace: str = "") -> int:
        """Returns the number of objects that there are now; O(log n)."""
        shelf = self._shelves.get(resource)
        return shelf.count(namespace, "", self.revision) if shelf else 0

    def resources(self) -> tuple[str, ...]:
        """Every resource that has or had objects, sorted."""
        return tuple(sorted(self._shelves))

    def events_since(
        self, revision: int, resource: str, *, limit: int = 0
    ) -> tuple[StoreEvent, ...]:
        """Events strictly after *revision*, the first *limit* of them (0: all).  Raises
        ``Compacted``.
        """
        if revision < self.compacted:
            raise Compacted(revision, self.compacted)
        shelf = self._shelves.get(resource)
        return shelf.events_since(revision, limit) if shelf else ()

    def history(self) -> Iterator[StoreEvent]:
        """Every event after the compaction point, by revision.  Lazy: nothing may change
        meanwhile.
        """
        return merge(*(shelf.log for shelf in self._shelves.values()), key=attrgetter("revision"))

    def owned_by(self, uid: str) -> tuple[Record, ...]:
        """Durable records that name *uid* among their owners, by key."""
        records = (self.get(key) for key in sorted(self._owned.get(uid, ())))
        return tuple(record for record in records if record is not None)

    # Writing

    @property
    def staged_revision(self) -> int:
        """The newest staged revision; ``revision`` if nothing is staged."""
        return self._staging.last_assigned if len(self._staging) else self.revision

    def latest(self, key: Key) -> Record | None:
        """Returns the version that a writer builds on: staged if there is something staged, else
        durable.
        """
        event = self._staging.find(key)
        if event is None:
            return self.get(key)
        return None if event.type is EventType.DELETED else event.record

    def iter_latest(self, resource: str, namespace: str = "") -> Iterator[Record]:
        """``latest`` of every key, in key order.

        Staging during the walk is allowed and not seen by it; the walk must end before
        ``on_durable``.
        """
        shelf = self._shelves.get(resource)
        durable = shelf.walk(namespace, "", self.revision) if shelf else iter(())
        return overlaid(durable, self._staging.overlay(resource, namespace))

    def stage_put(self, key: Key, build: Build) -> Record:
        """Create or replace.  *build* gets the commit's revision; the record must carry it."""
        previous = self.latest(key)
        revision = self._staging.last_assigned + 1
        record = build(revision)
        created = revision if previous is None else previous.created
        built = (record.key, record.revision, record.created)
        expected = (key, revision, created)
        assert built == expected, f"key, revision and created are {built}, must be {expected}"
        kind = EventType.ADDED if previous is None else EventType.MODIFIED
        self._staging.add(StoreEvent(revision, kind, record, previous))
        return record

    def stage_delete(self, key: Key, build: Build) -> Record:
        """Delete; the object must exist.  *build* makes its last version, with the deletion's
        revision.
        """
        previous = self.latest(key)
        assert previous is not None, f"{key} does not exist"
        revision = self._staging.last_assigned + 1
        record = build(revision)
        assert (record.key, record.revision) == (key, revision), (
            f"built {record.key} at {record.revision}"
        )
        self._staging.add(StoreEvent(revision, EventType.DELETED, record, previous))
        return record

    def end_step(self) -> None:
        """Ends a step: what was staged so far need not become durable together with what follows
        (see ``staging``).
        """
        self._staging.end_step()

    # The committer

    def take_staged(self, limit: BatchLimit | None = None) -> tuple[StoreEvent, ...]:
        """Staged and not yet handed out, in order; with *limit*, as many whole steps as fit, and at
        least one.
        """
        return self._staging.take(limit)

    def on_durable(self, revision: int) -> tuple[StoreEvent, ...]:
        """Publish everything staged up to *revision*.  The caller passes the events to the hub
        before anything else.
        """
        events = self._staging.pop_durable(revision)
        for event in events:
            self._publish(event)
        return tuple(events)

    def abort_staged(self) -> tuple[StoreEvent, ...]:
        """Forget everything that is not durable, taken or not; their revisions are never used
        again.
        """
        return self._staging.abort()

    def follow(self, events: Iterable[StoreEvent]) -> None:
        """Publish what another server committed.  Nothing may be staged: it would rest on what is
        old now.
        """
        assert not len(self._staging), "what is staged does not rest on what others wrote"
        for event in events:
            self._publish(event)
        self._staging.last_assigned = max(self._staging.last_assigned, self.revision)

    def advance(self, revision: int) -> None:
        """Nothing changed up to *revision*, as the server says that this store follows.  Nothing
        may be staged.
        """
        assert not len(self._staging), "what is staged has versions that go to others"
        assert revision >= self.revision, f"up to {revision}, newest is {self.revision}"
        self.revision = revision
        self._staging.last_assigned = max(self._staging.last_assigned, revision)

    def compact(self, revision: int) -> None:
        """Drop history up to *revision*: from then on it is the oldest that can be listed or
        watched from.
        """
        assert revision <= self.revision, f"compaction to {revision}, newest is {self.revision}"
        if revision <= self.compacted:
            return
        self.compacted = revision
        for shelf in self._shelves.values():
            shelf.compact(revision)

    def go_beyond(self, revision: int) -> None:
        """Versions up to *revision* may mean something else to a client: drop all history and go on
        after it. Nothing may be staged.
        """
        self.advance(revision)
        self.compact(revision)

    def check(self) -> None:
        """Assert every invariant.  O(state); for tests and the simulator."""
        assert 1 <= self.compacted <= self.revision <= self.staged_revision, (
            "revisions are out of order"
        )
        owned: dict[str, set[Key]] = {}
        for shelf in self._shelves.values():
            shelf.check(self.compacted, self.revision)
            for record in shelf.live.values():
                for uid in record.owners:
                    owned.setdefault(uid, set()).add(record.key)
        assert self._owned == owned, "the owner index is not what the records say"
        self._check_bytes()
        self._staging.check(self.revision)

    # Internals

    def _check_readable(self, revision: int) -> None:
        assert revision <= self.revision, (
            f"revision {revision} is after the newest, {self.revision}"
        )
        if revision < self.compacted:
            raise Compacted(revision, self.compacted)

    def _check_bytes(self) -> None:
        sizes: dict[str, int] = {}
        for shelf in self._shelves.values():
            for record in shelf.live.values():
                sizes[record.key.namespace] = sizes.get(record.key.namespace, 0) + len(record.body)
        counted = {
            namespace: self.object_bytes.used_by(namespace) for namespace in self.object_bytes
        }
        assert counted == sizes, f"bytes by namespace are {sizes}, counted are {counted}"
        self.object_bytes.check()

    def _publish(self, event: StoreEvent) -> None:
        assert event.revision > self.revision, f"event {event.revision} comes after {self.revision}"
        self._shelves[event.record.key.resource].apply(event)
        self.revision = event.revision
        key = event.record.key
        before = 0 if event.previous is None else len(event.previous.body)
        after = 0 if event.type is EventType.DELETED else len(event.record.body)
        self.object_bytes.add(key.namespace, after - before)
        for uid in event.previous.owners if event.previous is not None else ():
            # An owner may be named twice, so the key may be gone already.
            keys = self._owned.get(uid)
            if keys is not None:
                keys.discard(key)
                if not keys:
                    del self._owned[uid]
        if event.type is not EventType.DELETED:
            for uid in event.record.owners:
                self._owned.setdefault(uid, set()).add(key)
