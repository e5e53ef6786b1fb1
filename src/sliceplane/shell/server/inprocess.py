"""A client of the API server in this process: the same verbs and errors, without sockets and without copies.

Requests go through the registry as those over HTTP do, with the same decoding, defaults, validation and admission; a
write returns when it is durable and published.  List items and watch events are the stored bytes themselves.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from operator import attrgetter
from typing import Final

from sliceplane.api import codec
from sliceplane.api.errors import too_large_resource_version
from sliceplane.api.requests import ListPage, Selection, WatchMessage, Write
from sliceplane.api.scheme import Resource
from sliceplane.kit.integers import NotAnInteger, parse_uint64
from sliceplane.registry.direct import interest_of, step_of
from sliceplane.registry.registry import Registry
from sliceplane.registry.types import Context, ListOptions, Outcome, Target, User, WatchOptions, WatchPlan, WriteOptions
from sliceplane.shell.server.storage.committing import Durability
from sliceplane.shell.transport.base import Verbs
from sliceplane.store.hub import Hub
from sliceplane.store.watcher import Item, Watcher

#: watches that ask for no end get one after this times a random 1..2, as over HTTP
WATCH_S: Final = 1800.0
#: how long a read waits for a version that the server does not have yet
FUTURE_VERSION_S_MAX: Final = 3.0


class InProcessClient(Verbs):
    """See ``shell.transport.base.Client``.  Lives in the server's loop.

    *arm* is called after each subscription, so that the hub's timer is set (``HubTicker.arm``).  *user* is who asks,
    for admission and field managers.
    """

    def __init__(
        self,
        registry: Registry,
        committer: Durability,
        hub: Hub,
        *,
        arm: Callable[[], None],
        clock: Callable[[], float],
        user: User,
        field_manager: str = "sliceplane",
    ) -> None:
        self._registry = registry
        self._committer = committer
        self._hub = hub
        self._arm = arm
        self._clock = clock
        self._user = user
        self._options = WriteOptions(field_manager=field_manager, field_validation="Strict")
        self._watchers: dict[int, Watcher] = {}

    async def get(self, resource: Resource, namespace: str, name: str) -> bytes:
        await self._committer.current()
        return self._registry.get(self._context(), Target(resource=resource, namespace=namespace, name=name)).body

    async def list(
        self,
        selection: Selection,
        *,
        resource_version: str | None = None,
        limit: int | None = None,
        continue_token: str = "",
    ) -> ListPage:
        options = ListOptions(
            label_selector=selection.label_selector,
            field_selector=selection.field_selector,
            resource_version=resource_version,
            limit=limit or 0,
            continue_token=continue_token,
        )
        if resource_version:
            await self._wait_for(resource_version)
        else:
            await self._committer.current()
        target = Target(resource=selection.resource, namespace=selection.namespace)
        outcome = self._registry.list(self._context(), target, options)
        items = tuple(record.body for record in outcome.records)
        return ListPage(items, str(outcome.resource_version), outcome.continue_token, outcome.remaining)

    @asynccontextmanager
    async def watch(
        self,
        selection: Selection,
        *,
        resource_version: str | None = None,
        timeout_s: int | None = None,
        bookmarks: bool = True,
    ) -> AsyncIterator[AsyncIterator[WatchMessage]]:
        options = WatchOptions(
            label_selector=selection.label_selector,
            field_selector=selection.field_selector,
            resource_version=resource_version,
            allow_bookmarks=bookmarks,
            timeout_s=timeout_s,
        )
        target = Target(resource=selection.resource, namespace=selection.namespace)
        plan = self._registry.watch_plan(self._context(), target, options)
        if plan.wait_for is not None:
            await self._wait_for(str(plan.wait_for))
        elif plan.newest:
            await self._committer.current()
        watcher = self._subscribe(plan)
        try:
            yield _Stream(watcher)
        finally:
            self._watchers.pop(watcher.number, None)
            self._hub.unsubscribe(watcher)

    def _subscribe(self, plan: WatchPlan) -> Watcher:
        now = asyncio.get_running_loop().time()
        seconds = plan.timeout_s or WATCH_S * random.uniform(1, 2)
        watcher = self._hub.subscribe(
            interest_of(plan),
            now=now,
            since=plan.since,
            initial=plan.initial,
            bookmarks=plan.bookmarks,
            ends_at=now + seconds,
        )
        self._watchers[watcher.number] = watcher
        self._arm()
        return watcher

    async def perform(self, write: Write) -> bytes:
        step = step_of(self._registry, self._context(), write, self._options)
        outcome: Outcome = await self._committer.write(step, attrgetter("revision"))
        return outcome.body

    async def close(self) -> None:
        """End the watches that are open."""
        for watcher in tuple(self._watchers.values()):
            watcher.close(None)
            watcher.notify()

    async def _wait_for(self, resource_version: str | None) -> None:
        """Wait a little for a version from the future.  What is no number is left to the registry to refuse."""
        try:
            wanted = parse_uint64(resource_version or "")
        except NotAnInteger:
            return
        loop = asyncio.get_running_loop()
        deadline = loop.time() + FUTURE_VERSION_S_MAX
        while self._hub.revision < wanted:
            if loop.time() >= deadline:
                raise too_large_resource_version(wanted, self._hub.revision)
            await asyncio.sleep(0.05)

    def _context(self) -> Context:
        return Context(now=self._clock(), user=self._user)


class _Stream:
    """The messages of one watch, for one reader."""

    def __init__(self, watcher: Watcher) -> None:
        self._watcher = watcher
        self._wake = asyncio.Event()
        self._taken: list[Item] = []
        self._next = 0
        self._ended = False
        watcher.notify = self._wake.set

    def __aiter__(self) -> AsyncIterator[WatchMessage]:
        return self

    async def __anext__(self) -> WatchMessage:
        while self._next == len(self._taken):
            if self._ended:
                raise StopAsyncIteration
            if not await self._fill():
                self._ended = True
                if self._watcher.error is None:
                    raise StopAsyncIteration
                return WatchMessage("ERROR", codec.encode(self._watcher.error.status()))
        item = self._taken[self._next]
        self._next += 1
        return WatchMessage(item.type, item.data)

    async def _fill(self) -> bool:
        """Take what there is; wait if there is nothing yet.  False: there never will be."""
        watcher = self._watcher
        while True:
            self._wake.clear()
            self._taken = list(watcher.take())
            self._next = 0
            if self._taken:
                return True
            if watcher.pending:
                # A selector passed over a page of the backlog: let others run before the next one.
                await asyncio.sleep(0)
            elif watcher.closed:
                return False
            else:
                await self._wake.wait()
