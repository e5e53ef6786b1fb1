"""Which of two versions of one object is older."""

from __future__ import annotations

from sliceplane.kit.integers import NotAnInteger, parse_uint64


def is_older(version: str, than: str) -> bool:
    """False where nobody can tell: a resourceVersion that is no number says only whether it is the same."""
    try:
        return parse_uint64(version) < parse_uint64(than)
    except NotAnInteger:
        return False
