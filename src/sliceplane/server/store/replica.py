"""One of several servers that share a log: what it may write, when it must give way, and what it
may answer.

All servers write; none leads. The log has a *head*, and its place in the log (*position*) grows
with every batch. A batch says on which head it rests, and the log takes it only if that is still
the head. So batches are in one order, and each was made from exactly the state that the batches
before it left: admission, quotas, addresses, uniqueness hold across servers without any other lock.

    submit --(no other server first, nothing newer observed)--> the step runs: stages --> take_batch --> the log
       ^                                                                      |
       |   another server was first: forget what is staged,                   | took it: durable, published, answered
       '--- follow what it wrote, run the steps again <-----------------------'

What decides about a batch is the *feed*: the order in which the log took batches, without a gap.
Ours is in it, or another one is in its place; there is no third. The log's own answer only says the
same earlier, so it may be lost.

A log may be restored from a backup under servers that run, or hang: then it is another log, with
other batches under the same positions. So heads have names that no two batches share, a batch rests
on a name as well as on a position, and what the feed or a head tells must go on from the name that
is known here (``OutOfOrder``).

A step that writes nothing (a refusal, a no-op, a dry run) was decided from what this server knew.
It is answered only when that is known to have been the newest state: after a batch that rests on
it, or after the log was asked for its head (``ReadIndex``), which plain reads also do.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

from sliceplane.api.errors import StatusError, internal
from sliceplane.server.store.backend import Loaded
from sliceplane.server.store.batches import (
    BATCH_LIMIT,
    Batch,
    FeedItem,
    Group,
    HeadName,
    PublishedState,
    Ticket,
    WriterQueued,
)
from sliceplane.server.store.hub import Hub
from sliceplane.server.store.mvcc import Store
from sliceplane.server.store.types import EventType, Key, StoreEvent
from sliceplane.server.store.writer_queue import ReadIndex, WriterQueue


class OutOfOrder(Exception):
    """The feed does not continue the state in memory. The owner loads everything anew
    (``on_reloaded``).
    """


class StoreCaches(Protocol):
    """State that is derived from the store's newest versions, as the registry has it. It is
    notified when these change without a step of this server, before any step runs again.
    """

    def on_changed(self, keys: Iterable[Key]) -> None:
        """The objects *keys* changed."""

    def on_aborted(self) -> None:
        """Any object may have changed."""


class Replica:
    """Owned by the committer, in one thread.

    *server* is unique among all that ever wrote to the log. *on_published* gets the events that
    became visible.
    """

    def __init__(
        self,
        store: Store,
        hub: Hub,
        caches: StoreCaches,
        *,
        server: str,
        position: int,
        name: HeadName,
        on_published: Callable[[Sequence[StoreEvent]], None] = lambda _: None,
    ) -> None:
        self._store = store
        self._hub = hub
        self._caches = caches
        self._on_published = on_published
        self.server = server
        #: of the head that the store shows, and its name
        self.position = position
        self.name = name
        #: the newest head that was observed
        self.head = position
        self.writer_queue = WriterQueue(server)
        self.reads = ReadIndex()
        self._queue: deque[Ticket] = deque()
        self._waiting: list[Ticket] = []
        #: decided without writing, and not confirmed
        self._unconfirmed: list[Ticket] = []
        self._in_flight: Batch | None = None
        self._last_number = 0
        self._has_staged = False
        # Counters, for metrics.
        self.batches = 0
        self.commits = 0
        self.conflicts = 0
        self.redone = 0

    # Work

    def submit(self, ticket: Ticket, now: float) -> None:
        """Runs the step, immediately or when no other server writes first."""
        ticket.arrived = self.position
        self._queue.append(ticket)
        self._run_queue(now)

    @property
    def published(self) -> PublishedState:
        """The state that clients of this server may have observed."""
        return PublishedState(self.position, self.name, self._store.revision)

    @property
    def busy(self) -> bool:
        """There is work that will need a batch."""
        return bool(self._queue or self._waiting or self._has_staged or self._in_flight)

    def must_wait(self, now: float) -> bool:
        """Whatever ran now would be refused, or would push in."""
        if self._in_flight is not None and self.writer_queue.alternates:
            return True  # what ran now would be after it, and the next batch is another server's
        return self.head > self.position or self.writer_queue.next_deadline(now) is not None

    def _run_queue(self, now: float) -> None:
        while self._queue and not self.must_wait(now):
            ticket = self._queue.popleft()
            if not ticket.abandoned:
                self._run(ticket)

    def _run(self, ticket: Ticket) -> None:
        ticket.result = None
        ticket.error = None
        revision = 0
        before = self._store.staged_revision
        try:
            ticket.result = ticket.step()
            revision = ticket.revision_of(ticket.result)
        except StatusError as error:
            ticket.error = error
        except Exception as error:  # a fault of the step: its caller is told, the others go on
            ticket.error = error
        self._store.end_step()
        staged = self._store.staged_revision
        if staged > self._store.revision:
            # What is staged may be its own, or what it was decided by: either way it must come true
            # first.
            ticket.until = staged
            # A batch under way may have been taken before this was asked, and others' batches after
            # it.
            under_way = self._in_flight.events[-1].revision if self._in_flight is not None else 0
            ticket.confirm = staged == before and staged <= under_way
            self._has_staged = self._has_staged or staged > under_way
            self._waiting.append(ticket)
        elif ticket.error is not None and not _rests_on_state(ticket.error):
            ticket.finish()
        else:
            assert revision <= self._store.revision, f"revision {revision} was never staged"
            ticket.until = 0
            self._await_confirmation(ticket)

    def _await_confirmation(self, ticket: Ticket) -> None:
        """Keeps *ticket* until the log confirms that ``position``, by which it was decided, is the
        newest.
        """
        ticket.decided_at = self.position
        self._unconfirmed.append(ticket)
        self.reads.add(lambda: self._confirm(ticket))

    def _confirm(self, ticket: Ticket) -> None:
        if ticket not in self._unconfirmed:
            return
        self._unconfirmed.remove(ticket)
        if ticket.abandoned:
            return
        if ticket.decided_at == self.position:
            ticket.finish()
        else:
            self.redone += 1
            self._queue.append(ticket)

    # Writing

    def take_batch(self, now: float) -> Batch | None:
        """The next batch for the log, if there is one and it is time for it."""
        if self._in_flight is not None or not self._has_staged or self.must_wait(now):
            return None
        events = self._store.take_staged(BATCH_LIMIT)
        if not events:
            self._has_staged = False
            return None
        self._last_number += 1
        over = (self.server, *self.writer_queue.overdue(now))
        queues_if_refused = not self.writer_queue.own_position
        since = self._waiting[0].arrived if self._waiting else self.position
        self._in_flight = Batch(
            self._last_number, self.position, self.name, events, over, queues_if_refused, since
        )
        return self._in_flight

    def is_queued_without_work(self) -> bool:
        """Returns True if this server is queued and has nothing to write: its key can go."""
        return bool(self.writer_queue.own_position) and not self.busy

    def on_taken(self, number: int, position: int, now: float) -> None:
        """The log took our batch."""
        if self._in_flight is not None and self._in_flight.number == number:
            self._complete_batch(position, now)
            self._after_progress(now)

    def on_refused(self, number: int, head: int) -> None:
        """The log has another head.  The feed tells the rest: that our batch came earlier, or that
        it never will.
        """
        if self._in_flight is not None and self._in_flight.number == number:
            self.head = max(self.head, head)

    def on_failed(self, number: int, error: StatusError, now: float) -> None:
        """The log will never take our batch as it is.  Its steps are told *error*, the others run
        again.
        """
        batch = self._in_flight
        if batch is None or batch.number != number:
            return
        last = batch.events[-1].revision
        failed = [ticket for ticket in self._waiting if ticket.until <= last]
        self._waiting = [ticket for ticket in self._waiting if ticket.until > last]
        self._caches.on_changed(self._abort_staged())
        for ticket in failed:
            ticket.fail(error)
        self._after_progress(now)

    def waits_for(self, number: int) -> bool:
        """Returns True if the fate of our batch *number* is still open."""
        return self._in_flight is not None and self._in_flight.number == number

    def _complete_batch(self, position: int, now: float) -> None:
        assert self._in_flight is not None, "there is a batch to complete"
        events = self._store.on_durable(self._in_flight.events[-1].revision)
        self._in_flight = None
        self.batches += 1
        self.commits += len(events)
        self.writer_queue.on_dequeued(self.server)
        self.writer_queue.on_own_batch(position, now)
        self._publish(
            events, position, HeadName(self.server, self._last_number, self._store.revision)
        )
        done = [ticket for ticket in self._waiting if ticket.until <= self._store.revision]
        self._waiting = [ticket for ticket in self._waiting if ticket.until > self._store.revision]
        for ticket in done:
            if ticket.confirm:
                self._await_confirmation(ticket)
            else:
                ticket.finish()

    def _publish(self, events: Sequence[StoreEvent], position: int, name: HeadName) -> None:
        self._hub.publish(events)
        self.position = position
        self.name = name
        self.head = max(self.head, position)
        self._on_published(events)

    def _abort_staged(self) -> set[Key]:
        """Forget what is staged; its steps run again, in their order and before newer ones.
        Returns their keys.
        """
        forgotten = self._store.abort_staged()
        self._in_flight = None
        self._has_staged = False
        if self._waiting:
            self.redone += len(self._waiting)
            self._queue.extendleft(reversed(self._waiting))
            self._waiting = []
        return {event.record.key for event in forgotten}

    # What others did

    def on_feed(self, items: Sequence[FeedItem], now: float) -> None:
        """Follows what the log took, in its order; items that were seen before are passed over.
        Raises ``OutOfOrder``.
        """
        for item in items:
            if isinstance(item, Group):
                if item.position > self.position:
                    self._on_group(item, now)
            elif isinstance(item, WriterQueued):
                self.writer_queue.on_queued(item.server, item.position, now)
            else:
                self.writer_queue.on_dequeued(item.server)
        self._after_progress(now)

    def _on_group(self, group: Group, now: float) -> None:
        own = self._in_flight
        if own is not None and group.name[:2] == (self.server, own.number):
            self._complete_batch(group.position, now)
            return
        if own is not None:
            self.conflicts += 1
        keys = self._abort_staged()
        try:
            self._check_follows(group)
            events = self._events_of(group)
        except OutOfOrder:
            self.head = max(self.head, group.position)  # nothing runs before all is loaded anew
            self._caches.on_changed(keys)
            raise
        self._store.follow(events)
        self._caches.on_changed(keys | {event.record.key for event in events})
        self.writer_queue.on_batch(group.name.server, group.position, group.since, now)
        self._publish(events, group.position, group.name)
        if group.beyond > self._store.revision:
            self._store.go_beyond(group.beyond)
            self._hub.on_replaced()

    def _check_follows(self, group: Group) -> None:
        if group.after and group.after != str(self.name):
            raise OutOfOrder(
                f"batch {group.name} rests on {group.after}, and {self.name} is what is here"
            )

    def _events_of(self, group: Group) -> list[StoreEvent]:
        """With the very records that the store has as their predecessors."""
        newest: dict[Key, StoreEvent] = {}
        events = []
        revision = self._store.revision
        for row in group.rows:
            key = row.record.key
            last = newest.get(key)
            previous = (
                self._store.get(key) if last is None else None if _deleted(last) else last.record
            )
            there = previous.revision if previous is not None else 0
            if row.previous != there or row.record.revision <= revision:
                raise OutOfOrder(
                    f"{key.path} at revision {row.record.revision} replaces revision "
                    f"{row.previous}, "
                    f"but there is revision {there}, and the newest of all is {revision}"
                )
            revision = row.record.revision
            event = newest[key] = StoreEvent(revision, row.type, row.record, previous)
            events.append(event)
        return events

    def on_reloaded(
        self,
        loaded: Loaded,
        position: int,
        name: HeadName,
        queued: Iterable[tuple[str, int]],
        now: float,
    ) -> None:
        """The feed has a gap, and this is the state after it.  Whether our batch was taken cannot
        be told any more.
        """
        lost: list[Ticket] = []
        if self._in_flight is not None:
            last = self._in_flight.events[-1].revision
            lost = [ticket for ticket in self._waiting if ticket.until <= last]
            self._waiting = [ticket for ticket in self._waiting if ticket.until > last]
        self._abort_staged()
        self._store.replace(loaded.history, loaded.revision, loaded.compacted)
        self._caches.on_aborted()
        self._hub.on_replaced()
        # The log may be an older one, restored: no head that was seen before counts.
        self.position = self.head = position
        self.name = name
        self.reads.on_replaced()
        self.writer_queue.reset(queued, now)
        for ticket in lost:
            ticket.fail(internal("it is not known whether the write was stored"))
        self._after_progress(now)

    # Reading

    def take_read(self) -> int | None:
        """The number of a query for the log's head, if one is due now."""
        return self.reads.next_query(self.position)

    def on_head(self, number: int, head: int, name: HeadName | None, now: float) -> None:
        """The log's answer to read *number*. Raises ``OutOfOrder`` if the log is older than what it
        once told, or is another one.
        """
        if not self.reads.awaits(number):
            return
        if head < self.reads.position_at_query:
            self.reads.on_no_answer(number)
            raise OutOfOrder(
                f"the head is at {head}, and was at {self.reads.position_at_query} before"
            )
        if head == self.position and name != self.name:
            self.reads.on_no_answer(number)
            raise OutOfOrder(f"the head at {head} is {name}, and {self.name} is what is here")
        self.head = max(self.head, head)
        self.reads.on_head(number, head)
        self._after_progress(now)

    def _after_progress(self, now: float) -> None:
        self.reads.on_position(self.position)
        self._run_queue(now)

    def tick(self, now: float) -> None:
        """Time passes: the wait for queued servers may be over."""
        self._run_queue(now)

    def next_deadline(self, now: float) -> float | None:
        return self.writer_queue.next_deadline(now) if self._queue or self._has_staged else None

    def abandon_all(self, error: StatusError) -> None:
        """The process ends: all who wait are told *error*."""
        for ticket in (*self._queue, *self._waiting, *self._unconfirmed):
            ticket.fail(error)
        self._queue.clear()
        self._waiting = []
        self._unconfirmed = []

    def check(self) -> None:
        """Assert every invariant; for tests and the simulator."""
        self._store.check()
        assert self.position <= self.head, f"position {self.position} is after the head {self.head}"
        for ticket in self._waiting:
            assert self._store.revision < ticket.until <= self._store.staged_revision, (
                f"a ticket waits for {ticket}"
            )
        if self._in_flight is not None:
            assert self._in_flight.basis == self.position, (
                f"the batch rests on {self._in_flight.basis}"
            )
        if self._store.staged_revision > self._store.revision:
            assert self._has_staged or self._in_flight is not None, (
                "something is staged and nothing takes it"
            )


def _deleted(event: StoreEvent) -> bool:
    return event.type is EventType.DELETED


def _rests_on_state(error: Exception) -> bool:
    return isinstance(error, StatusError) and error.rests_on_state
