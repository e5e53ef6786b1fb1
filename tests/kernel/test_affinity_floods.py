"""Floods of made-up clients on a Service with session affinity: what the kernel keeps is bounded,
others are served.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest
from tests.kernel.cluster import SERVER, VIP, Cluster, Mode, ask, make_slice, running, service
from tests.kernel.netns import Host, Net
from tests.nft import machine

from sliceplane.node.context import RulesConfig
from sliceplane.node.nft import chains
from sliceplane.node.nft.netlink import clients as nft_clients

pytestmark = pytest.mark.kernel

#: sends COUNT datagrams to ADDRESS PORT, each from another address of 100.64.0.0/10
FLOOD = """
import socket, struct, sys
address, port, count = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
target = socket.inet_aton(address)
with socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_RAW) as raw:
    for number in range(count):
        source = struct.pack(">I", (100 << 24 | 64 << 16) + number)
        datagram = struct.pack(">HHHH", 4000, port, 9, 0) + b"?"
        head = struct.pack(">BBHHHBBH4s4s", 0x45, 0, 20 + len(datagram), number & 0xFFFF, 0, 64, 17, 0, source, target)
        raw.sendto(head + datagram, (address, 0))
print(count)
"""
STICKY: dict[str, Any] = {"sessionAffinity": "ClientIP"}
FLOODED = 4_000


class Ground:
    """``node``, a router; ``outside``, two clients; ``pods``, two servers."""

    def __init__(self, net: Net) -> None:
        self.node = net.add_host("node", ip4="192.168.50.1/24", ip6="fd50::1/64")
        net.make_router(self.node)
        self.node.exec(["ip", "addr", "add", "10.244.1.254/24", "dev", "eth0"])

        def host(name: str, ip4: str, gateway: str) -> Host:
            return net.add_host(
                name,
                ip4=ip4,
                ip6=f"fd51::{ip4.rpartition('.')[2][:2].strip('/')}/64",
                gateway4=gateway,
            )

        self.pods = [host(f"p{n}", f"10.244.1.{n}/24", "10.244.1.254") for n in (1, 2)]
        self.outside = [host(f"o{n}", f"192.168.50.{n}/24", "192.168.50.1") for n in (8, 9)]
        for number, pod in enumerate(self.pods, 1):
            pod.serve(SERVER, f"p{number}", "8080")


@pytest.fixture(scope="module")
def ground() -> Iterator[Ground]:
    with Net("aff") as net:
        yield Ground(net)


async def serve(cluster: Cluster, ground: Ground, **spec: Any) -> None:
    cluster.put(service(**STICKY, **spec), make_slice("IPv4", ground.pods))
    cluster.synced()
    await cluster.written()


async def answers(host: Host, count: int) -> list[str]:
    return [answer.split()[0] for answer in await ask(host, VIP["IPv4"], 53, "udp", count)]


def remembered(node: Host, mode: Mode) -> list[int]:
    """How many clients each set or list has."""
    if mode == "nftables":
        listed = node.exec(["nft", "list", "sets", "table", "ip", "sliceplane"]).stdout
        return [len(re.findall("expires", one)) for one in listed.split("set affinity-")[1:]]
    lists = node.exec(["sh", "-c", "wc -l /proc/net/xt_recent/* | grep -v total"]).stdout
    return [int(line.split()[0]) for line in lists.splitlines()]


@pytest.mark.parametrize("mode", ["nftables", "iptables-nft", "iptables-legacy"])
async def test_a_full_set_of_clients_serves_others_and_keeps_who_is_in_it(
    ground: Ground, mode: Mode, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Issue 30. nftables: who is in the set keeps the endpoint, who comes later is served without
    affinity. iptables: 100 clients an endpoint (``ip_list_tot`` of xt_recent), who comes later
    displaces the oldest.
    """
    monkeypatch.setattr(chains, "CLIENTS_OF_SET_MAX", 500)
    async with running(
        ground.node, mode, rules=RulesConfig(cluster_cidrs=("10.244.0.0/16",))
    ) as cluster:
        await serve(cluster, ground)
        (first,) = set(await answers(ground.outside[0], 8))
        ground.outside[1].python(FLOOD, VIP["IPv4"], "53", str(FLOODED))
        counts = remembered(ground.node, mode)
        most = 500 if mode == "nftables" else 100
        assert max(counts) == most, counts
        assert set(await answers(ground.outside[1], 8)) <= {"p1", "p2"}, "who comes later is served"
        assert len(set(await answers(ground.outside[0], 8))) == 1
        if mode == "nftables":
            assert set(await answers(ground.outside[0], 8)) == {first}


async def test_a_namespace_shares_its_clients_among_its_sets(ground: Ground) -> None:
    """Issue 30: each of 1,000 endpoints took 65,535 clients, 6 GB of the kernel's memory."""
    async with running(ground.node) as cluster:
        rows = [{"name": f"p{n}", "port": n, "protocol": "UDP"} for n in range(1, 101)]
        addresses = [pod.ip4 for pod in ground.pods]
        cluster.put(service(ports=rows, **STICKY), machine.make_slice(addresses, ports=rows))
        cluster.synced()
        await cluster.written()
        listed = ground.node.exec(["nft", "list", "sets", "table", "ip", "sliceplane"]).stdout
        sizes = [int(size) for size in re.findall(r"affinity-.*\n.*\n\s+size (\d+)", listed)]
        assert len(sizes) == 200
        assert sum(sizes) <= chains.CLIENTS_MAX


async def test_what_is_remembered_over_a_new_table_is_bounded_and_shared(
    ground: Ground, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Issue 30: a million clients were read into a hundred million bytes of JSON, on the loop."""
    monkeypatch.setattr(nft_clients, "REMEMBERED_MAX", 1_000)
    async with running(ground.node) as cluster:
        await serve(cluster, ground)
        ground.outside[1].python(FLOOD, VIP["IPv4"], "53", str(FLOODED))
        assert sum(remembered(ground.node, "nftables")) == FLOODED
        async with running(ground.node) as heir:
            await serve(heir, ground)
            assert remembered(ground.node, "nftables").count(250) == 2, (
                "a share for each of the four sets"
            )
            heir.clean = False
