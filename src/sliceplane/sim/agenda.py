"""What is going to happen, in the order of virtual time; what was asked for first comes first among equals."""

from __future__ import annotations

import heapq
from collections.abc import Callable

Deed = Callable[[], None]


class Agenda:
    """Virtual time, and the deeds that wait for it.  Owned by one simulation; everybody in it may add deeds."""

    def __init__(self, now: float) -> None:
        #: seconds since the epoch, as controllers see it
        self.now = now
        self._deeds: list[tuple[float, int, Deed]] = []
        self._asked = 0
        #: deeds done so far
        self.done = 0

    def after(self, delay_s: float, deed: Deed) -> None:
        assert delay_s >= 0, f"{delay_s} s ago"
        self.at(self.now + delay_s, deed)

    def at(self, when: float, deed: Deed) -> None:
        """At *when* exactly (what has passed: next), so that deeds for one moment keep their order."""
        self._asked += 1
        heapq.heappush(self._deeds, (when, self._asked, deed))

    def run_until(self, moment: float) -> None:
        """Do everything that is due up to *moment*, which is then."""
        deeds = self._deeds
        while deeds and deeds[0][0] <= moment:
            when, _, deed = heapq.heappop(deeds)
            self.now = max(self.now, when)
            self.done += 1
            deed()
        self.now = moment


class Alarm:
    """Calls *ring* at the earliest of the moments that it was set to; *ring* sets it again, or whatever changes the
    next moment does.  Each ring goes through *receive*, by which somebody who stands still hears of it later."""

    def __init__(self, agenda: Agenda, ring: Deed, receive: Callable[[Deed], None] = lambda deed: deed()) -> None:
        self._agenda = agenda
        self._ring = ring
        self._receive = receive
        self._due: float | None = None

    def set(self, due: float | None) -> None:
        """At *due* at the latest; ``None`` sets nothing."""
        if due is not None and (self._due is None or due < self._due):
            self._due = due
            self._agenda.at(due, lambda: self._receive(lambda: self._come(due)))

    def _come(self, due: float) -> None:
        if self._due == due:  # else an earlier one was set meanwhile
            self._due = None
            self._ring()
