"""Addresses that no endpoint can have are refused on every path, in the same words."""

from __future__ import annotations

from typing import Any

import pytest

from sliceplane.api.scheme import (
    EndpointSlices,
    EndpointSlicesV1beta1,
    EndpointsObjects,
    Pods,
    Resource,
    Services,
)

LOOPBACK = "may not be in the loopback range (127.0.0.0/8, ::1/128)"
LINK_LOCAL = "may not be in the link-local range (169.254.0.0/16, fe80::/10)"
MULTICAST = "may not be in the link-local multicast range (224.0.0.0/24, ff02::/10)"
SPECIAL = [
    ("0.0.0.0", "may not be unspecified (0.0.0.0)"),
    ("127.0.0.1", LOOPBACK),
    ("127.9.9.9", LOOPBACK),
    ("169.254.169.254", LINK_LOCAL),
    ("224.0.0.1", MULTICAST),
    ("::", "may not be unspecified (::)"),
    ("::1", LOOPBACK),
    ("fe80::1", LINK_LOCAL),
    ("ff02::1", MULTICAST),
]


def family(address: str) -> str:
    return "IPv6" if ":" in address else "IPv4"


def good(address: str) -> str:
    return "2001:db8::1" if ":" in address else "10.0.0.1"


def slice_(address: str) -> Any:
    return {
        "metadata": {"name": "x"},
        "addressType": family(address),
        "endpoints": [{"addresses": [address]}],
    }


def endpoints(address: str, member: str = "addresses") -> Any:
    return {
        "metadata": {"name": "x"},
        "subsets": [{member: [{"ip": address}], "ports": [{"port": 80}]}],
    }


def refused(error: Any, field: str, address: str, why: str) -> None:
    assert error.code == 422
    assert f'{field}: Invalid value: "{address}": {why}' in error.message


@pytest.mark.parametrize(("address", "why"), SPECIAL)
@pytest.mark.parametrize("version", [EndpointSlices, EndpointSlicesV1beta1], ids=["v1", "v1beta1"])
def test_kubernetes_102106_endpoint_slices(
    api: Any, version: Resource, address: str, why: str
) -> None:
    field = "endpoints[0].addresses[0]"
    refused(api.fails("create", version, slice_(address)), field, address, why)
    api.create(version, slice_(good(address)))
    refused(api.fails("update", version, "x", slice_(address)), field, address, why)
    patch = {"endpoints": [{"addresses": [address]}]}
    for kind in ("merge", "strategic"):
        refused(api.fails("patch", version, "x", patch, kind), field, address, why)


@pytest.mark.parametrize(("address", "why"), SPECIAL)
@pytest.mark.parametrize("member", ["addresses", "notReadyAddresses"])
def test_endpoints(api: Any, member: str, address: str, why: str) -> None:
    field = f"subsets[0].{member}[0].ip"
    refused(api.fails("create", EndpointsObjects, endpoints(address, member)), field, address, why)
    refused(
        api.fails("update", EndpointsObjects, "x", endpoints(address, member)), field, address, why
    )
    api.create(EndpointsObjects, endpoints(good(address), member))
    refused(
        api.fails("update", EndpointsObjects, "x", endpoints(address, member)), field, address, why
    )


@pytest.mark.parametrize(("address", "why"), SPECIAL)
def test_external_addresses_of_services(api: Any, address: str, why: str) -> None:
    service = {
        "metadata": {"name": "x"},
        "spec": {"ports": [{"port": 80}], "externalIPs": [address]},
    }
    refused(api.fails("create", Services, service), "spec.externalIPs[0]", address, why)


def test_a_pod_may_say_what_it_likes_and_no_slice_takes_it(api: Any) -> None:
    """As upstream: a Pod on the host's loopback is told of as it is; the write of its slice is what
    fails.
    """
    api.create(
        Pods, {"metadata": {"name": "p"}, "spec": {"containers": [{"name": "c", "image": "i"}]}}
    )
    status = {"status": {"podIP": "127.0.0.1", "podIPs": [{"ip": "127.0.0.1"}]}}
    assert api.patch(Pods, "p", status, subresource="status").code == 200
    assert (
        api.fails(
            "patch",
            Pods,
            "p",
            {"status": {"podIP": "x", "podIPs": [{"ip": "x"}]}},
            subresource="status",
        ).code
        == 422
    )
