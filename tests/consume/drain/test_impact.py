"""The effect of a drain on Services, against slices as documents."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from sliceplane.api.core import Service
from sliceplane.api.discovery import EndpointSlice
from sliceplane.api.scheme import EndpointSlices, Services
from sliceplane.consume.drain.answer import PortImpact
from sliceplane.consume.drain.departure import DrainSubject
from sliceplane.consume.drain.impact import ServiceImpacts, emptied
from sliceplane.watch.cache import Change

SUBJECT = DrainSubject("shop", "p-0", "uid-0", "n-0", frozenset({"10.0.0.1"}))


def endpoint(
    number: int, *, node: str = "", ready: bool | None = True, reference: bool = True
) -> dict[str, Any]:
    target = {"kind": "Pod", "namespace": "shop", "name": f"p-{number}", "uid": f"uid-{number}"}
    return {
        "addresses": [f"10.0.0.{number + 1}"],
        "nodeName": node or f"n-{number}",
        "conditions": {} if ready is None else {"ready": ready},
        **({"targetRef": target} if reference else {}),
    }


def a_slice(
    name: str,
    *endpoints: dict[str, Any],
    service: str = "web",
    ports: Any = ({"name": "http", "port": 8080},),
    family: str = "IPv4",
    namespace: str = "shop",
) -> EndpointSlice:
    labels = {"kubernetes.io/service-name": service} if service else {}
    document = {
        "metadata": {"name": name, "namespace": namespace, "labels": labels},
        "addressType": family,
        "endpoints": list(endpoints),
        "ports": list(ports),
    }
    return msgspec.convert(document, EndpointSlice)


def impacts(*slices: EndpointSlice, services: tuple[Service, ...] = ()) -> ServiceImpacts:
    made = ServiceImpacts()
    for seen in slices:
        made.on_change(Change(EndpointSlices.key, None, seen))
    for service in services:
        made.on_change(Change(Services.key, None, service))
    return made


def of(
    *slices: EndpointSlice, services: tuple[Service, ...] = ()
) -> list[tuple[str, str, str, int, int]]:
    found = impacts(*slices, services=services).of([SUBJECT])
    return [(row.service, row.port, row.family, row.ready, row.left) for row in found]


@pytest.mark.parametrize(
    "mine",
    [
        endpoint(0),
        endpoint(0, ready=None),
        endpoint(0, reference=False),
    ],
)
def test_a_ready_endpoint_of_the_pod_counts_by_reference_or_address(mine: dict[str, Any]) -> None:
    assert of(a_slice("a", mine, endpoint(1))) == [("shop/web", "http", "IPv4", 2, 1)]


@pytest.mark.parametrize(
    "seen",
    [
        a_slice("a", endpoint(0, ready=False), endpoint(1)),
        a_slice(
            "a",
            {**endpoint(0), "targetRef": {"kind": "Pod", "name": "p-0", "uid": "of another life"}},
            endpoint(1),
        ),
        a_slice("a", endpoint(0), namespace="other"),
        a_slice("a", endpoint(0), service=""),
        a_slice("a", endpoint(1)),
    ],
)
def test_what_the_pod_does_not_serve_is_not_concerned(seen: EndpointSlice) -> None:
    assert of(seen) == []


def test_each_port_and_family_is_counted_apart() -> None:
    ports = ({"name": "http", "port": 80}, {"name": "dns", "port": 53, "protocol": "UDP"})
    assert of(
        a_slice("a", endpoint(0), ports=ports),
        a_slice("b", endpoint(1), ports=ports[:1]),
        a_slice("c", endpoint(0), endpoint(1), ports=ports[:1], family="IPv6"),
        a_slice("d", endpoint(0), service="headless", ports=()),
    ) == [
        ("shop/headless", "", "IPv4", 1, 0),
        ("shop/web", "dns", "IPv4", 1, 0),
        ("shop/web", "http", "IPv4", 2, 1),
        ("shop/web", "http", "IPv6", 2, 1),
    ]


def test_an_endpoint_that_moves_between_slices_is_one() -> None:
    rows = impacts(a_slice("a", endpoint(0)), a_slice("b", endpoint(0))).of([SUBJECT])
    assert emptied(rows) == rows == (PortImpact("shop/web", "http", "IPv4", 1, 0),)


def service(**spec: Any) -> Service:
    return msgspec.convert(
        {"metadata": {"name": "web", "namespace": "shop"}, "spec": spec}, Service
    )


def test_a_port_without_a_name_has_its_number_where_the_service_may_be_read() -> None:
    seen = a_slice("a", endpoint(0), ports=({"port": 8080},))
    ports = [{"port": 53, "protocol": "UDP"}, {"port": 80}]
    assert of(seen) == [("shop/web", "TCP", "IPv4", 1, 0)]
    assert of(seen, services=(service(ports=ports),)) == [("shop/web", "80/TCP", "IPv4", 1, 0)]


def test_nodes_that_keep_none_are_named_under_a_local_policy() -> None:
    slices = (a_slice("a", endpoint(0, node="n-0"), endpoint(1)),)
    for spec, nodes in (
        ({"internalTrafficPolicy": "Local"}, ("n-0",)),
        ({"internalTrafficPolicy": "Cluster"}, ()),
    ):
        (row,) = impacts(*slices, services=(service(**spec),)).of([SUBJECT])
        assert row.nodes == nodes
    (row,) = impacts(a_slice("a", endpoint(0, node="n"), endpoint(1, node="n"))).of([SUBJECT])
    assert row.nodes == ()


def test_a_guarded_port_is_named_when_every_other_endpoint_is_gone() -> None:
    first = a_slice("a", endpoint(0), endpoint(1))
    watched = impacts(first, a_slice("b", endpoint(1), service="other"))
    watched.protect([SUBJECT])
    assert watched.emptied([SUBJECT]) == ()
    marked = a_slice("a", endpoint(0, ready=False), endpoint(1))
    watched.on_change(Change(EndpointSlices.key, first, marked))
    assert watched.emptied([SUBJECT]) == ()
    alone = a_slice("a", endpoint(0, ready=False), endpoint(1, ready=False))
    watched.on_change(Change(EndpointSlices.key, marked, alone))
    assert [row.text for row in watched.emptied([SUBJECT])] == ["shop/web http (IPv4)"]
    watched.on_change(Change(EndpointSlices.key, alone, None))
    assert watched.emptied([SUBJECT]) == (), "the Service has no slice left: it was deleted"
