"""Events from before a mirror's history, fetched from the parent for watches that resume there.

A relay that was started again knows nothing of the time before its list. Its children resume at
versions from that time, and a 410 would make all of them list. Instead the parent's events are
fetched, from the child's version to the history, by a watch with the child's own selectors. So each
event has the type that the selectors give it, which no list tells. The child then receives what was
fetched, and joins the store's history where that ends.

- **Shared.**  What is fetched serves every watch of the same *scope* (namespace, name, selectors)
  that resumes at its first version or later.
- **Complete, or nothing.**  A *catch-up* ends with the proof that nothing is missing: an event or
  a bookmark of the version at which the history begins, or of a later one. Without it the child
  receives 410.
- **Bounded.**  What was used least recently makes room, and watches that still read it end with
  410.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

from sliceplane.api.codec import UNREADABLE
from sliceplane.api.meta import revision_of
from sliceplane.api.resource import Resource
from sliceplane.relay.records import mirrored
from sliceplane.server.store.hub import BACKLOG_PAGE
from sliceplane.server.store.mvcc import Compacted, Store
from sliceplane.server.store.types import EventType, Record
from sliceplane.server.store.watcher import Interest, Item
from sliceplane.watch.actions import bookmark_version, is_bad_version, status_of
from sliceplane.watch.cache import Undecodable

#: of all events that are kept for one resource
EARLIER_BYTES_MAX: Final = 64 * 1024 * 1024
SCOPES_MAX: Final = 64


class WatchScope(NamedTuple):
    """The part of ``Interest`` that decides which events a watch receives."""

    namespace: str = ""
    name: str = ""
    selector: str = ""


class Stretch:
    """The events of one scope after *since*, up to and including *until*."""

    def __init__(self, since: int, until: int, history: object) -> None:
        self.since = since
        self.until = until
        #: names the timeline of its versions
        self.history = history
        self.events: list[tuple[EventType, Record]] = []
        self.size = 0
        self.is_dropped = False


class CatchUp:
    """One stretch while it is fetched.  Its owner opens a watch from ``version``, feeds the
    messages, and opens the next one if that ended before ``is_over``.
    """

    def __init__(self, resource: Resource, stretch: Stretch, bytes_max: int) -> None:
        self.stretch = stretch
        self.version = stretch.since
        self.is_complete = False
        self.is_over = False
        self._resource = resource
        self._bytes_max = bytes_max

    def fail(self) -> None:
        """The parent cannot bring the rest."""
        self.is_over = True

    def on_message(self, kind: str, body: bytes) -> None:
        """One message of the parent's watch, its type as sent."""
        try:
            if kind == "ERROR":
                self.is_over = is_bad_version(status_of(body))
            elif kind == "BOOKMARK":
                self._reach(revision_of(bookmark_version(body)))
            else:
                self._on_event(EventType(kind), mirrored(self._resource, body).record)
        except (*UNREADABLE, Undecodable, ValueError):
            self.fail()

    def _on_event(self, kind: EventType, record: Record) -> None:
        if record.revision <= self.version:
            self.fail()  # a parent that repeats itself or went back
            return
        if record.revision <= self.stretch.until:
            self.stretch.events.append((kind, record))
            self.stretch.size += len(record.body)
        if self.stretch.size > self._bytes_max:
            self.fail()
        else:
            self._reach(record.revision)

    def _reach(self, revision: int) -> None:
        """The parent has no further event up to *revision*."""
        if revision >= self.stretch.until:
            self.is_complete = self.is_over = True
        elif revision >= self.version:
            self.version = revision
        else:
            self.fail()


class Earlier:
    """Owned by one mirror."""

    def __init__(
        self, resource: Resource, store: Store, bytes_max: int = EARLIER_BYTES_MAX
    ) -> None:
        self._resource = resource
        self._store = store
        self._bytes_max = bytes_max
        #: the one that was used last is at the end
        self._stretches: dict[WatchScope, Stretch] = {}
        #: the least version that watches wait for
        self._wanted: dict[WatchScope, int] = {}
        #: the greatest version from which the parent has not brought the events
        self._refused: dict[WatchScope, int] = {}
        self._history = object()
        self.fetched = 0
        self.failed = 0

    @property
    def results(self) -> tuple[tuple[str, int], ...]:
        """Returns the numbers of catch-ups, for metrics."""
        return ("complete", self.fetched), ("failed", self.failed)

    def lacks(self, scope: WatchScope, since: int) -> bool:
        """Returns True if a watch from *since* needs events that the parent may have.  Selections
        by shards (a third line of the selector) are not every parent's.
        """
        return (
            since < self._store.compacted
            and scope.selector.count("\n") < 2
            and self._covering(scope, since) is None
            and since > self._refused.get(scope, 0)
        )

    def want(self, scope: WatchScope, since: int) -> None:
        """Makes the next catch-up of *scope* begin at *since* or earlier."""
        self._wanted[scope] = min(since, self._wanted.get(scope, since))

    def begin(self, scope: WatchScope) -> CatchUp:
        """Returns the catch-up that brings what is wanted now."""
        stretch = Stretch(self._wanted.pop(scope), self._store.compacted, self._history)
        return CatchUp(self._resource, stretch, self._bytes_max)

    def finish(self, scope: WatchScope, catch_up: CatchUp) -> None:
        """Keeps what *catch_up* brought, or that it brought nothing."""
        stretch = catch_up.stretch
        self._wanted.pop(scope, None)  # those who still wait say so again
        if stretch.history is not self._history:
            return
        if not catch_up.is_complete:
            self.failed += 1
            self._refused[scope] = max(stretch.since, self._refused.pop(scope, 0))
            while len(self._refused) > SCOPES_MAX:
                del self._refused[next(iter(self._refused))]
            return
        self.fetched += 1
        self._drop(scope)
        self._stretches[scope] = stretch
        self.make_room()

    def make_room(self) -> None:
        """Drops what no watch can begin with any more, and what is too much."""
        compacted = self._store.compacted
        for scope in [one for one, kept in self._stretches.items() if kept.until < compacted]:
            self._drop(scope)
        while (
            len(self._stretches) > SCOPES_MAX
            or sum(stretch.size for stretch in self._stretches.values()) > self._bytes_max
        ):
            self._drop(next(iter(self._stretches)))

    def clear(self) -> None:
        """The store was replaced: its versions may be of another history."""
        self._history = object()
        for scope in tuple(self._stretches):
            self._drop(scope)
        self._refused.clear()

    def find(self, interest: Interest, since: int) -> tuple[int, Iterator[Item | None]] | None:
        """Returns the events of *interest* after *since*, as a watch takes them, and the version
        that they lead to; ``None`` if they are not here.
        """
        scope = WatchScope(interest.namespace, interest.name, interest.selector)
        stretch = self._covering(scope, since)
        if stretch is None:
            return None
        self._stretches[scope] = self._stretches.pop(scope)
        return stretch.until, self._items(stretch, interest, since)

    def _covering(self, scope: WatchScope, since: int) -> Stretch | None:
        stretch = self._stretches.get(scope)
        if stretch is None or since < stretch.since:
            return None
        return stretch if self._store.compacted <= stretch.until <= self._store.revision else None

    def _items(self, stretch: Stretch, interest: Interest, since: int) -> Iterator[Item | None]:
        for number, (kind, record) in enumerate(stretch.events):
            if record.revision > since:
                data = interest.encoder.event(kind, record)
                yield Item(kind.value, record.revision, data)
            if number % BACKLOG_PAGE == BACKLOG_PAGE - 1:
                yield None
            if stretch.is_dropped:
                raise Compacted(since, self._store.compacted)

    def _drop(self, scope: WatchScope) -> None:
        stretch = self._stretches.pop(scope, None)
        if stretch is not None:
            stretch.is_dropped = True
            stretch.events.clear()
