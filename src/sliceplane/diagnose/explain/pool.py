"""Members that objects of one query have in common, each kept once.

A decoded Pod is mostly text and structures that other objects have as well: names of nodes and
Pods, labels, addresses, conditions, containers of a template. A ``MemberPool`` replaces each of them by
the first equal one, in whatever order lists arrive. It is dropped when all lists are read.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from sliceplane.api.discovery import SliceEndpoint
from sliceplane.api.meta import Object, ObjectMeta, ObjectReference, Projection
from sliceplane.diagnose.explain.objects import FullPodStatus

#: structures that differ from object to object: only their members are shared
_DISTINCT: Final = (Object, ObjectMeta, ObjectReference, FullPodStatus, SliceEndpoint)


class MemberPool:
    """Owned by one ``investigation.Investigation``."""

    def __init__(self) -> None:
        self._values: dict[Any, Any] = {}

    def share(self, item: Projection) -> None:
        """Replaces members of *item*, which nothing else has yet."""
        for name in item.__struct_fields__:
            value = getattr(item, name)
            shared = self._shared(value)
            if shared is not value:
                msgspec.structs.force_setattr(item, name, shared)

    def _shared(self, value: Any) -> Any:
        if isinstance(value, str):
            return self._values.setdefault(value, value)
        if isinstance(value, Projection):
            first = value if isinstance(value, _DISTINCT) else self._first(value)
            if first is value:
                self.share(value)
            return first
        if isinstance(value, tuple):
            items = tuple([self._shared(item) for item in value])
            is_distinct = bool(items) and isinstance(items[0], _DISTINCT)
            return items if is_distinct else self._first(items)
        if isinstance(value, dict):
            pairs = {self._shared(key): self._shared(item) for key, item in value.items()}
            return self._values.setdefault((dict, *pairs, *pairs.values()), pairs)
        return value

    def _first(self, value: Any) -> Any:
        try:
            return self._values.setdefault(value, value)
        except TypeError:  # it has a dictionary, which has no hash
            return value
