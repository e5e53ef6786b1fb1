"""When under-filled slices are merged: only while their Service is quiet, and no more writes a
minute than allowed.
"""

from __future__ import annotations

from typing import Final

from sliceplane.kit.metrics import Metrics

#: how long a Service's slices must not have changed
QUIET_S: Final = 30.0
WRITES_PER_MINUTE_DEFAULT: Final = 10


class Defragmenter:
    """Owned by one ``EndpointSliceController``. Counts writes over all Services; a minute's worth
    can be saved up.

    A step that costs more than a minute's worth waits until that is there, and is paid off
    afterwards.
    """

    def __init__(self, writes_per_minute: int) -> None:
        assert writes_per_minute > 0, f"{writes_per_minute} writes a minute"
        self._most = writes_per_minute
        self._balance = float(writes_per_minute)
        self._at = 0.0
        #: services that perhaps have slices to save: when their slices changed last
        self._changed: dict[str, float] = {}
        self.metrics = Metrics()
        # Ours alone: there is no merging upstream.
        self.slices_saved = self.metrics.counter(
            "sliceplane_endpoint_slices_saved_total",
            "Slices that merging under-filled ones has saved.",
        )

    def changed(self, key: str, now: float) -> None:
        self._changed[key] = now

    def wait(self, key: str, now: float) -> float:
        """Seconds until a merge of *key* may be tried; 0.0: now.  A service seen first counts as
        changed.
        """
        quiet = self._changed.setdefault(key, now) + QUIET_S - now
        return max(quiet, self.wait_for_writes(min(2, self._most), now), 0.0)

    def pending(self, key: str) -> bool:
        """Whether *key* has to be looked at when it is quiet."""
        return key in self._changed

    def forget(self, key: str) -> None:
        self._changed.pop(key, None)

    def budget(self, now: float) -> int:
        """Writes that may be made now."""
        self._balance = min(
            self._balance + max(now - self._at, 0.0) * self._most / 60, float(self._most)
        )
        self._at = max(self._at, now)
        return int(self._balance)

    def full(self, now: float) -> bool:
        return self.budget(now) >= self._most

    def spend(self, writes: int) -> None:
        self._balance -= writes

    def wait_for_writes(self, writes: int, now: float) -> float:
        """Seconds until *writes* may be made, or as many as can be saved up."""
        self.budget(now)
        missing = min(writes, self._most) - self._balance
        return missing * 60 / self._most + 0.001 if missing > 0 else 0.0
