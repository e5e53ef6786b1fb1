"""The schedule of a suspended mass removal: for a while nothing is removed, then a share each
minute.

The slice engine retains endpoints of Services (``slices.removing.guard``), the controller of agents
those of agents that became silent together (``agent.judge``).
"""

from __future__ import annotations

from math import ceil
from typing import Final

import msgspec

from sliceplane.kit.times import format_time

RETAIN_S: Final = 300.0
#: after the retention, this share of the peak is removed in each period
STEP_S: Final = 60.0
STEP_SHARE: Final = 0.1


class RemovalRetention(msgspec.Struct, frozen=True):
    """``count``: the maximum number of retained endpoints; after ``retain_s`` some are removed
    every ``step_s`` seconds.
    """

    since: float
    peak: int
    count: int
    retain_s: float = RETAIN_S
    step_s: float = STEP_S

    @property
    def until(self) -> float:
        return self.since + self.retain_s

    def keeps(self, now: float) -> int:
        if now < self.until:
            return self.count
        steps = 1 + int((now - self.until) // self.step_s)
        return max(0, self.count - steps * ceil(STEP_SHARE * self.peak))

    def next_step(self, now: float) -> float:
        if now < self.until:
            return self.until
        return self.until + self.step_s * (1 + (now - self.until) // self.step_s)

    def __str__(self) -> str:
        step = ceil(STEP_SHARE * self.peak)
        return (
            f"the removal of {self.count} of {self.peak} endpoints is held until "
            f"{format_time(self.until)}, "
            f"then {step} go each minute: no Pod said that it goes"
        )
