"""Changes for a reader who may be slow: what it has not taken yet, one difference for each object.

Bounded by the objects that there were and are, not by the events.  Taking and applying in order gives exactly the
cache as it was at the time; what came and went between two looks is no part of it, and an object that was deleted and
made anew is always a delete and an add.
"""

from __future__ import annotations

from typing import Generic, TypeVar

from sliceplane.api.meta import Object
from sliceplane.informer.changes import Change

T = TypeVar("T", bound=Object)


class Coalesced(Generic[T]):
    """Owned by one reader."""

    def __init__(self) -> None:
        self._resource = ""
        #: key -> (what the reader knows, what is now)
        self._pending: dict[str, tuple[T | None, T | None]] = {}

    def __len__(self) -> int:
        return len(self._pending)

    def note(self, change: Change[T]) -> None:
        self._resource = change.resource
        key = change.object.metadata.key
        known = self._pending.get(key)
        self._pending[key] = (change.old if known is None else known[0], change.new)

    def take(self) -> tuple[Change[T], ...]:
        """In the order of keys."""
        pending, self._pending = self._pending, {}
        changes: list[Change[T]] = []
        for key in sorted(pending):
            old, new = pending[key]
            if old == new:
                continue
            if old is not None and new is not None and old.metadata.uid != new.metadata.uid:
                changes += [Change(self._resource, old, None), Change(self._resource, None, new)]
            else:
                changes.append(Change(self._resource, old, new))
        return tuple(changes)
