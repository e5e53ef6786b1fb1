"""The node proxy's shell: informers feed the planes, the planes' transactions go to the kernel
through a ``backend``.

One task for each IP family, so that a slow or refused transaction of one does not hold the other.
Events are taken synchronously as the informers report them (``on_change``) and only mark; the
family's task then writes whatever is marked. So a burst is one transaction, and while one runs the
next is collected.

**Gate.**  Nothing is written before Services and EndpointSlices were listed. The node's own zone
decides which endpoints to use, so its Node is waited for as well (and the ranges of cluster IPs
with it), but not for long: a node that is not registered gets rules too.

**After a write** comes what follows from it (``consequences``): health ports, figures, UDP flows.

**Others.**  The kernel is never listed on the way of a change; that our tables are still there is
looked at now and then, and at once when a transaction was refused. Each is written anew every
``WHOLE_TABLE_PERIOD_S``, and every ``SUSPECT_PERIOD_S`` if another program changed nftables' rules
meanwhile (whose, the kernel does not say): so what others deleted or changed in it comes back
although nothing happens to Services.

**Exit** leaves the rules: traffic goes on while the proxy is upgraded. ``cleanup`` takes them away.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress

from sliceplane.api.core import Endpoints, Node, Service, ServiceCIDR
from sliceplane.api.discovery import LABEL_HEADLESS, LABEL_SERVICE_PROXY_NAME, EndpointSlice
from sliceplane.api.gates import ENDPOINT_SLICE_SUBSETTING, Gates
from sliceplane.api.meta import Object
from sliceplane.api.scheme import EndpointSlices, EndpointsObjects, Nodes, ServiceCIDRs, Services
from sliceplane.consume.model import ServiceKey
from sliceplane.consume.progress import Place, Progress
from sliceplane.consume.selections import (
    ALL,
    Union,
    common_selector,
    own_selectors,
    reading_of,
    reads_slices,
)
from sliceplane.consume.slicecache import differences
from sliceplane.kit.io.log import get_logger
from sliceplane.kit.ip import FAMILIES, Family
from sliceplane.kit.rng import Rng
from sliceplane.node.io.claims import ALL_NODES, ProxyClaims
from sliceplane.node.io.consequences import FAILED, Consequences, FlowForgetter, last_asked
from sliceplane.node.io.healthz import ProxyHealth
from sliceplane.node.io.inputs import COMMON, Beside, Changes, Inputs
from sliceplane.node.io.kernel.backend import AnyBackend, KernelError, look
from sliceplane.node.io.kernel.netns import Listen, listening_in
from sliceplane.node.io.metrics import ProxyMetrics, ProxyRecord
from sliceplane.node.io.timing import WHOLE_TABLE_PERIOD_S, ProxyTiming
from sliceplane.node.plane import AnyNodePlane, NodePlaneConfig
from sliceplane.node.schedule import Damage
from sliceplane.node.surroundings import PRIMARY, RulesConfig
from sliceplane.watch.cache import Change, Mark
from sliceplane.watch.controller.base import EventNote, Selection
from sliceplane.watch.io.base import Client
from sliceplane.watch.io.events import EventRecorder

#: set by the autoscaler on a Node that it is about to delete
TAINT_TO_BE_DELETED = "ToBeDeletedByClusterAutoscaler"

_log = get_logger("node-proxy")


def watches(node_name: str, gates: Gates) -> tuple[Selection, ...]:
    """What a node proxy watches from start to end (upstream: ``cmd/kube-proxy/app/server.go``): the
    server filters out what is not its business.
    """
    return (
        Selection(
            Services,
            label_selector=f"!{LABEL_SERVICE_PROXY_NAME}",
            field_selector="spec.clusterIP!=None",
        ),
        Selection(EndpointSlices, label_selector=common_selector(gates))
        if reads_slices(gates)
        else Selection(EndpointsObjects, label_selector=f"!{LABEL_HEADLESS}"),
        Selection(Nodes, field_selector=f"metadata.name={node_name}"),
        Selection(ServiceCIDRs),
    )


async def _no_addresses() -> tuple[str, ...] | None:
    return ()


class NodeProxy:
    """Feed it with ``on_change`` and ``on_synced`` from one event loop; ``run`` does the rest until
    it is cancelled.
    """

    def __init__(
        self,
        node_name: str,
        backend: AnyBackend,
        *,
        families: tuple[Family, ...] = FAMILIES,
        min_period_s: float = 0.0,
        rules: RulesConfig | None = None,
        gates: Gates | None = None,
        flows: FlowForgetter | None = None,
        host_addresses: Callable[[], Awaitable[tuple[str, ...] | None]] = _no_addresses,
        listen: Listen = listening_in(""),  # noqa: B008  # a function without state
        timing: ProxyTiming = ProxyTiming(),  # noqa: B008  # it is frozen
        own_ports: tuple[int, ...] = (),
        clock: Callable[[], float] = time.time,
    ) -> None:
        """*flows* forgets stale UDP flows (``None``: they are left). *host_addresses*: what the
        host's interfaces have, asked only where flags name node ports by networks. *listen* opens
        the sockets of health check node ports. *own_ports*: of our pages; no Service gets them as
        node ports.
        """
        self._gates = gates or Gates()
        self._rules = rules or RulesConfig()
        config = NodePlaneConfig(
            node_name, min_period_s, self._rules, since=clock(), own_ports=own_ports
        )
        self.watches = watches(node_name, self._gates)
        self.metrics = ProxyMetrics(backend.mode, backend.ways)
        self._endpoints_key = self.watches[1].resource.key
        #: for ``consume.io.reporting``, which waits for them
        self.reports_wanted = asyncio.Event()
        self.held_more = asyncio.Event()
        self.progress = Progress(
            node_name,
            families,
            changed_period_s=timing.lease_changed_period_s,
            idle_period_s=timing.lease_idle_period_s,
        )
        self._backend = backend
        self.mode: str = backend.mode
        self._host_addresses = host_addresses
        self._timing = timing
        self._clock = clock
        #: to be replaced before anything happens
        self.record = ProxyRecord()
        self.beside: Beside | None = None
        self._planes: tuple[AnyNodePlane, ...] = tuple(
            backend.plane(family, config) for family in families
        )
        self._wake = {plane.family: asyncio.Event() for plane in self._planes}
        self._missing = {watched.resource.key for watched in self.watches}
        self._gate = asyncio.Event()  # Services and EndpointSlices are there
        self._node = asyncio.Event()  # and what is waited for only so long
        self._node_seen: Node | None = None
        self._union = Union() if self._gates.enabled(ENDPOINT_SLICE_SUBSETTING) else None
        self._doubt = asyncio.Event()
        #: families whose tables another program may have changed since they were written
        self._suspects: set[Family] = set()
        self._damage = Damage()
        self._written = {plane.family: asyncio.Event() for plane in self._planes}
        self._refusals: dict[Family, str] = {}
        self._consequences = {
            plane.family: Consequences(
                plane,
                self.metrics,
                flows,
                healthy=lambda: self.health().healthy,
                on_port_failed=self._on_port_failed,
                listen=listen,
                clock=clock,
                flows_retry_s=timing.flows_retry_s,
            )
            for plane in self._planes
        }
        self._claims = ProxyClaims(self._planes, clock=clock, wake=self._wake_all)
        self._inputs: Inputs | None = None
        self._events: EventRecorder | None = None
        self._node_name = node_name

    @property
    def reads_slices(self) -> bool:
        """EndpointSlices and not Endpoints; then ``progress`` means something."""
        return self._endpoints_key == EndpointSlices.key

    def on_change(self, change: Change[Object], selection: str = COMMON) -> None:
        """One difference that an informer found, of any of ``watches`` or of another *selection* of
        slices.
        """
        now = self._clock()
        self.record.change(change, now)
        if selection == ALL_NODES:
            self._claims.on_node(change)
            self._wake_all()
            return
        match change.old, change.new:
            case (Service() | None as old, Service() | None as new):
                self.metrics.on_service_change()
                for plane in self._planes:
                    plane.on_service(old, new, now)
                self._claims.look()
            case (EndpointSlice() | None as old_slice, EndpointSlice() | None as new_slice):
                if self._union is None:
                    self._on_slice(old_slice, new_slice, now)
                else:
                    difference = self._union.on_change(selection, old_slice, new_slice)
                    if difference is not None:
                        self._on_slice(*difference, now)
            case (Endpoints() | None as old_endpoints, Endpoints() | None as new_endpoints):
                for before, after in differences(old_endpoints, new_endpoints):
                    self._on_slice(before, after, now)
            case (Node() | None, Node() | None as node):
                self._on_node(node, now)
            case (ServiceCIDR() | None, ServiceCIDR() | None as new_range):
                for plane in self._planes:
                    plane.on_service_cidr(change.object.metadata.name, new_range, now)
            case _:
                raise AssertionError(f"a change of {change.resource}, which is not watched")
        # Last, so that a change which the model could not take is missing in the digest.
        self.progress.on_change(change, self._reading(change.resource, selection), now)
        if self.progress.asked:
            self.reports_wanted.set()
        self._wake_all()

    def _reading(self, resource: str, selection: str) -> str:
        if resource != EndpointSlices.key:
            return ALL
        return reading_of(selection or self.watches[1].label_selector)

    def on_mark(self, resource: str, selection: str, mark: Mark | None) -> None:
        """Everything of *resource* (its key) in *selection* was told up to *mark*; ``None``: it is
        read from now on.
        """
        if selection != ALL_NODES:
            self.progress.on_mark(resource, self._reading(resource, selection), mark)
            self.held_more.set()

    def _on_slice(self, old: EndpointSlice | None, new: EndpointSlice | None, now: float) -> None:
        self.metrics.on_endpoint_change()
        for plane in self._planes:
            plane.on_slice(old, new, now)

    def _on_node(self, node: Node | None, now: float) -> None:
        for plane in self._planes:
            plane.on_node(node, now)
        if node is not None:
            self._node_seen = node
            if self._inputs is not None:
                self._inputs.aim(own_selectors(self._gates, node))

    def _on_dropped(self, selection: str) -> None:
        assert self._union is not None, "selections are for the gate alone"
        self.progress.on_dropped(EndpointSlices.key, self._reading(EndpointSlices.key, selection))
        for difference in self._union.drop(selection):
            self._on_slice(*difference, self._clock())
        self._wake_all()

    def on_synced(self, resource: str) -> None:
        """The first list of *resource* (``Resource.key``) was delivered."""
        self._missing.discard(resource)
        if resource == Nodes.key and self._node_seen is None:
            # A slip in --hostname-override would not be seen: rules are written, as for a node
            # without a zone.
            _log.warning(
                "there is no Node of this name: no zone, no hints, no addresses of its own",
                node=self._node_name,
            )
        if not self._missing & {Nodes.key, ServiceCIDRs.key}:
            self._node.set()
        if not self._missing & {Services.key, self._endpoints_key}:
            self._gate.set()

    async def follow(self, client: Client, rng: Rng) -> None:
        """Runs informers over *client* and ``run``, until cancelled; the rules stay.  Call it
        once.
        """
        assert self._inputs is None, "this proxy follows a server already"
        self._inputs = Inputs(
            client,
            self.watches,
            clock=self._clock,
            rng=rng,
            on_changes=self._on_changes,
            on_mark=self.on_mark,
            on_synced=self.on_synced,
            on_dropped=self._on_dropped,
            api_timeout_s=self._timing.probe_timeout_s,
            probe_valid_s=self._timing.probe_valid_s,
            absent_period_s=self._timing.absent_kind_period_s,
            beside=self.beside,
        )
        self._claims.follow(self._inputs, client)
        self._events = EventRecorder(client, clock=self._clock, instance=self._node_name)
        async with asyncio.TaskGroup() as group:
            group.create_task(self._events.run(), name="node-proxy-events")
            group.create_task(self.run(), name="node-proxy")
            group.create_task(self._inputs.run(), name="node-proxy-inputs")

    def _on_changes(self, selection: str, changes: Changes) -> None:
        for change in changes:
            self.on_change(change, selection)

    async def run(self) -> None:
        """Writes rules until cancelled; the rules stay."""
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._open_gate(), name="node-proxy-gate")
                group.create_task(self._look_around(), name="node-proxy-tables")
                for plane in self._planes:
                    group.create_task(self._write(plane), name=f"node-proxy-{plane.family}")
                    group.create_task(
                        self._consequences[plane.family].run(),
                        name=f"node-proxy-{plane.family}-flows",
                    )
        finally:
            for consequences in self._consequences.values():
                await consequences.close()

    async def wait_ready(self, *, following: bool = False) -> None:
        """Returns when every family has been written once; *following*: and the server's watches
        are open.
        """
        for written in self._written.values():
            await written.wait()
        if following and self._inputs is not None:
            await self._inputs.followed()

    def health(self) -> ProxyHealth:
        now = self._clock()
        families = tuple((plane.family, plane.schedule.freshness) for plane in self._planes)
        reasons = []
        for family, freshness in families:
            waiting = freshness.staleness_s(now)
            if freshness.failures:
                reasons.append(f"{family} rules are not written: {self._refusals[family]}")
            elif waiting > self._timing.health_timeout_s:
                reasons.append(
                    f"a change has been waiting for its {family} rules for {waiting:.0f} s"
                )
        age = self._inputs.staleness_s() if self._inputs is not None else None
        told = (
            tuple(reasons),
            self._is_node_leaving(),
            self._timing.health_timeout_s,
            self._damage.warnings(now),
        )
        return ProxyHealth(not reasons, self._gate.is_set(), families, age, *told)

    async def unanswered(self) -> str:
        """Why what we know may be old: a sentence; "" if the API server answers.  Takes up to
        *api_timeout_s*.
        """
        return "" if self._inputs is None else await self._inputs.unanswered()

    def note_progress(self) -> None:
        """``progress`` is told what the planes know: before it is looked at."""
        for plane in self._planes:
            if plane.schedule.freshness.pending_since is None:
                self.progress.on_idle(plane.family)
        self.progress.on_asked(last_asked(self._consequences.values()), self._clock())
        health = self.health()
        self.progress.on_problems(health.reasons + health.warnings)
        self.progress.on_inputs(health.input_staleness_s or 0.0, self._clock())

    def catch_up(self, wanted: Mapping[Place, int]) -> None:
        """Slices of all Services bring news soon enough."""

    def versions(self, resource: str) -> dict[str, dict[str, str]]:
        """Versions of what is held of *resource* (its key), by reading and key."""
        held = self._inputs.versions(resource) if self._inputs is not None else {}
        return {
            self._reading(resource, selection): versions for selection, versions in held.items()
        }

    async def differences(self) -> tuple[str, ...]:
        """Where the kernel is not as this proxy believes, a phrase each.  Raises
        ``KernelError``.
        """
        return tuple(
            [
                f"{plane.family}: {text}"
                for plane in self._planes
                for text in await look(self._backend, plane)
            ]
        )

    def refused(self) -> str:
        """What ``unanswered`` says where the reason is a right or an API that is missing; ""
        otherwise.
        """
        return "" if self._inputs is None else self._inputs.refused()

    def _on_port_failed(self, key: ServiceKey, why: str) -> None:
        """Tells the owner of the Service in an Event."""
        service = self._inputs.service(str(key)) if self._inputs is not None else None
        if service is None or self._events is None:
            return
        note = EventNote(
            regarding=service,
            regarding_resource=Services,
            type="Warning",
            reason=FAILED,
            note=f"{self._node_name}: {why}",
            component="kube-proxy",
            action="Listen",
        )
        self._events.record(note)

    def _is_node_leaving(self) -> bool:
        node = self._node_seen
        if node is None:
            return False
        tainted = any(taint.key == TAINT_TO_BE_DELETED for taint in node.spec.taints or ())
        return tainted or node.metadata.deletion_timestamp is not None

    def counts(self) -> dict[Family, tuple[int, int]]:
        """For each family: Services served, transactions written."""
        return {
            plane.family: (len(plane.tracker.services()), plane.writes) for plane in self._planes
        }

    async def _open_gate(self) -> None:
        await self._gate.wait()
        try:
            async with asyncio.timeout(self._timing.node_grace_s):
                await self._node.wait()
        except TimeoutError:
            if Nodes.key in self._missing:
                _log.warning("node unknown so far, zone hints are ignored until it is")
        await self._claims.known(self._timing.node_grace_s)
        if self._inputs is not None:
            await self._inputs.complete()
        await self._look_at_addresses()
        for plane in self._planes:
            plane.on_synced(self._clock())
        self._wake_all()

    async def _look_at_addresses(self) -> None:
        if not self._rules.node_port_addresses or PRIMARY in self._rules.node_port_addresses:
            return
        addresses = await self._host_addresses()
        if addresses is None:
            return
        for plane in self._planes:
            plane.on_interfaces(
                tuple(ip for ip in addresses if (":" in ip) == (plane.family == "IPv6")),
                self._clock(),
            )
        self._wake_all()

    async def _look_around(self) -> None:
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(self._timing.look_period_s):
                    await self._doubt.wait()
            self._doubt.clear()
            await self._look_at_addresses()
            if self._backend.disturbed():
                self._suspects.update(self._wake)
            for plane in self._planes:
                await self._look_at_rules(plane)

    async def _look_at_rules(self, plane: AnyNodePlane) -> None:
        if plane.written_whole_at is None:
            return
        try:
            present = await self._backend.holds(plane)
        except KernelError:
            return  # the next write says what is wrong
        now = self._clock()
        period_s = (
            self._timing.suspect_period_s
            if plane.family in self._suspects
            else WHOLE_TABLE_PERIOD_S
        )
        if not present:
            if not self._damage.on_gone(plane.family, now):
                return  # being written, or refused: the back-off counts
            _log.warning("our rules are gone, they are written anew", family=plane.family)
            self.reports_wanted.set()
        elif now - plane.written_whole_at < period_s:
            return
        if plane.on_doubt(now):
            self._suspects.discard(plane.family)
            self._wake[plane.family].set()

    async def _write(self, plane: AnyNodePlane) -> None:
        wake = self._wake[plane.family]
        while True:
            wake.clear()
            deadline = plane.schedule.next_deadline()
            delay_s = None if deadline is None else deadline - self._clock()
            if delay_s is not None and delay_s <= 0:
                await self._write_once(plane)
                continue
            with suppress(TimeoutError):
                async with asyncio.timeout(delay_s):
                    await wake.wait()

    async def _write_once(self, plane: AnyNodePlane) -> None:
        started = self._clock()
        wanted_since = plane.schedule.pending_since
        self.progress.on_taken(plane.family, plane.tracker.portions.number + 1)
        if plane.rules.needs_full:
            await self._backend.prepare(plane)
        transaction = plane.take_transaction(started)
        self.metrics.on_taken(plane.family, wanted_since)
        if transaction is None:
            self._on_held(plane)
            await self._consequences[plane.family].on_written(full=False)
            return
        failed = True
        try:
            await self._backend.write(plane, transaction)
            failed = False
        except KernelError as error:
            self._refusals[plane.family] = str(error)
            plane.on_failure(self._clock())
            self.reports_wanted.set()
            await self._look_at_rules(plane)  # before the next try brings them back
            self._doubt.set()  # what befell this table may have befallen the other one
            failures = plane.schedule.freshness.failures
            self.record.refused(plane.family, str(error), self._clock())
            _log.error(
                "rules not written",
                family=plane.family,
                reason=error.reason,
                error=str(error),
                failures=failures,
            )
            return
        finally:
            seconds = self._clock() - started
            self.metrics.on_write(plane.family, seconds, full=transaction.full, failed=failed)
        plane.on_success(self._clock())
        self.record.written(plane.family, transaction.size, self._clock(), full=transaction.full)
        if transaction.full and self._damage.on_whole(plane.family, self._clock()):
            times = self._damage.times(plane.family)
            self.metrics.on_put_back(plane.family, times)
            _log.info("our rules were gone and are back", family=plane.family, times=times)
            self.reports_wanted.set()
        self._on_held(plane)
        self._written[plane.family].set()
        await self._consequences[plane.family].on_written(full=transaction.full)
        _log.debug(
            "rules written",
            family=plane.family,
            full=transaction.full,
            commands=transaction.size,
            seconds=round(self._clock() - started, 4),
        )

    def _on_held(self, plane: AnyNodePlane) -> None:
        """The kernel has what was taken, perhaps but for portions of large Services: of these, what
        was complete before they began to wait.
        """
        self.progress.on_written(plane.family, plane.tracker.portions.complete)
        self.held_more.set()
        if self.progress.asked:
            self.reports_wanted.set()
        if plane.tracker.newly_unserved:
            self._claims.tell(plane)

    def _wake_all(self) -> None:
        for wake in self._wake.values():
            wake.set()


def available_families() -> tuple[Family, ...]:
    """Both, unless this kernel has no IPv6 at all.  Which ones the Node uses does not matter."""
    return FAMILIES if os.path.exists("/proc/net/if_inet6") else ("IPv4",)
