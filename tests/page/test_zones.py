"""Zones: what each Service's policy and hints make of its connections, added up over Services."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.effort import effort

from sliceplane.api.core import Node, NodeSpec, Service, ServiceSpec
from sliceplane.api.discovery import (
    EndpointConditions,
    EndpointHints,
    EndpointSlice,
    ForNode,
    ForZone,
    SliceEndpoint,
)
from sliceplane.api.meta import ObjectMeta, ObjectReference
from sliceplane.diagnose.page.feed import PageView
from sliceplane.diagnose.page.model import ClusterModel
from sliceplane.diagnose.page.views import Views
from sliceplane.watch.cache import Change

#: node -> zone; all endpoints are on the first two
NODES = {"n1": "z1", "n2": "z2", "n3": "z2", "n4": ""}


def put_node(model: ClusterModel, name: str, zone: str, *, closed: bool = False) -> None:
    labels = {"topology.kubernetes.io/zone": zone} if zone else {}
    new = Node(metadata=ObjectMeta(name=name, labels=labels), spec=NodeSpec(unschedulable=closed))
    model.on_nodes([Change("nodes", model.nodes.get(name), new)])


def put_service(
    model: ClusterModel, name: str, policy: str = "Cluster", **annotations: str
) -> None:
    new = Service(
        metadata=ObjectMeta(name=name, namespace="n", annotations=annotations),
        spec=ServiceSpec(internal_traffic_policy=policy),
    )
    model.on_services([Change("services", model.services.get(f"n/{name}"), new)])


def cluster(
    hints: str = "", policy: str = "Cluster", nodes: dict[str, str] = NODES
) -> ClusterModel:
    """Service ``web`` with an endpoint on ``n1`` and one on ``n2``, in both families."""
    model = ClusterModel()
    for name, zone in nodes.items():
        put_node(model, name, zone)
    put_service(model, "web", policy)
    for family, address in (("IPv4", "10.0.0.{}"), ("IPv6", "fd00::{}")):
        endpoints = tuple(
            SliceEndpoint(
                addresses=(address.format(number),),
                zone=NODES[node],
                node_name=node,
                hints=EndpointHints(
                    for_zones=(ForZone(name=NODES[node]),) if hints else None,
                    for_nodes=(ForNode(name=node),) if hints == "node" else None,
                ),
            )
            for number, node in enumerate(("n1", "n2"), 1)
        )
        item = EndpointSlice(
            metadata=ObjectMeta(
                name=f"web-{family}", namespace="n", labels={"kubernetes.io/service-name": "web"}
            ),
            address_type=family,
            endpoints=endpoints,
        )
        model.on_slices([Change("slices", None, item)], 0.0, is_news=False)
    return model


def part(view: PageView, name: str) -> object:
    return view.parts[name]


EVEN = {"z1": 0.5, "z2": 0.5}


@pytest.mark.parametrize(
    ("hints", "policy", "shares", "cross", "dropped", "load"),
    [
        ("", "Cluster", {"": EVEN, "z1": EVEN, "z2": EVEN}, 1 / 4 + 3 / 8, 0, {"z1": 1, "z2": 1}),
        (
            "zone",
            "Cluster",
            {"": EVEN, "z1": {"z1": 1}, "z2": {"z2": 1}},
            1 / 4,
            0,
            {"z1": 3 / 4, "z2": 5 / 4},
        ),
        (
            "node",
            "Cluster",
            {"": EVEN, "z1": {"z1": 1}, "z2": {"z2": 1}},
            1 / 4,
            0,
            {"z1": 3 / 4, "z2": 5 / 4},
        ),
        (
            "",
            "Local",
            {"": {}, "z1": {"z1": 1}, "z2": {"z2": 1 / 2}},
            0,
            1 / 2,
            {"z1": 1 / 2, "z2": 1 / 2},
        ),
    ],
)
def test_the_matrix_follows_hints_and_the_policy(
    hints: str, policy: str, shares: object, cross: float, dropped: float, load: object
) -> None:
    view = Views(cluster(hints, policy)).zones("")
    assert (part(view, "shares"), part(view, "load")) == (shares, load)
    assert (part(view, "cross"), part(view, "dropped")) == (cross, dropped)
    assert part(view, "leaving") == ((("n/web", cross),) if cross else ())
    assert part(view, "nodes") == {"": 1, "z1": 1, "z2": 2}
    assert view.command == "sliceplane explain zone z1"


def test_a_policy_a_node_and_a_service_that_change_count_at_once() -> None:
    model = cluster()
    views = Views(model)
    assert part(views.zones(""), "dropped") == 0
    put_service(model, "web", "Local")
    assert part(views.zones(""), "dropped") == 1 / 2
    put_node(model, "n3", "z2", closed=True)
    assert part(views.zones(""), "dropped") == pytest.approx(1 / 3)
    put_service(model, "none")
    assert (part(views.zones(""), "services"), part(views.zones("n/none"), "services")) == (1, 0)


@pytest.mark.parametrize("hints", ["zone", "node"])
def test_measured_zones_are_where_clients_are(hints: str) -> None:
    model = cluster(hints)
    views = Views(model)
    asks = {"service.kubernetes.io/topology-mode": "sliceplane.dev/Measured"}
    assert part(views.zones("n/web"), "demand") == {}
    shares = {"sliceplane.dev/measured-shares": "z1=48/64,z2=16/64"}
    put_service(model, "web", **asks, **shares)
    view = views.zones("n/web")
    assert part(view, "demand") == {"z1": 0.75, "z2": 0.25}
    assert part(view, "load") == {"z1": 1.5, "z2": 0.5}
    assert part(view, "cross") == 0
    assert part(view, "shares") == {"": {}, "z1": {"z1": 1}, "z2": {"z2": 1}}
    assert part(views.zones(""), "demand") == {}, "of one Service alone"
    put_service(model, "web", **shares)
    assert part(views.zones("n/web"), "demand") == {}, "it does not ask"
    put_service(model, "web", **asks, **{"sliceplane.dev/measured-shares": "z1=48/64"})
    assert part(views.zones("n/web"), "demand") == {}, "a part is missing"
    put_service(model, "web", "Local", **asks, **shares)
    assert part(views.zones("n/web"), "demand") == {}, "hints do not count"


def test_services_count_the_same() -> None:
    model = cluster("zone")
    put_service(model, "api")
    item = EndpointSlice(
        metadata=ObjectMeta(
            name="api", namespace="n", labels={"kubernetes.io/service-name": "api"}
        ),
        address_type="IPv4",
        endpoints=(SliceEndpoint(addresses=("10.0.0.9",), zone="z1"),),
    )
    model.on_slices([Change("slices", None, item)], 0.0, is_news=False)
    view = Views(model).zones("")
    assert part(view, "shares") == {
        "": {"z1": 0.75, "z2": 0.25},
        "z1": {"z1": 1},
        "z2": {"z1": 0.5, "z2": 0.5},
    }
    assert part(view, "leaving") == (("n/api", 3 / 4), ("n/web", 1 / 4))


moves = st.tuples(
    st.sampled_from(["web", "api"]),
    st.sampled_from("ab"),
    st.sampled_from(["IPv4", "IPv6"]),
    st.none()
    | st.dictionaries(
        st.integers(1, 4), st.tuples(st.sampled_from(["", "z1", "z2"]), st.booleans())
    ),
)


@effort(40)
@given(st.lists(moves, min_size=1, max_size=12))
def test_a_matrix_that_follows_changes_is_that_of_a_first_look(history: list[Any]) -> None:
    """Pods move between slices and families, slices come and go."""
    model = ClusterModel()
    for name, zone in NODES.items():
        put_node(model, name, zone)
    put_service(model, "web")
    put_service(model, "api", "Local")
    kept = Views(model)
    slices: dict[str, EndpointSlice] = {}
    for service, piece, family, pods in history:
        name = f"{service}-{piece}-{family}"
        endpoints = tuple(
            SliceEndpoint(
                addresses=(f"10.0.0.{number}" if family == "IPv4" else f"fd00::{number}",),
                zone=zone,
                node_name=f"n{number}",
                conditions=EndpointConditions(ready=ready),
                target_ref=ObjectReference(kind="Pod", name=f"p{number}", uid=f"u{number}"),
            )
            for number, (zone, ready) in sorted((pods or {}).items())
        )
        meta = ObjectMeta(name=name, namespace="n", labels={"kubernetes.io/service-name": service})
        new = (
            None
            if pods is None
            else EndpointSlice(metadata=meta, address_type=family, endpoints=endpoints)
        )
        old = slices.pop(name, None)
        if new is not None:
            slices[name] = new
        if old is not None or new is not None:
            model.on_slices([Change("slices", old, new)], 0.0, is_news=True)
        assert kept.zones("") == Views(model).zones("")


def test_without_nodes_there_are_no_clients() -> None:
    view = Views(cluster(nodes={})).zones("")
    assert (part(view, "shares"), part(view, "services"), part(view, "cross")) == ({}, 0, 0)
