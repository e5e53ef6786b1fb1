"""The choice among several parents: one is in use, until it fails.

The parents are servers of the same cluster, or relays in front of them, so their versions mean the
same. Everything goes to one of them. When that fails, the next one is in use from then on; there is
no way back but the next failure. Relays begin the round at a sibling by chance, and informers wait
for a jittered back-off, so that the children of a lost parent spread over its siblings and over time.

A sibling may be behind, or remember less. One that says 410 to a watch is no reason to list while
another may have the version: all of them are asked once. A watch that moves must not meet a history
that went back; ``io.upstream`` asks the sibling for its newest version first.
"""

from __future__ import annotations

from sliceplane.api.requests import Selection
from sliceplane.kit.rng import Rng


class Siblings:
    """Owned by one relay.  Parents are numbered, the first in use is 0."""

    def __init__(self, count: int, rng: Rng) -> None:
        self._order = list(range(count))
        # Fisher-Yates, below the first
        for last in range(count - 1, 1, -1):
            other = 1 + rng.below(last)
            self._order[last], self._order[other] = self._order[other], self._order[last]
        self._place = 0
        self.moves = 0
        #: the parent that each watch was opened at last
        self._opened: dict[Selection, int] = {}
        #: the parents that lack the version of a watch
        self._expired: dict[Selection, set[int]] = {}

    @property
    def current(self) -> int:
        return self._order[self._place]

    def on_failure(self, number: int) -> bool:
        """A request to parent *number* failed.  Returns True if another one is in use now."""
        if number != self.current or len(self._order) == 1:
            return False  # an answer that is late: we have moved
        self._place = (self._place + 1) % len(self._order)
        self.moves += 1
        return True

    def moves_watch(self, selection: Selection, number: int) -> bool:
        """Returns True if the last watch of *selection* was opened at another parent."""
        return self._opened.get(selection, number) != number

    def on_opened(self, selection: Selection, number: int) -> None:
        """Parent *number* accepted a watch of *selection*."""
        self._opened[selection] = number

    def on_expired(self, selection: Selection, number: int) -> bool:
        """Parent *number* has lost the version of the watch.  Returns True if others are to be
        asked before a list.
        """
        lacking = self._expired.setdefault(selection, set())
        lacking.add(number)
        if len(lacking) < len(self._order):
            self.on_failure(number)
            return True
        del self._expired[selection]
        return False

    def on_news(self, selection: Selection) -> None:
        """A watch of *selection* goes on."""
        self._expired.pop(selection, None)
