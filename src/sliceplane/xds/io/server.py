"""A cluster's xDS server as a running thing: informers feed the catalog, streams of clients ask it.

Before every list is complete it answers nothing, and holds what clients ask; from then on it
answers whatever becomes of the API server. What changes in one turn of the loop goes out together.

How far clients are is told as a name server tells it (``consume.io.reporting``): a version counts
when every client that wants something of it has accepted it. A client that stays behind counts for
the Services of which it lacks changes, and only for a bounded time (``xds.laggards``); then it is
named, and holds up no drain: nothing can be known of it.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from contextlib import AsyncExitStack
from time import perf_counter
from typing import Any, Final

from sliceplane.api.core import Node, Service
from sliceplane.api.discovery import EndpointSlice
from sliceplane.api.errors import StatusError
from sliceplane.api.meta import Object
from sliceplane.api.requests import Selection
from sliceplane.api.scheme import EndpointSlices, Nodes, Services
from sliceplane.api.users import User
from sliceplane.consume.io.reporting import reporting
from sliceplane.kit.io.log import get_logger
from sliceplane.kit.io.pages import Page, PageMaker, follower_pages
from sliceplane.kit.rng import Rng
from sliceplane.watch.cache import Change
from sliceplane.watch.io.base import Client, Unreachable
from sliceplane.watch.io.events import EventRecorder
from sliceplane.watch.io.reflect import RunningInformer
from sliceplane.xds.catalog import XdsCatalog, XdsChange
from sliceplane.xds.io.admission import AdmissionConfig, NotAdmitted, Sights, cut, place_of
from sliceplane.xds.io.budget import STREAM_BYTES_MAX
from sliceplane.xds.io.clients import Connected, XdsMeters
from sliceplane.xds.io.connection import Call
from sliceplane.xds.io.long_work import LongWork
from sliceplane.xds.io.notes import SERVICES_MAX, TEXT_MAX, ServiceNotes
from sliceplane.xds.io.progress import AckReporter, BehindCounts
from sliceplane.xds.laggards import GRACE_S, Laggards
from sliceplane.xds.names import NAME_MAX
from sliceplane.xds.streams.actions import (
    XdsAbsent,
    XdsAdmit,
    XdsApplied,
    XdsFinish,
    XdsGateForced,
    XdsLate,
    XdsRefusal,
    XdsSend,
    XdsSight,
)
from sliceplane.xds.streams.delta import DeltaStream
from sliceplane.xds.streams.messages import (
    PERMISSION_DENIED,
    RESOURCE_EXHAUSTED,
    UNAVAILABLE,
    ResponseEncoder,
)
from sliceplane.xds.streams.requests import ClientFacts
from sliceplane.xds.streams.status import ClientReport, clients_page, short
from sliceplane.xds.streams.whole import WholeStream

_SERVICE: Final = "/envoy.service.discovery.v3.AggregatedDiscoveryService/"
STREAMS: Final = {
    f"{_SERVICE}DeltaAggregatedResources": DeltaStream,
    f"{_SERVICE}StreamAggregatedResources": WholeStream,
}
_UNIMPLEMENTED: Final = 12
#: how often it is asked again what clients may see
_SIGHTS_S: Final = 10.0

_log = get_logger("xds")


class XdsServer:
    """A ``xds.io.connection.Handler``.  ``follow`` until cancelled."""

    def __init__(
        self, catalog: XdsCatalog, config: AdmissionConfig, *, clock: Callable[[], float]
    ) -> None:
        self._catalog = catalog
        self._config = config
        self._clock = clock
        self._encoder = ResponseEncoder()
        self._connected: dict[Call, Connected] = {}
        self._informers: list[RunningInformer[Any]] = []
        self._ready = asyncio.Event()
        self._flush_scheduled = False
        self._sights: Sights | None = None
        self._sights_due = asyncio.Event()
        self._notes: ServiceNotes | None = None
        self._behind: Final = BehindCounts()
        self._laggards: Final = Laggards[Connected]()
        #: some streams know of the last changes, and some do not yet
        self._is_flushing = False
        self._reporter: AckReporter | None = None
        self._long_work = LongWork(self._work)
        self.stopping = False
        self._meters: Final = XdsMeters(
            catalog, self._connected.values(), self._behind, self._laggards
        )
        self.metrics: Final = self._meters.metrics

    # -- the cluster

    async def follow(
        self, client: Client, rng: Rng, *, tells: str = "", instance: str = ""
    ) -> None:
        """Until cancelled.  *tells*: a name of its own under which it tells how far clients are; ""
        for none.
        """
        self._sights = Sights(client, self._clock, lambda: self._catalog.namespaces)
        events = EventRecorder(client, clock=self._clock, instance=instance)
        for resource in (Services, EndpointSlices, Nodes):
            informer = RunningInformer[Any](
                client, Selection(resource), clock=self._clock, rng=rng.fork()
            )
            informer.add_handler(self._on_changes, self._on_synced)
            self._informers.append(informer)
        self._notes = ServiceNotes(events, self._informers[0])
        async with AsyncExitStack() as stack, asyncio.TaskGroup() as group:
            if tells:
                self._reporter = AckReporter(
                    tells, self._informers[1], self._clock, self._applied, self._laggards.report
                )
                await stack.enter_async_context(
                    reporting(client, self._reporter, rng.fork(), self._clock)
                )
            for informer in self._informers:
                group.create_task(informer.run(), name=f"informer {informer.resource.key}")
            group.create_task(events.run(), name="events")
            group.create_task(self._tick(), name="xds: deadlines")
            group.create_task(self._look_again(), name="xds: what clients may see")

    def _on_changes(self, changes: tuple[Change[Object], ...]) -> None:
        for change in changes:
            subject = change.object
            match subject:
                case EndpointSlice():
                    self._catalog.on_slice(change.old, change.new)  # type: ignore[arg-type]
                case Service():
                    was_known = subject.metadata.namespace in self._catalog.namespaces
                    self._catalog.on_service(change.old, change.new)  # type: ignore[arg-type]
                    if not was_known and subject.metadata.namespace in self._catalog.namespaces:
                        self._sights_due.set()
                    if self._notes is not None:
                        self._notes.on_problems(
                            subject.metadata.key, self._catalog.problems(subject.metadata.key)
                        )
                case Node():
                    self._catalog.on_node(change.old, change.new)  # type: ignore[arg-type]
        self._flush_soon()

    def _on_synced(self) -> None:
        if not self._ready.is_set() and all(item.synced or item.absent for item in self._informers):
            self._catalog.on_synced()
            self._ready.set()
            for item in list(self._connected.values()):
                if item.stream.node is not None:
                    self._admit(item, item.stream.node)

    def staleness_s(self) -> float:
        """The age of the oldest cache; 0 where the watch that feeds it is open."""
        followed = [informer for informer in self._informers if not informer.absent]
        return max((informer.staleness() for informer in followed), default=math.inf)

    async def wait_ready(self) -> None:
        await self._ready.wait()

    # -- what changed

    def _flush_soon(self) -> None:
        if not self._flush_scheduled:
            self._flush_scheduled = True
            asyncio.get_running_loop().call_soon(self._flush)

    def _flush(self) -> None:
        self._flush_scheduled = False
        if not self._ready.is_set():
            return
        changes = self._catalog.take_changes()
        if changes:
            by_view: dict[int, list[XdsChange]] = {}
            for change in changes:
                by_view.setdefault(id(change.view), []).append(change)
            now = self._clock()
            self._is_flushing = True
            try:
                for item in list(self._connected.values()):
                    own = by_view.get(id(item.stream.view))
                    if own is not None:
                        self._tell_changes(item, own, now)
            finally:
                self._is_flushing = False
        self._note_progress()

    def _tell_changes(self, item: Connected, changes: list[XdsChange], now: float) -> None:
        item.stream.on_changes(changes, self._catalog.revision, now)
        self._perform(item)
        if item.is_laggard and self._reporter is not None:
            self._laggards.add(
                item, item.stream.concerned(changes), self._reporter.progress.revision
            )
        if item.stream.has_work:
            self._continue(item)

    async def _tick(self) -> None:
        """Looks at deadlines of streams, and at clients that are behind as they were the last
        time.
        """
        while True:
            await asyncio.sleep(GRACE_S)
            self._on_synced()  # a kind that the cluster keeps from us is done without
            now = self._clock()
            for item in list(self._connected.values()):
                due = item.stream.next_deadline()
                if due is not None and due <= now:
                    item.stream.on_deadline(now)
                    self._perform(item)
                    self._continue(item)
                if item.behind is not None and item.behind == item.behind_before:
                    self._begin_lagging(item)
                item.behind_before = item.behind
            if self._laggards.on_time(now) and self._reporter is not None:
                self._reporter.on_lags()

    # -- clients

    def opened(self, call: Call) -> None:
        make = STREAMS.get(call.path)
        if make is None:
            call.finish(
                _UNIMPLEMENTED,
                f"{call.path[:200]}: of xDS there are aggregated streams, and nothing else",
            )
            return
        self._connected[call] = Connected(call, make(self._encoder), self._clock())

    def message(self, call: Call, data: bytes) -> None:
        item = self._connected.get(call)
        if item is None:
            return
        began = perf_counter()
        has_read = item.stream.on_request(data, self._clock(), later=self._long_work.is_over)
        self._perform(item)
        if has_read or item.stream.has_work:
            self._continue(item)
            self._long_work.spend(perf_counter() - began)

    def _work(self, item: Connected) -> bool:
        """One step of a request that takes long, or that came when enough was done."""
        item.stream.work(self._clock())
        self._perform(item)
        self._continue(item)
        return item.is_working

    def _continue(self, item: Connected) -> None:
        """Charges for what the client has us keep, and gives turns to the work that is left."""
        if item.call not in self._connected:
            return
        kept_bytes = item.stream.memory_bytes
        if kept_bytes > STREAM_BYTES_MAX or not item.call.keep(kept_bytes):
            limit = "stream-bytes" if kept_bytes > STREAM_BYTES_MAX else "account-bytes"
            item.call.met(limit)
            most = (
                f"{STREAM_BYTES_MAX} bytes"
                if limit == "stream-bytes"
                else f"what is left for {item.call.user.name}"
            )
            self._end(
                item,
                RESOURCE_EXHAUSTED,
                f"this stream keeps {kept_bytes} bytes of memory: more than {most}",
            )
            return
        if item.stream.has_work != item.is_working:
            item.is_working = item.stream.has_work
            item.call.hold_reading(is_held=item.is_working)
        if item.is_working:
            self._long_work.add(item.account, item)

    def half_closed(self, call: Call) -> None:
        self.closed(call)
        call.finish(0)

    def closed(self, call: Call) -> None:
        item = self._connected.pop(call, None)
        if item is None:
            return
        if item.asking is not None:
            item.asking.cancel()
        if item.is_working:
            self._long_work.discard(item.account, item)
        item.is_working = False
        item.stream.close()
        if item.behind is not None:
            self._laggards.watch(item.account, self._clock())
        self._end_lagging(item)
        if item.stream.view is not None:
            self._catalog.release(item.stream.view)
        self._count_behind(item, None)
        self._note_progress()

    def _perform(self, item: Connected) -> None:
        for action in item.stream.take_actions():
            match action:
                case XdsSend(type_url, message):
                    self._meters.responses.of(short(type_url)).value += 1
                    item.call.send(message)
                case XdsApplied(_, took_s):
                    self._meters.convergence.observe(took_s)
                case XdsAdmit(node):
                    if self._ready.is_set():
                        self._admit(item, node)
                case XdsFinish(status, text, limit):
                    if limit:
                        item.call.met(limit)
                    self._end(item, status, text)
                    return
                case XdsRefusal():
                    self._on_refusal(item, action)
                case XdsAbsent(type_url, name, why):
                    text = "a client requests a name that leads nowhere"
                    _log.info(
                        text, **item.shown, type=short(type_url), name=name[:NAME_MAX], why=why
                    )
                case XdsGateForced():
                    self._meters.gates.value += 1
                case XdsLate(type_url):
                    self._meters.lates.value += 1
                    _log.warning("a client does not answer", **item.shown, type=short(type_url))
        before = item.behind
        behind = item.stream.behind_from
        if item.is_laggard:
            if behind is None:
                self._end_lagging(item)
            elif item.stream.is_late:
                self._laggards.give_up(item, self._clock())
            return
        self._count_behind(item, behind)
        if (
            behind is not None
            and self._laggards.watches
            and self._laggards.is_watched(item.account, self._clock())
        ):
            self._begin_lagging(item)
        elif before is not None and before != behind:
            self._note_progress()

    def _count_behind(self, item: Connected, behind: int | None) -> None:
        if item.behind != behind:
            self._behind.move(item.behind, behind)
            item.behind = behind

    def _begin_lagging(self, item: Connected) -> None:
        """From now on drains wait for it where it lacks something, and nowhere else."""
        if self._reporter is None:
            return
        self._laggards.begin(item, item.account, item.name, self._clock())
        self._laggards.add(item, item.stream.lacking(), self._reporter.progress.revision)
        item.is_laggard = True
        self._count_behind(item, None)
        if not self._is_flushing:
            self._reporter.on_lags()

    def _end_lagging(self, item: Connected) -> None:
        if item.is_laggard:
            item.is_laggard = False
            self._laggards.end(item, self._clock())
            if self._reporter is not None:
                self._reporter.on_lags()

    def _end(self, item: Connected, status: int, text: str) -> None:
        self._meters.ended.of(str(status)).value += 1
        _log.info("a stream ends", **item.shown, status=status, why=text)
        self.closed(item.call)
        item.call.finish(status, text)

    # -- who may see what

    def _admit(self, item: Connected, node: ClientFacts) -> None:
        assert self._sights is not None, "follows"
        try:
            item.client = place_of(node, item.call.user, self._config)
        except NotAdmitted as error:
            self._end(item, PERMISSION_DENIED, str(error))
            return
        sight = self._sights.known(item.call.user)
        if sight is None:
            item.asking = asyncio.create_task(
                self._admit_later(item, node, self._sights, item.call.user)
            )
        else:
            self._admitted(item, node, sight)

    async def _admit_later(
        self, item: Connected, node: ClientFacts, sights: Sights, user: User
    ) -> None:
        try:
            sight = await sights.of(user)
        except (StatusError, Unreachable) as error:
            if item.call in self._connected:
                item.asking = None
                self._end(
                    item,
                    UNAVAILABLE,
                    f"the API server does not say what {user.name} may see: {error}",
                )
            return
        item.asking = None
        self._admitted(item, node, sight)

    def _admitted(self, item: Connected, node: ClientFacts, sight: XdsSight) -> None:
        if item.call not in self._connected or item.client is None:
            return
        view = item.stream.view or self._catalog.view(item.client)
        sight = cut(sight, node, self._catalog.namespaces)
        item.stream.on_admitted(view, sight, self._catalog.revision, self._clock())
        self._perform(item)
        self._continue(item)

    async def _look_again(self) -> None:
        """Reviews what clients may see, which changes rarely, at once for a new namespace; and
        finds the Services that are too large for a message.
        """
        while True:
            try:
                async with asyncio.timeout(_SIGHTS_S):
                    await self._sights_due.wait()
            except TimeoutError:
                # looks at every Service: not with every namespace
                assert self._notes is not None, "follows"
                self._notes.on_too_large(self._catalog.too_large())
            self._sights_due.clear()
            assert self._sights is not None, "follows"
            for item in list(self._connected.values()):
                node = item.stream.node
                if node is None or item.stream.view is None or item.stream.finished:
                    continue
                try:
                    sight = cut(
                        await self._sights.of(item.call.user), node, self._catalog.namespaces
                    )
                except (StatusError, Unreachable):
                    continue
                if sight != item.stream.sight and item.call in self._connected:
                    item.stream.on_admitted(
                        item.stream.view, sight, self._catalog.revision, self._clock()
                    )
                    self._perform(item)
                self._continue(item)

    # -- refusals

    def _on_refusal(self, item: Connected, refusal: XdsRefusal) -> None:
        self._meters.refusals.of(short(refusal.type_url)).value += 1
        text = refusal.text[:TEXT_MAX]
        shown = ", ".join(refusal.names[:SERVICES_MAX])
        _log.warning(
            "a client refuses",
            **item.shown,
            type=short(refusal.type_url),
            resources=shown,
            why=text,
        )
        view = item.stream.view
        if self._notes is not None and item.client is not None and view is not None:
            # A client may refuse what stands for a Service that it may not see: that is no Event
            # there.
            found = (
                view.service_of(refusal.type_url, name)
                for name in refusal.names[: 2 * SERVICES_MAX]
            )
            seen = [
                str(key)
                for key in found
                if key is not None and item.stream.sight.sees(key.namespace)
            ]
            self._notes.on_refusal(seen, item.client.kind, text)

    # -- how far clients are

    def _note_progress(self) -> None:
        if self._reporter is not None and not self._flush_scheduled:
            self._reporter.on_applied()

    @property
    def revision_of_clients(self) -> int:
        """The revision that clients get."""
        return self._catalog.revision

    def _applied(self) -> tuple[int | None, int] | None:
        if self._flush_scheduled or self._is_flushing:
            return None
        return self._behind.first, self._catalog.revision

    def reports(self) -> list[ClientReport]:
        """In the order in which clients came."""
        now = self._clock()
        return [item.report(now) for item in self._connected.values()]

    # -- pages

    def pages(self) -> dict[str, PageMaker]:
        def clients() -> Page:
            body = clients_page(self._catalog.revision, self.reports(), self._catalog.unserved)
            return Page(body, content_type="application/json")

        return {
            **follower_pages(lambda: self.stopping, self._ready.is_set),
            "/xds/clients": clients,
        }
