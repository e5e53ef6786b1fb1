"""Decides which Event a note belongs to, and when to write it (KEP-383, the API events.k8s.io/v1).

A note that says for the first time what it says about an object is an Event, and written at once.
Said again, it becomes a *series*: the same Event with ``series.count`` and
``series.lastObservedTime``, which is all that the API lets change. The second time is written at
once, later ones after ever longer pauses (``SERIES_BACKOFF``), so that an error that comes back a
hundred times a second costs a write every five minutes; well within the hour after which a server
forgets an Event. A series that was not seen for ``FINISHED_AFTER_S`` is over: its last count is
written, and the same note makes a new Event.

What would flood is bounded:

- More than ``SIMILAR_MAX`` different notes with one reason about one object within ten minutes
  become one series, "(combined from similar events): ...".
- One component may make ``SPAM_BURST`` Events about one object, then one every five minutes.
  Counting costs nothing.
- The ``REMEMBERED_MAX`` series that were used last are remembered; ``PENDING_MAX`` of them may wait
  to be written.

What a server refuses is dropped, what it may take later is tried again ``TRIES_MAX`` times. A
series that the server has forgotten is made anew with its count. The owner performs ``take_write``
and tells how it ended.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field
from typing import Final, Literal, TypeVar

import msgspec

from sliceplane.api.codec import encode
from sliceplane.api.meta import Document, Object
from sliceplane.api.scheme import EventsV1, Resource
from sliceplane.kit.delays import Backoff, TokenBucket
from sliceplane.kit.times import format_micro_time
from sliceplane.watch.controller.base import EventNote

FINISHED_AFTER_S: Final = 360.0
SERIES_BACKOFF: Final = Backoff(base_s=5.0, cap_s=300.0)
REMEMBERED_MAX: Final = 4096
PENDING_MAX: Final = 1000
SIMILAR_MAX: Final = 10
SIMILAR_PERIOD_S: Final = 600.0
SPAM_BURST: Final = 25
SPAM_RATE_PER_S: Final = 1 / 300
RETRY_PERIOD_S: Final = 10.0
TRIES_MAX: Final = 12
NOTE_BYTES_MAX: Final = 1024
TEXT_BYTES_MAX: Final = 128
#: the suffix is a dot and up to 16 hexadecimal digits
NAME_CHARACTERS_MAX: Final = 253 - 17

_COMBINED: Final = "(combined from similar events): "
#: how a write ended. ``missing``: there is no such Event to patch; ``exists``: there is one to
#: create
Outcome = Literal["written", "exists", "missing", "later", "refused"]
V = TypeVar("V")


class EventWrite(msgspec.Struct, frozen=True):
    """Create *body*, or merge it into the Event *name*.  ``count`` is the count in *body*."""

    verb: Literal["create", "patch"]
    namespace: str
    name: str
    body: bytes
    key: tuple[str, ...]
    count: int


class RecorderStatus(msgspec.Struct, frozen=True):
    """``pending`` is the present state; the others only grow: notes taken, writes done, notes let
    fall.

    ``suppressed`` by the limit for one object, ``dropped`` because a bound was reached or the
    server refused them.
    """

    pending: int = 0
    recorded: int = 0
    written: int = 0
    suppressed: int = 0
    dropped: int = 0


class _Recent(OrderedDict[tuple[str, ...], V]):
    """The *REMEMBERED_MAX* entries that were used last."""

    def remember(self, key: tuple[str, ...], value: V) -> V:
        self[key] = value
        self.move_to_end(key)
        while len(self) > REMEMBERED_MAX:
            self.popitem(last=False)
        return value


@dataclass(slots=True)
class _Series:
    """One Event object.  ``count`` is the number of its occurrences, ``written`` the number that
    the server has.
    """

    document: Document
    count: int = 0
    observed_at: float = 0.0
    written: int = 0
    written_at: float = 0.0
    #: successful writes so far, failed ones since
    writes: int = 0
    tries: int = 0
    #: a write is due; ``None``: nothing is to be written
    due: float | None = None


@dataclass(slots=True)
class _Similar:
    notes: set[str] = field(default_factory=set)
    at: float = 0.0


class EventCorrelator:
    """Owned by one recorder; at most one write is under way.  *instance* names the process in
    ``reportingInstance``.
    """

    def __init__(self, instance: str) -> None:
        assert instance, "events.k8s.io wants a reportingInstance"
        self._instance = instance
        self._series: OrderedDict[tuple[str, ...], _Series] = OrderedDict()
        self._similar: _Recent[_Similar] = _Recent()
        self._spam: _Recent[TokenBucket] = _Recent()
        #: series with something to write, in the order of their first unwritten note
        self._pending: OrderedDict[tuple[str, ...], None] = OrderedDict()
        self._in_flight: EventWrite | None = None
        self._pause_until = 0.0
        self._last_number = 0
        self._recorded = 0
        self._written = 0
        self._suppressed = 0
        self._dropped = 0

    # -- notes

    def on_note(self, note: EventNote, now: float) -> None:
        """Adds an occurrence of the note's Event; never raises, whatever the note contains."""
        self._recorded += 1
        key, text = self._correlate(note, now)
        series = self._series.get(key)
        if (
            series is not None
            and series.observed_at + FINISHED_AFTER_S < now
            and series.count == series.written
        ):
            del self._series[key]
            series = None
        if series is None:
            bucket = self._spam.get(key[:5]) or TokenBucket(
                rate_per_s=SPAM_RATE_PER_S, burst=SPAM_BURST
            )
            if not self._spam.remember(key[:5], bucket).try_take(now):
                self._suppressed += 1
                return
            series = self._series[key] = _Series(self._document(note, text, now))
        self._series.move_to_end(key)
        series.count += 1
        series.observed_at = now
        if series.due is None:
            self._plan(key, series, now)
        self._keep_bounds()

    def _correlate(self, note: EventNote, now: float) -> tuple[tuple[str, ...], str]:
        """Returns the key of the note's series (its first five parts: component and objects) and
        the text to write.
        """
        meta = note.regarding.metadata
        about = (note.component, note.regarding_resource.key, meta.namespace, meta.name, meta.uid)
        related = (
            ""
            if note.related is None
            else f"{note.related.metadata.key} {note.related.metadata.uid}"
        )
        kind = (*about, note.type, note.reason, note.action, related)
        similar = self._similar.get(kind)
        if similar is None or now - similar.at > SIMILAR_PERIOD_S:
            similar = _Similar()
        similar.at = now
        self._similar.remember(kind, similar)
        text = cut(note.note, NOTE_BYTES_MAX)
        if text not in similar.notes and len(similar.notes) >= SIMILAR_MAX:
            return (*kind, _COMBINED), cut(_COMBINED + note.note, NOTE_BYTES_MAX)
        similar.notes.add(text)
        return (*kind, text), text

    def _document(self, note: EventNote, text: str, now: float) -> Document:
        meta = note.regarding.metadata
        # Two notes within one tick of the clock need two names.
        self._last_number = max(self._last_number + 1, int(now * 1e9))
        document: Document = {
            "kind": EventsV1.kind,
            "apiVersion": EventsV1.api_version,
            "metadata": {
                "name": f"{meta.name[:NAME_CHARACTERS_MAX]}.{self._last_number:x}",
                "namespace": meta.namespace or "default",
            },
            "eventTime": format_micro_time(now),
            "reportingController": note.component,
            "reportingInstance": cut(f"{note.component}-{self._instance}", TEXT_BYTES_MAX),
            "action": cut(note.action, TEXT_BYTES_MAX),
            "reason": cut(note.reason, TEXT_BYTES_MAX),
            "regarding": _reference(note.regarding, note.regarding_resource),
            "note": text,
            "type": note.type,
        }
        if note.related is not None and note.related_resource is not None:
            document["related"] = _reference(note.related, note.related_resource)
        return document

    def _keep_bounds(self) -> None:
        while len(self._pending) > PENDING_MAX:
            key, _ = self._pending.popitem(last=False)
            self._forget(key)
        while len(self._series) > REMEMBERED_MAX:
            key = next(iter(self._series))
            if key in self._pending:
                del self._pending[key]
                self._dropped += 1
            del self._series[key]

    def _forget(self, key: tuple[str, ...]) -> None:
        del self._series[key]
        self._pending.pop(key, None)
        self._dropped += 1

    # -- writes

    def take_write(self, now: float) -> EventWrite | None:
        """Returns the next write that is due, Events before counts."""
        if self._in_flight is not None or now < self._pause_until:
            return None
        chosen = None
        for key in self._pending:
            series = self._series[key]
            if series.due is not None and series.due <= now:
                chosen = key if chosen is None or not series.written else chosen
                if not series.written:
                    break
        if chosen is None:
            return None
        self._in_flight = _write(chosen, self._series[chosen])
        return self._in_flight

    def on_outcome(self, outcome: Outcome, now: float) -> None:
        """Takes the result of the write that was taken last. ``later`` makes everything else wait,
        too.
        """
        write = self._in_flight
        self._in_flight = None
        assert write is not None, f"{outcome} of nothing"
        series = self._series.get(write.key)
        if outcome == "written":
            self._written += 1
        if series is None or series.document["metadata"]["name"] != write.name:
            return  # a bound was reached meanwhile
        if outcome == "written":
            series.written = write.count
            series.written_at = now
            series.tries = 0
            series.writes += 1
        elif outcome == "exists":
            series.written = 1  # our own, of a try whose answer was lost
        elif outcome == "missing":
            series.written = 0
        elif outcome == "later":
            series.tries += 1
            self._pause_until = now + RETRY_PERIOD_S
        if outcome == "refused" or series.tries >= TRIES_MAX:
            self._forget(write.key)
            return
        self._plan(write.key, series, now)

    def _plan(self, key: tuple[str, ...], series: _Series, now: float) -> None:
        if series.count == series.written:
            series.due = None
            self._pending.pop(key, None)
            return
        is_repeating = series.written and not series.tries and series.writes > 1
        pause = SERIES_BACKOFF.delay_s(series.writes - 2) if is_repeating else 0.0
        series.due = max(now, series.written_at + pause)
        self._pending[key] = None

    def hurry(self, now: float) -> None:
        """Makes everything due now: the process is about to end."""
        self._pause_until = min(self._pause_until, now)
        for key in self._pending:
            self._series[key].due = now

    def next_deadline(self) -> float | None:
        """Returns when ``take_write`` may have something without a further note."""
        if self._in_flight is not None:
            return None
        due = [series.due for key in self._pending if (series := self._series[key]).due is not None]
        return max(min(due), self._pause_until) if due else None

    @property
    def idle(self) -> bool:
        """Returns True if every note is written."""
        return self._in_flight is None and not self._pending

    def status(self) -> RecorderStatus:
        return RecorderStatus(
            len(self._pending), self._recorded, self._written, self._suppressed, self._dropped
        )

    def check(self) -> None:
        assert len(self._pending) <= PENDING_MAX, f"{len(self._pending)} pending"
        for recent in (self._series, self._similar, self._spam):
            assert len(recent) <= REMEMBERED_MAX, f"{len(recent)} remembered"
        for key, series in self._series.items():
            assert series.written <= series.count, (
                f"{key}: {series.written} written of {series.count}"
            )
            waits = key in self._pending
            assert waits == (series.due is not None), (
                f"{key} is {'' if waits else 'not '}pending, due {series.due}"
            )
            assert waits or series.written == series.count, f"{key}: {series.count} is not written"
        assert set(self._pending) <= set(self._series), "pending, and not remembered"


def _write(key: tuple[str, ...], series: _Series) -> EventWrite:
    metadata = series.document["metadata"]
    series_fields: Document = {}
    if series.count > 1:
        series_fields = {
            "series": {
                "count": series.count,
                "lastObservedTime": format_micro_time(series.observed_at),
            }
        }
    create = not series.written
    body = encode({**series.document, **series_fields} if create else series_fields)
    verb: Literal["create", "patch"] = "create" if create else "patch"
    return EventWrite(verb, metadata["namespace"], metadata["name"], body, key, series.count)


def _reference(about: Object, resource: Resource) -> Document:
    meta = about.metadata
    members = {
        "kind": resource.kind,
        "namespace": meta.namespace,
        "name": meta.name,
        "uid": meta.uid,
        "apiVersion": resource.api_version,
        "resourceVersion": meta.resource_version,
    }
    return {member: value for member, value in members.items() if value}


def cut(text: str, size: int) -> str:
    """Returns at most *size* bytes of UTF-8, which is what the API counts, with no character
    broken.
    """
    raw = text.encode()
    return text if len(raw) <= size else raw[:size].decode(errors="ignore")
