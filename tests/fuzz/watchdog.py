"""How long each step of the loop is, in a test: every callback and every piece of a task between
two awaits.

A step is measured in processor time of the loop's thread. On a busy machine that grows, too, since
processes share caches and cores: what a yardstick takes meanwhile says how much, and the limit
grows with it. What the loop waits for the interpreter's lock, because a thread has it, does not
count there: ``Watchdog.waited_s`` is the longest time that a heartbeat of a bystander was late, to
be looked at beside it. Nor does a garbage collection, which looks at what all tests before have
left behind: the longest is ``collected_s``.
"""

from __future__ import annotations

import asyncio
import gc
import time
from asyncio.events import Handle
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

#: on the machine, not busy, where the yardstick takes ``_YARDSTICK_S``
_STEP_S_MAX = 0.050
_YARDSTICK_S = 0.0033
_YARDSTICK_STEPS = 100_000
#: more is a slip of the yardstick
_SLOWNESS_MAX = 20.0
#: as a running server has it (``cli.process``)
_GC_YOUNG_OBJECTS = 50_000


def slowness() -> float:
    """How many times longer than on an idle machine work takes at present."""
    began, total = time.thread_time(), 0
    for number in range(_YARDSTICK_STEPS):
        total += number % 7
    return min(max(1.0, (time.thread_time() - began) / _YARDSTICK_S), _SLOWNESS_MAX)


class Watchdog:
    """What was measured; ``asyncio``'s own loop only."""

    def __init__(self) -> None:
        self.slowness = slowness()
        self.longest_s = 0.0
        self.longest = ""
        self.waited_s = 0.0
        self.collected_s = 0.0
        self.steps = 0
        self._collecting_since = 0.0
        self._collected_in_step = 0.0

    @property
    def limit_s(self) -> float:
        return _STEP_S_MAX * self.slowness

    @property
    def content(self) -> bool:
        return self.longest_s <= self.limit_s

    def on_collection(self, phase: str, _: dict[str, int]) -> None:
        if phase == "start":
            self._collecting_since = time.thread_time()
        else:
            took = time.thread_time() - self._collecting_since
            self._collected_in_step += took
            self.collected_s = max(self.collected_s, took)

    def note(self, seconds: float, handle: Handle) -> None:
        self.steps += 1
        seconds -= self._collected_in_step
        self._collected_in_step = 0.0
        if seconds > self.longest_s:
            self.longest_s, self.longest = seconds, repr(handle)[:300]

    async def beat(self) -> None:
        while True:
            due = time.perf_counter() + 0.002
            await asyncio.sleep(0.002)
            self.waited_s = max(self.waited_s, time.perf_counter() - due)


@contextmanager
def watching() -> Iterator[Watchdog]:
    """Measure every step of the loop but those of the task that runs the block: that is the test,
    not the server.
    """
    dog, own = Watchdog(), asyncio.current_task()
    run: Any = Handle._run

    def timed(handle: Handle) -> None:
        if getattr(handle._callback, "__self__", None) is own:  # type: ignore[attr-defined]
            run(handle)
            return
        dog._collected_in_step = 0.0
        began = time.thread_time()
        try:
            run(handle)
        finally:
            dog.note(time.thread_time() - began, handle)

    threshold = gc.get_threshold()
    gc.collect()
    gc.freeze()
    gc.set_threshold(_GC_YOUNG_OBJECTS, 10, 10)
    gc.callbacks.append(dog.on_collection)
    Handle._run = timed  # type: ignore[method-assign,assignment]
    try:
        yield dog
    finally:
        Handle._run = run  # type: ignore[method-assign]
        gc.callbacks.remove(dog.on_collection)
        gc.set_threshold(*threshold)
        gc.unfreeze()
        dog.slowness = max(dog.slowness, slowness())
