"""Long work in short steps: requests that take more than one step share the loop fairly, first by
account, then by stream.

Each iteration of the loop spends up to ``BATCH_S`` on such work, and then serves everything else.
An account with many streams gets as many steps as an account with one. A step takes a few
milliseconds at most (``xds.streams.requests.STEP``).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from time import perf_counter
from typing import Final, Generic, TypeVar

T = TypeVar("T")

#: seconds of work in one iteration of the loop; the last step may exceed it
BATCH_S: Final = 0.005


class LongWork(Generic[T]):
    """A fair queue of long work.  Owned by one server.  *step* executes one step of an item, and
    returns True if more work remains.
    """

    def __init__(self, step: Callable[[T], bool]) -> None:
        self._step = step
        self._items: dict[str, dict[T, None]] = {}
        self._spent_s = 0.0
        self._is_scheduled = False

    @property
    def is_spent(self) -> bool:
        """Returns True if the time of this iteration is spent: further work goes to ``add``."""
        return self._spent_s >= BATCH_S

    def spend(self, seconds: float) -> None:
        """Counts work that was executed outside the queue."""
        self._spent_s += seconds
        self._schedule()

    def add(self, account: str, item: T) -> None:
        """Queues *item*.  Idempotent."""
        self._items.setdefault(account, {})[item] = None
        self._schedule()

    def discard(self, account: str, item: T) -> None:
        """Removes *item* from the queue.  Idempotent."""
        items = self._items.get(account)
        if items is not None:
            items.pop(item, None)
            if not items:
                del self._items[account]

    def _schedule(self) -> None:
        if not self._is_scheduled:
            self._is_scheduled = True
            asyncio.get_running_loop().call_soon(self._run_batch)

    def _run_batch(self) -> None:
        self._is_scheduled = False
        self._spent_s = 0.0
        began = perf_counter()
        while self._items and perf_counter() - began < BATCH_S:
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
