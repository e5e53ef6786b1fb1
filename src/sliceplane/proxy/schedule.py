"""When to write: coalescing, a pause between writes, retries, as a core.

One write runs at a time.  Changes that arrive meanwhile, or within ``min_period_s`` after the *end* of the last
write, go together into the next one.  After a failure the next write comes no later than the back-off says, and
never earlier than the pause; a write that succeeds forgets the failures.  With ``min_period_s`` 0 (the default) a
change that finds nothing running is written at once.

All times are seconds since the epoch.  A clock that was set back does not delay what changes from then on: whatever
was planned by the old one and lies further ahead than it could, is planned anew with the next
change.  Owned by one data plane.
"""

from __future__ import annotations

from dataclasses import dataclass

from sliceplane.kit.delays import Backoff

RETRY = Backoff(base_s=0.5, cap_s=30.0)


@dataclass(frozen=True, slots=True)
class Freshness:
    """What health and metrics want to know.  ``None``: never, or nothing waits."""

    last_success: float | None
    last_failure: float | None
    #: since when the oldest change that the kernel does not have yet has been waiting
    pending_since: float | None
    failures: int

    def staleness_s(self, now: float) -> float:
        """How long a change has been waiting: 0 if the kernel has them all."""
        return 0.0 if self.pending_since is None else max(0.0, now - self.pending_since)


class Schedule:
    """States: idle, waiting (a write is due at ``next_deadline``), running."""

    def __init__(self, *, min_period_s: float = 0.0, retry: Backoff = RETRY) -> None:
        assert min_period_s >= 0, f"min_period_s is {min_period_s}"
        self._min_period_s = min_period_s
        self._retry = retry
        self._running = False
        self._wanted_at: float | None = None  # when a write is wanted, before the pause is applied
        self._not_before = 0.0
        self._waiting_since: float | None = None  # oldest change not handed to a write
        self._running_since: float | None = None  # oldest change that the running write carries
        self._failures = 0
        self._last_success: float | None = None
        self._last_failure: float | None = None

    def on_change(self, now: float) -> None:
        """Something is to be written."""
        if self._waiting_since is None:
            self._waiting_since = now
        self._not_before = min(self._not_before, now + self._min_period_s)
        self._want(now)

    def on_idle_work(self, at: float) -> None:
        """Something may be written at *at* that no reader waits for (the removal of retired objects)."""
        self._want(at)

    @property
    def running(self) -> bool:
        """A write is under way."""
        return self._running

    def next_deadline(self) -> float | None:
        if self._running or self._wanted_at is None:
            return None
        return max(self._wanted_at, self._not_before)

    def due(self, now: float) -> bool:
        deadline = self.next_deadline()
        return deadline is not None and deadline <= now

    def on_start(self) -> None:
        """A write begins; it carries every change reported so far."""
        assert not self._running, "two writes at once"
        self._running = True
        self._running_since, self._waiting_since = self._waiting_since, None
        self._wanted_at = None

    def on_success(self, now: float) -> None:
        self._finish(now)
        self._running_since = None
        self._last_success = now
        self._failures = 0

    def on_failure(self, now: float) -> None:
        """The running write failed; another is due when the back-off says, or with the next change."""
        self._finish(now)
        waiting = [since for since in (self._running_since, self._waiting_since) if since is not None]
        self._waiting_since, self._running_since = min(waiting, default=now), None
        self._last_failure = now
        delay_s = self._retry.delay_s(self._failures)
        self._failures += 1
        self._want(now + delay_s)

    @property
    def freshness(self) -> Freshness:
        since = [moment for moment in (self._running_since, self._waiting_since) if moment is not None]
        return Freshness(self._last_success, self._last_failure, min(since, default=None), self._failures)

    def _finish(self, now: float) -> None:
        assert self._running, "no write runs"
        self._running = False
        self._not_before = now + self._min_period_s

    def _want(self, at: float) -> None:
        self._wanted_at = at if self._wanted_at is None else min(self._wanted_at, at)
