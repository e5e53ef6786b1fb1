"""Tasks: the last steps of one, and calls that several callers share.

Last steps are bounded in time, and still completed. Up to Python 3.11.2 (Debian 12's)
``asyncio.timeout`` in a cancelled task confuses its own expiry with that cancellation
(python/cpython#102780): it raises ``CancelledError`` instead of ``TimeoutError``. The following
steps are then skipped, for example the end of a child process. Steps in a ``finally`` use
``ends_within`` instead, whose work is a separate task that was not cancelled.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any, TypeVar

K = TypeVar("K")
V = TypeVar("V")


async def ends_within(seconds: float, work: Coroutine[Any, Any, object]) -> bool:
    """Returns True if *work* ended in time, and cancels it otherwise. Raises the exception of
    *work*.
    """
    task = asyncio.create_task(work)
    try:
        await asyncio.wait((task,), timeout=seconds)
    finally:
        in_time = task.done()
        task.cancel()
        await asyncio.wait((task,))
    if in_time:
        task.result()
    return in_time


class SharedCalls(dict[K, asyncio.Task[V]]):
    """Tasks by key, without those that have ended.  One loop.

    Callers await a task through ``asyncio.shield``, since others may await it, too. A task that is
    removed goes on for those who have it.
    """

    def start(self, key: K, call: Callable[[], Coroutine[Any, Any, V]]) -> asyncio.Task[V]:
        """Returns the task of *key*, which *call* begins if there is none."""
        if key not in self:
            self[key] = asyncio.create_task(call())
            self[key].add_done_callback(partial(self._end, key))
        return self[key]

    def cancel(self) -> None:
        """Cancels all of them: their owner ends."""
        for task in self.values():
            task.cancel()

    def _end(self, key: K, task: asyncio.Task[V]) -> None:
        if self.get(key) is task:
            del self[key]
        if not task.cancelled():
            task.exception()  # retrieved here: all that await the task may have ended
