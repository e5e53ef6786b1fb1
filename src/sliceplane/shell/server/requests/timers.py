"""Two timers of the loop: one for what is due at the hub, one for reads that wait for a version of the future.

The hub's clock is the loop's, here and where watches begin: they must neither end nor fall silent because the machine's
clock was set.
"""

from __future__ import annotations

import asyncio

from sliceplane.store.hub import Hub
from sliceplane.store.mvcc import Store

_LOOK_S = 0.05


class HubTicker:
    """Calls ``Hub.on_tick`` when the hub has something to do.  ``arm`` is called after each subscription."""

    def __init__(self, hub: Hub) -> None:
        self._hub = hub
        self._timer: asyncio.TimerHandle | None = None
        self._due = 0.0
        self._closed = False

    def arm(self) -> None:
        """Set the timer to the hub's next deadline, if that is earlier than what it is set to."""
        due = self._hub.next_deadline()
        if due is None or self._closed:
            return
        if self._timer is not None:
            if self._due <= due:
                return
            self._timer.cancel()
        self._due = due
        self._timer = asyncio.get_running_loop().call_at(due, self._tick)

    def _tick(self) -> None:
        self._timer = None
        self._hub.on_tick(asyncio.get_running_loop().time())
        self.arm()

    def close(self) -> None:
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


class Horizon:
    """Reads that wait: one timer wakes all of them.  Owned by their handlers; ``limits`` says how many may wait."""

    def __init__(self, store: Store) -> None:
        self._store = store
        #: and the version that each waits for
        self._waiting: dict[asyncio.Future[None], int] = {}
        self._timer: asyncio.TimerHandle | None = None

    async def reached(self, version: int, seconds: float) -> bool:
        """Whether the store had *version* within *seconds*; returns as soon as it has."""
        if version <= self._store.revision:
            return True
        loop = asyncio.get_running_loop()
        woken: asyncio.Future[None] = loop.create_future()
        self._waiting[woken] = version
        if self._timer is None:
            self._timer = loop.call_later(_LOOK_S, self._look)
        try:
            async with asyncio.timeout(seconds):
                await woken
        except TimeoutError:
            return False
        finally:
            del self._waiting[woken]
        return True

    def _look(self) -> None:
        for woken, version in self._waiting.items():
            if version <= self._store.revision and not woken.done():
                woken.set_result(None)
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(_LOOK_S, self._look) if self._waiting else None
