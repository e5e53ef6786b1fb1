"""Timers of the loop: what is due at the hub, reads that wait for a version of the future, watches
whose rights are gone.

The hub's clock is the loop's, here and where watches begin: they must neither end nor fall silent
because the machine's clock was set.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from sliceplane.api.errors import StatusError, too_large_resource_version
from sliceplane.kit.io.log import get_logger
from sliceplane.kit.metrics import Metrics
from sliceplane.server.registry.authorization.open_watches import Claim
from sliceplane.server.registry.registry import Registry
from sliceplane.server.registry.types import WatchPlan
from sliceplane.server.store.hub import Hub
from sliceplane.server.store.mvcc import Store
from sliceplane.server.store.watcher import Interest, Watcher

_CHECK_INTERVAL_S = 0.05
#: seconds between two checks of open watches
PERIOD_S = 0.25
#: stale watches that one check reviews
REVIEWED_PER_BATCH = 100
_log = get_logger("apiserver")


class HubTicker:
    """Subscribes at the hub, and calls ``Hub.on_tick`` when the hub has something to do."""

    def __init__(self, hub: Hub) -> None:
        self.hub = hub
        self._timer: asyncio.TimerHandle | None = None
        self._due = 0.0
        self._closed = False

    def subscribe(self, interest: Interest, plan: WatchPlan, seconds: float) -> Watcher:
        """Begins the watch of *plan*, which ends after *seconds*."""
        watcher = self.hub.subscribe(
            interest,
            now=asyncio.get_running_loop().time(),
            since=plan.since,
            initial=plan.initial,
            bookmarks=plan.bookmarks,
            ends_at=asyncio.get_running_loop().time() + seconds,
        )
        self._arm()
        return watcher

    def _arm(self) -> None:
        """Sets the timer to the hub's next deadline, unless it is set to an earlier one."""
        due = self.hub.next_deadline()
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
        self.hub.on_tick(asyncio.get_running_loop().time())
        self._arm()

    def close(self) -> None:
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


class Horizon:
    """Reads that wait for a future version: one timer wakes all of them.  Owned by their handlers;
    ``limits`` bounds their number.
    """

    def __init__(self, source: Store | Hub) -> None:
        self._source = source
        #: the version that each read waits for
        self._waiting: dict[asyncio.Future[None], int] = {}
        self._timer: asyncio.TimerHandle | None = None

    async def reach(self, version: int, seconds: float) -> None:
        """Returns as soon as the source has *version*.  Raises the 504 ``StatusError`` after
        *seconds*.
        """
        if version <= self._source.revision:
            return
        loop = asyncio.get_running_loop()
        woken: asyncio.Future[None] = loop.create_future()
        self._waiting[woken] = version
        if self._timer is None:
            self._timer = loop.call_later(_CHECK_INTERVAL_S, self._check)
        try:
            async with asyncio.timeout(seconds):
                await woken
        except TimeoutError:
            raise too_large_resource_version(version, self._source.revision) from None
        finally:
            del self._waiting[woken]

    def _check(self) -> None:
        for woken, version in self._waiting.items():
            if version <= self._source.revision and not woken.done():
                woken.set_result(None)
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(_CHECK_INTERVAL_S, self._check) if self._waiting else None


class Revocation:
    """Ends the watches whose rights are gone, within a fraction of a second. Owns its numbers from
    the registry.

    The registry reports stale watches (``server.registry.authorization.open_watches``). While there
    are none, a check costs the same however many are open; while very many are stale (a role of ten
    thousand clients changed), one turn checks a few.
    """

    def __init__(self, registry: Registry, clock: Callable[[], float]) -> None:
        self._registry = registry
        self._clock = clock
        self._watchers: dict[int, Watcher] = {}
        self._timer: asyncio.TimerHandle | None = None
        self.metrics = Metrics()
        self._revoked = self.metrics.counter(
            "sliceplane_revoked_watches_total",
            "Watches ended since their token, account or rights were gone.",
        )

    def begin(self, claim: Claim, watcher: Watcher) -> int:
        """Raises the 401 or 403 ``StatusError`` if it is too late already."""
        number = self._registry.open_watches.begin(claim, self._clock())
        if number:
            self._watchers[number] = watcher
            self._arm(PERIOD_S)
        return number

    def end(self, number: int) -> None:
        self._watchers.pop(number, None)
        self._registry.open_watches.end(number)

    def close(self) -> None:
        self._watchers.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _arm(self, delay_s: float) -> None:
        if self._timer is None and self._watchers:
            self._timer = asyncio.get_running_loop().call_later(delay_s, self._check)

    def _check(self) -> None:
        self._timer = None
        for number, error in self._registry.open_watches.review(self._clock(), REVIEWED_PER_BATCH):
            self._revoke(self._watchers.pop(number), error)
        self._arm(0 if self._registry.open_watches.stale else PERIOD_S)

    def _revoke(self, watcher: Watcher, error: StatusError) -> None:
        self._revoked.value += 1
        _log.debug(
            "watch ended: its rights are gone",
            resource=watcher.interest.resource,
            why=error.message,
        )
        watcher.close(error)
        watcher.notify()
