"""Values that servers exchange with a shared log, and a request on its way there (see
``replica``).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, NamedTuple

import msgspec

from sliceplane.server.store.backend import StoredRow
from sliceplane.server.store.staging import Room
from sliceplane.server.store.types import StoreEvent

#: what one batch may hold: etcd takes 128 operations and 1.5 MiB, of which some are for the head
#: and for turns
BATCH_ROOM: Final = Room(keys=100, size_bytes=700 * 1024)


class HeadName(NamedTuple):
    """Names a head, and by that all that led to it: no two batches of all servers and all their
    starts have one name, and each is taken on one head alone. A position is a number, which a log
    that was restored gives out again.
    """

    server: str
    #: of its batches
    number: int
    #: after it
    revision: int

    def __str__(self) -> str:
        return f"{self.server}/{self.number}"


class Known(msgspec.Struct, frozen=True):
    """The state that a server has shown its clients: the head, its position, and the newest
    revision.
    """

    position: int
    name: HeadName
    revision: int


class Batch(msgspec.Struct, frozen=True):
    """The events that the log takes, or refuses, as one."""

    #: of this server's batches
    number: int
    #: the position that it rests on, and the head's name there
    basis: int
    after: HeadName
    events: tuple[StoreEvent, ...]
    #: turns that it takes away: our own, and those that no writer waits for any more
    turns_over: tuple[str, ...]
    #: if the log refuses it, it asks for a turn by that
    asks: bool
    #: the position at which the oldest of its steps came; what was written since it has waited for
    since: int = 0


class Group(msgspec.Struct, frozen=True):
    """The events of one batch of any server, as the feed shows it."""

    position: int
    name: HeadName
    #: the name of the head that it rests on; "": not told
    after: str
    #: in the order of revisions
    rows: tuple[StoredRow, ...]
    #: versions up to this one were given out by a history that is lost, or may have been; 0: none
    beyond: int = 0
    #: see ``Batch``; 0: not told
    since: int = 0


class TurnAsked(msgspec.Struct, frozen=True):
    server: str
    position: int


class TurnGone(msgspec.Struct, frozen=True):
    server: str


FeedItem = Group | TurnAsked | TurnGone


class Ticket:
    """One step on its way.  *step* runs any number of times, and what it did last counts."""

    __slots__ = (
        "_done",
        "abandoned",
        "arrived",
        "confirm",
        "error",
        "result",
        "revision_of",
        "seen",
        "step",
        "until",
    )

    def __init__(
        self,
        step: Callable[[], Any],
        revision_of: Callable[[Any], int],
        done: Callable[[Any, Exception | None], None],
    ) -> None:
        self.step = step
        #: revision of a result; 0: the step wrote nothing
        self.revision_of = revision_of
        self._done = done
        self.result: Any = None
        self.error: Exception | None = None
        #: may be answered when this is durable; 0: nothing was staged that it could rest on
        self.until = 0
        #: it wrote nothing, and what it rests on may be old: it is answered when the log was asked
        self.confirm = False
        #: the position at which it was decided
        self.seen = 0
        #: the position at which it was submitted
        self.arrived = 0
        #: no writer waits for it: it is not run again
        self.abandoned = False

    def finish(self) -> None:
        self._done(self.result, self.error)

    def fail(self, error: Exception) -> None:
        self._done(None, error)
