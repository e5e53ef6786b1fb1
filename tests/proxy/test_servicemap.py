"""Service to service ports: families, filters, policies."""

from __future__ import annotations

from typing import Any

import pytest

from sliceplane.api import codec
from sliceplane.api.core import Service
from sliceplane.consume.model import ServedPort
from sliceplane.consume.servicemap import AFFINITY_TIMEOUT_DEFAULT_S, health_port, service_ports


def service(labels: dict[str, str] | None = None, **spec: Any) -> Service:
    document = {
        "metadata": {"namespace": "ns", "name": "svc", "labels": labels},
        "status": {"loadBalancer": {"ingress": spec.pop("ingress", None)}},
        "spec": {
            "clusterIP": "172.30.0.1",
            "ports": [{"name": "http", "port": 80, "protocol": "TCP"}],
            **spec,
        },
    }
    return codec.decode(codec.encode(document), Service)


def one(subject: Service, family: Any = "IPv4") -> ServedPort:
    (found,) = service_ports(subject, family)
    return found


def test_plain() -> None:
    found = one(service())
    assert (found.cluster_ip, found.port, str(found.name), found.name.protocol) == (
        "172.30.0.1",
        80,
        "ns/svc:http",
        "TCP",
    )
    assert not found.internal_local


@pytest.mark.parametrize(
    "spec",
    [
        {"clusterIP": "None"},
        {"clusterIP": ""},
        {"type": "ExternalName"},
        {"clusterIP": "fd00::1"},
        {"clusterIP": "nonsense"},
        {"labels": {"service.kubernetes.io/service-proxy-name": ""}},
        {"labels": {"service.kubernetes.io/headless": ""}},
        {"ports": [{"name": "a", "port": 0}]},
        {"ports": [{"name": "a", "port": 70000}]},
        {"ports": [{"name": "a", "port": 80, "protocol": "ICMP"}]},
    ],
)
def test_not_our_business(spec: dict[str, Any]) -> None:
    assert service_ports(service(**spec), "IPv4") == ()


def test_dual_stack_gives_each_family_its_own() -> None:
    subject = service(
        clusterIPs=["172.30.0.1", "FD00::0001"],
        ipFamilies=["IPv4", "IPv6"],
        externalIPs=["192.0.2.01", "2001:db8::1", "nonsense"],
    )
    four, six = one(subject), one(subject, "IPv6")
    assert (four.cluster_ip, four.external_ips) == ("172.30.0.1", ("192.0.2.1",))
    assert (six.cluster_ip, six.external_ips) == ("fd00::1", ("2001:db8::1",))


def test_leading_zeros_are_decimal() -> None:
    assert one(service(clusterIP="172.030.000.001")).cluster_ip == "172.30.0.1"


@pytest.mark.parametrize(
    ("spec", "internal", "external"),
    [
        ({}, False, False),
        ({"internalTrafficPolicy": "Local"}, True, False),
        (
            {"externalTrafficPolicy": "Local"},
            False,
            False,
        ),  # a ClusterIP Service without external IPs
        ({"externalTrafficPolicy": "Local", "externalIPs": ["192.0.2.1"]}, False, True),
        ({"externalTrafficPolicy": "Local", "type": "NodePort"}, False, True),
        ({"externalTrafficPolicy": "Local", "type": "LoadBalancer"}, False, True),
        ({"externalTrafficPolicy": "Cluster", "type": "LoadBalancer"}, False, False),
    ],
)
def test_policies(spec: dict[str, Any], internal: bool, external: bool) -> None:
    found = one(service(**spec))
    assert (found.internal_local, found.external_local) == (internal, external)


def test_first_of_two_ports_with_one_name_counts() -> None:
    ports = [
        {"name": "a", "port": 1},
        {"name": "a", "port": 2},
        {"name": "a", "port": 3, "protocol": "UDP"},
    ]
    assert [found.port for found in service_ports(service(ports=ports), "IPv4")] == [1, 3]


def test_addresses_of_load_balancers() -> None:
    ingress = [
        {"ip": "203.0.113.05"},
        {"ip": "203.0.113.6", "ipMode": "VIP"},
        {"ip": "203.0.113.7", "ipMode": "Proxy"},
        {"ip": "2001:DB8::1"},
        {"hostname": "lb.example"},
        {"ip": "203.0.113.6"},
    ]
    subject = service(clusterIPs=["172.30.0.1", "fd00::1"], ingress=ingress)
    assert one(subject).vips == ("203.0.113.5", "203.0.113.6")
    assert one(subject, "IPv6").vips == ("2001:db8::1",)


@pytest.mark.parametrize(
    ("ranges", "expected"),
    [
        (None, ()),
        ([" 010.0.0.0/8 ", "192.168.1.7/24"], ("10.0.0.0/8", "192.168.1.0/24")),
        (["10.0.0.0/9", "10.128.0.0/9", "10.1.0.0/16"], ("10.0.0.0/8",)),
        (["10.0.0.0/8", "0.0.0.0/0"], ()),
        (["2001:db8::/32", "10.0.0.0/8", "junk", "10.0.0.1", "10.0.0.0/33"], ("10.0.0.0/8",)),
    ],
)
def test_source_ranges(ranges: list[str] | None, expected: tuple[str, ...]) -> None:
    assert one(service(loadBalancerSourceRanges=ranges)).source_ranges == expected


@pytest.mark.parametrize(
    ("spec", "seconds"),
    [
        ({}, 0),
        (
            {
                "sessionAffinity": "None",
                "sessionAffinityConfig": {"clientIP": {"timeoutSeconds": 5}},
            },
            0,
        ),
        ({"sessionAffinity": "ClientIP"}, AFFINITY_TIMEOUT_DEFAULT_S),
        (
            {
                "sessionAffinity": "ClientIP",
                "sessionAffinityConfig": {"clientIP": {"timeoutSeconds": 5}},
            },
            5,
        ),
    ],
)
def test_affinity(spec: dict[str, Any], seconds: int) -> None:
    assert one(service(**spec)).affinity_timeout_s == seconds


@pytest.mark.parametrize(
    ("kind", "policy", "port"),
    [("LoadBalancer", "Local", 31000), ("LoadBalancer", "Cluster", 0), ("NodePort", "Local", 0)],
)
def test_health_port(kind: str, policy: str, port: int) -> None:
    assert (
        health_port(service(type=kind, externalTrafficPolicy=policy, healthCheckNodePort=31000))
        == port
    )


def test_reachable_from_outside() -> None:
    port = [{"name": "http", "port": 80, "protocol": "TCP", "nodePort": 30080}]
    assert not one(service()).externally_accessible
    for spec in (
        {"ports": port},
        {"externalIPs": ["192.0.2.1"]},
        {"ingress": [{"ip": "203.0.113.5"}]},
    ):
        assert one(service(**spec)).externally_accessible
