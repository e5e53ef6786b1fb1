"""Linearizable reads from a cache: ask the log where its head is, wait until the cache has got there.

One question serves all reads that waited when it was asked.  A later one waits for the next one: an answer says
nothing about what was acknowledged after its question was put.
"""

from __future__ import annotations

from collections.abc import Callable

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
        """As ``want``, for the question that is under way."""
        self._asked.append(done)

    @property
    def wanted(self) -> bool:
        return bool(self._waiting or self._asked)

    def take(self, position: int) -> int | None:
        """The number of a question to put now, if a read waits and none is under way; the cache is at *position*."""
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
        """Who waited waits for the next question."""
        if number == self._number:
            self._in_flight = False

    def awaits(self, number: int) -> bool:
        """Whether the answer to question *number* is of use."""
        return number == self._number and self._in_flight

    def on_replaced(self) -> None:
        """The cache was made anew, maybe of an older log: what was answered before, or is being answered, says nothing
        any more.  All reads wait for the next question."""
        self._number += 1
        self._in_flight = False
        self.asked_at = 0
        self._waiting = [*(done for _, waiters in self._due for done in waiters), *self._asked, *self._waiting]
        self._due = []
        self._asked = []

    def on_position(self, position: int) -> None:
        """The cache got there."""
        reached = [done for head, waiters in self._due if head <= position for done in waiters]
        self._due = [(head, waiters) for head, waiters in self._due if head > position]
        self.served += len(reached)
        for done in reached:
            done()
