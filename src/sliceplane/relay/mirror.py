"""One resource of the parent as a store with history and a watch hub, fed by an informer.

The informer (``watch.reflector``) lists, watches, resumes, and notices a server that went back. The
mirror turns its changes into events of ``server.store``, so that lists and watches of children are
those of our own server. It keeps these promises:

- **Versions and bytes are the parent's.**  A deletion has the body of the parent's event.
- **In order, no gap, no duplicate.**  Each event is published once, at its own version; an event
  that does not continue the history ends all watches with 410 instead.
- **A bookmark comes after everything before it.**  Only the parent's progress makes bookmarks, so
  a silent parent makes silent children.
- **After a lost watch** the parent is listed. The difference reaches open watches as events at the
  objects' own versions. Then the history begins at the list: what was created and deleted in
  between is in no list, so a watch from a version in between would miss its deletion.
- **A difference with a removal ends all watches with 410.**  A list does not say at which version
  an object was deleted. A child that received such a deletion, broke off and resumed at its version
  elsewhere would skip, or repeat, what lies around it.
- **A parent that went back** (a restored backup) ends all watches with 410.

A watch that resumes before the history begins with what ``earlier`` fetched of the parent.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from sliceplane.api import codec
from sliceplane.api.scheme import Resource
from sliceplane.relay.earlier import Earlier
from sliceplane.relay.records import Mirrored, mirrored
from sliceplane.server.store.hub import Hub
from sliceplane.server.store.mvcc import Store
from sliceplane.server.store.shelf import (
    HISTORY_BYTES_MAX,
    HISTORY_BYTES_MIN,
    HISTORY_KEEP_S,
    Retention,
)
from sliceplane.server.store.types import EventType, Record, StoreEvent, restamp
from sliceplane.watch.cache import Cache, Change, Mark, Undecodable


class ResourceMirror:
    """Owned by one relay.  ``on_changes`` and ``on_mark`` are handlers of the informer over
    ``cache``; ``store`` and ``hub`` serve children.
    """

    def __init__(
        self,
        resource: Resource,
        *,
        keep_s: float = HISTORY_KEEP_S,
        bytes_min: int = HISTORY_BYTES_MIN,
        bytes_max: int = HISTORY_BYTES_MAX,
    ) -> None:
        """History is kept for *keep_s*, in at most *bytes_max* bytes (see ``Retention``)."""
        self.resource = resource
        self.cache: Cache[Mirrored] = Cache(resource, Mirrored, decode=self._decode)
        self.store = Store()
        #: for watches that resume before the history
        self.earlier = Earlier(resource, self.store)
        self.hub = Hub(self.store, bookmark_period_s=None, earlier=self.earlier.find)
        #: the store has what a complete list had
        self.filled = False
        #: lists after a lost watch whose difference went to open watches, and others
        self.bridged = 0
        self.resets = 0
        #: decodes an object; the simulator's relays share what was decoded
        self.load: Callable[[bytes], Mirrored] = partial(mirrored, resource)
        self._retention = Retention(keep_s=keep_s, bytes_min=bytes_min, bytes_max=bytes_max)
        self._changes: list[Change[Mirrored]] = []
        #: the parent has no event between these two versions
        self._progress = (0, 0)
        #: the object of the newest event: a change does not have the body of a deletion
        self._newest: Record | None = None

    def on_changes(self, changes: Sequence[Change[Mirrored]]) -> None:
        """Collects changes until their mark comes."""
        self._changes.extend(changes)

    def on_mark(self, mark: Mark) -> None:
        """Publishes the collected changes, which lead to *mark*."""
        changes, self._changes = self._changes, []
        revision = mark.revision
        if not revision:
            return  # versions that are no numbers have no order: the store stays empty
        if mark.listed and not self.filled:
            self.filled = True
            self._replace(revision)
        elif not (changes or mark.listed):
            self._advance(revision)
        elif revision < self.store.revision:
            self._reset(revision)
        elif mark.listed:
            self._on_list(changes, revision)
        else:
            self._publish([self._event(change, revision) for change in changes], revision)

    def on_progress(self, seen: int, revision: int) -> None:
        """Another watch of the parent, from a version that the store had, received the events up to
        *seen*, and then a bookmark of *revision*.
        """
        self._progress = (seen, revision)
        self._use_progress()

    def on_tick(self, now: float) -> None:
        """Drops history whose time is over; seconds of a clock that never goes back."""
        self._retention.on_tick(now)
        self._compact()
        self.earlier.make_room()

    def _decode(self, body: bytes) -> Mirrored:
        try:
            loaded = self.load(body)
        except codec.UNREADABLE as error:
            # An object that is skipped would be a gap: the informer lists again, and goes on
            # failing.
            raise Undecodable(str(error)) from error
        self._newest = loaded.record
        return loaded

    def _use_progress(self) -> None:
        seen, revision = self._progress
        if seen <= self.store.revision:
            self._advance(revision)

    def _advance(self, revision: int) -> None:
        """The parent has no further event up to *revision*."""
        if self.filled and revision > self.store.revision:
            self.store.advance(revision)
            self.hub.send_bookmarks()

    def _on_list(self, changes: Sequence[Change[Mirrored]], revision: int) -> None:
        """A list after a watch was lost: what happened is known in its sum alone."""
        if any(change.new is None for change in changes):
            self._reset(revision)
            return
        events = [self._event(change, revision) for change in changes]
        if self._publish(sorted(events, key=lambda event: event.revision), revision):
            self.bridged += 1
            self.store.compact(revision)
            self._retention.on_replaced()
            self.hub.send_bookmarks()

    def _event(self, change: Change[Mirrored], revision: int) -> StoreEvent:
        record = change.object.record
        previous = self.store.get(record.key)
        if change.new is not None:
            kind = EventType.ADDED if previous is None else EventType.MODIFIED
            return StoreEvent(record.revision, kind, record, previous)
        newest = self._newest
        if newest is None or (newest.key, newest.revision) != (record.key, revision):
            newest = restamp(record, revision)
        return StoreEvent(revision, EventType.DELETED, newest, previous)

    def _publish(self, events: Sequence[StoreEvent], revision: int) -> bool:
        """Publishes *events* if they continue the history up to *revision*; otherwise ends all
        watches and returns False.
        """
        last = self.store.revision
        for event in events:
            if not last < event.revision <= revision:
                self._reset(revision)
                return False
            last = event.revision
        self.store.follow(events)
        self.hub.publish(events)
        if revision > last:
            self.store.advance(revision)
            self.hub.revision = revision
        if events:
            self._retention.on_events(events, self.store.object_bytes.total)
            self._compact()
        self._use_progress()
        return True

    def _compact(self) -> None:
        self.store.compact(min(self._retention.target, self.store.revision))

    def _reset(self, revision: int) -> None:
        self.resets += 1
        self._replace(revision)

    def _replace(self, revision: int) -> None:
        """The store becomes the cache at *revision*, without history; all watches end with 410."""
        records = sorted((cached.record for cached in self.cache), key=lambda one: one.revision)
        present = [
            StoreEvent(min(record.revision, revision), EventType.ADDED, record, None)
            for record in records
        ]
        self._progress = (0, 0)
        self.store.replace(present, revision, revision)
        self._retention.on_replaced()
        self.earlier.clear()
        self.hub.on_replaced()

    def check(self) -> None:
        """Asserts that the store has what the cache has.  O(objects); for tests."""
        self.hub.check()
        assert self.hub.revision == self.store.revision, "hub and store differ"
        live = {
            record.key.path: record.body
            for record in self.store.scan(
                self.resource.storage_key,
                namespace="",
                revision=self.store.revision,
                after="",
                limit=0,
            )
        }
        assert not self.filled or live == {
            cached.metadata.key: cached.record.body for cached in self.cache
        }, "store and cache differ"
