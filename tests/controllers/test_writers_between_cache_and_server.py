"""The controllers that write EndpointSlices, Endpoints and mirrored slices, each between a lagging
cache and a failing server: what upstream got wrong once, and what a host may rely on.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
from tests.controllers import endpoints_plane, mirrored_plane, slices_plane
from tests.controllers.controller_plane import ControllerPlane
from tests.controllers.endpoints_plane import NAMED
from tests.controllers.mirrored_plane import custom, subset
from tests.slices.fake_cluster import FakeCluster, make_pod, make_service, replace

from sliceplane.api.core import EndpointAddress, EndpointSubset
from sliceplane.api.errors import StatusError, forbidden, internal
from sliceplane.api.meta import Object, ObjectReference
from sliceplane.watch.controller.own_writes import UNSEEN_TIMEOUT_S
from sliceplane.api.scheme import EndpointSlices, EndpointsObjects, Pods, Resource
from sliceplane.controllers.service_syncs import MAX_RETRIES
from sliceplane.watch.controller.base import Job


@dataclass(frozen=True)
class Writer:
    """One controller, and a plane in which it has one endpoint to write."""

    plane: Callable[[], ControllerPlane]
    #: a plane with all that a restart could write anew
    whole: Callable[[], ControllerPlane]
    resource: Resource
    #: what brings the second endpoint
    second: Object
    #: addresses that are ready, of one endpoint and of both
    shown: Callable[[Any], list[str]]
    both: list[str]
    #: members of what it writes, without an endpoint
    empty: dict[str, Any]
    #: seconds between tries of a write that fails
    delays: list[float]
    #: seconds that a conflict is waited out, and that an object is missed, at the most
    waits_s: float
    misses_s: float


def _of_target() -> EndpointSubset:
    target = ObjectReference(kind="VM", name="vm", resource_version="3")
    address = EndpointAddress(ip="192.0.2.8", target_ref=target, node_name="")
    return EndpointSubset(addresses=(address,))


def _large() -> ControllerPlane:
    pods = (make_pod(f"p-{n}", hostname="h", subdomain="web") for n in range(250))
    plane = slices_plane.Plane(*pods)
    plane.put(make_service(traffic_distribution="PreferSameNode", labels={"x": "y"}))
    assert sorted(len(each.endpoints or ()) for each in plane.cluster.slices()) == [50, 100, 100]
    return plane


def _slice_addresses(plane: ControllerPlane) -> list[str]:
    endpoints = plane.cluster.endpoints()
    return sorted(e.addresses[0] for e in endpoints if e.conditions.ready is not False)


def _endpoints_addresses(plane: endpoints_plane.Plane) -> list[str]:
    return sorted(ip for ready, _, _ in plane.subsets() for ip in ready)


WRITERS = {
    "slices": Writer(
        plane=lambda: slices_plane.Plane(make_pod("p-1")),
        whole=_large,
        resource=EndpointSlices,
        second=make_pod("p-2"),
        shown=_slice_addresses,
        both=["10.0.0.2", "10.0.0.3"],
        empty={"endpoints": ()},
        delays=[min(2.0**n, 1000.0) for n in range(MAX_RETRIES)],
        waits_s=1.0,
        misses_s=1.0,
    ),
    "endpoints": Writer(
        plane=lambda: endpoints_plane.Plane(make_pod("p-1")),
        whole=lambda: endpoints_plane.Plane(
            make_pod("p-1", port=8080),
            make_pod("p-2", port=9090, ready=False),
            ports=NAMED,
            labels={"x": "y"},
        ),
        resource=EndpointsObjects,
        second=make_pod("p-2"),
        shown=_endpoints_addresses,
        both=["10.0.0.2", "10.0.0.3"],
        empty={"subsets": None},
        delays=[0.005 * 2.0**n for n in range(MAX_RETRIES)],
        waits_s=0.006,
        misses_s=2.0,
    ),
    "mirrored": Writer(
        plane=lambda: mirrored_plane.Plane(custom()),
        whole=lambda: mirrored_plane.Plane(
            custom(
                subset("192.0.2.1", "2001:db8::1"),
                _of_target(),
                annotations={"a": "b"},
                labels={"c": "d"},
            )
        ),
        resource=EndpointSlices,
        second=custom(subset("192.0.2.1", "192.0.2.2")),
        shown=_slice_addresses,
        both=["192.0.2.1", "192.0.2.2"],
        empty={"endpoints": ()},
        delays=[min(2.0**n, 100.0) for n in range(MAX_RETRIES)],
        waits_s=1.0,
        misses_s=0.0,
    ),
}
of_pods = pytest.mark.parametrize("name", ["slices", "endpoints"])


@pytest.fixture(params=WRITERS)
def writer(request: pytest.FixtureRequest) -> Writer:
    return WRITERS[request.param]


def _written(plane: ControllerPlane, writer: Writer) -> Object:
    (found,) = (o for key, o in plane.cluster.objects.items() if key[0] == writer.resource.key)
    return found


def _remove_written(plane: ControllerPlane, writer: Writer) -> None:
    plane.cluster.remove(writer.resource, "shop", _written(plane, writer).metadata.name)


def _settled(writer: Writer) -> ControllerPlane:
    plane = writer.plane()
    plane.settle()
    return plane


def _job_of_second(plane: ControllerPlane, writer: Writer) -> Job:
    plane.show(writer.second)
    (job,) = plane.jobs()
    return job


def test_restart_with_everything_in_place_writes_nothing(writer: Writer) -> None:
    """nacos#10209, kubernetes/kubernetes#23034: nor does it ever show an empty list."""
    plane = writer.whole()
    plane.settle()
    before = len(plane.verbs())
    assert before
    plane.begin()
    plane.settle()
    assert len(plane.verbs()) == before


@of_pods
def test_lag_conflict_and_double_flip_converge_without_a_further_event(name: str) -> None:
    """kubernetes/kubernetes#127429: ready, not ready, ready within the watch's lag, and a
    conflict.
    """
    writer = WRITERS[name]
    plane = _settled(writer)
    plane.put(make_pod("p-2"))
    plane.show(make_pod("p-1", ready=False))
    (job,) = plane.jobs()
    found = _written(plane, writer)
    annotations = {**(found.metadata.annotations or {}), "by": "somebody"}
    plane.cluster.put(replace(found, metadata=replace(found.metadata, annotations=annotations)))
    plane.cluster.put(make_pod("p-1", ready=True))
    plane.finish(job)  # conflict: the object has moved on
    plane.put(make_pod("p-1", ready=False))
    assert writer.shown(plane) == ["10.0.0.3"]
    assert (_written(plane, writer).metadata.annotations or {})["by"] == "somebody"


def test_after_a_conflict_nothing_is_written_before_the_cache_caught_up(writer: Writer) -> None:
    plane = _settled(writer)
    # A foreign edit that the watch does not show yet
    plane.cluster.put(replace(_written(plane, writer), **writer.empty))
    held = plane.cluster.pending.pop()
    plane.finish(_job_of_second(plane, writer))
    assert plane.jobs(writer.waits_s) == ()
    plane.cluster.pending.append(held)
    plane.settle()
    assert writer.shown(plane) == writer.both


def test_conflict_without_news_is_tried_again_in_the_end(writer: Writer) -> None:
    plane = _settled(writer)
    plane.fail(_job_of_second(plane, writer), StatusError(409, "Conflict", "no reason"))
    assert plane.settle() == []
    assert writer.shown(plane) == writer.both


def test_own_create_that_the_cache_does_not_show_is_not_repeated(writer: Writer) -> None:
    """kubernetes/kubernetes#93374."""
    plane = writer.plane()
    plane.run_job()
    held, plane.cluster.pending = plane.cluster.pending, []
    job = _job_of_second(plane, writer)
    assert [write.verb for write in job.writes] == ["update"]
    plane.finish(job)
    plane.cluster.pending[:0] = held
    plane.settle()
    assert plane.verbs() == ["create", "update"]
    assert _written(plane, writer)


@of_pods
def test_old_event_is_passed_over(name: str) -> None:
    """kubernetes/kubernetes#93374: a cache that has not seen our last write is not planned on."""
    plane = _settled(WRITERS[name])
    held = []
    for ready in (False, True):
        plane.show(make_pod("p-1", ready=ready))
        plane.run_job()
        held.append(plane.cluster.pending.pop())
    plane.cluster.pending = [held[0]]
    plane.deliver()
    assert plane.jobs(5.0) == ()
    plane.cluster.pending = [held[1]]
    plane.settle()
    assert len(plane.verbs()) == 3


def test_create_that_was_deleted_before_its_answer_came_is_made_again(writer: Writer) -> None:
    plane = writer.plane()
    (job,) = plane.jobs()
    done = plane.cluster.run(job)
    _remove_written(plane, writer)
    plane.deliver()
    plane.controller.on_done(done, plane.now)
    (job,) = plane.jobs(writer.misses_s)
    plane.finish(job)
    assert writer.shown(plane) == writer.both[:1]


def test_create_that_went_unseen_is_given_up_in_time(writer: Writer) -> None:
    """Made and deleted by others while the watch was broken: no event will ever tell."""
    plane = writer.plane()
    plane.run_job()
    _remove_written(plane, writer)
    plane.cluster.pending.clear()
    start = plane.now
    plane.settle()
    assert writer.shown(plane) == writer.both[:1]
    assert plane.now - start >= UNSEEN_TIMEOUT_S


@of_pods
def test_failed_pod_leaves_although_it_keeps_its_address(name: str) -> None:
    """kubernetes/kubernetes#109414: the address may be another Pod's soon."""
    plane = _settled(WRITERS[name])
    plane.put(make_pod("p-2"))
    plane.put(make_pod("p-1", phase="Failed"))
    assert WRITERS[name].shown(plane) == ["10.0.0.3"]


@pytest.mark.parametrize(
    ("name", "gone", "left"),
    [("endpoints", (Pods, "p-1"), ["10.0.0.3"]), ("mirrored", (EndpointsObjects, "web"), [])],
)
def test_deletion_that_only_a_relist_tells_of_converges(
    name: str, gone: tuple[Resource, str], left: list[str]
) -> None:
    """cilium#48050."""
    writer = WRITERS[name]
    plane = _settled(writer)
    plane.put(writer.second)
    plane.cluster.remove(gone[0], "shop", gone[1])
    plane.cluster.relist(plane.controller, plane.now)
    plane.settle()
    assert writer.shown(plane) == left


def test_terminating_namespace_ends_a_sync_without_a_word(writer: Writer) -> None:
    plane = writer.plane()
    (job,) = plane.jobs()
    cause = {"reason": "NamespaceTerminating", "message": "x", "field": "metadata.namespace"}
    plane.fail(job, forbidden(writer.resource.plural, writer.resource.group, "", "x", [cause]))
    work = plane.controller.take_work(plane.now, 10)
    assert (work.jobs, work.notes, plane.controller.next_deadline()) == ((), (), None)


def test_failures_back_off_and_are_given_up_after_fifteen(writer: Writer) -> None:
    plane = writer.plane()
    delays = []
    for _ in range(MAX_RETRIES + 1):
        (job,) = plane.jobs()
        plane.fail(job, internal("disk full"))
        deadline = plane.controller.next_deadline()
        if deadline is not None:
            delays.append(deadline - plane.now)
            plane.now = deadline
    assert delays == pytest.approx(writer.delays)
    plane.put(writer.second)
    assert writer.shown(plane) == writer.both


def test_nothing_is_done_before_the_caches_are_filled(writer: Writer) -> None:
    plane = writer.plane()
    controller, cluster = plane.make(), FakeCluster()
    for each in plane.cluster.objects.values():
        cluster.put(each)
    cluster.deliver(controller, 1000.0)
    assert (controller.take_work(2000.0, 10).jobs, controller.next_deadline()) == ((), None)
    controller.on_synced(2000.0)
    assert len(controller.take_work(2000.0, 10).jobs) == 1
