"""What an informer tells its handlers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, TypeVar

from sliceplane.api.meta import Object

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
