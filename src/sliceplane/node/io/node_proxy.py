"""The node proxy's shell: informers feed the planes, and a ``writer`` writes their transactions.

The informers report events synchronously (``on_change``), which only mark Services; the tasks of the
writer then write the marked ones. So a burst is one transaction.

**Gate.**  Nothing is written before Services and EndpointSlices were listed. The node's zone decides
which endpoints to use, so the first write also waits for its Node (and the ranges of cluster IPs),
but not for long: a node that is not registered gets rules too.

**After a write** the proxy executes its ``side_effects``: health ports, metrics, UDP flows.

**Exit** retains the rules, so that traffic continues while the proxy is upgraded. ``cleanup`` removes
them.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Mapping

from sliceplane.api.core import Endpoints, Node, Service, ServiceCIDR
from sliceplane.api.discovery import LABEL_HEADLESS, LABEL_SERVICE_PROXY_NAME, EndpointSlice
from sliceplane.api.gates import ENDPOINT_SLICE_SUBSETTING, Gates
from sliceplane.api.meta import Object
from sliceplane.api.scheme import EndpointSlices, EndpointsObjects, Nodes, ServiceCIDRs, Services
from sliceplane.consume.model import ServiceKey
from sliceplane.consume.progress import Progress, Scope
from sliceplane.consume.selections import (
    ALL,
    Union,
    common_selector,
    name_selection,
    own_selectors,
    reads_slices,
)
from sliceplane.consume.slicecache import differences
from sliceplane.kit.io.log import get_logger
from sliceplane.kit.ip import FAMILIES, Family
from sliceplane.kit.rng import Rng
from sliceplane.node.context import PRIMARY
from sliceplane.node.demand import ServiceDemand
from sliceplane.node.io.claims import ALL_NODES, ProxyClaims
from sliceplane.node.io.flow_counter import FlowCounter
from sliceplane.node.io.healthz import ProxyHealth
from sliceplane.node.io.inputs import COMMON, Changes, InputHandlers, Inputs, SharedConsumer
from sliceplane.node.io.kernel.backend import AnyBackend, find_differences
from sliceplane.node.io.metrics import ProxyMetrics, ProxyRecord
from sliceplane.node.io.options import HostAccess, ProxyConfig
from sliceplane.node.io.side_effects import FAILED, SideEffects, last_health_requests
from sliceplane.node.io.writer import ProxyReports, RulesWriter
from sliceplane.node.plane import AnyNodePlane
from sliceplane.watch.cache import Change, Mark
from sliceplane.watch.controller.base import EventNote, Selection
from sliceplane.watch.io.base import Client
from sliceplane.watch.io.events import EventRecorder

#: set by the autoscaler on a Node that it is about to delete
TAINT_TO_BE_DELETED = "ToBeDeletedByClusterAutoscaler"

_log = get_logger("node-proxy")


def watches(node_name: str, gates: Gates) -> tuple[Selection, ...]:
    """Returns the selections that a node proxy watches from start to end (upstream:
    ``cmd/kube-proxy/app/server.go``): the server filters out all other objects.
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


class NodeProxy:
    """One event loop calls ``on_change`` and ``on_synced``; ``run`` writes the rules until it is
    cancelled. *consumer* also receives the objects that the proxy reads.
    """

    def __init__(
        self,
        config: ProxyConfig,
        backend: AnyBackend,
        host: HostAccess = HostAccess(),  # noqa: B008  # it is frozen
        *,
        record: ProxyRecord | None = None,
        consumer: SharedConsumer | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._config = config
        self._host = host
        self._clock = clock
        self._consumer = consumer
        self._backend = backend
        self.mode: str = backend.mode
        self.watches = watches(config.node_name, config.gates)
        self._endpoints_key = self.watches[1].resource.key
        timing = config.timing
        self.metrics = ProxyMetrics(backend.mode, backend.writes_by_transport)
        self.progress = Progress(
            config.node_name,
            config.families,
            changed_period_s=timing.lease_changed_period_s,
            idle_period_s=timing.lease_idle_period_s,
        )
        self.demand = ServiceDemand(config.families)
        self._reports = ProxyReports(self.progress, self.metrics, record or ProxyRecord())
        #: events that ``consume.io.reporting`` waits for
        self.report_due = self._reports.report_due
        self.revision_applied = self._reports.revision_applied
        self._flows = FlowCounter(self, host.count_flows, clock)
        plane_config = config.for_plane(clock())
        self._planes: tuple[AnyNodePlane, ...] = tuple(
            backend.plane(family, plane_config) for family in config.families
        )
        self._side_effects = {
            plane.family: self._create_side_effects(plane) for plane in self._planes
        }
        self._writer = RulesWriter(
            backend, self._planes, self._side_effects, self._reports, timing=timing, clock=clock
        )
        self._claims = ProxyClaims(self._planes, clock=clock, wake=self._writer.wake)
        self._missing = {watched.resource.key for watched in self.watches}
        self._gate = asyncio.Event()  # Services and EndpointSlices were listed
        self._node = asyncio.Event()  # the Node and ServiceCIDRs were listed
        self._observed_node: Node | None = None
        self._union = Union() if config.gates.enabled(ENDPOINT_SLICE_SUBSETTING) else None
        self._inputs: Inputs | None = None
        self._events: EventRecorder | None = None

    def _create_side_effects(self, plane: AnyNodePlane) -> SideEffects:
        return SideEffects(
            plane,
            self.metrics,
            self._host,
            healthy=lambda: self.health().healthy,
            on_port_failed=self._on_port_failed,
            clock=self._clock,
            flows_retry_s=self._config.timing.flows_retry_s,
        )

    @property
    def reads_slices(self) -> bool:
        """Returns True if the proxy reads EndpointSlices and not Endpoints; only then ``progress`` is
        meaningful.
        """
        return self._endpoints_key == EndpointSlices.key

    def on_change(self, change: Change[Object], selection: str = COMMON) -> None:
        """Handles a change of an object of ``watches``, or of another *selection* of slices."""
        now = self._clock()
        self._reports.record.change(change, now)
        if selection == ALL_NODES:
            self._claims.on_node(change)
            self._writer.wake()
            return
        match change.old, change.new:
            case (Service() | None as old, Service() | None as new):
                self.metrics.on_service_change()
                for plane in self._planes:
                    plane.on_service(old, new, now)
                self.demand.on_service(old, new)
                self._claims.check_nodes()
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
        # Last, so that a change that the model could not handle is missing in the digest.
        self.progress.on_change(change, self._subset(change.resource, selection), now)
        self._reports.on_progress()
        self._flows.wake()
        self._writer.wake()

    def _subset(self, resource: str, selection: str) -> str:
        if resource != EndpointSlices.key:
            return ALL
        return name_selection(selection or self.watches[1].label_selector)

    def on_mark(self, resource: str, selection: str, mark: Mark | None) -> None:
        """Notes that all changes of *resource* (its key) in *selection* up to *mark* were delivered;
        ``None``: its informer starts.
        """
        if selection != ALL_NODES:
            self.progress.on_mark(resource, self._subset(resource, selection), mark)
            self.revision_applied.set()

    def _on_slice(self, old: EndpointSlice | None, new: EndpointSlice | None, now: float) -> None:
        self.metrics.on_endpoint_change()
        for plane in self._planes:
            plane.on_slice(old, new, now)

    def _on_node(self, node: Node | None, now: float) -> None:
        for plane in self._planes:
            plane.on_node(node, now)
        if node is not None:
            self._observed_node = node
            if self._inputs is not None:
                self._inputs.set_selectors(own_selectors(self._config.gates, node))

    def _on_dropped(self, selection: str) -> None:
        assert self._union is not None, "selections are for the gate alone"
        self.progress.on_dropped(EndpointSlices.key, self._subset(EndpointSlices.key, selection))
        for difference in self._union.drop(selection):
            self._on_slice(*difference, self._clock())
        self._writer.wake()

    def on_synced(self, resource: str) -> None:
        """Notes that the first list of *resource* (``Resource.key``) was delivered."""
        self._missing.discard(resource)
        if resource == Nodes.key and self._observed_node is None:
            # The warning shows a mistake in --hostname-override: rules are written as for a node
            # without a zone.
            _log.warning(
                "there is no Node of this name: no zone, no hints, no addresses of its own",
                node=self._config.node_name,
            )
        if not self._missing & {Nodes.key, ServiceCIDRs.key}:
            self._node.set()
        if not self._missing & {Services.key, self._endpoints_key}:
            self._gate.set()

    async def follow(self, client: Client, rng: Rng) -> None:
        """Runs informers over *client* and ``run``, until cancelled; the rules stay.  Callable
        once.
        """
        assert self._inputs is None, "this proxy follows a server already"
        self._inputs = Inputs(
            client,
            self.watches,
            InputHandlers(self._on_changes, self.on_mark, self.on_synced, self._on_dropped),
            clock=self._clock,
            rng=rng,
            timing=self._config.timing,
            consumer=self._consumer,
        )
        self._claims.follow(self._inputs, client)
        self._events = EventRecorder(client, clock=self._clock, instance=self._config.node_name)
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
                group.create_task(self._check_periodically(), name="node-proxy-tables")
                group.create_task(self._flows.run(), name="node-proxy-connections")
                for plane in self._planes:
                    group.create_task(self._writer.write(plane), name=f"node-proxy-{plane.family}")
                    group.create_task(
                        self._side_effects[plane.family].run(),
                        name=f"node-proxy-{plane.family}-flows",
                    )
        finally:
            for side_effects in self._side_effects.values():
                await side_effects.close()

    async def wait_ready(self, *, following: bool = False) -> None:
        """Waits until every family has been written once; *following*: and the server's watches are
        open.
        """
        await self._writer.wait_written()
        if following and self._inputs is not None:
            await self._inputs.followed()

    def health(self) -> ProxyHealth:
        now = self._clock()
        families = tuple((plane.family, plane.schedule.freshness) for plane in self._planes)
        reasons = []
        for family, freshness in families:
            waiting = freshness.staleness_s(now)
            if freshness.failures:
                reasons.append(f"{family} rules are not written: {self._writer.refusals[family]}")
            elif waiting > self._config.timing.health_timeout_s:
                reasons.append(
                    f"a change has been waiting for its {family} rules for {waiting:.0f} s"
                )
        age = self._inputs.staleness_s() if self._inputs is not None else None
        return ProxyHealth(
            not reasons,
            self._gate.is_set(),
            families,
            age,
            tuple(reasons),
            self._is_node_terminating(),
            self._config.timing.health_timeout_s,
            self._writer.warnings(now),
        )

    async def unanswered(self) -> str:
        """Returns why the caches may be out of date, as a sentence; "" if the API server answers.
        Takes up to ``probe_timeout_s``.
        """
        return "" if self._inputs is None else await self._inputs.unanswered()

    def note_progress(self) -> None:
        """Updates ``progress`` before it is read."""
        for plane in self._planes:
            if plane.schedule.freshness.pending_since is None:
                self.progress.on_idle(plane.family)
        self.progress.on_health_check_requests(
            last_health_requests(self._side_effects.values()), self._clock()
        )
        health = self.health()
        self.progress.on_problems(health.reasons + health.warnings)
        self.progress.on_inputs(health.input_staleness_s or 0.0, self._clock())

    def relist_if_behind(self, required: Mapping[Scope, int]) -> None:
        """Does nothing: the watch of all Services' slices always receives events soon."""

    def versions(self, resource: str) -> dict[str, dict[str, str]]:
        """Returns versions of cached objects of *resource* (its key), by selection and key."""
        cached = self._inputs.versions(resource) if self._inputs is not None else {}
        return {
            self._subset(resource, selection): versions for selection, versions in cached.items()
        }

    async def differences(self) -> tuple[str, ...]:
        """Returns a phrase for each difference between the kernel and the state that this proxy
        wrote.  Raises ``KernelError``.
        """
        return tuple(
            [
                f"{plane.family}: {text}"
                for plane in self._planes
                for text in await find_differences(self._backend, plane)
            ]
        )

    def refused(self) -> str:
        """Returns the sentence of ``unanswered`` if the reason is a missing right or API; ""
        otherwise.
        """
        return "" if self._inputs is None else self._inputs.refused()

    def _on_port_failed(self, key: ServiceKey, why: str) -> None:
        """Records an Event for the owner of the Service."""
        service = self._inputs.service(str(key)) if self._inputs is not None else None
        if service is None or self._events is None:
            return
        note = EventNote(
            regarding=service,
            regarding_resource=Services,
            type="Warning",
            reason=FAILED,
            note=f"{self._config.node_name}: {why}",
            component="kube-proxy",
            action="Listen",
        )
        self._events.record(note)

    def _is_node_terminating(self) -> bool:
        node = self._observed_node
        if node is None:
            return False
        tainted = any(taint.key == TAINT_TO_BE_DELETED for taint in node.spec.taints or ())
        return tainted or node.metadata.deletion_timestamp is not None

    def counts(self) -> dict[Family, tuple[int, int]]:
        """Returns for each family the numbers of Services served and transactions written."""
        return {
            plane.family: (len(plane.tracker.services()), plane.writes) for plane in self._planes
        }

    async def _open_gate(self) -> None:
        await self._gate.wait()
        try:
            async with asyncio.timeout(self._config.timing.node_grace_s):
                await self._node.wait()
        except TimeoutError:
            if Nodes.key in self._missing:
                _log.warning("node unknown so far, zone hints are ignored until it is")
        await self._claims.wait_nodes(self._config.timing.node_grace_s)
        if self._inputs is not None:
            await self._inputs.complete()
        await self._update_addresses()
        for plane in self._planes:
            plane.on_synced(self._clock())
        self._writer.wake()

    async def _update_addresses(self) -> None:
        listed = self._config.rules.node_port_addresses
        if not listed or PRIMARY in listed:
            return
        addresses = await self._host.addresses()
        if addresses is None:
            return
        for plane in self._planes:
            plane.on_interfaces(
                tuple(ip for ip in addresses if (":" in ip) == (plane.family == "IPv6")),
                self._clock(),
            )
        self._writer.wake()

    async def _check_periodically(self) -> None:
        while True:
            await self._writer.wait_check()
            await self._update_addresses()
            await self._writer.check_tables()


def available_families() -> tuple[Family, ...]:
    """Returns both families, unless this kernel has no IPv6.  The Node's families do not matter."""
    return FAMILIES if os.path.exists("/proc/net/if_inet6") else ("IPv4",)
