"""Questions: how they are written, what a name stands for, and sentences for those without an
answer.
"""

from __future__ import annotations

import pytest
from tests.diagnose.trace.traced import CLIENT, OUTSIDE, TWO, ask, node, pod, service, slice_of

from sliceplane.api.core import Service
from sliceplane.diagnose.trace.question import (
    AddressTarget,
    NamedSource,
    NameTarget,
    Unanswerable,
    joined,
    parse_source,
    parse_to,
)

DNS_PORTS = [
    {"name": "dns", "port": 53, "protocol": "UDP"},
    {"name": "dns-tcp", "port": 53, "protocol": "TCP"},
    {"name": "metrics", "port": 9153, "protocol": "TCP"},
]


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("10.96.0.10:80", AddressTarget("10.96.0.10", 80)),
        ("[fd00::A]:80", AddressTarget("fd00::a", 80)),
        ("fd00::a", AddressTarget("fd00::a", 0)),
        ("10.96.0.10", AddressTarget("10.96.0.10", 0)),
        ("api", NameTarget("default", "api", "")),
        ("api:http", NameTarget("default", "api", "http")),
        ("api.prod", NameTarget("prod", "api", "")),
        ("api.prod:80", NameTarget("prod", "api", "80")),
        ("api.prod.svc", NameTarget("prod", "api", "")),
        ("api.prod.svc.cluster.local:http", NameTarget("prod", "api", "http")),
    ],
)
def test_forms_of_a_destination(text: str, found: AddressTarget | NameTarget) -> None:
    assert parse_to(text) == found


@pytest.mark.parametrize(
    "text", ["10.96.0.10:0", "10.96.0.10:http", "10.96.0.10:65536", "api.a.b", "A", "", ":80"]
)
def test_what_is_no_destination(text: str) -> None:
    with pytest.raises(Unanswerable, match="--to"):
        parse_to(text)


def test_what_is_no_sender() -> None:
    assert parse_source("[fd00::1]") == "fd00::1"
    with pytest.raises(Unanswerable, match="--from 'svc/api' is neither an IP address nor"):
        parse_source("svc/api")


@pytest.mark.parametrize(
    ("text", "source"),
    [
        ("web-7d8f-x", NamedSource("shop", "web-7d8f-x")),
        ("pod/web.1", NamedSource("shop", "web.1")),
        ("node/node-1", NamedSource("", "node-1")),
    ],
)
def test_a_sender_by_its_name(text: str, source: NamedSource) -> None:
    assert parse_source(text, "shop") == source


def test_a_name_alone_is_of_the_namespace_that_was_asked_for() -> None:
    assert parse_to("api:http", "shop") == NameTarget("shop", "api", "http")
    assert parse_to("api.prod:http", "shop") == NameTarget("prod", "api", "http")


def test_addresses_with_ports() -> None:
    assert joined("fd00::1", 80) == "[fd00::1]:80"
    assert joined("fd00::1", 0) == "fd00::1"


# Names


@pytest.mark.parametrize(
    ("to", "protocol", "port"),
    [
        ("api.prod:dns", None, "53/UDP"),
        ("api.prod:dns-tcp", None, "53/TCP"),
        ("api.prod:53", None, "53/TCP"),
        ("api.prod:53", "UDP", "53/UDP"),
        ("api.prod:9153", None, "9153/TCP"),
        ("api.prod", "UDP", "53/UDP"),
    ],
)
def test_a_port_by_name_number_or_protocol(to: str, protocol: str | None, port: str) -> None:
    answer = ask(service(ports=DNS_PORTS), to=to, protocol=protocol)  # type: ignore[arg-type]
    assert f"{answer.destination.port}/{answer.destination.protocol}" == port


def test_a_name_stands_for_the_address_of_the_senders_family() -> None:
    both = service(clusterIPs=["10.96.0.10", "fd96::10"])
    assert ask(both, to="api.prod").destination.address == "10.96.0.10"
    six = pod("six", "node-a", "10.1.0.9", "fd01::9")
    assert ask(both, six, to="api.prod", source="fd01::9").destination.address == "fd96::10"


# Where it is looked at


def test_the_node_follows_from_the_sender() -> None:
    slices = slice_of("api-1", [*TWO])
    assert ask(service(), slices).node.name == "node-a"
    assert ask(service(), slices, source="192.0.2.2").node.name == "node-b"
    assert ask(service(), slices, at="node-b").node.name == "node-b"
    answer = ask(
        service(
            type="NodePort",
            ports=[{"name": "http", "port": 80, "protocol": "TCP", "nodePort": 30080}],
        ),
        slices,
        to="192.0.2.2:30080",
        source=OUTSIDE,
    )
    assert answer.node.name == "node-b", "a client outside sends to that node"


def test_a_pod_that_has_ended_has_no_address() -> None:
    done = pod("done", "node-b", "10.1.0.77", phase="Succeeded")
    again = pod("again", "node-a", "10.1.0.77")
    assert ask(service(), done, again, source="10.1.0.77").source.name == "prod/again"
    with pytest.raises(Unanswerable, match="no address of a Pod or Node"):
        ask(service(), done, source="10.1.0.77")


# No answer


@pytest.mark.parametrize(
    ("spec", "asked", "sentence"),
    [
        ({}, {"to": "api.prod:grpc"}, "Service prod/api has no port grpc; it has http/TCP"),
        (
            {},
            {"to": "api.prod", "protocol": "UDP"},
            "Service prod/api has no port UDP; it has http/TCP",
        ),
        (
            {"ports": DNS_PORTS},
            {"to": "api.prod"},
            "several ports, name one: dns/UDP, dns-tcp/TCP, metrics/TCP",
        ),
        ({}, {"to": "api"}, "there is no Service default/api; is prod/api meant?"),
        ({}, {"to": "apo.prod"}, "there is no Service prod/apo; is prod/api meant?"),
        ({}, {"to": "elsewhere.other"}, "there is no Service other/elsewhere"),
        ({"clusterIP": "None"}, {"to": "api.prod"}, "no proxy serves Service prod/api: headless"),
        (
            {"type": "ExternalName", "externalName": "db.example"},
            {"to": "api.prod"},
            "type ExternalName, a name for db.example",
        ),
        (
            {"clusterIP": ""},
            {"to": "api.prod"},
            "no proxy serves Service prod/api: no cluster IP yet",
        ),
        (
            {},
            {"to": "api.prod", "source": "fd01::9", "at": "node-a"},
            "has no IPv6 address, and fd01::9 is IPv6",
        ),
        (
            {},
            {"source": "fd01::9", "at": "node-a"},
            "fd01::9 is IPv6 and 10.96.0.10 is IPv4: no packet has both",
        ),
        (
            {},
            {"to": "10.96.0.10"},
            "--to 10.96.0.10 lacks a port, 10.96.0.10:80 is one with it; Services have 80/TCP",
        ),
        (
            {},
            {"to": "9.9.9.9:80"},
            "9.9.9.9 is nothing here: no cluster IP, external IP or load balancer address",
        ),
        (
            {},
            {"to": "9.9.9.9:80", "unread": ("pods, 403",)},
            r"range of cluster IPs \(not looked at: pods, 403\)",
        ),
        ({}, {"at": "node-x"}, "there is no Node node-x; is node-a or node-b meant?"),
        ({}, {"source": OUTSIDE}, "is no address of a Pod or Node: say with --node which node"),
        (
            {},
            {"source": OUTSIDE, "unread": ("pods, 403",)},
            r"no address of a Pod or Node \(pods, 403\): say with",
        ),
    ],
)
def test_no_answer(spec: dict[str, object], asked: dict[str, str], sentence: str) -> None:
    with pytest.raises(Unanswerable, match=sentence):
        ask(service(**spec), **asked)  # type: ignore[arg-type]


def test_a_pod_without_a_node() -> None:
    with pytest.raises(
        Unanswerable, match="Pod prod/new, which is on no node yet: say with --node"
    ):
        ask(service(), pod("new", "", "10.1.0.8"), source="10.1.0.8")


def test_long_lists_of_names_are_cut() -> None:
    nodes = [node(f"n{number:02}", "", f"192.0.2.{number}") for number in range(1, 13)]
    with pytest.raises(
        Unanswerable, match="there are n01, n02, n03, n04, n05, n06, n07, n08 and 4 more"
    ):
        ask(service(), *nodes, source=CLIENT, at="node-x")


def test_a_cluster_without_services_has_none_to_name() -> None:
    nobody: tuple[Service, ...] = ()
    with pytest.raises(
        Unanswerable, match=r"there is no Service default/api; there is none in default$"
    ):
        ask(*nobody, to="api")
