"""The EndpointSlice controller by name: what upstream got wrong once, and what a host may
rely on.
"""

from __future__ import annotations

import pytest
from tests.controllers.slices_plane import Plane
from tests.slices.fake_cluster import FakeCluster, make_node, make_pod, make_service, replace

from sliceplane.api.codec import decode_document
from sliceplane.api.discovery import (
    ANNOTATION_TRIGGER_TIME,
    ForZone,
)
from sliceplane.api.errors import StatusError, forbidden, internal
from sliceplane.api.scheme import EndpointSlices, Nodes, Pods, Services
from sliceplane.controllers.endpointslice import EndpointSliceConfig, EndpointSliceController
from sliceplane.controllers.service_syncs import MAX_RETRIES
from sliceplane.watch.controller.base import Done
from sliceplane.watch.controller.own_writes import PENDING_TIMEOUT_S


def test_lag_conflict_and_double_flip_converge_without_a_further_event() -> None:
    """kubernetes/kubernetes#127429: ready, not ready, ready within the watch's lag, and a
    conflict.
    """
    plane = Plane(make_pod("p-1"), make_pod("p-2"))
    plane.settle()
    plane.cluster.put(make_pod("p-1", ready=False))
    plane.deliver()
    (job,) = plane.jobs()
    each = plane.slice()
    plane.cluster.put(
        replace(each, metadata=replace(each.metadata, annotations={"by": "somebody"}))
    )
    plane.cluster.put(make_pod("p-1", ready=True))
    plane.controller.on_done(plane.cluster.run(job), plane.now)  # conflict: the slice has moved on
    plane.cluster.put(make_pod("p-1", ready=False))
    plane.settle()
    conditions = {
        e.target_ref.name: e.conditions.ready for e in plane.cluster.endpoints() if e.target_ref
    }
    assert conditions == {"p-1": False, "p-2": True}
    assert (plane.slice().metadata.annotations or {})["by"] == "somebody"


def test_after_a_conflict_nothing_is_written_before_the_cache_caught_up() -> None:
    plane = Plane(make_pod("p-1"))
    plane.settle()
    plane.cluster.put(
        replace(plane.slice(), endpoints=())
    )  # a foreign edit that the watch does not show yet
    held = plane.cluster.pending.pop()
    plane.cluster.put(make_pod("p-2"))
    plane.deliver()
    (job,) = plane.jobs()
    plane.controller.on_done(plane.cluster.run(job), plane.now)
    assert plane.jobs(1.0) == ()
    plane.cluster.pending.append(held)
    plane.settle()
    assert plane.addresses() == ["10.0.0.2", "10.0.0.3"]


def test_conflict_without_news_is_tried_again_in_the_end() -> None:
    plane = Plane(make_pod("p-1"))
    plane.settle()
    plane.cluster.put(make_pod("p-2"))
    plane.deliver()
    (job,) = plane.jobs()
    plane.controller.on_done(Done(job, (), StatusError(409, "Conflict", "no reason")), plane.now)
    plane.settle()
    assert plane.addresses() == ["10.0.0.2", "10.0.0.3"]


def test_pod_on_an_unknown_node_holds_nobody_else_up() -> None:
    """kubernetes/kubernetes#107927.  The endpoint comes with its node, without a retry."""
    plane = Plane(make_pod("p-1"), make_pod("p-2", node="n9"))
    notes = plane.settle()
    assert plane.addresses() == ["10.0.0.2"]
    assert notes == [
        (
            "Warning FailedToUpdateEndpointSlices: Error updating Endpoint Slices for Service "
            "shop/web: skipping Pod p-2 for Service shop/web: Node n9 Not Found"
        )
    ]
    assert plane.controller.next_deadline() is None
    plane.cluster.put(make_pod("p-3"))
    assert plane.settle() == []
    plane.cluster.put(make_node("n9", "b"))
    plane.settle()
    assert plane.addresses() == ["10.0.0.2", "10.0.0.3", "10.0.0.4"]
    plane.cluster.remove(Nodes, "", "n9")
    assert len(plane.settle()) == 1
    assert plane.addresses() == ["10.0.0.2", "10.0.0.4"]


def test_unready_endpoints_are_published_without_a_node() -> None:
    plane = Plane(make_pod("p-1", node="n9", ready=False))
    plane.cluster.put(make_service(publish_not_ready_addresses=True))
    assert plane.settle() == []
    (endpoint,) = plane.cluster.endpoints()
    assert (endpoint.zone, endpoint.node_name, endpoint.conditions.ready) == (None, "n9", True)


def test_zone_label_that_comes_late_brings_zone_and_hints() -> None:
    """kubernetes/kubernetes#123401."""
    plane = Plane(make_pod("p-1", node="n1"))
    plane.cluster.put(make_service(traffic_distribution="PreferClose"))
    plane.cluster.put(make_node("n1"))
    plane.settle()
    (endpoint,) = plane.cluster.endpoints()
    assert (endpoint.zone, endpoint.hints) == (None, None)
    plane.cluster.put(make_node("n1", "b"))
    plane.settle()
    (endpoint,) = plane.cluster.endpoints()
    assert endpoint.zone == "b"
    assert endpoint.hints is not None
    assert endpoint.hints.for_zones == (ForZone(name="b"),)


def test_kubernetes_135334_ghost_and_live_pod_with_one_address_are_two_endpoints() -> None:
    """kubernetes/kubernetes#135334: consumers tell them apart by targetRef; the terminating one is
    not ready.
    """
    plane = Plane(
        make_pod("p-1", terminating=True, ips=("10.0.0.9",)), make_pod("p-2", ips=("10.0.0.9",))
    )
    plane.settle()
    found = {e.target_ref.uid: e.conditions for e in plane.cluster.endpoints() if e.target_ref}
    assert not found["uid-p-1"].ready
    assert found["uid-p-1"].terminating
    assert found["uid-p-2"].ready


def test_recreated_pod_is_updated_in_place() -> None:
    plane = Plane(make_pod("p-1"))
    plane.settle()
    plane.cluster.remove(Pods, "shop", "p-1")
    plane.cluster.put(make_pod("p-1", uid="another"))
    plane.settle()
    assert [write.verb for write in plane.cluster.writes] == ["create", "update"]
    assert plane.cluster.endpoints()[0].target_ref.uid == "another"  # type: ignore[union-attr]  # made from a pod


def test_failed_pod_leaves_although_it_keeps_its_address() -> None:
    """kubernetes/kubernetes#109414: the address may be another pod's soon."""
    plane = Plane(make_pod("p-1"), make_pod("p-2"))
    plane.settle()
    plane.cluster.put(make_pod("p-1", phase="Failed"))
    plane.settle()
    assert plane.addresses() == ["10.0.0.3"]


def test_own_create_that_the_cache_does_not_show_is_not_repeated() -> None:
    """kubernetes/kubernetes#93374."""
    plane = Plane(make_pod("p-1"))
    (job,) = plane.jobs()
    plane.controller.on_done(plane.cluster.run(job), plane.now)
    held, plane.cluster.pending = plane.cluster.pending, []
    plane.cluster.put(make_pod("p-2"))
    plane.deliver()
    (job,) = plane.jobs()
    assert [write.verb for write in job.writes] == ["update"]
    plane.controller.on_done(plane.cluster.run(job), plane.now)
    plane.cluster.pending[:0] = held
    plane.settle()
    assert len(plane.cluster.slices()) == 1
    assert len(plane.cluster.writes) == 2


def test_old_event_of_a_slice_is_passed_over() -> None:
    plane = Plane(make_pod("p-1"))
    plane.settle()
    plane.cluster.put(make_pod("p-1", ready=False))
    plane.deliver()
    (job,) = plane.jobs()
    plane.controller.on_done(plane.cluster.run(job), plane.now)
    first = plane.cluster.pending.pop()
    plane.cluster.put(make_pod("p-1"))
    plane.deliver()
    (job,) = plane.jobs()
    plane.controller.on_done(plane.cluster.run(job), plane.now)
    second = plane.cluster.pending.pop()
    plane.cluster.pending = [first]
    plane.deliver()
    assert plane.jobs(5.0) == ()
    plane.cluster.pending = [second]
    plane.settle()
    assert len(plane.cluster.writes) == 3


def test_create_that_was_deleted_before_its_answer_came_is_made_again() -> None:
    plane = Plane(make_pod("p-1"))
    (job,) = plane.jobs()
    done = plane.cluster.run(job)
    plane.cluster.remove(EndpointSlices, "shop", plane.slice().metadata.name)
    plane.deliver()
    plane.controller.on_done(done, plane.now)
    plane.settle()
    assert plane.addresses() == ["10.0.0.2"]


def test_create_that_went_unseen_is_given_up_in_time() -> None:
    """Made and deleted by others while the watch was broken: no event will ever tell."""
    plane = Plane(make_pod("p-1"))
    (job,) = plane.jobs()
    plane.controller.on_done(plane.cluster.run(job), plane.now)
    plane.cluster.remove(EndpointSlices, "shop", plane.slice().metadata.name)
    plane.cluster.pending.clear()
    start = plane.now
    plane.settle()
    assert plane.addresses() == ["10.0.0.2"]
    assert plane.now - start >= PENDING_TIMEOUT_S


def test_restart_with_everything_in_place_writes_nothing() -> None:
    plane = Plane(*(make_pod(f"p-{n}", hostname="h", subdomain="web") for n in range(250)))
    plane.cluster.put(make_service(traffic_distribution="PreferSameNode", labels={"x": "y"}))
    plane.settle()
    assert sorted(len(each.endpoints or ()) for each in plane.cluster.slices()) == [50, 100, 100]
    before = len(plane.cluster.writes)
    plane.controller = EndpointSliceController()
    plane.cluster.start(plane.controller, plane.now)
    plane.settle()
    assert len(plane.cluster.writes) == before


def test_service_touches_only_its_own() -> None:
    plane = Plane(make_pod("p-1"))
    for number in range(50):
        plane.cluster.put(
            make_service(f"s{number}", selector={"app": "web", "number": str(number)})
        )
    plane.settle()
    plane.cluster.put(make_pod("p-1", ready=False))
    plane.deliver()
    assert [job.key for job in plane.jobs()] == ["shop/web"]


def test_kubernetes_128928_churn_leaves_nothing_behind() -> None:
    plane = Plane()
    plane.settle()
    for number in range(100):
        plane.cluster.put(make_service(f"s{number}", selector={"app": f"a{number}"}))
        plane.cluster.put(make_pod(f"p-{number}", labels={"app": f"a{number}"}))
    plane.settle()
    assert len(plane.controller._engine._services) == 101
    for number in range(100):
        plane.cluster.remove(Pods, "shop", f"p-{number}")
        plane.cluster.remove(Services, "shop", f"s{number}")
    for each in plane.cluster.slices():
        if not each.metadata.name.startswith("web-"):
            plane.cluster.remove(EndpointSlices, "shop", each.metadata.name)
    plane.settle()
    assert list(plane.controller._engine._services) == ["shop/web"]
    assert plane.controller._engine.totals[:2] == (0, 1)


def test_kubernetes_134739_pod_event_cost_is_flat_in_services_of_the_namespace() -> None:
    """kubernetes/kubernetes#134739.  Counted, not timed: how many selectors a pod's event
    looks at.
    """
    plane = Plane()
    for number in range(300):
        labels = {"part-of": "shop", "app": f"app-{number}"}
        plane.cluster.put(make_service(f"s{number}", selector=labels))
    for number in range(300):  # many of each part, none but one of both
        labels = {"row": str(number // 20), "column": str(number % 20)}
        plane.cluster.put(make_service(f"t{number}", selector=labels))
    plane.deliver()
    index = plane.controller._engine._routes
    assert index.probes("shop", {"part-of": "shop", "app": "app-7"}) == 1
    assert list(index.matching("shop", {"part-of": "shop", "app": "app-7"})) == ["s7"]
    assert index.probes("shop", {"row": "3", "column": "4"}) <= 2
    assert list(index.matching("shop", {"row": "3", "column": "4"})) == ["t64"]


def test_slice_that_is_on_its_way_out_keeps_no_state_alive() -> None:
    plane = Plane(make_pod("p-1"))
    plane.settle()
    plane.cluster.remove(Services, "shop", "web")
    each = plane.slice()
    plane.cluster.put(
        replace(each, metadata=replace(each.metadata, deletion_timestamp="2026-11-21T10:00:00Z"))
    )
    plane.settle()
    assert plane.controller._engine._services == {}


def test_nothing_is_created_for_a_service_that_is_going() -> None:
    plane = Plane()
    plane.cluster.put(make_service(deletion_timestamp="2026-11-21T10:00:00Z"))
    plane.settle()
    assert plane.cluster.slices() == []


def test_terminating_namespace_ends_a_sync_without_a_word() -> None:
    plane = Plane(make_pod("p-1"))
    (job,) = plane.jobs()
    cause = {"reason": "NamespaceTerminating", "message": "x", "field": "metadata.namespace"}
    plane.controller.on_done(
        Done(job, (), forbidden("endpointslices", "discovery.k8s.io", "", "x", [cause])), plane.now
    )
    work = plane.controller.take_work(plane.now, 10)
    assert (work.jobs, work.notes, plane.controller.next_deadline()) == ((), (), None)


def test_failures_back_off_and_are_given_up_after_fifteen() -> None:
    plane = Plane(make_pod("p-1"))
    delays = []
    for _ in range(MAX_RETRIES + 1):
        (job,) = plane.jobs()
        plane.controller.on_done(Done(job, (), internal("disk full")), plane.now)
        deadline = plane.controller.next_deadline()
        if deadline is not None:
            delays.append(deadline - plane.now)
            plane.now = deadline
    assert delays == [min(2.0**n, 1000.0) for n in range(MAX_RETRIES)]
    plane.cluster.put(make_pod("p-2"))
    plane.settle()
    assert plane.addresses() == ["10.0.0.2", "10.0.0.3"]


def test_failure_is_told_as_upstream_tells_it() -> None:
    plane = Plane(make_pod("p-1"))
    (job,) = plane.jobs()
    plane.controller.on_done(Done(job, (), internal("disk full")), plane.now)
    (note,) = plane.controller.take_work(plane.now, 10).notes
    assert (note.type, note.reason, note.component) == (
        "Warning",
        "FailedToUpdateEndpointSlices",
        "endpoint-slice-controller",
    )
    assert note.note == (
        "Error updating Endpoint Slices for Service shop/web: "
        "failed to create EndpointSlice for Service shop/web: disk full"
    )
    assert note.regarding.metadata.uid == "uid-web"


def test_refused_create_does_not_hold_back_readiness() -> None:
    """A quota that is used up must not keep traffic on a pod that is not ready."""
    plane = Plane(
        *(make_pod(f"p-{n}") for n in range(3)),
        config=EndpointSliceConfig(max_endpoints_per_slice=3),
    )
    plane.settle()
    for n in range(3, 6):
        plane.cluster.put(make_pod(f"p-{n}"))
    plane.cluster.put(make_pod("p-0", ready=False))
    plane.deliver()
    (job,) = plane.jobs()
    assert [write.verb for write in job.writes] == ["create", "update"]
    plane.controller.on_done(
        Done(job, (), forbidden("endpointslices", "", "", "exceeded quota")), plane.now
    )
    (job,) = plane.jobs(1.0)
    assert [write.verb for write in job.writes] == ["update", "create"]


def test_one_failing_address_type_does_not_hold_back_the_other() -> None:
    plane = Plane(make_pod("p-1", ips=("10.0.0.1", "fd00::1")))
    plane.cluster.put(make_service(ip_families=("IPv4", "IPv6")))
    plane.deliver()
    (job,) = plane.jobs()
    assert [decode_document(write.body)["addressType"] for write in job.writes] == ["IPv4", "IPv6"]
    plane.controller.on_done(Done(job, (), internal("no")), plane.now)
    (job,) = plane.jobs(1.0)
    assert [decode_document(write.body)["addressType"] for write in job.writes] == ["IPv6", "IPv4"]


def test_one_job_per_service_and_no_more_than_configured() -> None:
    plane = Plane(make_pod("p-1"), config=EndpointSliceConfig(concurrent_service_endpoint_syncs=2))
    for number in range(4):
        plane.cluster.put(make_service(f"s{number}"))
    plane.deliver()
    first = plane.jobs()
    assert len(first) == 2
    plane.cluster.put(make_pod("p-1", ready=False))
    plane.deliver()
    assert plane.jobs() == ()
    plane.controller.on_done(plane.cluster.run(first[0]), plane.now)
    assert len(plane.jobs()) == 1


def test_pods_wait_for_the_batch_period_services_do_not() -> None:
    plane = Plane(
        make_pod("p-1"), config=EndpointSliceConfig(endpointslice_updates_batch_period_s=10.0)
    )
    plane.settle()
    plane.cluster.put(make_pod("p-2"))
    plane.deliver()
    assert plane.jobs() == ()
    assert plane.controller.next_deadline() == plane.now + 10.0
    plane.cluster.put(make_service(labels={"a": "b"}))
    plane.deliver()
    assert len(plane.jobs()) == 1


def test_trigger_time_is_the_oldest_change_and_survives_a_failure() -> None:
    plane = Plane(make_pod("p-1", since="2026-11-21T10:00:00Z"))
    plane.settle()
    # first sight of a service: its creation
    assert (plane.slice().metadata.annotations or {})[
        ANNOTATION_TRIGGER_TIME
    ] == "2026-11-21T09:00:00Z"
    plane.cluster.put(make_pod("p-1", ready=False, since="2026-11-21T10:00:05Z"))
    plane.deliver()
    (job,) = plane.jobs()
    plane.controller.on_done(Done(job, (), internal("no")), plane.now)
    plane.cluster.put(make_pod("p-2", since="2026-11-21T10:00:07Z"))
    plane.settle()
    assert (plane.slice().metadata.annotations or {})[
        ANNOTATION_TRIGGER_TIME
    ] == "2026-11-21T10:00:05Z"
    plane.cluster.put(make_service(labels={"new": "label"}))
    plane.settle()
    assert plane.slice().metadata.annotations is None


def test_nothing_is_done_before_the_caches_are_filled() -> None:
    controller = EndpointSliceController()
    cluster = FakeCluster()
    cluster.put(make_service())
    cluster.deliver(controller, 0.0)
    assert controller.take_work(0.0, 10).jobs == ()
    assert controller.next_deadline() is None
    controller.on_synced(0.0)
    assert len(controller.take_work(0.0, 10).jobs) == 1


@pytest.mark.parametrize("value", [0, 1001])
def test_flags_out_of_range_are_refused(value: int) -> None:
    with pytest.raises(ValueError, match="max-endpoints-per-slice must be between 1 and 1000"):
        EndpointSliceConfig(max_endpoints_per_slice=value)
