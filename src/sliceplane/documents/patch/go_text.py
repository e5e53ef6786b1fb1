"""Values as Go prints them (``%v``), since errors about strategic patches show them so."""

from __future__ import annotations

from typing import Any


def go_text(value: Any) -> str:
    """``map[a:1 b:[x y]]``; keys are sorted, as Go sorts them."""
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
