"""Calls that several callers share while they are under way."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any, TypeVar

K = TypeVar("K")
V = TypeVar("V")


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

    def _end(self, key: K, task: asyncio.Task[V]) -> None:
        if self.get(key) is task:
            del self[key]
        if not task.cancelled():
            task.exception()  # retrieved here: all that await the task may have ended
