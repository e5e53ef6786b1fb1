"""Exponential back-off as a value: delays in seconds from an attempt number and, where wanted, jitter."""

from __future__ import annotations

from dataclasses import dataclass

from sliceplane.kit.rng import Rng


@dataclass(frozen=True, slots=True, kw_only=True)
class Backoff:
    """``base_s * factor**attempt``, at most ``cap_s``, plus up to ``jitter`` times that."""

    base_s: float
    cap_s: float
    factor: float = 2.0
    jitter: float = 0.0

    def delay_s(self, attempt: int, rng: Rng | None = None) -> float:
        """The delay before try ``attempt + 1``; ``attempt`` counts failures so far, from 0."""
        assert attempt >= 0, f"attempt {attempt} is negative"
        # The exponent is bounded first: 2.0**5000 raises OverflowError, and a peer may be gone for days.
        delay = min(self.base_s * self.factor ** min(attempt, 64), self.cap_s)
        if self.jitter and rng is not None:
            delay += rng.uniform(0.0, self.jitter * delay)
        return delay
