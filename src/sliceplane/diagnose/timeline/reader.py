"""The reading side: rows of a segment back to entries with objects, in the order in which they were
recorded.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Any, Final

import msgspec

from sliceplane.api.errors import StatusError
from sliceplane.api.meta import Object, ObjectMeta
from sliceplane.api.scheme import Resource, by_key
from sliceplane.watch.cache import Change, Mark
from sliceplane.watch.recorder.delta import Reading
from sliceplane.watch.recorder.entries import (
    STEPS_KEPT,
    VERBS,
    Answer,
    Base,
    Changed,
    Code,
    Ended,
    Entry,
    LifeBegan,
    LifeEnded,
    LifeSynced,
    Marked,
    Old,
    Reached,
    RecordedAnswer,
    RecordedJob,
    RecordedWrite,
    Turned,
)
from sliceplane.watch.recorder.file import Recording, RecordingError, SegmentRows

#: what reading rows that no recorder wrote may end in
UNREADABLE: Final = (
    ValueError,
    TypeError,
    LookupError,
    AttributeError,
    ArithmeticError,
    AssertionError,
    RecursionError,
)


class _Key:
    __slots__ = ("answered", "name", "namespace", "newest", "resource")

    def __init__(self, resource: Resource, namespace: str, name: str) -> None:
        self.resource = resource
        self.namespace = namespace
        self.name = name
        self.newest: Any = None
        self.answered: Any = None


class _SegmentReader:
    """One segment; its numbers mean nothing elsewhere."""

    def __init__(self, segment: SegmentRows, reading: Reading) -> None:
        self._segment = segment
        self._unpack = reading.unpack
        self._unpack_whole = reading.unpack_whole
        self._unpack_moved = reading.unpack_moved
        self._keys: list[_Key] = []
        self._texts: list[str] = []
        self._steps: deque[Changed] = deque(maxlen=STEPS_KEPT + 1)
        self._step = 0

    def entries(self, *, first: bool) -> Iterator[Entry]:
        """*first*: no segment was read before this one, so what was under way when it began is
        told, too.
        """
        present = tuple(self._object(row) for row in self._segment.objects())
        if first:
            changes = tuple(Change(key.resource.key, None, key.newest) for key in present)
            for life in self._segment.lives:
                yield LifeBegan(
                    at=self._segment.began,
                    life=life.number,
                    name=life.name,
                    checkpoint=True,
                    synced=life.synced,
                    objects=changes,
                    busy=life.busy,
                )
        for number, names in enumerate(self._segment.names()):
            if number == len(self._segment.entry_blocks):
                return
            self._keys += [_Key(_resource(key[0]), key[1], key[2]) for key in names.keys]
            self._texts += names.texts
            for row in self._segment.block(number):
                entry = self._read(row)
                if entry is not None:
                    yield entry

    def _object(self, row: list[Any]) -> _Key:
        resource, namespace, name, base, difference = row
        key = _Key(_resource(resource), namespace, name)
        key.newest = self._value(key, base, difference)
        self._keys.append(key)
        return key

    def _read(self, row: list[Any]) -> Entry | None:
        match row[0]:
            case Code.STEP:
                self._on_step(row)
            case Code.CHANGE:
                _, when, life, back = row
                step = self._steps[-back]
                return Changed(
                    at=when,
                    life=life,
                    step=step.step,
                    key=step.key,
                    change=step.change,
                    writer=step.writer,
                )
            case Code.TURN:
                at = row[1]
                jobs = tuple(map(self._job, row[4])) if len(row) > 4 else ()
                return Turned(at=at, life=row[2], room=row[3], jobs=jobs)
            case Code.DONE:
                _, when, life, key, answers, error = row
                return Ended(
                    at=when,
                    life=life,
                    key=self._texts[key],
                    answers=tuple(map(self._answer, answers)),
                    error=_error(error),
                )
            case Code.BEGAN:
                return LifeBegan(at=row[1], life=row[2], name=self._texts[row[3]])
            case Code.SYNCED:
                return LifeSynced(at=row[1], life=row[2])
            case Code.ENDED:
                return LifeEnded(at=row[1], life=row[2], fault=self._texts[row[3]])
            case Code.REACHED:
                _, when, life, number, version, listed = row
                return Reached(at=when, life=life, mark=Mark(self._texts[number], version, listed))
            case Code.MARK:
                return Marked(at=row[1], kind=self._texts[row[2]], text=row[3])
            case code:
                raise RecordingError(
                    f"an entry has the code {code!r}, which this version does not know"
                )
        return None

    def _on_step(self, row: list[Any]) -> None:
        key = self._keys[row[1]]
        rest = row[3:]
        old = None
        if row[2] == Old.NEWEST:
            old = key.newest
        elif row[2] == Old.TOLD:
            old = key.newest = self._value(key, *rest[:2])
            rest = rest[2:]
        base, difference, writer = rest
        new = None
        missing = base == Base.GONE and bool(difference)
        if base == Base.GONE:
            key.newest = None
        else:
            new = self._value(key, base, difference)
            key.newest = new
            key.answered = None
        name = f"{key.namespace}/{key.name}" if key.namespace else key.name
        change: Change[Object] = Change(key.resource.key, old, new, missing)
        step = Changed(at=0.0, step=self._step, key=name, change=change, writer=self._texts[writer])
        self._step += 1
        self._steps.append(step)

    def _value(self, key: _Key, base: int, difference: Any) -> Any:
        if base == Base.NOTHING:
            return self._unpack_whole(key.resource.projection, difference)
        if base == Base.ANSWERED:
            return key.answered
        known = key.newest
        if known is None:
            raise RecordingError(
                f"{key.resource.key} {key.namespace}/{key.name} rests on an object that is gone"
            )
        return (
            self._unpack_moved(known, difference)
            if base == Base.MOVED
            else self._unpack(known, difference)
        )

    def _job(self, row: list[Any]) -> RecordedJob:
        key, writes = row
        return RecordedJob(self._texts[key], tuple(map(self._write, writes)))

    def _write(self, row: list[Any]) -> RecordedWrite:
        verb, resource, name, subresource, digest, size, *partial = row
        namespace, _, plain = self._texts[name].rpartition("/")
        return RecordedWrite(
            *(
                VERBS[verb],
                self._texts[resource],
                namespace,
                plain,
                self._texts[subresource],
                digest,
                size,
            ),
            partial=bool(partial),
        )

    def _answer(self, row: Any) -> RecordedAnswer:
        if isinstance(row, int):
            return RecordedAnswer(Answer(row))
        match row[0]:
            case Answer.UID:
                return RecordedAnswer(Answer.UID, uid=row[1])
            case Answer.ITEMS:
                kind = _resource(self._texts[row[1]]).projection
                return RecordedAnswer(
                    Answer.ITEMS, items=tuple(self._unpack_whole(kind, item) for item in row[2])
                )
            case Answer.WRITTEN:
                _, number, version, generation = row
                before = self._keys[number].newest
                meta = (
                    before.metadata
                    if before is not None
                    else ObjectMeta(namespace=self._keys[number].namespace)
                )
                meta = msgspec.structs.replace(
                    meta, resource_version=version, generation=generation
                )
                return RecordedAnswer(Answer.WRITTEN, Object(metadata=meta))
        _, number, base, difference = row
        key = self._keys[number]
        key.answered = self._value(key, base, difference)
        return RecordedAnswer(Answer.WHOLE, key.answered)


def entries(recording: Recording, segment: int = 0) -> Iterator[Entry]:
    """From the *segment*-th on.  Raises ``RecordingError`` where it makes no sense."""
    reading = recording.reading()
    for position, rows in enumerate(recording.segments[segment:]):
        try:
            yield from _SegmentReader(rows, reading).entries(first=position == 0)
        except UNREADABLE as error:
            raise RecordingError(
                f"segment {rows.number} cannot be read: {type(error).__name__}: {error}"
            ) from error


def last_time(recording: Recording) -> float:
    """Of the newest entry, without reading any object."""
    segment = recording.segments[-1]
    names = segment.names()
    return names[-1].ended if names else segment.began


def _resource(name: str) -> Resource:
    resource = by_key(name)
    if resource is None:
        raise RecordingError(f"this version knows no {name}")
    return resource


def _error(row: list[Any] | None) -> StatusError | None:
    if row is None:
        return None
    code, reason, message, details, retry_after_s, metadata = row
    return StatusError(code, reason, message, details, metadata or {}, retry_after_s)
