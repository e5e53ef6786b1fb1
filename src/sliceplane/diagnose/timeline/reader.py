"""Decodes lines of a segment to entries with objects, in the order in which they were recorded."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from itertools import chain
from typing import Any, Final, NamedTuple

import msgspec

from sliceplane.api.errors import StatusError
from sliceplane.api.meta import Object, ObjectMeta
from sliceplane.api.scheme import Resource, by_key
from sliceplane.watch.cache import Change, Mark
from sliceplane.watch.recorder.blocks import RecordingError, lines_of, names_of, objects_of
from sliceplane.watch.recorder.entries import (
    STEPS_KEPT,
    VERBS,
    Answer,
    BatchTaken,
    Changed,
    Code,
    Ended,
    Entry,
    LoopBegan,
    LoopEnded,
    LoopSynced,
    Marked,
    Old,
    Reached,
    RecordedAnswer,
    RecordedJob,
    RecordedWrite,
)
from sliceplane.watch.recorder.file import Recording
from sliceplane.watch.recorder.objects import read_object
from sliceplane.watch.recorder.ring import Segment

#: exceptions of reading lines that no recorder wrote
UNREADABLE: Final = (
    ValueError,
    TypeError,
    LookupError,
    AttributeError,
    ArithmeticError,
    AssertionError,
    RecursionError,
)


class ObjectKey(NamedTuple):
    resource: str
    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}" if self.namespace else self.name


class _SegmentReader:
    """Reads one segment; its numbers are valid only in it."""

    def __init__(self, segment: Segment) -> None:
        self._segment = segment
        self._newest: dict[ObjectKey, Any] = {}
        self._steps: deque[Changed] = deque(maxlen=STEPS_KEPT + 1)
        self._step = 0

    def entries(self, *, first: bool) -> Iterator[Entry]:
        """Yields the entries. *first*: no segment was read before, so the running controllers are
        yielded, too.
        """
        for resource, namespace, name, form in objects_of(self._segment.checkpoint):
            key = ObjectKey(resource, namespace, name)
            self._newest[key] = read_object(resource_of(resource).projection, form, None)
        if first:
            changes = tuple(
                Change(key.resource, None, version) for key, version in self._newest.items()
            )
            for loop in self._segment.loops:
                yield LoopBegan(
                    at=self._segment.began,
                    loop=loop.number,
                    name=loop.name,
                    checkpoint=True,
                    synced=loop.synced,
                    objects=changes,
                    busy=loop.busy,
                )
        for block in self._segment.blocks:
            for line in lines_of(block):
                if line[0] == Code.STEP:
                    self._on_step(line)
                else:
                    yield self._read(line)

    def _read(self, line: list[Any]) -> Entry:
        match line:
            case [Code.CHANGE, when, life, back]:
                step = self._steps[-back]
                return Changed(
                    at=when,
                    loop=life,
                    step=step.step,
                    key=step.key,
                    change=step.change,
                    writer=step.writer,
                )
            case [Code.BATCH, when, life, room, *jobs]:
                return BatchTaken(
                    at=when, loop=life, room=room, jobs=tuple(_job(job) for job in chain(*jobs))
                )
            case [Code.DONE, when, life, key, answers, error]:
                return Ended(
                    at=when,
                    loop=life,
                    key=key,
                    answers=tuple(map(self._answer, answers)),
                    error=None if error is None else _error(error),
                )
            case [Code.BEGAN, when, life, name]:
                return LoopBegan(at=when, loop=life, name=name)
            case [Code.SYNCED, when, life]:
                return LoopSynced(at=when, loop=life)
            case [Code.ENDED, when, life, fault]:
                return LoopEnded(at=when, loop=life, fault=fault)
            case [Code.REACHED, when, life, resource, version, listed]:
                return Reached(at=when, loop=life, mark=Mark(resource, version, listed))
            case [Code.MARK, when, kind, text, *_]:
                return Marked(at=when, kind=kind, text=text)
        raise RecordingError(f"an entry {str(line)[:80]} is none that this version knows")

    def _on_step(self, line: list[Any]) -> None:
        _, resource, namespace, name, replaced, form, writer, *missing = line
        key = ObjectKey(resource, namespace, name)
        kind = resource_of(resource).projection
        old = None
        if replaced == Old.NEWEST:
            old = self._newest[key]
        elif replaced != Old.NOTHING:
            old = self._newest[key] = read_object(kind, replaced, None)
        new = None
        if form is None:
            self._newest.pop(key, None)
        else:
            new = self._newest[key] = read_object(kind, form, self._newest.get(key))
        change: Change[Object] = Change(resource, old, new, any(missing))
        self._steps.append(
            Changed(at=0.0, step=self._step, key=str(key), change=change, writer=writer)
        )
        self._step += 1

    def _answer(self, line: Any) -> RecordedAnswer:
        match line:
            case int():
                return RecordedAnswer(Answer(line))
            case [Answer.UID, uid]:
                return RecordedAnswer(Answer.UID, uid=uid)
            case [Answer.ITEMS, resource, items]:
                kind = resource_of(resource).projection
                return RecordedAnswer(
                    Answer.ITEMS, items=tuple(read_object(kind, item, None) for item in items)
                )
            case [Answer.WRITTEN, resource, namespace, name, version, generation]:
                before = self._newest.get(ObjectKey(resource, namespace, name))
                meta = ObjectMeta(namespace=namespace) if before is None else before.metadata
                meta = msgspec.structs.replace(
                    meta, resource_version=version, generation=generation
                )
                return RecordedAnswer(Answer.WRITTEN, Object(metadata=meta))
            case [Answer.WHOLE, resource, form]:
                version = read_object(resource_of(resource).projection, form, None)
                return RecordedAnswer(Answer.WHOLE, version)
        raise RecordingError(f"an answer {str(line)[:80]} is none that this version knows")


def _job(line: list[Any]) -> RecordedJob:
    key, writes = line
    return RecordedJob(key, tuple(map(_write, writes)))


def _write(line: list[Any]) -> RecordedWrite:
    verb, resource, name, *rest = line
    namespace, _, plain = name.rpartition("/")
    return RecordedWrite(VERBS[verb], resource, namespace, plain, *rest)


def entries(recording: Recording, first: int = 0) -> Iterator[Entry]:
    """Yields entries from the *first* segment on. Raises ``RecordingError`` if a segment cannot be
    read.
    """
    for position, segment in enumerate(recording.segments[first:]):
        try:
            yield from _SegmentReader(segment).entries(first=position == 0)
        except UNREADABLE as error:
            raise RecordingError(
                f"segment {segment.number} cannot be read: {type(error).__name__}: {error}"
            ) from error


def last_time(recording: Recording) -> float:
    """Returns the time of the newest entry, without reading any object."""
    segment = recording.segments[-1]
    names = names_of(segment.names[-1:])
    return names[-1].ended if names else segment.began


def resource_of(name: str) -> Resource:
    """Raises ``RecordingError`` for a kind that this version does not have."""
    resource = by_key(name)
    if resource is None:
        raise RecordingError(f"this version knows no {name}")
    return resource


def _error(line: list[Any]) -> StatusError:
    code, reason, message, details, retry_after_s, metadata = line
    return StatusError(code, reason, message, details, metadata or {}, retry_after_s)
