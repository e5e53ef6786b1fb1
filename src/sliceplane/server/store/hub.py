"""The watch hub: every durable event to every watcher that it concerns, and to no other.

Watchers are filed by scope (``routes.py``); those of one scope with the same selector and
representation form a *group*. For an event, the predicate is asked once per group, the body is
encoded once per representation, and what is left per watcher is appending a reference to a list.

What a watcher may rely on (names as in etcd's robustness tests; tests/store/ has a validator for
each):

- Ordered: revisions increase (except among the synthetic ADDED items of the start);
- Unique: no event twice;
- Reliable: no gap: every matching event after the start comes, until the watch is closed;
- Resumable: a new watch from the last revision seen continues with exactly what the old one would
  have got;
- Bookmarkable: everything up to a bookmark's revision came before it;
- Filter: nothing else comes, and selector transitions are ADDED and DELETED.

Bounds: each queue has one in bytes. Since the watchers of a group share their items and each queue
is an end piece of the group's stream, the events of all queues together take at most one bound per
group, and besides eight bytes for each event in each queue. An encoder or a predicate that raises
ends the watches of its group with a 500, and no others.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Iterator
from itertools import chain

from sliceplane.api.errors import StatusError, internal
from sliceplane.kit.metrics import Metrics
from sliceplane.server.store.mvcc import Store
from sliceplane.server.store.types import EventType, Key, Record, StoreEvent, restamp
from sliceplane.server.store.watcher import (
    QUEUE_BYTES_MAX,
    Delivery,
    Encoder,
    Interest,
    Item,
    Routes,
    Watcher,
    WatcherGroup,
    classify,
    too_old,
)

BOOKMARK_PERIOD_S = 60.0
#: a last bookmark comes this long before a watch ends, so that the client can resume from a fresh
#: revision
BOOKMARK_BEFORE_END_S = 2.0
#: how many records or events a starting watch looks at in one go
BACKLOG_PAGE = 500
#: spreads the first bookmarks of watches that begin together (golden ratio: any number of them is
#: spread evenly)
_SPREAD = 0.6180339887498949

_Frames = dict[tuple[Encoder, EventType], Item]
#: events of a watch after a revision from before the history, and the revision that they lead to
EarlierEvents = Callable[[Interest, int], tuple[int, Iterator[Item | None]] | None]


class Hub:
    """Called from one thread: ``publish`` by the committer right after ``Store.on_durable``, the
    rest by the server.
    """

    def __init__(
        self,
        store: Store,
        bookmark_period_s: float | None = BOOKMARK_PERIOD_S,
        earlier: EarlierEvents = lambda *_: None,
    ) -> None:
        """*bookmark_period_s* ``None``: the owner sends every bookmark (``send_bookmarks``), but
        for one after the history of each watch.
        """
        self._store = store
        self._earlier = earlier
        self._bookmark_period_s = bookmark_period_s
        #: newest published revision
        self.revision = store.revision
        self._routes = Routes()
        self._watchers: dict[int, tuple[Watcher, WatcherGroup]] = {}
        self._last_number = 0
        #: (when, watcher number); one entry for each watcher that wants bookmarks or has an end,
        #: and stale ones
        self._due: list[tuple[float, int]] = []
        #: by resource, called after each of its events: how many watchers elsewhere got it, and
        #: bytes to all of them
        self.on_sent: dict[str, Callable[[StoreEvent, int, int], None]] = {}
        self.metrics = Metrics()
        counter = self.metrics.counter
        self.metrics.computed(
            "gauge", "apiserver_registered_watchers", "Open watches.", lambda: len(self)
        )
        self.published = counter(
            "sliceplane_hub_published_events_total", "Durable events handed to the hub."
        )
        self.delivered = counter(
            "sliceplane_hub_delivered_events_total", "Events put into queues of watches."
        )
        self.encoded = counter(
            "sliceplane_hub_encoded_events_total", "Events encoded; watches share them."
        )
        self.bookmarked = counter(
            "sliceplane_hub_bookmarks_total", "Bookmarks put into queues of watches."
        )
        self.overflowed = counter(
            "sliceplane_hub_overflowed_watches_total", "Watches ended since they were too slow."
        )
        self.faults = counter("sliceplane_hub_faults_total", "Events that could not be shown.")

    def __len__(self) -> int:
        """Open watches."""
        return len(self._watchers)

    # Starting and ending

    def subscribe(
        self,
        interest: Interest,
        *,
        now: float,
        since: int | None = None,
        initial: bool = False,
        bookmarks: bool = False,
        bound_bytes: int = QUEUE_BYTES_MAX,
        ends_at: float | None = None,
    ) -> Watcher:
        """Begin a watch.

        - ``initial``: first an ADDED for each present object in key order and, with *bookmarks*, a
          bookmark that says that they are complete; then live events.
        - ``since=N``: events strictly after N, also if N is in the future. If N is older than the
          history, the watch comes back closed, with the 410 in ``error``.
        - neither: live events from now on.

        *ends_at* closes the watch cleanly at that time.  The caller then takes (see ``Watcher``).
        """
        assert self.revision == self._store.revision, (
            f"hub at {self.revision}, store at {self._store.revision}"
        )
        assert not (initial and since is not None), (
            f"a watch starts from the state or from a revision, not {since} too"
        )
        self._last_number += 1
        start = self.revision if since is None else since
        watcher = Watcher(
            self._last_number,
            interest,
            since=start,
            bound=bound_bytes,
            bookmarks=bookmarks,
            ends_at=ends_at,
            after_close=self._forget,
        )
        joins_at = start
        before: Iterator[Item | None] = iter(())
        if start < self._store.compacted:
            earlier = self._earlier(interest, start)
            if earlier is None:
                watcher.close(too_old(start, self._store.compacted))
                return watcher
            joins_at, before = earlier
        if initial:
            watcher.start(self._state(interest, self.revision, bookmarks))
        elif start < self.revision:
            history = self._history(interest, joins_at, self.revision)
            last = self._end_of_history(interest, self.revision) if bookmarks else ()
            watcher.start(chain(before, history, last))
        self._watchers[watcher.number] = (watcher, self._routes.join(watcher, self.revision))
        self._schedule(watcher, now, 0.5 + 0.5 * (watcher.number * _SPREAD % 1.0))
        return watcher

    def unsubscribe(self, watcher: Watcher) -> None:
        """The client is gone; what the watch holds is dropped.  Idempotent."""
        watcher.close(None)

    def close_all(self, error: StatusError | None = None) -> None:
        """End every watch, for shutdown; without an *error* what they hold can still be taken, and
        a last bookmark says where to go on, which need not be here (unless the owner sends them).
        """
        frames: dict[Encoder, Item] = {}
        for watcher, _ in tuple(self._watchers.values()):
            due = error is None and self._bookmark_period_s is not None
            if due and watcher.bookmarks and watcher.since <= self.revision:
                self._bookmark(watcher, frames)
            watcher.close(error, keep=error is None)
            watcher.notify()

    def on_replaced(self) -> None:
        """The store is another one (``Store.replace``) and what lies between is unknown: every
        watch ends with 410.
        """
        self.revision = self._store.revision
        for watcher, _ in tuple(self._watchers.values()):
            watcher.close(
                too_old(max(watcher.taken_revision, watcher.since), self._store.compacted)
            )
            watcher.notify()

    def _forget(self, watcher: Watcher) -> None:
        """After ``Watcher.close``."""
        entry = self._watchers.pop(watcher.number, None)
        if entry is not None:
            self._routes.leave(entry[1], watcher)

    # Live events

    def publish(self, events: Iterable[StoreEvent]) -> None:
        """Fan *events* out, in order.  Watchers are notified once, after all of them."""
        woken: list[Watcher] = []
        for event in events:
            assert event.revision > self.revision, f"event {event.revision} after {self.revision}"
            self.revision = event.revision
            self.published.value += 1
            # The groups are copied, as overflow removes watchers and, with the last one, a group.
            groups = tuple(self._routes.concerned(event.record.key))
            if groups:
                self._fan_out(event, groups, woken)
        for watcher in woken:
            watcher.notify()

    def _fan_out(
        self, event: StoreEvent, groups: tuple[WatcherGroup, ...], woken: list[Watcher]
    ) -> None:
        frames: _Frames = {}
        full: list[Watcher] = []
        watchers = size_bytes = 0
        for group in groups:
            if event.revision <= group.since:
                continue
            try:
                delivery = classify(event, group.interest.matches)
                if delivery is None:
                    continue
                # For one event a DELETED is the deletion for all watchers or the departure for all:
                # the type will do.
                encoder = group.interest.encoder
                item = frames.get((encoder, delivery.kind))
                if item is None:
                    item = frames[encoder, delivery.kind] = self._encode(
                        encoder, delivery, event.revision
                    )
            except Exception as error:
                self._fault(group, event, error, woken)
                continue
            size = len(item.data)
            # The hot loop: everything here is paid once per watcher and event.
            for watcher in group.members.values():
                queue = watcher.queue
                if not queue:
                    woken.append(watcher)
                queue.append(item)
                watcher.size += size
                if watcher.size > watcher.bound:
                    full.append(watcher)
            self.delivered.value += len(group.members)
            if not group.interest.local:
                watchers += len(group.members)
                size_bytes += size * len(group.members)
        for watcher in full:
            self.overflowed.value += 1
            watcher.close(too_old(max(watcher.taken_revision, watcher.since), event.revision))
            woken.append(watcher)
        on_sent = self.on_sent.get(event.record.key.resource)
        if on_sent is not None:
            on_sent(event, watchers, size_bytes)

    def _encode(self, encoder: Encoder, delivery: Delivery, revision: int) -> Item:
        self.encoded.value += 1
        record = (
            restamp(delivery.record, revision) if delivery.stopped_matching else delivery.record
        )
        return Item(delivery.kind.value, revision, encoder.event(delivery.kind, record))

    def _fault(
        self, group: WatcherGroup, event: StoreEvent, cause: Exception, woken: list[Watcher]
    ) -> None:
        """A gap would be silent, so the watches end instead; the clients list again."""
        self.faults.value += 1
        for watcher in tuple(group.members.values()):
            watcher.close(
                internal(
                    f"the watch cannot show {event.record.key.path} at {event.revision}: {cause!r}"
                )
            )
            woken.append(watcher)

    # The start of a watch (generators: run while the client takes)

    def _state(self, interest: Interest, revision: int, bookmarks: bool) -> Iterator[Item | None]:
        """Synthetic ADDED for the objects at *revision*, in key order, then the mark that they are
        complete.
        """
        for record in self._present(interest, revision):
            if record is None:
                yield None
            elif interest.matches is None or interest.matches(record):
                self.encoded.value += 1
                data = interest.encoder.event(EventType.ADDED, record)
                yield Item(EventType.ADDED.value, record.revision, data)
        if bookmarks:
            yield Item("BOOKMARK", revision, interest.encoder.bookmark(revision, True))

    def _present(self, interest: Interest, revision: int) -> Iterator[Record | None]:
        """The records in scope at *revision*, with a ``None`` after each page."""
        if interest.name:
            record = self._store.get_at(
                Key(interest.resource, interest.namespace, interest.name), revision
            )
            if record is not None or interest.namespace:
                yield record
                return
        after = ""
        while True:
            page = self._store.scan(
                interest.resource,
                namespace=interest.namespace,
                revision=revision,
                after=after,
                limit=BACKLOG_PAGE,
            )
            yield from (record for record in page if interest.covers(record))
            if len(page) < BACKLOG_PAGE:
                return
            after = page[-1].key.path
            yield None

    def _history(self, interest: Interest, revision: int, until: int) -> Iterator[Item | None]:
        """The events after *revision*, up to *until*: later ones come live."""
        while True:
            events = self._store.events_since(revision, interest.resource, limit=BACKLOG_PAGE)
            for event in events:
                if event.revision > until:
                    return
                if interest.covers(event.record):
                    delivery = classify(event, interest.matches)
                    if delivery is not None:
                        yield self._encode(interest.encoder, delivery, event.revision)
            if len(events) < BACKLOG_PAGE:
                return
            revision = events[-1].revision
            yield None

    def _end_of_history(self, interest: Interest, revision: int) -> Iterator[Item]:
        """A bookmark where the owner may not send the next one for long."""
        if self._bookmark_period_s is None:
            yield Item("BOOKMARK", revision, interest.encoder.bookmark(revision, False))

    # Bookmarks

    def next_deadline(self) -> float | None:
        """Returns the time at which ``on_tick`` has something to do."""
        while self._due and self._due[0][1] not in self._watchers:
            heapq.heappop(self._due)
        return self._due[0][0] if self._due else None

    def on_tick(self, now: float) -> None:
        """Send the bookmarks that are due and end the watches whose time is over."""
        frames: dict[Encoder, Item] = {}
        woken: list[Watcher] = []
        while (due := self.next_deadline()) is not None and due <= now:
            watcher, _ = self._watchers[heapq.heappop(self._due)[1]]
            if watcher.ends_at is not None and watcher.ends_at <= now:
                watcher.close(None, keep=True)
                woken.append(watcher)
                continue
            # A bookmark before the start of the watch would take the client back.
            if watcher.bookmarks and watcher.since <= self.revision:
                self._bookmark(watcher, frames)
                woken.append(watcher)
            self._schedule(watcher, now)
        for watcher in woken:
            watcher.notify()

    def _bookmark(self, watcher: Watcher, frames: dict[Encoder, Item]) -> None:
        """Sound, since ``publish`` has put everything up to ``revision`` into the queue, and takes
        go in order.
        """
        encoder = watcher.interest.encoder
        item = frames.get(encoder)
        if item is None:
            item = frames[encoder] = Item(
                "BOOKMARK", self.revision, encoder.bookmark(self.revision, False)
            )
        watcher.queue.append(item)
        watcher.size += len(item.data)
        self.bookmarked.value += 1

    def send_bookmarks(self) -> None:
        """The store was advanced: a bookmark to each watch that has them."""
        self.revision = self._store.revision
        frames: dict[Encoder, Item] = {}
        for watcher, _ in tuple(self._watchers.values()):
            if watcher.bookmarks and watcher.since <= self.revision:
                self._bookmark(watcher, frames)
                watcher.notify()

    def _schedule(self, watcher: Watcher, now: float, periods: float = 1.0) -> None:
        period_s = self._bookmark_period_s
        bookmarks = watcher.bookmarks and period_s is not None
        due = now + period_s * periods if bookmarks and period_s is not None else None
        if watcher.ends_at is not None:
            last = watcher.ends_at - BOOKMARK_BEFORE_END_S
            limit = last if bookmarks and now < last else watcher.ends_at
            due = limit if due is None else min(due, limit)
        if due is not None:
            heapq.heappush(self._due, (due, watcher.number))

    def check(self) -> None:
        """Assert every invariant.  O(watchers + queued items); for tests and the simulator."""
        self._routes.check({number: watcher for number, (watcher, _) in self._watchers.items()})
        for watcher, _ in self._watchers.values():
            assert not watcher.closed, f"watch {watcher.number} is closed and filed"
            assert watcher.size == sum(len(item.data) for item in watcher.queue), (
                f"watch {watcher.number}: {watcher.size}"
            )
            revisions = [item.revision for item in watcher.queue]
            assert revisions == sorted(revisions), (
                f"watch {watcher.number}: queue out of order: {revisions}"
            )
