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
        found = waiting.pop()
        if id(found) not in seen:
            seen.add(id(found))
            found.__traceback__ = None
            waiting.extend(each for each in (found.__cause__, found.__context__) if each is not None)
    return error
