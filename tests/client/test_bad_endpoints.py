"""One endpoint of four is bad, and eight clients ask at once: with every picker no request of the
examples fails.

Bad is: nothing listens; connections are reset after the request; the answer never comes. The
guide's table is made of the same run with and without what the client does about it (``python -m
tests.client.test_bad_endpoints``).
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import aiohttp
import httpx
import pytest
import pytest_asyncio
from aiohttp import web
from tests.client.test_examples_run import Reading, World

from sliceplane.client import EndpointView, Picker

#: Time passes only while nothing happens: on a busy machine no endpoint that answers is given up.
pytestmark = pytest.mark.looptime(noop_cycles=2)

REQUESTS = 400
#: one costs httpx five times what it costs aiohttp
HTTPX_REQUESTS = 120
AT_ONCE = 8
#: a client that waits longer for an answer gives up on the endpoint
PATIENCE_S = 1.0
#: Real seconds without any event before the clock of the loop makes a leap: a busy kernel delivers
#: packets late.
SILENCE_S = 0.05
PICKERS = ("random", "round_robin", "least_outstanding", "consistent_hash", "zone_first")
KINDS = ("refuses", "resets", "never answers")


@pytest_asyncio.fixture(autouse=True)
async def no_leap_over_packets_on_their_way() -> None:
    """Waits for packets that the kernel has not delivered yet, before a leap that ends a client's
    patience.
    """
    selector: Any = asyncio.get_running_loop()._selector  # type: ignore[attr-defined]
    leaping, waiting = selector.select, partial(type(selector).select, selector)

    def select(timeout: float | None) -> Any:
        arrived = waiting(SILENCE_S) if timeout is not None and timeout > PATIENCE_S / 10 else ()
        return arrived or leaping(timeout)

    selector.select = select


def _example(name: str) -> ModuleType:
    import importlib.util

    path = Path(__file__).parents[2] / "examples" / f"{name}.py"
    spec = importlib.util.spec_from_file_location(f"bad_{name}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


class Bad:
    """A listener at 127.0.0.9 that does what *kind* says."""

    def __init__(self, kind: str) -> None:
        self._kind = kind
        self.met = 0
        self.port = 0
        self._waiting: set[asyncio.StreamWriter] = set()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.met += 1
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            await reader.readuntil(b"\r\n\r\n")
        if self._kind == "resets":
            sock = writer.get_extra_info("socket")
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            writer.transport.abort()
        else:
            self._waiting.add(writer)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        server = await asyncio.start_server(self._serve, "127.0.0.9", 0)
        self.port = server.sockets[0].getsockname()[1]
        if self._kind == "refuses":
            server.close()
            await server.wait_closed()
        try:
            yield
        finally:
            for writer in self._waiting:
                writer.transport.abort()
            server.close()
            await server.wait_closed()


async def _answer(request: web.BaseRequest) -> web.StreamResponse:
    await asyncio.sleep(0.002)
    return web.Response(text="ok")


@asynccontextmanager
async def service(kind: str) -> AsyncIterator[tuple[World, Bad]]:
    """Three endpoints that answer and one that is bad."""
    made, bad, runner = World(), Bad(kind), web.ServerRunner(web.Server(_answer))
    await runner.setup()
    for number in range(1, 4):
        await web.TCPSite(runner, f"127.0.0.{number}", 0).start()
        made.put(*runner.addresses[-1])
    async with bad.running():
        made.put("127.0.0.9", bad.port)
        yield made, bad
    await runner.cleanup()


async def failures(ask: Callable[[], Awaitable[object]], requests: int = REQUESTS) -> int:
    """Of *requests* requests, AT_ONCE at a time."""
    left, failed = iter(range(requests)), 0

    async def client() -> None:
        nonlocal failed
        for _ in left:
            try:
                await ask()
            except (aiohttp.ClientError, httpx.HTTPError, TimeoutError):
                failed += 1

    await asyncio.gather(*(client() for _ in range(AT_ONCE)))
    return failed


def picker_of(view: EndpointView, name: str) -> Picker:
    made: Picker = getattr(view, name)()
    return made


async def with_aiohttp(kind: str, name: str, *, careless: bool = False) -> tuple[int, int]:
    """How many requests failed, and how many connections the bad endpoint met. *careless*: three
    tries of a lease each, which know nothing of each other.
    """
    example = _example("aiohttp_client")
    async with (
        service(kind) as (world, bad),
        EndpointView(Reading(world.api), "web", "shop") as view,
        aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=PATIENCE_S)) as session,
    ):
        await view.wait_ready(60, count=4)
        picker = picker_of(view, name)

        async def careless_get() -> None:
            for attempt in range(3):
                with picker.lease() as endpoint:
                    try:
                        async with session.get(f"http://{endpoint.authority}/") as response:
                            await response.text()
                            return
                    except (aiohttp.ClientConnectionError, TimeoutError):
                        if attempt == 2:
                            raise

        failed = await failures(
            careless_get if careless else lambda: example.get(session, picker, "/")
        )
        return failed, bad.met


@pytest.mark.parametrize("name", PICKERS)
@pytest.mark.parametrize("kind", KINDS)
async def test_no_request_fails_while_one_endpoint_of_four_does(kind: str, name: str) -> None:
    failed, met = await with_aiohttp(kind, name)
    assert failed == 0
    # Each client may meet it once before it is known, and again when its time is over.
    assert met < REQUESTS / 4, f"{met} of {REQUESTS} requests went to the endpoint that fails"


@pytest.mark.parametrize("kind", KINDS)
async def test_no_request_of_the_httpx_example_fails(kind: str) -> None:
    example = _example("httpx_transport")
    async with service(kind) as (world, _):
        transport = example.ServiceTransport(Reading(world.api))
        async with httpx.AsyncClient(transport=transport, timeout=PATIENCE_S) as session:
            await session.get("http://web.shop/")
            assert await failures(lambda: session.get("http://web.shop/"), HTTPX_REQUESTS) == 0


async def test_when_all_are_bad_the_first_error_is_told() -> None:
    example = _example("aiohttp_client")
    bad = Bad("refuses")
    async with (
        bad.running(),
        aiohttp.ClientSession() as session,
    ):
        world = World()
        world.put("127.0.0.9", bad.port)
        async with EndpointView(Reading(world.api), "web", "shop") as view:
            await view.wait_ready(60)
            with pytest.raises(aiohttp.ClientConnectorError):
                await example.get(session, view.least_outstanding(), "/")


async def _table() -> None:
    print(
        f"| failed of {REQUESTS} | {' | '.join(f'{kind}' for kind in KINDS)} "
        f"|\n|---|{'---|' * len(KINDS)}"
    )
    for name in PICKERS:
        cells = []
        for kind in KINDS:
            without, _ = await with_aiohttp(kind, name, careless=True)
            told, _ = await with_aiohttp(kind, name)
            cells.append(f"{without} -> {told}")
        print(f"| `{name}` | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    asyncio.run(_table())
