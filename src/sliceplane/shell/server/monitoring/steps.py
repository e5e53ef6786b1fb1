"""How long the loop was held, and by whom: no step may keep it from its other clients.

A *step* is what runs between two awaits.  The steps of a request are timed by driving its coroutine ourselves
(``timed``), which costs two readings of a clock for each.  A step that seems long because the machine gave the
processor to others is no fault of the request: what the thread's processor clock says since the last heartbeat is the
most that it can have been.  (That clock is a system call, too much for each step.)

Whatever else keeps the loop (commits, streams, chores, a call that blocks, the machine) shows as the *lag* of the
heartbeat, which asks to be called after ``BEAT_S`` and looks how late it is.  That is a metric; the log has only
what our own thread worked at.

A step that was longer than ``HELD_S`` is told in the log with the request's audit id, verb, user and path; once
in ``TELL_S`` at most, with how many there were.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Generator
from types import coroutine
from typing import Any, Final

from sliceplane.kit.metrics import Metrics
from sliceplane.shell.process.log import get_logger

HELD_S: Final = 0.050
TELL_S: Final = 10.0
BEAT_S: Final = 0.1
_BUCKETS: Final = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)

_log = get_logger("loop")


class LoopSteps:
    """Owned by the server; used in its loop."""

    def __init__(
        self,
        metrics: Metrics,
        *,
        processor_clock: Callable[[], float] = time.thread_time,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._processor_clock = processor_clock
        self._clock = clock
        #: what the processor's clock said at the last heartbeat; ``None``: there is none
        self._beat_at: float | None = None
        self._steps = metrics.histogram(
            "sliceplane_event_loop_step_seconds", "How long one step of a request held the event loop.", _BUCKETS
        )
        self._lag = metrics.histogram(
            "sliceplane_event_loop_lag_seconds", "How late the event loop came to what was due.", _BUCKETS
        )
        #: since the last line
        self._held = 0
        self._longest = 0.0
        self._told_at = float("-inf")

    @coroutine
    def timed(
        self, inner: Coroutine[Any, Any, None], who: Callable[[], dict[str, object]]
    ) -> Generator[Any, Any, None]:
        """*inner*, a request's coroutine, with each of its steps timed.  *who* is asked when one was long."""
        clock = self._clock
        observe = self._steps.observe
        sent: Any = None
        thrown: BaseException | None = None
        while True:
            began = clock()
            try:
                awaited = inner.send(sent) if thrown is None else inner.throw(thrown)
            except StopIteration:
                return
            finally:
                took = clock() - began
                if took > HELD_S:
                    took = self._own_share(took)
                    if took > HELD_S:
                        self.on_held(took, who)
                observe(took)
            sent = thrown = None
            try:
                sent = yield awaited
            except GeneratorExit:
                inner.close()
                raise
            except BaseException as error:  # a cancellation, for one: it is for the request
                thrown = error

    def _own_share(self, seconds: float) -> float:
        """The most of *seconds* in which the step itself can have been running."""
        return seconds if self._beat_at is None else min(seconds, self._processor_clock() - self._beat_at)

    def on_held(self, seconds: float, who: Callable[[], dict[str, object]]) -> None:
        """The loop was held; tell of it if that was not done just now."""
        self._held += 1
        self._longest = max(self._longest, seconds)
        now = self._clock()
        if now - self._told_at < TELL_S:
            return
        _log.warning(
            "the event loop was held",
            milliseconds=round(seconds * 1000),
            longest=round(self._longest * 1000),
            times=self._held,
            **who(),
        )
        self._told_at = now
        self._held = 0
        self._longest = 0.0

    async def beat(self) -> None:
        """Runs as long as the server."""
        while True:
            self._beat_at = self._processor_clock()
            due = self._clock() + BEAT_S
            await asyncio.sleep(BEAT_S)
            late = max(0.0, self._clock() - due)
            self._lag.observe(late)
            own = self._own_share(late)
            # Unless a request's step is what made this heartbeat late.
            if own > HELD_S and not self._held and self._told_at < due - BEAT_S:
                self.on_held(own, lambda: {"by": "what is no request's step"})
