"""The order in which servers write to one log, so that none starves, and the log position that a
cache must reach for a read.

The winner of a race observes the newest state first, and would win the next race too. So a server
whose batch was refused *queues*: it puts a key of its own, and the log's order of these keys is
the order of the queue. All servers let the first of the queue write before them; a batch deletes
its own server's key in the same transaction.

Queueing costs a refused batch, so servers that stay busy are *expected* instead. A batch records
the log position of its server when the server had work for it. If that was before our first batch
after its last one, the server was ready when that batch was taken, and will be ready after our next
one: we let it write first although it is not queued. With two busy servers batches alternate, none
is refused, and no step runs twice.

Both are a courtesy, never a lock. No server waits longer than ``PATIENCE_S`` for a queued one; then
its next batch deletes that key. For an expected server it waits about twice as long as the others
took so far, once. A server that died, hangs or has nothing more to do costs the others that time,
once.

Linearizable reads from a cache (``ReadIndex``): query the log's head, then wait until the cache has
reached it. One query serves all reads that waited when it was sent. A later read waits for the next
query: an answer does not cover what was acknowledged after its query was sent.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final, NamedTuple

#: time for another server to see the newest state, redo its work, and have it stored
PATIENCE_S: Final = 0.25
#: bounds of the wait for an expected server that is not queued
EXPECTED_S_MIN: Final = 0.002
EXPECTED_S_MAX: Final = 0.025
#: a server that wrote nothing while we wrote so many batches is no longer expected
FORGOTTEN_AFTER_BATCHES: Final = 16


class _QueuedWriter(NamedTuple):
    #: the log position of its key; lower ones write first
    position: int
    queued_at: float


class _Writer(NamedTuple):
    #: of its newest batch
    position: int
    #: of the first batch of ours after that; 0: there is none
    followed_by: int
    #: of ours, since then
    batches: int
    #: it had work by then, the last time
    expected: bool


class WriterQueue:
    """Owned by one ``Replica``."""

    def __init__(self, own: str) -> None:
        self._own = own
        self._others: dict[str, _QueuedWriter] = {}
        #: the log position of our key; 0: we observed none
        self.own_position = 0
        #: servers that wrote lately
        self._writers: dict[str, _Writer] = {}
        #: our newest batch, and until when those who are expected go first after it
        self._own_batch = 0
        self._expected_until = 0.0
        self._newest_batch_at = 0.0
        #: what a server that is ready needs from the newest batch to its own
        self._pace_s = EXPECTED_S_MAX

    def on_queued(self, server: str, position: int, now: float) -> None:
        if server == self._own:
            self.own_position = position
        else:
            self._others[server] = _QueuedWriter(position, now)

    def on_dequeued(self, server: str) -> None:
        if server == self._own:
            self.own_position = 0
        else:
            self._others.pop(server, None)

    def on_own_batch(self, position: int, now: float) -> None:
        """The log has a batch of ours, the newest."""
        writers: dict[str, _Writer] = {}
        for server, writer in self._writers.items():
            if writer.batches < FORGOTTEN_AFTER_BATCHES:
                came = writer.position > self._own_batch
                followed_by = writer.followed_by or position
                expected = writer.expected and came
                writers[server] = _Writer(
                    writer.position, followed_by, writer.batches + 1, expected
                )
        self._writers = writers
        self._own_batch = position
        patience_s = min(2 * self._pace_s + EXPECTED_S_MIN, EXPECTED_S_MAX)
        self._expected_until = now + patience_s * sum(
            writer.expected for writer in writers.values()
        )
        self._newest_batch_at = now

    def on_batch(self, server: str, position: int, since: int, now: float) -> None:
        """The log has a batch of another server, the newest; *since* is where that server was when
        it had work.
        """
        before = self._writers.get(server)
        expected = False
        if before is not None:
            expected = 0 < since < before.followed_by if before.followed_by else before.expected
            if expected:
                self._pace_s += (
                    min(now - self._newest_batch_at, EXPECTED_S_MAX) - self._pace_s
                ) / 4
        self._writers[server] = _Writer(position, 0, 0, expected)
        self._newest_batch_at = now

    @property
    def alternates(self) -> bool:
        """Another server goes first after our next batch."""
        return any(writer.expected for writer in self._writers.values())

    def reset(self, queued: Iterable[tuple[str, int]], now: float) -> None:
        self._others.clear()
        self._writers.clear()
        self._own_batch = 0
        self._expected_until = 0.0
        self.on_dequeued(self._own)
        for server, position in queued:
            self.on_queued(server, position, now)

    def next_deadline(self, now: float) -> float | None:
        """The time until which another server writes first; ``None``: this one may write."""
        if not self._others and now >= self._expected_until:
            return None
        before_us = [
            writer.queued_at + PATIENCE_S
            for writer in self._others.values()
            if now < writer.queued_at + PATIENCE_S and not 0 < self.own_position < writer.position
        ]
        if now < self._expected_until and any(
            writer.expected and writer.position < self._own_batch
            for writer in self._writers.values()
        ):
            before_us.append(self._expected_until)
        return max(before_us, default=None)

    def overdue(self, now: float) -> tuple[str, ...]:
        """Servers whose keys the next batch deletes."""
        return tuple(
            sorted(
                name
                for name, writer in self._others.items()
                if now >= writer.queued_at + PATIENCE_S
            )
        )


Done = Callable[[], None]


class ReadIndex:
    """Owned by one ``Replica``."""

    def __init__(self) -> None:
        self._number = 0
        self._waiting: list[Done] = []
        self._querying: list[Done] = []
        self._in_flight = False
        #: the cache's position when the last query was sent: a lower bound of its answer
        self.position_at_query = 0
        #: (head, callbacks of the reads that wait for the cache to reach it)
        self._due: list[tuple[int, list[Done]]] = []
        # Counters, for metrics.
        self.queries = 0
        self.served = 0

    def add(self, done: Done) -> None:
        """*done* is called when the cache is at least as new as the log is now."""
        self._waiting.append(done)

    def add_to_current(self, done: Done) -> None:
        """Registers *done* as ``add`` does, for the query that is under way."""
        self._querying.append(done)

    @property
    def has_waiting(self) -> bool:
        return bool(self._waiting or self._querying)

    def next_query(self, position: int) -> int | None:
        """Returns the number of a query to send now, if a read waits and no query is under way;
        the cache is at *position*.
        """
        if self._in_flight or not self.has_waiting:
            return None
        self._number += 1
        self.position_at_query = position
        self.queries += 1
        self._querying += self._waiting
        self._waiting = []
        self._in_flight = True
        return self._number

    def on_head(self, number: int, head: int) -> None:
        if self.awaits(number):
            self._in_flight = False
            self._due.append((head, self._querying))
            self._querying = []

    def on_no_answer(self, number: int) -> None:
        """Leaves its reads waiting for the next query."""
        if number == self._number:
            self._in_flight = False

    def awaits(self, number: int) -> bool:
        """Returns True if the answer to query *number* is of use."""
        return number == self._number and self._in_flight

    def on_replaced(self) -> None:
        """The cache was loaded anew, maybe from an older log: earlier answers, and the one under
        way, no longer count. All reads wait for the next query.
        """
        self._number += 1
        self._in_flight = False
        self.position_at_query = 0
        self._waiting = [
            *(done for _, waiters in self._due for done in waiters),
            *self._querying,
            *self._waiting,
        ]
        self._due = []
        self._querying = []

    def on_position(self, position: int) -> None:
        """The cache reached *position*."""
        reached = [done for head, waiters in self._due if head <= position for done in waiters]
        self._due = [(head, waiters) for head, waiters in self._due if head > position]
        self.served += len(reached)
        for done in reached:
            done()
