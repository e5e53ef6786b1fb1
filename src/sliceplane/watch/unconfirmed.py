"""A list that lacks most of what was there is believed only when a second list has been asked for.

A server that lags, was restored from an incomplete copy, or cuts a list short answers like one
whose objects were all deleted. Half a list that reaches a cache takes endpoints from traffic that
are alive; a second list costs a request.

The second list is believed, whatever it says, unless it is older than the one that it is to
confirm: that confirms nothing, and is asked again, for at most ``CONFIRM_BOUND_S``. Objects that
were on their way out are not missed, and small numbers mean nothing. While no list can be had at
all the cache stays as it is, as ever.

Who only *reads* what a controller makes waits longer where all of it is gone: a server that was
restored from a copy without EndpointSlices has them again when the controller, which confirms as
well, has written them. So that reader asks again until the bound.

A slice counts as many times as it has endpoints: a Service of a hundred Pods is one object.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from sliceplane.api.discovery import EndpointSlice
from sliceplane.api.meta import Object, is_older
from sliceplane.watch.cache import Unreadable

#: with fewer cached objects, or endpoints, every list is believed
CACHED_MIN: Final = 4
#: a server that starts, or lags, gets so much time before it is asked again
CONFIRM_PAUSE_S: Final = 1.0
CONFIRM_BOUND_S: Final = 10.0


class UnconfirmedRemovals:
    """The unconfirmed removals of one reflector. Counters only grow: lists that lacked most of the
    cached objects, and how many of them the second list did not bear out. *only_reads*: what
    another program makes, and makes again.
    """

    def __init__(self, *, only_reads: bool = False) -> None:
        self._only_reads = only_reads
        self.suspected = 0
        self.refuted = 0
        #: the version of an unconfirmed list, and when any list is believed
        self._open: tuple[str, float] | None = None

    def needs_second_list(
        self,
        cached: Iterable[Object],
        items: Iterable[Object | Unreadable],
        version: str,
        now: float,
    ) -> bool:
        """Returns True if a list of *version* with these *items* must be requested again. Costs
        O(both).
        """
        kept = part_kept(cached, items)
        if self._open is None:
            if kept < 0.5:
                self.suspected += 1
                self._open = (version, now + CONFIRM_BOUND_S)
            return kept < 0.5
        suspected, until = self._open
        if now < until and (is_older(version, suspected) or (self._only_reads and not kept)):
            return True
        self.refuted += kept >= 0.5
        self._open = None
        return False

    def forget(self) -> None:
        self._open = None


def part_kept(cached: Iterable[Object], items: Iterable[Object | Unreadable]) -> float:
    """Returns the part of the lasting objects in *cached* that *items* contain, too; 1 where they
    are too few to be missed. Costs O(both).
    """
    lasting = {
        kept.metadata.key: _weight(kept)
        for kept in cached
        if kept.metadata.deletion_timestamp is None
    }
    total = sum(lasting.values())
    if total < CACHED_MIN:
        return 1.0
    listed = {item.key if isinstance(item, Unreadable) else item.metadata.key for item in items}
    return sum(weight for key, weight in lasting.items() if key in listed) / total


def _weight(kept: Object) -> int:
    return len(kept.endpoints or ()) if isinstance(kept, EndpointSlice) else 1
