"""The EndpointSlice controller with features switched off: what it leaves out, and that it comes to
rest.
"""

from __future__ import annotations

from typing import Any

import pytest
from tests.slices.fake_cluster import FakeCluster, make_node, make_pod, make_service

from sliceplane.api.discovery import EndpointConditions, ForNode, ForZone, SliceEndpoint
from sliceplane.api.gates import Gates
from sliceplane.controllers.endpointslice import EndpointSliceConfig, EndpointSliceController
from sliceplane.slices.shape import HintMode, hint_mode


def cluster_of(*objects: Any) -> FakeCluster:
    cluster = FakeCluster()
    for each in (make_node("n0", "a"), *objects):
        cluster.put(each)
    return cluster


def settled(cluster: FakeCluster, gates: Gates) -> dict[str, SliceEndpoint]:
    """Endpoints by pod, as a controller that starts now leaves them."""
    controller = EndpointSliceController(EndpointSliceConfig(gates=gates))
    cluster.start(controller, 1000.0)
    cluster.settle(controller, 1000.0)
    controller.check()
    return {each.target_ref.name: each for each in cluster.endpoints() if each.target_ref}


@pytest.mark.parametrize(
    ("release", "value", "mode"),
    [
        ((1, 36), "PreferClose", HintMode.ZONE),
        ((1, 36), "PreferSameNode", HintMode.NODE),
        ((1, 33), "PreferClose", HintMode.ZONE),
        ((1, 33), "PreferSameZone", HintMode.NONE),
        ((1, 33), "PreferSameNode", HintMode.NONE),
        ((1, 30), "PreferClose", HintMode.NONE),
        ((1, 29), "PreferClose", HintMode.NONE),
    ],
)
def test_the_service_field_counts_only_while_its_gate_is_on(
    release: Any, value: str, mode: HintMode
) -> None:
    assert hint_mode(make_service(traffic_distribution=value), Gates(release)) is mode


def test_without_hints_at_all_the_field_has_no_effect() -> None:
    gates = Gates.parse("TopologyAwareHints=false", (1, 32))
    assert hint_mode(make_service(traffic_distribution="PreferClose"), gates) is HintMode.NONE


def test_hints_go_when_the_feature_goes_and_come_back_with_it() -> None:
    cluster = cluster_of(make_service(traffic_distribution="PreferSameNode"), make_pod("p-1"))
    on = settled(cluster, Gates())["p-1"].hints
    assert on is not None
    assert (on.for_zones, on.for_nodes) == ((ForZone(name="a"),), (ForNode(name="n0"),))
    assert settled(cluster, Gates((1, 33)))["p-1"].hints is None
    assert settled(cluster, Gates())["p-1"].hints == on


def test_without_node_names() -> None:
    cluster = cluster_of(make_service(), make_pod("p-1"))
    assert settled(cluster, Gates())["p-1"].node_name == "n0"
    endpoint = settled(cluster, Gates.parse("EndpointSliceNodeName=false"))["p-1"]
    assert (endpoint.node_name, endpoint.zone) == (None, "a")
    assert settled(cluster, Gates())["p-1"].node_name == "n0"


def test_without_the_terminating_condition() -> None:
    pods = (make_pod("p-1"), make_pod("p-2", terminating=True))
    cluster = cluster_of(make_service(), *pods)
    assert settled(cluster, Gates()).keys() == {"p-1", "p-2"}
    off = Gates((1, 21))
    endpoints = settled(cluster, off)
    assert {name: each.conditions for name, each in endpoints.items()} == {
        "p-1": EndpointConditions(ready=True)
    }
    published = cluster_of(make_service(publish_not_ready_addresses=True), *pods)
    assert settled(published, off).keys() == {"p-1", "p-2"}
    assert settled(cluster, Gates()).keys() == {"p-1", "p-2"}
