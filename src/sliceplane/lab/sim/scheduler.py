"""Scheduled actions in the order of virtual time, and the trace of past ones.

Actions for the same moment run in the order in which they were scheduled. The trace has one line
for each event: virtual time, actor, verb, object, result, revision. Two runs are equal exactly if
the digests of their traces are.
"""

from __future__ import annotations

import hashlib
import heapq
from collections import deque
from collections.abc import Callable
from typing import Final

Callback = Callable[[], None]
#: lines kept for ``Trace.about`` when there is no sink
KEPT_LINES_MAX: Final = 20_000


class Scheduler:
    """Virtual time, and the actions scheduled for it. Owned by one simulation; all its parts may
    schedule actions.
    """

    def __init__(self, now: float) -> None:
        #: seconds since the epoch on the controllers' clock
        self.now = now
        self._queue: list[tuple[float, int, Callback]] = []
        self._sequence = 0
        #: number of executed actions
        self.executed = 0

    def after(self, delay_s: float, callback: Callback) -> None:
        assert delay_s >= 0, f"{delay_s} s ago"
        self.at(self.now + delay_s, callback)

    def at(self, when: float, callback: Callback) -> None:
        """Schedules an action for exactly *when* (next, if that has passed), so actions for one
        moment keep their order.
        """
        self._sequence += 1
        heapq.heappush(self._queue, (when, self._sequence, callback))

    def run_until(self, moment: float) -> None:
        """Runs all actions that are due up to *moment*, which is the time afterwards."""
        callbacks = self._queue
        while callbacks and callbacks[0][0] <= moment:
            when, _, callback = heapq.heappop(callbacks)
            self.now = max(self.now, when)
            self.executed += 1
            callback()
        self.now = moment


class Alarm:
    """Calls *ring* at the earliest moment that was set; *ring*, or a change of the next moment,
    sets it again. Each call goes through *receive*, so a paused process gets it later.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        ring: Callback,
        receive: Callable[[Callback], None] = lambda callback: callback(),
    ) -> None:
        self._scheduler = scheduler
        self._ring = ring
        self._receive = receive
        self._due: float | None = None

    def set(self, due: float | None) -> None:
        """Sets the alarm to *due* at the latest; ``None`` sets nothing."""
        if due is not None and (self._due is None or due < self._due):
            self._due = due
            self._scheduler.at(due, lambda: self._receive(lambda: self._fire(due)))

    def _fire(self, due: float) -> None:
        if self._due == due:  # else an earlier one was set meanwhile
            self._due = None
            self._ring()


class Trace:
    """The trace. Owned by one simulation; *sink* gets every line, with its newline."""

    def __init__(self, began: float, sink: Callable[[str], object] | None = None) -> None:
        self._began = began
        self._sink = sink
        self._hash = hashlib.blake2b(digest_size=16)
        self._recent: deque[str] = deque(maxlen=KEPT_LINES_MAX)
        self.lines = 0

    def note(
        self, now: float, actor: str, verb: str, target: str, result: str = "", *, revision: int = 0
    ) -> None:
        at = f"{now - self._began:12.6f}"
        line = f"{at} {actor} {verb} {target} {result or '-'} {revision or '-'}"
        self.lines += 1
        self._hash.update(line.encode())
        self._hash.update(b"\n")
        self._recent.append(line)
        if self._sink is not None:
            self._sink(line + "\n")

    @property
    def digest(self) -> str:
        return self._hash.hexdigest()

    def about(self, subject: str, most: int = 20) -> tuple[str, ...]:
        """Returns the newest *most* lines that name *subject*; the newest of all lines if none
        does.
        """
        lines = [line for line in self._recent if subject in line] if subject else []
        return tuple((lines or list(self._recent))[-most:])
