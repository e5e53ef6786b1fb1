"""JSON merge patch, RFC 7396: objects merge, null deletes, everything else replaces."""

from __future__ import annotations

from typing import Any, TypeVar

import msgspec

from sliceplane.api.meta import Document

T = TypeVar("T")


def copy_of(value: T) -> T:
    """An independent copy of plain JSON data: dictionaries and lists are new at every depth."""
    copied: T = msgspec.to_builtins(value)
    return copied


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
