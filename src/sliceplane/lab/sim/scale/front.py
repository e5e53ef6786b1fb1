"""API servers whose work takes time: requests and streams of nodes share one processor and one link
per server.

A server works in batches like the production one (``server.io.requests.watch``). In each batch it
executes every waiting request, then a few streams write their queued events, so an event for
thousands of nodes delays no request by more than one batch. All servers share the registry and
store of ``lab.sim.server``, and each has a watch hub of its own.

Streams that are written to in one batch have equal queues, so one watcher of the hub stands for all
streams of a batch: a *row*.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

from msgspec.structs import replace

from sliceplane.api.errors import StatusError
from sliceplane.api.requests import Selection, Write
from sliceplane.api.scheme import EndpointSlices
from sliceplane.kit.rng import Rng
from sliceplane.lab.sim.faults import FaultPlan
from sliceplane.lab.sim.network import Answer, Network
from sliceplane.lab.sim.scale.measures import ScaleMeasures
from sliceplane.lab.sim.scale.plan import Costs
from sliceplane.lab.sim.scheduler import Alarm, Callback, Scheduler, Trace
from sliceplane.lab.sim.server import ADMIN, Server
from sliceplane.lab.wire import event_bytes
from sliceplane.server.registry.direct import interest_of
from sliceplane.server.registry.types import Context, ListOutcome, Target, WatchOptions
from sliceplane.server.store.hub import Hub
from sliceplane.server.store.types import Record
from sliceplane.server.store.watcher import QUEUE_BYTES_MAX, Interest, Item, Watcher, nothing

#: limits of production streams: bytes of one write, bytes of a stream in a batch, and streams of a
#: batch
SEND_BYTES: Final = 32 * 1024
BATCH_BYTES: Final = 128 * 1024
STREAMS_PER_BATCH: Final = 16
#: capacity of the socket buffers of a server's streams, in seconds of the link
SOCKETS_S: Final = 0.25
FRAME_BYTES: Final = event_bytes(b"", "json") + len(b"1000\r\n\r\n")


class StreamRow:
    """The streams of *nodes* nodes of one *zone*, which are written to in the same batch."""

    __slots__ = (
        "front",
        "nodes",
        "on_items",
        "on_lost",
        "reads",
        "scheduled",
        "unsent",
        "watcher",
        "zone",
    )

    def __init__(self, front: Front, nodes: int, zone: int, interest: Interest, since: int) -> None:
        self.front = front
        self.nodes = nodes
        self.zone = zone
        #: the nodes are alive and read
        self.reads = True
        self.scheduled = False
        #: events taken from the hub's queue and not written yet
        self.unsent: deque[Item] = deque()
        #: callbacks of a sampled node
        self.on_items: Callable[[tuple[Item, ...], float], None] | None = None
        self.on_lost: Callable[[StatusError], None] | None = None
        self.watcher = front.open(self, interest, since)

    def wake(self) -> None:
        if not self.scheduled and self.reads:
            self.scheduled = True
            self.front.add_stream(self)


@dataclass(slots=True)
class FrontFigures:
    """The figures of one server; bytes and events are those of nodes."""

    busy_s: float = 0.0
    requests: int = 0
    events: int = 0
    sent_bytes: int = 0
    listed_bytes: int = 0
    lost_watches: int = 0
    #: bytes by second of virtual time
    by_second: dict[int, int] = field(default_factory=dict)
    #: when the link was first full, and when a watch was first lost
    link_full_at: float | None = None
    lost_at: float | None = None


class Front:
    """One server process."""

    def __init__(self, server: ScaleServer, link_bytes_s: float) -> None:
        self.hub = Hub(server.store)
        self.rows: list[StreamRow] = []
        self.figures = FrontFigures()
        self._server = server
        self._scheduler = server.scheduler
        self._costs = server.costs
        self._link_bytes_s = link_bytes_s
        self._link_free_at = 0.0
        #: when the processor will be idle
        self._free_at = 0.0
        self._requests: deque[tuple[float, Callback]] = deque()
        self._streams: deque[StreamRow] = deque()
        #: when the next batch runs; infinite: there is no work
        self._next_batch_at = math.inf
        self._alarm = Alarm(self._scheduler, self._tick)

    # In

    def submit(self, cost_s: float, callback: Callback) -> None:
        """Runs *callback* when the processor has spent *cost_s* on it."""
        self._requests.append((cost_s, callback))
        self.figures.requests += 1
        self._go()

    def add_stream(self, row: StreamRow) -> None:
        self._streams.append(row)
        self._go()

    def open(self, row: StreamRow, interest: Interest, since: int) -> Watcher:
        watcher = self.hub.subscribe(interest, now=self._scheduler.now, since=since, bookmarks=True)
        watcher.notify = row.wake
        self._alarm.set(self.hub.next_deadline())
        row.wake()
        return watcher

    def list_for(self, nodes: int, size: int, callback: Callback = nothing) -> None:
        """Submits a list of *size* bytes for *nodes* nodes."""
        self.figures.listed_bytes += nodes * size
        self.submit(nodes * size * self._costs.event_byte_s, callback)

    def _tick(self) -> None:
        self.hub.on_tick(self._scheduler.now)
        self._alarm.set(self.hub.next_deadline())

    @property
    def waiting_requests(self) -> int:
        return len(self._requests)

    @property
    def under_way(self) -> bool:
        """Returns True if sent data has not arrived yet."""
        return self._link_free_at + self._costs.one_way_s > self._scheduler.now

    # Batches

    def _go(self) -> None:
        """Schedules the next batch: streams wait for the processor and the link, requests only for
        the processor.
        """
        at = max(self._scheduler.now, self._free_at)
        if not self._requests:
            at = max(at, self._link_free_at - SOCKETS_S)
        if at < self._next_batch_at:
            self._next_batch_at = at
            self._scheduler.at(at, lambda: self._run_batch(at))

    def _run_batch(self, due: float) -> None:
        if due != self._next_batch_at:
            return  # an earlier batch replaced it
        self._next_batch_at = (
            -math.inf
        )  # streams that become ready now wait for the end of this batch
        began = at = self._scheduler.now
        for _ in range(len(self._requests)):
            cost_s, callback = self._requests.popleft()
            at += cost_s
            self._scheduler.at(at, callback)
        nodes = 0
        while self._streams and nodes < STREAMS_PER_BATCH and self._link_free_at - SOCKETS_S <= at:
            row = self._streams.popleft()
            nodes += row.nodes
            at = self._write(row, at)
        self.figures.busy_s += at - began
        self._free_at = at
        self._next_batch_at = math.inf
        if self._requests or self._streams:
            self._go()

    def _write(self, row: StreamRow, at: float) -> float:
        """Writes one batch of the events of *row* to each of its nodes; returns when that is done."""
        row.scheduled = False
        watcher = row.watcher
        if not row.reads:
            return at
        if watcher.error is not None:
            row.unsent.clear()
            self._scheduler.at(at, lambda: self._lost(row))
            return at
        if not row.unsent:
            row.unsent.extend(watcher.take(SEND_BYTES))
        items, writes, size = _portions(row.unsent)
        if row.unsent or watcher.pending:
            row.wake()
        if not items:
            return at
        nodes = row.nodes
        at += nodes * (writes * self._costs.event_s + size * self._costs.event_byte_s)
        figures = self.figures
        figures.events += nodes * len(items)
        figures.sent_bytes += nodes * size
        second = int(at)
        figures.by_second[second] = figures.by_second.get(second, 0) + nodes * size
        self._link_free_at = max(self._link_free_at, at) + nodes * size / self._link_bytes_s
        if self._link_free_at - at > SOCKETS_S and figures.link_full_at is None:
            figures.link_full_at = at
        arrival = self._link_free_at + self._costs.one_way_s
        self._server.measures.arrived(items, nodes, arrival)
        if row.on_items is not None:
            row.on_items(items, arrival)
        return at

    def _lost(self, row: StreamRow) -> None:
        """Handles a watch that the hub dropped: the nodes list again, and watch from there."""
        figures = self.figures
        figures.lost_watches += row.nodes
        if figures.lost_at is None:
            figures.lost_at = self._scheduler.now
        interest, error = row.watcher.interest, row.watcher.error
        if row.on_lost is not None and error is not None:
            row.on_lost(error)
            return
        size = sum(
            len(record.body) for record in self._server.store.list(interest.resource).records
        )

        def relisted() -> None:
            self._server.measures.listed(row.watcher.taken_revision, row.nodes, self._scheduler.now)
            row.watcher = self.open(row, interest, self.hub.revision)

        self.list_for(row.nodes, size, relisted)


def _portions(unsent: deque[Item]) -> tuple[tuple[Item, ...], int, int]:
    """Takes one batch from *unsent*; returns its events, the number of writes, and its bytes,
    joined as production streams do.
    """
    items: list[Item] = []
    writes = size = room = 0
    while unsent:
        length = len(unsent[0].data) + FRAME_BYTES
        if length > room:
            if size >= BATCH_BYTES:
                break
            writes += 1
            room = max(SEND_BYTES, length)
        room -= length
        size += length
        items.append(unsent.popleft())
    return tuple(items), writes, size


class ScaleServer(Server):
    """``lab.sim.server`` whose nodes use *fronts*: their label selectors distinguish them from
    controllers.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        rng: Rng,
        records: Sequence[Record],
        costs: Costs,
        measures: ScaleMeasures,
    ) -> None:
        self.fronts: list[Front] = []
        self.costs = costs
        self.measures = measures
        self.scheduler = scheduler
        #: number of commits
        self.events = 0
        super().__init__(scheduler, rng, records=records)

    def _publish(self) -> None:
        self.store.take_staged()
        events = self.store.on_durable(self.store.staged_revision)
        self.events += len(events)
        for hub in (self.hub, *(front.hub for front in self.fronts)):
            hub.publish(events)
        for event in events:
            for listener in self.listeners:
                listener(event)

    def interest(self, selection: Selection) -> Interest:
        options = WatchOptions(
            label_selector=selection.label_selector,
            field_selector=selection.field_selector,
            allow_bookmarks=True,
        )
        plan = self.registry.watch_plan(
            Context(now=self.scheduler.now, user=ADMIN),
            Target(resource=selection.resource),
            options,
        )
        return replace(interest_of(plan), local=False)

    def page(self, selection: Selection, limit: int, continue_token: str) -> ListOutcome:
        page = super().page(selection, limit, continue_token)
        if selection.label_selector and self.fronts:
            self.fronts[-1].list_for(1, sum(len(record.body) for record in page.records))
        return page

    def watch(self, selection: Selection, version: str, timeout_s: int) -> Watcher:
        if not selection.label_selector:
            return super().watch(selection, version, timeout_s)
        front = self.fronts[-1]
        interest = self.interest(selection)
        row = StreamRow(front, 1, -1, interest, int(version))
        watcher = Watcher(
            0,
            interest,
            since=int(version),
            bound=QUEUE_BYTES_MAX,
            bookmarks=True,
            ends_at=None,
            after_close=lambda _: front.hub.unsubscribe(row.watcher),
        )

        def arrive(items: tuple[Item, ...], at: float) -> None:
            def deliver() -> None:
                watcher.queue.extend(items)
                watcher.notify()

            self.scheduler.at(at, deliver)

        def lost(error: StatusError) -> None:
            watcher.close(error)
            watcher.notify()

        row.on_items, row.on_lost = arrive, lost
        return watcher


class ScaleNetwork(Network):
    """A network without loss: requests take the latency, their batch at a server and the disk's
    time.
    """

    def __init__(self, scheduler: Scheduler, server: ScaleServer, trace: Trace, rng: Rng) -> None:
        super().__init__(scheduler, server, FaultPlan({}, rng), trace, rng)
        self._fronts = server.fronts
        self._costs = server.costs
        self._sent = 0

    def latency(self) -> float:
        return self._costs.one_way_s

    def send(self, actor: str, write: Write, answer: Answer) -> None:
        costs = self._costs
        cost_s = costs.slice_write_s if write.resource is EndpointSlices else costs.pod_write_s
        front = self._fronts[self._sent % len(self._fronts)]
        self._sent += 1
        arrive = lambda: self._arrive(actor, write, answer)  # noqa: E731
        self.scheduler.after(
            costs.one_way_s,
            lambda: front.submit(cost_s, lambda: self.scheduler.after(costs.commit_s, arrive)),
        )
