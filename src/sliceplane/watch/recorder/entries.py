"""Entries of a recording: lines of JSON, in blocks.

A line is a list that begins with its code (``Code``). Lines that say *when* have the time second.

=========  =========================================================================================
code       members after it
=========  =========================================================================================
BEGAN      time, life, name: a controller of this name begins
SYNCED     time, life: all its caches are filled
STEP       resource, namespace, name, old, new, writer, [missing]: how one object changed
CHANGE     time, life, steps ago: the controller is told of that step
TURN       time, life, room, [jobs]: it was asked for work; a job is [key, writes]
DONE       time, life, key of the job, answers, error: [code, reason, message, details, ...]
ENDED      time, life, text: it is no more; the text is its fault, if that was why
REACHED    time, life, resource, version, listed: it is told how far its caches are
MARK       time, kind, text, [Service]: what else happened (event, kernel, sent)
=========  =========================================================================================

*old* is a number (``Old``) or the object itself. *new* is an object, in one of the two forms of
``objects``, or null: then *missing* says whether a list lacked it. A write is [verb,
resource, namespace/name, subresource, digest, bytes]. An answer is a number (``Answer``) or, where
the core may look at it, a list that begins with that number.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any, Final, NamedTuple

import msgspec

from sliceplane.api.errors import StatusError
from sliceplane.api.meta import Object
from sliceplane.watch.cache import Change, Mark

#: of the file and of the lines
FORMAT: Final = 3
#: so many steps back a change can be named; a controller further behind has it told again
STEPS_KEPT: Final = 2048
MICROSECONDS: Final = 1_000_000
#: the kind of a mark
SENT: Final = "sent"
_SENT_TEXT: Final = re.compile(r"(\S+) (at|gone after) (\d+): (\d+) bytes to (\d+) watchers")
VERBS: Final = ("create", "update", "patch", "delete", "get", "list", "probe", "ask")

Line = tuple[Any, ...]


class Code(IntEnum):
    BEGAN = 2
    SYNCED = 3
    STEP = 4
    CHANGE = 5
    TURN = 6
    DONE = 7
    ENDED = 8
    MARK = 9
    REACHED = 10


class BlockNames(msgspec.Struct, array_like=True, frozen=True):
    """The names in a block of lines, so that a query can skip other blocks.

    ``touched``: objects with steps, each as resource, namespace, name and, of a slice, its Service.
    ``planned``: keys of jobs, and Services with marks.
    """

    ended: float = 0.0
    touched: list[tuple[str, str, str, str]] = []
    planned: list[str] = []


class Old(IntEnum):
    """The previous object of a step that the recording does not repeat."""

    NOTHING = 0
    NEWEST = 1


class Answer(IntEnum):
    """How the server's answer to a write is kept."""

    EMPTY = 0  # the error was tolerated
    STATUS = 1  # of a delete
    WHOLE = 2  # the object
    # of an update: the write's own body, in the version and generation that the server made
    WRITTEN = 3
    UID = 4  # a Status that names the object's uid
    ITEMS = 5  # of a list


def quantized(now: float) -> float:
    """*now* in whole microseconds: a host asks its clock through this, so that times deflate."""
    return round(now * MICROSECONDS) / MICROSECONDS


class SentVersion(NamedTuple):
    """A version of a slice as its events name it; ``gone``: the event says that it was the last
    one.
    """

    name: str
    revision: int
    gone: bool


class SliceSent(NamedTuple):
    """The text of a mark of the kind ``SENT``: how the server handled an event of a slice."""

    version: SentVersion
    watchers: int
    #: to all of them
    size_bytes: int

    def __str__(self) -> str:
        name, revision, gone = self.version
        how = "gone after" if gone else "at"
        return f"{name} {how} {revision}: {self.size_bytes} bytes to {self.watchers} watchers"

    @classmethod
    def parse(cls, text: str) -> SliceSent:
        found = _SENT_TEXT.fullmatch(text)
        if found is None:
            raise ValueError(f"{text!r} does not say what was sent")
        name, how, revision, size, watchers = found.groups()
        return cls(SentVersion(name, int(revision), how != "at"), int(watchers), int(size))


@dataclass(frozen=True, slots=True)
class RecordedWrite:
    """``name`` is "" for a create whose name the server makes."""

    verb: str
    resource: str
    namespace: str
    name: str
    subresource: str
    digest: int
    size_bytes: int = field(compare=False)

    def __str__(self) -> str:
        where = "/".join(part for part in (self.namespace, self.name) if part)
        kind = f"{self.resource}/{self.subresource}" if self.subresource else self.resource
        return f"{self.verb} {kind} {where}".rstrip()


class RecordedJob(msgspec.Struct, frozen=True):
    key: str
    writes: tuple[RecordedWrite, ...]


class Entry(msgspec.Struct, frozen=True, kw_only=True):
    """Base of what a reader yields.  ``life`` is the number of a controller's life in its
    recording.
    """

    at: float
    life: int = -1


class LifeBegan(Entry, frozen=True, kw_only=True):
    name: str
    #: it began before the segment: ``objects`` is what its caches held, ``busy`` the keys of its
    #: unfinished jobs
    checkpoint: bool = False
    #: its caches were filled by then
    synced: bool = False
    objects: tuple[Change[Object], ...] = ()
    busy: tuple[str, ...] = ()


class LifeSynced(Entry, frozen=True, kw_only=True):
    pass


class Changed(Entry, frozen=True, kw_only=True):
    """``step`` numbers what happened to objects: the same change told to several controllers is one
    step.
    """

    step: int
    key: str
    change: Change[Object]
    writer: str


class Reached(Entry, frozen=True, kw_only=True):
    mark: Mark


class Turned(Entry, frozen=True, kw_only=True):
    room: int
    jobs: tuple[RecordedJob, ...]


class RecordedAnswer(msgspec.Struct, frozen=True):
    kind: Answer
    #: of WHOLE and WRITTEN: of the latter as it was before, but for version and generation
    value: Object | None = None
    uid: str = ""
    items: tuple[Object, ...] = ()


class Ended(Entry, frozen=True, kw_only=True):
    """A job."""

    key: str
    answers: tuple[RecordedAnswer, ...]
    error: StatusError | None


class LifeEnded(Entry, frozen=True, kw_only=True):
    fault: str


class Marked(Entry, frozen=True, kw_only=True):
    kind: str
    text: str
