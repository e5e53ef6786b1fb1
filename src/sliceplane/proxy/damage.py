"""Rules that were gone from the kernel although this proxy did not remove them: seen, put back, told of for a while.

That a table is written anew mends it within a moment, and hides who deletes it: a firewall's reload, a second proxy, a
person.  So each time counts, and health speaks of it for ``RECENT_S`` although the node is well.
"""

from __future__ import annotations

from typing import Final

from sliceplane.kit.ip import Family
from sliceplane.kit.times import format_time

RECENT_S: Final = 600.0


class Damage:
    """Owned by one node proxy.  Times are seconds since the epoch."""

    def __init__(self) -> None:
        #: since when rules are known to be gone
        self._gone: dict[Family, float] = {}
        #: when they were put back last
        self._back: dict[Family, float] = {}
        self._times: dict[Family, int] = {}

    def on_gone(self, family: Family, now: float) -> bool:
        """True: it is news."""
        news = family not in self._gone
        self._gone.setdefault(family, now)
        return news

    def on_whole(self, family: Family, now: float) -> bool:
        """All rules of *family* were written.  True: they had been gone, and count once more."""
        if self._gone.pop(family, None) is None:
            return False
        self._back[family] = now
        self._times[family] = self._times.get(family, 0) + 1
        return True

    def times(self, family: Family) -> int:
        """How often rules of *family* were put back."""
        return self._times.get(family, 0)

    def warnings(self, now: float) -> tuple[str, ...]:
        """Sentences on what happened lately, by family."""
        return tuple(
            f"{family} rules were gone and were put back at {format_time(at)} ({self._times[family]} times since the"
            " start): look for who deletes them"
            for family, at in sorted(self._back.items())
            if now - at < RECENT_S
        )
