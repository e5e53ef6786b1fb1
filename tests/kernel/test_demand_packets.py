"""Connections to Services that ask for measured zones, counted by the kernel beside the rules of a
node proxy: each once, and no other.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from msgspec.structs import replace
from tests.kernel.cluster import VIP, Cluster, Mode, ask, make_slice, running, service
from tests.kernel.fabric import Fabric
from tests.kernel.netns import Host
from tests.waiting import eventually

from sliceplane.api.core import Service
from sliceplane.api.selectors.distribution import ANNOTATION_TOPOLOGY_MODE
from sliceplane.consume.demand import MEASURED, read_demand
from sliceplane.consume.progress import Progress
from sliceplane.kit.ip import FAMILIES, Family
from sliceplane.node.demand import TABLE, ServiceDemand
from sliceplane.node.io.demand import count_connections, remove_counters

pytestmark = pytest.mark.kernel

UID = "0a1b2c3d"
OTHER_VIP: dict[Family, str] = {"IPv4": "172.30.0.2", "IPv6": "fd30::2"}
#: sends 20 datagrams from one socket, then opens a connection for 4 seconds: SYNs are sent again
UNANSWERED = """
import socket, sys
with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
    sender.connect((sys.argv[1], 53))
    for _ in range(20):
        try:
            sender.send(b"?")
        except OSError:
            pass
with socket.socket() as caller:
    caller.settimeout(4)
    try:
        caller.connect((sys.argv[1], 80))
    except TimeoutError:
        pass
"""
SILENT = """
table ip silent {
 chain input {
  type filter hook input priority 0;
  tcp dport 8080 drop
  udp dport 8080 drop
 }
}
"""


def asking(name: str = "svc", number: int = 1, uid: str = UID) -> Service:
    plain = service(name, number)
    metadata = replace(
        plain.metadata, uid=f"{uid}-x", annotations={ANNOTATION_TOPOLOGY_MODE: MEASURED}
    )
    return replace(plain, metadata=metadata)


class Counted:
    """The totals that a node's report has."""

    def __init__(self) -> None:
        self.progress = Progress("node-1", FAMILIES, changed_period_s=0.05)
        self.totals: dict[str, int] = {}
        self.progress.on_demand = self._on_demand  # type: ignore[method-assign]
        self.rounds = 0

    def _on_demand(self, demand: str) -> None:
        self.totals = read_demand(demand).counts
        self.rounds += 1

    async def round(self) -> dict[str, int]:
        """Waits until counters that are read from now on are reported."""
        rounds = self.rounds
        await eventually(lambda: self.rounds >= rounds + 2)
        return self.totals


@asynccontextmanager
async def counting(demand: ServiceDemand, host: Host) -> AsyncIterator[Counted]:
    counted = Counted()
    task = asyncio.create_task(count_connections(demand, counted.progress, host.netns))
    try:
        await counted.round()
        yield counted
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def tables(host: Host) -> list[str]:
    listed = host.exec(["nft", "list", "tables"]).stdout.splitlines()
    return [line.split()[1] for line in listed if line.endswith(f" {TABLE}")]


def rules(host: Host, name: str) -> str:
    """The rules of one table, without counts."""
    return host.exec(["nft", "-s", "list", "table", "ip", name]).stdout


async def serve(cluster: Cluster, fabric: Fabric) -> None:
    """A Service that asks and one that does not, with the same endpoints on both nodes."""
    cluster.put(asking(), service("other", 2))
    for family in FAMILIES:
        for name in ("svc", "other"):
            cluster.put(make_slice(family, [fabric.a1, fabric.b1], name))
    cluster.synced()
    await cluster.written()


@pytest.mark.parametrize("mode", ["nftables", "iptables-nft", "iptables-legacy"])
async def test_each_connection_counts_once(fabric: Fabric, mode: Mode) -> None:
    node, pod = fabric.nodes[0], fabric.ac
    async with running(node, mode) as cluster, counting(cluster.proxy.demand, node) as counted:
        await serve(cluster, fabric)
        assert await counted.round() == {UID: 0}
        expected = 0
        for family in FAMILIES:
            for proto, port in (("tcp", 80), ("udp", 53)):
                for client, count in ((pod, 12), (node, 7)):
                    answers = await ask(client, VIP[family], port, proto, count)
                    answered = Counter(answer.split()[0] for answer in answers)
                    assert answered.keys() <= {"a1", "b1"}, "the translation is the proxy's"
                    expected += count
                    assert await counted.round() == {UID: expected}
            assert await ask(pod, OTHER_VIP[family], count=5)
            assert await ask(pod, fabric.b1.ip(family), 8080, count=5)
        assert await counted.round() == {UID: expected}
    assert tables(node) == []


async def test_an_unanswered_flow_counts_once(fabric: Fabric) -> None:
    node = fabric.nodes[0]
    fabric.b2.exec(["nft", "-f", "-"], stdin=SILENT)
    try:
        async with running(node) as cluster, counting(cluster.proxy.demand, node) as counted:
            cluster.put(asking(), make_slice("IPv4", [fabric.b2]))
            cluster.synced()
            await cluster.written()
            await counted.round()
            for client, flows in ((fabric.ac, 2), (node, 4)):
                await asyncio.to_thread(client.python, UNANSWERED, VIP["IPv4"])
                assert await counted.round() == {UID: flows}
    finally:
        fabric.b2.exec(["nft", "delete", "table", "ip", "silent"])


async def test_the_table_exists_while_a_service_asks(fabric: Fabric) -> None:
    """Totals continue when the table is lost, or a port comes and goes; others' rules stay."""
    node = fabric.nodes[0]
    async with running(node) as cluster, counting(cluster.proxy.demand, node) as counted:
        cluster.put(service(), make_slice("IPv4", [fabric.a1]))
        cluster.synced()
        await cluster.written()
        assert await counted.round() == {}
        assert tables(node) == []
        before = rules(node, "sliceplane")
        cluster.put(asking())
        await cluster.written()
        await counted.round()
        assert tables(node) == ["ip", "ip6"]
        await cluster.ask(VIP["IPv4"], count=5)
        assert await counted.round() == {UID: 5}
        cluster.put(replace(asking(), spec=replace(asking().spec, ports=service().spec.ports[1:])))
        await counted.round()
        cluster.put(asking())
        await cluster.written()
        await counted.round()
        await cluster.ask(VIP["IPv4"], count=3)
        assert await counted.round() == {UID: 8}
        node.exec(["nft", "delete", "table", "ip", TABLE])
        await eventually(lambda: tables(node), lambda found: "ip" in found)
        await cluster.ask(VIP["IPv4"], count=2)
        assert await counted.round() == {UID: 10}
        cluster.put(service())
        await cluster.written()
        await eventually(lambda: tables(node), lambda found: not found)
        assert rules(node, "sliceplane") == before
        assert await counted.round() == {}, "told after the tables are removed"


async def test_a_table_of_a_former_process_is_replaced_or_removed(fabric: Fabric) -> None:
    node = fabric.nodes[0]
    demand = ServiceDemand(FAMILIES)
    demand.on_service(None, asking())
    async with counting(demand, node) as counted:
        await ask(node, VIP["IPv4"], count=3, patience_s=0.2)
        left = await counted.round()
        text = "".join(
            node.exec(["nft", "list", "table", family, TABLE]).stdout for family in ("ip", "ip6")
        )
    assert left == {UID: 3}
    node.exec(["nft", "-f", "-"], stdin=text)
    again = ServiceDemand(FAMILIES)
    again.on_service(None, asking())
    async with counting(again, node) as counted:
        assert await counted.round() == {UID: 0}, "a new process begins at zero"
        await ask(node, VIP["IPv4"], count=2, patience_s=0.2)
        assert await counted.round() == {UID: 2}
    node.exec(["nft", "-f", "-"], stdin=text)
    await remove_counters(FAMILIES, node.netns)
    assert tables(node) == []
    generation = node.exec(["nft", "-a", "list", "ruleset"]).stdout
    await remove_counters(FAMILIES, node.netns)
    assert node.exec(["nft", "-a", "list", "ruleset"]).stdout == generation
