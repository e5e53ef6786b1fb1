"""The xDS server of a cluster: informers feed the catalog, and streams of clients query it.

The server queues requests until every first list is complete. Afterwards it responds even while the
API server is unavailable. It sends all changes of one iteration of the loop together.

It reports the progress of its clients like a name server (``consume.io.reporting``): a version is
applied when every client that subscribes to changes in it has accepted them. A client that stays
behind counts only for the Services of which it lacks changes, and for a bounded time
(``xds.laggards``). Then it is reported by name and delays no drain, since its state is unknown.
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
from sliceplane.consume.demand import write_demand
from sliceplane.consume.io.reporting import reporting
from sliceplane.kit.io.log import get_logger
from sliceplane.kit.io.pages import Page, PageMaker, follower_pages
from sliceplane.kit.rng import Rng
from sliceplane.watch.cache import Change
from sliceplane.watch.io.base import Client, Unreachable
from sliceplane.watch.io.events import EventRecorder
from sliceplane.watch.io.reflect import RunningInformer
from sliceplane.xds.catalog import XdsCatalog, XdsChange
from sliceplane.xds.io.admission import (
    AdmissionConfig,
    NotAdmitted,
    VisibilityReviews,
    locate_client,
    restrict,
)
from sliceplane.xds.io.budget import STREAM_BYTES_MAX
from sliceplane.xds.io.clients import ConnectedClient, XdsMeters
from sliceplane.xds.io.connection import Call
from sliceplane.xds.io.load import LOAD_PATH, LoadStreams
from sliceplane.xds.io.long_work import LongWork
from sliceplane.xds.io.notes import SERVICES_MAX, TEXT_MAX, ServiceNotes
from sliceplane.xds.io.progress import AckReporter, BehindCounts
from sliceplane.xds.laggards import GRACE_S, Laggards
from sliceplane.xds.names import NAME_MAX
from sliceplane.xds.streams.actions import (
    VisibleNamespaces,
    XdsAbsent,
    XdsAdmit,
    XdsApplied,
    XdsFinish,
    XdsGateForced,
    XdsLate,
    XdsRefusal,
    XdsSend,
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
#: seconds between checks of what clients may see
_REVIEW_S: Final = 10.0

_log = get_logger("xds")


class XdsServer:
    """A ``xds.io.connection.Handler``.  ``follow`` runs until it is cancelled."""

    def __init__(
        self, catalog: XdsCatalog, config: AdmissionConfig, *, clock: Callable[[], float]
    ) -> None:
        self._catalog = catalog
        self._config = config
        self._clock = clock
        self._encoder = ResponseEncoder()
        self._connected: dict[Call, ConnectedClient] = {}
        self._informers: list[RunningInformer[Any]] = []
        self._ready = asyncio.Event()
        self._flush_scheduled = False
        self._reviews: VisibilityReviews | None = None
        self._reviews_due = asyncio.Event()
        self._notes: ServiceNotes | None = None
        self._behind: Final = BehindCounts()
        self._laggards: Final = Laggards[ConnectedClient]()
        #: the last changes have reached some streams, and not yet all
        self._is_flushing = False
        self._reporter: AckReporter | None = None
        self._long_work = LongWork(self._execute_step)
        self._load = LoadStreams(catalog, config, clock, self._visibility)
        self.stopping = False
        self._meters: Final = XdsMeters(
            catalog, self._connected.values(), self._behind, self._laggards
        )
        self.metrics: Final = self._meters.metrics

    # -- the cluster

    async def follow(
        self, client: Client, rng: Rng, *, report_name: str = "", instance: str = ""
    ) -> None:
        """Runs informers and background tasks until cancelled.

        *report_name*: the unique name under which the server reports the progress of its clients; "" for
        none.
        """
        self._reviews = VisibilityReviews(client, self._clock, lambda: self._catalog.namespaces)
        events = EventRecorder(client, clock=self._clock, instance=instance)
        for resource in (Services, EndpointSlices, Nodes):
            informer = RunningInformer[Any](
                client, Selection(resource), clock=self._clock, rng=rng.fork()
            )
            informer.add_handler(self._on_changes, self._on_synced)
            self._informers.append(informer)
        self._notes = ServiceNotes(events, self._informers[0])
        async with AsyncExitStack() as stack, asyncio.TaskGroup() as group:
            if report_name:
                self._reporter = AckReporter(
                    report_name,
                    self._informers[1],
                    self._clock,
                    self._progress_of_clients,
                    self._laggards.report,
                )
                await stack.enter_async_context(
                    reporting(client, self._reporter, rng.fork(), self._clock)
                )
            for informer in self._informers:
                group.create_task(informer.run(), name=f"informer {informer.resource.key}")
            group.create_task(events.run(), name="events")
            group.create_task(self._tick(), name="xds: deadlines")
            group.create_task(self._review_clients(), name="xds: what clients may see")

    def _on_changes(self, changes: tuple[Change[Object], ...]) -> None:
        for change in changes:
            subject = change.object
            match subject:
                case EndpointSlice():
                    self._catalog.on_slice(change.old, change.new)  # type: ignore[arg-type]
                case Service():
                    was_served = subject.metadata.namespace in self._catalog.namespaces
                    self._catalog.on_service(change.old, change.new)  # type: ignore[arg-type]
                    if not was_served and subject.metadata.namespace in self._catalog.namespaces:
                        self._reviews_due.set()
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
        """Returns the age of the oldest cache in seconds; 0 if the watch that feeds it is open."""
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
                        self._apply_changes(item, own, now)
            finally:
                self._is_flushing = False
        self._note_progress()

    def _apply_changes(self, item: ConnectedClient, changes: list[XdsChange], now: float) -> None:
        item.stream.on_changes(changes, self._catalog.revision, now)
        self._execute_actions(item)
        if item.is_laggard and self._reporter is not None:
            self._laggards.add(
                item, item.stream.services_affected(changes), self._reporter.progress.revision
            )
        if item.stream.has_work:
            self._charge_and_schedule(item)

    async def _tick(self) -> None:
        """Handles deadlines of streams, and clients that have made no progress since the last tick."""
        while True:
            await asyncio.sleep(GRACE_S)
            self._on_synced()  # a kind that the server may not list counts as synced
            now = self._clock()
            for item in list(self._connected.values()):
                due = item.stream.next_deadline()
                if due is not None and due <= now:
                    item.stream.on_deadline(now)
                    self._execute_actions(item)
                    self._charge_and_schedule(item)
                if item.behind is not None and item.behind == item.behind_before:
                    self._begin_lagging(item)
                item.behind_before = item.behind
            if self._laggards.on_time(now) and self._reporter is not None:
                self._reporter.on_lags()

    # -- clients

    def opened(self, call: Call) -> None:
        if call.path == LOAD_PATH:
            self._load.opened(call)
            return
        make = STREAMS.get(call.path)
        if make is None:
            call.finish(
                _UNIMPLEMENTED,
                f"{call.path[:200]}: this server has only aggregated streams (ADS) and load reports",
            )
            return
        self._connected[call] = ConnectedClient(call, make(self._encoder), self._clock())

    def message(self, call: Call, data: bytes) -> None:
        item = self._connected.get(call)
        if item is None:
            self._load.message(call, data)
            return
        began = perf_counter()
        has_read = item.stream.on_request(data, self._clock(), later=self._long_work.is_spent)
        self._execute_actions(item)
        if has_read or item.stream.has_work:
            self._charge_and_schedule(item)
            self._long_work.spend(perf_counter() - began)

    def _execute_step(self, item: ConnectedClient) -> bool:
        """Executes one step of a long or queued request; returns True if more work remains."""
        item.stream.work(self._clock())
        self._execute_actions(item)
        self._charge_and_schedule(item)
        return item.is_working

    def _charge_and_schedule(self, item: ConnectedClient) -> None:
        """Charges the account for the stream's memory, and schedules its remaining work."""
        if item.call not in self._connected:
            return
        memory_bytes = item.stream.memory_bytes
        if memory_bytes > STREAM_BYTES_MAX or not item.call.charge_state(memory_bytes):
            limit = "stream-bytes" if memory_bytes > STREAM_BYTES_MAX else "account-bytes"
            item.call.count_limit(limit)
            most = (
                f"{STREAM_BYTES_MAX} bytes"
                if limit == "stream-bytes"
                else f"the remaining memory of {item.call.user.name}"
            )
            self._end(
                item,
                RESOURCE_EXHAUSTED,
                f"this stream uses {memory_bytes} bytes of memory: more than {most}",
            )
            return
        if item.stream.has_work != item.is_working:
            item.is_working = item.stream.has_work
            item.call.suspend_input(is_suspended=item.is_working)
        if item.is_working:
            self._long_work.add(item.account, item)

    def half_closed(self, call: Call) -> None:
        self.closed(call)
        call.finish(0)

    def closed(self, call: Call) -> None:
        item = self._connected.pop(call, None)
        if item is None:
            self._load.closed(call)
            return
        if item.admission is not None:
            item.admission.cancel()
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

    def _execute_actions(self, item: ConnectedClient) -> None:
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
                        item.call.count_limit(limit)
                    self._end(item, status, text)
                    return
                case XdsRefusal():
                    self._on_refusal(item, action)
                case XdsAbsent(type_url, name, why):
                    text = "a client requests a name that resolves to nothing"
                    _log.info(
                        text, **item.log_fields, type=short(type_url), name=name[:NAME_MAX], why=why
                    )
                case XdsGateForced():
                    self._meters.gates.value += 1
                case XdsLate(type_url):
                    self._meters.lates.value += 1
                    _log.warning(
                        "a client does not answer", **item.log_fields, type=short(type_url)
                    )
        before = item.behind
        behind = item.stream.behind_from
        if item.is_laggard:
            if behind is None:
                self._end_lagging(item)
            elif item.stream.is_late:
                self._laggards.abandon(item, self._clock())
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

    def _count_behind(self, item: ConnectedClient, behind: int | None) -> None:
        if item.behind != behind:
            self._behind.move(item.behind, behind)
            item.behind = behind

    def _begin_lagging(self, item: ConnectedClient) -> None:
        """From now on only drains of the Services that it lacks wait for the client."""
        if self._reporter is None:
            return
        self._laggards.begin(item, item.account, item.name, self._clock())
        self._laggards.add(item, item.stream.services_behind(), self._reporter.progress.revision)
        item.is_laggard = True
        self._count_behind(item, None)
        if not self._is_flushing:
            self._reporter.on_lags()

    def _end_lagging(self, item: ConnectedClient) -> None:
        if item.is_laggard:
            item.is_laggard = False
            self._laggards.end(item, self._clock())
            if self._reporter is not None:
                self._reporter.on_lags()

    def _end(self, item: ConnectedClient, status: int, text: str) -> None:
        self._meters.ended.of(str(status)).value += 1
        _log.info("a stream ends", **item.log_fields, status=status, why=text)
        self.closed(item.call)
        item.call.finish(status, text)

    # -- admission

    def _admit(self, item: ConnectedClient, node: ClientFacts) -> None:
        assert self._reviews is not None, "follows"
        try:
            item.client = locate_client(node, item.call.user, self._config)
        except NotAdmitted as error:
            self._end(item, PERMISSION_DENIED, str(error))
            return
        visible = self._reviews.cached(item.call.user)
        if visible is None:
            item.admission = asyncio.create_task(
                self._admit_later(item, node, self._reviews, item.call.user)
            )
        else:
            self._finish_admission(item, node, visible)

    async def _admit_later(
        self, item: ConnectedClient, node: ClientFacts, reviews: VisibilityReviews, user: User
    ) -> None:
        try:
            visible = await reviews.review(user)
        except (StatusError, Unreachable) as error:
            if item.call in self._connected:
                item.admission = None
                self._end(
                    item,
                    UNAVAILABLE,
                    f"the API server does not review what {user.name} may see: {error}",
                )
            return
        item.admission = None
        self._finish_admission(item, node, visible)

    def _finish_admission(
        self, item: ConnectedClient, node: ClientFacts, visible: VisibleNamespaces
    ) -> None:
        if item.call not in self._connected or item.client is None:
            return
        view = item.stream.view or self._catalog.view(item.client)
        visible = restrict(visible, node, self._catalog.namespaces)
        item.stream.on_admitted(view, visible, self._catalog.revision, self._clock())
        self._execute_actions(item)
        self._charge_and_schedule(item)

    async def _visibility(self, user: User) -> VisibleNamespaces:
        """Returns what *user* may see, once the catalog is complete. Raises ``StatusError`` and
        ``Unreachable``.
        """
        await self._ready.wait()
        assert self._reviews is not None, "follows"
        return await self._reviews.review(user)

    async def _review_clients(self) -> None:
        """Reviews what clients may see: periodically, and immediately for a new namespace.  Also
        reports the Services that are too large for a message.
        """
        while True:
            try:
                async with asyncio.timeout(_REVIEW_S):
                    await self._reviews_due.wait()
            except TimeoutError:
                # checks every Service: too expensive for each new namespace
                assert self._notes is not None, "follows"
                self._notes.on_too_large(self._catalog.too_large())
            self._reviews_due.clear()
            assert self._reviews is not None, "follows"
            for item in list(self._connected.values()):
                node = item.stream.node
                if node is None or item.stream.view is None or item.stream.finished:
                    continue
                try:
                    visible = restrict(
                        await self._reviews.review(item.call.user), node, self._catalog.namespaces
                    )
                except (StatusError, Unreachable):
                    continue
                if visible != item.stream.visible and item.call in self._connected:
                    item.stream.on_admitted(
                        item.stream.view, visible, self._catalog.revision, self._clock()
                    )
                    self._execute_actions(item)
                self._charge_and_schedule(item)
            await self._load.review()
            if self._reporter is not None:
                self._reporter.progress.on_demand(write_demand(self._load.counts()))

    # -- refusals

    def _on_refusal(self, item: ConnectedClient, refusal: XdsRefusal) -> None:
        self._meters.refusals.of(short(refusal.type_url)).value += 1
        text = refusal.text[:TEXT_MAX]
        resources = ", ".join(refusal.names[:SERVICES_MAX])
        _log.warning(
            "a client refuses",
            **item.log_fields,
            type=short(refusal.type_url),
            resources=resources,
            why=text,
        )
        view = item.stream.view
        if self._notes is not None and item.client is not None and view is not None:
            # A client may refuse a resource of a Service that it may not see: no Event is recorded
            # there.
            services = (
                view.service_of(refusal.type_url, name)
                for name in refusal.names[: 2 * SERVICES_MAX]
            )
            visible = [
                str(key)
                for key in services
                if key is not None and item.stream.visible.includes(key.namespace)
            ]
            self._notes.on_refusal(visible, item.client.kind, text)

    # -- progress of clients

    def _note_progress(self) -> None:
        if self._reporter is not None and not self._flush_scheduled:
            self._reporter.on_applied()

    @property
    def revision_of_clients(self) -> int:
        """Returns the current revision of the catalog."""
        return self._catalog.revision

    def _progress_of_clients(self) -> tuple[int | None, int] | None:
        if self._flush_scheduled or self._is_flushing:
            return None
        return self._behind.first, self._catalog.revision

    def reports(self) -> list[ClientReport]:
        """Returns the reports of all clients in the order of their arrival."""
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
