"""The schedule of a mass removal that is held: for a while nothing of it goes, then a share of it
each minute.

The slice engine holds endpoints of Services (``slices.removing.guard``), the controller of agents
those of agents that fell silent together (``agent.judge``).
"""

from __future__ import annotations

from math import ceil
from typing import Final

import msgspec

from sliceplane.kit.times import format_time

HOLD_S: Final = 300.0
#: after the hold, this share of the peak is removed in each period
STEP_S: Final = 60.0
STEP_SHARE: Final = 0.1


class Hold(msgspec.Struct, frozen=True):
    """``count``: the most endpoints held at a time; after ``hold_s`` some are removed every
    ``step_s`` seconds.
    """

    since: float
    peak: int
    count: int
    hold_s: float = HOLD_S
    step_s: float = STEP_S

    @property
    def until(self) -> float:
        return self.since + self.hold_s

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
