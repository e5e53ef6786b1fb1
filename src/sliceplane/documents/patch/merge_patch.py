"""JSON merge patch, RFC 7396: objects merge, null deletes, everything else replaces.

What the other patches need of plain values stands here, too: copies, and values as Go prints them.
"""

from __future__ import annotations

from typing import Any, TypeVar

import msgspec

from sliceplane.api.meta import Document

T = TypeVar("T")


def copy_of(value: T) -> T:
    """An independent copy of plain JSON data: dictionaries and lists are new at every depth."""
    copied: T = msgspec.to_builtins(value)
    return copied


def go_text(value: Any) -> str:
    """As Go's ``%v``: ``map[a:1 b:[x y]]`` with sorted keys.  Errors about strategic patches show values so."""
    match value:
        case None:
            return "<nil>"
        case bool():
            return "true" if value else "false"
        case dict():
            return "map[" + " ".join(f"{key}:{go_text(value[key])}" for key in sorted(value)) + "]"
        case list():
            return "[" + " ".join(go_text(item) for item in value) + "]"
        case _:
            return str(value)


def apply_merge(document: Document, patch: Document) -> Document:
    """*document* with *patch* merged into it."""
    return _merge(copy_of(document), patch)


def _merge(target: Document, patch: Document) -> Document:
    """Changes *target*, which is ours, and returns it."""
    for name, value in patch.items():
        if value is None:
            target.pop(name, None)
        elif isinstance(value, dict):
            old: Any = target.get(name)
            # What is no object counts as an empty one, so that nulls inside of the patch never arrive.
            target[name] = _merge(old if isinstance(old, dict) else {}, value)
        else:
            target[name] = copy_of(value)
    return target
