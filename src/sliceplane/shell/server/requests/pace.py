"""Long work in the loop, a slice at a time: between two slices everything else that is ready has its turn.

One slice in each turn of the loop, whosever it is: four hundred long lists take longer, each and together, and an
ordinary request waits for one slice and not for four hundred.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from typing import Final

#: a slice ends at the first good place after this
SLICE_S: Final = 0.005


class Pace:
    """One for all that is cut into slices; those who wait have theirs in the order in which they came."""

    def __init__(self) -> None:
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._scheduled = False

    def slice(self) -> Slice:
        """The first slice of something, which begins at once."""
        return Slice(self)

    async def turn(self) -> None:
        """Wait for the next slice."""
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(turn)
        self._schedule()
        await turn

    def _schedule(self) -> None:
        if not self._scheduled:
            self._scheduled = True
            asyncio.get_running_loop().call_soon(self._next)

    def _next(self) -> None:
        self._scheduled = False
        while self._waiting:
            turn = self._waiting.popleft()
            if not turn.done():
                turn.set_result(None)
                break
        if self._waiting:
            self._schedule()


class Slice:
    """The slices of one piece of work."""

    def __init__(self, pace: Pace) -> None:
        self._pace = pace
        self._ends = time.perf_counter() + SLICE_S

    async def over(self) -> None:
        """Ask at every good place: if the time is over, the next slice begins when this returns."""
        if time.perf_counter() >= self._ends:
            await self._pace.turn()
            self._ends = time.perf_counter() + SLICE_S
