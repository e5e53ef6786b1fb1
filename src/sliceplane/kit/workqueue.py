"""A queue of keys that need work; each key is queued at most once, and processed by one worker at a
time.

Three sets and a queue, with the guarantees of client-go's ``workqueue``::

    add ----> dirty + queue --get--> processing --done--> out, or back into the queue if dirty again

- A key that is added while it waits is queued once.
- A key that is added while it is processed waits until ``done``, then joins the queue: one worker
  at a time, and no change is missed.
- ``add_after`` delays a key until its time; of several times for one key the earliest wins. A key
  that is added immediately in the meantime is processed immediately, and again at its time.
- ``add_rate_limited`` delays a key by the larger of its own exponential back-off and a bucket that
  all keys share.

The queue is first in, first out; keys that come due together join in the order of their times, then
of their adding. So equal calls give equal results.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Hashable
from typing import Any, Final, Generic, TypeVar

from sliceplane.kit.delays import Backoff, TokenBucket
from sliceplane.kit.metrics import (
    Distribution,
    Family,
    Histogram,
    Kind,
    Sample,
    exponential_buckets,
)

K = TypeVar("K", bound=Hashable)

#: the EndpointSlice controller's per-key back-off
#: (``pkg/controller/endpointslice/endpointslice_controller.go``)
RETRY_BACKOFF = Backoff(base_s=1.0, cap_s=1000.0)
RETRY_RATE_PER_S = 10.0
RETRY_BURST = 100
#: the heap of delayed keys is rebuilt when it has so many times more entries than keys are delayed
_HEAP_SLACK = 4
_HEAP_MIN = 64
#: seconds; client-go's
_DURATION_BUCKETS = exponential_buckets(1e-6, 10, 10)


class WorkQueue(Generic[K]):
    """Owned by one controller; not shared.  Times are seconds since the epoch, delays are seconds.

    ``adds``, ``retries`` and ``gets`` only grow; ``depth``, ``in_progress`` and ``delayed`` are the
    present state.
    """

    def __init__(
        self, *, backoff: Backoff = RETRY_BACKOFF, bucket: TokenBucket | None = None
    ) -> None:
        self._backoff = backoff
        self._bucket = bucket or TokenBucket(rate_per_s=RETRY_RATE_PER_S, burst=RETRY_BURST)
        self._line: deque[K] = deque()
        #: waiting in the queue, or for ``done``; the value is when it was added
        self._dirty: dict[K, float] = {}
        #: the value is when it was got
        self._processing: dict[K, float] = {}
        #: key -> (when, number); heap entries that differ from it are stale
        self._delayed: dict[K, tuple[float, int]] = {}
        self._heap: list[tuple[float, int, K]] = []
        self._number = 0
        self._failures: dict[K, int] = {}
        self.adds = 0
        self.retries = 0
        self.gets = 0
        #: seconds that keys waited in the queue, and that they were processed
        self.waited = Histogram(_DURATION_BUCKETS)
        self.worked = Histogram(_DURATION_BUCKETS)

    # Adding

    def add(self, key: K, now: float) -> None:
        if key in self._dirty:
            return
        self.adds += 1
        self._dirty[key] = now
        if key not in self._processing:
            self._line.append(key)

    def add_after(self, key: K, delay_s: float, now: float) -> None:
        """Adds *key* in *delay_s*; immediately if that is not positive."""
        if delay_s <= 0:
            self.add(key, now)
            return
        when = now + delay_s
        earlier = self._delayed.get(key)
        if earlier is not None and earlier[0] <= when:
            return
        self._number += 1
        self._delayed[key] = (when, self._number)
        # The number decides before the key could: keys need no order.
        heapq.heappush(self._heap, (when, self._number, key))
        if len(self._heap) > max(_HEAP_MIN, _HEAP_SLACK * len(self._delayed)):
            self._heap = [(due, number, late) for late, (due, number) in self._delayed.items()]
            heapq.heapify(self._heap)

    def add_rate_limited(self, key: K, now: float) -> float:
        """Adds *key* again after a failure. Returns the delay."""
        failures = self._failures.get(key, 0)
        self._failures[key] = failures + 1
        self.retries += 1
        delay = max(self._backoff.delay_s(failures), self._bucket.take(now))
        self.add_after(key, delay, now)
        return delay

    def forget(self, key: K) -> None:
        """Resets the back-off of *key*, after a success or when it is abandoned."""
        self._failures.pop(key, None)

    def num_requeues(self, key: K) -> int:
        """Returns how often ``add_rate_limited`` was called for *key* since ``forget``."""
        return self._failures.get(key, 0)

    def drop(self, key: K) -> None:
        """Removes *key* and its delays; a key that is being processed still needs ``done``."""
        self.forget(key)
        self._delayed.pop(key, None)
        if self._dirty.pop(key, None) is not None and key not in self._processing:
            self._line.remove(key)

    # Working

    def get(self, now: float) -> K | None:
        """Returns the next key, for which the caller must call ``done``; ``None`` if there is none
        now.
        """
        while self._heap and self._heap[0][0] <= now:
            when, number, key = heapq.heappop(self._heap)
            if self._delayed.get(key) == (when, number):
                del self._delayed[key]
                self.add(key, now)
        if not self._line:
            return None
        key = self._line.popleft()
        self.waited.observe(max(now - self._dirty.pop(key), 0.0))
        self._processing[key] = now
        self.gets += 1
        return key

    def done(self, key: K, now: float | None = None) -> None:
        """Ends the work on a key. *now*, if passed, measures its duration."""
        assert key in self._processing, f"{key!r} is done but was not handed out"
        began = self._processing.pop(key)
        if now is not None:
            self.worked.observe(max(now - began, 0.0))
        if key in self._dirty:
            self._line.append(key)

    def next_deadline(self) -> float | None:
        """When the next delayed key joins the queue.  What is in the queue already is ``depth``."""
        while self._heap and self._delayed.get(self._heap[0][2]) != self._heap[0][:2]:
            heapq.heappop(self._heap)
        return self._heap[0][0] if self._heap else None

    # For metrics

    @property
    def depth(self) -> int:
        """Keys that ``get`` would return now, without those whose time has come since the last
        ``get``.
        """
        return len(self._line)

    @property
    def in_progress(self) -> int:
        return len(self._processing)

    @property
    def delayed(self) -> int:
        return len(self._delayed)

    def longest_running_s(self, now: float) -> float:
        """O(1): ``get`` stamps keys in order."""
        return max(now - next(iter(self._processing.values())), 0.0) if self._processing else 0.0

    def unfinished_s(self, now: float) -> float:
        """Returns the sum of the processing times of keys in progress. O(keys in progress)."""
        return sum(max(now - began, 0.0) for began in self._processing.values())

    def check(self) -> None:
        """Asserts every invariant. O(keys)."""
        line = list(self._line)
        assert len(line) == len(set(line)), f"a key is in the queue twice: {line}"
        waiting = [key for key in self._dirty if key not in self._processing]
        assert set(line) == set(waiting), f"line {line} is not what waits: {waiting}"
        live = {(when, number, key) for key, (when, number) in self._delayed.items()}
        assert live <= set(self._heap), "every delayed key has its entry in the heap"
        assert all(count > 0 for count in self._failures.values()), (
            f"counted no failure: {self._failures}"
        )


_METRICS: Final[tuple[tuple[str, Kind, str], ...]] = (
    ("adds_total", "counter", "Keys added."),
    ("depth", "gauge", "Keys that wait for a worker."),
    (
        "longest_running_processor_seconds",
        "gauge",
        "How long the key that is worked on longest has been.",
    ),
    ("queue_duration_seconds", "histogram", "How long keys wait before they are worked on."),
    ("retries_total", "counter", "Keys added again after a failure."),
    (
        "unfinished_work_seconds",
        "gauge",
        "Sum of the times that keys have been worked on, of those not done.",
    ),
    ("work_duration_seconds", "histogram", "How long keys are worked on."),
)


def queue_families(name: str, queue: WorkQueue[Any], now: float) -> tuple[Family, ...]:
    """Returns metrics under client-go's names, each with the label ``name``."""
    figures: tuple[float | Distribution, ...] = (
        queue.adds,
        queue.depth,
        queue.longest_running_s(now),
        queue.waited.read(),
        queue.retries,
        queue.unfinished_s(now),
        queue.worked.read(),
    )
    return tuple(
        Family(f"workqueue_{metric}", kind, text, ("name",), (Sample((name,), value),))
        for (metric, kind, text), value in zip(_METRICS, figures, strict=True)
    )
