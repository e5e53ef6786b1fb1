"""Three zones in network namespaces: in each a node with clients, which unmodified kube-proxy serves,
and twelve endpoints that count the connections from each node.
"""

from __future__ import annotations

import asyncio
import json
import tempfile
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from tests.kernel.netns import Host, Net
from tests.peers import kubernetes
from tests.peers.played_nodes import write_configuration
from tests.waiting import eventually

from sliceplane.api import codec
from sliceplane.client import HttpClient, Services
from sliceplane.consume.io.reporting import report_progress
from sliceplane.kit.ip import FAMILIES
from sliceplane.kit.rng import Rng
from sliceplane.lab.conformance.consumers.node_proxy import forward_port
from sliceplane.node.io.demand import count_connections
from sliceplane.node.io.observing.observer import Observer
from sliceplane.testing import Plane
from sliceplane.watch.io import kubeconfig
from sliceplane.watch.io.reflect import loop_clock

ZONES: Final = ("zone-a", "zone-b", "zone-c")
ENDPOINTS: Final = 12

#: endpoints of one zone: counts connections by own address and address of the client; "counts" prints
#: and clears them
SERVER: Final = """
import collections, json, selectors, socket, sys, threading
counts, lock = collections.Counter(), threading.Lock()
def serve():
    own = socket.create_server(("0.0.0.0", 8080), backlog=1024)
    while True:
        connection, (client, _) = own.accept()
        with lock:
            counts[connection.getsockname()[0] + " " + client] += 1
        connection.close()
threading.Thread(target=serve, daemon=True).start()
print("ready", flush=True)
for line in sys.stdin:
    with lock:
        print(json.dumps(counts), flush=True)
        counts.clear()
"""

#: connections to ADDRESS at the rate that was read last; prints failed ones for each rate
CLIENT: Final = """
import json, socket, sys, threading, time
address, rate, failed = sys.argv[1], 0.0, 0
def connect():
    global failed
    due = time.monotonic()
    while True:
        if not rate:
            time.sleep(0.05)
            due = time.monotonic()
            continue
        due = max(due + 4 / rate, time.monotonic() - 0.5)
        time.sleep(max(0.0, due - time.monotonic()))
        try:
            with socket.create_connection((address, 80), timeout=10) as s:
                s.recv(1)
        except OSError:
            failed += 1
for _ in range(4):
    threading.Thread(target=connect, daemon=True).start()
print("ready", flush=True)
for line in sys.stdin:
    rate = float(line)
    print(failed, flush=True)
"""


class Town:
    def __init__(self, plane: Plane, client: HttpClient, nodes: list[Host], pods: list[Host]):
        self.plane = plane
        self.client = client
        self.nodes = nodes
        self.pods = pods
        self.zone_by_client = {node.ip4: zone for node, zone in zip(nodes, ZONES, strict=True)}
        self.zone_by_endpoint = {
            address: zone for number, zone in enumerate(ZONES) for address in addresses_of(number)
        }
        self._servers = [pod.serve(SERVER) for pod in pods]
        self._clients: list[Any] = []
        #: connections that failed before every node had rules
        self.failed_before = 0

    async def open(self) -> None:
        """Creates Nodes, Pods and the Service, and starts the clients."""
        nodes = [node_of(zone) for zone in ZONES]
        pods = [
            pod_of(f"web-{zone[-1]}-{index}", zone, address)
            for number, zone in enumerate(ZONES)
            for index, address in enumerate(addresses_of(number))
        ]
        service = {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": {"name": "web"},
            "spec": {"selector": {"app": "web"}, "ports": [{"port": 80, "targetPort": 8080}]},
        }
        await asyncio.to_thread(self.plane.apply, [*nodes, service, *pods])
        await self.plane.until(lambda: len(self.plane.endpoints("web")) == len(pods))
        address = self.plane.get("services", "web")["spec"]["clusterIP"]
        self._clients = [node.serve(CLIENT, address) for node in self.nodes]

    async def rates(self, connections: Mapping[str, float]) -> int:
        """Sets the connections a second from each zone; returns the failed ones so far."""
        return sum(
            await asyncio.gather(
                *(
                    asyncio.to_thread(_tell, client, str(connections[zone]))
                    for client, zone in zip(self._clients, ZONES, strict=True)
                )
            )
        )

    async def counts(self) -> dict[tuple[str, str], int]:
        """Connections by endpoint and zone of the client since the last call."""
        told = await asyncio.gather(
            *(asyncio.to_thread(_tell_json, server) for server in self._servers)
        )
        found: dict[tuple[str, str], int] = {}
        for counts in told:
            for key, count in counts.items():
                endpoint, _, client = key.partition(" ")
                found[endpoint, self.zone_by_client[client]] = count
        return found

    async def request(self, *, field: str | None = None, mode: str | None = None) -> None:
        """Sets ``trafficDistribution`` and the annotation ``topology-mode``."""
        patch = {
            "metadata": {
                "annotations": {
                    "service.kubernetes.io/topology-mode": mode,
                    "sliceplane.dev/measured-shares": None,
                }
            },
            "spec": {"trafficDistribution": field},
        }
        await self.client.patch(Services, "default", "web", codec.encode(patch), patch_type="merge")


def name_of(zone: str) -> str:
    return f"node-{zone[-1]}"


def node_of(zone: str) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name_of(zone), "labels": {"topology.kubernetes.io/zone": zone}},
        "status": {
            "conditions": [{"type": "Ready", "status": "True"}],
            "allocatable": {"cpu": "4"},
        },
    }


def addresses_of(number: int) -> list[str]:
    return [f"10.79.{number + 1}.{index}" for index in range(1, ENDPOINTS + 1)]


def pod_of(name: str, zone: str, address: str) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "labels": {"app": "web"}},
        "spec": {"nodeName": name_of(zone), "containers": [{"name": "web", "image": "web"}]},
        "status": {
            "podIP": address,
            "podIPs": [{"ip": address}],
            "phase": "Running",
            "conditions": [{"type": "Ready", "status": "True"}],
        },
    }


def _tell(child: Any, line: str) -> int:
    child.stdin.write(f"{line}\n")
    child.stdin.flush()
    return int(child.stdout.readline())


def _tell_json(child: Any) -> dict[str, int]:
    child.stdin.write("counts\n")
    child.stdin.flush()
    found: dict[str, int] = json.loads(child.stdout.readline())
    return found


@asynccontextmanager
async def town(program: str, mode: str) -> AsyncIterator[Town]:
    """*program*: kube-proxy, in *mode*."""
    async with AsyncExitStack() as stack:
        net = stack.enter_context(Net("spz"))
        nodes = [
            net.add_host(name_of(zone), ip4=f"10.79.0.{n}/16", ip6=f"fd79::{n}/64")
            for n, zone in enumerate(ZONES, 1)
        ]
        pods = []
        for number, zone in enumerate(ZONES):
            first, *others = addresses_of(number)
            host = net.add_host(f"p{zone[-1]}", ip4=f"{first}/16", ip6=f"fd79::1:{number}/64")
            for address in others:
                host.exec(["ip", "addr", "add", f"{address}/16", "dev", "eth0"])
            pods.append(host)
        plane = await stack.enter_async_context(Plane())
        client = await stack.enter_async_context(HttpClient(kubeconfig.load(plane.kubeconfig)))
        made = Town(plane, client, nodes, pods)
        await made.open()
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        for number, zone in enumerate(ZONES):
            await stack.enter_async_context(_node(made, program, mode, number, zone, folder))
        await eventually(lambda: _is_served(made))
        made.failed_before = await made.rates(dict.fromkeys(ZONES, 0.0))
        yield made


async def _is_served(made: Town) -> bool:
    await made.rates(dict.fromkeys(ZONES, 20.0))
    await asyncio.sleep(1)
    found = await made.counts()
    return {zone for _, zone in found} == set(ZONES)


@asynccontextmanager
async def _node(
    made: Town, program: str, mode: str, number: int, zone: str, folder: Path
) -> AsyncIterator[None]:
    """kube-proxy on the node, and an observer that counts its connections."""
    host, own = made.nodes[number], folder / name_of(zone)
    port = urlsplit(made.client.server).port
    assert port is not None
    config = write_configuration(own, str(made.plane.kubeconfig), mode, name_of(zone))
    clock = loop_clock(time.time())
    observer = Observer(name_of(zone), FAMILIES, clock=clock, netns=host.netns)
    async with forward_port(host.netns, port):
        command = (*host.place.command(), program, "--config", str(config))
        with kubernetes.started(own / "kube-proxy.log", *command):
            tasks = [
                asyncio.create_task(task)
                for task in (
                    observer.follow(made.client, Rng(number)),
                    report_progress(made.client, observer, Rng(number + 9), clock),
                    count_connections(observer.demand, observer.progress, host.netns),
                )
            ]
            try:
                yield
            finally:
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)
