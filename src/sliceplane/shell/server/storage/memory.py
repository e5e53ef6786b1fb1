"""A back end that keeps everything in memory: nothing outlives the process.

It holds references to the records that the store has anyway, so it costs a few words per record, and it fulfils
the whole contract, so that a store can be restored from it (in tests, say).
"""

from __future__ import annotations

from collections.abc import Sequence

from sliceplane.store.backend import Loaded, StoredRow, chain
from sliceplane.store.types import EventType, StoreEvent


class MemoryBackend:
    """See ``store.backend.Backend``.  Not shared between committers."""

    blocking = False

    def __init__(self) -> None:
        self._rows: dict[int, StoredRow] = {}
        self._revision = 1
        self._compacted = 1

    def load(self) -> Loaded:
        return Loaded(chain(self._rows.values(), self._compacted), self._revision, self._compacted)

    def append(self, events: Sequence[StoreEvent]) -> None:
        for event in events:
            previous = event.previous.revision if event.previous is not None else 0
            self._rows[event.revision] = StoredRow(event.type, event.record, previous)
        self._revision = events[-1].revision

    def reconcile(self) -> int:
        return self._revision

    def compact(self, revision: int) -> None:
        for passed in range(self._compacted + 1, revision + 1):
            row = self._rows.get(passed)
            if row is None:  # a revision that was given up, or never was ours
                continue
            self._rows.pop(row.previous, None)
            if row.type is EventType.DELETED:
                del self._rows[passed]
        self._compacted = max(self._compacted, revision)

    def close(self) -> None:
        """Nothing to let go of."""
