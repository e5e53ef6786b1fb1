"""Nodes with unmodified kube-proxy whose kubelets are played: Pods of the default namespace are
network namespaces in which a server runs.

A Pod gets a node and a server, is ready once its server listens, and ends as under a kubelet: it is
unready and terminating from its deletion on, its ``preStop`` hook sleeps, then the server closes, and
the Pod is deleted. An address refuses connections until another Pod gets it.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, Final, NamedTuple
from urllib.parse import urlsplit

import yaml
from tests.e2e.running import Plane, kubectl
from tests.kernel.netns import Host, Net
from tests.kernel.test_drain_packets import SERVER
from tests.peers import kubernetes
from tests.peers.control_plane import running_api_server
from tests.peers.kubernetes import create, statuses
from tests.peers.test_kube_proxy import configuration
from tests.waiting import eventually

from sliceplane.api.codec import encode
from sliceplane.api.requests import Selection
from sliceplane.api.scheme import Pods
from sliceplane.lab.conformance.consumers.node_proxy import forward_port
from sliceplane.watch.io.http.client import HttpClient
from sliceplane.watch.io.kubeconfig import from_file

NODES: Final = ("node-1", "node-2", "node-3")
#: seconds between two looks of a played kubelet
LOOK_S: Final = 0.1
#: seconds that all Pods of a Deployment may take to be replaced
REPLACED_S: Final = 600.0
THREADS: Final = 64

#: a leader of a busy machine
PATIENT: Final = (
    "--secure-port=0",
    "--leader-elect-lease-duration=120s",
    "--leader-elect-renew-deadline=100s",
)
SERVICE: Final = {
    "apiVersion": "v1",
    "kind": "Service",
    "metadata": {"name": "web"},
    "spec": {"selector": {"app": "web"}, "ports": [{"port": 80, "targetPort": 8080}]},
}
#: all but the controller that would miss the kubelets
MANAGED: Final = "--controllers=*,-node-lifecycle-controller"


class Programs(NamedTuple):
    """Paths of Kubernetes' own programs."""

    api_server: str
    manager: str
    kube_proxy: str


class Server:
    """A host of one Pod after the other, whose program listens at port 8080 while it is open."""

    def __init__(self, host: Host) -> None:
        self.host = host
        self._program = host.spawn([sys.executable, "-I", "-u", "-c", SERVER])

    def _say(self, word: str) -> None:
        assert self._program.stdin is not None, "spawn makes pipes"
        assert self._program.stdout is not None, "spawn makes pipes"
        self._program.stdin.write(f"{word}\n")
        self._program.stdin.flush()
        assert self._program.stdout.readline()

    async def say(self, word: str) -> None:
        await asyncio.to_thread(self._say, word)


#: runs from the deletion of a Pod until its server closes: the Pod's name, its spec and its host
PreStop = Callable[[str, dict[str, Any], Host], Awaitable[None]]


async def sleep_hook(_name: str, spec: dict[str, Any], _host: Host) -> None:
    (container,) = spec["containers"]
    hook = container.get("lifecycle", {}).get("preStop", {}).get("sleep", {})
    await asyncio.sleep(hook.get("seconds", 0))


class PlayedKubelets:
    """Scheduler and kubelets of all nodes."""

    def __init__(self, client: HttpClient, servers: Sequence[Server]) -> None:
        self.pre_stop: PreStop = sleep_hook
        self._client = client
        self._free = list(servers)
        self._used: dict[str, Server] = {}
        self._ending: set[str] = set()
        self._scheduled = 0

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            while True:
                for body in (await self._client.list(Selection(Pods, "default"))).items:
                    pod = json.loads(body)
                    name = pod["metadata"]["name"]
                    is_ending = "deletionTimestamp" in pod["metadata"]
                    if name not in self._used and not is_ending:
                        self._used[name] = self._free.pop(0)
                        group.create_task(self._start(name))
                    elif is_ending and name not in self._ending:
                        self._ending.add(name)
                        group.create_task(self._end(name, pod["spec"]))
                await asyncio.sleep(LOOK_S)

    async def _start(self, name: str) -> None:
        node = NODES[self._scheduled % len(NODES)]
        self._scheduled += 1
        target = {"apiVersion": "v1", "kind": "Node", "name": node}
        binding = {"apiVersion": "v1", "kind": "Binding", "target": target}
        await self._client.create(
            Pods,
            "default",
            encode({**binding, "metadata": {"name": name, "namespace": "default"}}),
            subresource="binding",
            name=name,
        )
        host = self._used[name].host
        await self._used[name].say("open")
        addresses = [{"ip": host.ip4}, {"ip": host.ip6}]
        await self._report(name, "True", phase="Running", podIP=host.ip4, podIPs=addresses)

    async def _end(self, name: str, spec: dict[str, Any]) -> None:
        server = self._used[name]
        await self.pre_stop(name, spec, server.host)
        await server.say("close")
        await self._client.delete(Pods, "default", name, encode({"gracePeriodSeconds": 0}))
        self._free.append(server)

    async def _report(self, name: str, ready: str, **status: Any) -> None:
        kinds = ("PodScheduled", "Initialized", "ContainersReady", "Ready")
        conditions = [{"type": kind, "status": ready} for kind in kinds]
        body = encode({"status": {"conditions": conditions, **status}})
        await self._client.patch(
            Pods, "default", name, body, patch_type="merge", subresource="status"
        )


class Cluster(NamedTuple):
    """Kubernetes' own API server, controllers and node proxies, without kubelets."""

    plane: Plane
    client: HttpClient
    #: the nodes, by name
    hosts: dict[str, Host]
    #: where Pods run
    pods: list[Host]
    kubelets: PlayedKubelets

    async def readiness(self) -> dict[str, bool]:
        """By the UID of each Pod of the Deployment ``web``."""
        listed = await self.client.list(Selection(Pods, "default", "app=web"))
        return {
            pod["metadata"]["uid"]: any(
                condition["type"] == "Ready" and condition["status"] == "True"
                for condition in pod["status"].get("conditions", ())
            )
            for pod in map(json.loads, listed.items)
        }

    async def until_replaced(self, old: Collection[str], pods: int) -> None:
        """No Pod with a UID in *old* is there, and *pods* Pods are, all ready."""

        def holds(found: dict[str, bool]) -> bool:
            return not set(old) & set(found) and sum(found.values()) == len(found) == pods

        await eventually(self.readiness, holds, within_s=REPLACED_S)


@asynccontextmanager
async def cluster(
    folder: Path, programs: Programs, mode: str = "nftables", pods: int = 8
) -> AsyncIterator[Cluster]:
    """Three nodes in two zones whose kube-proxy has *mode*, with at most *pods* Pods at a time."""
    # those that talk to servers and count SYNs must not hold up requests, which look names up
    asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(THREADS))
    async with AsyncExitStack() as stack:
        plane = stack.enter_context(running_api_server(folder, programs.api_server))
        flags = (f"--kubeconfig={plane.kubeconfig}", MANAGED, "--use-service-account-credentials")
        log = folder / "manager.log"
        stack.enter_context(kubernetes.started(log, programs.manager, *PATIENT, *flags))
        # when the nodes are gone: forwarded connections end
        stack.push_async_callback(asyncio.sleep, 1.0)
        create(plane, *_nodes())
        statuses(plane, *_nodes())
        # as node-lifecycle-controller does with nodes whose kubelet reports that they are ready
        kubectl(plane, "taint", "nodes", "--all", "node.kubernetes.io/not-ready:NoSchedule-")
        client = await stack.enter_async_context(HttpClient(from_file(Path(plane.kubeconfig))))
        hosts, servers = _network(stack.enter_context(Net("pn")), pods)
        for server in servers:
            await server.say("close")  # until a Pod runs there
        port = urlsplit(client.server).port
        assert port is not None
        for name, host in hosts.items():
            await stack.enter_async_context(forward_port(host.netns, port))
            config = write_configuration(folder / name, plane.kubeconfig, mode, name)
            command = (*host.place.command(), programs.kube_proxy, "--config", str(config))
            stack.enter_context(kubernetes.started(config.with_suffix(".log"), *command))
        kubelets = PlayedKubelets(client, servers)
        running = asyncio.create_task(kubelets.run())
        try:
            yield Cluster(plane, client, hosts, [server.host for server in servers], kubelets)
        finally:
            running.cancel()
            (ended,) = await asyncio.gather(running, return_exceptions=True)
            if not isinstance(ended, asyncio.CancelledError):
                raise AssertionError("the played kubelets ended") from ended


def deployment(pods: int, *, grace_s: int) -> dict[str, Any]:
    """The Deployment ``web``, behind ``SERVICE``."""
    labels = {"app": "web"}
    container = {"name": "web", "image": "web"}
    template = {
        "metadata": {"labels": labels},
        "spec": {"containers": [container], "terminationGracePeriodSeconds": grace_s},
    }
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "web"},
        "spec": {"replicas": pods, "selector": {"matchLabels": labels}, "template": template},
    }


def _network(net: Net, pods: int) -> tuple[dict[str, Host], list[Server]]:
    def add_host(name: str, number: str) -> Host:
        return net.add_host(
            name, ip4=f"10.78.{number}/16", ip6=f"fd78::{number.replace('.', ':')}/64"
        )

    hosts = {name: add_host(name, f"0.{n}") for n, name in enumerate(NODES, 1)}
    return hosts, [Server(add_host(f"p{n}", f"1.{n}")) for n in range(1, pods + 1)]


def _nodes() -> list[dict[str, Any]]:
    def node(number: int, name: str) -> dict[str, Any]:
        zone = f"zone-{'ab'[number % 2]}"
        labels = {"topology.kubernetes.io/zone": zone, "kubernetes.io/os": "linux"}
        status = {
            "addresses": [{"type": "InternalIP", "address": f"10.78.0.{number + 1}"}],
            "allocatable": {"cpu": "4"},
            "conditions": [{"type": "Ready", "status": "True"}],
        }
        metadata = {"name": name, "labels": labels}
        return {"apiVersion": "v1", "kind": "Node", "metadata": metadata, "status": status}

    return [node(number, name) for number, name in enumerate(NODES)]


def write_configuration(folder: Path, kubeconfig: str, mode: str, node: str) -> Path:
    folder.mkdir()
    config = Path(configuration(folder, kubeconfig))
    document = yaml.safe_load(config.read_text())
    config.write_text(yaml.safe_dump({**document, "mode": mode, "hostnameOverride": node}))
    return config
