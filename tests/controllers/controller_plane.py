"""One controller over the fake API server: the base of planes for tests."""

from __future__ import annotations

from tests.slices.fake_cluster import FakeCluster

from sliceplane.api.meta import Object
from sliceplane.watch.controller.base import Controller, Job


class ControllerPlane:
    """A subclass says in ``make`` which controller runs."""

    controller: Controller

    def __init__(self, *objects: Object) -> None:
        self.cluster = FakeCluster()
        for each in objects:
            self.cluster.put(each)
        self.now = 1000.0
        self.begin()

    def make(self) -> Controller:
        raise NotImplementedError

    def begin(self) -> None:
        """Starts the controller, or another life of it."""
        self.controller = self.make()
        self.cluster.start(self.controller, self.now)

    def settle(self) -> list[str]:
        """Runs until nothing is due, and returns the Events on the way."""
        self.now, notes = self.cluster.settle(self.controller, self.now)
        return [f"{note.type} {note.reason}: {note.note}" for note in notes]

    def deliver(self) -> None:
        self.cluster.deliver(self.controller, self.now)

    def jobs(self, seconds: float = 0.0) -> tuple[Job, ...]:
        self.now += seconds
        return self.controller.take_work(self.now, 10).jobs

    def verbs(self) -> list[str]:
        return [write.verb for write in self.cluster.writes]
