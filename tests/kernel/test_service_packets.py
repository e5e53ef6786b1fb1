"""Every kind of Service on the real kernel: a node that routes, its pods, pods elsewhere, and a
client outside.

All on one switch, but in networks of their own, so that whatever goes from one to another goes
through the node and its rules, and back.
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
from tests.kernel.cluster import (
    DATAGRAMS,
    LB,
    NODE,
    SERVER,
    UDP_REFUSED,
    VIP,
    Cluster,
    Mode,
    ask,
    running,
    service,
    slice_of,
)
from tests.kernel.netns import Host, Net
from tests.nft.machine import DYING, ep, node
from tests.waiting import eventually

from sliceplane.api import codec
from sliceplane.api.core import ServiceCIDR
from sliceplane.api.discovery import EndpointSlice
from sliceplane.kit.ip import FAMILIES, Family
from sliceplane.node.context import RulesConfig

pytestmark = pytest.mark.kernel

EXTERNAL: dict[Family, str] = {"IPv4": "203.0.113.6", "IPv6": "2001:db8::6"}
OUTSIDE_OF_NODE: dict[Family, str] = {"IPv4": "192.168.50.1", "IPv6": "fd50::1"}
INSIDE_OF_NODE: dict[Family, str] = {"IPv4": "10.244.1.254", "IPv6": "fd44:1::fe"}
OF_NODE = {
    "192.168.50.1",
    "fd50::1",
    *(f"10.244.{n}.254" for n in (1, 2, 3)),
    *(f"fd44:{n}::fe" for n in (1, 2, 3)),
}
PODS = RulesConfig(cluster_cidrs=("10.244.0.0/16", "fd44::/16"))
TIMEOUT, REFUSED = "!TimeoutError", "!ConnectionRefusedError"

#: one UDP socket, which asks for every line on stdin
UDP_KEEPER = (
    DATAGRAMS
    + """
with socket.socket(socket.AF_INET6 if ":" in sys.argv[1] else socket.AF_INET, socket.SOCK_DGRAM) as s:
    s.connect((sys.argv[1], int(sys.argv[2])))
    print("ready", flush=True)
    for _ in sys.stdin:
        try:
            print(ask_again(s, 20).decode().split()[0], flush=True)
        except OSError as error:
            print("!" + type(error).__name__, flush=True)
"""
)


class Site:
    """``node``; ``here``, a pod of it that serves; ``there``, two elsewhere; ``pod``, a client on
    the node; ``outside``, a client beyond.
    """

    def __init__(self, net: Net) -> None:
        self.node = net.add_host("node", ip4="192.168.50.1/24", ip6="fd50::1/64")
        net.make_router(self.node)
        for address in ("10.244.1.254/24", "10.244.2.254/24", "10.244.3.254/24"):
            self.node.exec(["ip", "addr", "add", address, "dev", "eth0"])
        for address in ("fd44:1::fe/64", "fd44:2::fe/64", "fd44:3::fe/64"):
            self.node.exec(["ip", "-6", "addr", "add", address, "dev", "eth0", "nodad"])

        def host(name: str, subnet: int, number: int) -> Host:
            return net.add_host(
                name,
                ip4=f"10.244.{subnet}.{number}/24",
                ip6=f"fd44:{subnet}::{number}/64",
                gateway4=f"10.244.{subnet}.254",
                gateway6=f"fd44:{subnet}::fe",
            )

        self.here, self.pod = host("here", 1, 1), host("pod", 3, 9)
        self.there = [host("r1", 2, 1), host("r2", 2, 2)]
        self.outside = net.add_host(
            "outside",
            ip4="192.168.50.9/24",
            ip6="fd50::9/64",
            gateway4="192.168.50.1",
            gateway6="fd50::1",
        )
        for each in (self.here, self.pod, *self.there, self.outside):
            each.place.set_kernel(
                "ipv6/conf/eth0/accept_redirects=0"
            )  # the short way round the node is no way here
        for server, name in ((self.here, "here"), *zip(self.there, ("r1", "r2"), strict=True)):
            server.serve(SERVER, name, "8080")
        self.node.serve(SERVER, "node", "30080")


@pytest.fixture(scope="module")
def site() -> Iterator[Site]:
    with Net("sps") as net:
        yield Site(net)


SLOW = pytest.mark.slow


@pytest.fixture(params=["nftables", "iptables-nft", pytest.param("iptables-legacy", marks=SLOW)])
def mode(request: pytest.FixtureRequest) -> Mode:
    found: Mode = request.param
    return found


@pytest.fixture(
    params=[
        "nftables",
        pytest.param("iptables-nft", marks=SLOW),
        pytest.param("iptables-legacy", marks=SLOW),
    ]
)
def slow_mode(request: pytest.FixtureRequest) -> Mode:
    """For tests that take their time."""
    found: Mode = request.param
    return found


def slices(site: Site, family: Family, *who: Host, version: int = 1, **extra: Any) -> EndpointSlice:
    """Endpoints on *who*; the one on this node says so."""
    endpoints = [
        ep(host.ip(family), **({"nodeName": NODE} if host is site.here else {}), **extra)
        for host in who
    ]
    return slice_of(family, endpoints, version=version)


def reachable(family: Family, **spec: Any) -> Any:
    """A Service of type LoadBalancer with everything."""
    ports = [
        {"name": "http", "port": 80, "protocol": "TCP", "nodePort": 30080},
        {"name": "dns", "port": 53, "protocol": "UDP", "nodePort": 30053},
    ]
    base = {
        "type": "LoadBalancer",
        "ports": ports,
        "externalIPs": [EXTERNAL[family]],
        "ingress": [{"ip": LB[family]}],
    }
    return service(**{**base, **spec})


def this_node() -> Any:
    return node("", *OUTSIDE_OF_NODE.values())


async def names(
    host: Host,
    address: str,
    port: int = 80,
    proto: str = "tcp",
    count: int = 1,
    patience_s: float = 20.0,
) -> set[str]:
    return {
        answer.split()[0] for answer in await ask(host, address, port, proto, count, patience_s)
    }


async def sources(host: Host, address: str, port: int = 80, count: int = 12) -> set[str]:
    return {answer.split()[1] for answer in await ask(host, address, port, "tcp", count)}


EVERYBODY = {"here", "r1", "r2"}


async def start(cluster: Cluster, *objects: Any) -> None:
    cluster.put(*objects)
    cluster.synced()
    await cluster.written()


@pytest.mark.parametrize("family", FAMILIES)
async def test_from_outside_with_policy_cluster(
    site: Site, family: Family, slow_mode: Mode
) -> None:
    """All endpoints, masqueraded: the answer must come back through this node."""
    async with running(site.node, slow_mode, rules=PODS) as cluster:
        await start(
            cluster, this_node(), reachable(family), slices(site, family, site.here, *site.there)
        )
        for address, port, udp in (
            (LB[family], 80, 53),
            (EXTERNAL[family], 80, 53),
            (OUTSIDE_OF_NODE[family], 30080, 30053),
        ):
            answers = await ask(site.outside, address, port, count=60)
            assert {answer.split()[0] for answer in answers} == EVERYBODY, answers
            assert {answer.split()[1] for answer in answers} <= OF_NODE, answers
            assert await names(site.outside, address, udp, "udp", 60) == EVERYBODY
        # Not one of the Node's own addresses: left alone, neither translated nor rejected.
        assert await names(site.pod, INSIDE_OF_NODE[family], 30080) == {"node"}
        assert await names(site.node, OUTSIDE_OF_NODE[family], 30080, count=60) == EVERYBODY


@pytest.mark.parametrize("family", FAMILIES)
async def test_from_outside_with_policy_local(site: Site, family: Family, slow_mode: Mode) -> None:
    async with running(site.node, slow_mode, rules=PODS) as cluster:
        everybody = slices(site, family, site.here, *site.there)
        await start(
            cluster, this_node(), reachable(family, externalTrafficPolicy="Local"), everybody
        )
        for address, port in (
            (LB[family], 80),
            (EXTERNAL[family], 80),
            (OUTSIDE_OF_NODE[family], 30080),
        ):
            assert set(await ask(site.outside, address, port, count=8)) == {
                f"here {site.outside.ip(family)}"
            }
        answers = await ask(site.pod, LB[family], count=60)
        assert {answer.split()[0] for answer in answers} == EVERYBODY
        assert {answer.split()[1] for answer in answers} == {site.pod.ip(family)}
        assert await names(site.node, LB[family], count=60) == EVERYBODY
        assert (
            await names(site.outside, VIP[family], count=60) == EVERYBODY
        )  # cluster IPs are none of its business

        cluster.put(slices(site, family, *site.there, version=2))
        await cluster.written()
        for address, port in ((LB[family], 80), (OUTSIDE_OF_NODE[family], 30080)):
            assert await names(site.outside, address, port, patience_s=0.5) == {TIMEOUT}
        assert await names(site.pod, LB[family], count=60) == {"r1", "r2"}
        assert await names(site.node, EXTERNAL[family], count=60) == {"r1", "r2"}

        cluster.put(slices(site, family, site.here, version=3, **DYING))
        await cluster.written()
        assert await names(site.outside, LB[family]) == {"here"}


@pytest.mark.parametrize("family", FAMILIES)
async def test_without_endpoints_everything_is_rejected(
    site: Site, family: Family, mode: Mode
) -> None:
    async with running(site.node, mode, rules=PODS) as cluster:
        await start(cluster, this_node(), reachable(family), slices(site, family))
        for host in (site.outside, site.pod):
            for address in (VIP[family], LB[family], EXTERNAL[family]):
                assert await names(host, address) == {REFUSED}
        # The node serves something else on this very port number; it must not answer for the
        # Service.
        assert await names(site.outside, OUTSIDE_OF_NODE[family], 30080) == {REFUSED}
        assert await names(site.outside, OUTSIDE_OF_NODE[family], 30053, "udp") == {REFUSED}
        assert await names(site.node, LB[family], 53, "udp") == {UDP_REFUSED}


@pytest.mark.parametrize("family", FAMILIES)
async def test_source_ranges(site: Site, family: Family, slow_mode: Mode) -> None:
    async with running(site.node, slow_mode, rules=PODS) as cluster:
        allowed = f"{site.outside.ip(family)}/{32 if family == 'IPv4' else 128}"
        guarded = reachable(
            family, loadBalancerSourceRanges=[allowed, "198.51.100.0/24", "2001:db8:1::/48"]
        )
        await start(cluster, this_node(), guarded, slices(site, family, site.here, *site.there))
        assert await names(site.outside, LB[family], count=4) <= EVERYBODY
        assert await names(site.pod, LB[family], patience_s=0.5) == {TIMEOUT}
        assert await names(site.node, LB[family], patience_s=0.5) == {TIMEOUT}
        for address, port in ((VIP[family], 80), (EXTERNAL[family], 80)):
            assert await names(site.pod, address, port, count=4) <= EVERYBODY
        assert await names(site.pod, OUTSIDE_OF_NODE[family], 30080, count=4) <= EVERYBODY

        # The node, whichever of its addresses it takes.
        with_node = [f"{address}/{128 if ':' in address else 32}" for address in OF_NODE]
        cluster.put(reachable(family, loadBalancerSourceRanges=with_node))
        await cluster.written()
        assert await names(site.outside, LB[family], patience_s=0.5) == {TIMEOUT}
        assert await names(site.node, LB[family], count=4) <= EVERYBODY


@pytest.mark.parametrize("family", FAMILIES)
async def test_an_address_of_mode_proxy_is_left_alone(
    site: Site, family: Family, slow_mode: Mode
) -> None:
    async with running(site.node, slow_mode, rules=PODS) as cluster:
        proxied = reachable(family, ingress=[{"ip": LB[family], "ipMode": "Proxy"}])
        await start(cluster, this_node(), proxied, slices(site, family, site.here))
        assert (await names(site.outside, LB[family])).isdisjoint(EVERYBODY)
        cluster.put(reachable(family, ingress=[{"ip": LB[family], "ipMode": "VIP"}]))
        await cluster.written()
        assert await names(site.outside, LB[family]) == {"here"}


@pytest.mark.parametrize("family", FAMILIES)
async def test_session_affinity(site: Site, family: Family, slow_mode: Mode) -> None:
    async with running(site.node, slow_mode, rules=PODS) as cluster:
        sticky: dict[str, Any] = {"sessionAffinity": "ClientIP"}
        everybody = [site.here, *site.there]
        await start(
            cluster, this_node(), reachable(family, **sticky), slices(site, family, *everybody)
        )
        (first,) = await names(site.outside, LB[family], count=12)
        assert await names(site.outside, OUTSIDE_OF_NODE[family], 30080, count=4) == {first}, (
            "one port, one endpoint"
        )
        assert await names(site.outside, VIP[family], count=4) == {first}
        assert len(await names(site.outside, VIP[family], 53, "udp", 12)) == 1

        rest = [
            host
            for host, name in zip(everybody, ("here", "r1", "r2"), strict=True)
            if name != first
        ]
        cluster.put(slices(site, family, *rest, version=2))
        await cluster.written()
        (second,) = await names(site.outside, LB[family], count=8)
        assert second != first
        cluster.put(slices(site, family, *everybody, version=3))
        await cluster.written()
        assert await names(site.outside, LB[family], count=8) == {second}, (
            "it stays, though the first is back"
        )

        sticky["sessionAffinityConfig"] = {"clientIP": {"timeoutSeconds": 1}}
        cluster.put(reachable(family, **sticky))
        await cluster.written()
        found = set()
        for _ in range(30):  # each time the second of the kernel has passed, the choice is free
            await asyncio.sleep(1.1)
            found |= await names(site.outside, LB[family])
            if len(found) > 1:
                break
        assert len(found) > 1, found


@pytest.mark.parametrize("family", FAMILIES)
async def test_a_new_process_leaves_clients_where_they_are(
    site: Site, family: Family, slow_mode: Mode
) -> None:
    everybody = slices(site, family, site.here, *site.there)
    async with running(site.node, slow_mode, rules=PODS) as cluster:
        await start(cluster, this_node(), reachable(family, sessionAffinity="ClientIP"), everybody)
        (first,) = await names(site.outside, LB[family], count=4)
        for _ in range(3):  # by chance: once in 27 times
            async with running(site.node, slow_mode, rules=PODS) as heir:
                await start(
                    heir, this_node(), reachable(family, sessionAffinity="ClientIP"), everybody
                )
                assert await names(site.outside, LB[family], count=4) == {first}
                heir.clean = False


@pytest.mark.parametrize("family", FAMILIES)
async def test_masquerading_of_cluster_ips(site: Site, family: Family, mode: Mode) -> None:
    there = slices(site, family, *site.there)
    for rules, pods_too in ((PODS, False), (RulesConfig(masquerade_all=True), True)):
        async with running(site.node, mode, rules=rules) as cluster:
            await start(cluster, this_node(), service(), there)
            assert site.outside.ip(family) not in await sources(site.outside, VIP[family])
            assert (site.pod.ip(family) not in await sources(site.pod, VIP[family])) == pods_too
    async with running(site.node, mode) as cluster:  # nothing tells pods' traffic from others'
        await start(cluster, this_node(), service(), there)
        assert await sources(site.outside, VIP[family]) == {site.outside.ip(family)}


async def test_an_unallocated_cluster_ip_is_dropped(site: Site, mode: Mode) -> None:
    async with running(site.node, mode, rules=PODS) as cluster:
        await start(cluster, service(), slices(site, "IPv4", *site.there))
        document = {
            "metadata": {"name": "kubernetes"},
            "spec": {"cidrs": ["172.30.0.0/16", "fd30::/112"]},
        }
        cluster.put(codec.decode(codec.encode(document), ServiceCIDR))
        await cluster.written()
        for host in (site.pod, site.outside):
            assert await names(host, "172.30.0.99", patience_s=0.5) == {TIMEOUT}
            assert await names(host, VIP["IPv4"], 81) == {REFUSED}
            assert await names(host, VIP["IPv4"], count=4) <= EVERYBODY


async def test_choices_are_even(site: Site, mode: Mode) -> None:
    """Chi-square with 2 degrees of freedom: above 32.2 once in 10,000,000 runs."""
    async with running(site.node, mode, rules=PODS) as cluster:
        await start(cluster, service(), slices(site, "IPv4", site.here, *site.there))
        count = 600
        found = Counter(
            answer.split()[0] for answer in await ask(site.pod, VIP["IPv4"], count=count)
        )
        assert set(found) == EVERYBODY
        statistic = sum((found[name] - count / 3) ** 2 / (count / 3) for name in EVERYBODY)
        assert statistic < 32.2, found


@pytest.mark.parametrize("family", FAMILIES)
async def test_udp_flows_leave_an_endpoint_that_is_gone(
    site: Site, family: Family, slow_mode: Mode
) -> None:
    async with running(site.node, slow_mode, rules=PODS) as cluster:
        await start(cluster, this_node(), reachable(family), slices(site, family, site.here))
        keepers = [
            site.outside.serve(UDP_KEEPER, address, port)
            for address, port in (
                (VIP[family], "53"),
                (LB[family], "53"),
                (OUTSIDE_OF_NODE[family], "30053"),
            )
        ]

        def again(keeper: Any) -> str:
            keeper.stdin.write("\n")
            keeper.stdin.flush()
            return str(keeper.stdout.readline().strip())

        assert [await asyncio.to_thread(again, keeper) for keeper in keepers] == ["here"] * 3
        cluster.put(slices(site, family, site.there[0], version=2))
        await cluster.written()
        await eventually(
            lambda: asyncio.gather(*(asyncio.to_thread(again, keeper) for keeper in keepers)),
            lambda answers: answers == ["r1"] * 3,
        )

        def forgotten() -> float:
            told = [
                f
                for f in cluster.proxy.metrics.families()
                if f.name.endswith("deleted_entries_total")
            ]
            return sum(sample.value for each in told for sample in each.samples)  # type: ignore[misc]  # a counter's

        await eventually(
            forgotten, lambda count: count >= 3
        )  # told when the pass over all flows has ended
        for keeper in keepers:
            keeper.stdin.close()
            keeper.wait(60)


@pytest.mark.parametrize("family", FAMILIES)
async def test_udp_flows_end_with_the_last_endpoint_and_with_the_service(
    site: Site, family: Family, slow_mode: Mode
) -> None:
    """k/k#139628, #141371: a client that goes on sending is refused, and learns that nobody is
    there.
    """
    async with running(site.node, slow_mode, rules=PODS) as cluster:
        await start(cluster, this_node(), reachable(family), slices(site, family, site.here))
        keeper = site.outside.serve(UDP_KEEPER, VIP[family], "53")

        def again() -> str:
            assert keeper.stdin is not None
            assert keeper.stdout is not None
            keeper.stdin.write("\n")
            keeper.stdin.flush()
            return str(keeper.stdout.readline().strip())

        async def becomes(wanted: str) -> None:
            await eventually(lambda: asyncio.to_thread(again), lambda answer: answer == wanted)

        await becomes("here")
        cluster.put(slices(site, family, version=2))
        await becomes("!ConnectionRefusedError")
        cluster.put(slices(site, family, site.here, version=3))
        await becomes("here")
        cluster.drop(reachable(family))
        flag = "ipv4" if family == "IPv4" else "ipv6"
        listing = ["conntrack", "-L", "-p", "udp", "-f", flag, "--orig-dst", VIP[family]]
        await eventually(
            lambda: site.node.exec(listing).stdout,
            lambda flows: site.here.ip4 not in flows and site.here.ip6 not in flows,
        )
        assert keeper.stdin is not None
        keeper.stdin.close()
        keeper.wait(60)


async def test_node_port_addresses_by_network(site: Site, slow_mode: Mode) -> None:
    async def addresses() -> tuple[str, ...]:
        return ("10.244.1.254", "10.244.2.254", "192.168.50.1", "fd50::1")

    rules = RulesConfig(cluster_cidrs=PODS.cluster_cidrs, node_port_addresses=("10.244.0.0/16",))
    async with running(site.node, slow_mode, rules=rules, host_addresses=addresses) as cluster:
        await start(cluster, this_node(), reachable("IPv4"), slices(site, "IPv4", site.here))
        assert await names(site.outside, "10.244.2.254", 30080) == {"here"}
        assert await names(site.outside, OUTSIDE_OF_NODE["IPv4"], 30080) == {"node"}
        # IPv6 was not named: all addresses but loopback ones.
        cluster.put(reachable("IPv6"), slices(site, "IPv6", site.here))
        await cluster.written()
        assert await names(site.outside, OUTSIDE_OF_NODE["IPv6"], 30080) == {"here"}
        assert await names(site.node, "::1", 30080) == {"node"}


async def test_every_wanted_element_is_in_the_kernel(site: Site) -> None:
    """What one Service with everything leaves behind when it goes: nothing."""
    async with running(site.node, rules=PODS) as cluster:
        await start(cluster, this_node())

        def listed() -> str:
            found = json.loads(
                site.node.exec(["nft", "-j", "list", "table", "ip", "sliceplane"]).stdout
            )["nftables"]
            return json.dumps(
                [
                    {k: {x: y for x, y in v.items() if x != "handle"} for k, v in e.items()}
                    for e in found[1:]
                ]
            )

        empty = listed()
        sticky = {"sessionAffinity": "ClientIP", "loadBalancerSourceRanges": ["192.168.50.0/24"]}
        cluster.put(
            reachable("IPv4", externalTrafficPolicy="Local", **sticky),
            slices(site, "IPv4", site.here),
        )
        await cluster.written()
        assert await names(site.outside, LB["IPv4"]) == {"here"}
        assert listed() != empty
        cluster.drop(service())
        await cluster.written()
        await eventually(listed, lambda rules: rules == empty)
