"""A plane for tests of the EndpointSlice controller: one Service on one node, and the Pods a test
gives it.
"""

from __future__ import annotations

from tests.slices.fake_cluster import FakeCluster, make_node, make_service

from sliceplane.api.core import Pod
from sliceplane.api.discovery import (
    EndpointSlice,
)
from sliceplane.controllers.endpointslice import EndpointSliceConfig, EndpointSliceController
from sliceplane.watch.controller.base import Job


class Plane:
    def __init__(self, *pods: Pod, config: EndpointSliceConfig | None = None) -> None:
        self.cluster = FakeCluster()
        self.cluster.put(make_node("n0", "a"))
        self.cluster.put(make_service())
        for pod in pods:
            self.cluster.put(pod)
        self.controller = EndpointSliceController(config)
        self.now = 1000.0
        self.cluster.start(self.controller, self.now)

    def settle(self) -> list[str]:
        """Notes of events on the way."""
        self.now, notes = self.cluster.settle(self.controller, self.now)
        return [note.note for note in notes]

    def deliver(self) -> None:
        self.cluster.deliver(self.controller, self.now)

    def jobs(self, seconds: float = 0.0) -> tuple[Job, ...]:
        self.now += seconds
        return self.controller.take_work(self.now, 10).jobs

    def addresses(self) -> list[str]:
        return sorted(each.addresses[0] for each in self.cluster.endpoints())

    def slice(self) -> EndpointSlice:
        (only,) = self.cluster.slices()
        return only
