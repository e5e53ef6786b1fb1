"""One resource of the parent: the informer that fills a mirror, and the parent's current version
for reads that must not be older.

A list with limit 1 tells the parent's version, shared by all reads that wait. A resource to which
nothing happens does not reach it by events, and bookmarks come once a minute. But servers send a
bookmark shortly before a watch ends: so a watch of a few seconds, from the version that the mirror
has, brings either the events or the proof that there are none.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from sliceplane.api.codec import decode
from sliceplane.api.errors import StatusError
from sliceplane.api.meta import Object, revision_of
from sliceplane.api.requests import Selection
from sliceplane.api.resource import Resource
from sliceplane.kit.rng import Rng
from sliceplane.relay.mirror import Mirrored, ResourceMirror
from sliceplane.server.io.requests.timers import Horizon
from sliceplane.watch.actions import bookmark_version
from sliceplane.watch.io.base import Unreachable
from sliceplane.watch.io.http.client import HttpClient
from sliceplane.watch.io.reflect import RunningInformer

#: how long a consistent read waits for the parent's current version
CURRENT_S_MAX: Final = 3.0
#: events need this long; only then the short watch is opened
PROGRESS_AFTER_S: Final = 0.1
#: servers send the last bookmark of a watch two seconds before its end
PROGRESS_WATCH_S: Final = 3
FILLED_CHECK_S: Final = 0.05
#: two bookmarks: a parent that is silent for longer may be lost
SILENT_S: Final = 120.0


class Parent:
    """Owned by one relay; ``run`` is one task."""

    def __init__(
        self,
        client: HttpClient,
        resource: Resource,
        mirror: ResourceMirror,
        *,
        clock: Callable[[], float],
        rng: Rng,
    ) -> None:
        self.mirror = mirror
        self._client = client
        self._selection = Selection(resource)
        self._horizon = Horizon(mirror.store)
        self.informer: RunningInformer[Mirrored] = RunningInformer(
            client, self._selection, clock=clock, rng=rng, cache=mirror.cache
        )
        self.informer.add_handler(mirror.on_changes, lambda: None, mirror.on_mark)
        self._next_version: asyncio.Task[int] | None = None
        self._one_at_a_time = asyncio.Lock()
        self._progress: asyncio.Task[None] | None = None

    @property
    def silence_s(self) -> float:
        """Seconds since the mirror was last known to have all that the parent has."""
        return self.informer.staleness()

    @property
    def trouble(self) -> str:
        """Why reads from memory may be too old; "" if they are not."""
        if not self.mirror.filled:
            return self.informer.lost or "nothing was listed yet"
        if self.silence_s > SILENT_S:
            return f"the parent is silent since {self.silence_s:.0f} s"
        return ""

    async def run(self) -> None:
        """Until cancelled."""
        try:
            await self.informer.run()
        finally:
            for task in (self._next_version, self._progress):
                if task is not None:
                    task.cancel()

    async def reach(self, revision: int | None, seconds: float) -> bool:
        """Returns True once the mirror has *revision*, or what the parent had at the call (``None``,
        and where *revision* is none of the parent's); False after *seconds*.
        """
        store = self.mirror.store
        if self.mirror.filled and revision is not None and revision <= store.revision:
            return True
        try:
            async with asyncio.timeout(seconds):
                await self._filled()
                current = await self._current_version()
                goal = current if revision is None else min(revision, current)
                with suppress(StatusError):
                    await self._horizon.reach(goal, min(PROGRESS_AFTER_S, seconds))
                if goal > store.revision:
                    self._begin_progress()
                    await self._horizon.reach(goal, seconds)
        except (StatusError, Unreachable, TimeoutError):
            return False
        return True

    async def _filled(self) -> None:
        """Returns after the first list."""
        while not self.mirror.filled:
            await asyncio.sleep(FILLED_CHECK_S)

    async def _current_version(self) -> int:
        """The parent's version at the call, or later: one question for all who wait for the
        next.
        """
        task = self._next_version
        if task is None:
            task = self._next_version = asyncio.create_task(self._ask_version())
            task.add_done_callback(_forget)
        return await asyncio.shield(task)

    async def _ask_version(self) -> int:
        async with self._one_at_a_time:
            self._next_version = None  # a read that comes from now on needs the next
            page = await self._client.list(self._selection, limit=1)
            return revision_of(page.resource_version)

    def _begin_progress(self) -> None:
        if self._progress is None or self._progress.done():
            self._progress = asyncio.create_task(self._watch_progress())
            self._progress.add_done_callback(_forget)

    async def _watch_progress(self) -> None:
        """Follows the parent for a moment, to the first bookmark."""
        seen = self.mirror.store.revision
        async with (
            asyncio.timeout(2 * PROGRESS_WATCH_S),
            self._client.watch(
                self._selection, resource_version=str(seen), timeout_s=PROGRESS_WATCH_S
            ) as messages,
        ):
            async for message in messages:
                if message.type == "BOOKMARK":
                    self.mirror.on_progress(seen, revision_of(bookmark_version(message.body)))
                    return
                if message.type == "ERROR":
                    return
                seen = max(seen, decode(message.body, Object).metadata.revision)


def _forget(task: asyncio.Task[object]) -> None:
    """Its askers may all be gone, or it is tried again: an error is no news."""
    if not task.cancelled():
        task.exception()
