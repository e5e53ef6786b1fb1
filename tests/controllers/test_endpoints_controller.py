"""The Endpoints controller by name: what upstream got wrong once, and what a host and a reader may rely on."""

from __future__ import annotations

from typing import Any

import pytest
from tests.slices.fake_cluster import FakeCluster, make_pod, make_service, replace

from sliceplane.api.core import CoreEndpointPort, EndpointAddress, Endpoints, EndpointSubset, Pod, ServicePort
from sliceplane.api.discovery import (
    ANNOTATION_LEADER,
    ANNOTATION_OVER_CAPACITY,
    ANNOTATION_TRIGGER_TIME,
    LABEL_ENDPOINTS_MANAGED_BY,
    LABEL_HEADLESS,
    LABEL_SKIP_MIRROR,
)
from sliceplane.api.errors import StatusError, forbidden, internal
from sliceplane.api.gates import Gates
from sliceplane.api.meta import ObjectMeta
from sliceplane.api.scheme import EndpointsObjects, Pods, Services
from sliceplane.controllers.base import Done, Job
from sliceplane.controllers.endpoints import MAX_RETRIES, STRAY_DELAY_S, EndpointsConfig, EndpointsController
from sliceplane.controllers.first_sync import FirstSync
from sliceplane.endpoints.service import UNSEEN_TIMEOUT_S
from sliceplane.slices.succession import SelectorChanges

OURS = {LABEL_ENDPOINTS_MANAGED_BY: "endpoint-controller", LABEL_SKIP_MIRROR: "true"}
NAMED = (ServicePort(name="http", port=80, target_port="http"), ServicePort(name="x", port=81, target_port=9000))


class Plane:
    def __init__(self, *pods: Pod, config: EndpointsConfig | None = None, **service: Any) -> None:
        self.cluster = FakeCluster()
        self.cluster.put(make_service(**service))
        for pod in pods:
            self.cluster.put(pod)
        self.config = config
        self.now = 1000.0
        self.begin()

    def begin(self) -> None:
        self.first_sync = FirstSync()
        self.controller = EndpointsController(self.config, self.first_sync)
        self.cluster.start(self.controller, self.now)

    def settle(self) -> list[str]:
        self.now, notes = self.cluster.settle(self.controller, self.now)
        return [f"{note.reason}: {note.note}" for note in notes]

    def deliver(self) -> None:
        self.cluster.deliver(self.controller, self.now)

    def jobs(self, seconds: float = 0.0) -> tuple[Job, ...]:
        self.now += seconds
        return self.controller.take_work(self.now, 10).jobs

    def maybe(self, name: str = "web") -> Endpoints | None:
        found = self.cluster.objects.get((EndpointsObjects.key, "shop", name))
        assert found is None or isinstance(found, Endpoints)
        return found

    def one(self, name: str = "web") -> Endpoints:
        found = self.maybe(name)
        assert found is not None
        return found

    def subsets(self) -> list[tuple[list[str], list[str], list[int]]]:
        return [
            (
                [each.ip for each in subset.addresses or ()],
                [each.ip for each in subset.not_ready_addresses or ()],
                [port.port for port in subset.ports or ()],
            )
            for subset in self.one().subsets or ()
        ]

    def verbs(self) -> list[str]:
        return [write.verb for write in self.cluster.writes]


def custom(name: str = "web", *ips: str, **meta: Any) -> Endpoints:
    subset = EndpointSubset(
        addresses=tuple(EndpointAddress(ip=ip) for ip in ips or ("192.0.2.1",)), ports=(CoreEndpointPort(port=80),)
    )
    return Endpoints(metadata=ObjectMeta(name=name, namespace="shop", uid=f"custom-{name}", **meta), subsets=(subset,))


def many(count: int, *, ready: bool = True, first: int = 0) -> list[Pod]:
    return [
        make_pod(f"p-{number}", ips=(f"10.{number >> 8}.0.{number & 255}",), ready=ready)
        for number in range(first, first + count)
    ]


def test_endpoints_of_a_service_are_made() -> None:
    plane = Plane(
        make_pod("p-1"), make_pod("p-2", ready=False), make_pod("p-3", hostname="h", subdomain="web"), labels={"a": "b"}
    )
    plane.settle()
    found = plane.one()
    assert plane.subsets() == [(["10.0.0.2", "10.0.0.4"], ["10.0.0.3"], [8080])]
    assert found.metadata.labels == {"a": "b", **OURS}
    assert found.metadata.owner_references is None
    assert (found.metadata.annotations or {})[ANNOTATION_TRIGGER_TIME] == "2026-11-21T09:00:00Z"
    address = (found.subsets or ())[0].addresses[1]  # type: ignore[index]  # two are there
    assert (address.hostname, address.node_name) == ("h", "n0")
    assert address.target_ref is not None
    assert (address.target_ref.kind, address.target_ref.name, address.target_ref.uid) == ("Pod", "p-3", "uid-p-3")


def test_service_without_pods_has_empty_endpoints() -> None:
    plane = Plane()
    plane.settle()
    assert plane.one().subsets is None
    plane.cluster.put(make_pod("p-1"))
    plane.settle()
    plane.cluster.remove(Pods, "shop", "p-1")
    plane.settle()
    assert plane.one().subsets is None
    assert plane.verbs() == ["create", "update", "update"]


def test_pods_that_resolve_named_ports_differently() -> None:
    plane = Plane(make_pod("p-1", port=8080), make_pod("p-2", port=9090), ports=NAMED)
    plane.settle()
    assert plane.subsets() == [
        (["10.0.0.2"], [], [8080]),
        (["10.0.0.3"], [], [9090]),
        (["10.0.0.2", "10.0.0.3"], [], [9000]),
    ]
    plane.cluster.put(make_pod("p-2", port=8080))
    plane.settle()
    assert plane.subsets() == [(["10.0.0.2", "10.0.0.3"], [], [8080, 9000])]


def test_headless_service_without_ports_has_addresses_alone() -> None:
    plane = Plane(make_pod("p-1"), ports=(), cluster_ip="None")
    plane.settle()
    assert plane.subsets() == [(["10.0.0.2"], [], [])]
    assert (plane.one().metadata.labels or {})[LABEL_HEADLESS] == ""
    plane.cluster.put(make_service(ports=()))
    plane.settle()
    assert plane.subsets() == []
    assert LABEL_HEADLESS not in (plane.one().metadata.labels or {})


@pytest.mark.parametrize(
    ("spec", "wanted"),
    [
        ({"ip_families": ("IPv6", "IPv4")}, "fd00::2"),
        ({"ip_families": None, "cluster_ip": "fd00:10:96::1"}, "fd00::2"),
        ({"ip_families": None, "cluster_ip": "None"}, "10.0.0.2"),
    ],
)
def test_one_family_alone(spec: dict[str, Any], wanted: str) -> None:
    plane = Plane(make_pod("p-1", ips=("10.0.0.2", "fd00::2")), make_pod("p-2", ips=()), **spec)
    plane.settle()
    assert [subset[0] for subset in plane.subsets()] == [[wanted]]


def test_terminating_pods_are_out_unless_unready_ones_are_published() -> None:
    plane = Plane(make_pod("p-1"), make_pod("p-2", terminating=True), make_pod("p-3", phase="Failed"))
    plane.settle()
    assert plane.subsets() == [(["10.0.0.2"], [], [8080])]
    plane.cluster.put(make_service(publish_not_ready_addresses=True))
    plane.cluster.put(make_pod("p-1", ready=False))
    plane.settle()
    assert plane.subsets() == [(["10.0.0.2", "10.0.0.3"], [], [8080])]


def test_pod_on_an_unknown_node_is_an_address() -> None:
    """k/k#107927 did not concern Endpoints; it must stay so."""
    plane = Plane(make_pod("p-1", node="nowhere"))
    plane.settle()
    assert plane.subsets() == [(["10.0.0.2"], [], [8080])]


# Capacity


def test_address_1001_is_left_out_and_comes_back() -> None:
    """k/k#127370: the limit is crossed upward and downward, and the object keeps being reconciled."""
    plane = Plane(*many(1000))
    plane.settle()
    assert ANNOTATION_OVER_CAPACITY not in (plane.one().metadata.annotations or {})
    plane.cluster.put(many(1, first=1000)[0])
    assert plane.settle() == []
    assert len(plane.subsets()[0][0]) == 1000
    assert (plane.one().metadata.annotations or {})[ANNOTATION_OVER_CAPACITY] == "truncated"
    first = plane.subsets()[0][0][0]
    plane.cluster.remove(Pods, "shop", next(p.metadata.name for p in many(1001) if p.status.pod_ip == first))
    plane.settle()
    assert len(plane.subsets()[0][0]) == 1000
    assert first not in plane.subsets()[0][0]
    assert ANNOTATION_OVER_CAPACITY not in (plane.one().metadata.annotations or {})
    plane.cluster.put(make_pod("p-7", ips=("10.0.0.7",), ready=False))
    plane.settle()
    assert plane.subsets()[0][1] == ["10.0.0.7"]


def test_truncated_object_is_not_written_for_nothing() -> None:
    """Upstream writes it at every sync."""
    plane = Plane(*many(1500))
    plane.settle()
    assert plane.verbs() == ["create"]
    plane.cluster.put(make_service(annotations={"some": "thing"}))
    plane.settle()
    last = max(plane.cluster.objects.values(), key=lambda each: each.metadata.name if isinstance(each, Pod) else "")
    plane.cluster.put(replace(last, status=replace(last.status, conditions=None)))  # type: ignore[attr-defined]  # a Pod
    plane.settle()
    plane.begin()
    plane.settle()
    assert len(plane.verbs()) <= 2, "a Pod beyond the limit may become not ready without a write"


def test_unready_addresses_get_what_ready_ones_leave() -> None:
    plane = Plane(*many(900), *many(300, ready=False, first=900))
    plane.settle()
    assert [(len(a), len(b)) for a, b, _ in plane.subsets()] == [(900, 100)]


@pytest.mark.parametrize(("release", "kept", "word"), [((1, 20), 1001, None), ((1, 21), 1001, "warning")])
def test_older_releases_warn_or_do_not_know_of_it(release: tuple[int, int], kept: int, word: str | None) -> None:
    plane = Plane(*many(1001), config=EndpointsConfig(gates=Gates(release)))
    plane.settle()
    assert len(plane.subsets()[0][0]) == kept
    assert (plane.one().metadata.annotations or {}).get(ANNOTATION_OVER_CAPACITY) == word
    before = len(plane.verbs())
    plane.begin()
    plane.settle()
    assert len(plane.verbs()) == before


# Writes, answers, caches


def test_restart_with_everything_in_place_writes_nothing() -> None:
    """nacos#10209, k/k#82494: nor does it ever show an empty list."""
    plane = Plane(make_pod("p-1", port=8080), make_pod("p-2", port=9090, ready=False), ports=NAMED, labels={"x": "y"})
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
                replace(a, target_ref=replace(a.target_ref, resource_version="5")) for a in each.addresses or ()
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
    monkeypatch.setattr("sliceplane.endpoints.writes.text_of", read.append)
    plane.cluster.put(make_pod("p-1", ips=("10.0.0.1",), ready=False))
    monkeypatch.setattr(EndpointsController, "check", lambda self: None)
    plane.settle()
    assert plane.verbs() == ["create", "update"]
    assert read == []


def test_lag_conflict_and_double_flip_converge_without_a_further_event() -> None:
    """k/k#127429: ready, not ready, ready within the watch's lag, and a conflict."""
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
    plane.cluster.put(replace(plane.one(), subsets=None))  # a foreign edit that the watch does not show yet
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
    """Its versions are smaller than those that we know, and what it refuses twice is not so any more."""
    plane = Plane(make_pod("p-1"))
    plane.settle()
    plane.cluster.revision = 1
    plane.cluster.put(replace(plane.one(), subsets=None))
    plane.cluster.put(make_pod("p-2"))
    plane.cluster.relist(plane.controller, plane.now)
    plane.settle()
    assert plane.subsets() == [(["10.0.0.2", "10.0.0.3"], [], [8080])]


def test_old_event_is_passed_over() -> None:
    """k/k#93374: a cache that has not seen our last write is not planned on."""
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
    assert plane.now - start >= UNSEEN_TIMEOUT_S


def test_deleted_endpoints_are_made_again_and_edits_are_undone() -> None:
    plane = Plane(make_pod("p-1"))
    plane.settle()
    plane.cluster.remove(EndpointsObjects, "shop", "web")
    plane.settle()
    assert plane.subsets() == [(["10.0.0.2"], [], [8080])]
    found = plane.one()
    plane.cluster.put(
        replace(found, subsets=custom().subsets, metadata=replace(found.metadata, labels={**OURS, "odd": "1"}))
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
    """k/k#109414: the address may be another Pod's soon."""
    plane = Plane(make_pod("p-1"), make_pod("p-2"))
    plane.settle()
    plane.cluster.put(make_pod("p-1", phase="Failed"))
    plane.settle()
    assert plane.subsets() == [(["10.0.0.3"], [], [8080])]


def test_ghost_and_live_pod_share_an_address() -> None:
    """k/k#135334: the one that terminates is out, the live one in."""
    plane = Plane(make_pod("p-1", terminating=True, ips=("10.0.0.9",)), make_pod("p-2", ips=("10.0.0.9",)))
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


def test_pod_event_cost_is_flat_in_services_of_the_namespace() -> None:
    """k/k#134739.  Counted, not timed."""
    plane = Plane()
    for number in range(300):
        plane.cluster.put(make_service(f"s{number}", selector={"part-of": "shop", "app": f"app-{number}"}))
    plane.deliver()
    assert plane.controller._engine._selectors.probes("shop", {"part-of": "shop", "app": "app-7"}) <= 2


def test_churn_leaves_nothing_behind() -> None:
    """k/k#128928."""
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
    plane = Plane(make_pod("p-1"), make_pod("p-2"), config=EndpointsConfig(endpoint_updates_batch_period_s=5.0))
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
    assert (note.regarding.kind, note.regarding.metadata.uid) == ("Endpoints", plane.one().metadata.uid)


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
    assert (plane.one().metadata.annotations or {})[ANNOTATION_TRIGGER_TIME] == "2026-11-21T10:04:00Z"
    plane.cluster.put(make_service(labels={"a": "b"}))
    plane.settle()
    assert ANNOTATION_TRIGGER_TIME not in (plane.one().metadata.annotations or {})


# Objects without a Service, and of others


def test_endpoints_go_with_their_service() -> None:
    plane = Plane(make_pod("p-1"))
    plane.settle()
    plane.cluster.remove(Services, "shop", "web")
    plane.settle()
    assert plane.maybe() is None
    assert plane.controller._engine._states == {}


def test_strays_go_at_the_start_but_for_leases() -> None:
    plane = Plane()
    plane.cluster.put(custom("stray"))
    plane.cluster.put(custom("lease", annotations={ANNOTATION_LEADER: "{}"}))
    began = plane.now
    plane.begin()
    plane.settle()
    assert plane.maybe("stray") is None
    assert plane.maybe("lease") is not None
    assert plane.now >= began + STRAY_DELAY_S
    plane.cluster.put(custom("later"))
    plane.settle()
    assert plane.maybe("later") is not None, "upstream leaves it until its next start, too"


def test_stray_whose_service_turns_up_is_spared() -> None:
    plane = Plane()
    plane.cluster.put(custom("late"))
    plane.begin()
    plane.jobs(STRAY_DELAY_S / 2)
    plane.cluster.put(make_service("late", selector=None))
    plane.settle()
    assert plane.maybe("late") == plane.cluster.cache[EndpointsObjects.key, "shop", "late"]


@pytest.mark.parametrize("change", [{"selector": None}, {"selector": {}}, {"type": "ExternalName"}])
def test_endpoints_of_others_are_left_alone(change: dict[str, Any]) -> None:
    plane = Plane(make_pod("p-1"), **change)
    stored = plane.cluster.put(custom(labels={LABEL_SKIP_MIRROR: "true"}))
    plane.begin()
    plane.settle()
    assert plane.one() == stored
    assert plane.verbs() == []


def test_endpoints_of_the_api_server_are_its_own() -> None:
    plane = Plane()
    service = make_service("kubernetes", selector=None)
    plane.cluster.put(service)
    stored = plane.cluster.put(custom("kubernetes", labels={LABEL_SKIP_MIRROR: "true"}))
    plane.begin()
    plane.settle()
    assert plane.one("kubernetes") == stored


# The selector's life


def test_selector_added_takes_over_endpoints_that_are_there() -> None:
    """KEP-0752, test plan: the skip label is added to the existing object."""
    plane = Plane(make_pod("p-1"), selector=None)
    plane.cluster.put(custom(annotations={"note": "mine"}))
    plane.settle()
    plane.cluster.put(make_service())
    plane.settle()
    assert plane.subsets() == [(["10.0.0.2"], [], [8080])]
    assert plane.one().metadata.labels == OURS
    assert (plane.one().metadata.annotations or {})["note"] == "mine"


def test_selector_removed_hands_endpoints_over() -> None:
    """k/k#103804, #105987: nobody else would know that they may be mirrored now."""
    plane = Plane(make_pod("p-1"), labels={"a": "b"})
    plane.settle()
    before = plane.one()
    plane.cluster.put(make_service(selector=None, labels={"a": "b"}))
    plane.settle()
    assert plane.one().subsets == before.subsets
    assert plane.one().metadata.labels == {"a": "b"}
    plane.cluster.put(make_pod("p-1", ready=False))
    plane.settle()
    assert plane.one().subsets == before.subsets
    plane.cluster.put(make_service())
    plane.settle()
    assert plane.subsets() == [([], ["10.0.0.2"], [8080])]


def test_selector_removed_before_the_cache_shows_the_object() -> None:
    plane = Plane(make_pod("p-1"))
    (job,) = plane.jobs()
    plane.controller.on_done(plane.cluster.run(job), plane.now)
    held, plane.cluster.pending = plane.cluster.pending, []
    plane.cluster.put(make_service(selector=None))
    plane.deliver()
    assert plane.jobs(1.0) == ()
    plane.cluster.pending = held
    plane.settle()
    assert plane.one().metadata.labels is None
    assert plane.subsets() == [(["10.0.0.2"], [], [8080])]


def test_selector_that_was_removed_while_nobody_looked_is_handed_over_at_the_start() -> None:
    plane = Plane(make_pod("p-1"))
    plane.settle()
    plane.cluster.put(make_service(selector=None))
    plane.begin()
    plane.settle()
    assert plane.one().metadata.labels is None


def test_external_name_and_back() -> None:
    """k/k#118376, #125354."""
    plane = Plane(make_pod("p-1"))
    plane.settle()
    plane.cluster.put(make_service(type="ExternalName"))
    plane.settle()
    assert plane.maybe() is None
    plane.cluster.put(make_service())
    plane.settle()
    assert plane.subsets() == [(["10.0.0.2"], [], [8080])]


def test_upstreams_way_leaves_everything_where_it_is() -> None:
    plane = Plane(make_pod("p-1"), config=EndpointsConfig(selector_changes=SelectorChanges.UPSTREAM))
    plane.settle()
    before = plane.one()
    assert LABEL_SKIP_MIRROR not in (before.metadata.labels or {})
    for change in ({"selector": None}, {"type": "ExternalName"}):
        plane.cluster.put(make_service(**change))
        plane.settle()
        assert plane.one() == before


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
