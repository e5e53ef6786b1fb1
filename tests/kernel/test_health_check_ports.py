"""healthCheckNodePort: what a load balancer hears of each family, as the kernel's rules have it."""

from __future__ import annotations

import asyncio
import json

import pytest
from tests.kernel.cluster import NODE, make_slice, running, service
from tests.kernel.netns import Host, Net
from tests.nft.machine import DYING
from tests.ports import free_port
from tests.waiting import eventually

from sliceplane.kit.ip import FAMILIES, Family

pytestmark = pytest.mark.kernel

LOOPBACK: dict[Family, str] = {"IPv4": "127.0.0.1", "IPv6": "::1"}


@pytest.fixture(scope="module")
def host(net: Net) -> Host:
    return net.add_host("node", ip4="10.10.0.1/16", ip6="fd10::1/64")


@pytest.fixture(scope="module")
def endpoints(net: Net) -> list[Host]:
    return [net.add_host(f"b{n}", ip4=f"10.10.1.{n}/16", ip6=f"fd10::1:{n}/64") for n in (1, 2)]


async def becomes(family: Family, port: int, wanted: tuple[int, int] | None) -> None:
    """What is told follows what the kernel has by a moment; ``None``: nobody listens."""
    await eventually(lambda: heard(family, port), lambda told: told == wanted)


async def heard(family: Family, port: int) -> tuple[int, int] | None:
    """The status and the number of local endpoints."""
    try:
        reader, writer = await asyncio.open_connection(LOOPBACK[family], port)
    except ConnectionRefusedError:
        return None
    writer.write(b"GET / HTTP/1.0\r\n\r\n")
    head, _, body = (await asyncio.wait_for(reader.read(), 30)).partition(b"\r\n\r\n")
    writer.close()
    return int(head.split()[1]), json.loads(body)["localEndpoints"]


@pytest.mark.parametrize("family", FAMILIES)
async def test_a_load_balancer_hears_of_ready_endpoints_of_its_family_here(
    host: Host, endpoints: list[Host], family: Family
) -> None:
    port = free_port()
    local = service(type="LoadBalancer", externalTrafficPolicy="Local", healthCheckNodePort=port)
    other: Family = "IPv6" if family == "IPv4" else "IPv4"
    async with running(host) as cluster:
        cluster.put(
            local, make_slice(family, endpoints, nodeName=NODE), make_slice(other, endpoints)
        )
        cluster.synced()
        await cluster.written()
        await becomes(family, port, (200, 2))
        await becomes(other, port, (503, 0))
        cluster.put(make_slice(family, endpoints, version=2, nodeName=NODE, **DYING))
        await cluster.written()
        await becomes(family, port, (503, 0))  # what is terminating gets no new connections
        moved = service(
            type="LoadBalancer",
            externalTrafficPolicy="Local",
            healthCheckNodePort=(again := free_port()),
        )
        cluster.put(moved, make_slice(family, endpoints[:1], version=3, nodeName=NODE))
        await cluster.written()
        await becomes(family, again, (200, 1))
        await becomes(family, port, None)
