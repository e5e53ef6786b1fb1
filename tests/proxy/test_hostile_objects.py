"""What an API server without validation, or one that is not ours, may tell a node proxy: both back
ends go on, agree, and lead nobody to where they must not.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
from tests.growth.measure import growth
from tests.iptables.restorer import Both
from tests.nft.machine import NODE, ep, make_slice, node, service

from sliceplane.api import codec
from sliceplane.api.core import Service
from sliceplane.consume.model import canonical_of, ordinary_of, special
from sliceplane.kit.ip import Family

HTTP = [{"name": "http", "port": 80, "protocol": "TCP"}]
NOBODY = {("reject", "", False): 1}


def answers(both: Both, ip: str = "172.30.0.1", port: int = 80) -> Any:
    nft, iptables = both.send(ip, port, "tcp", "10.0.9.9", "local")
    assert nft == iptables
    return nft


@pytest.mark.parametrize(
    ("address", "family", "kind"),
    [
        ("127.0.0.1", "IPv4", "loopback"),
        ("127.255.3.4", "IPv4", "loopback"),
        ("0.0.0.0", "IPv4", "unspecified"),
        ("169.254.169.254", "IPv4", "link-local"),
        ("224.0.0.1", "IPv4", "multicast"),
        ("239.9.9.9", "IPv4", "multicast"),
        ("255.255.255.255", "IPv4", "broadcast"),
        ("::ffff:127.0.0.1", "IPv4", "loopback"),
        ("127.000.000.001", "IPv4", "loopback"),
        ("::1", "IPv6", "loopback"),
        ("::", "IPv6", "unspecified"),
        ("fe80::1", "IPv6", "link-local"),
        ("ff02::1", "IPv6", "multicast"),
        ("10.0.0.1", "IPv4", ""),
        ("240.0.0.1", "IPv4", ""),
        ("1.255.255.255", "IPv4", ""),
        ("169.253.0.1", "IPv4", ""),
        ("fd00::1", "IPv6", ""),
    ],
)
def test_special_addresses(address: str, family: Family, kind: str) -> None:
    canonical = canonical_of(address, family)
    assert canonical is not None
    assert special(canonical) == kind
    assert ordinary_of(address, family) == (None if kind else canonical)


@pytest.mark.parametrize(
    "address", ["127.0.0.1", "0.0.0.0", "169.254.169.254", "224.0.0.1", "::ffff:127.0.0.1"]
)
def test_endpoints_that_mean_the_node_itself_or_nobody_are_none(address: str) -> None:
    both = Both()
    both.put(service(), make_slice([address, "10.0.0.2"]))
    assert answers(both) == {("accept", "10.0.0.2 8080", False): 1}
    both.put(make_slice([address], version=2))
    assert answers(both) == NOBODY


def test_a_cluster_ip_that_is_loopback_is_no_service() -> None:
    both = Both()
    both.put(
        service("evil", clusterIP="127.0.0.1", clusterIPs=["127.0.0.1"]),
        make_slice(["10.0.0.9"], "evil"),
    )
    assert answers(both, "127.0.0.1") == {("accept", "127.0.0.1 80", False): 1}


def test_a_hosts_own_address_may_be_an_endpoint_as_host_network_pods_are() -> None:
    both = Both()
    both.put(node("", "192.168.0.1"), service(), make_slice([ep("192.168.0.1", nodeName=NODE)]))
    assert answers(both) == {("accept", "192.168.0.1 8080", False): 1}


@pytest.mark.parametrize(
    "ports",
    [
        [{"name": "http", "protocol": "TCP"}],
        [{"name": "http", "port": 0, "protocol": "TCP"}],
        [{"name": "http", "port": -1, "protocol": "TCP"}],
        [{"name": "http", "port": 70000, "protocol": "TCP"}],
        [{"name": "http", "port": 8080, "protocol": "ICMP"}],
        [{"port": 8080, "protocol": "TCP"}],
        [],
    ],
)
def test_ports_that_are_none(ports: list[Any]) -> None:
    both = Both()
    found = make_slice(["10.0.0.1"], ports=ports or HTTP)
    if not ports:
        found = codec.decode(
            codec.encode({**codec.decode_document(codec.encode(found)), "ports": []}), type(found)
        )
    both.put(service(), found)
    assert answers(both) == NOBODY


def test_a_slice_counts_in_its_own_namespace_alone() -> None:
    both = Both()
    document = codec.decode_document(codec.encode(make_slice(["10.6.6.6"])))
    document["metadata"]["namespace"] = "evil"
    both.put(
        service(),
        make_slice(["10.0.0.1"]),
        codec.decode(codec.encode(document), type(make_slice([]))),
    )
    assert answers(both) == {("accept", "10.0.0.1 8080", False): 1}


def test_hints_and_node_names_without_end() -> None:
    zones = {"forZones": [{"name": f"z{number}"} for number in range(10_000)]}
    both = Both()
    rows = [ep(f"10.0.{n >> 8}.{n & 255}", hints=zones, nodeName="n" * 10_000) for n in range(200)]
    both.put(node("z1", "192.168.0.1"), service(), make_slice(rows))
    assert len(answers(both)) == 200


@pytest.mark.parametrize(
    "seconds",
    [-5, 0, 2**31, 2**40],
    ids=["negative", "zero", "more than a day", "more than the kernel counts"],
)
def test_affinity_for_ever_and_never(seconds: int) -> None:
    both = Both()
    config = {"clientIP": {"timeoutSeconds": seconds}}
    both.put(
        service(sessionAffinity="ClientIP", sessionAffinityConfig=config),
        make_slice(["10.0.0.1", "10.0.0.2"]),
    )
    assert set(answers(both)) == {("accept", f"10.0.0.{n} 8080", False) for n in (1, 2)}


def test_a_hundred_thousand_source_ranges_are_cut_and_everything_beyond_is_kept_out() -> None:
    ranges = [f"{11 + (n >> 16)}.{n >> 8 & 255}.{n & 255}.1/32" for n in range(100_000)]
    both = Both()
    ingress = [{"ip": "203.0.113.5", "ipMode": "VIP"}]
    ports = [{**HTTP[0], "nodePort": 30080}]
    found = service(
        type="LoadBalancer", ingress=ingress, ports=ports, loadBalancerSourceRanges=ranges
    )
    both.nft.put(found, make_slice(["10.0.0.1"]))
    both.nft.sync()

    def sent(source: str) -> set[str]:
        return {
            outcome.verdict
            for outcome in both.nft.send("203.0.113.5", 80, "tcp", source, "forwarded")
        }

    assert sent("11.0.0.1") == {"accept"}
    assert sent("12.134.159.1") == {"drop"}
    tracker = both.nft.plane.tracker
    assert tracker.excess(tracker.services()[0]).source_ranges == 90_000


def test_two_node_ports_that_are_one_are_the_first_services_in_all_respects() -> None:
    """Before, one Service's check for missing endpoints met the other's packets."""
    both = Both()
    both.put(node("", "192.168.0.1"))
    for number, (name, rows) in enumerate({"a": ["10.0.0.1"], "b": []}.items(), 1):
        ports = [{**HTTP[0], "nodePort": 30080}]
        both.put(service(name, number, type="NodePort", ports=ports), make_slice(rows, name))
    assert answers(both, "192.168.0.1", 30080) == {("accept", "10.0.0.1 8080", True): 1}
    both.nft.drop(service("a", 1))
    both.iptables.drop(service("a", 1))
    assert answers(both, "192.168.0.1", 30080) == NOBODY


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("namespace", "a/b"),
        ("name", "b/c"),
        ("name", 'x" -j ACCEPT\n'),
        ("name", "y" * 10_000),
        ("name", "п\u202ei"),
    ],
)
def test_names_that_could_be_read_as_others_are_no_services(field: str, value: str) -> None:
    """``a/b`` + ``c`` and ``a`` + ``b/c`` would have one chain between them."""
    document = codec.decode_document(codec.encode(service("evil", 7)))
    document["metadata"][field] = value
    both = Both()
    both.put(codec.decode(codec.encode(document), Service))
    assert answers(both, "172.30.0.7") == {("accept", "172.30.0.7 80", False): 1}
    both.nft.plane.check()


def test_a_thousand_services_of_one_pod_cost_each_other_little() -> None:
    """They share the element by which the Pod reaches itself."""

    def run(count: int) -> None:
        both = Both()
        both.put(node("", "192.168.0.1"))
        for number in range(count):
            ip = f"172.30.{number >> 8}.{number & 255}"
            spec = {"clusterIP": ip, "clusterIPs": [ip]}
            slices = make_slice([ep("10.0.0.1", nodeName=NODE)], f"s{number}")
            for plane in (both.nft.plane, both.iptables.plane):
                plane.on_service(None, service(f"s{number}", **spec), 0.0)
                plane.on_slice(None, slices, 0.0)
        for plane in (both.nft.plane, both.iptables.plane):
            plane.take_transaction(0.0)

    assert growth(lambda: partial(run, 1_000), lambda: partial(run, 4_000)) < 8
