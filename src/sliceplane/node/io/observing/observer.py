"""The observer of a node that another program's proxy serves: informers, readers of the kernel's
rules, and the report of the revisions that the rules have.

It reports in the same Lease as our node proxy (``consume.progress``), so whatever reads that Lease
works on nodes with kube-proxy. It writes no rule: ``node.io.demand``, which counts the connections
of ``demand``, has a table of its own and runs only if requested.

**nftables**: a check follows each change of the API or of the rules. **iptables**: a check begins with
a read of the rules (``saved_reader``). Which one is found at each check: kube-proxy may be restarted
in another mode.

**No rules of kube-proxy** (Cilium, our own proxy, or none): there is nothing to observe. No Lease is
written, so the node stays unknown; a log line states it once.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from functools import partial
from typing import Final

from sliceplane.api.core import Node, Service
from sliceplane.api.discovery import EndpointSlice
from sliceplane.api.gates import Gates
from sliceplane.api.scheme import EndpointSlices, Services
from sliceplane.consume.flow_counts import CountFlows
from sliceplane.consume.progress import Progress, Scope
from sliceplane.consume.selections import ALL
from sliceplane.kit.io.log import get_logger
from sliceplane.kit.ip import Family
from sliceplane.kit.metrics import Kind, Metrics
from sliceplane.kit.rng import Rng
from sliceplane.node.demand import ServiceDemand
from sliceplane.node.io.flow_counter import FlowCounter
from sliceplane.node.io.inputs import Changes, InputHandlers, Inputs
from sliceplane.node.io.node_proxy import watches
from sliceplane.node.io.observing.nft_reader import NftReader
from sliceplane.node.io.observing.saved_reader import PAUSE_S, RETRY, SavedReader
from sliceplane.node.io.options import ProxyTiming
from sliceplane.node.observing.agreement import Agreement
from sliceplane.node.observing.graph import RuleGraph, UnreadableRules
from sliceplane.watch.cache import Mark
from sliceplane.watch.io.base import Client

#: seconds between two checks, at least: changes that arrive meanwhile are one check
CHECK_PAUSE_S: Final = 0.02
#: seconds between two looks for Services that have not agreed for long
LATE_PERIOD_S: Final = 5.0
#: seconds between two comparisons of everything
SWEEP_PERIOD_S: Final = 60.0
#: Services compared a second then
SWEEP_STEP: Final = 20
#: iptables rules are read again, though nothing changed, after so many times a read's duration
READ_SHARE: Final = 200
#: destinations of no Service that are named
_UNOWNED_MAX: Final = 3
_NAT: Final = "nat"

_log = get_logger("observer")


class Observer:
    """A ``consume.io.reporting.Reporter``.  Call ``follow`` once."""

    def __init__(
        self,
        node_name: str,
        families: tuple[Family, ...],
        *,
        clock: Callable[[], float],
        netns: str = "",
        count_flows: CountFlows | None = None,
    ) -> None:
        """*count_flows*: counts open connections for ``drain --until-idle``; ``None``: not."""
        self.node_name: Final = node_name
        self.progress = Progress(node_name, families)
        self.demand = ServiceDemand(families)
        self.report_due = asyncio.Event()
        self.revision_applied = asyncio.Event()
        #: the rules that were compared last: "nftables", "iptables-nft", "iptables-legacy"; "": none
        self.source = ""
        self._clock = clock
        self._flows = FlowCounter(self, count_flows, clock)
        self._agreements = {family: Agreement(family, node_name) for family in families}
        self._nft = NftReader(families, self._on_rules, self._on_other_table, netns=netns)
        self._saved = SavedReader(families, netns)
        self._inputs: Inputs | None = None
        self._missing = {Services.key, EndpointSlices.key}
        self._wake = asyncio.Event()
        self._ready = asyncio.Event()
        #: number of comparisons, those that found no rules included
        self.checks = 0
        #: iptables rules were changed, or were not read for long
        self._saved_may_differ = False
        self._attempt = 0
        self._read_at = -math.inf
        self._read_s = 0.0
        #: sentences for the report: Services that differ for long, rules of no Service
        self._late: tuple[str, ...] = ()
        self._unowned: tuple[str, ...] = ()
        self._unowned_before: set[str] = set()
        self._problem = ""
        #: the graphs of the last check
        self._graphs: Mapping[Family, RuleGraph] = {}
        self.metrics = self._declare_metrics()

    def _declare_metrics(self) -> Metrics:
        metrics = Metrics()
        rows: tuple[tuple[Kind, str, str, Callable[[], float]], ...] = (
            ("gauge", "services", "Services whose rules are compared.", self._count_services),
            ("gauge", "pending_services", "Services that do not agree.", lambda: self.pending),
            ("gauge", "late_services", "The same, for 30 s.", lambda: len(self._late)),
            ("counter", "loads_total", "How often all rules were read.", self._count_loads),
            ("counter", "checks_total", "Comparisons with the API.", lambda: self.checks),
        )
        for kind, name, text, read in rows:
            metrics.computed(kind, f"sliceplane_observer_{name}", text, partial(_single, read))
        metrics.computed(
            "gauge",
            "sliceplane_observer_source",
            "1 for the rules that are compared.",
            lambda: [((self.source or "none",), 1.0)],
            "rules",
        )
        return metrics

    def _count_loads(self) -> int:
        return self._nft.loads + self._saved.reads

    def _count_services(self) -> int:
        return sum(agreement.services for agreement in self._agreements.values())

    @property
    def pending(self) -> int:
        """Returns the number of Services whose rules do not agree yet."""
        return sum(agreement.pending for agreement in self._agreements.values())

    @property
    def has_changes(self) -> bool:
        """Returns True if a Service changed since the last check."""
        return any(agreement.has_changes for agreement in self._agreements.values())

    def staleness_s(self) -> float:
        age = self._inputs.staleness_s() if self._inputs is not None else None
        return math.inf if age is None else age

    @property
    def counts(self) -> dict[Family, int]:
        """Returns the number of Services compared, by family."""
        return {family: agreement.services for family, agreement in self._agreements.items()}

    @property
    def is_ready(self) -> bool:
        return self._ready.is_set()

    async def follow(self, client: Client, rng: Rng) -> None:
        """Reads the API and the rules until cancelled."""
        handlers = InputHandlers(self._on_changes, self._on_mark, self._on_synced, lambda _: None)
        self._inputs = Inputs(
            client,
            watches(self.node_name, Gates())[:3],
            handlers,
            clock=self._clock,
            rng=rng,
            timing=ProxyTiming(),
        )
        async with asyncio.TaskGroup() as group:
            group.create_task(self._inputs.run(), name="observer: API")
            group.create_task(self._nft.run(), name="observer: nftables")
            group.create_task(self._keep_checking(), name="observer: checks")
            group.create_task(self._keep_sweeping(), name="observer: sweep")
            group.create_task(self._keep_looking_for_late(), name="observer: late")
            group.create_task(self._flows.run(), name="observer: connections")

    def _on_changes(self, selection: str, changes: Changes) -> None:
        now = self._clock()
        for change in changes:
            match change.old, change.new:
                case (Service() | None as before, Service() | None as after):
                    self.demand.on_service(before, after)
            for agreement in self._agreements.values():
                match change.old, change.new:
                    case (Service() | None as old, Service() | None as new):
                        agreement.on_service(old, new)
                    case (EndpointSlice() | None as old_slice, EndpointSlice() | None as new_slice):
                        agreement.on_slice(old_slice, new_slice)
                    case (Node() | None, Node() | None as node):
                        agreement.on_node(node)
            self.progress.on_change(change, ALL, now)
        self._flows.wake()
        self._attempt = 0
        self._wake.set()

    def _on_mark(self, resource: str, selection: str, mark: Mark | None) -> None:
        self.progress.on_mark(resource, ALL, mark)
        self._wake.set()

    def _on_synced(self, resource: str) -> None:
        self._missing.discard(resource)
        self._wake.set()

    def _on_rules(self) -> None:
        self._wake.set()

    def _on_other_table(self, table: str) -> None:
        if table == _NAT and self.source != "nftables":
            self._saved_may_differ = True
            self._wake.set()

    async def _keep_checking(self) -> None:
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(self._wait_s()):
                    await self._wake.wait()
            self._wake.clear()
            if not self._missing:
                try:
                    await self._check()
                except (OSError, UnreadableRules) as error:
                    self._set_problem(str(error))
                self._on_checked()
            await asyncio.sleep(CHECK_PAUSE_S)

    def _wait_s(self) -> float:
        """Returns the seconds until something is due although nothing changes."""
        now = self._clock()
        deadlines = [now + LATE_PERIOD_S]
        deadlines += [
            deadline
            for agreement in self._agreements.values()
            if (deadline := agreement.next_deadline()) is not None
        ]
        if self.source != "nftables" and self.pending:
            deadlines.append(self._read_at + RETRY.delay_s(self._attempt))
        return max(0.0, min(deadlines) - now)

    async def _check(self) -> None:
        """Raises ``OSError`` and ``UnreadableRules``."""
        self.checks += 1
        self._nft.catch_up()
        if self._nft.is_current and any(graph.is_hooked for graph in self._nft.graphs.values()):
            numbers = self._begin()
            self._finish(numbers, self._nft.graphs, "nftables")
        elif self._nft.is_current or self._nft.problem:
            await self._check_saved()

    async def _check_saved(self) -> None:
        """Reads the iptables rules if that is due, and compares them."""
        now = self._clock()
        is_changed = self.has_changes or self._saved_may_differ
        is_due = now >= self._read_at + (PAUSE_S if is_changed else RETRY.delay_s(self._attempt))
        if self.source.startswith("iptables") and not is_changed and not self.pending:
            return
        if not is_due:
            return
        self._attempt += 1
        self._read_at = now
        self._saved_may_differ = False
        numbers = self._begin()
        await self._saved.read()
        self._read_s = self._clock() - now
        if not any(graph.is_hooked for graph in self._saved.graphs.values()):
            self._report_absent()
            return
        self._finish(numbers, self._saved.graphs, f"iptables-{self._saved.variant}")

    def _report_absent(self) -> None:
        self.source = ""
        if self._set_problem("the kernel has no rules of kube-proxy"):
            _log.warning(
                "this node has no rules of kube-proxy: not observable", node=self.node_name
            )

    def _set_problem(self, problem: str) -> bool:
        """Sets the problem of all rules; "" for none. Returns True if it is another one."""
        if problem == self._problem:
            return False
        self._problem = problem
        self.report_due.set()
        return True

    def _begin(self) -> dict[Family, int]:
        now = self._clock()
        numbers = {}
        for family, agreement in self._agreements.items():
            numbers[family] = agreement.begin_check(now)
            self.progress.on_taken(family, numbers[family])
        return numbers

    def _finish(
        self, numbers: Mapping[Family, int], graphs: Mapping[Family, RuleGraph], source: str
    ) -> None:
        """Compares the rules, and notes what they have."""
        if source != self.source:
            _log.info("the rules of kube-proxy are compared", node=self.node_name, rules=source)
        self.source = source
        self.progress.on_rules(f"kube-proxy {source}")
        for family in numbers:
            complete = self._agreements[family].check_rules(graphs[family], self._clock())
            self.progress.on_written(family, complete)
        absent = [
            family
            for family, agreement in self._agreements.items()
            if agreement.services and not graphs[family].is_hooked
        ]
        self._set_problem(
            f"the kernel has no {' and '.join(absent)} rules of kube-proxy" if absent else ""
        )
        self._graphs = graphs
        self._ready.set()

    def _on_checked(self) -> None:
        self.revision_applied.set()
        if self.progress.has_requests:
            self.report_due.set()

    async def _keep_looking_for_late(self) -> None:
        """Names the Services that have not agreed for long."""
        while True:
            await asyncio.sleep(LATE_PERIOD_S)
            now = self._clock()
            late = tuple(
                sentence
                for family, graph in self._graphs.items()
                for sentence in self._agreements[family].late(graph, now)
            )
            if late != self._late:
                self._late = late
                self.report_due.set()

    async def _keep_sweeping(self) -> None:
        """Looks now and then for rules that somebody edited. Rules that nothing changed since the
        last time are as they were.
        """
        swept: list[int] = []
        while True:
            await asyncio.sleep(SWEEP_PERIOD_S)
            self._saved_may_differ = self._clock() - self._read_at >= READ_SHARE * self._read_s
            self._look_for_unowned()
            versions = [graph.version for graph in self._graphs.values()]
            if self.source and versions != swept:
                swept = versions
                await self._sweep()

    async def _sweep(self) -> None:
        """Compares ``SWEEP_STEP`` Services a second, each with the rules of that moment."""
        for family, agreement in self._agreements.items():
            for number, key in enumerate(agreement.service_keys(), 1):
                if number % SWEEP_STEP == 0:
                    await asyncio.sleep(1.0)
                self._nft.catch_up()
                if self.source != "nftables" or self._nft.is_current:
                    agreement.compare(key, self._graphs[family], self._clock())

    def _look_for_unowned(self) -> None:
        """Names the destinations of no Service that were there the last time, too."""
        unowned = {
            destination
            for family, graph in self._graphs.items()
            for destination in self._agreements[family].unowned(graph)
        }
        lasting, self._unowned_before = unowned & self._unowned_before, unowned
        self._unowned = tuple(
            f"its proxy has rules for {destination}, which no Service has"
            for destination in sorted(lasting)[:_UNOWNED_MAX]
        )

    # -- consume.io.reporting.Reporter

    async def wait_ready(self) -> None:
        """Returns when the rules were compared for the first time."""
        await self._ready.wait()

    def note_progress(self) -> None:
        for family, agreement in self._agreements.items():
            if self.source and not agreement.has_changes and not agreement.pending:
                self.progress.on_idle(family)
        self.progress.on_problems(tuple(self.problems()))
        self.progress.on_inputs(self.staleness_s(), self._clock())

    def problems(self) -> Iterator[str]:
        """Yields what is wrong with the rules, a sentence each."""
        if self._problem or self._nft.problem:
            yield self._problem or self._nft.problem
        yield from self._late
        yield from self._unowned

    def relist_if_behind(self, required: Mapping[Scope, int]) -> None:
        """Does nothing: a check follows each change."""


def _single(read: Callable[[], float]) -> list[tuple[tuple[str, ...], float]]:
    return [((), float(read()))]
