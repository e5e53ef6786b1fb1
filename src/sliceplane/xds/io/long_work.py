"""Long work in short steps: streams with requests that take longer than a step have turns, by
account first.

A turn of the loop gives ``TURN_S`` to such work, a step at a time, and then lets everything else on
the loop go on. An account with many streams has as many steps as an account with one. The core's
steps take a millisecond or a few (``xds.streams.requests.STEP``).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from time import perf_counter
from typing import Final, Generic, TypeVar

T = TypeVar("T")

#: seconds of a turn of the loop; the last step may exceed it
TURN_S: Final = 0.005


class LongWork(Generic[T]):
    """Owned by one server.  *step* does one step of an item, and returns True if there is more to
    do.
    """

    def __init__(self, step: Callable[[T], bool]) -> None:
        self._step = step
        self._items: dict[str, dict[T, None]] = {}
        self._spent_s = 0.0
        self._is_scheduled = False

    @property
    def is_over(self) -> bool:
        """Enough was done in this turn of the loop: further work is for ``add``."""
        return self._spent_s >= TURN_S

    def spend(self, seconds: float) -> None:
        """Counts work that was done at once."""
        self._spent_s += seconds
        self._schedule()

    def add(self, account: str, item: T) -> None:
        """Idempotent."""
        self._items.setdefault(account, {})[item] = None
        self._schedule()

    def discard(self, account: str, item: T) -> None:
        """Idempotent."""
        items = self._items.get(account)
        if items is not None:
            items.pop(item, None)
            if not items:
                del self._items[account]

    def _schedule(self) -> None:
        if not self._is_scheduled:
            self._is_scheduled = True
            asyncio.get_running_loop().call_soon(self._turn)

    def _turn(self) -> None:
        self._is_scheduled = False
        self._spent_s = 0.0
        began = perf_counter()
        while self._items and perf_counter() - began < TURN_S:
            account = next(iter(self._items))
            items = self._items.pop(account)
            item = next(iter(items))
            del items[item]
            if items:
                self._items[account] = items  # behind all others
            if self._step(item):
                self.add(account, item)
        if self._items:
            self._schedule()
