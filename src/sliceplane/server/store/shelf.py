"""One resource's durable objects and their recent history.

Three structures, all derived from the same sequence of events:

    live    path -> newest Record                       sorted; what a list of today walks
    log     StoreEvents after the compaction point      by revision; what a watch resumes from
    recent  path -> its StoreEvents that are in ``log`` sorted; what a list of the past consults

No version is kept twice, and a tombstone is nothing but a DELETED event. The state of a key at
revision R is what its **first event after R** says was there before (``previous``), and what
``live`` says if there is no such event. An example, with the compaction point at 4:

    rev 2 put a (v1), 5 put a (v2), 6 delete a, 7 put b, 8 put a (v3)
    live   {a: v3, b}           log [5, 6, 7, 8]           recent {a: [5, 6, 8], b: [7]}
    a at 4: event 5 says v1     a at 6: event 8 says None  a at 8: live says v3
    b at 6: event 7 says None   b at 9: live

Compaction to R drops the events up to R from both; versions that only they referred to are freed,
and a key that is gone leaves no trace. ``Retention`` says how long history is kept.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from heapq import merge
from itertools import pairwise
from operator import attrgetter

from sliceplane.kit.containers import SortedDict
from sliceplane.server.store.types import EventType, Record, StoreEvent

_by_revision = attrgetter("revision")
#: the character after "/": ``ns/`` <= path < ``ns0`` are the paths of a namespace
_AFTER_SLASH = chr(ord("/") + 1)
HISTORY_KEEP_S = 300.0
HISTORY_EVENTS_MAX = 100_000
#: bodies in the history: as many bytes as the objects themselves have, within these bounds
HISTORY_BYTES_MIN = 32 * 1024 * 1024
HISTORY_BYTES_MAX = 256 * 1024 * 1024
_SAMPLES = 100


class Shelf:
    """Owned by one ``Store``, which alone calls it."""

    __slots__ = ("live", "log", "recent")

    def __init__(self) -> None:
        self.live: SortedDict[str, Record] = SortedDict()
        self.log: list[StoreEvent] = []
        self.recent: SortedDict[str, list[StoreEvent]] = SortedDict()

    def load(self, record: Record) -> None:
        """A record of the state at the compaction point; its past is not known."""
        self.live[record.key.path] = record

    def apply(self, event: StoreEvent) -> None:
        """The next durable event."""
        path = event.record.key.path
        assert self.live.get(path) is event.previous, (
            f"{event.type} of {path}: its previous version is not the newest"
        )
        if event.type is EventType.DELETED:
            del self.live[path]
        else:
            self.live[path] = event.record
        self.log.append(event)
        events = self.recent.get(path)
        if events is None:
            self.recent[path] = [event]
        else:
            events.append(event)

    def compact(self, revision: int) -> int:
        """Drop history up to *revision*; O(dropped).  Returns how many events that were."""
        dropped = bisect_right(self.log, revision, key=_by_revision)
        # One cut for each key: a key that changed a thousand times is cut once, not a thousand
        # times.
        for path in {event.record.key.path: None for event in self.log[:dropped]}:
            events = self.recent[path]
            del events[: bisect_right(events, revision, key=_by_revision)]
            if not events:
                del self.recent[path]
        del self.log[:dropped]
        return dropped

    def events_since(self, revision: int, limit: int) -> tuple[StoreEvent, ...]:
        """Events strictly after *revision*, at most *limit* of them (0: all)."""
        first = bisect_right(self.log, revision, key=_by_revision)
        return tuple(self.log[first : first + limit] if limit else self.log[first:])

    def walk(self, namespace: str, after: str, revision: int) -> Iterator[Record]:
        """The records at *revision* (not before the compaction point) whose path is greater than
        *after*, in order.

        Lazy; ends wrongly if the shelf changes meanwhile, so callers finish before they return.
        """
        low, inclusive, high = _bounds(namespace, after)
        paths = self.live.irange(low, high, (inclusive, False))
        if not self.log or self.log[-1].revision <= revision:
            yield from map(self.live.__getitem__, paths)
            return
        last = ""
        for path in merge(paths, self.recent.irange(low, high, (inclusive, False))):
            if path != last:
                last = path
                record = self.at(path, revision)
                if record is not None:
                    yield record

    def at(self, path: str, revision: int) -> Record | None:
        events = self.recent.get(path)
        if events is not None and events[-1].revision > revision:
            return events[bisect_right(events, revision, key=_by_revision)].previous
        return self.live.get(path)

    def count(self, namespace: str, after: str, revision: int) -> int:
        """Returns the number of records that ``walk`` would yield: O(log n + events after
        *revision*).
        """
        low, inclusive, high = _bounds(namespace, after)
        live = self.live
        first = 0 if low is None else live.bisect_left(low) if inclusive else live.bisect_right(low)
        count = (len(live) if high is None else live.bisect_left(high)) - first
        for event in self.log[bisect_right(self.log, revision, key=_by_revision) :]:
            if event.type is EventType.MODIFIED:
                continue
            path = event.record.key.path
            if (low is None or path > low or (inclusive and path == low)) and (
                high is None or path < high
            ):
                count += 1 if event.type is EventType.DELETED else -1
        return count

    def check(self, compacted: int, newest: int) -> None:
        """Assert every invariant; O(state)."""
        revisions = [event.revision for event in self.log]
        assert revisions == sorted(set(revisions)), f"log is out of order: {revisions}"
        assert all(compacted < revision <= newest for revision in revisions), (
            f"{revisions} not in ({compacted}, {newest}]"
        )
        regrouped: dict[str, list[StoreEvent]] = {}
        for event in self.log:
            regrouped.setdefault(event.record.key.path, []).append(event)
        assert dict(self.recent) == regrouped, "recent is not the log by key"
        for path, events in regrouped.items():
            for event in events:
                assert event.revision == event.record.revision, (
                    f"{path}: event {event.revision} has {event.record.revision}"
                )
                assert (event.previous is None) == (event.type is EventType.ADDED), (
                    f"{path}: {event.type} and previous"
                )
            for older, newer in pairwise(events):
                expected = None if older.type is EventType.DELETED else older.record
                assert newer.previous is expected, (
                    f"{path}: {newer.revision} does not follow {older.revision}"
                )
            expected = None if events[-1].type is EventType.DELETED else events[-1].record
            assert self.live.get(path) is expected, f"{path}: live is not what the last event left"
        for path, record in self.live.items():
            assert record.key.path == path, f"{record.key} is filed under {path}"
            assert record.revision <= (newest if path in regrouped else compacted), (
                f"{path}: {record.revision}"
            )


def _bounds(namespace: str, after: str) -> tuple[str | None, bool, str | None]:
    """Lowest path, whether it belongs to the range, and the path before which the range ends."""
    if not namespace:
        return (after or None), not after, None
    low = f"{namespace}/"
    return (
        (after, False, namespace + _AFTER_SLASH)
        if after > low
        else (low, True, namespace + _AFTER_SLASH)
    )


@dataclass(slots=True)
class _Sample:
    #: newest revision in it
    revision: int
    events: int = 0
    bytes: int = 0
    #: when it ended; ``None``: at the next tick
    ended: float | None = None


class Retention:
    """Decides how long history is kept: at least so many seconds, unless it grows over a bound.
    Owned by the committer.

    Lists at a past revision and watches that resume live off history, and kube clients expect about
    five minutes of it. Time bounds it in normal operation; the number of events and their bytes
    bound it in a storm.

    A history of more bytes than all objects together costs more to replay than a list does, so
    beyond ``HISTORY_BYTES_MIN`` it is no longer than that.

    Commits come without a time: those between two ticks are a *sample*, which gets the time of the
    tick that ends it, so that nothing is dropped too early. A storm makes more samples (each at
    most a hundredth of a bound), never longer ones.
    """

    def __init__(
        self,
        *,
        keep_s: float = HISTORY_KEEP_S,
        events_max: int = HISTORY_EVENTS_MAX,
        bytes_min: int = HISTORY_BYTES_MIN,
        bytes_max: int = HISTORY_BYTES_MAX,
    ) -> None:
        self._keep_s = keep_s
        self._events_max = events_max
        self._bytes_min = bytes_min
        self._bytes_max = bytes_max
        self._samples: deque[_Sample] = deque()
        #: samples without a time, at the right end of ``_samples``
        self._open = 0
        #: history as far as this class was told of it
        self.events = 0
        self.bytes = 0
        #: history up to this revision may be dropped
        self.target = 0

    def on_commit(self, revision: int, events: int, size: int, live: int) -> None:
        """Commits up to *revision*: *events* of them, with *size* bytes of bodies; the newest
        versions of all objects have *live* bytes. May raise ``target``.
        """
        bytes_max = min(max(live, self._bytes_min), self._bytes_max)
        last = self._samples[-1] if self._open else None
        if (
            last is None
            or last.events * _SAMPLES >= self._events_max
            or last.bytes * _SAMPLES >= bytes_max
        ):
            last = _Sample(revision)
            self._samples.append(last)
            self._open += 1
        last.revision = revision
        last.events += events
        last.bytes += size
        self.events += events
        self.bytes += size
        # The newest sample stays: a client that has just listed must be able to watch.
        while len(self._samples) > 1 and (self.events > self._events_max or self.bytes > bytes_max):
            self._drop()

    def on_events(self, events: Sequence[StoreEvent], live: int) -> None:
        """Calls ``on_commit`` for the *events* of one batch."""
        size = sum(len(event.record.body) for event in events)
        self.on_commit(events[-1].revision, len(events), size, live)

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
