"""Delays: before the next attempt (``Backoff``), and until the next token (``TokenBucket``)."""

from __future__ import annotations

import msgspec

from sliceplane.kit.rng import Rng


class Backoff(msgspec.Struct, frozen=True, kw_only=True):
    """``base_s * factor**attempt``, at most ``cap_s``, plus up to ``jitter`` times that."""

    base_s: float
    cap_s: float
    factor: float = 2.0
    jitter: float = 0.0

    def delay_s(self, attempt: int, rng: Rng | None = None) -> float:
        """Returns the delay before attempt ``attempt + 1``; ``attempt`` counts the failures so far,
        from 0.
        """
        assert attempt >= 0, f"attempt {attempt} is negative"
        # The exponent is bounded first: 2.0**5000 raises OverflowError, and a peer may be gone for
        # days.
        delay = min(self.base_s * self.factor ** min(attempt, 64), self.cap_s)
        if self.jitter and rng is not None:
            delay += rng.uniform(0.0, self.jitter * delay)
        return delay


class TokenBucket:
    """*rate_per_s* tokens a second, at most *burst* saved up; full at the start.

    It lends: no caller is refused, each gets the time to wait. The balance may become negative, so
    waiting callers form a queue (as with reservations of Go's ``rate.Limiter``). Not shared between
    tasks.
    """

    __slots__ = ("_at", "_balance", "burst", "rate_per_s")

    def __init__(self, *, rate_per_s: float, burst: int) -> None:
        assert rate_per_s > 0, f"rate_per_s {rate_per_s} must be positive"
        assert burst > 0, f"burst {burst} must be positive"
        self.rate_per_s = rate_per_s
        self.burst = burst
        self._balance = float(burst)
        self._at: float | None = None

    def _refill(self, now: float) -> None:
        # A clock that goes back changes nothing.
        if self._at is not None and now > self._at:
            self._balance = min(
                self._balance + (now - self._at) * self.rate_per_s, float(self.burst)
            )
        self._at = now if self._at is None else max(self._at, now)

    def take(self, now: float, tokens: float = 1.0) -> float:
        """Takes *tokens*. Returns the seconds until they are available, 0.0 if they are available
        already.
        """
        self._refill(now)
        self._balance -= tokens
        return max(-self._balance / self.rate_per_s, 0.0)

    def try_take(self, now: float) -> bool:
        """Takes a token if one is available, and returns True."""
        self._refill(now)
        if self._balance < 1.0:
            return False
        self._balance -= 1.0
        return True
