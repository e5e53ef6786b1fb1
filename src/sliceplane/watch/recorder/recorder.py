"""The writing side: what the host hands over is kept as it is, made into lines later, and deflated
by the hundred.

To hand something over costs an append: changes, jobs and answers are frozen, so they can be looked
at later. RecordedLines are made when ``THINGS_MAX`` of them wait, a block of ``LINES_PER_BLOCK``
lines, and both when the segments are read. The checkpoint of a segment is written a few objects
with each block, from a list of what was there when it began.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import islice
from typing import Any, Final
from zlib import compress

import msgspec

from sliceplane.api.meta import Object
from sliceplane.watch.cache import Change, Mark
from sliceplane.watch.controller.base import CACHE_DIFFERS, Done, EventNote, Work
from sliceplane.watch.recorder.entries import SENT, SentVersion, SliceSent
from sliceplane.watch.recorder.lines import (
    BATCH,
    BEGAN,
    CHANGE,
    DONE,
    ENDED,
    MARK,
    REACHED,
    SYNCED,
    Handed,
    Name,
    RecordedLines,
)
from sliceplane.watch.recorder.objects import redacted
from sliceplane.watch.recorder.redact import Redactor
from sliceplane.watch.recorder.ring import SEGMENT_BYTES, Ring, Segment

#: that wait to be made into lines: each keeps its objects in memory
THINGS_MAX: Final = 24
LINES_PER_BLOCK: Final = 256
#: what they may hold
BLOCK_BYTES_MAX: Final = 1 << 18
CHECKPOINT_OBJECTS_PER_BLOCK: Final = 64
#: an object of a checkpoint is about this large: to estimate whether a checkpoint is affordable
_OBJECT_BYTES: Final = 60
_encoder: Final = msgspec.json.Encoder()


class LoopRecord:
    """The record of one controller loop, which the host writes beside calling the controller.
    Times are those that the controller gets.
    """

    __slots__ = ("_append", "_loop", "_raw", "_recorder")

    def __init__(self, recorder: Recorder, raw: list[Handed], loop: int) -> None:
        self._recorder = recorder
        self._raw = raw
        self._append = raw.append
        self._loop = loop

    def change(self, change: Change[Object], now: float) -> None:
        self._append((CHANGE, now, self._loop, change))
        if len(self._raw) >= THINGS_MAX:
            self._recorder.encode()

    def reached(self, mark: Mark, now: float) -> None:
        self._append((REACHED, now, self._loop, mark))

    def synced(self, now: float) -> None:
        self._append((SYNCED, now, self._loop))

    def batch_taken(self, work: Work, room: int, now: float) -> None:
        if work.jobs:
            self._append((BATCH, now, self._loop, room, work.jobs))
        else:
            self._append((BATCH, now, self._loop, room))
            if len(self._raw) >= THINGS_MAX:
                self._recorder.encode()
        for note in work.notes:
            self._recorder.on_note(note, now)

    def done(self, done: Done, now: float) -> None:
        self._append((DONE, now, self._loop, done))

    def ended(self, now: float, fault: str = "") -> None:
        self._append((ENDED, now, self._loop, fault))
        if fault:
            self._recorder.trigger(f"a controller failed: {fault}")
        self._recorder.encode()


class Recorder:
    """Owned by one process.  *salt*: eight random bytes, see ``redact``."""

    def __init__(
        self, limit_bytes: int, salt: bytes, now: float, *, segment_bytes: int = SEGMENT_BYTES
    ) -> None:
        self.ring = Ring(limit_bytes, segment_bytes)
        self.redactor = Redactor(salt)
        self._lines = RecordedLines(self.redactor)
        #: why nothing is recorded any more
        self.fault = ""
        self._raw: list[Handed] = []
        self._loops_begun = 0
        self._trigger = ""
        self._at = now
        #: of the block that is being made: its text, in pieces, its entries and its lines
        self._pieces: list[bytes] = []
        self._entries = 0
        self._line_count = 0
        self._checkpoint: Iterator[tuple[Name, Any]] = iter(())
        self._segment = self.ring.begin(now, (), whole=True)

    # -- what happens

    def begin(self, name: str, now: float) -> LoopRecord:
        loop = self._loops_begun
        self._loops_begun += 1
        self._raw.append((BEGAN, now, loop, name))
        return LoopRecord(self, self._raw, loop)

    def mark(self, kind: str, text: str, now: float) -> None:
        self._raw.append((MARK, now, kind, text))

    def sent(
        self, version: SentVersion, service: str, watchers: int, size_bytes: int, now: float
    ) -> None:
        """The server queued a *version* of a slice of *service* ("namespace/name") for its watches;
        see ``Hub.on_sent``.
        """
        self._raw.append((MARK, now, SENT, SliceSent(version, watchers, size_bytes), service))
        if len(self._raw) >= THINGS_MAX:
            self.encode()

    def on_note(self, note: EventNote, now: float) -> None:
        """A controller tells people something."""
        about = f"{note.regarding_resource.kind} {note.regarding.metadata.key}"
        self.mark("event", f"{about}: {note.reason}: {note.note}", now)
        if note.reason == CACHE_DIFFERS:
            self.trigger(f"a node diverged: {note.regarding.metadata.name}")

    def note_body(self, resource_version: str, body: bytes) -> None:
        """An informer decoded it: managedFields, which no projection has, tell who wrote it."""
        self._lines.note_body(resource_version, body)

    def trigger(self, reason: str) -> None:
        """Requests that the retained entries be saved; the owner decides."""
        self._trigger = self._trigger or reason

    def take_trigger(self) -> str:
        reason, self._trigger = self._trigger, ""
        return reason

    def segments(self) -> tuple[Segment, ...]:
        """All that is kept, to the last call.  They do not change any more."""
        self.encode()
        self._end_block()
        while self.go_on_with_checkpoint():
            pass
        return tuple(
            replace(
                segment,
                checkpoint=list(segment.checkpoint),
                names=list(segment.names),
                blocks=list(segment.blocks),
            )
            for segment in self.ring.segments
        )

    @property
    def waiting(self) -> int:
        """Entries that are in no block yet."""
        return self._entries + len(self._raw)

    # -- lines

    def encode(self) -> None:
        """Never raises: a fault of the recorder is not to be one of the plane.  It ends the
        recording, and is kept.
        """
        raw = self._raw
        lines = self._lines.pending
        if raw and not self.fault:
            try:
                self._lines.add_all(raw)
                self._pieces.append(_encoder.encode_lines(lines))
                self._entries += len(raw)
                self._line_count += len(lines)
                self._at = raw[-1][1]
                size = sum(map(len, self._pieces))
                if self._line_count >= LINES_PER_BLOCK or size > BLOCK_BYTES_MAX:
                    self._end_block()
            except Exception as error:
                self.fault = f"{type(error).__name__}: {error}"
        lines.clear()
        raw.clear()

    def _end_block(self) -> None:
        if self._pieces:
            names = _encoder.encode(self._lines.end_block(self._at))
            block = compress(b"".join(self._pieces), 1)
            self.ring.add(compress(names, 1), block, self._entries)
            self._pieces, self._entries, self._line_count = [], 0, 0
        self.go_on_with_checkpoint()
        if self.ring.is_full(at_rest=self._lines.at_rest):
            self._begin_segment()

    def _begin_segment(self) -> None:
        while self.go_on_with_checkpoint():
            pass
        whole = self.ring.affords(len(self._lines) * _OBJECT_BYTES)
        self._segment = self.ring.begin(self._at, self._lines.loops(), whole=whole)
        self._checkpoint = self._lines.begin_segment(whole=whole)

    def go_on_with_checkpoint(self) -> bool:
        """Writes a few more objects of the checkpoint, as every block does. Returns False if there
        are none.
        """
        lines: list[bytes] = []
        size = 0
        for name, newest in islice(self._checkpoint, CHECKPOINT_OBJECTS_PER_BLOCK):
            line = _encoder.encode((*name, redacted(newest, self.redactor)))
            lines.append(line)
            size += len(line)
            if size > BLOCK_BYTES_MAX:
                break
        if lines:
            self.ring.add_checkpoint(self._segment, compress(b"\n".join(lines), 1))
        return bool(lines)

    def check(self) -> None:
        self.ring.check()
        self._lines.check()


class _NoRecord(LoopRecord):
    """The record of a host without a recorder."""

    __slots__ = ()

    def __init__(self) -> None:
        pass

    def _nothing(self, *_: object) -> None:
        pass

    change = reached = synced = batch_taken = done = ended = _nothing  # type: ignore[assignment]  # they take any


_NO_RECORD: Final = _NoRecord()


def begin_record(recorder: Recorder | None, name: str, now: float) -> LoopRecord:
    """Begins the record of a controller loop; without a *recorder* it records nothing."""
    return _NO_RECORD if recorder is None else recorder.begin(name, now)
