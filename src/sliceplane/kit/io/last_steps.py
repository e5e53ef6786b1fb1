"""The last steps of a task that was cancelled: with a bound on their time, and yet done to the end.

Up to Python 3.11.2 (Debian 12's) ``asyncio.timeout`` in a task that has been cancelled takes its
own end for that cancellation (python/cpython#102780): it raises ``CancelledError`` where
``TimeoutError`` was meant, and what was to follow is left undone, a process that would not end by
itself among it. What runs in a ``finally`` is bounded by ``ends_within``, whose work is a task of
its own and was not cancelled.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any


async def ends_within(seconds: float, work: Coroutine[Any, Any, object]) -> bool:
    """Returns True if *work* ended in time, and cancels it otherwise. Raises the exception of
    *work*.
    """
    task = asyncio.create_task(work)
    try:
        await asyncio.wait((task,), timeout=seconds)
    finally:
        in_time = task.done()
        task.cancel()
        await asyncio.wait((task,))
    if in_time:
        task.result()
    return in_time
