"""How long history is kept: at least so many seconds, unless it grows over a bound.

Lists at a past revision and watches that resume live off history, and kube clients expect about five minutes of
it.  Time bounds it in normal operation; the number of events and their bytes bound it in a storm.

Commits come without a time: those between two ticks are a *sample*, which gets the time of the tick that ends it, so
that nothing is dropped too early.  A storm makes more samples (each at most a hundredth of a bound), never
longer ones.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

HISTORY_KEEP_S = 300.0
HISTORY_EVENTS_MAX = 100_000
HISTORY_BYTES_MAX = 256 * 1024 * 1024
_SAMPLES = 100


@dataclass(slots=True)
class _Sample:
    #: newest revision in it
    revision: int
    events: int = 0
    bytes: int = 0
    #: when it ended; ``None``: at the next tick
    ended: float | None = None


class Retention:
    """Owned by the committer."""

    def __init__(
        self,
        *,
        keep_s: float = HISTORY_KEEP_S,
        events_max: int = HISTORY_EVENTS_MAX,
        bytes_max: int = HISTORY_BYTES_MAX,
    ) -> None:
        self._keep_s = keep_s
        self._events_max = events_max
        self._bytes_max = bytes_max
        self._samples: deque[_Sample] = deque()
        #: samples without a time, at the right end of ``_samples``
        self._open = 0
        #: history as far as this class was told of it
        self.events = 0
        self.bytes = 0
        #: history up to this revision may be dropped
        self.target = 0

    def on_commit(self, revision: int, events: int, size: int) -> None:
        """Commits up to *revision*: *events* of them, with *size* bytes of bodies.  May raise ``target``."""
        last = self._samples[-1] if self._open else None
        if last is None or last.events * _SAMPLES >= self._events_max or last.bytes * _SAMPLES >= self._bytes_max:
            last = _Sample(revision)
            self._samples.append(last)
            self._open += 1
        last.revision = revision
        last.events += events
        last.bytes += size
        self.events += events
        self.bytes += size
        # The newest sample stays: a client that has just listed must be able to watch.
        while len(self._samples) > 1 and (self.events > self._events_max or self.bytes > self._bytes_max):
            self._drop()

    def on_replaced(self) -> None:
        """All was loaded anew, without history; the revisions may be smaller than before."""
        self._samples.clear()
        self._open = self.events = self.bytes = self.target = 0

    def on_tick(self, now: float) -> None:
        """Time passes.  May raise ``target``."""
        for index in range(len(self._samples) - self._open, len(self._samples)):
            self._samples[index].ended = now
        self._open = 0
        while self._samples:
            ended = self._samples[0].ended
            if ended is None or ended > now - self._keep_s:
                return
            self._drop()

    def _drop(self) -> None:
        sample = self._samples.popleft()
        self._open = min(self._open, len(self._samples))
        self.events -= sample.events
        self.bytes -= sample.bytes
        self.target = sample.revision
