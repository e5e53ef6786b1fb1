"""Time for the hub: one timer, set to whatever bookmark or end of a watch is due next.

The hub's clock is the loop's, here and in whoever subscribes: watches must neither end nor fall silent because
somebody set the machine's clock.
"""

from __future__ import annotations

import asyncio

from sliceplane.store.hub import Hub


class HubTicker:
    """Calls ``Hub.on_tick`` when the hub has something to do.  Whoever subscribes calls ``arm`` afterwards."""

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
