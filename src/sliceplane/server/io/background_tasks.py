"""Background tasks of a server that change its objects.  Each runs until the plane cancels it: a
failure is logged once, and the next period tries again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from sliceplane.api.errors import StatusError
from sliceplane.kit.io.log import get_logger
from sliceplane.kit.io.process.free_memory import FreeMemory, trim
from sliceplane.kit.metrics import Count
from sliceplane.server.io.storage.committing import AnyCommitter
from sliceplane.server.store.mvcc import Store
from sliceplane.server.store.types import Record

_log = get_logger("plane")


async def compact_history(committer: AnyCommitter, store: Store, period_s: float) -> None:
    """Compacts old revisions, and returns the memory that this frees to the system."""
    steady = asyncio.get_running_loop().time
    memory = FreeMemory(store.compacted)
    while True:
        committer.tick(steady())
        if memory.on_tick(store.compacted, store.revision):
            trim()
        await asyncio.sleep(period_s)


async def remove_expired_events(
    committer: AnyCommitter,
    expire: Callable[[], tuple[Record, ...]],
    expired: Count,
    period_s: float,
) -> None:
    """Calls *expire*, which removes Events older than an hour, and counts them."""
    while True:
        await asyncio.sleep(period_s)
        try:
            gone = await committer.write(
                expire, lambda records: records[-1].revision if records else 0
            )
        except StatusError as error:
            _log.error("expired Events are still there", error=str(error))
            continue
        expired.value += len(gone)


async def repeat(
    committer: AnyCommitter, name: str, step: Callable[[], int], period_s: float
) -> None:
    """Writes what *step*, a piece of registry work, stages in each period."""
    logged = ""
    while True:
        await asyncio.sleep(period_s)
        try:
            await committer.write(step, int)
            logged = ""
        except Exception as error:  # a fault here must not end the keeping for good
            if str(error) != logged:
                logged = str(error)
                cause = None if isinstance(error, StatusError) else error
                _log.error(
                    "what the server keeps itself is not kept",
                    step=name,
                    error=logged,
                    exc_info=cause,
                )
