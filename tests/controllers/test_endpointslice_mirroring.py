"""The mirroring controller between a lagging cache and a failing server: what users were bitten by,
hosts rely on.
"""

from __future__ import annotations

import pytest
from tests.controllers.mirrored_plane import SKIPPED, Plane, custom, subset
from tests.slices.fake_cluster import FakeCluster, make_service, replace

from sliceplane.api.core import EndpointAddress, EndpointSubset
from sliceplane.api.errors import StatusError, forbidden, internal
from sliceplane.api.meta import ObjectReference
from sliceplane.api.scheme import EndpointSlices, EndpointsObjects, Services
from sliceplane.controllers.endpointslice_mirroring import (
    FIRST_SYNC_TIMEOUT_S,
    EndpointSliceMirroringController,
    MirroringConfig,
)
from sliceplane.controllers.service_syncs import MAX_RETRIES, PLANS_PER_TURN, FirstSync
from sliceplane.watch.controller.base import Done
from sliceplane.watch.controller.own_writes import PENDING_TIMEOUT_S

# Caches, answers, failures


def test_restart_with_everything_in_place_writes_nothing() -> None:
    target = ObjectReference(kind="VM", name="vm", resource_version="3")
    with_target = EndpointSubset(
        addresses=(EndpointAddress(ip="192.0.2.8", target_ref=target, node_name=""),)
    )
    plane = Plane(
        custom(
            subset("192.0.2.1", "2001:db8::1"),
            with_target,
            annotations={"a": "b"},
            labels={"c": "d"},
        )
    )
    plane.settle()
    before = len(plane.verbs())
    plane.begin()
    plane.settle()
    assert len(plane.verbs()) == before


def test_own_create_that_the_cache_does_not_show_is_not_repeated() -> None:
    """kubernetes/kubernetes#93374."""
    plane = Plane(custom())
    (job,) = plane.jobs()
    plane.controller.on_done(plane.cluster.run(job), plane.now)
    held, plane.cluster.pending = plane.cluster.pending, []
    plane.cluster.put(custom(subset("192.0.2.1", "192.0.2.2")))
    plane.deliver()
    (job,) = plane.jobs()
    assert [write.verb for write in job.writes] == ["update"]
    plane.controller.on_done(plane.cluster.run(job), plane.now)
    plane.cluster.pending[:0] = held
    plane.settle()
    assert plane.verbs() == ["create", "update"]


def test_create_that_was_deleted_before_its_answer_came_is_made_again() -> None:
    plane = Plane(custom())
    (job,) = plane.jobs()
    done = plane.cluster.run(job)
    plane.cluster.remove(EndpointSlices, "shop", plane.one().metadata.name)
    plane.deliver()
    plane.controller.on_done(done, plane.now)
    assert len(plane.jobs()) == 1


def test_create_that_went_unseen_is_given_up_in_time() -> None:
    plane = Plane(custom())
    (job,) = plane.jobs()
    plane.controller.on_done(plane.cluster.run(job), plane.now)
    plane.cluster.remove(EndpointSlices, "shop", plane.one().metadata.name)
    plane.cluster.pending.clear()
    start = plane.now
    plane.settle()
    assert len(plane.slices()) == 1
    assert plane.now - start >= PENDING_TIMEOUT_S


def test_after_a_conflict_nothing_is_written_before_the_cache_caught_up() -> None:
    """kubernetes/kubernetes#127429's case for mirrored slices."""
    plane = Plane(custom())
    plane.settle()
    plane.cluster.put(replace(plane.one(), endpoints=()))
    held = plane.cluster.pending.pop()
    plane.cluster.put(custom(subset("192.0.2.2")))
    plane.deliver()
    (job,) = plane.jobs()
    plane.controller.on_done(plane.cluster.run(job), plane.now)
    assert plane.jobs(1.0) == ()
    plane.cluster.pending.append(held)
    plane.settle()
    assert plane.shown() == {("IPv4", (80,)): ["192.0.2.2"]}


def test_conflict_without_news_is_tried_again_in_the_end() -> None:
    plane = Plane(custom())
    plane.settle()
    plane.cluster.put(custom(subset("192.0.2.2")))
    plane.deliver()
    (job,) = plane.jobs()
    plane.controller.on_done(Done(job, (), StatusError(409, "Conflict", "no reason")), plane.now)
    plane.settle()
    assert plane.shown() == {("IPv4", (80,)): ["192.0.2.2"]}


def test_deletion_that_only_a_relist_tells_of_converges() -> None:
    """cilium#48050."""
    plane = Plane(custom())
    plane.settle()
    plane.cluster.remove(EndpointsObjects, "shop", "web")
    plane.cluster.relist(plane.controller, plane.now)
    plane.settle()
    assert plane.slices() == []


def test_failures_back_off_to_a_hundred_seconds_and_are_given_up_after_fifteen() -> None:
    plane = Plane(custom())
    delays = []
    for _ in range(MAX_RETRIES + 1):
        (job,) = plane.jobs()
        plane.controller.on_done(Done(job, (), internal("disk full")), plane.now)
        deadline = plane.controller.next_deadline()
        if deadline is not None:
            delays.append(round(deadline - plane.now))
            plane.now = deadline
    assert delays == [1, 2, 4, 8, 16, 32, 64, *[100] * (MAX_RETRIES - 7)]
    plane.put(custom(subset("192.0.2.2")))
    assert plane.shown() == {("IPv4", (80,)): ["192.0.2.2"]}


def test_terminating_namespace_ends_a_sync_without_a_word() -> None:
    plane = Plane(custom())
    (job,) = plane.jobs()
    cause = {"reason": "NamespaceTerminating", "message": "x", "field": "metadata.namespace"}
    error = forbidden("endpointslices", "discovery.k8s.io", "", "x", [cause])
    plane.controller.on_done(Done(job, (), error), plane.now)
    work = plane.controller.take_work(plane.now, 10)
    assert (work.jobs, work.notes, plane.controller.next_deadline()) == ((), (), None)


def test_slice_changes_wait_for_the_batch_period_and_others_do_not() -> None:
    plane = Plane(custom(), config=MirroringConfig(endpointslice_updates_batch_period_s=5.0))
    plane.settle()
    plane.cluster.remove(EndpointSlices, "shop", plane.one().metadata.name)
    plane.deliver()
    assert plane.jobs(4.0) == ()
    assert len(plane.jobs(1.5)) == 1
    plane.cluster.put(custom(subset("192.0.2.2"), name="other"))
    plane.cluster.put(make_service("other", selector=None))
    plane.deliver()
    assert len(plane.jobs()) == 1


# The start


def test_nothing_is_mirrored_before_the_endpoints_controllers_first_sync() -> None:
    first_sync = FirstSync()
    first_sync.begin()
    controller = EndpointSliceMirroringController(None, first_sync)
    cluster = FakeCluster()
    cluster.put(make_service(selector=None))
    cluster.put(custom())
    cluster.start(controller, 1000.0)
    assert controller.take_work(1000.0, 10).jobs == ()
    deadline = controller.next_deadline()
    assert deadline is not None
    assert controller.take_work(deadline, 10).jobs == ()
    first_sync.end()
    assert len(controller.take_work(deadline, 10).jobs) == 1
    first_sync.begin()
    cluster.put(custom(subset("192.0.2.3"), name="other"))
    cluster.put(make_service("other", selector=None))
    cluster.deliver(controller, deadline)
    assert len(controller.take_work(deadline, 10).jobs) == 1, (
        "an Endpoints controller that starts again stops nobody"
    )


def test_first_sync_that_never_ends_is_not_waited_for_for_ever() -> None:
    first_sync = FirstSync()
    first_sync.begin()
    controller = EndpointSliceMirroringController(None, first_sync)
    cluster = FakeCluster()
    cluster.put(make_service(selector=None))
    cluster.put(custom())
    cluster.start(controller, 1000.0)
    assert len(controller.take_work(1000.0 + FIRST_SYNC_TIMEOUT_S, 10).jobs) == 1


def test_nothing_is_done_before_the_caches_are_filled() -> None:
    controller = EndpointSliceMirroringController()
    cluster = FakeCluster()
    cluster.put(make_service(selector=None))
    cluster.put(custom())
    cluster.deliver(controller, 1000.0)
    assert (controller.take_work(2000.0, 10).jobs, controller.next_deadline()) == ((), None)


@pytest.mark.parametrize(
    "values",
    [
        {"max_endpoints_per_subset": 0},
        {"max_endpoints_per_subset": 1001},
        {"concurrent_service_endpoint_syncs": 51},
    ],
)
def test_config_refuses_what_upstream_refuses(values: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="mirroring"):
        MirroringConfig(**values)  # type: ignore[arg-type]  # integers


def test_kubernetes_128928_churn_leaves_nothing_behind() -> None:
    """kubernetes/kubernetes#128928."""
    plane = Plane()
    for number in range(100):
        plane.cluster.put(make_service(f"s{number}", selector=None))
        plane.cluster.put(custom(name=f"s{number}"))
    plane.settle()
    assert len(plane.slices()) == 100
    assert plane.controller._engine.totals == (100, 100, 100)
    for number in range(100):
        plane.cluster.remove(EndpointsObjects, "shop", f"s{number}")
        plane.cluster.remove(Services, "shop", f"s{number}")
    plane.settle()
    assert (plane.controller._engine._states, plane.controller._engine._selecting) == (
        {},
        {"shop/web": False},
    )
    assert plane.controller._engine.totals == (0, 0, 0)


def test_a_start_with_much_to_look_at_gives_others_their_turn() -> None:
    plane = Plane()
    for number in range(2 * PLANS_PER_TURN):
        plane.cluster.put(make_service(f"s{number}", selector=None))
        plane.cluster.put(replace(custom(name=f"s{number}"), subsets=None))
    plane.begin()
    assert plane.jobs() == ()
    assert plane.controller.next_deadline() == plane.now, "there is more, at once"
    assert plane.controller._queue.depth == PLANS_PER_TURN
    assert plane.jobs() == ()
    assert plane.jobs() == ()
    assert plane.controller.next_deadline() is None


# Figures


def test_figures_are_upstreams() -> None:
    plane = Plane(custom(subset("192.0.2.1", "192.0.2.2", "x")))
    plane.settle()
    plane.put(custom(subset("192.0.2.1", "192.0.2.3")))
    plane.put(custom(labels=SKIPPED))
    found = {family.name: family for family in plane.controller.samples(plane.now)}
    prefix = "endpoint_slice_mirroring_controller_"
    assert {name for name in found if name.startswith(prefix)} == {
        prefix + name
        for name in (
            *(
                "addresses_skipped_per_sync",
                "changes",
                "desired_endpoint_slices",
                "endpoints_added_per_sync",
            ),
            *("endpoints_desired", "endpoints_removed_per_sync", "endpoints_sync_duration"),
            *("endpoints_updated_per_sync", "num_endpoint_slices"),
        )
    }
    changes = {sample.labels: sample.value for sample in found[prefix + "changes"].samples}
    assert changes == {("create",): 1, ("update",): 1}, (
        "what goes because nothing is mirrored is not counted"
    )
    assert found[prefix + "endpoints_added_per_sync"].samples[0].value.total == 3  # type: ignore[union-attr]
    assert found[prefix + "endpoints_removed_per_sync"].samples[0].value.total == 1  # type: ignore[union-attr]
    assert found[prefix + "addresses_skipped_per_sync"].samples[0].value.total >= 1  # type: ignore[union-attr]
    assert found["workqueue_depth"].samples[0].labels == ("endpoint_slice_mirroring",)
