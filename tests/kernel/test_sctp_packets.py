"""SCTP Services on the real kernel.

Packets are made by hand: conntrack and nftables know SCTP even where the kernel has no SCTP
sockets, and a node that forwards needs no more. The first packet of an association (INIT, RFC 9260
3.3.2) goes out, the answer (INIT ACK) comes back from where it was sent to.
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from typing import Any

import pytest
from tests.kernel.cluster import DATAGRAMS, LB, VIP, running, service
from tests.kernel.fabric import POD_NETWORKS, Fabric
from tests.kernel.netns import Host
from tests.nft.machine import make_slice

from sliceplane.api.discovery import EndpointSlice
from sliceplane.kit.ip import FAMILIES, Family
from sliceplane.node.context import RulesConfig

pytestmark = pytest.mark.kernel

#: what both ends share: packets with their checksum (CRC32c, RFC 9260 6.8) and raw sockets of one
#: family
COMMON = """
import socket, struct, sys
table = []
for n in range(256):
    for _ in range(8):
        n = n >> 1 ^ (0x82F63B78 if n & 1 else 0)
    table.append(n)
def crc32c(data):
    crc = 0xFFFFFFFF
    for byte in data:
        crc = crc >> 8 ^ table[(crc ^ byte) & 255]
    return crc ^ 0xFFFFFFFF
def packet(sport, dport, tag, kind, name=b""):
    value = struct.pack("!IIHHI", 1, 65536, 1, 1, 1)
    value += struct.pack("!HH", 0x8008, 4 + len(name)) + name if name else b""
    chunk = struct.pack("!BBH", kind, 0, 4 + len(value)) + value
    chunk += bytes(-len(chunk) % 4)
    head = struct.pack("!HHI", sport, dport, tag)
    return head + struct.pack("<I", crc32c(head + bytes(4) + chunk)) + chunk
def parts(data, v6):
    data = data if v6 else data[(data[0] & 15) * 4:]
    sport, dport = struct.unpack("!HH", data[:4])
    return sport, dport, data[12], data[36:].rstrip(bytes(1))
def raw(v6):
    return socket.socket(socket.AF_INET6 if v6 else socket.AF_INET, socket.SOCK_RAW, 132)
"""
SERVER = (
    COMMON
    + """
import selectors
name, port = sys.argv[1].encode(), int(sys.argv[2])
chosen = selectors.DefaultSelector()
for v6 in (False, True):
    chosen.register(raw(v6), selectors.EVENT_READ, v6)
print("ready", flush=True)
while True:
    for key, _ in chosen.select():
        data, peer = key.fileobj.recvfrom(2000)
        sport, dport, kind, _ = parts(data, key.data)
        if kind == 1 and dport == port:
            key.fileobj.sendto(packet(dport, sport, 1, 2, name + b" " + peer[0].encode()), (peer[0], 0))
"""
)
#: prints "NAME SOURCE" as heard, once for each new association
CLIENT = (
    COMMON
    + DATAGRAMS
    + """
address, port, count = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
v6, answers = ":" in address, []
s = raw(v6)
s.connect((address, 0))  # a connected one hears this address alone, and is told of what is refused
for own in range(20000, 20000 + count):
    def is_answer(data):
        return parts(data, v6)[:3] == (port, own, 2)
    try:
        answers.append(parts(ask_again(s, 20, packet(own, port, 0, 1), is_answer), v6)[3].decode())
    except OSError as error:
        answers.append("!" + type(error).__name__)
print(json.dumps(answers))
"""
)
PODS = RulesConfig(cluster_cidrs=tuple(POD_NETWORKS.values()))


@pytest.fixture(scope="module")
def fabric(fabric: Fabric) -> Fabric:
    """With servers that speak SCTP."""
    for name, host in fabric.servers.items():
        host.serve(SERVER, name, "8080")
    return fabric


def slice_of(family: Family, hosts: list[Host], version: int = 1) -> EndpointSlice:
    ports = [{"name": "diameter", "port": 8080, "protocol": "SCTP"}]
    return make_slice(
        [host.ip(family) for host in hosts], ports=ports, version=version, kind=family
    )


def diameter(family: Family, **spec: Any) -> Any:
    ports = [{"name": "diameter", "port": 3868, "protocol": "SCTP", "nodePort": 30868}]
    return service(type="LoadBalancer", ports=ports, ingress=[{"ip": LB[family]}], **spec)


async def associate(host: Host, address: str, port: int = 3868, count: int = 24) -> list[str]:
    done = await asyncio.to_thread(host.python, CLIENT, address, str(port), str(count))
    return list(json.loads(done.stdout))


@pytest.mark.parametrize("family", FAMILIES)
async def test_associations_are_spread_and_come_back(fabric: Fabric, family: Family) -> None:
    node = fabric.nodes[0]
    async with running(node, rules=PODS) as cluster:
        cluster.put(diameter(family), slice_of(family, [fabric.a1, fabric.b1]))
        cluster.synced()
        await cluster.written()
        found = Counter(await associate(fabric.ac, VIP[family]))
        assert set(found) == {f"a1 {fabric.ac.ip(family)}", f"b1 {fabric.ac.ip(family)}"}
        for address, port in ((LB[family], 3868), (node.ip(family), 30868)):
            found = Counter(await associate(fabric.outside, address, port))
            assert {answer.split()[0] for answer in found} == {"a1", "b1"}
            assert fabric.outside.ip(family) not in {answer.split()[1] for answer in found}

        cluster.put(slice_of(family, [], 2))
        await cluster.written()
        node.exec(
            ["conntrack", "-D", "-p", "sctp"]
        )  # associations of before go on, and so would the same again
        assert await associate(fabric.ac, VIP[family], count=1) == ["!ConnectionRefusedError"]


@pytest.mark.parametrize("family", FAMILIES)
async def test_affinity_holds_for_associations(fabric: Fabric, family: Family) -> None:
    async with running(fabric.nodes[0], rules=PODS) as cluster:
        cluster.put(
            diameter(family, sessionAffinity="ClientIP"),
            slice_of(family, [fabric.a1, fabric.a2, fabric.b1]),
        )
        cluster.synced()
        await cluster.written()
        (answer,) = set(await associate(fabric.ac, VIP[family], count=12))
        assert answer.split()[0] in {"a1", "a2", "b1"}
