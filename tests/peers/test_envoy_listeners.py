"""Envoy with listeners of ours, in a network namespace in which the addresses of Services and Pods
are reached: what is called there is answered by the Service's Pods, and by nothing when the Service
is gone.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest
from benchmarks.tools.pods import METHOD
from tests.peers.loopback import RunningPods, called, fetched, live, network, pods
from tests.peers.test_envoy import holds, running
from tests.waiting import eventually
from tests.xds.conftest import Served, Shop, client, endpoint, served, shop

from sliceplane.client import EndpointSlices, Services

__all__ = ["client", "fetched", "live", "network", "pods", "served", "shop"]

pytestmark = [pytest.mark.peer, pytest.mark.kernel, pytest.mark.asyncio, pytest.mark.timeout(600)]

ADDRESSES = ("10.128.0.1", "10.128.0.2")
ADMIN_PORT = 19000
NO_SERVICE = "10.111.222.33"
REDIRECTED = """
table ip captured {
    chain output {
        type nat hook output priority -100
        ip daddr 10.96.0.0/12 tcp dport 80-81 redirect to :15001
    }
}
"""


@pytest.fixture
def redirected(network: None) -> Iterator[None]:
    subprocess.run(["nft", "-f", "-"], input=REDIRECTED, text=True, check=True)
    yield
    subprocess.run(["nft", "delete table ip captured"], check=True)


async def open_shop(
    shop: Shop, *, annotations: dict[str, str] | None = None, protocol: str = ""
) -> str:
    """A Service whose port 80 is that of the Pods which speak HTTP, 81 that of gRPC; its cluster
    IP.
    """
    ports = [
        {
            "name": "http",
            "port": 80,
            "targetPort": 8080,
            **({"appProtocol": protocol} if protocol else {}),
        },
        {"name": "grpc", "port": 81, "targetPort": 9090, "appProtocol": "kubernetes.io/h2c"},
    ]
    await shop.service(annotations=annotations, ports=ports)
    hosts = [endpoint(address, f"pod-{address}") for address in ADDRESSES]
    await shop.slice("web-1", 8080, *hosts)
    body = {
        "metadata": {"labels": {"kubernetes.io/service-name": "web"}},
        "addressType": "IPv4",
        "ports": [{"name": "grpc", "port": 9090, "protocol": "TCP"}],
        "endpoints": hosts,
    }
    await shop.put(EndpointSlices, "web-2", body)
    found = json.loads(await shop.client.get(Services, shop.namespace, "web"))
    return str(found["spec"]["clusterIP"])


async def answers(host: str, port: int, wanted: set[str]) -> None:
    await eventually(lambda: called(host, port), lambda seen: seen == wanted)


def by_grpc(host: str, port: int) -> str:
    with grpc.insecure_channel(f"{host}:{port}") as channel:
        answer: bytes = channel.unary_unary(METHOD)(b"", timeout=20.0, wait_for_ready=True)
    return answer.decode()


@pytest.mark.parametrize("protocol", ["", "http", "kubernetes.io/ws"])
async def test_cluster_ips_are_answered_until_the_service_is_deleted(
    tmp_path: Path, served: Served, shop: Shop, pods: RunningPods, protocol: str
) -> None:
    address = await open_shop(shop, protocol=protocol)
    wish = served.wish(node_id="edge", admin_port=ADMIN_PORT, metadata={"listeners": "cluster-ip"})
    async with running(tmp_path, wish) as edge:
        await answers(address, 80, set(ADDRESSES))
        assert await asyncio.to_thread(by_grpc, address, 81) in ADDRESSES
        await shop.slice("web-1", 8080, endpoint(ADDRESSES[1], f"pod-{ADDRESSES[1]}"))
        await answers(address, 80, {ADDRESSES[1]})
        await shop.delete(Services, "web")
        await eventually(
            lambda: called(address, 80, 1), lambda seen: "ConnectionRefused" in "".join(seen)
        )
        assert await edge.counter("update_rejected") == 0


async def test_what_the_kernel_redirects_is_led_by_its_destination(
    tmp_path: Path, served: Served, shop: Shop, pods: RunningPods, redirected: None
) -> None:
    address = await open_shop(shop)
    wish = served.wish(node_id="edge", admin_port=ADMIN_PORT, metadata={"listeners": "capture"})
    async with running(tmp_path, wish) as edge:
        await answers(address, 80, set(ADDRESSES))
        assert await asyncio.to_thread(by_grpc, address, 81) in ADDRESSES
        (nothing,) = await called(NO_SERVICE, 80, 1)
        assert nothing.startswith("!")
        assert await edge.counter("update_rejected") == 0


async def test_a_port_that_an_annotation_names_is_open_as_long_as_it_does(
    tmp_path: Path, served: Served, shop: Shop, pods: RunningPods
) -> None:
    await open_shop(shop, annotations={"sliceplane.dev/xds-listener": "http=8088"})
    wish = served.wish(node_id="edge", admin_port=ADMIN_PORT, metadata={"listeners": "port"})
    async with running(tmp_path, wish) as edge:
        await answers("127.0.0.1", 8088, set(ADDRESSES))
        await shop.service(annotations={"sliceplane.dev/xds-listener": "http=8089"})
        await answers("127.0.0.1", 8089, set(ADDRESSES))
        await eventually(
            lambda: called("127.0.0.1", 8088, 1), lambda seen: "ConnectionRefused" in "".join(seen)
        )
        assert await edge.counter("update_rejected") == 0


async def test_without_a_mode_there_are_clusters_and_no_listeners(
    tmp_path: Path, served: Served, shop: Shop, pods: RunningPods
) -> None:
    address = await open_shop(shop)
    async with running(tmp_path, served.wish(node_id="edge", admin_port=ADMIN_PORT)) as edge:
        await holds(edge, f"{shop.namespace}/web:http", {f"{one}:8080" for one in ADDRESSES})
        (nothing,) = await called(address, 80, 1)
        assert "ConnectionRefused" in nothing
        assert await edge.counter("listener_manager.total_listeners_active") == 0
