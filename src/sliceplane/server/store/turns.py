"""Servers that write to one log: whose turn it is, so that none starves, and how far a cache must
be for a read.

The winner of a race knows the newest state first, and would win the next race too. So a server
whose batch was refused *asks for a turn*: it puts a key of its own, and the order in which the log
took these keys is the order of turns. All servers let the oldest of them go first; a batch takes
its own server's key away in the same transaction.

Asking costs a refused batch, so servers that stay busy are *expected* instead. A batch says where
its server was in the log when it had work for it. If that was before our first batch after its last
one, it was ready at the time when that one was taken, and so it will be after our next one: we let
it go first without being asked. With two busy servers batches alternate, none is refused, and
nothing is executed that would have to be redone.

Both are a courtesy, never a lock. No server waits longer than ``PATIENCE_S`` for one turn, and who
lost patience takes the key away with its next batch; for a server that is expected it waits about
twice as long as the others took so far, and does so once. A server that died, hangs or has nothing
more to do costs the others that time, once.

Linearizable reads from a cache (``ReadIndex``): ask the log where its head is, wait until the cache
has got there. One question serves all reads that waited when it was asked. A later one waits for
the next one: an answer says nothing about what was acknowledged after its question was put.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final, NamedTuple

#: time for another server to see the newest state, redo its work, and have it stored
PATIENCE_S: Final = 0.25
#: so long a server is waited for that did not ask and is expected
EXPECTED_S_MIN: Final = 0.002
EXPECTED_S_MAX: Final = 0.025
#: who wrote nothing while we wrote so many batches is no rival
FORGOTTEN_AFTER_BATCHES: Final = 16


class _Turn(NamedTuple):
    #: where the log has it; older ones go first
    position: int
    seen_at: float


class _Writer(NamedTuple):
    #: of its newest batch
    position: int
    #: of the first batch of ours after that; 0: there is none
    followed_by: int
    #: of ours, since then
    batches: int
    #: it had work by then, the last time
    expected: bool


class Turns:
    """Owned by one ``Replica``."""

    def __init__(self, own: str) -> None:
        self._own = own
        self._others: dict[str, _Turn] = {}
        #: where our key is; 0: there is none that we know of
        self.own_position = 0
        #: servers that wrote lately
        self._writers: dict[str, _Writer] = {}
        #: our newest batch, and until when those who are expected go first after it
        self._own_batch = 0
        self._expected_until = 0.0
        self._newest_batch_at = 0.0
        #: what a server that is ready needs from the newest batch to its own
        self._pace_s = EXPECTED_S_MAX

    def on_asked(self, server: str, position: int, now: float) -> None:
        if server == self._own:
            self.own_position = position
        else:
            self._others[server] = _Turn(position, now)

    def on_gone(self, server: str) -> None:
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

    def reset(self, asked: Iterable[tuple[str, int]], now: float) -> None:
        self._others.clear()
        self._writers.clear()
        self._own_batch = 0
        self._expected_until = 0.0
        self.on_gone(self._own)
        for server, position in asked:
            self.on_asked(server, position, now)

    def next_deadline(self, now: float) -> float | None:
        """Until when another server goes first; ``None``: it is ours."""
        if not self._others and now >= self._expected_until:
            return None
        before_us = [
            turn.seen_at + PATIENCE_S
            for turn in self._others.values()
            if now < turn.seen_at + PATIENCE_S and not 0 < self.own_position < turn.position
        ]
        if now < self._expected_until and any(
            writer.expected and writer.position < self._own_batch
            for writer in self._writers.values()
        ):
            before_us.append(self._expected_until)
        return max(before_us, default=None)

    def overdue(self, now: float) -> tuple[str, ...]:
        """Servers whose keys the next batch takes away."""
        return tuple(
            sorted(name for name, turn in self._others.items() if now >= turn.seen_at + PATIENCE_S)
        )


Done = Callable[[], None]


class ReadIndex:
    """Owned by one ``Replica``."""

    def __init__(self) -> None:
        self._number = 0
        self._waiting: list[Done] = []
        self._asked: list[Done] = []
        self._in_flight = False
        #: where the cache was when the last question was put: the answer cannot be less
        self.asked_at = 0
        #: (head, whom it lets go on)
        self._due: list[tuple[int, list[Done]]] = []
        # Counters, for metrics.
        self.questions = 0
        self.served = 0

    def want(self, done: Done) -> None:
        """*done* is called when the cache is at least as new as the log is now."""
        self._waiting.append(done)

    def also(self, done: Done) -> None:
        """Registers *done* as ``want`` does, for the question that is under way."""
        self._asked.append(done)

    @property
    def wanted(self) -> bool:
        return bool(self._waiting or self._asked)

    def take(self, position: int) -> int | None:
        """The number of a question to put now, if a read waits and none is under way; the cache is
        at *position*.
        """
        if self._in_flight or not self.wanted:
            return None
        self._number += 1
        self.asked_at = position
        self.questions += 1
        self._asked += self._waiting
        self._waiting = []
        self._in_flight = True
        return self._number

    def on_head(self, number: int, head: int) -> None:
        if self.awaits(number):
            self._in_flight = False
            self._due.append((head, self._asked))
            self._asked = []

    def on_no_answer(self, number: int) -> None:
        """Leaves its reads waiting for the next question."""
        if number == self._number:
            self._in_flight = False

    def awaits(self, number: int) -> bool:
        """Returns True if the answer to question *number* is of use."""
        return number == self._number and self._in_flight

    def on_replaced(self) -> None:
        """The cache was made anew, maybe of an older log: what was answered before, or is being
        answered, says nothing any more. All reads wait for the next question.
        """
        self._number += 1
        self._in_flight = False
        self.asked_at = 0
        self._waiting = [
            *(done for _, waiters in self._due for done in waiters),
            *self._asked,
            *self._waiting,
        ]
        self._due = []
        self._asked = []

    def on_position(self, position: int) -> None:
        """The cache got there."""
        reached = [done for head, waiters in self._due if head <= position for done in waiters]
        self._due = [(head, waiters) for head, waiters in self._due if head > position]
        self.served += len(reached)
        for done in reached:
            done()
