"""What endpoints and slices look like, as upstream makes them, and what waits for the batch."""

from __future__ import annotations

from typing import Any

import pytest
from tests.controllers.slices_plane import Plane
from tests.slices.fake_cluster import make_node, make_pod, make_service, replace

from sliceplane.api.core import Pod, ServicePort
from sliceplane.api.discovery import LABEL_MANAGED_BY, LABEL_SERVICE_NAME, MANAGED_BY_CONTROLLER
from sliceplane.api.scheme import EndpointSlices, Nodes, Pods
from sliceplane.controllers.endpointslice import EndpointSliceConfig, EndpointSliceController
from sliceplane.watch.controller.base import Done


def batching(*pods: Pod) -> Plane:
    plane = Plane(*pods, config=EndpointSliceConfig(endpointslice_updates_batch_period_s=10.0))
    plane.settle()
    return plane


@pytest.mark.parametrize(
    "over",
    [
        {"ready": False},
        {"terminating": True},
        {"phase": "Failed"},
        {"labels": {"app": "db"}},
        {"ips": ("10.9.9.9",)},
        {"ips": ()},
        {"node": "unknown"},
        {"hostname": "h", "subdomain": "web"},
    ],
)
def test_what_traffic_must_leave_never_waits(over: dict[str, Any]) -> None:
    plane = batching(make_pod("p-1"), make_pod("p-2"))
    plane.cluster.put(make_pod("p-3"))
    plane.deliver()
    assert plane.jobs() == ()
    plane.cluster.put(make_pod("p-1", **over))
    plane.deliver()
    (job,) = plane.jobs()
    (write,) = job.writes
    assert b'"p-3"' in write.body  # what was held back so far goes with it


def test_a_deleted_pod_never_waits() -> None:
    plane = batching(make_pod("p-1"), make_pod("p-2"))
    plane.cluster.remove(Pods, "shop", "p-1")
    plane.deliver()
    assert len(plane.jobs()) == 1


def test_a_named_port_that_moves_never_waits() -> None:
    plane = batching(make_pod("p-1"), make_pod("p-2"))
    plane.cluster.put(make_service(ports=(ServicePort(name="http", port=80, target_port="http"),)))
    plane.settle()
    plane.cluster.put(make_pod("p-1", port=9090))
    plane.deliver()
    assert len(plane.jobs()) == 1


def test_a_node_that_goes_takes_its_endpoints_at_once_and_a_zone_waits() -> None:
    plane = batching(make_pod("p-1"))
    plane.cluster.put(make_node("n0", "b"))
    plane.deliver()
    assert plane.jobs() == ()
    plane.cluster.remove(Nodes, "", "n0")
    plane.deliver()
    assert len(plane.jobs()) == 1


@pytest.mark.parametrize(
    "over", [{"uid": "another"}, {"since": "2026-11-21T10:00:09Z", "ready": True}]
)
def test_what_is_no_removal_waits(over: dict[str, Any]) -> None:
    plane = batching(make_pod("p-1", terminating=True), make_pod("p-2", ready=False))
    plane.cluster.put(make_pod("p-2", **over))
    plane.deliver()
    assert plane.jobs() == ()
    assert len(plane.jobs(10.0)) == 1


def test_slices_of_ours_are_seen_after_the_longer_of_a_second_and_the_batch_period() -> None:
    for period, delay in ((0.0, 1.0), (10.0, 10.0)):
        plane = Plane(
            make_pod("p-1"), config=EndpointSliceConfig(endpointslice_updates_batch_period_s=period)
        )
        plane.settle()
        plane.cluster.put(replace(plane.slice(), endpoints=()))
        plane.deliver()
        assert plane.controller.next_deadline() == plane.now + delay


# -- what an endpoint says


@pytest.mark.parametrize(
    ("pod", "publish", "conditions"),
    [
        ({"ready": True}, False, (True, True, False)),
        ({"ready": False}, False, (False, False, False)),
        ({"ready": True, "terminating": True}, False, (False, True, True)),
        ({"ready": False, "terminating": True}, False, (False, False, True)),
        ({"ready": False}, True, (True, False, False)),
        ({"ready": False, "terminating": True}, True, (True, False, True)),
    ],
)
def test_conditions(
    pod: dict[str, Any], publish: bool, conditions: tuple[bool, bool, bool]
) -> None:
    plane = Plane(make_pod("p-1", **pod))
    plane.cluster.put(make_service(publish_not_ready_addresses=publish))
    plane.settle()
    found = plane.cluster.endpoints()[0].conditions
    assert (found.ready, found.serving, found.terminating) == conditions


def test_a_pod_deleted_while_unready_leaves_only_with_its_object() -> None:
    plane = Plane(make_pod("p-1", ready=False))
    plane.settle()
    plane.cluster.put(make_pod("p-1", ready=False, terminating=True))
    plane.settle()
    assert plane.cluster.endpoints()[0].conditions.terminating
    plane.cluster.remove(Pods, "shop", "p-1")
    plane.settle()
    assert plane.cluster.endpoints() == []


def test_a_hostname_counts_with_the_services_name_as_subdomain() -> None:
    pods = (
        make_pod("p-1", hostname="db-0", subdomain="web"),
        make_pod("p-2", hostname="db-1", subdomain="other"),
        make_pod("p-3", hostname="db-2"),
    )
    plane = Plane(*pods)
    plane.cluster.put(make_service(cluster_ip="None"))
    plane.settle()
    assert [each.hostname for each in plane.cluster.endpoints()] == ["db-0", None, None]


def test_pods_with_unequal_named_ports_are_in_slices_of_their_own() -> None:
    plane = Plane(make_pod("p-1"), make_pod("p-2", port=9090), make_pod("p-3"))
    plane.cluster.put(make_service(ports=(ServicePort(name="http", port=80, target_port="http"),)))
    plane.settle()
    found = {
        each.ports[0].port: len(each.endpoints or ())
        for each in plane.cluster.slices()
        if each.ports
    }
    assert found == {8080: 2, 9090: 1}


def test_ports_that_no_pod_has_leave_endpoints_without_ports() -> None:
    plane = Plane(make_pod("p-1"))
    plane.cluster.put(make_service(ports=(ServicePort(name="x", port=80, target_port="absent"),)))
    plane.settle()
    assert (plane.slice().ports, plane.addresses()) == ((), ["10.0.0.2"])


def test_dual_stack_has_slices_of_both_families_and_loses_the_one_that_goes() -> None:
    plane = Plane(make_pod("p-1", ips=("10.0.0.1", "fd00::1")), make_pod("p-2"))
    plane.cluster.put(make_service(ip_families=("IPv4", "IPv6")))
    plane.settle()
    assert {each.address_type: len(each.endpoints or ()) for each in plane.cluster.slices()} == {
        "IPv4": 2,
        "IPv6": 1,
    }
    plane.cluster.put(make_service(ip_families=("IPv6",)))
    plane.settle()
    assert plane.addresses() == ["fd00::1"]


def test_labels_are_the_services_and_reserved_ones_are_ours() -> None:
    labels = {
        "team": "a",
        "kubernetes.io/service-name": "stolen",
        "endpointslice.kubernetes.io/managed-by": "stolen",
        "service.kubernetes.io/headless": "stolen",
    }
    plane = Plane(make_pod("p-1"))
    plane.cluster.put(make_service(labels=labels, annotations={"not": "copied"}))
    plane.settle()
    ours = {
        "kubernetes.io/service-name": "web",
        "endpointslice.kubernetes.io/managed-by": MANAGED_BY_CONTROLLER,
    }
    assert plane.slice().metadata.labels == {"team": "a", **ours}
    assert "not" not in (plane.slice().metadata.annotations or {})
    plane.cluster.put(make_service(cluster_ip="None"))
    plane.settle()
    assert plane.slice().metadata.labels == {**ours, "service.kubernetes.io/headless": ""}
    odd = replace(
        plane.slice(), metadata=replace(plane.slice().metadata, labels={**ours, "foreign": "x"})
    )
    plane.cluster.put(odd)
    plane.settle()
    assert plane.slice().metadata.labels == {**ours, "service.kubernetes.io/headless": ""}


def test_a_slice_that_comes_under_our_label_is_ours_from_then_on() -> None:
    """Those without a manager, or of another one, are left alone until somebody gives them our
    label.
    """
    plane = Plane(make_pod("p-1"))
    plane.settle()
    own = plane.slice()
    ours = own.metadata.labels or {}
    for number, manager in enumerate((None, "somebody-else")):
        labels = {"kubernetes.io/service-name": "web"}
        if manager:
            labels["endpointslice.kubernetes.io/managed-by"] = manager
        meta = replace(own.metadata, name=f"old-{number}", uid=f"old-{number}", labels=labels)
        foreign = plane.cluster.put(replace(own, metadata=meta))
        plane.settle()
        assert len(plane.cluster.slices()) == 2, "somebody else's slice was touched"
        plane.cluster.put(replace(foreign, metadata=replace(meta, labels=ours)))
        plane.settle()
        assert len(plane.cluster.slices()) == 1, "its endpoints are in another slice already"
    assert plane.addresses() == ["10.0.0.2"]


def test_a_slice_that_moves_to_another_service_syncs_both() -> None:
    plane = Plane(make_pod("p-1"))
    plane.cluster.put(make_service("api"))
    plane.settle()
    one = next(each for each in plane.cluster.slices() if each.metadata.name.startswith("api"))
    labels = {**(one.metadata.labels or {}), "kubernetes.io/service-name": "web"}
    plane.cluster.put(replace(one, metadata=replace(one.metadata, labels=labels)))
    plane.settle()
    assert sorted(s.metadata.name.partition("-")[0] for s in plane.cluster.slices()) == [
        "api",
        "web",
    ]
    assert len(plane.cluster.endpoints()) == 2


def test_slices_from_before_the_managed_by_label_are_claimed_on_request() -> None:
    """KEP-0752 as of 2019: 1.17 takes over what the controller of 1.16 made; nobody else's."""

    def unlabelled(plane: Plane) -> None:
        (found,) = plane.cluster.slices()
        kept = {k: v for k, v in (found.metadata.labels or {}).items() if k != LABEL_MANAGED_BY}
        plane.cluster.put(replace(found, metadata=replace(found.metadata, labels=kept)))
        user = replace(found.metadata, name="mine", uid="mine", labels=kept, owner_references=None)
        plane.cluster.put(replace(found, metadata=user))

    for claim, expected in ((True, ["update"]), (False, ["create"])):
        plane = Plane(make_pod("p-1"))
        plane.settle()
        unlabelled(plane)
        plane.controller = EndpointSliceController(
            EndpointSliceConfig(claim_unlabelled_slices=claim)
        )
        plane.cluster.writes.clear()
        plane.cluster.start(plane.controller, plane.now)
        plane.settle()
        assert [write.verb for write in plane.cluster.writes] == expected
        assert [
            each.metadata.labels for each in plane.cluster.slices() if each.metadata.name == "mine"
        ] == [{LABEL_SERVICE_NAME: "web"}]


def test_an_answer_does_not_undo_what_the_cache_showed_after_it() -> None:
    """Who takes the owner out does not raise the generation, and his change came before the answer
    to ours.
    """
    plane = Plane(make_pod("p-1", ips=("10.0.0.1",)))
    plane.settle()
    plane.cluster.put(make_pod("p-2", ips=("10.0.0.2",)))
    plane.deliver()
    (job,) = plane.jobs(1.0)
    assert [each.verb for each in job.writes] == ["update"]
    answer = plane.cluster.perform(job.writes[0])
    ours = plane.slice()
    plane.cluster.put(
        replace(ours, metadata=replace(ours.metadata, owner_references=None)), EndpointSlices
    )
    plane.deliver()
    plane.controller.on_done(Done(job, (answer,)), plane.now)
    plane.settle()
    assert plane.slice().metadata.owner_references, "a slice that nobody owns is replaced"
    assert plane.addresses() == ["10.0.0.1", "10.0.0.2"]
