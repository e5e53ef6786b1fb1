"""Errors that are kept for a while, without what they would keep alive.

An error knows the frames that it went through, and they know the request, its headers and body, and often the error
itself: a cycle of everything that a request was, which only the cyclic collector would free.
"""

from __future__ import annotations

from typing import TypeVar

_Error = TypeVar("_Error", bound=BaseException)


def without_frames(error: _Error) -> _Error:
    """*error*, and what it was raised from, without tracebacks."""
    waiting: list[BaseException] = [error]
    seen: set[int] = set()
    while waiting:
        current = waiting.pop()
        if id(current) not in seen:
            seen.add(id(current))
            current.__traceback__ = None
            waiting.extend(related for related in (current.__cause__, current.__context__) if related is not None)
    return error
