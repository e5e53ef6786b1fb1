"""Relays between servers and nodes: the production mirror with its hub, catch-ups, choice among
parents and aggregated reports, in processes whose work takes time.

What ``relay.io`` does around these cores is played here: an informer reads at the parent in use, a
watch from before the history waits until its events are fetched, reports of nodes become one Lease.

Relays that one parent writes to in one batch, with as many nodes each, are equal, so one process
stands for all of them. Those behind the first parent run each for itself: one of them is killed,
and the others take its nodes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from typing import Final

from sliceplane.api.codec import decode, encode
from sliceplane.api.core import Lease
from sliceplane.api.errors import StatusError, is_unreachable, unreachable
from sliceplane.api.requests import Selection, Write
from sliceplane.api.scheme import EndpointSlices, Leases
from sliceplane.consume.drain.relayed import nodes_of
from sliceplane.consume.progress import (
    ANNOTATION_REVISION,
    LEASE_NAMESPACE,
    LEASE_PREFIX,
    Progress,
)
from sliceplane.kit.rng import Rng
from sliceplane.lab.sim.network import void
from sliceplane.lab.sim.scale.front import (
    STREAMS_PER_BATCH,
    Front,
    ScaleNetwork,
    StreamRow,
)
from sliceplane.lab.sim.scale.plan import ScalePlan, node_name
from sliceplane.lab.sim.streams import SimulatedInformer
from sliceplane.relay.earlier import WatchScope
from sliceplane.relay.mirror import ResourceMirror
from sliceplane.relay.records import Mirrored, mirrored
from sliceplane.relay.reports import NodeReports
from sliceplane.relay.siblings import Siblings
from sliceplane.server.registry.registry import Registry
from sliceplane.server.registry.types import ListOutcome
from sliceplane.server.store.types import Key
from sliceplane.server.store.watcher import Watcher, nothing
from sliceplane.watch.actions import is_bad_version, is_expired
from sliceplane.watch.cache import Mark
from sliceplane.watch.reflector import BACKOFF, Reflector

RELAYED: Final = Selection(EndpointSlices)
#: seconds between looks at old history and at the Lease to write
STEP_S: Final = 1.0
#: equal to those of ``relay.io.parent``: seconds of one watch that fetches, of all that fetch for one
#: stretch, and between two of them
PROGRESS_WATCH_S: Final = 3
FETCH_S_MAX: Final = 8.0
FETCH_PAUSE_S: Final = 0.2


class RelayParents:
    """The parents of *copies* equal relays (``relay.io.upstream``)."""

    def __init__(self, parents: Sequence[Front], rng: Rng, copies: int) -> None:
        self.siblings = Siblings(len(parents), rng)
        self._parents = parents
        self._copies = copies

    def page(self, selection: Selection, limit: int, continue_token: str) -> ListOutcome:
        parent = self._current()
        return parent.page(selection, limit, continue_token, self._copies)

    def watch(self, selection: Selection, version: str, timeout_s: int) -> Watcher:
        parent, number = self._current(), self.siblings.current
        watcher = parent.watch(
            selection,
            version,
            timeout_s,
            self._copies,
            judge=partial(self._judge, selection, number),
        )
        self.siblings.on_opened(selection, number)
        return watcher

    def _current(self) -> Front:
        number = self.siblings.current
        if not self._parents[number].serves:
            self.siblings.on_failure(number)
            raise unreachable("connection refused")
        return self._parents[number]

    def _judge(self, selection: Selection, number: int, error: StatusError) -> StatusError:
        if is_expired(error) and self.siblings.on_expired(selection, number):
            return unreachable("the version of a watch is lost")
        if is_unreachable(error):
            self.siblings.on_failure(number)
        return error


class SimulatedRelay(Front):
    """One relay process, or *copies* equal ones. It has no memory after ``kill`` and ``begin``."""

    def __init__(
        self,
        name: str,
        level: int,
        parents: Sequence[Front],
        network: ScaleNetwork,
        *,
        load: Callable[[bytes], Mirrored],
        rng: Rng,
        copies: int = 1,
    ) -> None:
        """*parents*: its own one is the first.  *load* decodes for all relays."""
        super().__init__(network.scale, network.scale.fronts[0].link_bytes_s, copies)
        self.name = name
        self.level = level
        self.parent = parents[0]
        self.root = self.parent.root
        self._upstream = RelayParents(parents, rng.fork(), copies)
        self._network = network
        self._decode = load
        self._rng = rng
        self._life = 0
        #: streams whose earlier events are being fetched
        self._fetching: dict[WatchScope, list[StreamRow]] = {}
        self.begin()

    def begin(self) -> None:
        """Starts the process."""
        life = self._life
        self.serves = False
        self.mirror = mirror = ResourceMirror(EndpointSlices)
        mirror.load = self._load
        self.hub, self.store = mirror.hub, mirror.store
        self.registry = Registry(mirror.store, rng=self._rng.fork())
        self.reports = NodeReports(self.name)
        record = self.server.store.get(Key(Leases.storage_key, LEASE_NAMESPACE, self.reports.lease))
        if record is not None:
            self.reports.restore(decode(record.body, Lease), self._scheduler.now)
        rng = self._rng.fork()
        self._informer = SimulatedInformer(
            RELAYED,
            self._network.reading_at(self._upstream),
            rng,
            receive=lambda callback: callback() if life == self._life else None,
            deliver=mirror.on_changes,  # type: ignore[arg-type]  # of its own cache
            on_synced=nothing,
            on_mark=self._on_mark,
        )
        self._informer.reflector = Reflector(mirror.cache, rng)
        self._informer.start()
        self._step(life)

    def kill(self) -> list[StreamRow]:
        """Ends the process at once; returns its streams."""
        self.serves = False
        self._life += 1
        self._informer.stop()
        self._halt()
        rows, self.rows = self.rows, []
        self._fetching.clear()
        for row in rows:
            row.watcher = None
            row.scheduled = False
            row.unsent.clear()
        return rows

    def _step(self, life: int) -> None:
        if life == self._life:
            self.mirror.on_tick(self._scheduler.now)
            self._write_lease()
            self._scheduler.after(STEP_S, partial(self._step, life))

    def _load(self, body: bytes) -> Mirrored:
        self.spend(self._costs.relay_object_s)
        return self._decode(body)

    def _on_mark(self, mark: Mark) -> None:
        self.spend(self._costs.relay_event_s)
        self._upstream.siblings.on_news(RELAYED)
        self.mirror.on_mark(mark)
        self.serves = self.mirror.filled
        self.server.measures.on_relay(self.level, mark.revision, self._scheduler.now)

    # Watches from before the history (``relay.io.parent``)

    def join(self, row: StreamRow) -> None:
        earlier = self.mirror.earlier
        scope = WatchScope(selector=row.interest.selector)
        if not earlier.lacks(scope, row.version):
            super().join(row)
            return
        self.take(row)
        earlier.want(scope, row.version)
        if scope not in self._fetching:
            self._fetching[scope] = []
            self._scheduler.after(0.0, partial(self._fetch, scope))
        self._fetching[scope].append(row)

    def _fetch(self, scope: WatchScope) -> None:
        scheduler, life, earlier = self._scheduler, self._life, self.mirror.earlier
        run = earlier.begin(scope)
        ends_at = scheduler.now + FETCH_S_MAX
        labels, _, fields = scope.selector.partition("\n")
        selection = Selection(EndpointSlices, label_selector=labels, field_selector=fields)

        def feed() -> None:
            if life != self._life:
                return
            if run.is_over or scheduler.now >= ends_at:
                earlier.finish(scope, run)
                self.figures.catch_ups += run.is_complete
                for row in self._fetching.pop(scope):
                    if row in self.rows:
                        self.join(row)
                return
            try:
                watcher = self._upstream.watch(selection, str(run.version), PROGRESS_WATCH_S)
            except StatusError:
                scheduler.after(FETCH_PAUSE_S, feed)
            else:
                watcher.notify = lambda: pump(watcher)

        def pump(watcher: Watcher) -> None:
            for item in watcher.take():
                if not run.is_over:
                    self.spend(self._costs.relay_object_s)
                    run.on_message(item.type, item.data)
            if run.is_over or watcher.closed:
                if watcher.error is not None and is_bad_version(watcher.error):
                    run.fail()
                watcher.notify = nothing
                watcher.close(None)
                scheduler.after(0.0 if run.is_over else FETCH_PAUSE_S, feed)

        feed()

    # Reports of nodes (``relay.io.reports``)

    def on_reports(self, row: StreamRow) -> None:
        """The nodes of *row* report what they have."""
        now, costs = self._scheduler.now, self._costs
        for number in range(row.first, row.first + row.nodes):
            progress = Progress(node_name(number), ("IPv4",))
            progress.on_mark(EndpointSlices.key, "", Mark(EndpointSlices.key, str(row.version)))
            progress.on_idle("IPv4")
            lease = decode(progress.take_report(now), Lease)
            if self.reports.accepts(lease):
                note = partial(self.reports.on_lease, lease, now)
                self.submit(costs.lease_write_s + costs.report_s, note)
            else:
                self._network.next_front().submit(self.copies * costs.lease_write_s, nothing)

    def _write_lease(self) -> None:
        document = self.reports.take_lease(self._scheduler.now)
        if document is None:
            return
        write = Write(
            verb="patch",
            resource=Leases,
            namespace=LEASE_NAMESPACE,
            name=self.reports.lease,
            body=encode(document),
            patch_type="apply",
            force=True,
        )
        self._network.send(self.name, write, void)
        for _ in range(self.copies - 1):  # the Leases of its equals are load without content
            self._network.next_front().submit(self._costs.slice_write_s, nothing)


class RelayTree:
    """All relays of a run, in ``levels``; nodes read from the last one."""

    def __init__(self, plan: ScalePlan, network: ScaleNetwork, rng: Rng) -> None:
        self._scheduler = network.scheduler
        self._server = network.scale
        self._plan = plan
        self._rng = rng
        self.levels: list[list[SimulatedRelay]] = []
        #: seconds from a kill until the last stream of nodes was open again
        self.back_s: float | None = None
        # Relays receive the same bytes; objects are frozen, so they share what is decoded.
        load = lru_cache(4 * plan.services)(partial(mirrored, EndpointSlices))
        parents: Sequence[Front] = self._server.fronts
        for level, count in enumerate(plan.relays_by_level, 1):
            made: list[SimulatedRelay] = []
            for place, parent in enumerate(parents):
                is_shared = level == plan.levels and level > 1 and place > 0
                size = STREAMS_PER_BATCH if is_shared else 1
                until = (place + 1) * count // len(parents)
                made += [
                    SimulatedRelay(
                        f"relay-{level}-{number}",
                        level,
                        [parent, *(other for other in parents if other is not parent)],
                        network,
                        load=load,
                        rng=rng.fork(),
                        copies=min(size, until - number),
                    )
                    for number in range(place * count // len(parents), until, size)
                ]
            self.levels.append(made)
            parents = made
        while not all(relay.serves for relay in self.all):
            self._scheduler.run_until(self._scheduler.now + 1.0)

    @property
    def all(self) -> list[SimulatedRelay]:
        return [relay for level in self.levels for relay in level]

    def report(self, row: StreamRow, after_s: float) -> None:
        """The nodes of *row* report after so many seconds, and then again and again."""

        def run() -> None:
            relay = row.front
            if row.reads and relay.serves and isinstance(relay, SimulatedRelay):
                relay.on_reports(row)
            self._scheduler.after(1 / self._plan.renewals_per_s, run)

        self._scheduler.after(after_s, run)

    # Kills

    def kill(self, relay: SimulatedRelay) -> None:
        """Kills *relay*, which is there again a little later. Nodes look for one with the same
        parent, children for another parent.
        """
        for row in relay.kill():
            if row.on_lost is not None:
                row.on_lost(unreachable("connection reset by peer"))
            elif row.reads:
                self._seek(row, relay, self._scheduler.now, 0)
        self._scheduler.after(self._plan.restart_s, relay.begin)

    def _seek(self, row: StreamRow, lost: SimulatedRelay, gone_at: float, attempt: int) -> None:
        siblings = [relay for relay in self.levels[-1] if relay.parent is lost.parent]

        def connect() -> None:
            relay = siblings[self._rng.below(len(siblings))]
            if not relay.serves:
                self._seek(row, lost, gone_at, attempt + 1)
                return
            self.back_s = self._scheduler.now - gone_at
            relay.join(row)

        self._scheduler.after(BACKOFF.delay_s(attempt, self._rng), connect)

    def wrong(self, rows: Sequence[StreamRow]) -> list[str]:
        """Returns the nodes that are reported, in the relays' Leases at the server, as further than
        they are.
        """
        has = {
            node_name(row.first + number): row.version
            for row in rows
            for number in range(row.nodes)
        }
        leases = [
            each.lease.metadata
            for record in self._server.records(Leases, LEASE_NAMESPACE)
            for each in nodes_of(decode(record.body, Lease))
        ]
        return [
            f"{lease.name} is reported to have {revision}"
            for lease in leases
            if int(revision := (lease.annotations or {})[ANNOTATION_REVISION])
            > has[lease.name.removeprefix(LEASE_PREFIX)]
        ]
