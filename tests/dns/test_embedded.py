"""A plane with names: a process of its own, and the Service that leads to it."""

from __future__ import annotations

from pathlib import Path

import dns.message
import pytest
from tests.dns.test_resolver import exchanged
from tests.waiting import eventually

from sliceplane.api.codec import decode, decode_document
from sliceplane.api.core import Service
from sliceplane.api.requests import Selection
from sliceplane.api.scheme import EndpointSlices, Services
from sliceplane.dns.io.embedded import (
    DnsService,
    reachable,
    resolv_conf,
    service_address,
    write_service,
)
from sliceplane.server.io.config import PlaneConfig
from sliceplane.server.io.plane import ServerPlane

CIDRS = ("10.96.0.0/16", "fd00:10:96::/112")
OWN = dns.message.make_query("kube-dns.kube-system.svc.cluster.local.", "A").to_wire()


async def test_a_plane_answers_the_name_of_its_name_server_also_after_that_has_died() -> None:
    service = DnsService(("127.0.0.1", 0), CIDRS)
    async with ServerPlane(PlaneConfig(data_dir="memory:", secure_port=0), (service,)):
        host, port = service.address

        async def look() -> list[str]:
            answer = await exchanged(OWN, host, port)
            return [str(item) for rrset in answer.answer for item in rrset]

        assert await eventually(look) == ["10.96.0.10"]
        process = service._process
        assert process is not None
        process.kill()
        assert await eventually(look, ignoring=(ConnectionError,)) == ["10.96.0.10"]
        await eventually(lambda: service._process is not process)
    assert service._process is not None
    assert service._process.returncode is not None, "it ends with the plane"


async def test_the_slice_of_kube_dns_is_where_the_name_server_listens_now() -> None:
    async with ServerPlane(PlaneConfig(data_dir="memory:", secure_port=0), ()) as plane:
        client = plane.client("system:admin")
        births = set()
        for port in (5300, 5301):
            await write_service(client, CIDRS, ("192.0.2.7", port))
            (body,) = (await client.list(Selection(EndpointSlices, "kube-system"))).items
            births.add(decode_document(body)["metadata"]["uid"])
        assert len(births) == 1, "changed in place: rules that lead to the name server stay"
        document = decode_document(body)
        assert document["endpoints"][0]["addresses"] == ["192.0.2.7"]
        assert [(port["name"], port["protocol"], port["port"]) for port in document["ports"]] == [
            ("dns", "UDP", 5301),
            ("dns-tcp", "TCP", 5301),
        ]
        (body,) = (await client.list(Selection(Services, "kube-system"))).items
        assert decode(body, Service).spec.cluster_ip == "10.96.0.10"
        await write_service(client, CIDRS, ("127.0.0.1", 5300))
        (body,) = (await client.list(Selection(EndpointSlices, "kube-system"))).items
        assert not decode_document(body).get("endpoints")
        await write_service(client, CIDRS, ("2001:db8::7", 5300))
        (body,) = (await client.list(Selection(EndpointSlices, "kube-system"))).items
        assert decode_document(body)["addressType"] == "IPv6"


@pytest.mark.parametrize(
    ("listen", "proxied", "servers"),
    [
        (("192.0.2.7", 53), True, ["10.96.0.10", "192.0.2.53"]),
        (("192.0.2.7", 5300), True, ["10.96.0.10", "192.0.2.53"]),
        (("192.0.2.7", 53), False, ["192.0.2.7", "10.96.0.10"]),
        (("127.0.0.1", 53), True, ["127.0.0.1", "10.96.0.10"]),
        (("192.0.2.7", 5300), False, []),
    ],
)
def test_the_resolv_conf_that_is_printed_has_a_second_server_and_search(
    listen: tuple[str, int], proxied: bool, servers: list[str], tmp_path: Path
) -> None:
    """A resolv.conf has no ports, and what leads to the name server itself is no second server."""
    search = "search default.svc.cluster.local svc.cluster.local cluster.local"
    file = tmp_path / "resolv.conf"
    lines = [f"nameserver {server}" for server in servers]
    assert resolv_conf(listen, CIDRS, proxied=proxied, path=file) == (
        (lines[0], search) if servers else ()
    )
    file.write_text("nameserver 10.96.0.10\nnameserver 192.0.2.7\nnameserver 192.0.2.53\n")
    assert resolv_conf(listen, CIDRS, proxied=proxied, path=file) == (
        (*lines, search) if servers else ()
    )


def test_where_others_reach_an_address() -> None:
    assert reachable("192.0.2.7") == "192.0.2.7"
    assert reachable("127.0.0.1") == reachable("::1") == reachable("fe80::1") == ""
    assert not reachable("0.0.0.0").startswith("127.")
    assert service_address(CIDRS) == "10.96.0.10"
    assert service_address(CIDRS[1:]) == "fd00:10:96::a"
