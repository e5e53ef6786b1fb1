"""How what was handed over becomes rows: objects, jobs and answers, each said once in a segment and
then by its number.

What is done for each thing is done in C, or is O(what changed): an object is encoded whole or,
where it is large, is the difference to its version before. A slice that comes back as its own
controller wrote it is not compared: the write told which endpoints it changed (``Write.parts``),
and the answer is as long as what was written.

No object is decoded again but the answers to a controller's own writes; where an update's is large,
its version alone is kept, and a replay puts it onto the write that it is the answer to.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

import msgspec

from sliceplane.api.codec import decode
from sliceplane.api.errors import StatusError
from sliceplane.api.meta import Object, is_older
from sliceplane.watch.cache import Change
from sliceplane.watch.controller.base import Done, Job, Write
from sliceplane.watch.recorder.delta import Packer, service_of
from sliceplane.watch.recorder.entries import (
    STEPS_KEPT,
    VERBS,
    Answer,
    Base,
    BlockNames,
    Code,
    Old,
    Row,
)
from sliceplane.watch.recorder.redact import Redactor, moved_parts
from sliceplane.watch.recorder.ring import LifeState

#: an object that is longer is kept as the difference to its version before
OBJECT_BYTES_MAX: Final = 2048
#: a step of a larger one counts as that many, of those that are remembered
LARGE_STEPS: Final = 16
#: of a larger answer to an update the version alone is kept
ANSWER_BYTES_MAX: Final = 2048
#: objects whose writers are not known yet; a first list is longer, and who wrote what was there is
#: not asked
BODIES_MAX: Final = 1024
_VERB_NUMBERS: Final = {verb: number for number, verb in enumerate(VERBS)}
#: what the server makes of an update, which is at the head of an object of any server
_VERSION: Final = b'"resourceVersion":"'
_GENERATION: Final = re.compile(rb',"generation":(\d+)')
_HEAD_BYTES: Final = 2048
_ENDPOINTS: Final = b'"endpoints":['
#: what is long in an object, and comes after all metadata: of a slice, of Endpoints
_LONG: Final = re.compile(rb'"(?:endpoints|subsets)":\[')
#: what follows an object, if anything, and how much of the end of one is compared
_LONGER: Final = (0, len("\n"))
_TAIL_BYTES: Final = 512
_MANAGER: Final = re.compile(
    rb'"manager":"([^"]*)","operation":"[^"]*","apiVersion":"[^"]*","time":"([^"]*)"'
)
#: as plain numbers, which is what rows begin with
STEP, CHANGE, TURN, DONE = (code.value for code in (Code.STEP, Code.CHANGE, Code.TURN, Code.DONE))
BEGAN, SYNCED, ENDED = (code.value for code in (Code.BEGAN, Code.SYNCED, Code.ENDED))
MARK, REACHED = (code.value for code in (Code.MARK, Code.REACHED))
GONE, NOTHING, NEWEST, ANSWERED, MOVED = (base.value for base in Base)
_OLD_NOTHING, _OLD_NEWEST, _OLD_TOLD = (old.value for old in (Old.NOTHING, Old.NEWEST, Old.TOLD))
_WHOLE: Final = Answer.WHOLE.value
_WRITTEN: Final = Answer.WRITTEN.value

Name = tuple[str, str, str]
#: what a recorder was handed: a code, when, and what
Handed = tuple[Any, ...]


class _Details(msgspec.Struct):
    uid: str = ""


class _Reply(msgspec.Struct):
    kind: str = ""
    details: _Details | None = None


class _Items(msgspec.Struct):
    items: list[msgspec.Raw] = []


_decode_reply: Final = msgspec.json.Decoder(_Reply).decode
_decode_items: Final = msgspec.json.Decoder(_Items).decode


class _Wrote(NamedTuple):
    """The last write of a slice: by which life, for which job; ``moved``: which endpoints it
    changed since *before*.
    """

    life: int
    job: str
    parts: Collection[bytes] = ()
    before: Collection[bytes] = ()
    moved: list[int] | None = None


_NEVER: Final = _Wrote(-1, "")


class _Key:
    """What is known of one object: the version that was recorded last, and a newer one out of an
    answer.
    """

    __slots__ = (
        "answered",
        "answered_parts",
        "large",
        "named",
        "newest",
        "newest_parts",
        "number",
        "own_version",
        "unproven",
        "writing",
        "wrote",
    )

    def __init__(self, number: int) -> None:
        self.number = number
        self.newest: Any = None
        self.answered: Any = None
        #: it is kept as differences
        self.large = False
        #: as a write names it, in texts
        self.named: tuple[int, int, int] | None = None
        #: of the last answer to a controller's write
        self.own_version = ""
        #: of a slice: a write that is under way, and the last one
        self.writing: Write | None = None
        self.wrote = _NEVER
        #: a write whose answer left out the endpoints: the event that shows it is looked at
        self.unproven: Write | None = None
        #: of a slice that is known to be as it was written, its endpoints: of that answer, and of
        #: the newest version
        self.answered_parts: Collection[bytes] = ()
        self.newest_parts: Collection[bytes] = ()


@dataclass(slots=True)
class _Life:
    name: str
    synced: bool = False
    busy: dict[str, None] = field(default_factory=dict)


class Rows:
    """Owned by one recorder.  ``made`` are the rows that are in no block yet."""

    def __init__(self, redactor: Redactor) -> None:
        self.packer: Final = Packer(redactor)
        self._redactor = redactor
        self.made: list[Row] = []
        #: of the objects in them
        self.size_bytes = 0
        #: of ``BlockNames``
        self._new_keys: list[tuple[str, str, str, str]] = []
        self._new_texts: list[str] = []
        self._touched: dict[int, None] = {}
        self._planned: dict[int, None] = {}
        self._lives: dict[int, _Life] = {}
        #: in the order of their numbers, but for those that are gone
        self._keys: dict[Name, _Key] = {}
        self._key_number = 0
        self._texts: dict[str, int] = {}
        self._steps = 0
        #: by the change's id, in the order in which they were told
        self._recent: dict[int, tuple[int, Change[Object], int]] = {}
        self._remembered = 0
        #: version -> the object as it came, until a controller is told of it
        self._bodies: dict[str, bytes] = {}

    def __len__(self) -> int:
        """How many objects there are."""
        return len(self._keys)

    @property
    def at_rest(self) -> bool:
        """No job is under way."""
        return not any(life.busy for life in self._lives.values())

    def lives(self) -> tuple[LifeState, ...]:
        return tuple(
            LifeState(number, life.name, life.synced, tuple(life.busy))
            for number, life in self._lives.items()
        )

    def note_body(self, resource_version: str, body: bytes) -> None:
        if len(self._bodies) >= BODIES_MAX:
            self._bodies.clear()
        self._bodies[resource_version] = body

    def begin_segment(self, *, whole: bool) -> Iterator[tuple[Name, Any]]:
        """All numbers begin anew.  Gives the objects that there are, if *whole*."""
        present = (
            {name: key for name, key in self._keys.items() if key.newest is not None}
            if whole
            else {}
        )
        self._keys = {}
        for number, (name, key) in enumerate(present.items()):
            key.number = number
            key.answered = None
            key.large = False
            key.wrote = _NEVER
            key.named = None
            self._keys[name] = key
        self._key_number = len(self._keys)
        self._texts = {}
        self._steps = 0
        self._recent = {}
        self._remembered = 0
        return iter([(name, key.newest) for name, key in self._keys.items()])

    def end_block(self, ended: float) -> BlockNames:
        """What ``made`` has is in a block, and these are its names."""
        names = BlockNames(
            ended, self._new_keys, self._new_texts, list(self._touched), list(self._planned)
        )
        self._new_keys, self._new_texts = [], []
        self._touched, self._planned = {}, {}
        self.made.clear()
        self.size_bytes = 0
        return names

    def add_all(self, things: list[Handed]) -> None:
        made = self.made
        for thing in things:
            code = thing[0]
            if code == CHANGE:
                _, now, life, change = thing
                known = self._recent.get(id(change))
                step = self._step(change) if known is None else known[0]
                made.append((CHANGE, now, life, self._steps - step))
            elif code == TURN:
                if len(thing) > 4:
                    _, now, life, room, jobs = thing
                    made.append((TURN, now, life, room, [self._job(life, job) for job in jobs]))
                else:
                    made.append(thing)
            elif code == DONE:
                self._done(*thing[1:])
            else:
                self._add(code, thing)

    def _add(self, code: int, thing: tuple[Any, ...]) -> None:
        """What is seldom."""
        if code == REACHED:
            _, now, life, mark = thing
            self.made.append(
                (code, now, life, self._text(mark.resource), mark.version, mark.listed)
            )
        elif code == MARK:
            _, now, kind, what, *about = thing
            row: list[Any] = [code, now, self._text(kind), str(what)]
            for service in about:
                number = self._text(service)
                self._planned[number] = None
                row.append(number)
            self.made.append(tuple(row))
        else:
            self._life(*thing)

    def _life(self, code: int, now: float, life: int, text: str = "") -> None:
        """Began, synced or ended."""
        if code == BEGAN:
            self._lives[life] = _Life(text)
        elif code == SYNCED:
            self._lives[life].synced = True
        else:
            del self._lives[life]
        self.made.append(
            (code, now, life) if code == SYNCED else (code, now, life, self._text(text))
        )

    def _text(self, text: str) -> int:
        number = self._texts.get(text)
        if number is None:
            number = self._texts[text] = len(self._texts)
            self._new_texts.append(text)
        return number

    def _key(self, resource: str, namespace: str, name: str, value: Object | None = None) -> _Key:
        name_of = (resource, namespace, name)
        key = self._keys.get(name_of)
        if key is None:
            key = self._keys[name_of] = _Key(self._key_number)
            self._key_number += 1
            self._new_keys.append((*name_of, service_of(value)))
        return key

    def _step(self, change: Change[Object]) -> int:
        """A row for how the object changed."""
        old, new = change.old, change.new
        meta = (old if new is None else new).metadata  # type: ignore[union-attr]  # a change has one of them
        resource = change.resource
        key = self._keys.get((resource, meta.namespace, meta.name)) or self._key(
            resource, meta.namespace, meta.name, change.object
        )
        self._touched[key.number] = None
        row: list[Any] = [STEP, key.number]
        body = self._bodies.pop(meta.resource_version, b"") if self._bodies else b""
        writer = writer_of(body) if body and key.own_version != meta.resource_version else ""
        if old is None:
            row.append(_OLD_NOTHING)
        elif key.newest is old or _same(key.newest, old):
            row.append(_OLD_NEWEST)
        else:
            row += (_OLD_TOLD, *self._difference(key, old, b""))
            key.newest = old
        if new is None:
            row += (GONE, change.missing or None)
            self._keys.pop((resource, meta.namespace, meta.name), None)
        else:
            row += self._difference(key, new, body)
            key.newest = new
            key.answered = None
        row.append(self._text(writer))
        self.made.append(tuple(row))
        number = self._steps
        self._steps += 1
        if len(self._lives) > 1:
            self._remember(change, number, LARGE_STEPS if key.large else 1)
        return number

    def _remember(self, change: Change[Object], number: int, weight: int) -> None:
        """Other controllers are told of it, too."""
        recent = self._recent
        recent[id(change)] = (number, change, weight)
        self._remembered += weight
        while self._remembered > STEPS_KEPT:
            self._remembered -= recent.pop(next(iter(recent)))[2]

    def _difference(self, key: _Key, value: Object, body: bytes) -> tuple[int, Any]:
        """A base, and the difference to it.  *value* becomes the newest version."""
        before, key.newest_parts = key.newest_parts, self._parts(key, value, body)
        if key.answered is not None and _same(key.answered, value):
            return ANSWERED, []
        if key.large and key.newest is not None:
            if before and key.newest_parts:
                wrote = key.wrote
                known = wrote.before is before and wrote.parts is key.newest_parts
                moved = wrote.moved if known else moved_parts(before, key.newest_parts)
                slim = None if moved is None else self.packer.moved(key.newest, value, moved)
                if slim is not None:
                    return MOVED, slim
            return NEWEST, self.packer.difference(key.newest, value)
        return NOTHING, self._whole(key, value)

    def _parts(self, key: _Key, value: Object, body: bytes) -> Collection[bytes]:
        """The endpoints of *value*, where it is known to be what a controller wrote; *body* is as
        it came.
        """
        if key.writing is None and not key.own_version:
            return ()
        write = key.writing  # informers may be quicker than answers
        if value.metadata.resource_version == key.own_version:
            key.own_version = ""  # a server that was restored may reach that version again
            if key.unproven is None:
                return key.answered_parts
            write, key.unproven = key.unproven, None
        return write.parts if write is not None and body and _is_kept(write, body) else ()

    def _whole(self, key: _Key, value: Object) -> bytes | list[Any]:
        whole = self.packer.whole(value)
        key.large = type(whole) is list or len(whole) > OBJECT_BYTES_MAX
        self.size_bytes += len(whole)
        return whole

    # -- jobs

    def _job(self, life: int, job: Job) -> Row:
        self._lives[life].busy[job.key] = None
        text = self._text(job.key)
        self._planned[text] = None
        return (text, [self._write(life, job.key, write) for write in job.writes])

    def _write(self, life: int, job: str, write: Write) -> Row:
        verb = _VERB_NUMBERS[write.verb]
        size = len(write.body)
        if not write.parts or write.verb != "update":
            return (verb, *self._named(write), self._redactor.digest(write), size)
        key = self._key(write.resource.key, write.namespace, write.name)
        if key.named is None:
            key.named = self._named(write)
        wrote = key.wrote
        before = wrote.parts if wrote.life == life and wrote.job == job else ()
        moved = moved_parts(before, write.parts)
        key.wrote = _Wrote(life, job, write.parts, before, moved)
        key.writing = write
        digest = self._redactor.digest(write, moved)
        return (
            (verb, *key.named, digest, size)
            if moved is None
            else (verb, *key.named, digest, size, True)
        )

    def _named(self, write: Write) -> tuple[int, int, int]:
        name = f"{write.namespace}/{write.name}" if write.namespace else write.name
        return (
            self._text(write.resource.schema_key),
            self._text(name),
            self._text(write.subresource),
        )

    def _done(self, now: float, life: int, done: Done) -> None:
        job = done.job
        self._lives[life].busy.pop(job.key, None)
        answers = [self._answer(*pair) for pair in zip(job.writes, done.results, strict=False)]
        for write in job.writes:
            if write.parts:
                key = self._keys.get((write.resource.key, write.namespace, write.name))
                if key is not None:
                    key.writing = None
        self.made.append((DONE, now, life, self._text(job.key), answers, _error_row(done.error)))

    def _answer(self, write: Write, result: bytes) -> Any:
        if not result:
            return Answer.EMPTY.value
        if write.verb == "ask":
            return Answer.STATUS.value  # who asks is not replayed
        try:
            if write.verb == "list":
                items = [
                    decode(item, write.resource.projection) for item in _decode_items(result).items
                ]
                text = self._text(write.resource.schema_key)
                return [Answer.ITEMS.value, text, [self.packer.whole(item) for item in items]]
            if write.verb in ("delete", "probe") or write.subresource:
                reply = _decode_reply(result)
                if reply.kind == "Status":
                    uid = reply.details.uid if reply.details is not None else ""
                    return [Answer.UID.value, uid] if uid else Answer.STATUS.value
            short = not write.metadata_only and len(result) <= ANSWER_BYTES_MAX
            if write.verb == "update" and not write.subresource and not short:
                own, generation = _version_of(result)
                key = self._key(write.resource.key, write.namespace, write.name)
                # What the server keeps of an object is taken from the version before, so that must
                # be of this object.
                known = (
                    key.newest is not None
                    and result.find(key.newest.metadata.uid.encode(), 0, _HEAD_BYTES) >= 0
                )
                if own and known:
                    if key.newest.metadata.resource_version != own:
                        key.own_version = own
                        key.answered_parts = write.parts if _is_kept(write, result) else ()
                        key.unproven = (
                            write if write.metadata_only and not key.answered_parts else None
                        )
                    return (_WRITTEN, key.number, own, generation)
            return self._answered(write, decode(result, write.resource.projection))
        except msgspec.DecodeError:
            return Answer.STATUS.value  # the core can make nothing of it, either

    def _answered(self, write: Write, answer: Object) -> Row:
        meta = answer.metadata
        name = (write.resource.key, meta.namespace, meta.name)
        gone = write.verb != "create" and name not in self._keys
        key = self._key(*name, answer)
        self._touched[key.number] = None
        # An event that was quicker has shown it already, or a later version, and the next one is of
        # another version.
        is_passed = key.newest is not None and not is_older(
            key.newest.metadata.resource_version, meta.resource_version
        )
        key.answered = None if write.metadata_only or is_passed else answer
        key.answered_parts = ()
        key.own_version = meta.resource_version
        if key.large and key.newest is not None:
            return (_WHOLE, key.number, NEWEST, self.packer.difference(key.newest, answer))
        whole = self._whole(key, answer)
        if gone:
            # No event will tell of it any more: kept, it would stay until the segment ends.
            del self._keys[name]
        return (_WHOLE, key.number, NOTHING, whole)

    def check(self) -> None:
        remembered = sum(weight for _, _, weight in self._recent.values())
        assert remembered == self._remembered <= STEPS_KEPT, (
            f"{remembered} steps, counted {self._remembered}"
        )
        for name, key in self._keys.items():
            if key.answered is not None and key.newest is not None:
                answered, newest = (
                    value.metadata.resource_version for value in (key.answered, key.newest)
                )
                assert is_older(newest, answered), (
                    f"{name}: an answer in version {answered} is kept beside {newest}"
                )


def writer_of(body: bytes) -> str:
    """The field manager that wrote last, as the object itself has it; "" if it does not say."""
    start = body.find(b'"managedFields":[')
    if start < 0:
        return ""
    long = _LONG.search(body, start)
    matches = _MANAGER.finditer(body, start, len(body) if long is None else long.start())
    entries = [(found[2], found.start(), found[1]) for found in matches]
    return max(entries)[2].decode(errors="replace") if entries else ""


def _version_of(result: bytes) -> tuple[str, int]:
    """Version and generation; "" where the head of the object does not tell."""
    start = result.find(_VERSION, 0, _HEAD_BYTES) + len(_VERSION)
    if start < len(_VERSION):
        return "", 0
    end = result.find(b'"', start)
    generation = _GENERATION.match(result, end + 1) if result[end + 1 : end + 4] == b',"g' else None
    return result[start:end].decode(), 0 if generation is None else int(generation[1])


def _is_kept(write: Write, result: bytes) -> bool:
    """The server keeps the endpoints as they were written: what it shows from there on is as long,
    and ends alike.
    """
    body = write.body
    if not write.parts:
        return False
    start, shown = body.find(_ENDPOINTS), result.find(_ENDPOINTS)
    longer = (len(result) - shown) - (len(body) - start)
    tail = body[max(start, len(body) - _TAIL_BYTES) :]
    return shown > 0 and longer in _LONGER and result.endswith(tail, 0, len(result) - longer)


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
        else (
            error.code,
            error.reason,
            error.message,
            error.details,
            error.retry_after_s,
            error.metadata,
        )
    )
