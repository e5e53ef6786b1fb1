"""How much longer four times as much takes.

Work is measured in CPU time of this thread, without the collector. What other processes do
lengthens a run by more than half: cores are shared by hyperthreads, and caches by everybody. So a
long run is compared with the short ones just before and after it, which met the same neighbours,
and not with the best short one of another moment.

Four times the input may take ``GROWTH_MAX`` times as long; a quadratic step takes sixteen times as
long, each time, and is seen as soon as it is more than a small part of the whole. One pair within
the bound is enough. What takes less than ``TOO_SHORT_S`` is not judged: it is noise, and costs
nobody anything.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable
from typing import Final

FACTOR: Final = 4
GROWTH_MAX: Final = 5.0
TOO_SHORT_S: Final = 0.02
#: how often a bad figure is taken again before it counts
_RETRIES: Final = 6

Run = Callable[[], object]


def seconds(run: Run) -> float:
    """CPU time of one *run*."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        began = time.thread_time()
        run()
        return time.thread_time() - began
    finally:
        if was_enabled:
            gc.enable()


def growth(
    small: Callable[[], Run], large: Callable[[], Run], *, too_short_s: float = TOO_SHORT_S
) -> float:
    """How many times longer *large* takes than *small* did around it, at best; 0 for what is too
    short to say.

    Both make a fresh run, prepared outside of the measurement, each time they are called.
    """
    ratios = []
    before = seconds(small())
    for _ in range(_RETRIES):
        long = seconds(large())
        if long < too_short_s:
            return 0.0
        after = seconds(small())
        ratios.append(2 * long / (before + after))
        if ratios[-1] <= GROWTH_MAX:
            break
        before = after
    return min(ratios)


def assert_linear(make: Callable[[int], Run], size: int) -> None:
    """*make(n)* gives a run over n entries: *size* of them may take ``GROWTH_MAX`` times as long as
    a quarter.

    A figure above it is looked at twice more with twice as many entries, where a quadratic step is
    the larger part, and caches of processors, which end somewhere, have ended already.
    """
    figures = []
    for times in (1, 2, 2):
        figures.append(round(_growth_at(make, times * size), 1))
        if figures[-1] <= GROWTH_MAX:
            return
    raise AssertionError(
        f"{FACTOR} times the entries ({size}, then twice that) take {figures} times as long"
    )


def _growth_at(make: Callable[[int], Run], size: int) -> float:
    return growth(lambda: make(size // FACTOR), lambda: make(size))
