"""Where a table leads is read from its listing alone; what a hook does not ask is not served."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from sliceplane.api.core import Service
from sliceplane.api.discovery import EndpointSlice
from sliceplane.consume.served import ClusterDestination, ServedTarget
from sliceplane.node.nft.listing import Form, expected
from sliceplane.node.nft.objects import contents_of
from sliceplane.node.nft.served import hairpins, served
from sliceplane.node.nft.table import nft_plane
from sliceplane.node.plane import NodePlaneConfig
from sliceplane.node.snapshot import NodeObjects, feed

ONE, SEVERAL, STICKY, OUTSIDE, EMPTY = (
    ClusterDestination(f"10.96.0.{number}", "tcp", 80) for number in range(1, 6)
)


def _service(name: str, ip: str, endpoints: int, **spec: Any) -> tuple[Service, EndpointSlice]:
    ports = [
        {
            "name": "http",
            "port": 80,
            "protocol": "TCP",
            "targetPort": 8080,
            "nodePort": spec.pop("node_port", 0),
        }
    ]
    service = {
        "metadata": {"namespace": "shop", "name": name, "uid": name},
        "spec": {
            "clusterIP": ip,
            "clusterIPs": [ip],
            "ipFamilies": ["IPv4"],
            "ports": ports,
            "type": "ClusterIP",
            **spec,
        },
    }
    item = {
        "metadata": {
            "namespace": "shop",
            "name": f"{name}-1",
            "labels": {"kubernetes.io/service-name": name},
        },
        "addressType": "IPv4",
        "endpoints": [{"addresses": [f"10.244.0.{number}"]} for number in range(endpoints)],
        "ports": [{"name": "http", "port": 8080, "protocol": "TCP"}],
    }
    return msgspec.convert(service, Service), msgspec.convert(item, EndpointSlice)


def objects() -> NodeObjects:
    """Every shape that a destination has in our rules: ``node.nft.build``."""
    sticky = {
        "sessionAffinity": "ClientIP",
        "sessionAffinityConfig": {"clientIP": {"timeoutSeconds": 30}},
    }
    made = [
        _service("one", ONE.address, 1),
        _service("several", SEVERAL.address, 3),
        _service("sticky", STICKY.address, 3, **sticky),
        _service("outside", OUTSIDE.address, 3, type="NodePort", node_port=30080),
        _service("empty", EMPTY.address, 0),
    ]
    return NodeObjects(tuple(service for service, _ in made), tuple(item for _, item in made))


def form() -> Form:
    plane = nft_plane("IPv4", NodePlaneConfig(node_name="node-1"))
    feed(plane, objects())
    transaction = plane.take_transaction(0.0)
    assert transaction is not None
    return expected(contents_of(transaction), "ip")


def _targets(number: int) -> frozenset[ServedTarget]:
    return frozenset(ServedTarget(f"10.244.0.{each}", 8080) for each in range(number))


WHOLE = {
    ONE: _targets(1),
    SEVERAL: _targets(3),
    STICKY: _targets(3),
    OUTSIDE: _targets(3),
    EMPTY: frozenset(),
}


def test_every_shape_of_a_destination_is_read() -> None:
    assert served(form()) == WHOLE


@pytest.mark.parametrize("name", ["container hairpin-connections", "chain nat-postrouting", ""])
def test_seed_115_a_pod_reaches_itself_if_the_hook_looks_it_up(name: str) -> None:
    whole = form()
    whole["container hairpin-connections"].append("10.244.0.1 . 10.244.0.1 . tcp . 8080")
    if name:
        del whole[name][1:]
    target = frozenset({ServedTarget("10.244.0.1", 8080)})
    assert hairpins(whole, served(whole)).get(SEVERAL, frozenset()) == (
        frozenset() if name else target
    )


@pytest.mark.parametrize(
    ("name", "lost"),
    [
        ("container cluster-ips", {ONE, SEVERAL}),
        ("container single-endpoints", {ONE}),
        ("container room-4", {SEVERAL}),
        ("container endpoints-4", {SEVERAL}),
        ("container service-ips", {STICKY, OUTSIDE}),
        ("container no-endpoint-services", {EMPTY}),
        ("container endpoints-tcp-0", {OUTSIDE}),
        ("chain nat-output", {ONE, SEVERAL, STICKY, OUTSIDE}),
        ("chain nat-prerouting", {ONE, SEVERAL, STICKY, OUTSIDE}),
        ("chain services", {ONE, SEVERAL, STICKY, OUTSIDE}),
        ("chain cluster-ip-endpoints", {ONE, SEVERAL}),
    ],
)
def test_what_is_flushed_serves_nothing(name: str, lost: set[ClusterDestination]) -> None:
    table = form()
    assert name in table, sorted(table)
    table[name] = table[name][:1]
    left = served(table)
    refused = {EMPTY: frozenset[ServedTarget]()}
    expected_left = {
        destination: targets for destination, targets in WHOLE.items() if destination not in lost
    }
    assert {
        destination: targets
        for destination, targets in left.items()
        if targets or destination == EMPTY
    } == (expected_left if EMPTY in lost else {**expected_left, **refused})


def test_one_endpoint_that_is_gone_from_a_room_is_missed() -> None:
    table = form()
    table["container endpoints-4"].pop()
    assert len(served(table)[SEVERAL]) == 2
