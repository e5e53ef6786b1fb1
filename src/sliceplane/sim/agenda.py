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
