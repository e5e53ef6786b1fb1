"""A client of the API server in this process: the same verbs and errors, without sockets and
without copies.

Requests go through the registry as those over HTTP do, with the same decoding, defaults, validation
and admission; a write returns when it is durable and published. List items and watch events are the
stored bytes themselves.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import asynccontextmanager
from operator import attrgetter
from typing import Final

from sliceplane.api import codec
from sliceplane.api.errors import unknown_resource
from sliceplane.api.requests import ListPage, Selection, WatchMessage, Write
from sliceplane.api.scheme import Resource
from sliceplane.api.users import User
from sliceplane.kit.integers import NotAnInteger, parse_uint64
from sliceplane.server.io.requests.reports import ReportService, rights
from sliceplane.server.io.requests.timers import Horizon, HubTicker
from sliceplane.server.io.storage.committing import Durability
from sliceplane.server.registry.direct import interest_of, step_of
from sliceplane.server.registry.registry import Registry
from sliceplane.server.registry.types import (
    Context,
    ListOptions,
    Outcome,
    Target,
    WatchOptions,
    WriteOptions,
)
from sliceplane.server.store.watcher import Watcher
from sliceplane.watch.io.base import Verbs

#: watches that ask for no end get one after this times a random 1..2, as over HTTP
WATCH_S: Final = 1800.0
#: how long a read waits for a version that the server does not have yet
FUTURE_VERSION_S_MAX: Final = 3.0


class InProcessClient(Verbs):
    """See ``watch.io.base.Client``.  Lives in the server's loop.

    *user* makes the requests, for admission and field managers.
    """

    def __init__(
        self,
        registry: Registry,
        committer: Durability,
        ticker: HubTicker,
        reports: ReportService,
        *,
        clock: Callable[[], float],
        user: User,
        field_manager: str = "sliceplane",
    ) -> None:
        self._registry = registry
        self._committer = committer
        self._ticker = ticker
        self._horizon = Horizon(ticker.hub)
        self._reports = reports
        self._clock = clock
        self._user = user
        self._options = WriteOptions(field_manager=field_manager, field_validation="Strict")
        self._watchers: dict[int, Watcher] = {}

    async def get(self, resource: Resource, namespace: str, name: str) -> bytes:
        await self._committer.current()
        return self._registry.get(
            Context(now=self._clock(), user=self._user),
            Target(resource=resource, namespace=namespace, name=name),
        ).body

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
        outcome = self._registry.list(Context(now=self._clock(), user=self._user), target, options)
        items = tuple(record.body for record in outcome.records)
        return ListPage(
            items, str(outcome.resource_version), outcome.continue_token, outcome.remaining
        )

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
        plan = self._registry.watch_plan(
            Context(now=self._clock(), user=self._user), target, options
        )
        if plan.wait_for is not None:
            await self._wait_for(str(plan.wait_for))
        elif plan.newest:
            await self._committer.current()
        seconds = plan.timeout_s or WATCH_S * random.uniform(1, 2)
        watcher = self._ticker.subscribe(interest_of(plan), plan, seconds)
        self._watchers[watcher.number] = watcher
        messages = _messages(watcher)
        try:
            yield messages
        finally:
            await messages.aclose()
            self._watchers.pop(watcher.number, None)
            self._ticker.hub.unsubscribe(watcher)

    async def perform(self, write: Write) -> bytes:
        step = step_of(
            self._registry, Context(now=self._clock(), user=self._user), write, self._options
        )
        outcome: Outcome = await self._committer.write(step, attrgetter("revision"))
        return outcome.body

    async def post(self, path: str, body: bytes) -> bytes:
        """A question of ``consume.drain.reports``."""
        if rights("POST", path) is None:
            raise unknown_resource()
        return await self._reports.answer(path, body)

    async def close(self) -> None:
        """End the watches that are open."""
        for watcher in tuple(self._watchers.values()):
            watcher.close(None)
            watcher.notify()

    async def _wait_for(self, resource_version: str | None) -> None:
        """Wait a little for a version from the future.  What is no number is left to the registry
        to refuse.
        """
        try:
            version = parse_uint64(resource_version or "")
        except NotAnInteger:
            return
        await self._horizon.reach(version, FUTURE_VERSION_S_MAX)


async def _messages(watcher: Watcher) -> AsyncGenerator[WatchMessage, None]:
    """The messages of one watch, for one reader."""
    wake = asyncio.Event()
    watcher.notify = wake.set
    while True:
        wake.clear()
        items = watcher.take()
        for item in items:
            yield WatchMessage(item.type, item.data)
        if items:
            continue
        if watcher.pending:
            # A selector passed over a page of the backlog: let others run before the next one.
            await asyncio.sleep(0)
        elif watcher.closed:
            break
        else:
            await wake.wait()
    if watcher.error is not None:
        yield WatchMessage("ERROR", codec.encode(watcher.error.status()))
