"""Merging under-filled slices: opt-in, at rest only, bounded in writes, moving as few endpoints as
possible.
"""

from __future__ import annotations

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st
from tests.controllers.test_subsetting_convergence import shown
from tests.slices.fake_cluster import FakeCluster, make_node, make_pod, make_service

from sliceplane.api.core import Pod
from sliceplane.api.meta import ObjectMeta
from sliceplane.api.scheme import Pods
from sliceplane.cli.main import main
from sliceplane.controllers.defragment import QUIET_S
from sliceplane.controllers.endpointslice import EndpointSliceConfig, EndpointSliceController
from sliceplane.slices.content import PortGroup, SliceState, Stored
from sliceplane.slices.packing.defragment import merge
from sliceplane.slices.subsets import Subsetting

MAX = 10


def pod(number: int, *, ready: bool = True) -> Pod:
    return make_pod(
        f"p-{number:03}", ips=(f"10.0.{number // 250}.{number % 250 + 1}",), ready=ready
    )


class Plane:
    """A service with slices of at most ten endpoints, of which *keep* of every ten are left."""

    def __init__(self, slices: int, keep: int, **config: object) -> None:
        options: dict[str, object] = {"defragment": True, **config}
        self.controller = EndpointSliceController(
            EndpointSliceConfig(max_endpoints_per_slice=MAX, **options)
        )  # type: ignore[arg-type]  # checked by the class
        self.cluster = FakeCluster()
        self.cluster.put(make_node("n0", "a"))
        self.cluster.put(make_service())
        for number in range(slices * MAX):
            self.cluster.put(pod(number))
        self.now = 1000.0
        self.cluster.start(self.controller, self.now)
        self.sync()
        for number in range(slices * MAX):
            if number % MAX >= keep:
                self.cluster.remove(Pods, "shop", f"p-{number:03}")
        self.sync()
        self.cluster.writes.clear()

    def sync(self) -> list[str]:
        """Everything that is due now; gives the verbs."""
        before = len(self.cluster.writes)
        while True:
            self.cluster.deliver(self.controller, self.now)
            jobs = self.controller.take_work(self.now, 10).jobs
            for job in jobs:
                self.controller.on_done(self.cluster.run(job), self.now)
            self.controller.check()
            if not jobs and not self.cluster.pending:
                return [write.verb for write in self.cluster.writes[before:]]

    def wait(self, seconds: float) -> list[str]:
        """The verbs of all writes until then."""
        end, verbs = self.now + seconds, []
        while (deadline := self.controller.next_deadline()) is not None and deadline <= end:
            self.now = max(self.now, deadline)
            verbs += self.sync()
        self.now = end
        return verbs

    def fills(self) -> list[int]:
        return sorted(len(each.endpoints or ()) for each in self.cluster.slices())

    def saved(self) -> float:
        found = {each.name: each for each in self.controller.samples(self.now)}
        (sample,) = found["sliceplane_endpoint_slices_saved_total"].samples
        assert isinstance(sample.value, (int, float))
        return sample.value


def test_off_by_default() -> None:
    plane = Plane(3, 2, defragment=False)
    assert plane.wait(3600.0) == []
    assert plane.fills() == [2, 2, 2]
    assert plane.controller.next_deadline() is None


def test_a_quiet_service_gets_as_few_slices_as_it_needs() -> None:
    plane = Plane(3, 2)
    assert plane.wait(QUIET_S - 1.0) == []
    assert plane.wait(2.0) == ["update", "delete", "delete"]
    assert plane.fills() == [6]
    assert plane.saved() == 2
    assert plane.wait(3600.0) == []


def test_a_service_that_changes_is_left_alone() -> None:
    plane = Plane(3, 2)
    for turn in range(10):
        assert plane.wait(QUIET_S - 5.0) == []
        plane.cluster.put(pod(0, ready=bool(turn % 2)))
        assert plane.sync() == ["update"]
    assert plane.fills() == [2, 2, 2]
    assert plane.wait(QUIET_S + 5.0) == ["update", "delete", "delete"]


def test_nothing_moves_where_no_slice_is_saved() -> None:
    plane = Plane(3, 7)
    assert plane.wait(3600.0) == []
    assert plane.fills() == [7, 7, 7]


def test_writes_are_bounded() -> None:
    """Forty slices of two become eight: 32 deletes, and an update for each ten endpoints that are
    moved together.
    """
    plane = Plane(40, 2, defragment_writes_per_minute=6)
    plane.wait(QUIET_S)
    for minute in range(1, 30):
        plane.wait(60.0)
        assert len(plane.cluster.writes) <= 6 * (minute + 2)
    assert plane.fills() == [10] * 8
    assert plane.saved() == 32


def test_a_step_that_costs_more_than_a_minute_is_made_too() -> None:
    plane = Plane(2, 2, defragment_writes_per_minute=1)
    assert plane.wait(QUIET_S + 1.0) == ["update", "delete"]


def test_a_new_process_waits_and_goes_on() -> None:
    plane = Plane(3, 2, defragment=False)
    plane.controller = EndpointSliceController(
        EndpointSliceConfig(max_endpoints_per_slice=MAX, defragment=True)
    )
    plane.cluster.start(plane.controller, plane.now)
    assert plane.sync() == []
    assert plane.wait(QUIET_S - 1.0) == []
    assert plane.wait(2.0) == ["update", "delete", "delete"]


def test_subsets_are_not_mixed() -> None:
    plane = Plane(3, 2, subsetting=Subsetting.REQUIRE_ZONE)
    plane.cluster.put(make_node("n1", "b"))
    plane.cluster.put(make_pod("p-999", ips=("10.9.9.9",), node="n1"))
    plane.wait(3600.0)
    assert plane.fills() == [1, 6]


def test_no_endpoint_is_missing_at_any_time() -> None:
    plane = Plane(5, 3)
    every = set().union(*map(shown, plane.cluster.slices()))
    plane.now += QUIET_S
    plane.cluster.deliver(plane.controller, plane.now)
    (job,) = plane.controller.take_work(plane.now, 1).jobs
    for write in job.writes:
        plane.cluster.perform(write)
        assert every <= set().union(*map(shown, plane.cluster.slices())), (
            f"after {write.verb} {write.name}"
        )
    assert plane.fills() == [5, 10] or plane.fills() == [6, 9], plane.fills()


@given(
    fills=st.lists(st.integers(1, 12), min_size=1, max_size=12),
    most=st.integers(0, 30),
    at_least_one=st.booleans(),
)
def test_any_slices_are_merged_well(fills: list[int], most: int, at_least_one: bool) -> None:
    """Nothing lost, nothing doubled, within the bound; with enough writes there are as few slices
    as can be.
    """
    group = PortGroup(())
    slices = [
        SliceState(
            Stored(
                ObjectMeta(name=f"s{n:02}"),
                "IPv4",
                (),
                {f"p-{n}-{k} ip": b"{}" for k in range(count)},
            ),
            group,
        )
        for n, count in enumerate(fills)
    ]
    plan = merge(slices, MAX, most, at_least_one=at_least_one)
    contents = {each.name: dict(each.server) for each in slices}
    for update in plan.updates:
        assert contents[update.slice.name].items() < update.content.items(), "a receiver only gains"
        assert len(update.content) <= MAX
        contents[update.slice.name] = update.content
    for each in plan.deletes:
        del contents[each.name]
    listed = [identity for content in contents.values() for identity in content]
    assert len(listed) == len(set(listed)) == sum(fills)
    writes = len(plan.updates) + len(plan.deletes)
    assert bool(plan.updates) == bool(plan.deletes), "no endpoint moves for nothing"
    assert writes <= most or (at_least_one and len(plan.deletes) == 1)
    if most == 30 and max(fills) <= MAX:
        assert len(contents) == -(-sum(fills) // MAX)
        moved = sum(len(each.server) for each in plan.deletes)
        assert moved == sum(sorted(fills)[: len(plan.deletes)]), "the least that can be moved"


def test_a_bound_without_defragmentation_is_wrong_usage() -> None:
    for command in ("up", "controllers"):
        done = CliRunner().invoke(main, [command, "--defragment-writes-per-minute", "5"])
        assert done.exit_code == 64
        assert "--defragment-writes-per-minute bounds --defragment; add it" in " ".join(
            done.output.split()
        )
    with pytest.raises(ValueError, match="must be positive, not 0"):
        EndpointSliceConfig(defragment_writes_per_minute=0)
