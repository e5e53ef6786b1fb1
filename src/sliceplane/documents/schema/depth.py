"""How deep a document may be."""

from __future__ import annotations

from typing import Any, Final

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
