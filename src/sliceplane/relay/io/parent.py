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
from sliceplane.consume.drain.relays import SILENT_S
from sliceplane.kit.io.tasks import SharedCalls
from sliceplane.kit.rng import Rng
from sliceplane.relay.earlier import CatchUp, WatchScope
from sliceplane.relay.io.upstream import ParentClient
from sliceplane.relay.mirror import ResourceMirror
from sliceplane.relay.records import Mirrored
from sliceplane.server.io.requests.timers import Horizon
from sliceplane.watch.actions import bookmark_version, is_overload
from sliceplane.watch.io.base import Unreachable
from sliceplane.watch.io.reflect import RunningInformer

#: how long a consistent read waits for the parent's current version
CURRENT_S_MAX: Final = 3.0
#: events need this long; only then the short watch is opened
PROGRESS_AFTER_S: Final = 0.1
#: servers send the last bookmark of a watch two seconds before its end
PROGRESS_WATCH_S: Final = 3
#: how long a watch waits for events from before the history, and catch-ups at a time
CATCH_UP_S_MAX: Final = 10.0
CATCH_UPS_MAX: Final = 2
FETCH_S_MAX: Final = 8.0
FETCH_PAUSE_S: Final = 0.2
FILLED_CHECK_S: Final = 0.05


class Parent:
    """Owned by one relay; ``run`` is one task."""

    def __init__(
        self,
        client: ParentClient,
        selection: Selection,
        mirror: ResourceMirror,
        *,
        clock: Callable[[], float],
        rng: Rng,
    ) -> None:
        self.mirror = mirror
        #: the parent's parents lead back here, as a sentence
        self.loop = ""
        self._client = client
        self._selection = selection
        self._horizon = Horizon(mirror.store)
        self.informer: RunningInformer[Mirrored] = RunningInformer(
            client, self._selection, clock=clock, rng=rng, cache=mirror.cache
        )
        self.informer.add_handler(mirror.on_changes, lambda: None, mirror.on_mark)
        #: one question for all who wait for the next
        self._versions: SharedCalls[None, int] = SharedCalls()
        self._one_at_a_time = asyncio.Lock()
        self._progress: SharedCalls[None, None] = SharedCalls()
        #: once for all who wait
        self._catch_ups: SharedCalls[WatchScope, None] = SharedCalls()
        self._catch_up_slots = asyncio.Semaphore(CATCH_UPS_MAX)

    @property
    def silence_s(self) -> float:
        """Seconds since the mirror was last known to have all that the parent has."""
        return self.informer.staleness()

    @property
    def trouble(self) -> str:
        """Why reads from memory may be too old; "" if they are not."""
        if self.loop:
            return self.loop
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
            for calls in (self._versions, self._progress, self._catch_ups):
                calls.cancel()

    async def reach(self, revision: int | None, seconds: float) -> bool:
        """Returns True once the mirror has *revision*, or what the parent had at the call (``None``,
        and where *revision* is none of the parent's); False after *seconds*, and if the parent went
        back to a backup, which the watch tells a moment later.
        """
        store = self.mirror.store
        if self.mirror.filled and revision is not None and revision <= store.revision:
            return True
        try:
            async with asyncio.timeout(seconds):
                await self._filled()
                had = store.revision
                current = await self._current_version()
                if current < had:
                    return False
                goal = current if revision is None else min(revision, current)
                with suppress(StatusError):
                    await self._horizon.reach(goal, min(PROGRESS_AFTER_S, seconds))
                if goal > store.revision:
                    self._progress.start(None, self._watch_progress)
                    await self._horizon.reach(goal, seconds)
        except (StatusError, Unreachable, TimeoutError):
            return False
        return True

    async def catch_up(self, scope: WatchScope, since: int) -> None:
        """Fetches the events of *scope* from *since* to the mirror's history, once for all who
        wait; if that is not possible, a watch from there is 410.
        """
        earlier = self.mirror.earlier
        with suppress(TimeoutError):
            async with asyncio.timeout(CATCH_UP_S_MAX):
                while earlier.lacks(scope, since):
                    earlier.want(scope, since)
                    await asyncio.shield(self._catch_ups.start(scope, lambda: self._fetch(scope)))

    async def _fetch(self, scope: WatchScope) -> None:
        """The catch-up of all who want one of *scope* now."""
        labels, _, fields = scope.selector.partition("\n")
        labels = ",".join(filter(None, (self._selection.label_selector, labels)))
        selection = Selection(self._selection.resource, scope.namespace, labels, fields)
        async with self._catch_up_slots:
            run = self.mirror.earlier.begin(scope)
            with suppress(TimeoutError):
                async with asyncio.timeout(FETCH_S_MAX):
                    with suppress(StatusError, Unreachable):
                        await self._current_version()  # the next bookmark is that new
                    while not run.is_over:
                        await self._feed(selection, run)
            self.mirror.earlier.finish(scope, run)

    async def _feed(self, selection: Selection, run: CatchUp) -> None:
        """One watch of the parent, until *run* is over or the watch."""
        try:
            async with self._client.watch(
                selection, resource_version=str(run.version), timeout_s=PROGRESS_WATCH_S
            ) as messages:
                async for message in messages:
                    run.on_message(message.type, message.body)
                    if run.is_over:
                        return
                    await asyncio.sleep(0)  # there may be thousands
        except StatusError as error:
            if not is_overload(error):
                run.fail()
        except Unreachable:
            pass
        await asyncio.sleep(FETCH_PAUSE_S)

    async def _filled(self) -> None:
        """Returns after the first list."""
        while not self.mirror.filled:
            await asyncio.sleep(FILLED_CHECK_S)

    async def _current_version(self) -> int:
        """The parent's version at the call, or later."""
        return await asyncio.shield(self._versions.start(None, self._next_version))

    async def _next_version(self) -> int:
        async with self._one_at_a_time:
            self._versions.pop(None, None)  # a read that comes from now on needs the next
            return await self._ask_version()

    async def _ask_version(self) -> int:
        page = await self._client.list(self._selection, limit=1)
        return revision_of(page.resource_version)

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
