"""A client of the API server in this process: the same verbs and errors, without sockets and without copies.

Requests go through the registry like everyone's, with the same decoding, defaults, validation and admission; a write
returns when it is durable and published.  List items and watch events are the stored bytes themselves.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import lru_cache
from operator import attrgetter
from typing import Protocol, TypeVar

from sliceplane.api import codec
from sliceplane.api.errors import too_large_resource_version
from sliceplane.api.scheme import Resource
from sliceplane.kit.integers import NotAnInteger, parse_uint64
from sliceplane.registry.decoding import body_of_json, document_of_json
from sliceplane.registry.registry import Registry
from sliceplane.registry.types import (
    Context,
    DeleteOptions,
    ListOptions,
    Outcome,
    Target,
    User,
    WatchOptions,
    WatchPlan,
    WriteOptions,
)
from sliceplane.registry.versions import shown_body
from sliceplane.shell.server.requests.params import delete_options_of_document
from sliceplane.shell.transport.base import ListPage, PatchType, WatchMessage
from sliceplane.store.hub import Hub
from sliceplane.store.types import EventType, Record
from sliceplane.store.watcher import Interest, Item, Watcher

T = TypeVar("T")

#: watches that ask for no end get one after this times a random 1..2, as over HTTP
DEFAULT_WATCH_SECONDS = 1800.0
#: how long a read waits for a version that the server does not have yet (reference B4)
FUTURE_VERSION_SECONDS_MAX = 3.0


class Durability(Protocol):
    """The committer, as far as this client needs it."""

    async def write(self, step: Callable[[], T], revision_of: Callable[[T], int]) -> T:
        """Runs *step*, possibly several times, and returns what it returned last when that is durable and published.
        Raises what *step* raises, and a 500 ``StatusError`` if it never will be durable."""

    async def current(self) -> None:
        """Returns when memory is as new as storage was at the call.  Raises the 504 ``StatusError``."""


class _BodyEncoder:
    """The representation of in-process watches: the stored body, shared by all of them."""

    def __init__(self, resource: Resource) -> None:
        self._resource = resource
        self._head = {"kind": resource.kind, "apiVersion": resource.api_version}

    def event(self, kind: EventType, record: Record) -> bytes:
        return shown_body(self._resource, record.body)

    def bookmark(self, revision: int, initial_events_end: bool) -> bytes:
        metadata: dict[str, object] = {"resourceVersion": str(revision)}
        if initial_events_end:
            metadata["annotations"] = {"k8s.io/initial-events-end": "true"}
        return codec.encode({**self._head, "metadata": metadata})


@lru_cache
def _encoder(resource: Resource) -> _BodyEncoder:
    # The hub groups watchers by encoder, so there is one for each resource.
    return _BodyEncoder(resource)


class InProcessClient:
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
        resource: Resource,
        *,
        namespace: str = "",
        label_selector: str = "",
        field_selector: str = "",
        resource_version: str | None = None,
        resource_version_match: str | None = None,
        limit: int | None = None,
        continue_token: str = "",
    ) -> ListPage:
        options = ListOptions(
            label_selector=label_selector,
            field_selector=field_selector,
            resource_version=resource_version,
            resource_version_match=resource_version_match,
            limit=limit or 0,
            continue_token=continue_token,
        )
        if resource_version_match != "Exact" and resource_version:
            await self._wait_for(resource_version)
        else:
            await self._committer.current()
        outcome = self._registry.list(self._context(), Target(resource=resource, namespace=namespace), options)
        items = tuple(record.body for record in outcome.records)
        return ListPage(items, str(outcome.resource_version), outcome.continue_token, outcome.remaining)

    @asynccontextmanager
    async def watch(
        self,
        resource: Resource,
        *,
        namespace: str = "",
        label_selector: str = "",
        field_selector: str = "",
        resource_version: str | None = None,
        timeout_s: int | None = None,
        bookmarks: bool = True,
    ) -> AsyncIterator[AsyncIterator[WatchMessage]]:
        options = WatchOptions(
            label_selector=label_selector,
            field_selector=field_selector,
            resource_version=resource_version,
            allow_bookmarks=bookmarks,
            timeout_s=timeout_s,
        )
        plan = self._registry.watch_plan(self._context(), Target(resource=resource, namespace=namespace), options)
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
        seconds = plan.timeout_s or DEFAULT_WATCH_SECONDS * random.uniform(1, 2)
        interest = Interest(
            resource=plan.resource.storage_key,
            encoder=_encoder(plan.resource),
            namespace=plan.namespace,
            name=plan.name,
            matches=plan.matches,
            selector=plan.selector,
        )
        watcher = self._hub.subscribe(
            interest, now=now, since=plan.since, initial=plan.initial, bookmarks=plan.bookmarks, ends_at=now + seconds
        )
        self._watchers[watcher.number] = watcher
        self._arm()
        return watcher

    async def create(
        self, resource: Resource, namespace: str, body: bytes, *, subresource: str = "", name: str = ""
    ) -> bytes:
        target = Target(resource=resource, namespace=namespace, name=name, subresource=subresource)
        decoded = body_of_json(resource, subresource, body)
        context = self._context()
        return await self._written(lambda: self._registry.create(context, target, decoded, self._options))

    async def update(
        self, resource: Resource, namespace: str, name: str, body: bytes, *, subresource: str = ""
    ) -> bytes:
        target = Target(resource=resource, namespace=namespace, name=name, subresource=subresource)
        decoded = body_of_json(resource, subresource, body)
        context = self._context()
        return await self._written(lambda: self._registry.update(context, target, decoded, self._options))

    async def patch(
        self,
        resource: Resource,
        namespace: str,
        name: str,
        body: bytes,
        *,
        patch_type: PatchType,
        subresource: str = "",
    ) -> bytes:
        target = Target(resource=resource, namespace=namespace, name=name, subresource=subresource)
        context = self._context()
        return await self._written(lambda: self._registry.patch(context, target, patch_type, body, self._options))

    async def delete(self, resource: Resource, namespace: str, name: str, options: bytes = b"") -> bytes:
        target = Target(resource=resource, namespace=namespace, name=name)
        chosen = delete_options_of_document(document_of_json(options)) if options else DeleteOptions()
        context = self._context()
        return await self._written(lambda: self._registry.delete(context, target, chosen))

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
        deadline = loop.time() + FUTURE_VERSION_SECONDS_MAX
        while self._hub.revision < wanted:
            if loop.time() >= deadline:
                raise too_large_resource_version(wanted, self._hub.revision)
            await asyncio.sleep(0.05)

    def _context(self) -> Context:
        return Context(now=self._clock(), user=self._user)

    async def _written(self, step: Callable[[], Outcome]) -> bytes:
        outcome: Outcome = await self._committer.write(step, attrgetter("revision"))
        return outcome.body


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
            self._taken, self._next = list(watcher.take()), 0
            if self._taken:
                return True
            if watcher.pending:
                # A selector passed over a page of the backlog: let others run before the next one.
                await asyncio.sleep(0)
            elif watcher.closed:
                return False
            else:
                await self._wake.wait()
