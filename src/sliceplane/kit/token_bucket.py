"""A token bucket that lends: every taker is told how long to wait, nobody is refused.

The balance may go below zero, which is how those who wait form a queue (as in Go's ``rate.Limiter`` reservations).
"""

from __future__ import annotations


class TokenBucket:
    """Owned by whoever made it.  *rate_per_s* tokens a second, at most *burst* saved up; full at the start."""

    __slots__ = ("_at", "_balance", "burst", "rate_per_s")

    def __init__(self, *, rate_per_s: float, burst: int) -> None:
        assert rate_per_s > 0, f"rate_per_s {rate_per_s} must be positive"
        assert burst > 0, f"burst {burst} must be positive"
        self.rate_per_s = rate_per_s
        self.burst = burst
        self._balance = float(burst)
        self._at: float | None = None

    def _refill(self, now: float) -> None:
        # A clock that goes back gives nothing and takes nothing.
        if self._at is not None and now > self._at:
            self._balance = min(self._balance + (now - self._at) * self.rate_per_s, float(self.burst))
        self._at = now if self._at is None else max(self._at, now)

    def take(self, now: float) -> float:
        """Take a token.  Returns the seconds until it is there, 0.0 if it is there already."""
        self._refill(now)
        self._balance -= 1.0
        return max(-self._balance / self.rate_per_s, 0.0)

    def try_take(self, now: float) -> bool:
        """Take a token if there is one."""
        self._refill(now)
        if self._balance < 1.0:
            return False
        self._balance -= 1.0
        return True
