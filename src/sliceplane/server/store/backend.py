"""The one seam to storage: what a back end must guarantee, and how it says that it could not.

A back end is a log of batches. Its calls block; the committer makes them from one thread, one at a
time.

What it must guarantee:

- **All or nothing.**  After any failure, of the call, the process or the power, a batch is there
  whole or not at all.
- **Order.**  A batch is there only if every earlier acknowledged one is.
- **Durable means durable.**  When ``append`` returns, the batch survives the loss of power.
- **Honest failure.**  ``WriteFailed`` only if the batch is certainly not there and never will be;
  whenever that is not certain, ``OutcomeUnknown``.
- **Memory of the past.**  ``load`` gives back the state at the compaction point and every event
  after it, so that watches resume across a restart. It never gives half of what is there: what
  cannot be read whole is an error.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final, NamedTuple, Protocol

import msgspec

from sliceplane.server.store.types import EventType, Key, Record, StoreEvent

#: a history that goes on from an older copy begins so far beyond what it knows of: more than any
#: server writes after a copy was made, so that no version is given out twice, and who holds one
#: that is lost is told to list again
REVISIONS_BEYOND: Final = 1_000_000_000


class WriteFailed(Exception):
    """The batch was not written (the disk is full, say).  A later one may succeed."""


class OutcomeUnknown(Exception):
    """The batch may or may not be there.  Nothing may be appended before ``reconcile`` has told."""


class Loaded(msgspec.Struct, frozen=True):
    """The state that a back end remembers; ``Store.restore`` takes it."""

    #: in the order of revisions. Up to ``compacted``: ADDED, one for each object of the state at
    #: that revision. After it: the events themselves.
    history: Iterable[StoreEvent]
    #: newest revision ever acknowledged
    revision: int
    compacted: int


class Backend(Protocol):
    """Raises ``WriteFailed`` and ``OutcomeUnknown`` where said; opening is the business of each
    back end.
    """

    @property
    def blocking(self) -> bool:
        """Calls take long enough to need a thread."""

    def load(self) -> Loaded:
        """Called once, before anything else; ``history`` may be read lazily, before the next
        call.
        """

    def append(self, events: Sequence[StoreEvent]) -> None:
        """Write one batch (not empty, revisions increase); durable on return.  Raises both."""

    def reconcile(self) -> int:
        """After ``OutcomeUnknown``: make durable what is there and return its newest revision,
        which is that of the last acknowledged batch or of the uncertain one. Raises
        ``OutcomeUnknown`` if it cannot tell.
        """

    def compact(self, revision: int) -> None:
        """Forget versions that nothing after *revision* needs. Raises ``WriteFailed`` (nothing was
        forgotten, or only a part: harmless) and ``OutcomeUnknown`` (the same, and appends are
        refused until ``reconcile``).
        """

    def release_space(self) -> bool:
        """Gives a little of the space that is not used back to the system, in a few milliseconds.
        Returns True if there is more to give. Raises as ``compact``.
        """

    def close(self) -> None:
        """Let go of files and locks.  Idempotent; never raises."""


class StoredRow(NamedTuple):
    """One version as back ends keep it."""

    type: EventType
    record: Record
    #: revision of the version before; 0: none
    previous: int


def chain(rows: Iterable[StoredRow], compacted: int) -> Iterator[StoreEvent]:
    """Stored rows, in the order of revisions, as ``Loaded.history``.

    For back ends' ``load``. Raises ``ValueError`` if the rows cannot be a history: one is missing,
    or too many.
    """
    newest: dict[Key, Record] = {}
    for kind, record, replaced in rows:
        previous = newest.get(record.key)
        if record.revision <= compacted:
            # A version of the state at the compaction point; what it replaced is gone.
            kind = EventType.ADDED
            replaced = 0
        there = previous.revision if previous is not None else 0
        if replaced != there or (kind is EventType.ADDED) != (there == 0):
            raise ValueError(
                f"{record.key.path} at revision {record.revision} is {kind.value} and replaces "
                f"revision {replaced}, "
                f"but there is revision {there}"
            )
        yield StoreEvent(record.revision, kind, record, previous)
        if kind is EventType.DELETED:
            del newest[record.key]
        else:
            newest[record.key] = record
