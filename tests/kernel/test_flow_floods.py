"""UDP flows of a large table are forgotten in time, one Service's whatever another one's are."""

from __future__ import annotations

import asyncio
import time

import pytest
from tests.kernel.netns import Host, Net

from sliceplane.consume.model import NodeEndpoint, ServedPort, ServiceKey, ServicePortName
from sliceplane.kit.ip import Family
from sliceplane.node.conntrack import Expected
from sliceplane.node.io.kernel.conntrack import Conntrack

pytestmark = pytest.mark.kernel
#: entries of a tenant whose Service has as many ports, each with an endpoint that is gone; those of
#: others
STALE, OTHERS = 1_000, 20_000
ADDRESSES: dict[Family, tuple[str, str, str]] = {
    "IPv4": ("10.{}.{}.7", "172.30.0.1", "172.30.0.9"),
    "IPv6": ("fd10::{}:{}", "fd30::1", "fd30::9"),
}


def udp_port(namespace: str, cluster_ip: str, port: int) -> ServedPort:
    name = ServicePortName(ServiceKey(namespace, "dns"), f"p{port}", "UDP")
    return ServedPort(name=name, cluster_ip=cluster_ip, port=port)


def fill(host: Host, family: Family) -> None:
    pattern, attacker, victim = ADDRESSES[family]
    rows = [(attacker, port) for port in range(1, STALE + 1)] + [(victim, 53)] + [("", 53)] * OTHERS
    lines = []
    for number, (to, port) in enumerate(rows):
        client = pattern.format(number >> 8 & 255, number & 255)
        destination = to or client
        lines.append(
            f"-I -s {client} -d {destination} -r {pattern.format(255, 255)} -q {client} -p udp "
            f"--sport {number + 1}"
            f" --dport {port} --reply-port-src 5353 --reply-port-dst {number + 1} -t 600\n"
        )
    host.exec(["conntrack", "-R", "-"], stdin="".join(lines))


@pytest.mark.parametrize("family", ["IPv4", "IPv6"])
async def test_as_many_stale_flows_as_ports_are_forgotten_in_one_pass(family: Family) -> None:
    """Issue 30: each pair of an address and an endpoint was a walk of the table, 0.3 s at 200,000
    entries, and the pass was given up after a minute, before it came to the flows of Services that
    sort later.
    """
    pattern, attacker, victim = ADDRESSES[family]
    with Net("flw") as net:
        host = net.add_host("node", ip4="10.99.0.1/24", ip6="fd99::1/64")
        await asyncio.to_thread(fill, host, family)
        expected = Expected()
        for port in range(1, STALE + 1):
            expected.add(udp_port("aaa", attacker, port), [])
        alive = pattern.format(255, 254)
        expected.add(udp_port("prod", victim, 53), [NodeEndpoint(alive, 5353)])
        conntrack = Conntrack(netns=host.netns)
        idle = Expected()
        idle.add(udp_port("idle", victim, 54), [])
        began = time.monotonic()
        assert await conntrack.reconcile(family, idle) == 0
        walk_s, began = time.monotonic() - began, time.monotonic()
        forgotten = await conntrack.reconcile(family, expected)
        seconds = time.monotonic() - began
        assert forgotten == STALE + 1
        counted = host.exec(["conntrack", "-C"]).stdout
        assert int(counted) == OTHERS, "a flow of another was forgotten, or one is left"
        assert seconds < STALE / 10 * walk_s, (
            f"{seconds:.1f} s, one walk of the table {walk_s:.2f} s"
        )
