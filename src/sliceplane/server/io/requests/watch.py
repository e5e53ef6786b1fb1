"""Watch streams: from a hub's watcher to one HTTP response.

A stream holds nothing up: when its client does not read, the connection says that writing is paused
and the stream stops taking; its queue at the hub grows to its bound, the hub closes the watch, and
if the client has still taken nothing ``STALLED_S_MAX`` later, the connection is cut.

Frames come from the encoders as ready HTTP chunks, so that one frame is the same bytes for every
stream, down to the socket; only the head and the last chunk of a response go through ASGI.
"""

from __future__ import annotations

import asyncio
import random
from collections import deque
from collections.abc import Callable
from typing import Final, Protocol

from msgspec.structs import replace

from sliceplane.api.errors import StatusError, expired
from sliceplane.kit.io.batches import BatchQueue
from sliceplane.kit.metrics import Metrics
from sliceplane.kit.shares import Shares, Standing
from sliceplane.server.io.metrics import WatchTraffic
from sliceplane.server.io.requests.encoders import AnyEncoder, TableEncoder, encoder_for
from sliceplane.server.io.requests.params import watch_options
from sliceplane.server.io.requests.request import Request, Route, Send, StreamConnection
from sliceplane.server.io.requests.resources import ResourceHandlers, included_objects
from sliceplane.server.io.requests.response import (
    DEPRECATIONS,
    NO_CACHE,
    Header,
    Representation,
    head_of,
    negotiate,
    warning_headers,
)
from sliceplane.server.io.requests.timers import HubTicker
from sliceplane.server.registry.authorization.open_watches import Claim
from sliceplane.server.registry.direct import interest_of
from sliceplane.server.registry.registry import Registry
from sliceplane.server.registry.types import Target, WatchPlan
from sliceplane.server.store.watcher import Watcher, nothing, too_old

#: how long a client that reads nothing keeps its connection after its watch was closed
STALLED_S_MAX = 5.0
#: streams without timeoutSeconds end after this times a random 1..2
DEFAULT_S_MIN = 1800.0
#: what one write carries at most, unless one event is larger: joining small ones saves records and
#: calls, and is a copy
SEND_BYTES = 32 * 1024
#: bytes that one stream writes in its batch, before other streams get theirs
BATCH_BYTES = 128 * 1024
#: of all watches together; a slot is 8 bytes, in a list that grows by an eighth
BACKLOG_EVENTS_MAX = 16_000_000
BACKLOG_PERIOD_S = 1.0
#: of each idle watch: an empty deque of its own has 760 bytes
_NOTHING: Final[deque[bytes]] = deque(maxlen=0)
#: what upstream's storage says, where no cache stands before it
_TOO_OLD_IN_STORAGE = "The resourceVersion for the provided watch is too old."


class Stream:
    """One open watch: a pump between a watcher's queue and a connection, driven by callbacks of
    both.

    ``run`` is called once, by the request's task, which then only waits for the end.
    """

    __slots__ = (
        "_batches",
        "_columns_due",
        "_connection",
        "_cut",
        "_done",
        "_encoder",
        "_loop",
        "_scheduled",
        "_stalled_s",
        "_traffic",
        "_unwritten",
        "_watcher",
    )

    def __init__(
        self,
        connection: StreamConnection,
        watcher: Watcher,
        encoder: AnyEncoder,
        batches: BatchQueue,
        traffic: WatchTraffic,
        *,
        stalled_s: float = STALLED_S_MAX,
    ) -> None:
        self._stalled_s = stalled_s
        self._connection = connection
        self._watcher = watcher
        self._encoder = encoder
        self._batches = batches
        self._traffic = traffic
        self._loop = asyncio.get_running_loop()
        #: taken from the watcher, not written yet; dropped if the watch was too slow
        self._unwritten = _NOTHING
        self._columns_due = isinstance(encoder, TableEncoder)
        self._scheduled = False
        self._cut: asyncio.TimerHandle | None = None
        #: the result says whether the connection is still there
        self._done: asyncio.Future[bool] = self._loop.create_future()

    async def run(self) -> bool:
        """Returns when the watch or the connection has ended; true if the response can be
        completed.
        """
        self._watcher.notify = self._wake
        self._connection.attach(self._wake, lambda: self._finish(connected=False))
        self._wake()
        try:
            return await self._done
        finally:
            self._connection.detach()
            self._watcher.notify = nothing
            if self._cut is not None:
                self._cut.cancel()

    @property
    def waiting(self) -> int:
        """The number of events that wait for the client."""
        return len(self._unwritten) + len(self._watcher.queue)

    def end_slow(self) -> None:
        """Ends the watch as the hub ends one whose queue is full."""
        watcher = self._watcher
        since = max(watcher.taken_revision, watcher.since)
        newest = watcher.queue[-1].revision if watcher.queue else since
        self._unwritten.clear()
        watcher.close(too_old(since, newest))
        self._wake()

    def _wake(self) -> None:
        if not self._scheduled:
            self._scheduled = True
            self._batches.add(self._pump)

    def _pump(self) -> None:
        """Writes a batch; runs again while there is more, or when the connection or the hub
        calls.
        """
        self._scheduled = False
        watcher = self._watcher
        if self._done.done():
            return
        if watcher.closed:
            self._expect_end()
        # From here on everything is paid once per watcher and event.
        connection = self._connection
        if connection.write_paused:
            return
        if watcher.error is not None:
            # Unwritten events are dropped as the watcher's own queue was: the client has to start
            # again anyway.
            connection.write(self._encoder.error(watcher.error))
            self._finish(connected=True)
            return
        unwritten = self._unwritten
        if not unwritten:
            # No more of the backlog than is written next: bytes that are encoded for a client that
            # does not read are retained by each stream alone, and there may be thousands of them.
            taken = watcher.take(SEND_BYTES)
            self._traffic.events.value += len(taken)
            if taken:
                unwritten = self._unwritten = deque([item.data for item in taken])
        written = 0
        while unwritten and written < BATCH_BYTES:
            portion = (
                self._portion() if len(unwritten) > 1 or self._columns_due else unwritten.popleft()
            )
            written += len(portion)
            connection.write(portion)
            if self._connection.write_paused:
                break
        self._traffic.sent_bytes.value += written
        if not unwritten:
            self._unwritten = _NOTHING
        if unwritten or watcher.pending:
            self._wake()
        elif watcher.closed:
            # An error since ``take`` is sent by the next batch.
            self._wake() if watcher.error is not None else self._finish(connected=True)

    def _portion(self) -> bytes:
        """Returns about ``SEND_BYTES`` of unwritten events: one frame is shared with other streams,
        a joined run is a copy.
        """
        first = self._unwritten.popleft()
        if self._columns_due and isinstance(self._encoder, TableEncoder):
            self._columns_due = False
            first = self._encoder.with_columns(first)
        run = [first]
        size = len(first)
        while self._unwritten and size + len(self._unwritten[0]) <= SEND_BYTES:
            run.append(self._unwritten.popleft())
            size += len(run[-1])
        return first if len(run) == 1 else b"".join(run)

    def _expect_end(self) -> None:
        """The watch is over: a client that does not take what is left is cut off."""
        if self._cut is None:
            self._cut = self._loop.call_later(self._stalled_s, self._connection.abort)

    def _finish(self, *, connected: bool) -> None:
        if not self._done.done():
            self._done.set_result(connected)


class Waiting(Protocol):
    """One watch."""

    @property
    def waiting(self) -> int:
        """The number of events in its queues."""

    def end_slow(self) -> None:
        """Drops what waits, and ends the watch with 410."""


class Backlogs:
    """Events that wait for clients of watches, counted by account.  Owned by the handler of
    watches; lives in one loop.

    A watch that its client does not read queues up to 16 MiB of events. Their bytes are shared by
    all watches that get them, but each queue has a slot for each event, and an account may have
    thousands of watches: ten thousand that no client reads would take a gigabyte for each ten
    thousand writes. So once a second the slots are counted, and an account that would hold more
    than is left for all others loses its longest queues: those watches end with 410, and the client
    lists again, as after any watch that was too slow.

    Nothing is counted when an event is handed out: between two counts a queue grows by what is
    written in that time.
    """

    def __init__(self, events_max: int = BACKLOG_EVENTS_MAX) -> None:
        self.shares = Shares(events_max)
        self._watches: dict[Waiting, tuple[str, Standing]] = {}
        self._timer: asyncio.TimerHandle | None = None
        self.metrics = Metrics()
        self.metrics.computed(
            "gauge",
            "sliceplane_watch_waiting_events",
            "Events in queues of watches that wait for their clients, as of the last count.",
            lambda: self.shares.total,
        )
        self.ended = self.metrics.counter(
            "sliceplane_watch_backlog_ended_watches_total",
            "Watches ended since their account had too many events waiting.",
        )

    def begin(self, watch: Waiting, account: str, standing: Standing) -> None:
        self._watches[watch] = account, standing
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(BACKLOG_PERIOD_S, self._tick)

    def end(self, watch: Waiting) -> None:
        del self._watches[watch]

    def _tick(self) -> None:
        self._timer = None
        self.count()
        if self._watches or self.shares.total:
            self._timer = asyncio.get_running_loop().call_later(BACKLOG_PERIOD_S, self._tick)

    def count(self) -> None:
        """Charges each account with what waits for it now, shortest queues first, and ends those
        beyond its share.
        """
        for account in self.shares:
            self.shares.release_all(account)
        slow = [
            (watch.waiting, number, watch)
            for number, watch in enumerate(self._watches)
            if watch.waiting
        ]
        for waiting, _, watch in sorted(slow):
            account, standing = self._watches[watch]
            if not self.shares.take(account, waiting, standing):
                watch.end_slow()
                self.ended.value += 1

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


class WatchClaims(Protocol):
    """Ends watches whose rights are gone; see ``Revocation``."""

    def begin(self, claim: Claim, watcher: Watcher) -> int: ...

    def end(self, number: int) -> None: ...


class WatchHandler:
    """Opens streams.  Stateless but for its parts."""

    def __init__(
        self,
        resources: ResourceHandlers,
        registry: Registry,
        ticker: HubTicker,
        revocation: WatchClaims,
        *,
        stalled_s: float = STALLED_S_MAX,
    ) -> None:
        self._stalled_s = stalled_s
        self._resources = resources
        self._registry = registry
        self._hub = ticker.hub
        self._ticker = ticker
        self._revocation = revocation
        self._batches = BatchQueue()
        self.backlogs = Backlogs()

    def close(self) -> None:
        self._ticker.close()
        self.backlogs.close()

    async def respond(
        self,
        request: Request,
        route: Route,
        send: Send,
        on_head: Callable[[], str],
        traffic: WatchTraffic,
    ) -> None:
        """Serve a watch to its end.

        *on_head* is called when the head is about to be sent, and gives the audit id; *traffic* is
        added to. Raises ``StatusError`` before that, never after: later errors are ERROR events.
        """
        query = request.query
        target = route.target
        representation = negotiate(request.header(b"accept"), watch=True)
        included = included_objects(request, representation)
        options = watch_options(query, name=target.name)
        context = self._resources.context(request)
        plan = self._registry.watch_plan(context, replace(target, name=""), options)
        encoder = encoder_for(target.requested, representation, included, self._resources.clock)
        late = await self._future_error(request, target, plan)
        watcher = None if late else self._subscribe(plan, encoder, request)
        number = 0
        try:
            if watcher is not None and request.claim is not None:
                number = self._revocation.begin(request.claim, watcher)
            headers = _headers(target, representation)
            now = self._resources.clock()
            await send(head_of(request, 200, headers, now=now, audit_id=on_head()))
            if watcher is None:
                assert late is not None, "without a watcher there is an error to tell"
                request.connection.write(encoder.error(late))
            elif not await self._run(request, watcher, encoder, traffic):
                return
            await send({"type": "http.response.body", "body": b""})
        finally:
            if watcher is not None:
                self._revocation.end(number)
                self._hub.unsubscribe(watcher)

    async def _run(
        self, request: Request, watcher: Watcher, encoder: AnyEncoder, traffic: WatchTraffic
    ) -> bool:
        """Returns True if the response can be completed."""
        stream = Stream(
            request.connection, watcher, encoder, self._batches, traffic, stalled_s=self._stalled_s
        )
        account = request.user.name if request.user is not None else ""
        self.backlogs.begin(
            stream, account, "ordinary" if request.flow is None else request.flow.level.standing
        )
        try:
            return await stream.run()
        finally:
            self.backlogs.end(stream)

    async def _future_error(
        self, request: Request, target: Target, plan: WatchPlan
    ) -> StatusError | None:
        """A state at a version from the future is waited for a little; then it is an ERROR event. A
        state of no named version is the newest that there is anywhere.

        Events after a version that is newer than storage will never follow: it is of a history that
        is lost, and the client would wait in silence, and then miss what has the versions in
        between. It is told to list again.
        """
        beyond = plan.since is not None and plan.since > self._hub.revision
        if plan.wait_for is None and not plan.newest and not beyond:
            return None
        try:
            await self._resources.wait_for(request, target, str(plan.wait_for or ""))
        except StatusError as error:
            return error
        if plan.since is not None and plan.since > self._hub.revision:
            return expired(
                f"resource version {plan.since} is not of this history, the newest is "
                f"{self._hub.revision}"
            )
        return None

    def _subscribe(self, plan: WatchPlan, encoder: AnyEncoder, request: Request) -> Watcher:
        requested_s = plan.timeout_s or 0
        seconds = requested_s if requested_s > 0 else DEFAULT_S_MIN * random.uniform(1, 2)
        seconds = min(seconds, request.credentials_end_in(self._resources.clock()))
        interest = replace(interest_of(plan), encoder=encoder, local=False)
        watcher = self._ticker.subscribe(interest, plan, seconds)
        if watcher.error is not None and plan.resource.uncached:
            watcher.error = expired(_TOO_OLD_IN_STORAGE)
        return watcher


def _headers(target: Target, representation: Representation) -> tuple[Header, ...]:
    spoken = target.requested
    deprecations = DEPRECATIONS.get((spoken.group, spoken.version, spoken.plural), ())
    content_type = (b"content-type", representation.watch_content_type)
    return (NO_CACHE, content_type, *warning_headers(deprecations))
