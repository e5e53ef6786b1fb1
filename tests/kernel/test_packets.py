"""The node proxy against the real kernel: real packets between network namespaces.

One bridge, three backends that answer with their name (TCP and UDP, IPv4 and IPv6), and a client whose namespace holds
the rules.  Nothing of the root namespace is touched.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from tests.kernel.netns import Host, Net

from sliceplane.api import codec
from sliceplane.api.core import Node, Service
from sliceplane.api.discovery import EndpointSlice
from sliceplane.api.meta import Object
from sliceplane.api.scheme import EndpointSlices, Nodes, Resource, Services
from sliceplane.informer.changes import Change
from sliceplane.kit.ip import Family
from sliceplane.shell import node_proxy
from sliceplane.shell.nft_runner import NftRunner
from sliceplane.shell.node_proxy import NodeProxy, cleanup

pytestmark = pytest.mark.kernel

SERVER = """
import socket, sys, threading
name, port = sys.argv[1].encode(), int(sys.argv[2])
tcp = socket.create_server(("::", port), family=socket.AF_INET6, dualstack_ipv6=True, backlog=64)
udp = socket.socket(socket.AF_INET6, socket.SOCK_DGRAM)
udp.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
udp.bind(("::", port))
def answer(connection, peer):
    with connection:
        while connection.recv(100):
            connection.sendall(name + b" " + peer.encode() + b"\\n")
def datagrams():
    while True:
        _, peer = udp.recvfrom(100)
        udp.sendto(name + b" " + peer[0].encode() + b"\\n", peer)
threading.Thread(target=datagrams, daemon=True).start()
print("ready", flush=True)
while True:
    connection, peer = tcp.accept()
    threading.Thread(target=answer, args=(connection, peer[0]), daemon=True).start()
"""

#: asks COUNT times, each time on a new socket; prints a JSON list of answers, errors as "!NAME"
CLIENT = """
import json, socket, sys
proto, address, port, count = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
family = socket.AF_INET6 if ":" in address else socket.AF_INET
answers = []
for _ in range(count):
    kind = socket.SOCK_STREAM if proto == "tcp" else socket.SOCK_DGRAM
    with socket.socket(family, kind) as s:
        s.settimeout(1)
        try:
            s.connect((address, port))
            s.sendall(b"?")
            answers.append(s.recv(100).decode().strip())
        except OSError as error:
            answers.append("!" + type(error).__name__)
print(json.dumps(answers))
"""

#: one connection; asks again for every line on stdin
KEEPER = """
import socket, sys
with socket.create_connection((sys.argv[1], int(sys.argv[2])), timeout=5) as s:
    for _ in sys.stdin:
        s.sendall(b"?")
        print(s.recv(100).decode().strip(), flush=True)
"""

VIP: dict[Family, str] = {"IPv4": "172.30.0.1", "IPv6": "fd30::1"}
NODE = "node-1"
#: what send() of a datagram says that this very host's rules reject
UDP_REFUSED = "!PermissionError"


@pytest.fixture(scope="module")
def net() -> Iterator[Net]:
    with Net("spt") as made:
        yield made


@pytest.fixture(scope="module")
def backends(net: Net) -> list[Host]:
    hosts = []
    for number in range(1, 4):
        host = net.add_host(f"b{number}", ip4=f"10.10.1.{number}/16", ip6=f"fd10::1:{number}/64")
        host.serve(SERVER, f"b{number}", "8080")
        hosts.append(host)
    return hosts


@pytest.fixture(scope="module")
def client(net: Net, backends: list[Host]) -> Host:
    return net.add_host("client", ip4="10.10.0.1/16", ip6="fd10::1/64")


def service(name: str = "svc", number: int = 1, **spec: Any) -> Service:
    ips = [f"172.30.0.{number}", f"fd30::{number}"]
    ports = [
        {"name": "http", "port": 80, "protocol": "TCP"},
        {"name": "dns", "port": 53, "protocol": "UDP"},
    ]
    document = {
        "metadata": {"namespace": "ns", "name": name},
        "spec": {"clusterIP": ips[0], "clusterIPs": ips, "ports": ports, **spec},
    }
    return codec.decode(codec.encode(document), Service)


def make_slice(family: Family, hosts: list[Host], name: str = "svc", version: int = 1, **extra: Any) -> EndpointSlice:
    """Endpoints on *hosts*; ``extra`` gives each the same further members, or ``zones``: one hint each."""
    zones = extra.pop("zones", None)
    endpoints = []
    for position, host in enumerate(hosts):
        endpoint = {"addresses": [host.ip4 if family == "IPv4" else host.ip6], **extra}
        if zones:
            endpoint["hints"] = {"forZones": [{"name": zones[position]}]}
        endpoints.append(endpoint)
    document = {
        "metadata": {
            "namespace": "ns",
            "name": f"{name}-{family.lower()}",
            "resourceVersion": str(version),
            "labels": {"kubernetes.io/service-name": name},
        },
        "addressType": family,
        "endpoints": endpoints,
        "ports": [
            {"name": "http", "port": 8080, "protocol": "TCP"},
            {"name": "dns", "port": 8080, "protocol": "UDP"},
        ],
    }
    return codec.decode(codec.encode(document), EndpointSlice)


def node(zone: str) -> Node:
    document = {"metadata": {"name": NODE, "labels": {"topology.kubernetes.io/zone": zone}}}
    return codec.decode(codec.encode(document), Node)


class Cluster:
    """What the informers would know, and the proxy that they feed."""

    def __init__(self, host: Host) -> None:
        self.host = host
        self.runner = NftRunner(netns=host.netns)
        self.proxy = NodeProxy(NODE, self.runner)
        self._known: dict[tuple[str, str], Object] = {}

    def put(self, *objects: Object) -> None:
        for new in objects:
            resource = self._resource(new)
            old = self._known.get((resource.key, new.metadata.key))
            self._known[resource.key, new.metadata.key] = new
            self.proxy.on_change(Change(resource.key, old, new))

    def drop(self, subject: Object) -> None:
        resource = self._resource(subject)
        self.proxy.on_change(Change(resource.key, self._known.pop((resource.key, subject.metadata.key)), None))

    def synced(self) -> None:
        for resource in (Services, EndpointSlices, Nodes):
            self.proxy.on_synced(resource.key)

    async def written(self) -> None:
        """Everything so far is in the kernel."""
        async with asyncio.timeout(10):
            await self.proxy.wait_ready()
            while any(freshness.pending_since is not None for _, freshness in self.proxy.health().families):
                await asyncio.sleep(0.005)

    async def ask(self, address: str, port: int = 80, proto: str = "tcp", count: int = 1) -> Counter[str]:
        """Who answered how often; the answers' first word."""
        done = await asyncio.to_thread(self.host.python, CLIENT, proto, address, str(port), str(count))
        return Counter(answer.split()[0] for answer in json.loads(done.stdout))

    @staticmethod
    def _resource(subject: Object) -> Resource:
        return {Service: Services, EndpointSlice: EndpointSlices, Node: Nodes}[type(subject)]


@asynccontextmanager
async def running(host: Host) -> AsyncIterator[Cluster]:
    cluster = Cluster(host)
    task = asyncio.create_task(cluster.proxy.run())
    try:
        yield cluster
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await cleanup(cluster.runner)


FAMILIES: tuple[Family, ...] = ("IPv4", "IPv6")


@pytest.mark.parametrize("family", FAMILIES)
async def test_a_service_from_first_to_last_endpoint(client: Host, backends: list[Host], family: Family) -> None:
    vip = VIP[family]
    async with running(client) as cluster:
        cluster.put(service(), make_slice(family, backends[:2]))
        assert cluster.proxy.counts()[family] == (1, 0)  # nothing is written before the lists are complete
        cluster.synced()
        await cluster.written()
        assert set(await cluster.ask(vip, count=24)) == {"b1", "b2"}
        assert set(await cluster.ask(vip, 53, "udp", count=24)) == {"b1", "b2"}
        assert set(await cluster.ask(vip, 81)) == {"!ConnectionRefusedError"}  # a port that the Service has not
        assert set(await cluster.ask(vip, 80, "udp")) == {UDP_REFUSED}

        cluster.put(make_slice(family, backends, version=2))
        await cluster.written()
        assert set(await cluster.ask(vip, count=40)) == {"b1", "b2", "b3"}

        cluster.put(make_slice(family, backends[2:], version=3))
        await cluster.written()
        assert set(await cluster.ask(vip, count=10)) == {"b3"}

        cluster.put(make_slice(family, [], version=4))
        await cluster.written()
        started = time.monotonic()
        assert set(await cluster.ask(vip)) == {"!ConnectionRefusedError"}
        assert set(await cluster.ask(vip, 53, "udp")) == {UDP_REFUSED}
        assert time.monotonic() - started < 1.0  # refused, not timed out

        cluster.put(make_slice(family, backends[:1], version=5))
        await cluster.written()
        assert set(await cluster.ask(vip, count=5)) == {"b1"}

        cluster.drop(service())
        await cluster.written()
        assert cluster.proxy.counts()[family][0] == 0
        ruleset = client.exec(["nft", "list", "table", "ip" if family == "IPv4" else "ip6", "sliceplane"]).stdout
        assert vip not in ruleset


async def test_terminating_endpoints_serve_when_no_other_does(client: Host, backends: list[Host]) -> None:
    async with running(client) as cluster:
        dying = {"ready": False, "serving": True, "terminating": True}
        cluster.put(service(), make_slice("IPv4", backends[:1], conditions=dying))
        cluster.synced()
        await cluster.written()
        assert set(await cluster.ask(VIP["IPv4"], count=4)) == {"b1"}
        cluster.put(make_slice("IPv4", backends[:1], version=2, conditions={**dying, "serving": False}))
        await cluster.written()
        assert set(await cluster.ask(VIP["IPv4"])) == {"!ConnectionRefusedError"}


async def test_zone_hints(client: Host, backends: list[Host]) -> None:
    """KEP-4444: PreferClose keeps traffic in the zone; without hints it spreads."""
    async with running(client) as cluster:
        cluster.put(service(), make_slice("IPv4", backends, zones=["a", "b", "b"]), node("b"))
        cluster.synced()
        await cluster.written()
        assert set(await cluster.ask(VIP["IPv4"], count=24)) == {"b2", "b3"}
        cluster.put(node("a"))
        await cluster.written()
        assert set(await cluster.ask(VIP["IPv4"], count=12)) == {"b1"}
        cluster.put(make_slice("IPv4", backends, version=2))
        await cluster.written()
        assert set(await cluster.ask(VIP["IPv4"], count=40)) == {"b1", "b2", "b3"}


async def test_internal_traffic_policy_local(client: Host, backends: list[Host]) -> None:
    async with running(client) as cluster:
        cluster.put(service(internalTrafficPolicy="Local"), make_slice("IPv4", backends[:1]))
        cluster.synced()
        await cluster.written()
        assert set(await cluster.ask(VIP["IPv4"])) == {"!TimeoutError"}  # dropped: there are endpoints elsewhere
        cluster.put(make_slice("IPv4", backends[1:2], version=2, nodeName=NODE))
        await cluster.written()
        assert set(await cluster.ask(VIP["IPv4"], count=4)) == {"b2"}


@pytest.mark.parametrize("family", FAMILIES)
async def test_hairpin(net: Net, family: Family) -> None:
    """A Pod that calls its own Service through the node gets an answer: the connection is masqueraded."""
    suffix = "4" if family == "IPv4" else "6"
    router = net.add_host(f"router{suffix}", ip4="10.10.2.1/16", ip6="fd10::2:1/64")
    net.make_router(router)
    pod = net.add_host(
        f"pod{suffix}", ip4="10.10.2.2/16", ip6="fd10::2:2/64", gateway4="10.10.2.1", gateway6="fd10::2:1"
    )
    pod.serve(SERVER, "pod", "8080")
    async with running(router) as cluster:
        cluster.put(service(), make_slice(family, [pod], nodeName=NODE))
        cluster.synced()
        await cluster.written()
        done = await asyncio.to_thread(pod.python, CLIENT, "tcp", VIP[family], "80", "3")
        source = router.ip4 if family == "IPv4" else router.ip6
        for answer in json.loads(done.stdout):
            assert answer.removeprefix("pod ").removeprefix("::ffff:") == source
    for host in (pod, router):
        host.close()
        for flag in ("", "-6"):
            host.exec(["ip", *([flag] if flag else []), "addr", "flush", "dev", "eth0"])


async def test_recovers_when_somebody_deletes_the_table(client: Host, backends: list[Host]) -> None:
    async with running(client) as cluster:
        cluster.put(service(), make_slice("IPv4", backends[:1]))
        cluster.synced()
        await cluster.written()
        await cleanup(cluster.runner)
        assert set(await cluster.ask(VIP["IPv4"])) != {"b1"}
        cluster.put(make_slice("IPv4", backends[1:2], version=2))
        await cluster.written()  # the incremental transaction is refused, the full one follows
        assert set(await cluster.ask(VIP["IPv4"], count=5)) == {"b2"}
        assert cluster.proxy.health().healthy


async def test_a_deleted_table_comes_back_by_itself(
    client: Host, backends: list[Host], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(node_proxy, "LOOK_PERIOD_S", 0.1)
    async with running(client) as cluster:
        cluster.put(service(), make_slice("IPv4", backends[:1]))
        cluster.synced()
        await cluster.written()
        await cleanup(cluster.runner)
        async with asyncio.timeout(5):
            while set(await cluster.ask(VIP["IPv4"])) != {"b1"}:
                await asyncio.sleep(0.05)


async def test_established_connections_outlive_unrelated_changes(client: Host, backends: list[Host]) -> None:
    async with running(client) as cluster:
        cluster.put(service(), make_slice("IPv4", backends[:2]))
        cluster.synced()
        await cluster.written()
        keeper = client.spawn(["python3", "-I", "-u", "-c", KEEPER, VIP["IPv4"], "80"])

        def again() -> str:
            assert keeper.stdin is not None
            assert keeper.stdout is not None
            keeper.stdin.write("\n")
            keeper.stdin.flush()
            return keeper.stdout.readline()

        first = await asyncio.to_thread(again)
        assert first
        for version in range(2, 12):
            cluster.put(make_slice("IPv4", backends[version % 3 :], version=version))
            cluster.put(service("other", 2), make_slice("IPv4", backends[:2], "other", version))
            await cluster.written()
            assert await asyncio.to_thread(again) == first
        keeper.stdin.close()  # type: ignore[union-attr]  # spawn makes pipes
        keeper.wait(5)


async def test_a_new_process_takes_over_without_a_gap(client: Host, backends: list[Host]) -> None:
    async with running(client) as cluster:
        cluster.put(service(), service("old", 2), make_slice("IPv4", backends[:1]))
        cluster.synced()
        await cluster.written()
        async with running(client) as heir:
            heir.put(service(), make_slice("IPv4", backends[1:2]))
            await asyncio.sleep(0.05)
            assert set(await cluster.ask(VIP["IPv4"], count=3)) == {"b1"}  # the rules of the old one stay until then
            heir.synced()
            await heir.written()
            assert set(await heir.ask(VIP["IPv4"], count=3)) == {"b2"}
            assert "172.30.0.2" not in client.exec(["nft", "list", "table", "ip", "sliceplane"]).stdout


async def test_no_connection_fails_while_endpoints_change(client: Host, backends: list[Host]) -> None:
    """New connections all the time while endpoints come, go and change places: none may miss."""
    async with running(client) as cluster:
        cluster.put(service(), make_slice("IPv4", backends))
        cluster.synced()
        await cluster.written()
        asking = asyncio.create_task(cluster.ask(VIP["IPv4"], count=2000))
        version = 1
        while not asking.done():
            version += 1
            cluster.put(make_slice("IPv4", backends[version % 3 :] + backends[: version % 2], version=version))
            await cluster.written()
        answers = await asking
        assert version > 10
        assert set(answers) == {"b1", "b2", "b3"}, answers
