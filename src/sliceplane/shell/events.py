"""Events for people: notes of controllers become core/v1 Events, repeated ones bump a count.

``Correlator`` decides (it is pure: time is an argument), ``EventRecorder`` writes.  As in client-go:

- The same note on the same object again is the same Event with a higher ``count``.
- More than ``SIMILAR_MAX`` different notes with one reason on one object within ten minutes become one Event,
  "(combined from similar events): ...".
- One component may say ``SPAM_BURST`` things about one object, then one every five minutes.

Recording never blocks and never fails: what does not fit into the bounds is dropped and counted.  An Event that is gone
when its count should be bumped (Kubernetes forgets Events after an hour) is created anew.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeVar

from sliceplane.api import codec
from sliceplane.api.errors import StatusError
from sliceplane.api.meta import Document
from sliceplane.api.scheme import Events
from sliceplane.controllers.base import EventNote
from sliceplane.kit.times import format_time
from sliceplane.kit.token_bucket import TokenBucket
from sliceplane.shell.client.base import Client, Unreachable
from sliceplane.shell.log import get_logger

REMEMBERED_MAX = 4096
PENDING_MAX = 1000
SIMILAR_MAX = 10
SIMILAR_PERIOD_S = 600.0
SPAM_BURST = 25
SPAM_RATE_PER_S = 1 / 300
MESSAGE_CHARACTERS_MAX = 1024
#: the suffix is a dot and up to 16 hexadecimal digits
NAME_CHARACTERS_MAX = 253 - 17
WRITE_TIMEOUT_S = 10.0
RETRY_PERIOD_S = 10.0
TRIES_MAX = 12
FLUSH_S = 1.0

_COMBINED = "(combined from similar events): "
_log = get_logger("events")
V = TypeVar("V")


class _Recent(OrderedDict[tuple[str, ...], V]):
    """The *REMEMBERED_MAX* entries that were used last."""

    def remember(self, key: tuple[str, ...], value: V) -> V:
        self[key] = value
        self.move_to_end(key)
        while len(self) > REMEMBERED_MAX:
            self.popitem(last=False)
        return value


@dataclass(slots=True)
class Series:
    """One Event object: what it should say, and how much of that the server has."""

    document: Document
    count: int = 0
    written: int = 0
    tries: int = 0


@dataclass(slots=True)
class _Similar:
    messages: set[str] = field(default_factory=set)
    at: float = 0.0


class Correlator:
    """Which Event a note belongs to.  Owned by one recorder."""

    def __init__(self, instance: str = "") -> None:
        self._instance = instance
        self._series: _Recent[Series] = _Recent()
        self._similar: _Recent[_Similar] = _Recent()
        self._spam: _Recent[TokenBucket] = _Recent()
        self._number = 0

    def on_note(self, note: EventNote, now: float) -> Series | None:
        """The series with its new count, to be written; ``None``: too many notes about this object."""
        meta, resource = note.regarding.metadata, note.regarding_resource
        about = (note.component, resource.key, meta.namespace, meta.name, meta.uid)
        bucket = self._spam.get(about) or TokenBucket(rate_per_s=SPAM_RATE_PER_S, burst=SPAM_BURST)
        if not self._spam.remember(about, bucket).try_take(now):
            return None
        message = note.note[:MESSAGE_CHARACTERS_MAX]
        kind = (*about, note.type, note.reason)
        similar = self._similar.get(kind)
        if similar is None or now - similar.at > SIMILAR_PERIOD_S:
            similar = _Similar()
        similar.at = now
        self._similar.remember(kind, similar)
        combined = message not in similar.messages and len(similar.messages) >= SIMILAR_MAX
        if combined:
            message = (_COMBINED + message)[:MESSAGE_CHARACTERS_MAX]
        else:
            similar.messages.add(message)
        key = (*kind, _COMBINED if combined else message)
        series = self._series.get(key) or Series(self._document(note, now))
        self._series.remember(key, series)
        series.count += 1
        series.tries = 0
        series.document.update(message=message, count=series.count, lastTimestamp=format_time(now))
        return series

    def _document(self, note: EventNote, now: float) -> Document:
        meta, resource = note.regarding.metadata, note.regarding_resource
        self._number += 1
        # Two notes within one tick of the clock need two names.
        suffix = f"{int(now * 1e9) + self._number:x}"
        involved = {
            "kind": resource.kind,
            "namespace": meta.namespace,
            "name": meta.name,
            "uid": meta.uid,
            "apiVersion": resource.api_version,
            "resourceVersion": meta.resource_version,
        }
        return {
            "kind": Events.kind,
            "apiVersion": Events.api_version,
            "metadata": {
                "name": f"{meta.name[:NAME_CHARACTERS_MAX]}.{suffix}",
                "namespace": meta.namespace or "default",
            },
            "involvedObject": {member: value for member, value in involved.items() if value},
            "reason": note.reason,
            "message": "",
            "source": {"component": note.component},
            "firstTimestamp": format_time(now),
            "lastTimestamp": "",
            "count": 0,
            "type": note.type,
            "reportingComponent": note.component,
            "reportingInstance": self._instance,
        }


@dataclass(frozen=True, slots=True)
class RecorderStatus:
    """``pending`` is the present state; the others only grow."""

    pending: int
    recorded: int
    written: int
    suppressed: int
    dropped: int


class EventRecorder:
    """``record`` from anywhere in the loop; ``run`` is one task."""

    def __init__(self, client: Client, *, clock: Callable[[], float], instance: str = "") -> None:
        self._client = client
        self._clock = clock
        self._correlator = Correlator(instance)
        #: by id, in the order of their first unwritten note
        self._pending: OrderedDict[int, Series] = OrderedDict()
        self._wake = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()
        self._recorded = self._written = self._suppressed = self._dropped = 0

    def record(self, note: EventNote) -> None:
        """Never blocks, never raises for what a note says."""
        self._recorded += 1
        series = self._correlator.on_note(note, self._clock())
        if series is None:
            self._suppressed += 1
            return
        self._pending.setdefault(id(series), series)
        if len(self._pending) > PENDING_MAX:
            self._pending.popitem(last=False)
            self._dropped += 1
        self._idle.clear()
        self._wake.set()

    def status(self) -> RecorderStatus:
        return RecorderStatus(len(self._pending), self._recorded, self._written, self._suppressed, self._dropped)

    async def flush(self) -> None:
        """Wait for what is pending to be written, for a moment."""
        try:
            async with asyncio.timeout(FLUSH_S):
                await self._idle.wait()
        except TimeoutError:
            pass

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            if not self._pending:
                self._idle.set()
                self._wake.clear()
                await self._wake.wait()
                continue
            _, series = self._pending.popitem(last=False)
            again = await self._write(series)
            if again:
                series.tries += 1
                if series.tries >= TRIES_MAX:
                    self._dropped += 1
                    continue
                self._pending.setdefault(id(series), series)
                self._pending.move_to_end(id(series), last=False)
                await asyncio.sleep(RETRY_PERIOD_S)

    async def _write(self, series: Series) -> bool:
        """Bring the server up to the series.  True: worth another try."""
        count, metadata = series.count, series.document["metadata"]
        try:
            async with asyncio.timeout(WRITE_TIMEOUT_S):
                if not series.written or not await self._bump(series):
                    await self._client.create(Events, metadata["namespace"], codec.encode(series.document))
        except StatusError as error:
            if error.reason == "AlreadyExists":
                # Our own, of a try whose answer was lost.
                series.written = max(series.written, 1)
                return True
            if error.code in (429, 500, 503, 504):
                return True
            self._dropped += 1
            _log.warning("an Event was refused", name=metadata["name"], error=str(error))
            return False
        except (Unreachable, TimeoutError):
            return True
        except Exception as error:  # Events are never worth a crash
            self._dropped += 1
            _log.error("an Event could not be written", name=metadata["name"], exc_info=error)
            return False
        series.written = count
        self._written += 1
        return False

    async def _bump(self, series: Series) -> bool:
        """False: the server has forgotten the Event."""
        document = series.document
        patch = codec.encode({member: document[member] for member in ("count", "lastTimestamp", "message")})
        metadata = document["metadata"]
        try:
            await self._client.patch(Events, metadata["namespace"], metadata["name"], patch, patch_type="merge")
        except StatusError as error:
            if error.code == 404:
                return False
            raise
        return True
