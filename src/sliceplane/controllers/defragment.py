"""The schedule of merging under-filled slices: only while their Service is quiet, and within a
budget of writes per minute.
"""

from __future__ import annotations

from typing import Final

from sliceplane.kit.metrics import Metrics

#: seconds for which a Service's slices must not have changed
QUIET_S: Final = 30.0
WRITES_PER_MINUTE_DEFAULT: Final = 10


class Defragmenter:
    """The budget of one ``EndpointSliceController``. It counts writes over all Services; at most a
    minute's budget can be saved up.

    A step that costs more waits for a full budget, and overdraws it.
    """

    def __init__(self, writes_per_minute: int) -> None:
        assert writes_per_minute > 0, f"{writes_per_minute} writes a minute"
        self._writes_per_minute = writes_per_minute
        self._balance = float(writes_per_minute)
        self._updated_at = 0.0
        #: time of the last change of slices, by Service that may have slices to save
        self._changed: dict[str, float] = {}
        self.metrics = Metrics()
        # Upstream has no merging, so this metric is our own.
        self.slices_saved = self.metrics.counter(
            "sliceplane_endpoint_slices_saved_total",
            "Slices saved by merging under-filled ones.",
        )

    def changed(self, key: str, now: float) -> None:
        self._changed[key] = now

    def wait(self, key: str, now: float) -> float:
        """Returns the seconds until a merge of *key* may be tried; 0.0: now. A new Service counts
        as changed.
        """
        quiet = self._changed.setdefault(key, now) + QUIET_S - now
        return max(quiet, self.wait_for_writes(min(2, self._writes_per_minute), now), 0.0)

    def is_pending(self, key: str) -> bool:
        """Returns True if *key* needs a check although no event arrived."""
        return key in self._changed

    def forget(self, key: str) -> None:
        self._changed.pop(key, None)

    def budget(self, now: float) -> int:
        """Returns the number of writes that are allowed now."""
        self._balance = min(
            self._balance + max(now - self._updated_at, 0.0) * self._writes_per_minute / 60,
            float(self._writes_per_minute),
        )
        self._updated_at = max(self._updated_at, now)
        return int(self._balance)

    def is_full(self, now: float) -> bool:
        return self.budget(now) >= self._writes_per_minute

    def spend(self, writes: int) -> None:
        self._balance -= writes

    def wait_for_writes(self, writes: int, now: float) -> float:
        """Returns the seconds until *writes* are allowed, or as many as can be saved up."""
        self.budget(now)
        missing = min(writes, self._writes_per_minute) - self._balance
        return missing * 60 / self._writes_per_minute + 0.001 if missing > 0 else 0.0
