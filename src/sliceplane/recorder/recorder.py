"""The writing side: what the host hands over is kept as it is, and made into rows by the hundred.

To hand something over costs an append: changes, jobs and answers are frozen, so they can be looked at later.  Rows are
made when ``ROWS_PER_BLOCK`` things wait, or when someone asks for the segments.  The checkpoint of a segment is written
a few objects with each block, from a list of what was there when the segment began.

No object is decoded again but the answers to a controller's own writes; where an update's is large, its version alone
is kept, and a replay puts it onto the write that it is the answer to.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any, Final
from zlib import compress

import msgspec

from sliceplane.api.codec import decode
from sliceplane.api.errors import StatusError
from sliceplane.api.meta import Object
from sliceplane.api.scheme import Resource
from sliceplane.controllers.base import Done, EventNote, Job, Work, Write
from sliceplane.controllers.traffic_distribution import CACHE_DIFFERS
from sliceplane.informer.cache import Change, Mark
from sliceplane.recorder.delta import Packer
from sliceplane.recorder.entries import MICROSECONDS, STEPS_KEPT, VERBS, Answer, Base, Code, Old, Row
from sliceplane.recorder.redact import Redactor
from sliceplane.recorder.ring import SEGMENT_BYTES, LifeState, Ring, Segment

ROWS_PER_BLOCK: Final = 64
CHECKPOINT_OBJECTS_PER_BLOCK: Final = 64
#: of a larger answer to an update the version alone is kept
ANSWER_BYTES_MAX: Final = 2048
#: an object of a checkpoint is about this large: to know beforehand whether a checkpoint is affordable
_OBJECT_BYTES: Final = 60
#: objects whose writers are not known yet; a first list is longer, and who wrote what was there is not asked
_BODIES_MAX: Final = 1024
_VERB_NUMBERS: Final = {verb: number for number, verb in enumerate(VERBS)}
#: what the server makes of an update, which is at the head of an object of any server
_VERSION: Final = re.compile(rb'"resourceVersion":"([^"]*)"')
_GENERATION: Final = re.compile(rb'"generation":(\d+)')
_HEAD_BYTES: Final = 2048
_MANAGER: Final = re.compile(rb'"manager":"([^"]*)","operation":"[^"]*","apiVersion":"[^"]*","time":"([^"]*)"')
_encode_rows: Final = msgspec.msgpack.Encoder().encode

_Name = tuple[str, str, str]


class _Details(msgspec.Struct):
    uid: str = ""


class _Reply(msgspec.Struct):
    kind: str = ""
    details: _Details | None = None


class _Items(msgspec.Struct):
    items: list[msgspec.Raw] = []


_decode_reply: Final = msgspec.json.Decoder(_Reply).decode
_decode_items: Final = msgspec.json.Decoder(_Items).decode


class _Key:
    """What is known of one object: the version that was recorded last, and a newer one out of an answer."""

    __slots__ = ("answered", "newest", "number", "own_version")

    def __init__(self, number: int) -> None:
        self.number = number
        self.newest: Any = None
        self.answered: Any = None
        #: of the last answer to a controller's write
        self.own_version = ""


@dataclass(slots=True)
class _Life:
    name: str
    synced: bool = False
    busy: dict[str, None] = field(default_factory=dict)


class LifeRecord:
    """What the host tells of one life of a controller, beside telling the controller.  Times are as told to it."""

    __slots__ = ("_append", "_life", "_raw", "_recorder")

    def __init__(self, recorder: Recorder, raw: list[tuple[Any, ...]], life: int) -> None:
        self._recorder = recorder
        self._raw = raw
        self._append = raw.append
        self._life = life

    def change(self, change: Change[Object], now: float) -> None:
        self._append((Code.CHANGE, now, self._life, change))
        if len(self._raw) >= ROWS_PER_BLOCK:
            self._recorder.encode()

    def reached(self, mark: Mark, now: float) -> None:
        self._append((Code.REACHED, now, self._life, mark))

    def synced(self, now: float) -> None:
        self._append((Code.SYNCED, now, self._life))

    def turn(self, work: Work, room: int, now: float) -> None:
        self._append((Code.TURN, now, self._life, room, work.jobs))
        for note in work.notes:
            self._recorder.on_note(note, now)
        if len(self._raw) >= ROWS_PER_BLOCK:
            self._recorder.encode()

    def done(self, done: Done, now: float) -> None:
        self._append((Code.DONE, now, self._life, done))

    def ended(self, now: float, fault: str = "") -> None:
        self._append((Code.ENDED, now, self._life, fault))
        if fault:
            self._recorder.trigger(f"a controller failed: {fault}")
        self._recorder.encode()


class Recorder:
    """Owned by one process.  *salt*: eight random bytes, see ``redact``."""

    def __init__(self, limit_bytes: int, salt: bytes, now: float, *, segment_bytes: int = SEGMENT_BYTES) -> None:
        self.ring = Ring(limit_bytes, segment_bytes)
        self.redactor = Redactor(salt)
        self._packer = Packer(self.redactor)
        #: why nothing is recorded any more
        self.fault = ""
        self._raw: list[tuple[Any, ...]] = []
        self._rows: list[Row] = []
        self._lives: dict[int, _Life] = {}
        self._lives_begun = 0
        #: in the order of their numbers, but for those that are gone
        self._keys: dict[_Name, _Key] = {}
        self._key_number = 0
        self._last_of: dict[str, _Key] = {}
        self._texts: dict[str, int] = {}
        self._steps = 0
        self._recent: dict[int, tuple[int, Change[Object]]] = {}
        self._recent_order: deque[int] = deque()
        #: version -> the object as it came, until a controller is told of it
        self._bodies: dict[str, bytes] = {}
        self._trigger = ""
        self._at = now
        self._at_us = round(now * MICROSECONDS)
        self._entries = 0
        self._checkpoint: Iterator[tuple[_Name, Any]] = iter(())
        self._segment = self.ring.begin(now, (), whole=True)

    # -- what happens -----------------------------------------------------------------------------------

    def begin(self, name: str, now: float) -> LifeRecord:
        life = self._lives_begun
        self._lives_begun += 1
        self._raw.append((Code.BEGAN, now, life, name))
        return LifeRecord(self, self._raw, life)

    def mark(self, kind: str, text: str, now: float) -> None:
        self._raw.append((Code.MARK, now, kind, text))

    def on_note(self, note: EventNote, now: float) -> None:
        """A controller tells people something."""
        about = f"{note.regarding_resource.kind} {note.regarding.metadata.key}"
        self.mark("event", f"{about}: {note.reason}: {note.note}", now)
        if note.reason == CACHE_DIFFERS:
            self.trigger(f"a node diverged: {note.regarding.metadata.name}")

    def note_body(self, resource_version: str, body: bytes) -> None:
        """An informer decoded it: managedFields, which no projection has, tell who wrote it."""
        if len(self._bodies) >= _BODIES_MAX:
            self._bodies.clear()
        self._bodies[resource_version] = body

    def trigger(self, reason: str) -> None:
        """What is kept should be saved; the owner decides whether it is."""
        self._trigger = self._trigger or reason

    def take_trigger(self) -> str:
        reason, self._trigger = self._trigger, ""
        return reason

    def segments(self) -> tuple[Segment, ...]:
        """All that is kept, to the last call.  They do not change any more."""
        self.encode()
        while self.go_on_with_checkpoint():
            pass
        return tuple(
            replace(segment, checkpoint=list(segment.checkpoint), blocks=list(segment.blocks))
            for segment in self.ring.segments
        )

    # -- rows -------------------------------------------------------------------------------------------

    def encode(self) -> None:
        """Never raises: a fault of the recorder is not to be one of the plane.  It ends the recording, and is kept."""
        raw = self._raw
        if raw and not self.fault:
            try:
                self._encode(raw)
            except Exception as error:
                self.fault = f"{type(error).__name__}: {error}"
        raw.clear()

    def _encode(self, raw: list[tuple[Any, ...]]) -> None:
        rows = self._rows = []
        self._entries = 0
        for thing in raw:
            self._add(thing)
        self.ring.add(compress(_encode_rows(rows), 1), self._entries)
        self.go_on_with_checkpoint()
        if self.ring.is_full(at_rest=not any(life.busy for life in self._lives.values())):
            self._begin_segment()

    def _add(self, thing: tuple[Any, ...]) -> None:
        code = thing[0]
        self._entries += 1
        if code is Code.CHANGE:
            _, now, life, change = thing
            known = self._recent.get(id(change))
            step = self._step(change) if known is None else known[0]
            self._rows.append((5, self._when(now), life, self._steps - step))
        elif code is Code.TURN:
            _, now, life, room, jobs = thing
            if jobs:
                made = [self._job(life, job) for job in jobs]
                self._rows.append((6, self._when(now), life, room, made))
            else:
                self._rows.append((6, self._when(now), life, room))
        elif code is Code.REACHED:
            _, now, life, mark = thing
            number = self._text(mark.resource)
            self._rows.append((Code.REACHED.value, self._when(now), life, number, mark.version, mark.listed))
        elif code is Code.DONE:
            self._done(*thing[1:])
        elif code is Code.MARK:
            _, now, kind, text = thing
            number = self._text(kind)
            self._rows.append((Code.MARK.value, self._when(now), number, text))
        else:
            self._life(*thing)

    def _life(self, code: Code, now: float, life: int, text: str = "") -> None:
        """Began, synced or ended."""
        if code is Code.BEGAN:
            self._lives[life] = _Life(text)
        elif code is Code.SYNCED:
            self._lives[life].synced = True
        else:
            del self._lives[life]
        row: Row = (code.value, 0, life) if code is Code.SYNCED else (code.value, 0, life, self._text(text))
        self._rows.append((row[0], self._when(now), *row[2:]))

    def _when(self, now: float) -> int | float:
        """*now*, as the entry that is being made has it."""
        if now == self._at:
            return 0
        micro = round(now * MICROSECONDS)
        when = micro - self._at_us if micro / MICROSECONDS == now and micro != self._at_us else now
        self._at = now
        self._at_us = micro
        return when

    def _text(self, text: str) -> int:
        number = self._texts.get(text)
        if number is None:
            number = self._texts[text] = len(self._texts)
            self._rows.append((1, text))
        return number

    def _key(self, resource: str, namespace: str, name: str) -> _Key:
        name_of = (resource, namespace, name)
        key = self._keys.get(name_of)
        if key is None:
            key = self._keys[name_of] = _Key(self._key_number)
            self._key_number += 1
            self._rows.append((0, resource, namespace, name))
        return key

    def _step(self, change: Change[Object]) -> int:
        """A row for how the object changed."""
        old, new = change.old, change.new
        meta = change.object.metadata
        resource = change.resource
        key = self._key(resource, meta.namespace, meta.name)
        row: list[Any] = [4, key.number]
        if old is None:
            row.append(Old.NOTHING.value)
        elif _same(key.newest, old):
            row.append(Old.NEWEST.value)
        else:
            row += (Old.TOLD.value, *self._difference(key, resource, old))
            key.newest = old
        if new is None:
            row += (Base.GONE.value, change.missing or None)
            self._keys.pop((resource, meta.namespace, meta.name), None)
            if self._last_of.get(resource) is key:
                del self._last_of[resource]
        else:
            row += self._difference(key, resource, new)
            key.newest = new
            key.answered = None
            self._last_of[resource] = key
        body = self._bodies.pop(meta.resource_version, b"")
        row.append(self._text(writer_of(body) if body and key.own_version != meta.resource_version else ""))
        self._rows.append(tuple(row))
        number = self._steps
        self._steps += 1
        self._recent[id(change)] = (number, change)
        self._recent_order.append(id(change))
        if len(self._recent_order) > STEPS_KEPT:
            del self._recent[self._recent_order.popleft()]
        return number

    def _difference(self, key: _Key, resource: str, value: Object) -> tuple[int, Any]:
        """A base, and the difference to it."""
        if _same(key.answered, value):
            return Base.ANSWERED.value, []
        if key.newest is not None:
            return Base.NEWEST.value, self._packer.difference(key.newest, value)
        other = self._last_of.get(resource)
        if other is not None and other.newest is not None:
            return Base.OTHER.value + other.number, self._packer.difference(other.newest, value)
        return Base.NOTHING.value, self._packer.whole(value)

    # -- jobs -------------------------------------------------------------------------------------------

    def _job(self, life: int, job: Job) -> Row:
        self._lives[life].busy[job.key] = None
        return (self._text(job.key), [self._write(write) for write in job.writes])

    def _write(self, write: Write) -> Row:
        name = f"{write.namespace}/{write.name}" if write.namespace else write.name
        return (
            _VERB_NUMBERS[write.verb],
            self._text(write.resource.schema_key),
            self._text(name),
            self._text(write.subresource),
            self.redactor.digest(write),
            len(write.body),
        )

    def _done(self, now: float, life: int, done: Done) -> None:
        self._lives[life].busy.pop(done.job.key, None)
        key = self._text(done.job.key)
        answers = [self._answer(*pair) for pair in zip(done.job.writes, done.results, strict=False)]
        self._rows.append((7, self._when(now), life, key, answers, _error_row(done.error)))

    def _answer(self, write: Write, result: bytes) -> Any:
        if not result:
            return Answer.EMPTY.value
        try:
            if write.verb == "list":
                items = [decode(item, write.resource.projection) for item in _decode_items(result).items]
                text = self._text(write.resource.schema_key)
                return [Answer.ITEMS.value, text, [self._packer.whole(item) for item in items]]
            if write.verb == "delete" or write.subresource:
                reply = _decode_reply(result)
                if reply.kind == "Status":
                    uid = reply.details.uid if reply.details is not None else ""
                    return [Answer.UID.value, uid] if uid else Answer.STATUS.value
            if write.verb == "update" and not write.subresource and len(result) > ANSWER_BYTES_MAX:
                version, generation = (
                    _VERSION.search(result, 0, _HEAD_BYTES),
                    _GENERATION.search(result, 0, _HEAD_BYTES),
                )
                key = self._key(write.resource.key, write.namespace, write.name)
                # What the server keeps of an object is taken from the version before, so that must be of this object.
                known = key.newest is not None and result.find(key.newest.metadata.uid.encode(), 0, _HEAD_BYTES) >= 0
                if version is not None and known:
                    number = 0 if generation is None else int(generation[1])
                    key.own_version = version[1].decode()
                    return [Answer.WRITTEN.value, key.number, key.own_version, number]
            return self._whole(write.resource, decode(result, write.resource.projection))
        except msgspec.DecodeError:
            return Answer.STATUS.value  # the core can make nothing of it, either

    def _whole(self, resource: Resource, answer: Object) -> Any:
        meta = answer.metadata
        key = self._key(resource.key, meta.namespace, meta.name)
        made = [Answer.WHOLE.value, key.number, *self._difference(key, resource.key, answer)]
        key.answered = answer
        key.own_version = meta.resource_version
        return made

    # -- segments ---------------------------------------------------------------------------------------

    def _begin_segment(self) -> None:
        while self.go_on_with_checkpoint():
            pass
        whole = self.ring.affords(len(self._keys) * _OBJECT_BYTES)
        present = {name: key for name, key in self._keys.items() if key.newest is not None} if whole else {}
        lives = tuple(
            LifeState(number, life.name, life.synced, tuple(life.busy)) for number, life in self._lives.items()
        )
        self._segment = self.ring.begin(self._at, lives, whole=whole)
        self._keys = {}
        self._last_of = {}
        # Objects of a kind together: each is the difference to the one before.
        by_resource: dict[str, list[tuple[_Name, _Key]]] = {}
        for name, key in present.items():
            by_resource.setdefault(name[0], []).append((name, key))
        for of_resource in by_resource.values():
            for name, key in of_resource:
                key.number = len(self._keys)
                key.answered = None
                self._keys[name] = key
        self._key_number = len(self._keys)
        self._checkpoint = iter([(name, key.newest) for name, key in self._keys.items()])
        self._checkpoint_base: tuple[str, int, Any] = ("", 0, None)
        self._checkpointed = 0
        self._texts = {}
        self._steps = 0
        self._recent = {}
        self._recent_order = deque()

    def go_on_with_checkpoint(self) -> bool:
        """A few objects more of the checkpoint, which every block brings, too.  Whether there were any."""
        rows: list[Row] = []
        for name, newest in self._checkpoint:
            resource, number, base = self._checkpoint_base
            # Now and then without a base, so that one object can be read without reading all of them.
            if resource == name[0] and self._checkpointed % CHECKPOINT_OBJECTS_PER_BLOCK:
                difference = (Base.OTHER.value + number, self._packer.difference(base, newest))
            else:
                difference = (Base.NOTHING.value, self._packer.whole(newest))
            rows.append((*name, *difference))
            self._checkpoint_base = (name[0], self._checkpointed, newest)
            self._checkpointed += 1
            if len(rows) == CHECKPOINT_OBJECTS_PER_BLOCK:
                break
        if rows:
            self.ring.add_checkpoint(self._segment, compress(_encode_rows(rows), 1))
        return bool(rows)

    def check(self) -> None:
        self.ring.check()
        assert len(self._recent) <= STEPS_KEPT, f"{len(self._recent)} steps"


def writer_of(body: bytes) -> str:
    """The field manager that wrote last, as the object itself has it; "" if it does not say."""
    start = body.find(b'"managedFields":[')
    if start < 0:
        return ""
    entries = [(found[2], found.start(), found[1]) for found in _MANAGER.finditer(body, start)]
    return max(entries)[2].decode(errors="replace") if entries else ""


def _same(known: Any, value: Object) -> bool:
    """The same version of the same object, which a server shows alike each time."""
    if known is value:
        return True
    if known is None:
        return False
    ours, theirs = known.metadata, value.metadata
    return bool(ours.resource_version == theirs.resource_version and ours.uid == theirs.uid)


def _error_row(error: StatusError | None) -> Row | None:
    return (
        None
        if error is None
        else (error.code, error.reason, error.message, error.details, error.retry_after_s, error.metadata)
    )


class _NoRecord(LifeRecord):
    """Of a host without a recorder."""

    __slots__ = ()

    def __init__(self) -> None:
        pass

    def _nothing(self, *_: object) -> None:
        pass

    change = reached = synced = turn = done = ended = _nothing  # type: ignore[assignment]  # they take any


_NO_RECORD: Final = _NoRecord()


def begin_record(recorder: Recorder | None, name: str, now: float) -> LifeRecord:
    """Of a controller that begins; of nothing where there is no *recorder*."""
    return _NO_RECORD if recorder is None else recorder.begin(name, now)
