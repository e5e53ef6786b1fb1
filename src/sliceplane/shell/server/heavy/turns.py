"""Who is next: one heavy request at a time for a user, some together, users in turn, and an end to how many wait.

A user who sends ten waits for nine; another who sends one waits for at most one of each that came before.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from sliceplane.kit.metrics import Metrics
from sliceplane.shell.server.requests.limits import TooMany


class HeavyTurns:
    """Owned by the server's ``Heavy``; used in one loop."""

    def __init__(self, *, together: int, waiting_of_user_max: int, waiting_max: int) -> None:
        self._free = together
        self._waiting_of_user_max = waiting_of_user_max
        self._waiting_max = waiting_max
        #: users with work under way
        self._busy: set[str] = set()
        #: by user, in the order in which the users' turns come
        self._queues: dict[str, deque[asyncio.Future[None]]] = {}
        self.waiting = 0
        self.metrics = Metrics()
        self.metrics.computed(
            "gauge",
            "sliceplane_heavy_running_requests",
            "Worked on outside of the event loop.",
            lambda: len(self._busy),
        )
        self.metrics.computed("gauge", "sliceplane_heavy_waiting_requests", "Waiting for that.", lambda: self.waiting)
        self.refused = self.metrics.counter(
            "sliceplane_heavy_refused_requests_total", "Answered with 429: too many wait."
        )

    @asynccontextmanager
    async def admit(self, user: str) -> AsyncIterator[None]:
        """Wait for a turn, and have it for the block.  Raises ``TooMany`` at once if too many wait already."""
        if not self._free or user in self._busy:
            await self._wait(user)
        else:
            self._take(user)
        try:
            yield
        finally:
            self._free += 1
            self._busy.discard(user)
            self._call_next()

    def _take(self, user: str) -> None:
        assert self._free > 0, f"there is no room for {user}"
        assert user not in self._busy, f"{user} has a turn"
        self._free -= 1
        self._busy.add(user)

    async def _wait(self, user: str) -> None:
        if self.waiting >= self._waiting_max or len(self._queues.get(user, ())) >= self._waiting_of_user_max:
            self.refused.value += 1
            raise TooMany("heavy requests")
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._queues.setdefault(user, deque()).append(turn)
        self.waiting += 1
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                # It was called in the same moment: the turn goes to the next.
                self._free += 1
                self._busy.discard(user)
                self._call_next()
            else:
                self._drop(user, turn)
            raise

    def _drop(self, user: str, turn: asyncio.Future[None]) -> None:
        queue = self._queues[user]
        queue.remove(turn)
        self.waiting -= 1
        if not queue:
            del self._queues[user]

    def _call_next(self) -> None:
        while self._free:
            user = next((name for name in self._queues if name not in self._busy), None)
            if user is None:
                return
            queue = self._queues.pop(user)
            turn = queue.popleft()
            self.waiting -= 1
            if queue:
                # Behind all others.
                self._queues[user] = queue
            if turn.cancelled():
                continue
            self._take(user)
            turn.set_result(None)

    def check(self) -> None:
        assert self.waiting == sum(map(len, self._queues.values())), f"{self.waiting} are counted"
        assert all(self._queues.values()), "a user who waits for nothing is remembered"
        idle = [user for user in self._queues if user not in self._busy]
        assert not (self._free and idle), f"{idle} wait although there is room"
