"""Two walks over whole documents: how deep they are, and without nulls as Go's decoding leaves them out."""

from __future__ import annotations

from typing import Any, Final, TypeVar, cast

import msgspec

T = TypeVar("T")

#: levels of objects and lists in each other.  No kind needs 30; walks in Python must not come near their own limit.
DEPTH_MAX: Final = 200


def deeper_than(value: Any, levels: int) -> bool:
    """Whether *value* has objects or lists in more than *levels* levels, itself being the first.  No recursion."""
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
