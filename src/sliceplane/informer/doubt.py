"""A list that lacks most of what was there is believed only when a second list has been asked for.

A server that lags, was restored from an incomplete copy, or cuts a list short answers like one whose objects were all
deleted.  Half a list that reaches a cache takes endpoints from traffic that are alive; a second list costs a request.

The second list is believed, whatever it says, unless it is older than the one that it is to confirm: that confirms
nothing, and is asked again, for at most ``CONFIRM_BOUND_S``.  Objects that were on their way out are not missed, and
small numbers mean nothing.  While no list can be had at all the cache stays as it is, as ever.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from sliceplane.api.meta import Object, is_older
from sliceplane.informer.cache import Unreadable

#: fewer objects than that are never missed
HELD_MIN: Final = 4
#: a server that starts, or lags, gets so much time before it is asked again
CONFIRM_PAUSE_S: Final = 1.0
CONFIRM_BOUND_S: Final = 10.0


class Doubts:
    """Of one reflector.  Counters only grow: lists that lacked most of what was held, and how many of them the second
    list did not bear out."""

    def __init__(self) -> None:
        self.doubted = 0
        self.refuted = 0
        #: the version in doubt, and when any list is believed
        self._open: tuple[str, float] | None = None

    def asks_again(
        self, held: Iterable[Object], items: Iterable[Object | Unreadable], version: str, now: float
    ) -> bool:
        """Whether a list of *version* with these *items* must be asked for again.  Costs O(both)."""
        missed = loses_most(held, items)
        if self._open is None:
            if missed:
                self.doubted += 1
                self._open = (version, now + CONFIRM_BOUND_S)
            return missed
        doubted, until = self._open
        if now < until and is_older(version, doubted):
            return True
        self.refuted += not missed
        self._open = None
        return False

    def forget(self) -> None:
        self._open = None


def loses_most(held: Iterable[Object], items: Iterable[Object | Unreadable]) -> bool:
    """Whether *items* lack over half of what is *held* and lasts.  Costs O(both)."""
    lasting = {kept.metadata.key for kept in held if kept.metadata.deletion_timestamp is None}
    if len(lasting) < HELD_MIN:
        return False
    listed = {item.key if isinstance(item, Unreadable) else item.metadata.key for item in items}
    return 2 * len(lasting & listed) < len(lasting)
