"""Where `default/kubernetes` leads: to any address of the server that others can dial."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.registry.conftest import Api

from sliceplane.api.scheme import EndpointSlices, EndpointsObjects
from sliceplane.kit.io import interfaces
from sliceplane.server.io.config import PlaneConfig


@pytest.mark.parametrize(
    ("bound", "told", "outward", "advertised"),
    [
        ("0.0.0.0", "", "192.0.2.7", "192.0.2.7"),
        ("::", "", "2001:db8::7", "2001:db8::7"),
        ("0.0.0.0", "", "", "127.0.0.1"),
        ("0.0.0.0", "192.0.2.8", "192.0.2.7", "192.0.2.8"),
        ("192.0.2.9", "", "192.0.2.7", "192.0.2.9"),
        ("127.0.0.1", "", "192.0.2.7", "127.0.0.1"),
    ],
)
def test_an_address_that_others_can_dial_is_an_endpoint(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    bound: str,
    told: str,
    outward: str,
    advertised: str,
) -> None:
    monkeypatch.setattr(interfaces, "outward", lambda _version: outward)
    config = PlaneConfig(data_dir=tmp_path, bind_address=bound, advertise_address=told).registry(
        6443
    )
    assert config.advertise_address == advertised
    cidrs = ("fd00:10:96::/112",) if ":" in advertised else ("10.96.0.0/16",)
    api = Api(advertise_address=config.advertise_address, advertise_port=6443, service_cidrs=cidrs)
    expected = [] if advertised == "127.0.0.1" else [advertised]
    subsets = list(api.list(EndpointsObjects).records)
    slices = list(api.list(EndpointSlices).records)
    assert len(subsets) == len(slices) == len(expected)
    for address in expected:
        (slice_,) = api.get(EndpointSlices, "kubernetes")["endpoints"]
        assert slice_["addresses"] == [address]
        (subset,) = api.get(EndpointsObjects, "kubernetes")["subsets"]
        assert subset["addresses"] == [{"ip": address}]


def test_the_way_out_is_one_of_our_own_addresses() -> None:
    address = interfaces.outward(4)
    assert not address or address in interfaces.addresses(ipv6=False)


def test_without_a_way_out_an_address_of_the_family_is_taken(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def socket_without_a_route(*_: object) -> object:
        raise OSError("Network is unreachable")

    monkeypatch.setattr(interfaces.socket, "socket", socket_without_a_route)
    monkeypatch.setattr(
        interfaces,
        "addresses",
        lambda *, ipv6: ("192.0.2.7", "2001:db8::7") if ipv6 else ("192.0.2.7",),
    )
    assert (interfaces.outward(4), interfaces.outward(6)) == ("192.0.2.7", "2001:db8::7")
    monkeypatch.setattr(interfaces, "addresses", lambda **_: ("192.0.2.7",))
    assert interfaces.outward(6) == "", "an IPv4 address is no way out of IPv6"
