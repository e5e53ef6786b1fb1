"""Service to service ports: families, filters, policies."""

from __future__ import annotations

from typing import Any

import pytest

from sliceplane.api import codec
from sliceplane.api.core import Service
from sliceplane.proxy.model import ServicePort
from sliceplane.proxy.servicemap import service_ports


def service(labels: dict[str, str] | None = None, **spec: Any) -> Service:
    document = {
        "metadata": {"namespace": "ns", "name": "svc", "labels": labels},
        "spec": {"clusterIP": "172.30.0.1", "ports": [{"name": "http", "port": 80, "protocol": "TCP"}], **spec},
    }
    return codec.decode(codec.encode(document), Service)


def one(subject: Service, family: Any = "IPv4") -> ServicePort:
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
        ({"externalTrafficPolicy": "Local"}, False, False),  # a ClusterIP Service without external IPs
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
    ports = [{"name": "a", "port": 1}, {"name": "a", "port": 2}, {"name": "a", "port": 3, "protocol": "UDP"}]
    assert [found.port for found in service_ports(service(ports=ports), "IPv4")] == [1, 3]
