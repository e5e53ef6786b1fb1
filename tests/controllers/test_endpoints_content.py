"""What Endpoints are made of: addresses, ports, labels, and which addresses are left out of a full
object.
"""

from __future__ import annotations

from typing import Any

import pytest
from tests.controllers.endpoints_plane import NAMED, OURS, Plane, many
from tests.slices.fake_cluster import make_pod, make_service, replace

from sliceplane.api.core import Pod
from sliceplane.api.discovery import (
    ANNOTATION_OVER_CAPACITY,
    ANNOTATION_TRIGGER_TIME,
    LABEL_HEADLESS,
)
from sliceplane.api.gates import Gates
from sliceplane.api.scheme import Pods
from sliceplane.controllers.endpoints import EndpointsConfig


def test_endpoints_of_a_service_are_made() -> None:
    plane = Plane(
        make_pod("p-1"),
        make_pod("p-2", ready=False),
        make_pod("p-3", hostname="h", subdomain="web"),
        labels={"a": "b"},
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
    assert (address.target_ref.kind, address.target_ref.name, address.target_ref.uid) == (
        "Pod",
        "p-3",
        "uid-p-3",
    )


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
    plane = Plane(
        make_pod("p-1"), make_pod("p-2", terminating=True), make_pod("p-3", phase="Failed")
    )
    plane.settle()
    assert plane.subsets() == [(["10.0.0.2"], [], [8080])]
    plane.cluster.put(make_service(publish_not_ready_addresses=True))
    plane.cluster.put(make_pod("p-1", ready=False))
    plane.settle()
    assert plane.subsets() == [(["10.0.0.2", "10.0.0.3"], [], [8080])]


def test_pod_on_an_unknown_node_is_an_address() -> None:
    """kubernetes/kubernetes#107927 did not concern Endpoints; it must stay so."""
    plane = Plane(make_pod("p-1", node="nowhere"))
    plane.settle()
    assert plane.subsets() == [(["10.0.0.2"], [], [8080])]


# Capacity


def test_kubernetes_127370_address_1001_is_left_out_and_comes_back() -> None:
    """kubernetes/kubernetes#127370: the limit is crossed upward and downward, and the object keeps
    being reconciled.
    """
    plane = Plane(*many(1000))
    plane.settle()
    assert ANNOTATION_OVER_CAPACITY not in (plane.one().metadata.annotations or {})
    plane.cluster.put(many(1, first=1000)[0])
    assert plane.settle() == []
    assert len(plane.subsets()[0][0]) == 1000
    assert (plane.one().metadata.annotations or {})[ANNOTATION_OVER_CAPACITY] == "truncated"
    first = plane.subsets()[0][0][0]
    plane.cluster.remove(
        Pods, "shop", next(p.metadata.name for p in many(1001) if p.status.pod_ip == first)
    )
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
    last = max(
        plane.cluster.objects.values(),
        key=lambda each: each.metadata.name if isinstance(each, Pod) else "",
    )
    plane.cluster.put(replace(last, status=replace(last.status, conditions=None)))  # type: ignore[attr-defined]  # a Pod
    plane.settle()
    plane.begin()
    plane.settle()
    assert len(plane.verbs()) <= 2, "a Pod beyond the limit may become not ready without a write"


def test_unready_addresses_get_what_ready_ones_leave() -> None:
    plane = Plane(*many(900), *many(300, ready=False, first=900))
    plane.settle()
    assert [(len(a), len(b)) for a, b, _ in plane.subsets()] == [(900, 100)]


@pytest.mark.parametrize(
    ("release", "kept", "word"), [((1, 20), 1001, None), ((1, 21), 1001, "warning")]
)
def test_older_releases_warn_or_do_not_know_of_it(
    release: tuple[int, int], kept: int, word: str | None
) -> None:
    plane = Plane(*many(1001), config=EndpointsConfig(gates=Gates(release)))
    plane.settle()
    assert len(plane.subsets()[0][0]) == kept
    assert (plane.one().metadata.annotations or {}).get(ANNOTATION_OVER_CAPACITY) == word
    before = len(plane.verbs())
    plane.begin()
    plane.settle()
    assert len(plane.verbs()) == before
