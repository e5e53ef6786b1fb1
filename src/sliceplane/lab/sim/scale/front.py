"""API servers whose work takes time: requests and streams of nodes share one processor and one link
per server.

A server works in batches like the production one (``server.io.requests.watch``). In each batch it
executes every waiting request, then a few streams write their queued events, so an event for
thousands of nodes delays no request by more than one batch. All servers share the registry and
store of ``lab.sim.server``, and each has a watch hub of its own.

Streams that are written to in one batch have equal queues, so one watcher of the hub stands for all
streams of a batch: a *row*. Each row is checked: it gets what the store committed, event for event.
"""

from __future__ import annotations

import math
import sys
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Sequence
from copy import copy
from operator import attrgetter
from typing import Any, Final

from msgspec.structs import replace

from sliceplane.api.errors import StatusError
from sliceplane.api.requests import Selection, Write
from sliceplane.api.scheme import EndpointSlices, Leases
from sliceplane.kit.rng import Rng
from sliceplane.lab.sim.faults import FaultPlan
from sliceplane.lab.sim.network import Answer, Network
from sliceplane.lab.sim.scale.measures import FrontFigures, ScaleMeasures
from sliceplane.lab.sim.scale.plan import Costs
from sliceplane.lab.sim.scheduler import Alarm, Callback, Scheduler, Trace
from sliceplane.lab.sim.server import Server
from sliceplane.lab.wire import event_bytes
from sliceplane.server.registry.direct import interest_of
from sliceplane.server.registry.registry import Registry
from sliceplane.server.registry.types import ListOutcome, Target, WatchOptions
from sliceplane.server.store.hub import Hub
from sliceplane.server.store.mvcc import Store
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
    """The streams of *nodes* clients, which are written to in the same batch. ``lost``: the nodes of
    the zone that is lost.
    """

    def __init__(
        self,
        front: Front,
        nodes: int,
        interest: Interest,
        since: int,
        *,
        lost: bool = False,
        first: int = 0,
        ends_at: float | None = None,
    ) -> None:
        self.front = front
        self.nodes = nodes
        self.interest = interest
        self.lost = lost
        #: number of the first node
        self.first = first
        self.ends_at = ends_at
        #: the newest version that was written to them, and how many events came before the next
        self.version = since
        self.place = front.server.place(since)
        #: the nodes are alive and read
        self.reads = True
        self.scheduled = False
        #: events taken from the hub's queue and not written yet
        self.unsent: deque[Item] = deque()
        #: callbacks of a process that runs; the end of its watch has an error, or none
        self.on_items: Callable[[tuple[Item, ...], float], None] | None = None
        self.on_lost: Callable[[StatusError | None], None] | None = None
        self.watcher: Watcher | None = None
        front.join(self)

    @property
    def waiting(self) -> tuple[int, int]:
        """The events that wait for each client, and their bytes."""
        queue, size = ([], 0) if self.watcher is None else (self.watcher.queue, self.watcher.size)
        return len(self.unsent) + len(queue), size + sum(len(item.data) for item in self.unsent)

    def wake(self) -> None:
        if not self.scheduled and self.reads:
            self.scheduled = True
            self.front.add_stream(self)


def total(fronts: Sequence[Front]) -> FrontFigures:
    """Returns the sum of their figures, and the time of the busiest."""
    sums = FrontFigures(busy_s=max((front.figures.busy_s for front in fronts), default=0.0))
    for front in fronts:
        for name in ("events", "sent_bytes", "lists", "listed_bytes", "lost_watches", "catch_ups"):
            more = getattr(front.figures, name) * front.copies
            setattr(sums, name, getattr(sums, name) + more)
    return sums


class Front:
    """One process that serves: of the server, or a relay (``relays``). It stands for *copies* equal
    ones.
    """

    def __init__(self, server: ScaleServer, link_bytes_s: float, copies: int = 1) -> None:
        self.copies = copies
        #: serves what relays pass on
        self.root: Front = self
        self.rows: list[StreamRow] = []
        self.figures = FrontFigures()
        self.server = server
        #: it answers
        self.serves = True
        self.store: Store = server.store
        self.registry: Registry = server.registry
        self.hub = Hub(server.store)
        self._scheduler = server.scheduler
        self._costs = server.costs
        self.link_bytes_s = link_bytes_s
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
        self._go()

    def spend(self, cost_s: float) -> None:
        """Takes *cost_s* for what the process does now; all that follows is later."""
        self._free_at = max(self._scheduler.now, self._free_at) + cost_s
        self.figures.busy_s += cost_s

    def add_stream(self, row: StreamRow) -> None:
        self._streams.append(row)
        self._go()

    def join(self, row: StreamRow) -> None:
        """Opens the watch of *row* here, from its version."""
        self.take(row)
        now = self._scheduler.now
        row.watcher = self.hub.subscribe(
            row.interest, now=now, since=row.version, bookmarks=True, ends_at=row.ends_at
        )
        row.watcher.notify = row.wake
        self._alarm.set(self.hub.next_deadline())
        row.wake()

    def take(self, row: StreamRow) -> None:
        row.front = self
        if row not in self.rows:
            self.rows.append(row)

    def leave(self, row: StreamRow) -> None:
        if row in self.rows:
            self.rows.remove(row)
        row.reads = False
        if row.watcher is not None:
            self.hub.unsubscribe(row.watcher)

    def list_for(self, nodes: int, size: int, callback: Callback = nothing) -> None:
        """Submits a list of *size* bytes for *nodes* nodes."""
        self.figures.listed_bytes += nodes * size
        self.submit(nodes * size * self._costs.event_byte_s, callback)

    # As the server of an informer ; *copies* equal ones

    def page(
        self, selection: Selection, limit: int, continue_token: str, copies: int = 1
    ) -> ListOutcome:
        front = self if selection.resource is EndpointSlices else self.root
        page = self.server.page_of(front.registry, selection, limit, continue_token)
        front.figures.lists += 0 if continue_token else copies
        front.list_for(copies, sum(len(record.body) for record in page.records))
        return page

    def watch(
        self,
        selection: Selection,
        version: str,
        timeout_s: int,
        copies: int = 1,
        judge: Callable[[StatusError], StatusError] = lambda error: error,
    ) -> Watcher:
        """*judge* sees the error that ends the watch first."""
        interest = self.server.interest(selection)
        front = self if selection.resource is EndpointSlices else self.root
        ends_at = self._scheduler.now + timeout_s
        row = StreamRow(front, copies, interest, int(version), ends_at=ends_at)
        watcher = Watcher(
            0,
            interest,
            since=int(version),
            bound=QUEUE_BYTES_MAX,
            bookmarks=True,
            ends_at=None,
            after_close=lambda _: row.front.leave(row),
        )
        last_at = 0.0

        def arrive(items: tuple[Item, ...], at: float) -> None:
            nonlocal last_at
            last_at = at - self._costs.one_way_s  # which the informer adds

            def deliver() -> None:
                watcher.queue.extend(items)
                watcher.notify()

            self._scheduler.at(last_at, deliver)

        def lost(error: StatusError | None) -> None:
            def end() -> None:
                watcher.close(None if error is None else judge(error), keep=True)
                watcher.notify()

            self._scheduler.at(max(last_at, self._scheduler.now), end)

        row.on_items, row.on_lost = arrive, lost
        return watcher

    def _tick(self) -> None:
        self.hub.on_tick(self._scheduler.now)
        self._alarm.set(self.hub.next_deadline())

    def _halt(self) -> None:
        """Ends all work, as a process ends that is killed."""
        self._requests.clear()
        self._streams.clear()
        self._next_batch_at = math.inf
        self._free_at = self._link_free_at = self._scheduler.now

    @property
    def waiting_requests(self) -> int:
        return len(self._requests)

    @property
    def is_idle(self) -> bool:
        """Returns True if all has arrived that there was to send."""
        return self._link_free_at + self._costs.one_way_s <= self._scheduler.now and not any(
            row.waiting[0] for row in self.rows if row.reads
        )

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
        began = at = max(self._scheduler.now, self._free_at)
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
        if not row.reads or watcher is None:
            return at
        if watcher.error is not None:
            row.unsent.clear()
            self._scheduler.at(at, lambda: self._ended(row))
            return at
        if not row.unsent:
            row.unsent.extend(watcher.take(SEND_BYTES))
        items, writes, size = _portions(row.unsent)
        if row.unsent or watcher.pending:
            row.wake()
        if items:
            at = self._send(row, items, writes, size, at)
        if watcher.closed and not row.scheduled:
            self._scheduler.at(at, lambda: self._ended(row))
        return at

    def _send(
        self, row: StreamRow, items: tuple[Item, ...], writes: int, size: int, at: float
    ) -> float:
        nodes = row.nodes
        at += nodes * (writes * self._costs.event_s + size * self._costs.event_byte_s)
        figures = self.figures
        figures.events += nodes * len(items)
        figures.sent_bytes += nodes * size
        second = int(at)
        figures.by_second[second] = figures.by_second.get(second, 0) + nodes * size
        self._link_free_at = max(self._link_free_at, at) + nodes * size / self.link_bytes_s
        if self._link_free_at - at > SOCKETS_S and figures.link_full_at is None:
            figures.link_full_at = at
        arrival = self._link_free_at + self._costs.one_way_s
        self.server.verify(row, items)
        row.version = items[-1].revision
        if row.on_items is not None:
            row.on_items(items, arrival)
        else:
            self.server.measures.arrived(items, nodes * self.copies, arrival)
        return at

    def _ended(self, row: StreamRow) -> None:
        """Handles a watch whose time is over, or that the hub dropped: the nodes list again, and
        watch from there.
        """
        if row.watcher is None:
            return
        error, figures = row.watcher.error, self.figures
        if error is not None:
            figures.lost_watches += row.nodes
            figures.lost_at = figures.lost_at or self._scheduler.now
        if row.on_lost is not None:
            row.on_lost(error)
            return
        records = self.store.list(row.interest.resource).records

        def relisted() -> None:
            if row.front is self and row.reads:
                now, nodes = self._scheduler.now, row.nodes * self.copies
                self.server.measures.listed(row.version, self.hub.revision, nodes, now)
                row.version = self.hub.revision
                row.place = self.server.place(row.version)
                self.join(row)

        figures.lists += row.nodes
        self.list_for(row.nodes, sum(len(record.body) for record in records), relisted)


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
    """``lab.sim.server`` with *fronts*, which serve the nodes; controllers read without them."""

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
        #: how streams differ from what was committed
        self.wrong: list[str] = []
        self._truth: list[Item] = []
        super().__init__(scheduler, rng, records=records)

    def follow(self, selection: Selection) -> None:
        """Keeps each event of *selection* from now on, for ``verify``."""
        watcher = self.hub.subscribe(self.interest(selection), now=0.0, bound_bytes=sys.maxsize)
        watcher.notify = lambda: self._truth.extend(watcher.take())

    def place(self, revision: int) -> int:
        """Returns the number of kept events up to *revision*."""
        return bisect_right(self._truth, revision, key=attrgetter("revision"))

    def verify(self, row: StreamRow, items: Sequence[Item]) -> None:
        """Notes a gap, a duplicate, a wrong order or other content in the stream of *row*."""
        if row.interest.resource != EndpointSlices.storage_key:
            return
        truth = self._truth
        for item in items:
            due = truth[row.place] if row.place < len(truth) else None
            if item.type != "BOOKMARK" and item == due:
                row.place += 1
            elif item.type != "BOOKMARK" or (due is not None and due.revision <= item.revision):
                what = "nothing" if due is None else f"{due.type} {due.revision}"
                self.wrong.append(f"a stream has {item.type} {item.revision}, due is {what}")

    def _publish(self) -> None:
        self.store.take_staged()
        events = self.store.on_durable(self.store.staged_revision)
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
            self._context(), Target(resource=selection.resource), options
        )
        return replace(interest_of(plan), local=False)


class ScaleNetwork(Network):
    """A network without loss: requests take the latency, their batch at a server and the disk's
    time.
    """

    def __init__(self, scheduler: Scheduler, server: ScaleServer, trace: Trace, rng: Rng) -> None:
        super().__init__(scheduler, server, FaultPlan({}, rng), trace, rng)
        self.scale = server
        self._costs = server.costs
        self._sent = 0

    def latency(self) -> float:
        return self._costs.one_way_s

    def reading_at(self, source: Any) -> ScaleNetwork:
        """Returns the network of a client whose lists and watches *source* answers."""
        network = copy(self)
        network.server = source
        return network

    def next_front(self) -> Front:
        """Returns the server whose turn it is."""
        self._sent += 1
        return self.scale.fronts[self._sent % len(self.scale.fronts)]

    def send(self, actor: str, write: Write, answer: Answer) -> None:
        costs = self._costs
        is_large = write.resource in (EndpointSlices, Leases)
        cost_s = costs.slice_write_s if is_large else costs.pod_write_s
        front = self.next_front()
        arrive = lambda: self._arrive(actor, write, answer)  # noqa: E731
        self.scheduler.after(
            costs.one_way_s,
            lambda: front.submit(cost_s, lambda: self.scheduler.after(costs.commit_s, arrive)),
        )
