"""One run at scale: assembles the parts, executes the scenario, and takes figures each second of
virtual time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final, TypeVar

import msgspec

from sliceplane.api.codec import decode
from sliceplane.api.core import Node, Pod, Service
from sliceplane.api.discovery import LABEL_SERVICE_NAME, EndpointSlice
from sliceplane.api.meta import Object
from sliceplane.api.scheme import EndpointSlices, Nodes, Pods, Services
from sliceplane.kit.rng import Rng
from sliceplane.lab.sim.cluster import START
from sliceplane.lab.sim.scale.cluster import build_records
from sliceplane.lab.sim.scale.front import (
    STREAMS_PER_BATCH,
    Front,
    ScaleNetwork,
    ScaleServer,
    StreamRow,
    total,
)
from sliceplane.lab.sim.scale.measures import Ages, FrontFigures, ScaleMeasures
from sliceplane.lab.sim.scale.parts import SLICES, BusyProcess, SampledNode
from sliceplane.lab.sim.scale.plan import ScalePlan
from sliceplane.lab.sim.scale.relays import RelayTree
from sliceplane.lab.sim.scale.scenario import ScaleScenario
from sliceplane.lab.sim.scheduler import Scheduler, Trace
from sliceplane.server.store.types import Record
from sliceplane.server.store.watcher import nothing
from sliceplane.slices import oracle

T = TypeVar("T", bound=Object)

#: a part of the scenario that continues for longer after the last user action will never end
PART_MAX_S: Final = 3600.0
LOST_ZONE: Final = 0
#: seconds between two batches of Lease renewals
_RENEWALS_S: Final = 0.02
#: number of Services whose slices are checked against the plain specification at the end
_CHECKED: Final = 200


@dataclass(slots=True)
class Lengths:
    """The greatest lengths of the queues: Services that wait for the controller, its unread events,
    requests at servers; events and bytes in the longest queue of a watch.
    """

    syncs: int = 0
    inbox: int = 0
    requests: int = 0
    events: int = 0
    size_bytes: int = 0

    def note(self, **now: int) -> None:
        for name, value in now.items():
            setattr(self, name, max(value, getattr(self, name)))


class ScalePart(msgspec.Struct, frozen=True, kw_only=True):
    """One part of the scenario. ``drained_s``: seconds from its last change until everything was
    idle; ``None``: it never was.
    """

    name: str
    duration_s: float
    drained_s: float | None
    writes: int
    slice_writes: int
    #: of the server, of relays, and of those that nodes read from
    roots: FrontFigures
    relays: FrontFigures
    leaves: FrontFigures
    #: of one node
    node_bytes: float
    busiest_bytes_s: int
    #: seconds from the kill of a relay until all of its nodes had streams again
    back_s: float | None
    controller_busy: float
    ages: Ages
    lengths: Lengths


class ScaleOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """``broken``: (seconds of virtual time, exceeded budget), in order of time. ``memory``: MiB of
    this process by part.
    """

    plan: ScalePlan
    parts: tuple[ScalePart, ...]
    broken: tuple[tuple[float, str], ...]
    wrong: tuple[str, ...]
    slices: int
    slice_bytes: float
    replaced: int
    marked: int
    commands: int
    virtual_s: float
    digest: str
    memory: dict[str, float]


class ScaleRun:
    """Created for one ``run``. *meter* returns the MiB of this process."""

    def __init__(
        self,
        plan: ScalePlan,
        report: Callable[[str], None] | None = None,
        meter: Callable[[], float] | None = None,
    ) -> None:
        self.plan = plan
        self._report = report or (lambda _: None)
        self._meter = meter or (lambda: 0.0)
        self._memory: dict[str, float] = {}
        self._metered = self._meter()
        self._broken: list[tuple[float, str]] = []
        self._scheduler = scheduler = Scheduler(START)
        self._trace = Trace(START)
        rng = Rng(plan.seed)
        self._measures = ScaleMeasures()
        self._measures.late_s = plan.budgets.freshness_s
        self._report("the cluster is made up")
        records = build_records(plan, scheduler)
        self._server = ScaleServer(scheduler, rng.fork(), records, plan.costs, self._measures)
        self._note_memory("store and registry")
        self._server.follow(SLICES)
        self._fronts = self._server.fronts
        self._fronts += [
            Front(self._server, plan.budgets.link_bytes_s) for _ in range(plan.servers)
        ]
        #: those that nodes read from, and relays
        self._leaves: Sequence[Front] = self._fronts
        self._tree: RelayTree | None = None
        self._server.listeners.append(lambda event: self._measures.on_commit(event, scheduler.now))
        self._network = ScaleNetwork(scheduler, self._server, self._trace, rng.fork())
        self._controller = BusyProcess(plan, self._network, rng.fork(), self._measures)
        self.scenario = ScaleScenario(plan, scheduler, self._network)
        self.nodes: list[SampledNode] = []
        self._rows: list[StreamRow] = []
        self._rng = rng
        self._renewals = 0.0
        self._lengths = Lengths()

    def _note_memory(self, part: str) -> None:
        now = self._meter()
        self._memory[part] = now - self._metered
        self._metered = now

    # The scenario

    def run(self) -> ScaleOutcome:
        parts = [self._part("the controller begins", self._begin)]
        self._note_memory("controller: caches and engine")
        self._join()
        self._note_memory(f"relays, {len(self.nodes)} sampled nodes: caches, tracker, rules")
        if self._tree is None:
            self._renew()
        parts.append(
            self._part(f"{self.plan.rolling} Services are rolled out", self.scenario.roll_out)
        )
        if self._tree is not None:
            parts.append(self._part("a relay is killed", self._kill_relays))
        parts.append(self._part("a zone is lost", self._lose_zone))
        self._note_memory("history, queues and what was made on the way")
        return self._outcome(tuple(parts))

    def _begin(self) -> None:
        self._controller.start()

    def _join(self) -> None:
        """Opens the streams of the nodes in rows. The sampled nodes are placed among those of one
        process: in the middle, and after 99 % of the others.
        """
        plan = self.plan
        if plan.relays:
            self._tree = RelayTree(plan, self._network, self._rng.fork())
            self._leaves = self._tree.levels[-1]
        interest = self._server.interest(SLICES)
        lost = _shares(len(range(LOST_ZONE, plan.nodes, plan.zones)), self._leaves)
        other = _shares(plan.nodes - len(range(LOST_ZONE, plan.nodes, plan.zones)), self._leaves)
        sampling = [front for front in self._leaves if front.copies == 1][-1]
        first = 0
        for front, *counts in zip(self._leaves, lost, other, strict=True):
            sizes = [
                (at * 2 + place, min(STREAMS_PER_BATCH, count - at), not place)
                for place, count in enumerate(counts)
                for at in range(0, count, STREAMS_PER_BATCH)
            ]
            positions = {len(sizes) * 99 // 100, len(sizes) // 2} if front is sampling else {}
            for number, (_, count, is_lost) in enumerate(sorted(sizes)):
                row = StreamRow(
                    front, count, interest, front.hub.revision, lost=is_lost, first=first
                )
                self._rows.append(row)
                first += count
                if number in positions and len(self.nodes) < plan.sampled:
                    self._sample(front)
        while len(self.nodes) < plan.sampled:
            self._sample(sampling)
        self._measures.readers = plan.nodes
        if self._tree is not None:
            for number, row in enumerate(self._rows):
                self._tree.report(row, number / len(self._rows) / plan.renewals_per_s)

    def _sample(self, front: Front) -> None:
        """Starts a sampled node in a zone that is not lost."""
        plan = self.plan
        node = next(number for number in range(plan.nodes) if number % plan.zones != LOST_ZONE)
        record = self._server.records(Nodes)[node + len(self.nodes)]
        sampled = SampledNode(
            decode(record.body, Node), plan, self._network.reading_at(front), self._rng.fork()
        )
        self.nodes.append(sampled)
        sampled.start()
        while not sampled.idle:
            self._scheduler.run_until(self._scheduler.now + 1.0)

    def _kill_relays(self) -> None:
        """Kills one relay of each level, nodes' first, while Services are rolled out again."""
        self.scenario.roll_out()
        tree = self._tree
        assert tree is not None, "there are relays"
        for number, level in enumerate(reversed(tree.levels), 1):
            self._scheduler.after(number * self.plan.ready_s, partial(tree.kill, level[0]))

    def _lose_zone(self) -> None:
        for row in self._rows:
            row.reads = not row.lost
        self._measures.readers = sum(
            row.nodes * row.front.copies for row in self._rows if row.reads
        )
        self.scenario.lose_zone(LOST_ZONE)

    def _renew(self) -> None:
        """Submits Lease renewals of the living nodes: load without content."""
        self._renewals += self._measures.readers * self.plan.renewals_per_s * _RENEWALS_S
        for _ in range(int(self._renewals)):
            self._network.next_front().submit(self.plan.costs.lease_write_s, nothing)
        self._renewals %= 1.0
        self._scheduler.after(_RENEWALS_S, self._renew)

    @property
    def _processes(self) -> list[Front]:
        return [*self._fronts, *(() if self._tree is None else self._tree.all)]

    # A part

    def _part(self, name: str, begin: Callable[[], None]) -> ScalePart:
        scheduler = self._scheduler
        began = rest_since = scheduler.now
        revision = self._server.store.revision
        self._measures.begin()
        for front in self._processes:
            front.figures = FrontFigures()
        if self._tree is not None:
            self._tree.back_s = None
        self._controller.busy_s = 0.0
        self._lengths = Lengths()
        begin()
        drained: float | None = None
        while scheduler.now < rest_since + PART_MAX_S:
            scheduler.run_until(scheduler.now + 1.0)
            self._measure_queues(name, scheduler.now - began)
            if self.scenario.busy or name.startswith("the controller"):
                rest_since = scheduler.now
            if scheduler.now > rest_since + self.plan.budgets.drain_s:
                self._break("queues are not empty", rest_since + self.plan.budgets.drain_s)
            if self._is_idle():
                drained = scheduler.now - rest_since
                break
        if drained is None:
            self._break("queues never get empty", scheduler.now)
        self._server.store.compact(revision)  # a server does that every few minutes
        for front in self._processes:
            if front.figures.link_full_at is not None:
                self._break("the link of a server is full", front.figures.link_full_at)
            if front.figures.lost_at is not None:
                self._break("watches are lost: their queues are full", front.figures.lost_at)
        return self._figures(name, scheduler.now - began, drained)

    def _is_idle(self) -> bool:
        """Returns True if no work remains; renewals and bookmarks do not count."""
        return (
            not self.scenario.busy
            and self._controller.idle
            and all(node.idle for node in self.nodes)
            and all(front.serves and front.is_idle for front in self._processes)
            and all(row.watcher is not None for row in self._rows if row.reads)
            and self._measures.all_told
        )

    def _measure_queues(self, name: str, after_s: float) -> None:
        waiting = [row.waiting for row in self._rows if row.reads]
        events = max((events for events, _ in waiting), default=0)
        self._lengths.note(
            syncs=self._controller.slices.waiting,
            inbox=self._controller.waiting,
            requests=sum(front.waiting_requests for front in self._fronts),
            events=events,
            size_bytes=max((size for _, size in waiting), default=0),
        )
        limit = self.plan.budgets.memory_mib
        if limit and self._meter() > limit:
            self._break("memory", self._scheduler.now)
        self._report(
            f"{name}: {after_s:,.0f} s of virtual time, {self._measures.slice_writes:,} slices "
            "written, "
            f"{events:,} events wait"
        )

    def _break(self, budget: str, at: float) -> None:
        if budget not in (name for _, name in self._broken):
            self._broken.append((at - START, budget))

    def _figures(self, name: str, duration_s: float, drained: float | None) -> ScalePart:
        leaves = total(self._leaves)
        seconds = [size for front in self._leaves for size in front.figures.by_second.values()]
        return ScalePart(
            name=name,
            duration_s=duration_s,
            drained_s=drained,
            writes=self._measures.writes,
            slice_writes=self._measures.slice_writes,
            roots=total(self._fronts),
            relays=total(self._tree.all if self._tree else ()),
            leaves=leaves,
            node_bytes=leaves.sent_bytes / max(1, self._measures.readers),
            busiest_bytes_s=max(seconds, default=0),
            back_s=self._tree.back_s if self._tree else None,
            controller_busy=self._controller.busy_s / duration_s,
            ages=self._measures.ages,
            lengths=self._lengths,
        )

    # The end

    def _outcome(self, parts: tuple[ScalePart, ...]) -> ScaleOutcome:
        if self._measures.late_at is not None:
            self._break(
                f"nodes are told after {self.plan.budgets.freshness_s:g} s", self._measures.late_at
            )
        slices = self._server.records(EndpointSlices)
        return ScaleOutcome(
            plan=self.plan,
            parts=parts,
            broken=tuple(sorted(self._broken)),
            wrong=tuple(self._wrong()),
            slices=len(slices),
            slice_bytes=sum(len(record.body) for record in slices) / max(1, len(slices)),
            replaced=self.scenario.replaced,
            marked=self.scenario.marked,
            commands=sum(node.commands for node in self.nodes),
            virtual_s=self._scheduler.now - START,
            digest=self._trace.digest,
            memory={part: mib for part, mib in self._memory.items() if self._metered},
        )

    def _wrong(self) -> list[str]:
        """Returns how the final state differs from the specification."""
        wrong = list(self.scenario.refused[:10])
        nodes = {
            node.metadata.name: node
            for node in (decode(item.body, Node) for item in self._server.records(Nodes))
        }
        pods = _by_label(self._server.records(Pods), "app", Pod)
        slices = _by_label(self._server.records(EndpointSlices), LABEL_SERVICE_NAME, EndpointSlice)
        maximum = self.plan.controller.max_endpoints_per_slice
        for record in self._server.records(Services)[:: max(1, self.plan.services // _CHECKED)]:
            service = decode(record.body, Service)
            if not service.spec.selector:
                continue
            name = service.metadata.name  # its Pods have this label
            try:
                oracle.check_converged(service, pods(name), nodes, slices(name), maximum)
            except AssertionError as error:
                wrong.append(str(error))
        truth = {
            record.key.path: str(record.revision) for record in self._server.records(EndpointSlices)
        }
        wrong += [
            f"{node.actor} holds other slices than the server"
            for node in self.nodes
            if node.versions != truth
        ]
        wrong += self._server.wrong[:10]
        if self._tree is not None:
            wrong += self._tree.wrong(self._rows)
        return wrong


def _shares(nodes: int, fronts: Sequence[Front]) -> list[int]:
    """Returns the number of *nodes* of each process: equal ones have equal numbers."""
    each, rest = divmod(nodes, sum(front.copies for front in fronts))
    single = [front for front in fronts if front.copies == 1]
    return [
        each + ((rest + single.index(front)) // len(single) if front in single else 0)
        for front in fronts
    ]


def _by_label(records: Iterable[Record], label: str, kind: type[T]) -> Callable[[str], list[T]]:
    """Returns a function that returns the objects with a value of *label*, decoded on each call."""
    filed: dict[str, list[bytes]] = {}
    for record in records:
        filed.setdefault(record.labels.get(label, ""), []).append(record.body)
    return lambda value: [decode(body, kind) for body in filed.get(value, ())]
