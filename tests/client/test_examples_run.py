"""The examples run, with the libraries that they are for, against endpoints that answer.

A real server takes no slice with an address of the loopback network, so the API server is the fake
one; ``connect`` of an example gives a client of it. Everything else is as in the example's own
words.
"""

from __future__ import annotations

import asyncio
import importlib.util
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import grpc
import httpx
import pytest
import pytest_asyncio
from aiohttp import web
from tests.fakes.fake_api import FakeApi
from tests.waiting import eventually

from sliceplane.api.requests import Selection
from sliceplane.client import EndpointSlices, ListPage, WatchMessage

EXAMPLES = Path(__file__).parents[2] / "examples"
POLL_S = 0.005
SERVING = b"\x08\x01"  # grpc.health.v1.HealthCheckResponse: SERVING


class Reading:
    """A client of a fake server, as far as a view asks."""

    def __init__(self, api: FakeApi) -> None:
        self.api = api

    async def list(
        self,
        selection: Selection,
        *,
        resource_version: str | None = None,
        limit: int | None = None,
        continue_token: str = "",
    ) -> ListPage:
        return self.api.list(selection, limit=limit, continue_token=continue_token)

    @asynccontextmanager
    async def watch(
        self, selection: Selection, *, resource_version: str, **_: Any
    ) -> AsyncIterator[AsyncIterator[WatchMessage]]:
        loop = asyncio.get_running_loop()
        stream = self.api.watch(selection, resource_version, now=loop.time())

        async def messages() -> AsyncIterator[WatchMessage]:
            while True:
                for kind, body in stream.pull(loop.time()):
                    yield WatchMessage(kind, body)
                await asyncio.sleep(POLL_S)

        yield messages()


class World:
    """The Service ``web`` in ``shop``, with a Pod for each address of which a server was
    started.
    """

    def __init__(self) -> None:
        self.api = FakeApi()

    def put(self, address: str, port: int) -> None:
        """Each Pod in a slice of its own, for its port is its own."""
        self.api.put(
            EndpointSlices,
            "shop",
            f"web-{address}",
            {
                "metadata": {"labels": {"kubernetes.io/service-name": "web"}},
                "addressType": "IPv4",
                "endpoints": [
                    {
                        "addresses": [address],
                        "targetRef": {"kind": "Pod", "name": address, "uid": address},
                    }
                ],
                "ports": [{"name": "http", "port": port, "protocol": "TCP"}],
            },
        )

    def delete(self, address: str) -> None:
        self.api.remove(EndpointSlices, "shop", f"web-{address}")

    def example(self, name: str, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
        spec = importlib.util.spec_from_file_location(f"example_{name}", EXAMPLES / f"{name}.py")
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        # Annotations are read by FastAPI, which looks the module up.
        monkeypatch.setitem(__import__("sys").modules, spec.name, module)
        spec.loader.exec_module(module)

        @asynccontextmanager
        async def connect() -> AsyncIterator[Reading]:
            yield Reading(self.api)

        monkeypatch.setattr(module, "connect", connect)
        return module


async def answer(request: web.BaseRequest) -> web.StreamResponse:
    host = request.transport.get_extra_info("sockname")[0] if request.transport else ""
    if request.path == "/redirect":
        return web.Response(status=302, headers={"Location": "/landed"})
    if request.path == "/packed":
        packed = web.Response(text="x" * 1000)
        packed.enable_compression()
        return packed
    text = (
        f"{host} {request.method} {request.path_qs} {request.headers['Host']} "
        f"{await request.text()}"
    )
    made = web.Response(text=text)
    made.headers.extend([("Set-Cookie", "a=1"), ("Set-Cookie", "b=2")])
    return made


@pytest_asyncio.fixture
async def world() -> AsyncIterator[World]:
    made, runner = World(), web.ServerRunner(web.Server(answer))
    await runner.setup()
    for number in range(1, 4):
        site = web.TCPSite(runner, f"127.0.0.{number}", 0)
        await site.start()
        made.put(*runner.addresses[-1])
    yield made
    await runner.cleanup()


async def test_aiohttp(
    world: World, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    example = world.example("aiohttp_client", monkeypatch)
    running = asyncio.create_task(example.main("web", "shop", "http"))
    said = await eventually(lambda: capsys.readouterr().out)
    assert said.startswith("3 endpoints: 127.0.0.")
    assert not running.done(), "it goes on until it is ended"
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


async def test_httpx(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    example = world.example("httpx_transport", monkeypatch)
    transport = example.ServiceTransport(Reading(world.api), port="http")
    async with httpx.AsyncClient(transport=transport, timeout=60) as session:

        async def pod(path: str = "/", **headers: str) -> str:
            response = await session.get(
                f"http://web.shop{path}", headers=headers, follow_redirects=True
            )
            address, method, _, host, *_ = response.text.split()
            assert (response.status_code, method, host) == (200, "GET", "web.shop")
            assert response.url.host == "web.shop", "what was asked for, not where it went"
            return address

        assert len({await pod() for _ in range(60)}) == 3, "without a session anywhere"
        kept = await pod(**{"x-session": "jane"})
        assert {await pod("/redirect", **{"x-session": "jane"}) for _ in range(9)} == {kept}
        world.delete(kept)
        await eventually(lambda: pod(**{"x-session": "jane"}), lambda answered: answered != kept)
        with pytest.raises(httpx.ConnectError, match="shop/nobody has no EndpointSlices"):
            await session.get("http://nobody.shop/", timeout=5)
        with pytest.raises(httpx.ConnectError, match="is no name of a Service"):
            await session.get("http://under_score.shop/")
        world.api.put(  # what failed once is asked for anew
            EndpointSlices,
            "shop",
            "nobody",
            {
                "metadata": {"labels": {"kubernetes.io/service-name": "nobody"}},
                "addressType": "IPv4",
                "endpoints": [{"addresses": ["127.0.0.1"]}],
                "ports": [{"name": "http", "port": 1}],
            },
        )
        with pytest.raises(httpx.ConnectError, match="connection attempts failed"):
            await session.get("http://nobody.shop/")


async def test_fastapi(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SERVICE", "web")
    monkeypatch.setenv("NAMESPACE", "shop")
    monkeypatch.delenv("PORT", raising=False)
    example = world.example("fastapi_router", monkeypatch)
    router = httpx.AsyncClient(
        transport=httpx.ASGITransport(app=example.app), base_url="http://router"
    )
    async with example.lifespan(example.app), router:
        view = example.app.state.view
        await view.wait_ready(60, count=3)
        health = (await router.get("/health")).json()
        assert health["endpoints"] == 3
        sent = await router.post("/say?a=1&a=2", content=b"hello")
        assert sent.text.split()[1:3] == ["POST", "/say?a=1&a=2"]
        assert sent.text.endswith(" hello")
        assert sent.headers.get_list("set-cookie") == ["a=1", "b=2"]
        kept = {
            (await router.get("/", headers={"x-conversation": "7"})).text.split()[0]
            for _ in range(20)
        }
        assert len(kept) == 1
        assert len({(await router.get("/")).text.split()[0] for _ in range(60)}) == 3
        assert (await router.get("/packed")).text == "x" * 1000, (
            "compressed by the Pod, unpacked by who asked"
        )
        redirect = await router.get("/redirect")
        assert (redirect.status_code, redirect.headers["location"]) == (302, "/landed")
        for number in range(1, 4):
            world.delete(f"127.0.0.{number}")
        await eventually(lambda: view.usable, lambda usable: not usable)
        refused = await router.get("/")
        assert (refused.status_code, refused.json()["detail"][:8]) == (503, "shop/web")
        assert view.staleness() < 60


async def test_grpc(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Two servers; the one that goes is not asked any more, and its channel is closed."""

    async def check(_request: bytes, _context: object) -> bytes:
        return SERVING

    made, servers = World(), []
    for address in ("127.0.0.1", "127.0.0.2"):
        handlers = {"Check": grpc.unary_unary_rpc_method_handler(check)}
        server = grpc.aio.server()
        server.add_generic_rpc_handlers(
            [grpc.method_handlers_generic_handler("grpc.health.v1.Health", handlers)]
        )
        made.put(address, server.add_insecure_port(f"{address}:0"))
        await server.start()
        servers.append(server)
    example = made.example("grpc_balancer", monkeypatch)
    monkeypatch.setattr(example.Channels, "GRACE_S", 0.1)
    await example.main("web", "shop", "http")
    assert capsys.readouterr().out == f"{SERVING!r}\n"
    async with example.EndpointView(Reading(made.api), "web", "shop") as view:
        await view.wait_ready(60, count=2)
        channels = example.Channels(view)
        closing = asyncio.create_task(channels.run())

        async def ask() -> None:
            found = await channels.call(
                lambda channel: channel.unary_unary("/grpc.health.v1.Health/Check")(b"", timeout=60)
            )
            assert found == SERVING

        for _ in range(20):
            await ask()
        assert len(channels._channels) == 2
        made.delete("127.0.0.1")
        await eventually(lambda: len(channels._channels), lambda count: count != 2)
        await servers[0].stop(None)
        await ask()
    await closing
    await servers[1].stop(None)
