"""Nulls out of a document, as Go's decoding leaves them out."""

from __future__ import annotations

from typing import TypeVar, cast

import msgspec

T = TypeVar("T")


def drop_nulls(document: T) -> T:
    """*document* without members that are null, at every depth.

    Go decodes a null member like an absent one.  A null **element** of a list is not a member: Go makes the zero value
    of it, and here it stays, for validation to refuse.  Parts without nulls are shared with the input, not copied;
    a document without any is returned as it is.
    """
    # Encoding is ten times as quick as a walk in Python, and nearly every document has no null to be found.
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
