"""Real packets to addresses that a hostile Service asks for, in each back end; and two modes on one
node.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from tests.kernel.cluster import SERVER, Mode, ask, make_slice, running, service, serving
from tests.kernel.netns import Host, Net
from tests.nft.machine import make_slice as slice_of_rows
from tests.nft.machine import node

from sliceplane.api import codec
from sliceplane.api.core import Service, ServiceCIDR
from sliceplane.api.scheme import Nodes
from sliceplane.node.io.claims import ALL_NODES
from sliceplane.node.io.kernel.backend import KernelError
from sliceplane.node.io.kernel.modes import exclusive_mode
from sliceplane.watch.cache import Change

pytestmark = pytest.mark.kernel
MODES: tuple[Mode, ...] = ("nftables", "iptables-nft", "iptables-legacy")


@pytest.fixture
def hosts() -> Iterator[list[Host]]:
    """The node, another one with a server on port 22, and three Pods."""
    with Net("clm") as net:
        pods = serving(net, 3)
        here = net.add_host("node", ip4="10.10.0.1/16", ip6="fd10::1/64")
        other = net.add_host("other", ip4="10.10.0.2/16", ip6="fd10::2/64")
        for host in (here, other):
            host.serve(SERVER, "sshd", "22")
        pods[2].serve(SERVER, "b3", "80")
        yield [here, other, *pods]


def cidr() -> ServiceCIDR:
    return codec.decode(
        codec.encode({"metadata": {"name": "k"}, "spec": {"cidrs": ["172.30.0.0/16"]}}), ServiceCIDR
    )


def ports(*numbers: int) -> list[dict[str, Any]]:
    return [{"name": f"p{number}", "port": number, "protocol": "TCP"} for number in numbers]


def evil_slice(host: Host, name: str, *numbers: int) -> Any:
    rows = [{"name": f"p{number}", "port": 8080, "protocol": "TCP"} for number in numbers]
    return slice_of_rows([host.ip4], name, ports=rows)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", ["aaa", "zzz"])
async def test_what_a_service_asks_for_reaches_whose_it_is(
    hosts: list[Host], mode: Mode, name: str
) -> None:
    here, other, victim, evil, pod = hosts
    async with running(here, mode, families=("IPv4",)) as cluster:
        cluster.put(cidr(), node("", here.ip4, podCIDR="10.11.0.0/24"))
        others = node(
            "", other.ip4, name="node-2", podCIDR="10.10.1.0/24", podCIDRs=["10.10.1.0/24"]
        )
        cluster.proxy.on_change(Change(Nodes.key, None, others), ALL_NODES)
        claims = [
            "172.30.0.1",
            "172.30.0.77",
            here.ip4,
            other.ip4,
            pod.ip4,
            "203.0.113.9",
            "127.0.0.1",
        ]
        wanted = service(name, 5, externalIPs=claims, ports=ports(22, 80))
        cluster.put(wanted, evil_slice(evil, name, 22, 80))
        cluster.put(service(), make_slice("IPv4", [victim]))
        cluster.synced()
        await cluster.written()

        async def who(address: str, port: int) -> str:
            return (await ask(here, address, port))[0].split()[0]

        assert await who("172.30.0.1", 80) == "b1"
        assert await who(here.ip4, 22) == "sshd"
        assert await who(other.ip4, 22) == "sshd"
        assert await who("127.0.0.1", 22) == "sshd"
        assert await who(pod.ip4, 80) == "b3"
        assert await who("203.0.113.9", 80) == "b2", "what is nobody's is served"
        for address, port, why in (
            ("172.30.0.77", 80, "a free address of the range of cluster IPs"),
            ("172.30.0.1", 22, "a port that the victim does not have"),
        ):
            (answer,) = await ask(here, address, port, patience_s=0.5)
            assert answer.startswith("!"), why


@pytest.mark.parametrize("mode", MODES)
async def test_names_that_are_no_names_leave_the_kernel_and_others_alone(
    hosts: list[Host], mode: Mode
) -> None:
    here, _, victim, evil, _ = hosts
    names = [
        'x" -j ACCEPT\nflush ruleset\n',
        "y" * 10_000,
        "п\u202eevil",
        "a; delete table ip sliceplane",
        "../..",
        "",
    ]
    async with running(here, mode, families=("IPv4",)) as cluster:
        cluster.put(service(), make_slice("IPv4", [victim]))
        for number, name in enumerate(names, 10):
            hostile = service(
                f"h{number}", number, ports=[{"name": name, "port": 80, "protocol": "TCP"}]
            )
            renamed = codec.decode(
                codec.encode(hostile).replace(b'"h%d"' % number, codec.encode(name)), Service
            )
            cluster.put(hostile, renamed, evil_slice(evil, f"h{number}", 80))
        cluster.synced()
        await cluster.written()
        assert (await ask(here, "172.30.0.1"))[0].split()[0] == "b1"
        for plane in cluster.proxy._planes:
            plane.check()
            assert not plane.schedule.freshness.failures


async def test_a_proxy_of_another_mode_does_not_start_beside_one(hosts: list[Host]) -> None:
    here, other, *_ = hosts
    async with exclusive_mode("nftables", here.netns):
        with pytest.raises(
            KernelError, match="--proxy-mode=nftables runs in this network namespace"
        ):
            async with exclusive_mode("iptables", here.netns):
                pass
        async with exclusive_mode("nftables", here.netns), exclusive_mode("iptables", other.netns):
            pass  # one replaces the other; another node is another matter
    async with exclusive_mode("iptables", here.netns):
        pass
