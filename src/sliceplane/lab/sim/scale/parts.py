"""The controller and the sampled nodes as processes whose work takes time."""

from __future__ import annotations

from collections import deque
from typing import Final

from sliceplane.api.core import Node, Service
from sliceplane.api.discovery import LABEL_SERVICE_PROXY_NAME, EndpointSlice
from sliceplane.api.gates import Gates
from sliceplane.api.meta import Object
from sliceplane.api.requests import Selection
from sliceplane.api.scheme import EndpointSlices, Services
from sliceplane.consume.selections import common_selector
from sliceplane.controllers.endpointslice import EndpointSliceController
from sliceplane.kit.rng import Rng
from sliceplane.lab.sim.network import Actor
from sliceplane.lab.sim.process import Process
from sliceplane.lab.sim.scale.front import ScaleNetwork
from sliceplane.lab.sim.scale.measures import ScaleMeasures
from sliceplane.lab.sim.scale.plan import ScalePlan
from sliceplane.lab.sim.scheduler import Alarm, Callback
from sliceplane.lab.sim.streams import informers_of
from sliceplane.node.nft.table import nft_plane
from sliceplane.node.plane import NodePlaneConfig
from sliceplane.watch.cache import Change
from sliceplane.watch.controller.base import Job
from sliceplane.watch.controller.loop import JobRun

SLICES: Final = Selection(EndpointSlices, label_selector=common_selector(Gates()))
SERVICES: Final = Selection(
    Services, label_selector=f"!{LABEL_SERVICE_PROXY_NAME}", field_selector="spec.clusterIP!=None"
)


class BusyProcess(Process):
    """The EndpointSlice controller: events wait in an inbox until its processor is free."""

    def __init__(
        self, plan: ScalePlan, network: ScaleNetwork, rng: Rng, measures: ScaleMeasures
    ) -> None:
        self.slices = EndpointSliceController(plan.controller)
        super().__init__("endpointslice", lambda: self.slices, network, rng)
        self._costs = plan.costs
        self._measures = measures
        self._inbox: deque[Callback] = deque()
        self._handling = False
        self._spent_s = 0.0
        self.busy_s = 0.0

    @property
    def waiting(self) -> int:
        """The number of events that arrived and were not handled yet."""
        return len(self._inbox)

    @property
    def idle(self) -> bool:
        return not (self._inbox or self._handling or self._loop.in_flight or self.slices.waiting)

    def _receive(self, callback: Callback) -> None:
        self._inbox.append(callback)
        if not self._handling:
            self._handling = True
            self._scheduler.after(0.0, self._handle_next)

    def _handle_next(self) -> None:
        self._spent_s = 0.0
        self._inbox.popleft()()
        self.busy_s += self._spent_s
        if self._inbox:
            self._scheduler.after(self._spent_s, self._handle_next)
        elif self._spent_s:
            self._scheduler.after(self._spent_s, self._rest)
        else:
            self._handling = False

    def _rest(self) -> None:
        if self._inbox:
            self._handle_next()
        else:
            self._handling = False

    def _on_changes(self, changes: tuple[Change[Object], ...]) -> None:
        self._spent_s += len(changes) * self._costs.controller_event_s
        super()._on_changes(changes)

    def _begin(self, job: Job) -> None:
        self._measures.on_plan(job.key, self._scheduler.now)
        super()._begin(job)

    def _continue(self, run: JobRun) -> None:
        if run.next_write is not None:
            self._spent_s += self._costs.controller_write_s
        super()._continue(run)


class SampledNode(Actor):
    """A node proxy with informers, tracker, rules and their transactions; only the kernel is
    missing.
    """

    def __init__(self, node: Node, plan: ScalePlan, network: ScaleNetwork, rng: Rng) -> None:
        super().__init__(f"proxy-{node.metadata.name}", network)
        self.plane = nft_plane("IPv4", NodePlaneConfig(node_name=node.metadata.name))
        self.synced = False
        self.commands = 0
        self._node = node
        self._write_s = plan.costs.node_write_s
        self._measures = network.scale.measures
        #: revisions of slices in the next transaction
        self._waiting: list[int] = []
        self._alarm = Alarm(self._scheduler, self._commit_rules)
        self._informers = informers_of(
            (SERVICES, SLICES),
            network,
            rng,
            receive=self._receive,
            deliver=self._on_changes,
            on_synced=self._on_synced,
            on_mark=lambda _: None,
        )

    def start(self) -> None:
        self.plane.on_node(self._node, self._scheduler.now)
        for informer in self._informers:
            informer.start()

    @property
    def idle(self) -> bool:
        return self.synced and not self._waiting and not self.plane.schedule.running

    @property
    def versions(self) -> dict[str, str]:
        """The versions of cached slices by key."""
        cache = self._informers[1].reflector.cache
        return {item.metadata.key: item.metadata.resource_version for item in cache}

    def _on_changes(self, changes: tuple[Change[Object], ...]) -> None:
        now = self._scheduler.now
        for change in changes:
            match change.object:
                case Service():
                    self.plane.on_service(*change.typed(Service), now)
                case EndpointSlice() as subject:
                    self.plane.on_slice(*change.typed(EndpointSlice), now)
                    self._waiting.append(int(subject.metadata.resource_version))
        self._alarm.set(self.plane.schedule.next_deadline())

    def _on_synced(self) -> None:
        self.synced = True
        self.plane.on_synced(self._scheduler.now)
        self._alarm.set(self.plane.schedule.next_deadline())

    def _commit_rules(self) -> None:
        now = self._scheduler.now
        if self.plane.schedule.due(now):
            waiting, self._waiting = self._waiting, []
            transaction = self.plane.take_transaction(now)
            if transaction is None:
                self._measures.on_kernel(waiting, now)
            else:
                self.commands += transaction.size
                self._scheduler.after(self._write_s, lambda: self._written(waiting))
                return
        self._alarm.set(self.plane.schedule.next_deadline())

    def _written(self, waiting: list[int]) -> None:
        now = self._scheduler.now
        self.plane.on_success(now)
        self._measures.on_kernel(waiting, now)
        self._alarm.set(self.plane.schedule.next_deadline())
