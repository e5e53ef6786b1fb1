"""How what was handed over becomes lines: objects, jobs and answers, an object once for all
controllers that are told of its change.

What is done for each thing is done in C, or is O(what changed). A slice that comes back as its own
controller wrote it is not compared: its text is the one that was written, and so its endpoints are
those of the write (``Write.parts``).

No object is decoded again but the answers to a controller's own writes; where an update's is large,
its version alone is kept, and a replay puts it onto the write that it is the answer to.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from operator import itemgetter
from typing import Any, Final

import msgspec

from sliceplane.api.codec import decode
from sliceplane.api.discovery import EndpointSlice
from sliceplane.api.errors import StatusError
from sliceplane.api.meta import Object
from sliceplane.watch.cache import Change
from sliceplane.watch.controller.base import Done, Job, Write
from sliceplane.watch.recorder.entries import (
    STEPS_KEPT,
    VERBS,
    Answer,
    BlockNames,
    Code,
    Line,
    Old,
)
from sliceplane.watch.recorder.objects import changed_slice, redacted, run_of, service_of
from sliceplane.watch.recorder.redact import Redactor
from sliceplane.watch.recorder.ring import LoopState

#: a slice with more endpoints is kept as what changed of it
ENDPOINTS_WHOLE_MAX: Final = 8
#: a step of such a slice counts as that many, of those that are remembered
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
_LONG: Final = (_ENDPOINTS, b'"subsets":[')
_MANAGER: Final = re.compile(
    rb'"manager":"([^"]*)","operation":"[^"]*","apiVersion":"[^"]*","time":"([^"]*)"'
)
#: as plain numbers, which is what lines begin with
STEP, CHANGE, BATCH, DONE = (code.value for code in (Code.STEP, Code.CHANGE, Code.BATCH, Code.DONE))
BEGAN, SYNCED, ENDED = (code.value for code in (Code.BEGAN, Code.SYNCED, Code.ENDED))
MARK, REACHED = (code.value for code in (Code.MARK, Code.REACHED))
_OLD_NOTHING, _OLD_NEWEST = (old.value for old in (Old.NOTHING, Old.NEWEST))

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


class _Key:
    """The cache entry of one object: the version that was recorded last."""

    __slots__ = ("newest", "own_version", "parts", "written")

    def __init__(self) -> None:
        self.newest: Any = None
        #: of the last answer to a controller's write
        self.own_version = ""
        #: the last update of a slice by a controller
        self.written: Write | None = None
        #: the endpoints of ``newest`` as that write has them; none if it is another's
        self.parts: Collection[bytes] = ()


@dataclass(slots=True)
class _Loop:
    name: str
    synced: bool = False
    busy: dict[str, None] = field(default_factory=dict)


class RecordedLines:
    """Owned by one recorder.  ``pending`` are the lines that are not encoded yet."""

    def __init__(self, redactor: Redactor) -> None:
        self._redactor = redactor
        self.pending: list[Line] = []
        #: of ``BlockNames``
        self._touched: dict[tuple[str, str, str, str], None] = {}
        self._planned: dict[str, None] = {}
        self._loops: dict[int, _Loop] = {}
        self._keys: dict[Name, _Key] = {}
        self._steps = 0
        #: by the change's id, in the order in which controllers handled them
        self._recent: dict[int, tuple[int, Change[Object], int]] = {}
        self._remembered = 0
        #: version -> the object as it came, until a controller handles it
        self._bodies: dict[str, bytes] = {}

    def __len__(self) -> int:
        """How many objects there are."""
        return len(self._keys)

    @property
    def at_rest(self) -> bool:
        """No job is under way."""
        return not any(loop.busy for loop in self._loops.values())

    def loops(self) -> tuple[LoopState, ...]:
        return tuple(
            LoopState(number, loop.name, loop.synced, tuple(loop.busy))
            for number, loop in self._loops.items()
        )

    def note_body(self, resource_version: str, body: bytes) -> None:
        if len(self._bodies) >= BODIES_MAX:
            self._bodies.clear()
        self._bodies[resource_version] = body

    def begin_segment(self, *, whole: bool) -> Iterator[tuple[Name, Any]]:
        """All numbers begin anew.  Gives the objects that there are, if *whole*."""
        self._keys = {
            name: key for name, key in self._keys.items() if whole and key.newest is not None
        }
        self._steps = 0
        self._recent = {}
        self._remembered = 0
        return iter([(name, key.newest) for name, key in self._keys.items()])

    def end_block(self, ended: float) -> BlockNames:
        """The lines since the last call are in a block, and these are its names."""
        names = BlockNames(ended, list(self._touched), list(self._planned))
        self._touched, self._planned = {}, {}
        return names

    def add_all(self, things: list[Handed]) -> None:
        pending = self.pending
        for thing in things:
            code = thing[0]
            if code == CHANGE:
                _, now, loop, change = thing
                recent = self._recent.get(id(change))
                step = self._step(change) if recent is None else recent[0]
                pending.append((CHANGE, now, loop, self._steps - step))
            elif code == BATCH:
                if len(thing) > 4:
                    _, now, loop, room, jobs = thing
                    pending.append((BATCH, now, loop, room, [self._job(loop, job) for job in jobs]))
                else:
                    pending.append(thing)
            elif code == DONE:
                self._done(*thing[1:])
            elif code == REACHED:
                _, now, loop, mark = thing
                pending.append((code, now, loop, mark.resource, mark.version, mark.listed))
            elif code == MARK:
                _, now, kind, what, *services = thing
                self._planned |= dict.fromkeys(services)
                pending.append((code, now, kind, str(what), *services))
            else:
                self._on_loop(*thing)

    def _on_loop(self, code: int, now: float, loop: int, *texts: str) -> None:
        if code == BEGAN:
            self._loops[loop] = _Loop(texts[0])
        elif code == SYNCED:
            self._loops[loop].synced = True
        else:
            del self._loops[loop]
        self.pending.append((code, now, loop, *texts))

    def _step(self, change: Change[Object]) -> int:
        """A line for how the object changed."""
        old, new = change.old, change.new
        meta = change.object.metadata
        name = (change.resource, meta.namespace, meta.name)
        key = self._keys.get(name)
        if key is None:
            key = self._keys[name] = _Key()
        self._touched[(*name, service_of(change.object))] = None
        body = self._bodies.pop(meta.resource_version, b"") if self._bodies else b""
        writer = writer_of(body) if body and key.own_version != meta.resource_version else ""
        if old is None:
            base: Any = _OLD_NOTHING
        elif key.newest is old or _same(key.newest, old):
            base = _OLD_NEWEST
        else:
            base = redacted(old, self._redactor)
            key.newest, key.parts = old, ()
        if new is None:
            del self._keys[name]
            self.pending.append((STEP, *name, base, None, writer, change.missing))
        else:
            self.pending.append((STEP, *name, base, self._form(key, new, body), writer))
        number = self._steps
        self._steps += 1
        if len(self._loops) > 1:
            self._remember(change, number, LARGE_STEPS if _is_large(change.object) else 1)
        return number

    def _remember(self, change: Change[Object], number: int, weight: int) -> None:
        """Other controllers are told of it, too."""
        recent = self._recent
        recent[id(change)] = (number, change, weight)
        self._remembered += weight
        while self._remembered > STEPS_KEPT:
            self._remembered -= recent.pop(next(iter(recent)))[2]

    def _form(self, key: _Key, new: Object, body: bytes) -> Any:
        """*new*, which becomes the newest version; a large slice as what changed of it."""
        old, before = key.newest, key.parts
        write = key.written
        key.newest = new
        key.parts = write.parts if write is not None and body and _shows(body, write) else ()
        if (
            not isinstance(new, EndpointSlice)
            or not isinstance(old, EndpointSlice)
            or not _is_large(new)
            or old.ports != new.ports
            or old.address_type != new.address_type
            or not old.endpoints
        ):
            return redacted(new, self._redactor)
        is_own = before and key.parts
        run = run_of(*(before, key.parts) if is_own else (old.endpoints, new.endpoints or ()))
        return changed_slice(new, run, self._redactor)

    # -- jobs

    def _job(self, loop: int, job: Job) -> Line:
        self._loops[loop].busy[job.key] = None
        self._planned[job.key] = None
        return (job.key, [self._write(write) for write in job.writes])

    def _write(self, write: Write) -> Line:
        if write.parts and write.verb == "update":
            key = self._keys.get((write.resource.key, write.namespace, write.name))
            if key is not None:
                key.written = write
        name = f"{write.namespace}/{write.name}" if write.namespace else write.name
        return (
            _VERB_NUMBERS[write.verb],
            write.resource.schema_key,
            name,
            write.subresource,
            self._redactor.digest(write),
            len(write.body),
        )

    def _done(self, now: float, loop: int, done: Done) -> None:
        job = done.job
        self._loops[loop].busy.pop(job.key, None)
        answers = [self._answer(*pair) for pair in zip(job.writes, done.results, strict=False)]
        error = None if done.error is None else _error_line(done.error)
        self.pending.append((DONE, now, loop, job.key, answers, error))

    def _answer(self, write: Write, result: bytes) -> Any:
        if not result:
            return Answer.EMPTY.value
        if write.verb == "ask":
            return Answer.STATUS.value  # who asks is not replayed
        projection = write.resource.projection
        try:
            if write.verb == "list":
                items = [decode(item, projection) for item in _decode_items(result).items]
                kept = [redacted(item, self._redactor) for item in items]
                return (Answer.ITEMS.value, write.resource.key, kept)
            if write.verb in ("delete", "probe") or write.subresource:
                reply = _decode_reply(result)
                if reply.kind == "Status":
                    uid = reply.details.uid if reply.details is not None else ""
                    return (Answer.UID.value, uid) if uid else Answer.STATUS.value
            short = not write.metadata_only and len(result) <= ANSWER_BYTES_MAX
            if write.verb == "update" and not write.subresource and not short:
                written = self._written(write, result)
                if written is not None:
                    return written
            answer = decode(result, projection)
        except msgspec.DecodeError:
            return Answer.STATUS.value  # the core can make nothing of it, either
        self._note_own(write, answer)
        return (Answer.WHOLE.value, write.resource.key, redacted(answer, self._redactor))

    def _written(self, write: Write, result: bytes) -> Line | None:
        """Returns the line of a successful write.  A reader takes fields that the server retains from
        the previous version, so *result* must be of the same object.
        """
        name = (write.resource.key, write.namespace, write.name)
        key = self._keys.get(name)
        if key is None or key.newest is None:
            return None
        own, generation = _version_of(result)
        if not own or result.find(key.newest.metadata.uid.encode(), 0, _HEAD_BYTES) < 0:
            return None
        key.own_version = own
        return (Answer.WRITTEN.value, *name, own, generation)

    def _note_own(self, write: Write, answer: Object) -> None:
        """The event that shows *answer* need not tell who wrote it."""
        meta = answer.metadata
        name = (write.resource.key, meta.namespace, meta.name)
        key = self._keys.get(name)
        if key is None:
            if write.verb != "create":
                return  # it is gone, so no event will tell of it any more
            key = self._keys[name] = _Key()
        key.own_version = meta.resource_version

    def check(self) -> None:
        remembered = sum(weight for _, _, weight in self._recent.values())
        assert remembered == self._remembered <= STEPS_KEPT, (
            f"{remembered} steps, counted {self._remembered}"
        )


def writer_of(body: bytes) -> str:
    """Returns the field manager that wrote last, as the object itself has it; "" if it does not
    say.
    """
    start = body.find(b'"managedFields":[')
    if start < 0:
        return ""
    ends = [end for end in (body.find(long, start) for long in _LONG) if end > 0]
    matches = _MANAGER.findall(body, start, min(ends, default=len(body)))
    latest = max(reversed(matches), key=itemgetter(1), default=(b"",))
    return latest[0].decode(errors="replace")


def _version_of(result: bytes) -> tuple[str, int]:
    """Version and generation; "" where the head of the object does not tell."""
    start = result.find(_VERSION, 0, _HEAD_BYTES) + len(_VERSION)
    if start < len(_VERSION):
        return "", 0
    end = result.find(b'"', start)
    generation = _GENERATION.match(result, end + 1) if result[end + 1 : end + 4] == b',"g' else None
    return result[start:end].decode(), 0 if generation is None else int(generation[1])


def _shows(body: bytes, write: Write) -> bool:
    """The endpoints of *body*, an object as it came, are as *write* has them, to the byte."""
    start, endpoints_start = write.body.find(_ENDPOINTS), body.find(_ENDPOINTS)
    return (
        start > 0 and endpoints_start > 0 and body.startswith(write.body[start:-1], endpoints_start)
    )


def _is_large(value: Object) -> bool:
    return isinstance(value, EndpointSlice) and len(value.endpoints or ()) > ENDPOINTS_WHOLE_MAX


def _same(recorded: Any, value: Object) -> bool:
    """The same version of the same object, which a server shows alike each time."""
    if recorded is None:
        return False
    ours, theirs = recorded.metadata, value.metadata
    return bool(ours.resource_version == theirs.resource_version and ours.uid == theirs.uid)


def _error_line(error: StatusError) -> Line:
    return (
        error.code,
        error.reason,
        error.message,
        error.details,
        error.retry_after_s,
        error.metadata,
    )
