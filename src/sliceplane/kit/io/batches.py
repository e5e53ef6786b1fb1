"""Work of thousands of connections at the same moment, executed in batches so that other tasks run
in between.

An event for thousands of watches causes as many writes, each of which encrypts and sends; a client
that disconnects may cut as many connections. If one iteration of the loop did all of that, no
request would be read in that time.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

#: calls in one iteration of the loop
CALLS_PER_BATCH = 16


class BatchQueue:
    """A queue of calls of one event loop."""

    def __init__(self, calls: int = CALLS_PER_BATCH) -> None:
        """*calls*: the number of calls in one iteration."""
        self._calls = calls
        self._waiting: deque[Callable[[], None]] = deque()
        self._scheduled = False

    def add(self, call: Callable[[], None]) -> None:
        """Queues *call*, which is executed once, after those that wait already."""
        self._waiting.append(call)
        if not self._scheduled:
            self._schedule()

    def _schedule(self) -> None:
        self._scheduled = True
        asyncio.get_running_loop().call_soon(self._run)

    def _run(self) -> None:
        self._scheduled = False
        try:
            for _ in range(min(len(self._waiting), self._calls)):
                self._waiting.popleft()()
        finally:
            # The other calls run even if one raised.
            if self._waiting and not self._scheduled:
                self._schedule()
