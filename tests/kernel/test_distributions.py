"""How evenly connections are spread, by Pearson's chi-square; limits that chance exceeds once in
10,000,000 runs.
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter

import pytest
from tests.kernel.cluster import NODE, VIP, Cluster, make_slice, running, service, serving
from tests.kernel.netns import Host, Net
from tests.nft.machine import node

from sliceplane.api import codec
from sliceplane.api.discovery import EndpointSlice
from sliceplane.kit.ip import FAMILIES, Family

pytestmark = pytest.mark.kernel

#: upper 1e-7 points of the distribution, by degrees of freedom
LIMITS = {1: 28.4, 2: 32.2, 3: 35.4, 4: 38.2}
COUNT = 400
CLIENTS = 120

#: one request from each of the addresses
FROM_MANY = """
import json, socket, sys
answers = []
for own in sys.argv[2:]:
    with socket.socket(socket.AF_INET6 if ":" in own else socket.AF_INET) as s:
        s.settimeout(20)
        s.bind((own, 0))
        s.connect((sys.argv[1], 80))
        s.sendall(b"?")
        answers.append(s.recv(100).decode().split()[0])
print(json.dumps(answers))
"""


@pytest.fixture(scope="module")
def backends(net: Net) -> list[Host]:
    return serving(net, 5)


@pytest.fixture(scope="module")
def client(net: Net, backends: list[Host]) -> Host:
    host = net.add_host("client", ip4="10.10.0.1/16", ip6="fd10::1/64")
    lines = [
        f"addr add {own}/{128 if ':' in own else 32} dev eth0"
        for family in FAMILIES
        for own in addresses(family)
    ]
    host.exec(["ip", "-batch", "-"], stdin="\n".join(lines) + "\n")
    return host


def addresses(family: Family) -> list[str]:
    return [f"10.10.2.{n}" if family == "IPv4" else f"fd10::2:{n:x}" for n in range(1, CLIENTS + 1)]


def assert_even(answers: Counter[str], expected: set[str]) -> None:
    assert set(answers) == expected, answers
    fair = answers.total() / len(expected)
    statistic = sum((answers[name] - fair) ** 2 / fair for name in expected)
    assert statistic < LIMITS[len(expected) - 1], (statistic, answers)


async def start(cluster: Cluster, *objects: object) -> None:
    cluster.put(*objects)  # type: ignore[arg-type]  # they are objects of the API
    cluster.synced()
    await cluster.written()


@pytest.mark.parametrize("proto", ["tcp", "udp"])
@pytest.mark.parametrize("family", FAMILIES)
async def test_every_endpoint_has_its_share(
    client: Host, backends: list[Host], family: Family, proto: str
) -> None:
    async with running(client) as cluster:
        await start(cluster, service(), make_slice(family, backends))
        port = 80 if proto == "tcp" else 53
        assert_even(
            await cluster.ask(VIP[family], port, proto, COUNT), {"b1", "b2", "b3", "b4", "b5"}
        )
        cluster.put(
            make_slice(family, [*backends[:1], *backends[3:]], version=2)
        )  # places are taken over
        await cluster.written()
        # A new UDP socket may have the port of an old one, and with it its flow, which is just
        # being forgotten.
        await asyncio.to_thread(client.exec, ["conntrack", "-F"])
        assert_even(await cluster.ask(VIP[family], port, proto, COUNT), {"b1", "b4", "b5"})


@pytest.mark.parametrize("family", FAMILIES)
async def test_local_endpoints_share_what_stays_here(
    client: Host, backends: list[Host], family: Family
) -> None:
    here, there = (
        make_slice(family, backends[:2], nodeName=NODE),
        make_slice(family, backends[2:], "other"),
    )
    async with running(client) as cluster:
        await start(cluster, service(internalTrafficPolicy="Local"), here, _of_svc(there))
        assert_even(await cluster.ask(VIP[family], count=COUNT), {"b1", "b2"})
        cluster.put(service())
        await cluster.written()
        assert_even(await cluster.ask(VIP[family], count=COUNT), {"b1", "b2", "b3", "b4", "b5"})


def _of_svc(found: EndpointSlice) -> EndpointSlice:
    """A second slice of the same Service."""

    text = codec.encode(found).replace(
        b'"kubernetes.io/service-name":"other"', b'"kubernetes.io/service-name":"svc"'
    )
    return codec.decode(text, EndpointSlice)


@pytest.mark.parametrize("family", FAMILIES)
async def test_zones_share_by_hints(client: Host, backends: list[Host], family: Family) -> None:

    zones = ["a", "a", "b", "b", "b"]
    async with running(client) as cluster:
        await start(cluster, service(), make_slice(family, backends, zones=zones), node("b"))
        assert_even(await cluster.ask(VIP[family], count=COUNT), {"b3", "b4", "b5"})


@pytest.mark.parametrize("family", FAMILIES)
async def test_with_affinity_clients_are_spread_and_stay(
    client: Host, backends: list[Host], family: Family
) -> None:

    async with running(client) as cluster:
        await start(cluster, service(sessionAffinity="ClientIP"), make_slice(family, backends))

        async def ask_from_all() -> list[str]:
            done = await asyncio.to_thread(
                client.python, FROM_MANY, VIP[family], *addresses(family)
            )
            return list(json.loads(done.stdout))

        first = await ask_from_all()
        assert_even(Counter(first), {"b1", "b2", "b3", "b4", "b5"})
        assert await ask_from_all() == first
