"""A node proxy over the real kernel in a namespace, told of objects as informers would tell it, and
programs that send packets.
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Literal

from tests.fakes.node_proxies import make_proxy
from tests.kernel.netns import Host, Net
from tests.nft import machine
from tests.nft.machine import NODE, ep
from tests.waiting import PATIENCE_S, eventually

from sliceplane.api.core import Node, Service, ServiceCIDR
from sliceplane.api.discovery import EndpointSlice
from sliceplane.api.meta import Object
from sliceplane.api.scheme import EndpointSlices, Nodes, Resource, ServiceCIDRs, Services
from sliceplane.kit.ip import FAMILIES, Family
from sliceplane.node.io.kernel.backend import AnyBackend
from sliceplane.node.io.kernel.conntrack import Conntrack
from sliceplane.node.io.kernel.iptables_backend import Iptables
from sliceplane.node.io.kernel.nft_backend import Nftables, NftRunner
from sliceplane.watch.cache import Change

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

#: for other programs. A datagram may get lost, as may what rejects it (a kernel sends few of those
#: in a second): it is sent again every second, as a resolver does
DATAGRAMS = """
import json, socket, sys, time
def ask_again(s, patience_s, question=b"?", is_answer=bool):
    deadline = time.monotonic() + patience_s
    while True:
        s.send(question)
        again = min(time.monotonic() + 1, deadline)
        while (left_s := again - time.monotonic()) > 0:
            s.settimeout(left_s)
            try:
                heard = s.recv(2000)
            except TimeoutError:
                break
            if is_answer(heard):
                return heard
        if time.monotonic() >= deadline:
            raise TimeoutError
"""

#: for each line asks COUNT times, each time on a new socket; prints a JSON list of answers, errors
#: as "!NAME"
CLIENT = (
    DATAGRAMS
    + """
for line in sys.stdin:
    proto, address, port, count, patience_s = json.loads(line)
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    answers = []
    for _ in range(count):
        kind = socket.SOCK_STREAM if proto == "tcp" else socket.SOCK_DGRAM
        with socket.socket(family, kind) as s:
            s.settimeout(patience_s)
            try:
                s.connect((address, port))
                if proto == "tcp":
                    s.sendall(b"?")
                answer = s.recv(100) if proto == "tcp" else ask_again(s, patience_s)
                answers.append(answer.decode().strip())
            except OSError as error:
                answers.append("!" + type(error).__name__)
    print(json.dumps(answers), flush=True)
"""
)

#: one connection; asks again for every line on stdin
KEEPER = """
import socket, sys
with socket.create_connection((sys.argv[1], int(sys.argv[2])), timeout=60) as s:
    for _ in sys.stdin:
        s.sendall(b"?")
        print(s.recv(100).decode().strip(), flush=True)
"""

VIP: dict[Family, str] = {"IPv4": "172.30.0.1", "IPv6": "fd30::1"}
#: a Service's address at a cloud's load balancer
LB: dict[Family, str] = {"IPv4": "203.0.113.5", "IPv6": "2001:db8::5"}
#: what send() of a datagram says that this very host's rules reject
UDP_REFUSED = "!PermissionError"


def service(name: str = "svc", number: int = 1, **spec: Any) -> Service:
    """A Service on 172.30.0.NUMBER and fd30::NUMBER, with a TCP port and a UDP port unless *spec*
    has others.
    """
    ports = [
        {"name": "http", "port": 80, "protocol": "TCP"},
        {"name": "dns", "port": 53, "protocol": "UDP"},
    ]
    return machine.service(name, number, **{"ports": ports, **spec})


def make_slice(
    family: Family, hosts: list[Host], name: str = "svc", version: int = 1, **extra: Any
) -> EndpointSlice:
    """Endpoints on *hosts*; ``extra`` gives each the same further members, or ``zones``: one hint
    each.
    """
    zones = extra.pop("zones", [])
    endpoints = [ep(host.ip(family), **extra) for host in hosts]
    for endpoint, zone in zip(endpoints, zones, strict=bool(zones)):
        endpoint["hints"] = {"forZones": [{"name": zone}]}
    return slice_of(family, endpoints, name, version)


def slice_of(
    family: Family, endpoints: list[Any], name: str = "svc", version: int = 1
) -> EndpointSlice:
    """Any endpoints (see ``ep``) for the ports of ``service``."""
    ports = [
        {"name": "http", "port": 8080, "protocol": "TCP"},
        {"name": "dns", "port": 8080, "protocol": "UDP"},
    ]
    return machine.make_slice(endpoints, name, ports=ports, version=version, kind=family)


async def ask(
    host: Host,
    address: str,
    port: int = 80,
    proto: str = "tcp",
    count: int = 1,
    patience_s: float = 20.0,
) -> list[str]:
    """What *host* hears: "NAME SOURCE", the server's name and the address that it saw, or
    "!ERROR".
    """
    line = json.dumps([proto, address, port, count, patience_s])
    said = await asyncio.to_thread(host.converse, CLIENT, line)
    return [answer.replace("::ffff:", "") for answer in json.loads(said)]


def serving(net: Net, count: int) -> list[Host]:
    """Hosts ``b1``, ``b2``... in one network, each of which serves its name on port 8080."""
    hosts = [
        net.add_host(f"b{n}", ip4=f"10.10.1.{n}/16", ip6=f"fd10::1:{n}/64")
        for n in range(1, count + 1)
    ]
    for number, host in enumerate(hosts, 1):
        host.serve(SERVER, f"b{number}", "8080")
    return hosts


#: the flavours of iptables are two kernels' worth of code
Mode = Literal["nftables", "iptables-nft", "iptables-legacy"]


def backend_of(mode: Mode, host: Host) -> AnyBackend:
    match mode:
        case "nftables":
            return Nftables(NftRunner(netns=host.netns))
        case "iptables-nft":
            return Iptables(netns=host.netns, flavour="nft")
        case "iptables-legacy":
            return Iptables(netns=host.netns, flavour="legacy")


class Cluster:
    """What the informers would know, and the proxy that they feed."""

    def __init__(
        self,
        host: Host,
        mode: Mode = "nftables",
        node_name: str = NODE,
        backend: AnyBackend | None = None,
        **options: Any,
    ) -> None:
        self.host = host
        self.backend = backend or backend_of(mode, host)
        #: take the rules away at the end
        self.clean = True
        self.proxy = make_proxy(
            node_name, self.backend, flows=Conntrack(netns=host.netns), **options
        )
        self._known: dict[tuple[str, str], Object] = {}

    def put(self, *objects: Object) -> None:
        for new in objects:
            resource = self._resource(new)
            old = self._known.get((resource.key, new.metadata.key))
            self._known[resource.key, new.metadata.key] = new
            self.proxy.on_change(Change(resource.key, old, new))

    def drop(self, subject: Object) -> None:
        resource = self._resource(subject)
        self.proxy.on_change(
            Change(resource.key, self._known.pop((resource.key, subject.metadata.key)), None)
        )

    def synced(self) -> None:
        for resource in (Services, EndpointSlices, Nodes, ServiceCIDRs):
            self.proxy.on_synced(resource.key)

    async def written(self) -> None:
        """Everything so far is in the kernel."""
        async with asyncio.timeout(PATIENCE_S):
            await self.proxy.wait_ready()
        await eventually(
            lambda: [
                freshness
                for _, freshness in self.proxy.health().families
                if freshness.pending_since is not None
            ],
            lambda waiting: not waiting,
        )

    async def forget_connections(self) -> None:
        """A connection that was begun when no rule translated it stays so for two minutes, and so
        does any with its port: rules of translation are asked once for each that conntrack knows.
        """
        await asyncio.to_thread(self.host.exec, ["conntrack", "-F"])

    async def ask(
        self,
        address: str,
        port: int = 80,
        proto: str = "tcp",
        count: int = 1,
        patience_s: float = 20.0,
    ) -> Counter[str]:
        """Who answered the node how often; the answers' first word."""
        return Counter(
            answer.split()[0]
            for answer in await ask(self.host, address, port, proto, count, patience_s)
        )

    @staticmethod
    def _resource(subject: Object) -> Resource:
        kinds = {
            Service: Services,
            EndpointSlice: EndpointSlices,
            Node: Nodes,
            ServiceCIDR: ServiceCIDRs,
        }
        return kinds[type(subject)]


@asynccontextmanager
async def running(host: Host, mode: Mode = "nftables", **options: Any) -> AsyncIterator[Cluster]:
    """*options* are those of ``Cluster`` and ``NodeProxy``."""
    cluster = Cluster(host, mode, **options)
    task = asyncio.create_task(cluster.proxy.run())
    try:
        yield cluster
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        if cluster.clean:
            await cluster.backend.remove(FAMILIES)
            await cluster.forget_connections()
