"""How a test waits for what happens by itself: it looks until it is so, and tells what it saw last
if it never is.

``until`` blocks, ``eventually`` lets the loop of asyncio go on. Both look at once, then ever less
often, and rest for as long as a look took: one that starts a program must not take a core from what
it waits for. The deadline is no measure of how long a thing may take: on a busy machine everything
takes several times as long.
"""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Callable
from typing import Any, Final, TypeVar

T = TypeVar("T")

PATIENCE_S: Final = 120.0
#: of the time that it has waited: what comes soon is seen at once, and what takes long is not
#: looked at all the time
_PAUSE_SHARE: Final = 0.05
_PAUSE_MIN_S: Final = 0.001
_PAUSE_MAX_S: Final = 1.0


def until(
    look: Callable[[], T],
    holds: Callable[[T], object] = bool,
    *,
    within_s: float = PATIENCE_S,
    ignoring: tuple[type[Exception], ...] = (),
) -> T:
    """What *look* gives as soon as it *holds*; an error that is to be ignored is one more "not
    yet".
    """
    began = time.monotonic()
    while True:
        seen: object
        looked_at = time.monotonic()
        try:
            seen = value = look()
            if holds(value):
                return value
        except ignoring as error:
            seen = error
        now = time.monotonic()
        assert now - began < within_s, _never(within_s, seen)
        time.sleep(_pause_s(now - began, now - looked_at))


async def eventually(
    look: Callable[[], Any],
    holds: Callable[[Any], object] = bool,
    *,
    within_s: float = PATIENCE_S,
    ignoring: tuple[type[Exception], ...] = (),
) -> Any:
    """``until`` for a coroutine; *look* may be one itself, and is given up if it does not come
    back.
    """
    loop = asyncio.get_running_loop()
    began, seen = loop.time(), "nothing"
    try:
        async with asyncio.timeout(within_s) as patience:
            while True:
                looked_at = loop.time()
                try:
                    value = look()
                    seen = value = await value if inspect.isawaitable(value) else value
                    if holds(value):
                        return value
                except ignoring as error:
                    seen = error
                now = loop.time()
                await asyncio.sleep(_pause_s(now - began, now - looked_at))
    except TimeoutError:
        if not patience.expired():
            raise
        raise AssertionError(_never(within_s, seen)) from None


async def turns(count: int = 20) -> None:
    """The loop goes round so often: what needs no clock, thread or socket has happened by then, or
    never does.
    """
    for _ in range(count):
        await asyncio.sleep(0)


def _pause_s(waited_s: float, look_s: float) -> float:
    return min(max(waited_s * _PAUSE_SHARE, look_s, _PAUSE_MIN_S), _PAUSE_MAX_S)


def _never(within_s: float, seen: object) -> str:
    return f"not so within {within_s:g} s; last seen: {seen!r}"
