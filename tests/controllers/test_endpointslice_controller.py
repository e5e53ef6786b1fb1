"""The EndpointSlice controller by name: what upstream got wrong once, and what a host may
rely on.
"""

from __future__ import annotations

import pytest
from tests.controllers.slices_plane import Plane
from tests.slices.fake_cluster import make_node, make_pod, make_service, replace

from sliceplane.api.codec import decode_document
from sliceplane.api.discovery import (
    ANNOTATION_TRIGGER_TIME,
    ForZone,
)
from sliceplane.api.errors import forbidden, internal
from sliceplane.api.scheme import EndpointSlices, Nodes, Pods, Services
from sliceplane.controllers.endpointslice import EndpointSliceConfig
from sliceplane.watch.controller.base import Done


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
    plane.put(make_node("n9", "b"))
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
    plane.put(make_node("n1"))
    (endpoint,) = plane.cluster.endpoints()
    assert (endpoint.zone, endpoint.hints) == (None, None)
    plane.put(make_node("n1", "b"))
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
    plane.put(make_pod("p-1", uid="another"))
    assert [write.verb for write in plane.cluster.writes] == ["create", "update"]
    assert plane.cluster.endpoints()[0].target_ref.uid == "another"  # type: ignore[union-attr]  # made from a pod


def test_service_touches_only_its_own() -> None:
    plane = Plane(make_pod("p-1"))
    for number in range(50):
        plane.cluster.put(
            make_service(f"s{number}", selector={"app": "web", "number": str(number)})
        )
    plane.settle()
    plane.show(make_pod("p-1", ready=False))
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
    plane.put(
        replace(each, metadata=replace(each.metadata, deletion_timestamp="2026-11-21T10:00:00Z"))
    )
    assert plane.controller._engine._services == {}


def test_nothing_is_created_for_a_service_that_is_going() -> None:
    plane = Plane()
    plane.put(make_service(deletion_timestamp="2026-11-21T10:00:00Z"))
    assert plane.cluster.slices() == []


def test_failure_is_told_as_upstream_tells_it() -> None:
    plane = Plane(make_pod("p-1"))
    (job,) = plane.jobs()
    plane.fail(job, internal("disk full"))
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
    plane.show(make_pod("p-0", ready=False))
    (job,) = plane.jobs()
    assert [write.verb for write in job.writes] == ["create", "update"]
    plane.controller.on_done(
        Done(job, (), forbidden("endpointslices", "", "", "exceeded quota")), plane.now
    )
    (job,) = plane.jobs(1.0)
    assert [write.verb for write in job.writes] == ["update", "create"]


def test_one_failing_address_type_does_not_hold_back_the_other() -> None:
    plane = Plane(make_pod("p-1", ips=("10.0.0.1", "fd00::1")))
    plane.show(make_service(ip_families=("IPv4", "IPv6")))
    (job,) = plane.jobs()
    assert [decode_document(write.body)["addressType"] for write in job.writes] == ["IPv4", "IPv6"]
    plane.fail(job, internal("no"))
    (job,) = plane.jobs(1.0)
    assert [decode_document(write.body)["addressType"] for write in job.writes] == ["IPv6", "IPv4"]


def test_one_job_per_service_and_no_more_than_configured() -> None:
    plane = Plane(make_pod("p-1"), config=EndpointSliceConfig(concurrent_service_endpoint_syncs=2))
    for number in range(4):
        plane.cluster.put(make_service(f"s{number}"))
    plane.deliver()
    first = plane.jobs()
    assert len(first) == 2
    plane.show(make_pod("p-1", ready=False))
    assert plane.jobs() == ()
    plane.finish(first[0])
    assert len(plane.jobs()) == 1


def test_pods_wait_for_the_batch_period_services_do_not() -> None:
    plane = Plane(
        make_pod("p-1"), config=EndpointSliceConfig(endpointslice_updates_batch_period_s=10.0)
    )
    plane.settle()
    plane.show(make_pod("p-2"))
    assert plane.jobs() == ()
    assert plane.controller.next_deadline() == plane.now + 10.0
    plane.show(make_service(labels={"a": "b"}))
    assert len(plane.jobs()) == 1


def test_trigger_time_is_the_oldest_change_and_survives_a_failure() -> None:
    plane = Plane(make_pod("p-1", since="2026-11-21T10:00:00Z"))
    plane.settle()
    # first sight of a service: its creation
    assert (plane.slice().metadata.annotations or {})[
        ANNOTATION_TRIGGER_TIME
    ] == "2026-11-21T09:00:00Z"
    plane.show(make_pod("p-1", ready=False, since="2026-11-21T10:00:05Z"))
    (job,) = plane.jobs()
    plane.fail(job, internal("no"))
    plane.put(make_pod("p-2", since="2026-11-21T10:00:07Z"))
    assert (plane.slice().metadata.annotations or {})[
        ANNOTATION_TRIGGER_TIME
    ] == "2026-11-21T10:00:05Z"
    plane.put(make_service(labels={"new": "label"}))
    assert plane.slice().metadata.annotations is None


@pytest.mark.parametrize("value", [0, 1001])
def test_flags_out_of_range_are_refused(value: int) -> None:
    with pytest.raises(ValueError, match="max-endpoints-per-slice must be between 1 and 1000"):
        EndpointSliceConfig(max_endpoints_per_slice=value)
