"""Watch streams: from a hub's watcher to one HTTP response (reference B5).

One task for each stream takes what is queued, sends it joined, and sleeps until the hub's ``notify``.  It never
holds anybody up: a client that does not read blocks only its own ``send``, its queue at the hub grows to its bound,
the hub closes the watch, and if ``send`` is still blocked ``STALLED_SECONDS_MAX`` later the connection is cut.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from sliceplane.api.errors import StatusError
from sliceplane.registry.registry import Registry
from sliceplane.registry.types import Target, WatchPlan
from sliceplane.shell.apiserver.encoders import AnyEncoder, TableEncoder, encoder_for
from sliceplane.shell.apiserver.negotiate import Representation, negotiate
from sliceplane.shell.apiserver.params import watch_options
from sliceplane.shell.apiserver.paths import Route
from sliceplane.shell.apiserver.request import Request, Send
from sliceplane.shell.apiserver.resources import ResourceHandlers, included_objects
from sliceplane.shell.apiserver.response import NO_CACHE, common_headers
from sliceplane.shell.apiserver.ticker import HubTicker
from sliceplane.shell.apiserver.warnings import deprecation, warning_headers
from sliceplane.store.hub import Hub
from sliceplane.store.watcher import Interest, Watcher

#: how long a client that reads nothing keeps its connection after its watch was closed
STALLED_SECONDS_MAX = 5.0
#: streams without timeoutSeconds end after this times a random 1..2
DEFAULT_SECONDS_MIN = 1800.0
#: what one ``send`` carries at most, unless one event is larger
SEND_BYTES = 256 * 1024


class Stream:
    """One open watch.  ``run`` is called once, by the request's task."""

    def __init__(self, request: Request, send: Send, watcher: Watcher, encoder: AnyEncoder) -> None:
        self._request = request
        self._send = send
        self._watcher = watcher
        self._encoder = encoder
        self._wake = asyncio.Event()
        self._sending = False
        self._gone = False
        self._cut: asyncio.TimerHandle | None = None
        self._columns_due = isinstance(encoder, TableEncoder)

    async def run(self) -> None:
        """Returns when the watch or the connection has ended."""
        self._watcher.notify = self._on_notify
        departure = asyncio.create_task(self._request.disconnected())
        departure.add_done_callback(self._on_departure)
        try:
            await self._deliver()
            if not self._gone:
                error = self._watcher.error
                last = self._encoder.error(error) if error is not None else b""
                await self._send_body(last, more=False)
        finally:
            if self._cut is not None:
                self._cut.cancel()
            departure.cancel()

    def _on_notify(self) -> None:
        self._wake.set()
        if self._watcher.closed and self._sending and self._cut is None:
            loop = asyncio.get_running_loop()
            self._cut = loop.call_later(STALLED_SECONDS_MAX, self._request.abort)

    def _on_departure(self, _departure: asyncio.Task[None]) -> None:
        self._gone = True
        self._wake.set()

    async def _deliver(self) -> None:
        watcher = self._watcher
        while not self._gone:
            frames = watcher.take()
            if frames:
                for portion in _portions([frame.data for frame in frames]):
                    if self._gone or watcher.error is not None:
                        return
                    await self._send_body(self._prepared(portion), more=True)
            elif watcher.pending:
                # A selector passed over a page of the backlog: let others run before the next one.
                await asyncio.sleep(0)
            elif watcher.closed:
                return
            else:
                self._wake.clear()
                await self._wake.wait()

    def _prepared(self, portion: list[bytes]) -> bytes:
        if self._columns_due and isinstance(self._encoder, TableEncoder):
            self._columns_due = False
            portion[0] = self._encoder.with_columns(portion[0])
        return portion[0] if len(portion) == 1 else b"".join(portion)

    async def _send_body(self, body: bytes, *, more: bool) -> None:
        self._sending = True
        await self._send({"type": "http.response.body", "body": body, "more_body": more})
        self._sending = False


def _portions(frames: list[bytes]) -> Iterator[list[bytes]]:
    """*frames* in runs of about ``SEND_BYTES``: a joined run is a private copy, frames are shared."""
    run: list[bytes] = []
    size = 0
    for frame in frames:
        if run and size + len(frame) > SEND_BYTES:
            yield run
            run, size = [], 0
        run.append(frame)
        size += len(frame)
    if run:
        yield run


class WatchHandler:
    """Opens streams.  Stateless but for its parts."""

    def __init__(self, resources: ResourceHandlers, registry: Registry, hub: Hub, ticker: HubTicker) -> None:
        self._resources = resources
        self._registry = registry
        self._hub = hub
        self._ticker = ticker

    async def respond(self, request: Request, route: Route, send: Send, on_head: Callable[[], str]) -> None:
        """Serve a watch to its end.

        *on_head* is called when the head is about to be sent, and gives the audit id.  Raises ``StatusError`` before
        that, never after: later errors are ERROR events.
        """
        query, target = request.query, route.target
        representation = negotiate(request.header(b"accept"), watch=True)
        included = included_objects(request, representation)
        options = watch_options(query, name=target.name)
        context = self._resources.context(request)
        plan = self._registry.watch_plan(context, replace(target, name=""), options)
        encoder = encoder_for(target.resource, representation, included, self._resources.clock)
        late = await self._future_error(plan)
        watcher = None if late else self._subscribe(plan, encoder)
        try:
            await send(_head(target, representation, on_head(), self._resources.clock()))
            if watcher is None:
                assert late is not None, "without a watcher there is an error to tell"
                await send({"type": "http.response.body", "body": encoder.error(late)})
            else:
                await Stream(request, send, watcher, encoder).run()
        finally:
            if watcher is not None:
                self._hub.unsubscribe(watcher)

    async def _future_error(self, plan: WatchPlan) -> StatusError | None:
        """A state at a version from the future is waited for a little; then it is an ERROR event (reference B4)."""
        if plan.wait_for is None:
            return None
        try:
            await self._resources.wait_for(str(plan.wait_for))
        except StatusError as error:
            return error
        return None

    def _subscribe(self, plan: WatchPlan, encoder: AnyEncoder) -> Watcher:
        seconds = plan.timeout_s
        if not seconds or seconds < 0:
            seconds = DEFAULT_SECONDS_MIN * random.uniform(1, 2)
        now = self._resources.clock()
        interest = Interest(
            resource=plan.resource.storage_key,
            encoder=encoder,
            namespace=plan.namespace,
            name=plan.name,
            matches=plan.matches,
            selector=plan.selector,
        )
        watcher = self._hub.subscribe(
            interest, now=now, since=plan.since, initial=plan.initial, bookmarks=plan.bookmarks, ends_at=now + seconds
        )
        self._ticker.arm()
        return watcher


def _head(target: Target, representation: Representation, audit_id: str, now: float) -> dict[str, Any]:
    headers = common_headers(now, audit_id)
    headers.append(NO_CACHE)
    headers.append((b"content-type", representation.watch_content_type))
    headers.extend(warning_headers(deprecation(target.resource.group, target.resource.plural)))
    return {"type": "http.response.start", "status": 200, "headers": headers}
