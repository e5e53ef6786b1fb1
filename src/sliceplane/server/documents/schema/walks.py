"""Walks over whole documents: their depth, their copy without nulls (as Go's decoding drops them),
and the locations of faults.

A walk visits far more locations than it complains of, and a member's name may have a megabyte: a
walk that spelled each location would write that name for each of a hundred thousand elements below
it. So a location is a link to its parent and one step, and ``Complaints`` charges each spelled text
to a budget.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final, TypeVar, cast

import msgspec

T = TypeVar("T")

#: levels of objects and lists in each other. No kind needs 30; walks in Python must not come near
#: their own limit.
DEPTH_MAX: Final = 200
#: the parent's location, and a step with its punctuation (``.name``), or the index of an element; the
#: root is ``()``
Location = tuple["Location", str | int] | tuple[()]
ROOT: Final[Location] = ()
#: characters that complaints about one document may have together; the one that goes beyond is the
#: last
CHARACTERS_MAX: Final = 1 << 20


def deeper_than(value: Any, levels: int) -> bool:
    """Returns True if *value* has objects or lists in more than *levels* levels, itself being the
    first. No recursion.
    """
    layer = [value] if isinstance(value, dict | list) else []
    for _ in range(levels):
        layer = [
            child
            for node in layer
            for child in (node.values() if type(node) is dict else node)
            if type(child) is dict or type(child) is list
        ]
        if not layer:
            return False
    return bool(layer)


def drop_nulls(document: T) -> T:
    """*document* without members that are null, at every depth.

    Go decodes a null member like an absent one. A null **element** of a list is not a member: Go
    makes the zero value of it, and here it stays, for validation to refuse. Parts without nulls are
    shared with the input, not copied; a document without any is returned as it is.
    """
    # Encoding is ten times as quick as a walk in Python, and nearly every document has no null to
    # be found.
    if b"null" not in msgspec.json.encode(document):
        return document
    return cast(T, _clean(document))


def _clean(value: object) -> object:
    if isinstance(value, dict):
        # A copy is begun at the first member that differs: most documents have none.
        cleaned: dict[str, object] | None = None
        for name, old in value.items():
            if old is None:
                if cleaned is None:
                    cleaned = dict(value)
                del cleaned[name]
            elif isinstance(old, dict | list):
                new = _clean(old)
                if new is not old:
                    if cleaned is None:
                        cleaned = dict(value)
                    cleaned[name] = new
        return value if cleaned is None else cleaned
    if isinstance(value, list):
        changed: list[object] | None = None
        for index, old in enumerate(value):
            if isinstance(old, dict | list):
                new = _clean(old)
                if new is not old:
                    if changed is None:
                        changed = list(value)
                    changed[index] = new
        return value if changed is None else changed
    return value


def spelled(location: Location) -> str:
    """``.spec.ports[3].name``."""
    steps: list[str] = []
    while location:
        location, step = location
        steps.append(step if isinstance(step, str) else f"[{step}]")
    steps.reverse()
    return "".join(steps)


class Complaints:
    """Texts in order, at most *most* of them; *unique*: without repetitions.  Owned by one walk."""

    def __init__(self, most: int, *, unique: bool) -> None:
        self._texts: list[str] = []
        self._reported: set[str] | None = set() if unique else None
        self._most = most
        self._characters_remaining = CHARACTERS_MAX

    @property
    def full(self) -> bool:
        """No more are taken; there is no need to make them."""
        return len(self._texts) >= self._most or self._characters_remaining <= 0

    def add(self, text: str) -> None:
        """Charges for a repeated text, too: it had to be built."""
        if self.full:
            return
        self._characters_remaining -= len(text)
        if self._reported is not None:
            if text in self._reported:
                return
            self._reported.add(text)
        self._texts.append(text)

    def __iter__(self) -> Iterator[str]:
        return iter(self._texts)

    def __len__(self) -> int:
        return len(self._texts)
