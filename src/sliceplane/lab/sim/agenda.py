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

Deed = Callable[[], None]
#: lines kept for ``Trace.about`` when there is no sink
KEPT_LINES_MAX: Final = 20_000


class Agenda:
    """Virtual time, and the actions scheduled for it. Owned by one simulation; all its parts may
    schedule actions.
    """

    def __init__(self, now: float) -> None:
        #: seconds since the epoch on the controllers' clock
        self.now = now
        self._deeds: list[tuple[float, int, Deed]] = []
        self._asked = 0
        #: number of executed actions
        self.done = 0

    def after(self, delay_s: float, deed: Deed) -> None:
        assert delay_s >= 0, f"{delay_s} s ago"
        self.at(self.now + delay_s, deed)

    def at(self, when: float, deed: Deed) -> None:
        """Schedules an action for exactly *when* (next, if that has passed), so actions for one
        moment keep their order.
        """
        self._asked += 1
        heapq.heappush(self._deeds, (when, self._asked, deed))

    def run_until(self, moment: float) -> None:
        """Runs all actions that are due up to *moment*, which is the time afterwards."""
        deeds = self._deeds
        while deeds and deeds[0][0] <= moment:
            when, _, deed = heapq.heappop(deeds)
            self.now = max(self.now, when)
            self.done += 1
            deed()
        self.now = moment


class Alarm:
    """Calls *ring* at the earliest moment that was set; *ring*, or a change of the next moment,
    sets it again. Each call goes through *receive*, so a paused process gets it later.
    """

    def __init__(
        self, agenda: Agenda, ring: Deed, receive: Callable[[Deed], None] = lambda deed: deed()
    ) -> None:
        self._agenda = agenda
        self._ring = ring
        self._receive = receive
        self._due: float | None = None

    def set(self, due: float | None) -> None:
        """Sets the alarm to *due* at the latest; ``None`` sets nothing."""
        if due is not None and (self._due is None or due < self._due):
            self._due = due
            self._agenda.at(due, lambda: self._receive(lambda: self._come(due)))

    def _come(self, due: float) -> None:
        if self._due == due:  # else an earlier one was set meanwhile
            self._due = None
            self._ring()


class Trace:
    """The trace. Owned by one simulation; *sink* gets every line, with its newline."""

    def __init__(self, began: float, sink: Callable[[str], object] | None = None) -> None:
        self._began = began
        self._sink = sink
        self._hash = hashlib.blake2b(digest_size=16)
        self._kept: deque[str] = deque(maxlen=KEPT_LINES_MAX)
        self.lines = 0

    def note(
        self, now: float, actor: str, verb: str, what: str, result: str = "", *, revision: int = 0
    ) -> None:
        at = f"{now - self._began:12.6f}"
        line = f"{at} {actor} {verb} {what} {result or '-'} {revision or '-'}"
        self.lines += 1
        self._hash.update(line.encode())
        self._hash.update(b"\n")
        self._kept.append(line)
        if self._sink is not None:
            self._sink(line + "\n")

    @property
    def digest(self) -> str:
        return self._hash.hexdigest()

    def about(self, subject: str, most: int = 20) -> tuple[str, ...]:
        """Returns the newest *most* lines that name *subject*; the newest of all lines if none
        does.
        """
        lines = [line for line in self._kept if subject in line] if subject else []
        return tuple((lines or list(self._kept))[-most:])
