"""Ends the watches whose rights are gone, within a fraction of a second.

A timer asks the registry whether a watch is in doubt (``registry.attendance``).  While none is, a look costs the same
however many are open; while very many are (a role of ten thousand clients changed), a few are asked about in one turn.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from sliceplane.api.errors import StatusError
from sliceplane.kit.metrics import Metrics
from sliceplane.registry.attendance import Claim
from sliceplane.registry.registry import Registry
from sliceplane.shell.process.log import get_logger
from sliceplane.store.watcher import Watcher

#: how often it looks
PERIOD_S = 0.25
#: how many watches one turn of the loop asks about
ASKED_PER_TURN = 100

_log = get_logger("apiserver")


class Revocation:
    """One for all watches of a loop.  Owns the numbers that the registry gave it."""

    def __init__(self, registry: Registry, clock: Callable[[], float]) -> None:
        self._registry = registry
        self._clock = clock
        self._watchers: dict[int, Watcher] = {}
        self._timer: asyncio.TimerHandle | None = None
        self.metrics = Metrics()
        self._revoked = self.metrics.counter(
            "sliceplane_revoked_watches_total", "Watches ended since their token, account or rights were gone."
        )

    def begin(self, claim: Claim, watcher: Watcher) -> int:
        """Raises the 401 or 403 ``StatusError`` if it is too late already."""
        number = self._registry.attendance.begin(claim, self._clock())
        if number:
            self._watchers[number] = watcher
            self._arm(PERIOD_S)
        return number

    def end(self, number: int) -> None:
        self._watchers.pop(number, None)
        self._registry.attendance.end(number)

    def close(self) -> None:
        self._watchers.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _arm(self, delay_s: float) -> None:
        if self._timer is None and self._watchers:
            self._timer = asyncio.get_running_loop().call_later(delay_s, self._look)

    def _look(self) -> None:
        self._timer = None
        for number, error in self._registry.attendance.review(self._clock(), ASKED_PER_TURN):
            self._revoke(self._watchers.pop(number), error)
        self._arm(0 if self._registry.attendance.doubted else PERIOD_S)

    def _revoke(self, watcher: Watcher, error: StatusError) -> None:
        self._revoked.value += 1
        _log.debug("watch ended: its rights are gone", resource=watcher.interest.resource, why=error.message)
        watcher.close(error)
        watcher.notify()
