"""Health check ports of Services: what a load balancer is told, and a port that is taken."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import pytest
import pytest_asyncio
from tests.nft.machine import NODE
from tests.ports import free_port

from sliceplane.consume.model import ServiceKey
from sliceplane.node.io.side_effects import ServiceHealth
from sliceplane.node.post_sync import HealthCheck

KEY = ServiceKey("ns", "svc")
HERE = {"nodeName": NODE}
LOCAL: dict[str, Any] = {
    "type": "LoadBalancer",
    "externalTrafficPolicy": "Local",
    "healthCheckNodePort": 31000,
}


class Healthy:
    def __init__(self) -> None:
        self.value = True

    def __call__(self) -> bool:
        return self.value


@pytest_asyncio.fixture
async def served() -> AsyncIterator[tuple[ServiceHealth, Healthy]]:
    healthy = Healthy()
    health = ServiceHealth("IPv4", healthy)
    yield health, healthy
    await health.close()


async def ask(port: int, path: str = "/", method: str = "GET") -> tuple[int, str, Any]:
    async with (
        aiohttp.ClientSession() as session,
        session.request(method, f"http://127.0.0.1:{port}{path}") as response,
    ):
        return response.status, (await response.read()).decode(), response.headers


LOOPBACK = ("127.0.0.1",)


async def test_a_load_balancer_is_told_how_many_there_are(
    served: tuple[ServiceHealth, Healthy],
) -> None:
    health, healthy = served
    port = free_port()
    await health.update({KEY: HealthCheck(port, 2)}, LOOPBACK)
    status, body, headers = await ask(port, "/any/path?x=1", "POST")
    assert status == 200
    assert body == (
        '{\n\t"service": {\n\t\t"namespace": "ns",\n\t\t"name": "svc"\n\t},\n'
        '\t"localEndpoints": 2,\n\t"serviceProxyHealthy": true\n}'
    )
    assert headers["Content-Type"] == "application/json"
    assert headers["X-Content-Type-Options"] == "nosniff"
    assert headers["X-Load-Balancing-Endpoint-Weight"] == "2"

    await health.update({KEY: HealthCheck(port, 0)}, LOOPBACK)
    assert (await ask(port))[0] == 503
    await health.update({KEY: HealthCheck(port, 3)}, LOOPBACK)
    healthy.value = False
    status, body, headers = await ask(port)
    assert (status, headers["X-Load-Balancing-Endpoint-Weight"]) == (503, "3")
    assert '"localEndpoints": 3' in body
    assert '"serviceProxyHealthy": false' in body
    await health.update({}, LOOPBACK)
    with pytest.raises(aiohttp.ClientConnectorError):
        await ask(port)


async def test_when_a_port_was_asked_last_is_known() -> None:
    now = [1000.0]
    health, port, other = (
        ServiceHealth("IPv4", Healthy(), clock=lambda: now[0]),
        free_port(),
        free_port(),
    )
    await health.update(
        {KEY: HealthCheck(port, 2), ServiceKey("ns", "web"): HealthCheck(other, 1)}, LOOPBACK
    )
    now[0] = 1500.0
    await ask(port)
    assert health.last_requests() == {port: 1500.0, other: 1000.0}
    await health.update({KEY: HealthCheck(port, 2)}, LOOPBACK)
    assert health.last_requests() == {port: 1500.0}
    await health.close()
    assert health.last_requests() == {}


async def test_several_services_and_a_port_that_moves(
    served: tuple[ServiceHealth, Healthy],
) -> None:
    health, _ = served
    ports = [free_port() for _ in range(3)]
    other = ServiceKey("ns", "web")
    await health.update({KEY: HealthCheck(ports[0], 1), other: HealthCheck(ports[1], 0)}, LOOPBACK)
    assert [(await ask(port))[0] for port in ports[:2]] == [200, 503]
    await health.update({KEY: HealthCheck(ports[2], 1), other: HealthCheck(ports[1], 0)}, LOOPBACK)
    assert [(await ask(port))[0] for port in ports[1:]] == [503, 200]
    with pytest.raises(aiohttp.ClientConnectorError):
        await ask(ports[0])


async def test_a_port_that_is_taken_is_tried_again(
    served: tuple[ServiceHealth, Healthy], capsys: pytest.CaptureFixture[str]
) -> None:
    health, _ = served
    taken = await asyncio.start_server(lambda *_: None, "127.0.0.1", 0)
    port = int(taken.sockets[0].getsockname()[1])
    for _ in range(2):
        await health.update({KEY: HealthCheck(port, 1)}, LOOPBACK)
    taken.close()
    await taken.wait_closed()
    await health.update({KEY: HealthCheck(port, 1)}, LOOPBACK)
    assert (await ask(port))[0] == 200
    assert capsys.readouterr().err.count("FailedToStartServiceHealthcheck") == 1, "told once"
