"""What an informer tells its handlers, one change at a time or as much as a slow reader missed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, TypeVar

from sliceplane.api.meta import Object

T = TypeVar("T", bound=Object)
T_co = TypeVar("T_co", bound=Object, covariant=True)


@dataclass(frozen=True, slots=True)
class Change(Generic[T_co]):
    """The difference that one event or one relist made to the cache, for one object.

    ``old`` None: the object is new to us.  ``new`` None: it is gone.  Never both.  A relist yields exactly
    the changes between what the cache held and what the server listed.
    """

    resource: str  # Resource.key
    old: T_co | None
    new: T_co | None

    @property
    def object(self) -> T_co:
        """The newest version known: ``new``, else ``old``."""
        newest = self.new if self.new is not None else self.old
        assert newest is not None, "a change has an old or a new object"
        return newest

    def typed(self, kind: type[T]) -> tuple[T | None, T | None]:
        """``old`` and ``new`` as *kind*, which they are."""
        old, new = self.old, self.new
        assert old is None or isinstance(old, kind), f"{old!r} is no {kind.__name__}"
        assert new is None or isinstance(new, kind), f"{new!r} is no {kind.__name__}"
        return old, new


class Coalesced(Generic[T]):
    """Changes for a reader who may be slow: what it has not taken yet, one difference for each object.

    Owned by one reader.  Bounded by the objects that there were and are, not by the events.  Taking and applying in
    order gives exactly the cache as it was at the time; what came and went between two looks is no part of it, and an
    object that was deleted and made anew is always a delete and an add.
    """

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
