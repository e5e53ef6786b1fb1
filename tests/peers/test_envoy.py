"""Envoy as it is, with the bootstrap that ``sliceplane xds bootstrap`` prints: its ``/clusters``
are what the API says, through scaling, restarts of the server, and one by one (LEDS).
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import urllib.request
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.peers.programs import envoy
from tests.ports import free_port
from tests.waiting import eventually
from tests.xds.conftest import (
    Served,
    Shop,
    client,
    endpoint,
    host_address,
    live,
    served,
    shop,
    xds_server,
)
from tests.xds.test_load_reports import ANNOTATIONS, add_node, counts, start_of_uid

from sliceplane.api.meta import Document
from sliceplane.client import EndpointSlices, HttpClient, Services
from sliceplane.diagnose.io.drifting import read_envoy_drift
from sliceplane.kit.rng import Rng
from sliceplane.xds.bootstrap import BootstrapOptions, envoy_bootstrap

__all__ = ["client", "live", "served", "shop"]

pytestmark = [pytest.mark.peer, pytest.mark.asyncio, pytest.mark.timeout(600)]


class Envoy:
    def __init__(self, process: asyncio.subprocess.Process, admin_port: int) -> None:
        self.process = process
        self._url = f"http://127.0.0.1:{admin_port}"

    def _get(self, path: str) -> Any:
        with urllib.request.urlopen(f"{self._url}{path}", timeout=10) as answer:
            return json.load(answer)

    async def clusters(self) -> list[dict[str, Any]]:
        told = await asyncio.to_thread(self._get, "/clusters?format=json")
        statuses: list[dict[str, Any]] = told["cluster_statuses"]
        return statuses

    async def endpoints(self, cluster: str) -> set[str] | None:
        """Those that it uses, as ``ADDRESS:PORT``; ``None``: it has no such cluster."""
        for status in await self.clusters():
            if status["name"] == cluster:
                places = [
                    host["address"]["socket_address"] for host in status.get("host_statuses", [])
                ]
                return {f"{place['address']}:{place['port_value']}" for place in places}
        return None

    async def counter(self, name: str) -> int:
        told = await asyncio.to_thread(self._get, f"/stats?format=json&filter={name}")
        return sum(item["value"] for item in told["stats"] if "value" in item)


@asynccontextmanager
async def running(
    folder: Path,
    wish: BootstrapOptions,
    changed: Callable[[Document], Document] = lambda document: document,
) -> AsyncIterator[Envoy]:
    """*changed*: the bootstrap, as a test would have it."""
    file = folder / f"{wish.node_id}.yaml"
    file.write_text(yaml.safe_dump(changed(envoy_bootstrap(wish))))
    with (folder / f"{wish.node_id}.log").open("wb") as log:
        flags = ("--concurrency", "1", "--base-id", str(wish.admin_port), "-l", "warn")
        process = await asyncio.create_subprocess_exec(
            envoy(), "-c", str(file), *flags, stdout=log, stderr=log
        )
    try:
        yield Envoy(process, wish.admin_port)
    finally:
        with suppress(ProcessLookupError):
            process.send_signal(signal.SIGCONT)
            process.kill()
        await process.wait()


def places(*numbers: int) -> set[str]:
    return {f"10.1.{number // 256}.{number % 256}:9000" for number in numbers}


def hosts(*numbers: int) -> list[dict[str, Any]]:
    return [endpoint(f"10.1.{number // 256}.{number % 256}", f"pod-{number}") for number in numbers]


async def holds(envoy: Envoy, cluster: str, wanted: set[str] | None) -> None:
    await eventually(
        lambda: envoy.endpoints(cluster), lambda seen: seen == wanted, ignoring=(OSError,)
    )


async def test_envoy_follows_a_service_from_its_first_endpoint_to_its_end(
    tmp_path: Path, served: Served, shop: Shop
) -> None:
    cluster = f"{shop.namespace}/web:http"
    await shop.service()
    await shop.slice("web-1", 9000, *hosts(1, 2))
    async with running(tmp_path, served.wish(node_id="edge", admin_port=free_port())) as edge:
        await holds(edge, cluster, places(1, 2))
        await shop.slice("web-1", 9000, *hosts(2, 3))
        await holds(edge, cluster, places(2, 3))
        many = range(1, 60)
        await shop.slice("web-1", 9000, *hosts(*many))  # one by one from here on
        await holds(edge, cluster, places(*many))
        types = {item.type for report in served.server.reports() for item in report.types}
        assert "LEDS" in types
        await shop.slice("web-1", 9000, *hosts(*many[10:]))
        await holds(edge, cluster, places(*many[10:]))
        await shop.slice("web-1", 9000)
        await holds(edge, cluster, set())
        await shop.slice("web-1", 9000, *hosts(5))
        await holds(edge, cluster, places(5))
        await shop.delete(Services, "web")
        await holds(edge, cluster, None)
        assert await edge.counter("update_rejected") == 0


async def test_drift_tells_what_an_envoy_without_a_server_lacks_and_keeps(
    tmp_path: Path, client: HttpClient, shop: Shop
) -> None:
    cluster, admin = f"{shop.namespace}/web:http", free_port()
    await shop.service()
    await shop.slice("web-1", 9000, *hosts(1, 2))
    async with AsyncExitStack() as stack, AsyncExitStack() as server:
        served = await server.enter_async_context(xds_server(client))
        edge = await stack.enter_async_context(
            running(tmp_path, served.wish(node_id="edge", admin_port=admin))
        )
        await holds(edge, cluster, places(1, 2))
        assert not (await read_envoy_drift(client, f"http://127.0.0.1:{admin}")).differs
        await server.aclose()
        await shop.slice("web-1", 9000, *hosts(2, 3))
        drift = await read_envoy_drift(client, f"http://127.0.0.1:{admin}")
        assert [
            (row.cluster, set(row.lacks), set(row.keeps))
            for row in drift.rows
            if row.state == "differs"
        ] == [(cluster, places(3), places(1))]


async def test_an_envoy_reports_its_requests_for_measured_zones(
    tmp_path: Path, client: HttpClient, shop: Shop
) -> None:
    zone, port = f"zone-{shop.namespace}", free_port()
    await add_node(client, f"node-{shop.namespace}", zone)
    annotations = {**ANNOTATIONS, "sliceplane.dev/xds-listener": str(port)}
    await shop.service(
        annotations=annotations, ports=[{"name": "http", "port": 80, "appProtocol": "http"}]
    )
    async with (
        backend(host_address()) as answering,
        xds_server(client, report_name=shop.namespace) as served,
    ):
        await shop.slice("web-1", answering, endpoint(host_address(), "one"))
        wish = served.wish(
            node_id="edge",
            admin_port=free_port(),
            zone=zone,
            load_reports=True,
            metadata={"listeners": "port"},
        )
        async with running(tmp_path, wish):

            def ask() -> bool:
                with urllib.request.urlopen(f"http://127.0.0.1:{port}/", timeout=5) as answer:
                    return answer.status == 200

            await eventually(lambda: asyncio.to_thread(ask), ignoring=(OSError,))
            for _ in range(30):
                await asyncio.to_thread(ask)
            key = f"{zone}/{await start_of_uid(client, shop)}"
            await eventually(
                lambda: counts(client, shop.namespace), lambda found: found.get(key, 0) >= 30
            )


@asynccontextmanager
async def backend(host: str) -> AsyncIterator[int]:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\nconnection: close\r\n\r\n")
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(answer, host, 0) as server:
        yield server.sockets[0].getsockname()[1]


async def test_an_envoy_that_was_stopped_is_behind_and_others_are_not(
    tmp_path: Path, served: Served, shop: Shop
) -> None:
    cluster = f"{shop.namespace}/web:http"
    await shop.service()
    await shop.slice("web-1", 9000, *hosts(1))
    async with (
        running(tmp_path, served.wish(node_id="stopped", admin_port=free_port())) as stopped,
        running(tmp_path, served.wish(node_id="well", admin_port=free_port())) as well,
    ):
        await holds(stopped, cluster, places(1))
        await holds(well, cluster, places(1))
        stopped.process.send_signal(signal.SIGSTOP)
        await shop.slice("web-1", 9000, *hosts(2))
        await holds(well, cluster, places(2))

        def behind() -> dict[str, bool]:
            return {report.id: report.behind for report in served.server.reports()}

        await eventually(behind, lambda seen: seen == {"stopped": True, "well": False})
        stopped.process.send_signal(signal.SIGCONT)
        await holds(stopped, cluster, places(2))
        await eventually(behind, lambda seen: seen == {"stopped": False, "well": False})


HISTORY_STEPS = int(os.environ.get("XDS_HISTORY_STEPS", "40"))


async def test_after_random_histories_with_other_servers_envoy_holds_what_the_api_says(
    tmp_path: Path, client: HttpClient, shop: Shop
) -> None:
    """The server dies and another takes its port, while endpoints come and go and clusters
    change.
    """
    rng = Rng(7)
    port = free_port()
    cluster = f"{shop.namespace}/web:http"
    await shop.service()
    numbers = set(range(1, 40))
    await shop.slice("web-1", 9000, *hosts(*sorted(numbers)))
    wish = BootstrapOptions(
        host="127.0.0.1", port=port, insecure=True, node_id="edge", admin_port=free_port()
    )
    async with running(tmp_path, wish) as edge:
        for step in range(HISTORY_STEPS):
            async with xds_server(client, port=port):
                await holds(edge, cluster, places(*sorted(numbers)))
                for _ in range(rng.below(4)):
                    numbers ^= {1 + rng.below(80)}
                    await shop.slice("web-1", 9000, *hosts(*sorted(numbers)))
            if rng.below(2):  # while no server is there
                numbers ^= {1 + rng.below(80) for _ in range(rng.below(30))}
                await shop.slice("web-1", 9000, *hosts(*sorted(numbers)))
            if step % 7 == 3:
                affinity = "ClientIP" if step % 14 == 3 else "None"
                await shop.service(sessionAffinity=affinity)
        async with xds_server(client, port=port):
            await holds(edge, cluster, places(*sorted(numbers)))
            await shop.delete(EndpointSlices, "web-1")
            await holds(edge, cluster, set())
        assert await edge.counter("update_rejected") == 0
