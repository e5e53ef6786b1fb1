"""``default/kubernetes`` for one server and for several over one store."""

from __future__ import annotations

import json
from typing import Any

import pytest

from sliceplane.api.scheme import EndpointSlices, EndpointsObjects, Leases, Services
from sliceplane.kit.rng import Rng
from sliceplane.server.registry.config import RegistryConfig
from sliceplane.server.registry.registry import Registry

A, B = "192.0.2.10", "192.0.2.9"


@pytest.fixture
def api(make_api: Any) -> Any:
    return make_api(advertise_address=A, advertise_port=6443)


def joined(api: Any, address: str) -> Registry:
    """Another server over the same store."""
    config = RegistryConfig(advertise_address=address, advertise_port=6443)
    registry = Registry(api.store, rng=Rng(9), config=config)
    registry.bootstrap(api.now)
    api.commit()
    return registry


def keep(api: Any, registry: Registry, seconds: float = 0.0) -> int:
    api.now += seconds
    revision = registry.keep_api_service(api.now)
    api.commit()
    return revision


def published(api: Any) -> tuple[list[str], list[str]]:
    subsets = api.get(EndpointsObjects, "kubernetes").get("subsets", [])
    endpoints = api.get(EndpointSlices, "kubernetes")["endpoints"]
    return (
        [address["ip"] for subset in subsets for address in subset["addresses"]],
        [address for endpoint in endpoints for address in endpoint["addresses"]],
    )


def test_from_the_first_moment(api: Any) -> None:
    service = api.get(Services, "kubernetes")
    assert service["metadata"]["labels"] == {"component": "apiserver", "provider": "kubernetes"}
    assert service["spec"]["clusterIP"] == "10.96.0.1"
    assert "selector" not in service["spec"]
    port = {"name": "https", "protocol": "TCP", "port": 443, "targetPort": 6443}
    assert service["spec"]["ports"] == [port]
    assert published(api) == ([A], [A])
    labels = api.get(EndpointsObjects, "kubernetes")["metadata"]["labels"]
    assert labels == {"endpointslice.kubernetes.io/skip-mirror": "true"}
    slice_ = api.get(EndpointSlices, "kubernetes")
    assert slice_["metadata"]["labels"] == {"kubernetes.io/service-name": "kubernetes"}
    assert slice_["endpoints"] == [{"addresses": [A], "conditions": {"ready": True}}]
    assert slice_["ports"] == [{"name": "https", "port": 6443, "protocol": "TCP"}]
    assert "ownerReferences" not in slice_["metadata"]


def test_what_is_deleted_or_edited_comes_back(api: Any) -> None:
    for resource in (Services, EndpointsObjects, EndpointSlices):
        api.delete(resource, "kubernetes")
    keep(api, api.registry, 10)
    assert published(api) == ([A], [A])
    assert api.get(Services, "kubernetes")["spec"]["clusterIP"] == "10.96.0.1"
    api.patch(
        EndpointsObjects, "kubernetes", {"subsets": None, "metadata": {"labels": {"mine": "1"}}}
    )
    api.patch(
        EndpointSlices, "kubernetes", {"endpoints": [], "metadata": {"labels": {"mine": "1"}}}
    )
    api.patch(
        EndpointsObjects,
        "kubernetes",
        {"metadata": {"labels": {"endpointslice.kubernetes.io/skip-mirror": "no"}}},
    )
    keep(api, api.registry, 10)
    assert published(api) == ([A], [A])
    assert api.get(EndpointsObjects, "kubernetes")["metadata"]["labels"] == {
        "endpointslice.kubernetes.io/skip-mirror": "true",
        "mine": "1",
    }, "foreign labels stay"
    assert api.get(EndpointSlices, "kubernetes")["metadata"]["labels"] == {
        "kubernetes.io/service-name": "kubernetes"
    }
    api.patch(Services, "kubernetes", {"metadata": {"labels": {"mine": "1"}}})
    keep(api, api.registry, 10)
    assert "mine" in api.get(Services, "kubernetes")["metadata"]["labels"], (
        "an existing Service is never corrected"
    )


def test_at_rest_only_the_lease_is_written(api: Any) -> None:
    api.events.clear()
    keep(api, api.registry, 10)
    assert [event.record.key.resource for event in api.events] == [Leases.storage_key]


def test_two_servers_are_two_endpoints_until_one_stops(api: Any) -> None:
    other = joined(api, B)
    assert published(api) == ([B, A], [B, A]), "sorted as numbers"
    other.withdraw_api_service(api.now)
    api.commit()
    assert published(api) == ([A], [A])
    keep(api, api.registry, 10)
    assert published(api) == ([A], [A])
    api.registry.withdraw_api_service(api.now)
    api.commit()
    assert published(api) == ([], []), "the last one may leave nothing"
    assert not [
        name for name in api.names(Leases, namespace="kube-system") if "apiserver-endpoint" in name
    ]
    keep(api, api.registry)
    assert published(api) == ([A], [A])


def test_a_crashed_server_goes_with_its_lease(api: Any) -> None:
    joined(api, B)
    keep(api, api.registry, 10)
    assert published(api) == ([B, A], [B, A])
    keep(api, api.registry, 10)
    assert published(api) == ([A], [A])
    leases = [
        json.loads(record.body) for record in api.list(Leases, namespace="kube-system").records
    ]
    assert [lease["spec"]["holderIdentity"] for lease in leases] == [A]


def test_ipv6_only_when_there_is_nothing_else(make_api: Any) -> None:
    api = make_api(advertise_address="2001:db8::1", advertise_port=6443)
    assert api.get(EndpointSlices, "kubernetes")["addressType"] == "IPv6"
    other = joined(api, A)
    slice_ = api.get(EndpointSlices, "kubernetes")
    assert slice_["addressType"] == "IPv4"
    assert published(api) == ([A, "2001:db8::1"], [A])
    other.withdraw_api_service(api.now)
    api.commit()
    assert api.get(EndpointSlices, "kubernetes")["addressType"] == "IPv6"


def test_a_server_on_loopback_keeps_the_service_and_clears_up_after_others(make_api: Any) -> None:
    api = make_api(advertise_address="127.0.0.1", advertise_port=6443)
    assert api.names(EndpointsObjects) == []
    api.delete(Services, "kubernetes")
    assert keep(api, api.registry, 10) > 0
    assert keep(api, api.registry, 10) == 0, "no Lease, no writes"
    joined(api, A)
    keep(api, api.registry, 16)
    assert published(api) == ([], [])


def test_a_lease_that_somebody_made_up_is_no_endpoint(api: Any) -> None:
    lease = {"metadata": {"name": "apiserver-endpoint-x"}, "spec": {"holderIdentity": "127.0.0.1"}}
    api.create(Leases, lease, namespace="kube-system")
    keep(api, api.registry, 10)
    assert published(api) == ([A], [A])
    assert (
        len(
            [
                name
                for name in api.names(Leases, namespace="kube-system")
                if "apiserver-endpoint" in name
            ]
        )
        == 1
    )
