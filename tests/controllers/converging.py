"""Random histories of one controller over the fake API server: watches that lag and break, jobs
that fail, restarts. A subclass adds the rules of its world and compares at rest.
"""

from __future__ import annotations

from typing import ClassVar

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from tests.slices.fake_cluster import FakeCluster

from sliceplane.api.errors import StatusError, conflict, internal
from sliceplane.controllers.other_writers import KEY as OTHER_WRITERS
from sliceplane.watch.controller.base import Controller, Job

FAULTS = st.sampled_from((None, None, None, "refused", "conflict", "lost answer"))
ERRORS: dict[str | None, StatusError | None] = {
    None: None,
    "refused": internal("no"),
    "conflict": conflict("endpointslices", "discovery.k8s.io", "x", "no"),
    "lost answer": internal("connection reset"),
}


class ConvergingController(RuleBasedStateMachine):
    controller: Controller
    #: seconds until everything is due that the last events asked for
    sync_s: ClassVar[float] = 0.0
    #: index of the last write of a job that may fail
    last_write: ClassVar[int] = 2

    def __init__(self) -> None:
        super().__init__()
        self.now = 1000.0
        self.cluster = FakeCluster()
        self.flying: list[Job] = []

    def make(self) -> Controller:
        raise NotImplementedError

    def begin(self) -> None:
        self.controller = self.make()
        self.cluster.start(self.controller, self.now)

    def judge(self, job: Job) -> None:
        """Checks a job before any of its writes is made."""

    # -- the watch, the host, the process

    @rule(count=st.integers(1, 6))
    def deliver_some(self, count: int) -> None:
        self.cluster.deliver(self.controller, self.now, count)

    @rule()
    def relist(self) -> None:
        self.cluster.relist(self.controller, self.now)

    @rule(fault=FAULTS, at=st.integers(0, 2))
    def sync(self, fault: str | None, at: int) -> None:
        """All that is due, from the event to the answer."""
        self.cluster.deliver(self.controller, self.now)
        self.take(self.sync_s)
        while self.flying:
            self.job_ends(fault, at)

    @rule(fault=FAULTS, at=st.integers(0, 2))
    def sync_and_see(self, fault: str | None, at: int) -> None:
        self.sync(fault, at)
        self.cluster.deliver(self.controller, self.now)

    @rule(seconds=st.sampled_from((0.0, 2.0, 20.0, 40.0)))
    def take(self, seconds: float) -> None:
        self.now += seconds
        work = self.controller.take_work(self.now, 10)
        for job in work.jobs:
            assert job.key not in [other.key for other in self.flying], f"two jobs for {job.key}"
            if job.key != OTHER_WRITERS:  # a read
                self.judge(job)
        self.flying.extend(work.jobs)

    @precondition(lambda self: self.flying)
    @rule(fault=FAULTS, at=st.integers(0, 2))
    def job_ends(self, fault: str | None, at: int) -> None:
        done = self.cluster.run(
            self.flying.pop(0),
            fail_at=min(at, self.last_write),
            error=ERRORS[fault],
            lost=fault == "lost answer",
        )
        self.controller.on_done(done, self.now)

    @rule()
    def restart(self) -> None:
        self.flying.clear()
        self.begin()

    @invariant()
    def state_follows_from_its_inputs(self) -> None:
        self.controller.check()

    # -- at rest

    def settle(self) -> None:
        """Ends the jobs under way, and runs until nothing is due."""
        for job in self.flying:
            self.controller.on_done(self.cluster.run(job), self.now)
        self.now, _ = self.cluster.settle(self.controller, self.now)
