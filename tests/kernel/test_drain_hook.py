"""The ``preStop`` door on a real kernel: the node calls a Pod's own address, its proxy answers in
its place.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from tests.kernel.netns import Host, Net
from tests.waiting import eventually

from sliceplane.client import HttpClient, Pods, connect
from sliceplane.kit.ip import FAMILIES, Family
from sliceplane.kit.rng import Rng
from sliceplane.node.io.drain_hook import DrainHook, local_pods
from sliceplane.node.io.kernel.conntrack import Conntrack
from sliceplane.node.io.kernel.iptables_backend import Iptables
from sliceplane.node.io.kernel.netns import listening_in
from sliceplane.node.io.kernel.nft_backend import Nftables, NftRunner
from sliceplane.testing import Plane
from sliceplane.watch.io.reflect import loop_clock

pytestmark = pytest.mark.kernel

PORT = 10261
AT_ONCE = b'{"gracePeriodSeconds":0}'
NOT_YET = "200 not known to be drained after 0 s"
#: what a kubelet does, for each line: GET of the Pod's own address; prints the code and the text,
#: or the fault
KUBELET = """
import sys, urllib.error, urllib.request
for line in sys.stdin:
    address, path = line.split()
    host = f"[{address}]" if ":" in address else address
    try:
        with urllib.request.urlopen(f"http://{host}:10261{path}", timeout=60) as answer:
            print(answer.status, answer.read().decode().strip(), flush=True)
    except urllib.error.HTTPError as error:
        print(error.code, error.read().decode().strip(), flush=True)
    except OSError as error:
        print("refused" if "refused" in str(error) else error, flush=True)
"""
#: accepts and keeps what it accepted
KEEPER = """
import socket
kept = []
server = socket.create_server(("", 8080))
print("up", flush=True)
while True:
    kept.append(server.accept())
"""
#: "ADDRESS" opens a connection, "close" ends those that are open
CLIENT = """
import socket, sys
kept = []
for line in sys.stdin:
    if line == "close\\n":
        for each in kept: each.close()
    else:
        kept.append(socket.create_connection((line.strip(), 8080)))
    print("done", flush=True)
"""


@pytest.fixture(scope="module")
def hosts() -> Iterator[tuple[Host, Host, Host]]:
    with Net("sph") as net:
        node = net.add_host("node", ip4="10.77.0.1/24", ip6="fd77::1/64")
        pod = net.add_host("pod", ip4="10.77.0.2/24", ip6="fd77::2/64")
        yield node, pod, net.add_host("else", ip4="10.77.0.3/24", ip6="fd77::3/64")


@pytest.fixture(scope="module")
def plane() -> Iterator[Plane]:
    with Plane(controllers=False) as made:
        yield made


def pod(host: Host, name: str, *, opted: bool = True, drained: str = "") -> dict[str, Any]:
    conditions = (
        [{"type": "sliceplane.dev/Drained", "status": "True", "message": drained}]
        if drained
        else []
    )
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name,
            "annotations": {"sliceplane.dev/drain-barrier": "true"} if opted else {},
        },
        "spec": {"nodeName": "n1", "containers": [{"name": "web", "image": "web"}]},
        "status": {
            "podIP": host.ip4,
            "podIPs": [{"ip": host.ip4}, {"ip": host.ip6}],
            "conditions": conditions,
        },
    }


@asynccontextmanager
async def answering(node: Host, mode: str, client: HttpClient) -> AsyncIterator[None]:
    backend = (
        Iptables(netns=node.netns) if mode == "iptables" else Nftables(NftRunner(netns=node.netns))
    )
    hook = DrainHook(
        local_pods("n1", client, loop_clock(time.time()), Rng(1)),
        backend,
        Conntrack(netns=node.netns),
        port=PORT,
        listen=listening_in(node.netns),
        families=FAMILIES,
    )
    async with hook.answering():
        yield


async def call(host: Host, address: str, path: str = "/drain") -> str:
    return (await asyncio.to_thread(host.converse, KUBELET, f"{address} {path}")).strip()


@pytest.mark.parametrize("mode", ["nftables", "iptables"])
async def test_a_hook_is_answered_when_the_pod_is_drained(
    hosts: tuple[Host, Host, Host], plane: Plane, mode: str
) -> None:
    node, own, other = hosts

    async def put(**content: Any) -> None:
        await asyncio.to_thread(plane.apply, pod(own, mode, **content))

    await put()

    async def both(path: str) -> list[str]:
        return [await call(node, own.ip(family), path) for family in FAMILIES]

    async with connect(plane.kubeconfig) as client, answering(node, mode, client):
        await eventually(lambda: both("/drain?timeout=0"), lambda said: said == [NOT_YET] * 2)
        hooks = [asyncio.create_task(call(node, own.ip(family))) for family in FAMILIES]
        assert await both("/drain?timeout=0") == [NOT_YET] * 2
        await put(drained="revision 7, 3 nodes, 41 ms")
        assert await asyncio.gather(*hooks) == ["200 drained: revision 7, 3 nodes, 41 ms"] * 2
        assert (
            await both("/drain?idle=60")
            == ["200 drained: revision 7, 3 nodes, 41 ms; no connection is open"] * 2
        )
        for family in FAMILIES:
            assert await call(other, own.ip(family)) == "refused", (
                "only the node itself is answered"
            )
            assert await call(node, other.ip(family)) == "refused", "only for Pods that opted in"
            assert (await call(node, "127.0.0.1" if family == "IPv4" else "::1")).startswith(
                "404 "
            ), "meant for no Pod"
        await put(opted=False)
        await eventually(lambda: both("/drain"), lambda said: said == ["refused"] * 2)
    assert await both("/drain") == ["refused"] * 2, "the rules went with the proxy"
    async with connect(plane.kubeconfig) as client:
        await client.delete(Pods, "default", mode, AT_ONCE)


async def test_a_pod_that_goes_ends_its_hook(hosts: tuple[Host, Host, Host], plane: Plane) -> None:
    node, own, _ = hosts
    await asyncio.to_thread(plane.apply, pod(own, "p"))
    family: Family = "IPv4"
    async with connect(plane.kubeconfig) as client, answering(node, "nftables", client):
        await eventually(
            lambda: call(node, own.ip(family), "/drain?timeout=0"), lambda said: said == NOT_YET
        )
        hook = asyncio.create_task(call(node, own.ip(family), "/drain?timeout=600"))
        await client.delete(Pods, "default", "p", AT_ONCE)
        assert await hook in ("200 the Pod is gone", "refused"), (
            "it may not have got through before"
        )


async def test_a_hook_waits_until_its_node_tracks_no_connection_to_the_pod(
    hosts: tuple[Host, Host, Host], plane: Plane
) -> None:
    node, own, _ = hosts
    await asyncio.to_thread(plane.apply, pod(own, "idle", drained="yes"))
    await asyncio.to_thread(own.serve, KEEPER)
    async with connect(plane.kubeconfig) as client, answering(node, "nftables", client):
        await eventually(lambda: call(node, own.ip4), lambda said: said == "200 drained: yes")
        await asyncio.to_thread(node.converse, CLIENT, own.ip4)
        assert (
            await call(node, own.ip4, "/drain?idle=1")
            == "200 drained: yes; open connections after 1 s: 1"
        )
        waiting = asyncio.create_task(call(node, own.ip4, "/drain?idle=600"))
        await asyncio.to_thread(node.converse, CLIENT, "close")
        assert await waiting == "200 drained: yes; no connection is open"
        await client.delete(Pods, "default", "idle", AT_ONCE)
