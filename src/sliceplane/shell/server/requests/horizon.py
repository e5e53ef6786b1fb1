"""Reads that wait for a version that the server does not have yet: one timer wakes all of them."""

from __future__ import annotations

import asyncio

from sliceplane.store.mvcc import Store

_LOOK_S = 0.05


class Horizon:
    """Owned by the handlers of reads.  How many may wait is not its business (``limits``)."""

    def __init__(self, store: Store) -> None:
        self._store = store
        #: who waits, and for which version
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
