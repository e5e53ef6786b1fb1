"""Where worlds are played: a node in a network namespace, with an API server and its controllers, a
node proxy, Pods behind links of their own, and a client.

This process has the sockets of all Pods and clients: a socket stays in the namespace in which it
was made. An endpoint says its address and port.

The API server's clock is an hour slow, so that what it stamps is old enough to be judged.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterable
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final, Literal

import yaml
from tests.e2e.running import ROOT, Plane, spawn, stop
from tests.kernel.fabric import Fabric
from tests.kernel.netns import Host
from tests.kernel.oracle.worlds import ADDRESSES, HERE, NODES
from tests.waiting import eventually

from sliceplane.node.io.kernel.netns import within

ProxyKind = Literal["ours nftables", "ours iptables", "kube-proxy nftables", "kube-proxy iptables"]
#: seconds that the server's clock is slow
SLOW_S: Final = 3600
_SITE: Final = f"import time\n_now = time.time\ntime.time = lambda: _now() - {SLOW_S}\n"
#: seconds until a connection counts as dropped
DROPPED_S: Final = 2.5
TRIES: Final = 6
#: seconds that slices, and then rules, must stay as they are to count as settled
QUIET_S: Final = 0.7
SETTLED_WITHIN_S: Final = 60.0
_CHANGING: Final = re.compile(r"expires \S+|packets \d+ bytes \d+")
#: of the server, which answers names there
_NAME_SERVER: Final = ("192.168.50.1", 53)


class _Wiring(Fabric):
    """One node with a link for each Pod, and for a client."""

    def _build(self) -> None:
        self.node = self._net.add_host("node1", ip4="192.168.50.1/24", ip6="fd50::1/64")
        self._net.make_router(self.node)
        self.pods = {
            address: self._linked(self.node, f"p{number}", number)
            for number, address in enumerate(ADDRESSES, 1)
        }
        self.client = self._linked(self.node, "client", 9)


class Field:
    """See the module; ``started`` makes it."""

    def __init__(self, wiring: _Wiring, plane: Plane, folder: Path, proxy: ProxyKind) -> None:
        self.node = wiring.node
        self.kind = proxy
        self._wiring = wiring
        self._plane = plane
        self._folder = folder
        self._servers: list[asyncio.Server] = []
        self._proxy: subprocess.Popen[bytes] | None = None
        self._kube_proxy = ""
        self._inside = _start_inside(self.node, plane.kubeconfig)

    # The API, and the kernel

    async def inside(self, *line: Any) -> Any:
        answer = await asyncio.to_thread(self._converse, json.dumps(line))
        if isinstance(answer, dict) and "failed" in answer:
            raise RuntimeError(f"{line}: {answer['failed']}")
        return answer

    def _converse(self, line: str) -> Any:
        assert self._inside.stdin is not None, "it was started with pipes"
        assert self._inside.stdout is not None, "it was started with pipes"
        self._inside.stdin.write(f"{line}\n")
        self._inside.stdin.flush()
        return json.loads(self._inside.stdout.readline())

    async def command(self, *arguments: str) -> tuple[int, str, str]:
        """Exit code, output and errors of a ``sliceplane`` command on the node."""
        answer = await self.inside("command", *arguments)
        return answer["code"], answer["out"], answer["err"]

    async def rules(self) -> str:
        """All rules of the kernel."""
        if "iptables" in self.kind:
            return str(await self.inside("listed", "iptables-save"))
        return str(await self.inside("listed", "nft", "list", "ruleset"))

    async def slices(self, namespace: str) -> list[Any]:
        path = f"/apis/discovery.k8s.io/v1/namespaces/{namespace}/endpointslices"
        return list((await self.inside("ask", "GET", path))["items"])

    async def settled(self, namespace: str) -> None:
        """Slices and rules do not change any more."""
        quiet_s = QUIET_S if "ours" in self.kind else 1.5 * QUIET_S
        before, since = "", 0.0
        loop = asyncio.get_running_loop()
        deadline = loop.time() + SETTLED_WITHIN_S
        while loop.time() < deadline:
            slices = json.dumps(await self.slices(namespace), sort_keys=True)
            now = slices + _without_counters(await self.rules())
            if now != before:
                before, since = now, loop.time()
            elif loop.time() - since >= quiet_s:
                return
            await asyncio.sleep(0.2)
        raise AssertionError(f"the rules of {self.kind} change all the time")

    # Pods and clients

    async def listen(self, listening: dict[str, tuple[int, ...]]) -> None:
        """Exactly these ports, by address."""
        for server in self._servers:
            server.close()
        self._servers = [
            await self._serve(address, port)
            for address, ports in listening.items()
            for port in ports
        ]

    async def _serve(self, address: str, port: int) -> asyncio.Server:
        async def answer(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            try:
                writer.write(f"{address}:{port}\n".encode())
                await writer.drain()
            finally:
                writer.close()

        def opened() -> socket.socket:
            listener = socket.socket()
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind((address, port))
            return listener

        listener = await within(self._wiring.pods[address].netns, opened)
        return await asyncio.start_server(answer, sock=listener)

    async def heard(self, client: str, address: str, port: int) -> list[str]:
        """What *client* ("node", "client" or a Pod's address) hears: an endpoint's "ADDRESS:PORT" for
        each connection, "refused", or "dropped".
        """
        host = {"node": self.node, "client": self._wiring.client, **self._wiring.pods}[client]
        sockets = await within(host.netns, lambda: [socket.socket() for _ in range(TRIES)])
        return list(await asyncio.gather(*(_connected(each, address, port) for each in sockets)))

    async def addresses(self, name: str, namespace: str) -> tuple[str, ...]:
        """What a program of the node resolves a name of a Service to."""
        query = await within(self.node.netns, lambda: socket.socket(type=socket.SOCK_DGRAM))
        with query:
            query.setblocking(False)
            loop = asyncio.get_running_loop()
            await loop.sock_connect(query, _NAME_SERVER)
            labels = f"{name}.{namespace}.svc.cluster.local".split(".")
            asked = b"".join(bytes([len(each)]) + each.encode() for each in labels)
            await loop.sock_sendall(
                query,
                b"\x07\x07\x01\x00\x00\x01\x00\x00\x00\x00\x00\x00" + asked + b"\0\0\x01\0\x01",
            )
            said = await asyncio.wait_for(loop.sock_recv(query, 4096), 10)
        return tuple(_a_records(said, len(asked)))

    # The proxy

    async def start_proxy(self) -> None:
        log = (self._folder / "proxy.log").open("ab")
        mode = self.kind.split()[1]
        if "ours" in self.kind:
            program = [sys.executable, "-m", "sliceplane", "proxy", "--proxy-mode", mode]
            program += ["--hostname-override", HERE, "--kubeconfig", self._plane.kubeconfig]
            # what it reports of slices is young, and they are old by the server's clock
            program += ["--progress-lease", "false"]
        else:
            config = self._folder / "kube-proxy.yaml"
            config.write_text(yaml.safe_dump(_kube_proxy_config(mode, self._plane.kubeconfig)))
            program = [self._kube_proxy, "--config", str(config)]
        with log:
            self._proxy = await asyncio.to_thread(
                subprocess.Popen,
                self.node.place.command(*program),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
            )
        mark = ":KUBE-SERVICES " if mode == "iptables" else "table ip "
        await eventually(self.rules, lambda rules: mark in rules)

    def signal_proxy(self, number: signal.Signals) -> None:
        assert self._proxy is not None, "it runs"
        self._proxy.send_signal(number)

    @property
    def is_stopped(self) -> bool:
        return self._proxy is None

    @staticmethod
    def server_time() -> float:
        """Seconds since the epoch, by the server's clock."""
        return time.time() - SLOW_S

    async def stop_proxy(self) -> None:
        if self._proxy is not None:
            self._proxy.send_signal(signal.SIGCONT)
            self._proxy.kill()
            await asyncio.to_thread(self._proxy.wait)
            self._proxy = None

    async def clean_kernel(self) -> None:
        """Takes all rules away."""
        script = (
            "nft flush ruleset; for t in nat filter mangle; do for p in iptables ip6tables; do "
            "$p-legacy -t $t -F; $p-legacy -t $t -X; done; done; conntrack -F"
        )
        await asyncio.to_thread(
            subprocess.run,
            self.node.place.command("sh", "-c", script),
            capture_output=True,
            check=False,
        )

    async def reset(self) -> None:
        """After a world that could not be played to its end."""
        await self.stop_proxy()
        await self.clean_kernel()

    async def forget_flows(self) -> None:
        await self.inside("listed", "conntrack", "-F")

    async def close(self) -> None:
        for server in self._servers:
            server.close()
        await self.stop_proxy()
        self._inside.kill()
        with self._inside:
            pass


@asynccontextmanager
async def started(folder: Path, proxy: ProxyKind, kube_proxy: str = "") -> AsyncIterator[Field]:
    """*kube_proxy*: the path of the program, if it is wanted."""
    async with AsyncExitStack() as stack:
        wiring = stack.enter_context(_Wiring("spo"))
        (folder / "sitecustomize.py").write_text(_SITE)
        prefix = (*wiring.node.place.command(), "env", f"PYTHONPATH={folder}:{ROOT / 'src'}")
        plane = await asyncio.to_thread(
            partial(
                spawn,
                folder,
                *("--dns", "{}:{}".format(*_NAME_SERVER)),
                *("--service-cluster-ip-range", "10.96.0.0/16"),
                data_dir="memory:",
                prefix=tuple(prefix),
            )
        )
        stack.push_async_callback(asyncio.to_thread, stop, plane)
        field = Field(wiring, plane, folder, proxy)
        field._kube_proxy = kube_proxy
        stack.push_async_callback(field.close)
        for number, name in enumerate(NODES):
            node = _node(name, number)
            await field.inside("create", node)
            await field.inside("status", node)
            # as a node controller does when the node is ready
            untainted = [{"op": "remove", "path": "/spec/taints"}]
            kind = "application/json-patch+json"
            await field.inside("ask", "PATCH", f"/api/v1/nodes/{name}", untainted, kind)
        yield field


def _start_inside(node: Host, kubeconfig: str) -> subprocess.Popen[str]:
    child = subprocess.Popen(
        node.place.command(sys.executable, "-m", "tests.kernel.oracle.inside", kubeconfig),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}", "NO_COLOR": "1"},
        cwd=ROOT,
    )
    assert child.stdout is not None, "it was started with pipes"
    said = child.stdout.readline()
    assert said == "ready\n", said
    return child


async def _connected(client: socket.socket, address: str, port: int) -> str:
    loop = asyncio.get_running_loop()
    with client:
        client.setblocking(False)
        try:
            async with asyncio.timeout(DROPPED_S):
                await loop.sock_connect(client, (address, port))
                return (await loop.sock_recv(client, 100)).decode().strip() or "closed"
        except TimeoutError:
            return "dropped"
        except OSError:
            return "refused"


def _a_records(message: bytes, question_length: int) -> Iterable[str]:
    """Yields the addresses in an answer whose names are pointers."""
    count = int.from_bytes(message[6:8], "big")
    at = 12 + question_length + 5
    for _ in range(count):
        length = int.from_bytes(message[at + 10 : at + 12], "big")
        if message[at + 2 : at + 4] == b"\0\x01":
            yield socket.inet_ntoa(message[at + 12 : at + 16])
        at += 12 + length


def _without_counters(rules: str) -> str:
    """What does not change by itself."""
    return "\n".join(
        line.partition(" [")[0] if line.startswith(":") else _CHANGING.sub("", line)
        for line in rules.splitlines()
        if not line.startswith("#")
    )


def _node(name: str, number: int) -> dict[str, Any]:
    condition = {"type": "Ready", "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z"}
    labels = {
        "kubernetes.io/hostname": name,
        "topology.kubernetes.io/zone": f"zone-{'ab'[number]}",
    }
    address = {"type": "InternalIP", "address": f"192.168.50.{number + 1}"}
    status = {"conditions": [condition], "addresses": [address], "allocatable": {"cpu": "4"}}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "status": status,
        "metadata": {"name": name, "labels": labels},
    }


def _kube_proxy_config(mode: str, kubeconfig: str) -> dict[str, Any]:
    return {
        "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
        "kind": "KubeProxyConfiguration",
        "mode": mode,
        "hostnameOverride": HERE,
        "clientConnection": {"kubeconfig": kubeconfig},
        # a namespace refuses the limits of conntrack
        "conntrack": {
            "maxPerCore": 0,
            "min": 0,
            "tcpEstablishedTimeout": "0s",
            "tcpCloseWaitTimeout": "0s",
        },
        mode: {"minSyncPeriod": "0.1s"},
        "oomScoreAdj": 0,
    }
