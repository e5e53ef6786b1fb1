"""Values that servers exchange with a shared log, and a request on its way there (see
``replica``).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, NamedTuple

import msgspec

from sliceplane.server.store.backend import StoredRow
from sliceplane.server.store.staging import BatchLimit
from sliceplane.server.store.types import StoreEvent

#: bounds of one batch: etcd takes 128 operations and 1.5 MiB, of which some are for the head and
#: for keys of the queue
BATCH_LIMIT: Final = BatchLimit(keys=100, size_bytes=700 * 1024)


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


class PublishedState(msgspec.Struct, frozen=True):
    """The state that a server has published to its clients: the head, its position, and the
    newest revision.
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
    #: servers whose queue keys it deletes: our own, and those that were waited for long enough
    dequeued_servers: tuple[str, ...]
    #: if the log refuses it, the same transaction puts our server's queue key
    queues_if_refused: bool
    #: the position at which the oldest of its steps came; what was written since it has waited for
    since: int = 0


class Group(msgspec.Struct, frozen=True):
    """The events of one batch of any server, as the feed shows it."""

    position: int
    name: HeadName
    #: the name of the head that it rests on; "": not recorded
    after: str
    #: in the order of revisions
    rows: tuple[StoredRow, ...]
    #: versions up to this one were given out by a history that is lost, or may have been; 0: none
    beyond: int = 0
    #: see ``Batch``; 0: not recorded
    since: int = 0


class WriterQueued(msgspec.Struct, frozen=True):
    server: str
    position: int


class WriterDequeued(msgspec.Struct, frozen=True):
    server: str


FeedItem = Group | WriterQueued | WriterDequeued


class Ticket:
    """One step on its way.  *step* runs any number of times, and what it did last counts."""

    __slots__ = (
        "_done",
        "abandoned",
        "arrived",
        "confirm",
        "decided_at",
        "error",
        "result",
        "revision_of",
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
        self.decided_at = 0
        #: the position at which it was submitted
        self.arrived = 0
        #: no writer waits for it: it is not run again
        self.abandoned = False

    def finish(self) -> None:
        self._done(self.result, self.error)

    def fail(self, error: Exception) -> None:
        self._done(None, error)
