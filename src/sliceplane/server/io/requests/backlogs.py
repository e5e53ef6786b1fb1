"""Events that wait for clients of watches, counted by account.

A watch that its client does not read queues up to 16 MiB of events. Their bytes are shared by all
watches that get them, but each queue has a place for each event, and an account may have thousands
of watches: ten thousand that nobody reads would take a gigabyte for each ten thousand writes. So
once a second the places are counted, and an account that would hold more than is left for all
others loses its longest queues: those watches end with 410, and the client lists again, as after
any watch that was too slow.

Nothing is counted when an event is handed out: between two counts a queue grows by what is written
in that time.
"""

from __future__ import annotations

import asyncio
from typing import Final, Protocol

from sliceplane.kit.metrics import Metrics
from sliceplane.kit.shares import Shares, Standing

#: of all watches together; a place is 8 bytes, in a list that grows by an eighth
EVENTS_MAX: Final = 16_000_000
PERIOD_S: Final = 1.0


class Waiting(Protocol):
    """One watch."""

    @property
    def waiting(self) -> int:
        """The number of events in its queues."""

    def end_slow(self) -> None:
        """Drops what waits, and ends the watch with 410."""


class Backlogs:
    """Owned by the handler of watches; lives in one loop."""

    def __init__(self, events_max: int = EVENTS_MAX) -> None:
        self.shares = Shares(events_max)
        self._watches: dict[Waiting, tuple[str, Standing]] = {}
        self._timer: asyncio.TimerHandle | None = None
        self.metrics = Metrics()
        self.metrics.computed(
            "gauge",
            "sliceplane_watch_waiting_events",
            "Events in queues of watches that wait for their clients, as of the last count.",
            lambda: self.shares.total,
        )
        self.ended = self.metrics.counter(
            "sliceplane_watch_backlog_ended_watches_total",
            "Watches ended since their account had too many events waiting.",
        )

    def begin(self, watch: Waiting, account: str, standing: Standing) -> None:
        self._watches[watch] = account, standing
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(PERIOD_S, self._tick)

    def end(self, watch: Waiting) -> None:
        del self._watches[watch]

    def _tick(self) -> None:
        self._timer = None
        self.count()
        if self._watches or self.shares.total:
            self._timer = asyncio.get_running_loop().call_later(PERIOD_S, self._tick)

    def count(self) -> None:
        """Charges each account with what waits for it now, shortest queues first, and ends those
        beyond its share.
        """
        for account in self.shares:
            self.shares.give_all(account)
        slow = [
            (watch.waiting, number, watch)
            for number, watch in enumerate(self._watches)
            if watch.waiting
        ]
        for waiting, _, watch in sorted(slow):
            account, standing = self._watches[watch]
            if not self.shares.take(account, waiting, standing):
                watch.end_slow()
                self.ended.value += 1

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
