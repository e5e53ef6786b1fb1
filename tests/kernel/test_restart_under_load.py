"""``sliceplane proxy`` as a process that dies and hangs, with 500 requests a second on the node
that it serves.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from tests.figures import tell
from tests.kernel.load import Load, Pods, load
from tests.kernel.netns import Host, Net
from tests.kernel.test_proxy_command import create, page, started
from tests.ports import free_port
from tests.waiting import eventually

from sliceplane.api.codec import encode
from sliceplane.api.scheme import EndpointSlices, Namespaces, Nodes, Services
from sliceplane.watch.io.http.client import HttpClient
from sliceplane.watch.io.kubeconfig import load as load_kubeconfig

pytestmark = pytest.mark.kernel

RATE = 500.0
VIPS = ("10.96.0.100", "fd96::100")
TERMINATING = {"ready": False, "serving": True, "terminating": True}


class Node:
    """A node whose proxy is a process; two Services' worth of addresses, one slice for each
    family.
    """

    def __init__(self, client: HttpClient, kubeconfig: str, host: Host, pods: Pods) -> None:
        self.host = host
        self._client, self._kubeconfig, self._pods = client, kubeconfig, pods
        self.health_port = free_port()
        self.process: asyncio.subprocess.Process | None = None

    async def start_proxy(self) -> None:
        """Returns when it says that the rules are written."""
        print(f"{time.time():.3f} start")  # to be compared with the times of errors
        self.process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "sliceplane", "proxy", "--kubeconfig", self._kubeconfig),
            *("--hostname-override", "node-1", "--netns", self.host.netns),
            *("--healthz-bind-address", f"127.0.0.1:{self.health_port}"),
            stdout=asyncio.subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        )
        assert self.process.stdout is not None
        line = await asyncio.wait_for(self.process.stdout.readline(), 90)
        assert line.startswith(b"ready "), line
        print(f"{time.time():.3f} ready")

    async def kill_proxy(self) -> None:
        if self.process is not None and self.process.returncode is None:
            self.process.send_signal(signal.SIGKILL)
            await self.process.wait()

    async def start_pod(self, number: int) -> None:
        await asyncio.to_thread(self._pods.start, number)

    async def stop_pod(self, number: int) -> None:
        await asyncio.to_thread(self._pods.stop, number)

    async def publish(self, ready: list[int], terminating: list[int]) -> None:
        for family, address in (("IPv4", Pods.ip4), ("IPv6", Pods.ip6)):
            endpoints: list[dict[str, Any]] = [{"addresses": [address(n)]} for n in ready]
            endpoints += [
                {"addresses": [address(n)], "conditions": TERMINATING} for n in terminating
            ]
            body = encode({"endpoints": endpoints})
            await self._client.patch(
                EndpointSlices, "demo", f"demo-{family.lower()}", body, patch_type="merge"
            )

    async def used(self, number: int) -> None:
        """Returns when the rules of both families lead to Pod *number*."""
        for family, ip in (("ip", Pods.ip4(number)), ("ip6", Pods.ip6(number))):
            await eventually(
                partial(asyncio.to_thread, self._rules, family), lambda rules, ip=ip: ip in rules
            )

    def _rules(self, family: str) -> str:
        return self.host.exec(["nft", "list", "table", family, "sliceplane"]).stdout


@asynccontextmanager
async def cluster(tmp_path: Path, numbers: range) -> AsyncIterator[Node]:
    """An API server, a node with its proxy, Pod 0 behind the Service ``demo``."""
    with Net("spz") as net:
        place = net.add_host("pods", ip4="10.10.1.1/16", ip6="fd10::1:1/64")
        host = net.add_host("node", ip4="10.10.0.1/16", ip6="fd10::1/64")
        ranges = ("--service-cluster-ip-range", "10.96.0.0/16,fd96::/112")
        arguments = ("apiserver", "--secure-port", "0", "--data-dir", str(tmp_path), *ranges)
        async with started(*arguments) as (_, line):
            kubeconfig = line.partition("kubeconfig=")[2]
            client = HttpClient(load_kubeconfig(kubeconfig))
            node = Node(client, kubeconfig, host, await asyncio.to_thread(Pods, place, numbers))
            try:
                await _populate(client)
                await node.start_pod(0)
                await node.publish([0], [])
                await node.start_proxy()
                yield node
            finally:
                await node.kill_proxy()
                await client.close()


async def _populate(client: HttpClient) -> None:
    await create(client, Namespaces, {"metadata": {"name": "demo"}})
    await create(client, Nodes, {"metadata": {"name": "node-1"}})
    spec = {
        "clusterIPs": list(VIPS),
        "ipFamilyPolicy": "RequireDualStack",
        "ports": [{"name": "http", "port": 80}],
    }
    spec |= {"clusterIP": VIPS[0], "ipFamilies": ["IPv4", "IPv6"]}
    await create(
        client, Services, {"metadata": {"name": "demo", "namespace": "demo"}, "spec": spec}, "demo"
    )
    for family in ("IPv4", "IPv6"):
        document = {
            "metadata": {
                "name": f"demo-{family.lower()}",
                "namespace": "demo",
                "labels": {"kubernetes.io/service-name": "demo"},
            },
            "addressType": family,
            "endpoints": [],
            "ports": [{"name": "http", "port": 8080, "protocol": "TCP"}],
        }
        await create(client, EndpointSlices, document, "demo")


@asynccontextmanager
async def loads(node: Node) -> AsyncIterator[tuple[Load, Load]]:
    """One for each family."""
    async with (
        load(node.host, VIPS[0], RATE / 2) as first,
        load(node.host, VIPS[1], RATE / 2) as second,
    ):
        yield first, second


async def passed(both: tuple[Load, Load]) -> None:
    """Who was led to a Pod that goes is through."""
    for each in both:
        await each.passed()


async def more(both: tuple[Load, Load], count: int = 25) -> None:
    for each in both:
        await each.more(count)


async def none_failed(both: tuple[Load, Load], pods: int) -> None:
    for each in both:
        tally = await each.tally()
        tally.assert_none_failed()
        assert len(tally.answers) == pods, tally.answers
        tell(f"0 of {sum(tally.answers.values()):,} requests failed")


async def kill_and_start(tmp_path: Path, times: int) -> None:
    """The proxy is killed, endpoints change while there is none, another starts; and all over
    again.
    """
    async with cluster(tmp_path, range(times + 1)) as node, loads(node) as both:
        for turn in range(times):
            await more(both)
            if turn % 2:  # in the middle of things
                await node.publish([turn, turn], [])
            await node.kill_proxy()
            await node.start_pod(turn + 1)
            await node.publish([turn + 1], [turn])
            await node.start_proxy()
            await node.used(turn + 1)
            await passed(both)
            await node.stop_pod(turn)
            await node.publish([turn + 1], [])
        await more(both)
        assert (await page(node.health_port, "/healthz"))[0] == 200
        await none_failed(both, times + 1)


async def test_no_request_fails_while_the_proxy_is_killed_and_started(tmp_path: Path) -> None:
    await kill_and_start(tmp_path, 2)


@pytest.mark.slow
@pytest.mark.timeout(3600)
async def test_no_request_fails_while_the_proxy_is_killed_twenty_times(tmp_path: Path) -> None:
    await kill_and_start(tmp_path, 20)


async def test_a_proxy_that_hangs_leaves_traffic_alone_and_catches_up(tmp_path: Path) -> None:
    async with cluster(tmp_path, range(2)) as node, loads(node) as both:
        assert node.process is not None
        node.process.send_signal(signal.SIGSTOP)
        try:
            await node.start_pod(1)
            await node.publish([1], [0])
            await more(both, 100)
            assert (
                Pods.ip4(1)
                not in node.host.exec(["nft", "list", "table", "ip", "sliceplane"]).stdout
            )
        finally:
            node.process.send_signal(signal.SIGCONT)
        await node.used(1)
        await passed(both)
        await node.stop_pod(0)
        assert (await page(node.health_port, "/healthz"))[0] == 200
        await more(both)
        await none_failed(both, 2)
