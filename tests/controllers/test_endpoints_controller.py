"""The Endpoints controller between a lagging cache and a failing server: what upstream got wrong,
hosts rely on.
"""

from __future__ import annotations

import pytest
from tests.controllers.endpoints_plane import NAMED, OURS, Plane, custom, many
from tests.slices.fake_cluster import FakeCluster, make_pod, make_service, replace

from sliceplane.api.discovery import (
    ANNOTATION_LEADER,
    ANNOTATION_TRIGGER_TIME,
)
from sliceplane.api.errors import internal
from sliceplane.api.scheme import EndpointsObjects, Services
from sliceplane.controllers.endpoints import EndpointsConfig, EndpointsController
from sliceplane.controllers.service_syncs import FirstSync

# Writes, answers, caches


def test_object_that_upstream_wrote_in_another_order_is_left_alone() -> None:
    plane = Plane(make_pod("p-1"), make_pod("p-2"), ports=NAMED)
    plane.settle()
    found = plane.one()
    (subset,) = found.subsets or ()
    split = tuple(
        replace(subset, addresses=(subset.addresses or ())[::-1], ports=(port,))
        for port in reversed(subset.ports or ())
    )
    with_versions = tuple(
        replace(
            each,
            addresses=tuple(
                replace(a, target_ref=replace(a.target_ref, resource_version="5"))
                for a in each.addresses or ()
            ),
        )
        for each in split
    )
    plane.cluster.put(replace(found, subsets=with_versions))
    before = len(plane.verbs())
    plane.begin()
    plane.settle()
    assert len(plane.verbs()) == before


def test_echo_of_an_own_write_is_not_read_again(monkeypatch: pytest.MonkeyPatch) -> None:
    plane = Plane(*many(50))
    plane.settle()
    read: list[object] = []
    monkeypatch.setattr("sliceplane.slices.endpoints.members.text_of", read.append)
    plane.cluster.put(make_pod("p-1", ips=("10.0.0.1",), ready=False))
    monkeypatch.setattr(EndpointsController, "check", lambda self: None)
    plane.settle()
    assert plane.verbs() == ["create", "update"]
    assert read == []


def test_server_that_was_restored_from_a_copy_is_believed_in_the_end() -> None:
    """Its versions are smaller than those that we know, and what it refuses twice is not so any
    more.
    """
    plane = Plane(make_pod("p-1"))
    plane.settle()
    plane.cluster.revision = 1
    plane.cluster.put(replace(plane.one(), subsets=None))
    plane.cluster.put(make_pod("p-2"))
    plane.cluster.relist(plane.controller, plane.now)
    plane.settle()
    assert plane.subsets() == [(["10.0.0.2", "10.0.0.3"], [], [8080])]


def test_deleted_endpoints_are_made_again_and_edits_are_undone() -> None:
    plane = Plane(make_pod("p-1"))
    plane.settle()
    plane.cluster.remove(EndpointsObjects, "shop", "web")
    plane.settle()
    assert plane.subsets() == [(["10.0.0.2"], [], [8080])]
    found = plane.one()
    plane.put(
        replace(
            found,
            subsets=custom().subsets,
            metadata=replace(found.metadata, labels={**OURS, "odd": "1"}),
        )
    )
    assert plane.subsets() == [(["10.0.0.2"], [], [8080])]
    assert plane.one().metadata.labels == OURS


def test_leases_kept_in_annotations_cause_no_writes() -> None:
    plane = Plane(make_pod("p-1"))
    plane.settle()
    for second in range(5):
        found = plane.one()
        annotations = {**(found.metadata.annotations or {}), ANNOTATION_LEADER: str(second)}
        plane.put(replace(found, metadata=replace(found.metadata, annotations=annotations)))
    assert plane.verbs() == ["create"]


def test_kubernetes_135334_ghost_and_live_pod_share_an_address() -> None:
    """kubernetes/kubernetes#135334: the one that terminates is out, the live one in."""
    plane = Plane(
        make_pod("p-1", terminating=True, ips=("10.0.0.9",)), make_pod("p-2", ips=("10.0.0.9",))
    )
    plane.settle()
    (subset,) = plane.one().subsets or ()
    assert [a.target_ref.uid for a in subset.addresses or () if a.target_ref] == ["uid-p-2"]


def test_kubernetes_134739_pod_event_cost_is_flat_in_services_of_the_namespace() -> None:
    """kubernetes/kubernetes#134739.  Counted, not timed."""
    plane = Plane()
    for number in range(300):
        plane.cluster.put(
            make_service(f"s{number}", selector={"part-of": "shop", "app": f"app-{number}"})
        )
    plane.deliver()
    assert plane.controller._engine._routes.probes("shop", {"part-of": "shop", "app": "app-7"}) <= 2


def test_kubernetes_128928_churn_leaves_nothing_behind() -> None:
    """kubernetes/kubernetes#128928."""
    plane = Plane()
    plane.settle()
    for number in range(200):
        plane.cluster.put(make_service(f"s{number}"))
    plane.settle()
    for number in range(200):
        plane.cluster.remove(Services, "shop", f"s{number}")
    plane.settle()
    assert list(plane.controller._engine._states) == ["shop/web"]
    assert [key[2] for key in plane.cluster.objects if key[0] == EndpointsObjects.key] == ["web"]


# Batches and failures


def test_removals_are_not_held_back_by_the_batch_period() -> None:
    plane = Plane(
        make_pod("p-1"),
        make_pod("p-2"),
        config=EndpointsConfig(endpoint_updates_batch_period_s=5.0),
    )
    plane.settle()
    plane.show(make_pod("p-3"))
    assert plane.jobs(1.0) == ()
    plane.show(make_pod("p-1", ready=False))
    plane.run_job()
    assert plane.subsets() == [(["10.0.0.3", "10.0.0.4"], ["10.0.0.2"], [8080])]


def test_failed_create_is_told_about_the_service() -> None:
    plane = Plane(make_pod("p-1"))
    (job,) = plane.jobs()
    plane.fail(job, internal("disk full"))
    (note,) = plane.controller.take_work(plane.now, 0).notes
    assert note.note == "Failed to create endpoint for service shop/web: disk full"


def test_failed_update_is_told_about_the_endpoints() -> None:
    plane = Plane(make_pod("p-1"))
    plane.settle()
    plane.show(make_pod("p-2"))
    (job,) = plane.jobs()
    plane.fail(job, internal("no"))
    (note,) = plane.controller.take_work(plane.now, 0).notes
    assert (note.type, note.reason, note.note) == (
        "Warning",
        "FailedToUpdateEndpoint",
        "Failed to update endpoint shop/web: no",
    )
    assert (note.regarding.kind, note.regarding.metadata.uid) == (
        "Endpoints",
        plane.one().metadata.uid,
    )


def test_trigger_time_is_the_oldest_change_and_survives_a_failure() -> None:
    plane = Plane(make_pod("p-1", since="2026-11-21T10:00:00Z"), make_pod("p-2"))
    plane.settle()
    plane.cluster.put(make_pod("p-1", ready=False, since="2026-11-21T10:05:00Z"))
    plane.show(make_pod("p-2", ready=False, since="2026-11-21T10:04:00Z"))
    (job,) = plane.jobs()
    plane.fail(job, internal("no"))
    plane.settle()
    assert (plane.one().metadata.annotations or {})[
        ANNOTATION_TRIGGER_TIME
    ] == "2026-11-21T10:04:00Z"
    plane.put(make_service(labels={"a": "b"}))
    assert ANNOTATION_TRIGGER_TIME not in (plane.one().metadata.annotations or {})


# The first sync


def test_first_sync_is_over_when_every_service_had_its_turn() -> None:
    plane = Plane(make_pod("p-1"))
    plane.cluster.put(make_service("other"))
    plane.begin()
    assert not plane.first_sync.over
    first, second = plane.jobs()
    plane.finish(first)
    assert not plane.first_sync.over
    plane.fail(second, internal("no"))
    assert plane.first_sync.over, "one that cannot be written holds nobody up"


def test_first_sync_of_nothing_is_over_at_once() -> None:
    first_sync = FirstSync()
    assert first_sync.over, "where no Endpoints controller runs"
    controller = EndpointsController(None, first_sync)
    assert not first_sync.over
    FakeCluster().start(controller, 1000.0)
    assert first_sync.over


def test_config_refuses_what_cannot_work() -> None:
    with pytest.raises(ValueError, match="concurrent-endpoint-syncs"):
        EndpointsConfig(concurrent_endpoint_syncs=0)
