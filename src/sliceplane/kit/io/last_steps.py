"""The last steps of a cancelled task: bounded in time, and still completed.

Up to Python 3.11.2 (Debian 12's) ``asyncio.timeout`` in a cancelled task confuses its own expiry
with that cancellation (python/cpython#102780): it raises ``CancelledError`` instead of
``TimeoutError``. The following steps are then skipped, for example the end of a child process.
Steps in a ``finally`` use ``ends_within`` instead, whose work is a separate task that was not
cancelled.
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
