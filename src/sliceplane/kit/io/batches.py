"""Work that thousands of connections have at the same moment, a few at a time, so that others run
in between.

An event for thousands of watches makes as many writes, each of which encrypts and sends; a client
that goes cuts as many connections. Were all of that done in one iteration of the loop, no request
would be read meanwhile.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

#: calls in one iteration of the loop
CALLS_PER_BATCH = 16


class BatchQueue:
    """One queue of one loop."""

    def __init__(self, calls: int = CALLS_PER_BATCH) -> None:
        """*calls*: the number of calls in one iteration."""
        self._calls = calls
        self._waiting: deque[Callable[[], None]] = deque()
        self._scheduled = False

    def add(self, call: Callable[[], None]) -> None:
        """*call* is made once, after those that wait already."""
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
            # Whatever became of one call, the others have their turn.
            if self._waiting and not self._scheduled:
                self._schedule()
