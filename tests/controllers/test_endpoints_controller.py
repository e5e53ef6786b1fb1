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
from sliceplane.api.errors import StatusError, forbidden, internal
from sliceplane.api.scheme import EndpointsObjects, Pods, Services
from sliceplane.controllers.endpoints import EndpointsConfig, EndpointsController
from sliceplane.controllers.service_syncs import MAX_RETRIES, FirstSync
from sliceplane.watch.controller.base import Done
from sliceplane.watch.controller.own_writes import PENDING_TIMEOUT_S

# Writes, answers, caches


def test_restart_with_everything_in_place_writes_nothing() -> None:
    """nacos#10209, kubernetes/kubernetes#23034: nor does it ever show an empty list."""
    plane = Plane(
        make_pod("p-1", port=8080),
        make_pod("p-2", port=9090, ready=False),
        ports=NAMED,
        labels={"x": "y"},
    )
    plane.settle()
    before = len(plane.verbs())
    plane.begin()
    plane.settle()
    assert len(plane.verbs()) == before


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


def test_lag_conflict_and_double_flip_converge_without_a_further_event() -> None:
    """kubernetes/kubernetes#127429: ready, not ready, ready within the watch's lag, and a
    conflict.
    """
    plane = Plane(make_pod("p-1"), make_pod("p-2"))
    plane.settle()
    plane.cluster.put(make_pod("p-1", ready=False))
    plane.deliver()
    (job,) = plane.jobs()
    found = plane.one()
    annotations = {**(found.metadata.annotations or {}), "by": "somebody"}
    plane.cluster.put(replace(found, metadata=replace(found.metadata, annotations=annotations)))
    plane.cluster.put(make_pod("p-1", ready=True))
    plane.controller.on_done(plane.cluster.run(job), plane.now)  # conflict: the object has moved on
    plane.cluster.put(make_pod("p-1", ready=False))
    plane.settle()
    assert plane.subsets() == [(["10.0.0.3"], ["10.0.0.2"], [8080])]
    assert (plane.one().metadata.annotations or {})["by"] == "somebody"


def test_after_a_conflict_nothing_is_written_before_the_cache_caught_up() -> None:
    plane = Plane(make_pod("p-1"))
    plane.settle()
    plane.cluster.put(
        replace(plane.one(), subsets=None)
    )  # a foreign edit that the watch does not show yet
    held = plane.cluster.pending.pop()
    plane.cluster.put(make_pod("p-2"))
    plane.deliver()
    (job,) = plane.jobs()
    plane.controller.on_done(plane.cluster.run(job), plane.now)
    assert plane.jobs(0.006) == ()
    plane.cluster.pending.append(held)
    plane.settle()
    assert plane.subsets() == [(["10.0.0.2", "10.0.0.3"], [], [8080])]


def test_conflict_without_news_is_tried_again_in_the_end() -> None:
    plane = Plane(make_pod("p-1"))
    plane.settle()
    plane.cluster.put(make_pod("p-2"))
    plane.deliver()
    (job,) = plane.jobs()
    plane.controller.on_done(Done(job, (), StatusError(409, "Conflict", "no reason")), plane.now)
    assert plane.settle() == []
    assert plane.subsets() == [(["10.0.0.2", "10.0.0.3"], [], [8080])]


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


def test_old_event_is_passed_over() -> None:
    """kubernetes/kubernetes#93374: a cache that has not seen our last write is not planned on."""
    plane = Plane(make_pod("p-1"))
    plane.settle()
    held = []
    for ready in (False, True):
        plane.cluster.put(make_pod("p-1", ready=ready))
        plane.deliver()
        (job,) = plane.jobs()
        plane.controller.on_done(plane.cluster.run(job), plane.now)
        held.append(plane.cluster.pending.pop())
    plane.cluster.pending = [held[0]]
    plane.deliver()
    assert plane.jobs(5.0) == ()
    plane.cluster.pending = [held[1]]
    plane.settle()
    assert len(plane.verbs()) == 3


def test_create_that_the_cache_does_not_show_is_not_repeated() -> None:
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
    assert plane.verbs() == ["create", "update"]


def test_create_that_was_deleted_before_its_answer_came_is_made_again() -> None:
    plane = Plane(make_pod("p-1"))
    (job,) = plane.jobs()
    done = plane.cluster.run(job)
    plane.cluster.remove(EndpointsObjects, "shop", "web")
    plane.deliver()
    plane.controller.on_done(done, plane.now)
    assert len(plane.jobs(2.0)) == 1


def test_create_that_went_unseen_is_given_up_in_time() -> None:
    plane = Plane(make_pod("p-1"))
    (job,) = plane.jobs()
    plane.controller.on_done(plane.cluster.run(job), plane.now)
    plane.cluster.remove(EndpointsObjects, "shop", "web")
    plane.cluster.pending.clear()
    start = plane.now
    plane.settle()
    assert plane.subsets() == [(["10.0.0.2"], [], [8080])]
    assert plane.now - start >= PENDING_TIMEOUT_S


def test_deleted_endpoints_are_made_again_and_edits_are_undone() -> None:
    plane = Plane(make_pod("p-1"))
    plane.settle()
    plane.cluster.remove(EndpointsObjects, "shop", "web")
    plane.settle()
    assert plane.subsets() == [(["10.0.0.2"], [], [8080])]
    found = plane.one()
    plane.cluster.put(
        replace(
            found,
            subsets=custom().subsets,
            metadata=replace(found.metadata, labels={**OURS, "odd": "1"}),
        )
    )
    plane.settle()
    assert plane.subsets() == [(["10.0.0.2"], [], [8080])]
    assert plane.one().metadata.labels == OURS


def test_leases_kept_in_annotations_cause_no_writes() -> None:
    plane = Plane(make_pod("p-1"))
    plane.settle()
    for second in range(5):
        found = plane.one()
        annotations = {**(found.metadata.annotations or {}), ANNOTATION_LEADER: str(second)}
        plane.cluster.put(replace(found, metadata=replace(found.metadata, annotations=annotations)))
        plane.settle()
    assert plane.verbs() == ["create"]


def test_failed_pods_address_is_not_advertised() -> None:
    """kubernetes/kubernetes#109414: the address may be another Pod's soon."""
    plane = Plane(make_pod("p-1"), make_pod("p-2"))
    plane.settle()
    plane.cluster.put(make_pod("p-1", phase="Failed"))
    plane.settle()
    assert plane.subsets() == [(["10.0.0.3"], [], [8080])]


def test_kubernetes_135334_ghost_and_live_pod_share_an_address() -> None:
    """kubernetes/kubernetes#135334: the one that terminates is out, the live one in."""
    plane = Plane(
        make_pod("p-1", terminating=True, ips=("10.0.0.9",)), make_pod("p-2", ips=("10.0.0.9",))
    )
    plane.settle()
    (subset,) = plane.one().subsets or ()
    assert [a.target_ref.uid for a in subset.addresses or () if a.target_ref] == ["uid-p-2"]


def test_deletion_that_only_a_relist_tells_of_converges() -> None:
    """cilium#48050."""
    plane = Plane(make_pod("p-1"), make_pod("p-2"))
    plane.settle()
    plane.cluster.remove(Pods, "shop", "p-1")
    plane.cluster.relist(plane.controller, plane.now)
    plane.settle()
    assert plane.subsets() == [(["10.0.0.3"], [], [8080])]


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
    plane.cluster.put(make_pod("p-3"))
    plane.deliver()
    assert plane.jobs(1.0) == ()
    plane.cluster.put(make_pod("p-1", ready=False))
    plane.deliver()
    (job,) = plane.jobs()
    plane.controller.on_done(plane.cluster.run(job), plane.now)
    assert plane.subsets() == [(["10.0.0.3", "10.0.0.4"], ["10.0.0.2"], [8080])]


def test_failures_are_told_back_off_and_are_given_up_after_fifteen() -> None:
    plane = Plane(make_pod("p-1"))
    delays = []
    notes = []
    for _ in range(MAX_RETRIES + 1):
        work = plane.controller.take_work(plane.now, 10)
        (job,) = work.jobs
        notes += [note.note for note in work.notes]
        plane.controller.on_done(Done(job, (), internal("disk full")), plane.now)
        deadline = plane.controller.next_deadline()
        if deadline is not None:
            delays.append(deadline - plane.now)
            plane.now = deadline
    assert [round(delay, 3) for delay in delays[:4]] == [0.005, 0.01, 0.02, 0.04]
    assert len(delays) == MAX_RETRIES
    assert set(notes) == {"Failed to create endpoint for service shop/web: disk full"}
    plane.cluster.put(make_pod("p-2"))
    plane.settle()
    assert plane.subsets() == [(["10.0.0.2", "10.0.0.3"], [], [8080])]


def test_failed_update_is_told_about_the_endpoints() -> None:
    plane = Plane(make_pod("p-1"))
    plane.settle()
    plane.cluster.put(make_pod("p-2"))
    plane.deliver()
    (job,) = plane.jobs()
    plane.controller.on_done(Done(job, (), internal("no")), plane.now)
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


def test_terminating_namespace_ends_a_sync_without_a_word() -> None:
    plane = Plane(make_pod("p-1"))
    (job,) = plane.jobs()
    cause = {"reason": "NamespaceTerminating", "message": "x", "field": "metadata.namespace"}
    plane.controller.on_done(Done(job, (), forbidden("endpoints", "", "", "x", [cause])), plane.now)
    work = plane.controller.take_work(plane.now, 10)
    assert (work.jobs, work.notes, plane.controller.next_deadline()) == ((), (), None)


def test_trigger_time_is_the_oldest_change_and_survives_a_failure() -> None:
    plane = Plane(make_pod("p-1", since="2026-11-21T10:00:00Z"), make_pod("p-2"))
    plane.settle()
    plane.cluster.put(make_pod("p-1", ready=False, since="2026-11-21T10:05:00Z"))
    plane.cluster.put(make_pod("p-2", ready=False, since="2026-11-21T10:04:00Z"))
    plane.deliver()
    (job,) = plane.jobs()
    plane.controller.on_done(Done(job, (), internal("no")), plane.now)
    plane.settle()
    assert (plane.one().metadata.annotations or {})[
        ANNOTATION_TRIGGER_TIME
    ] == "2026-11-21T10:04:00Z"
    plane.cluster.put(make_service(labels={"a": "b"}))
    plane.settle()
    assert ANNOTATION_TRIGGER_TIME not in (plane.one().metadata.annotations or {})


# The first sync


def test_first_sync_is_over_when_every_service_had_its_turn() -> None:
    plane = Plane(make_pod("p-1"))
    plane.cluster.put(make_service("other"))
    plane.begin()
    assert not plane.first_sync.over
    first, second = plane.jobs()
    plane.controller.on_done(plane.cluster.run(first), plane.now)
    assert not plane.first_sync.over
    plane.controller.on_done(Done(second, (), internal("no")), plane.now)
    assert plane.first_sync.over, "one that cannot be written holds nobody up"


def test_first_sync_of_nothing_is_over_at_once() -> None:
    first_sync = FirstSync()
    assert first_sync.over, "where no Endpoints controller runs"
    controller = EndpointsController(None, first_sync)
    assert not first_sync.over
    FakeCluster().start(controller, 1000.0)
    assert first_sync.over


def test_nothing_is_done_before_the_caches_are_filled() -> None:
    controller = EndpointsController()
    cluster = FakeCluster()
    cluster.put(make_service())
    cluster.deliver(controller, 1000.0)
    assert (controller.take_work(2000.0, 10).jobs, controller.next_deadline()) == ((), None)


def test_config_refuses_what_cannot_work() -> None:
    with pytest.raises(ValueError, match="concurrent-endpoint-syncs"):
        EndpointsConfig(concurrent_endpoint_syncs=0)
