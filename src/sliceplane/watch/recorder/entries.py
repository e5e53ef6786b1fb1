"""Entries of a recording: lines of JSON, in blocks.

A line is a list that begins with its code (``Code``). Lines that say *when* have the time second.

=========  =========================================================================================
code       members after it
=========  =========================================================================================
BEGAN      time, loop, name: a controller loop of this name begins
SYNCED     time, loop: all its caches are filled
STEP       resource, namespace, name, old, new, writer, [missing]: how one object changed
CHANGE     time, loop, steps ago: the controller handles that step
BATCH      time, loop, room, [jobs]: the controller returns its work; a job is [key, writes]
DONE       time, loop, key of the job, answers, error: [code, reason, message, details, ...]
ENDED      time, loop, text: the loop ends; the text is the controller's fault, if that is why
REACHED    time, loop, resource, version, listed: the controller learns how far its caches are
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
#: a change can be named at most this many steps back; for a controller further behind it is
#: repeated
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
    BATCH = 6
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
        match = _SENT_TEXT.fullmatch(text)
        if match is None:
            raise ValueError(f"{text!r} does not say what was sent")
        name, how, revision, size, watchers = match.groups()
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
    """Base of what a reader yields.  ``loop`` is the number of a controller loop in its
    recording.
    """

    at: float
    loop: int = -1


class LoopBegan(Entry, frozen=True, kw_only=True):
    name: str
    #: it began before the segment: ``objects`` are those in its caches, ``busy`` the keys of its
    #: unfinished jobs
    checkpoint: bool = False
    #: its caches were filled by then
    synced: bool = False
    objects: tuple[Change[Object], ...] = ()
    busy: tuple[str, ...] = ()


class LoopSynced(Entry, frozen=True, kw_only=True):
    pass


class Changed(Entry, frozen=True, kw_only=True):
    """``step`` numbers the changes of objects: one change that several controllers handle is one
    step.
    """

    step: int
    key: str
    change: Change[Object]
    writer: str


class Reached(Entry, frozen=True, kw_only=True):
    mark: Mark


class BatchTaken(Entry, frozen=True, kw_only=True):
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


class LoopEnded(Entry, frozen=True, kw_only=True):
    fault: str


class Marked(Entry, frozen=True, kw_only=True):
    kind: str
    text: str
