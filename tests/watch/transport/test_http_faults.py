"""The HTTP client against servers and networks that misbehave: raw sockets that say what a test
wants.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest
from tests.server.serving import Server

from sliceplane.api.errors import StatusError
from sliceplane.api.requests import Selection
from sliceplane.api.scheme import ConfigMaps
from sliceplane.watch.io import kubeconfig
from sliceplane.watch.io.base import Unreachable
from sliceplane.watch.io.connection import Connection, Credentials, Fixed
from sliceplane.watch.io.http.client import HttpClient
from sliceplane.watch.io.http.replies import error_of

Answer = Callable[[bytes, asyncio.StreamWriter], Awaitable[None]]


@asynccontextmanager
async def serving(
    answer: Answer, credentials: Credentials | None = None
) -> AsyncIterator[HttpClient]:
    """A client of a server that gives each request's head to *answer* and then hangs up."""
    handlers: set[asyncio.Task[None]] = set()

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        handlers.add(task)
        try:
            await answer(await reader.readuntil(b"\r\n\r\n"), writer)
        except (asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
            pass
        finally:
            writer.close()
            handlers.discard(task)

    server = await asyncio.start_server(handle, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    connection = Connection(
        server=f"http://127.0.0.1:{port}",
        ssl_context=None,
        credentials=credentials or Fixed("Bearer t"),
    )
    client = HttpClient(connection)
    try:
        yield client
    finally:
        await client.close()
        server.close()
        for task in tuple(handlers):
            task.cancel()
        await asyncio.gather(*handlers, return_exceptions=True)
        await server.wait_closed()


def reply(code: int, body: bytes = b"", *headers: str) -> bytes:
    lines = [f"HTTP/1.1 {code} X", f"Content-Length: {len(body)}", "Connection: close", *headers]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


def stream_head() -> bytes:
    return b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"


def chunk(data: bytes) -> bytes:
    return f"{len(data):x}\r\n".encode() + data + b"\r\n"


async def test_nobody_listens() -> None:
    async with serving(lambda head, writer: asyncio.sleep(0)) as client:
        pass
    other = HttpClient(Connection(server=client.server, ssl_context=None, credentials=Fixed()))
    with pytest.raises(Unreachable) as refused:
        await other.get(ConfigMaps, "ns", "a")
    assert isinstance(refused.value.__cause__, OSError)
    await other.close()


async def test_a_server_that_hangs_up_is_unreachable() -> None:
    async with serving(lambda head, writer: asyncio.sleep(0)) as client:
        with pytest.raises(Unreachable):
            await client.create(ConfigMaps, "ns", b"{}")


async def test_a_body_that_breaks_off_is_unreachable() -> None:
    async def answer(head: bytes, writer: asyncio.StreamWriter) -> None:
        writer.write(reply(200, b"x" * 100)[:-50])

    async with serving(answer) as client:
        with pytest.raises(Unreachable):
            await client.get(ConfigMaps, "ns", "a")


async def test_requests_say_who_and_what(monkeypatch: pytest.MonkeyPatch) -> None:
    heads: list[bytes] = []

    async def answer(head: bytes, writer: asyncio.StreamWriter) -> None:
        heads.append(head)
        writer.write(reply(200, b'{"metadata":{"resourceVersion":"7"},"items":null}'))

    async with serving(answer) as client:
        page = await client.list(
            Selection(ConfigMaps, "ns", "a in (b,c),!d"), limit=5, continue_token="x=/+"
        )
    assert (page.items, page.resource_version) == ((), "7")
    line, *headers = heads[0].decode().split("\r\n")
    assert line.startswith(
        "GET /api/v1/namespaces/ns/configmaps?labelSelector=a+in+(b,c),!d&limit=5&continue=x%3D/%2B"
    )
    assert "Authorization: Bearer t" in headers
    assert "Accept: application/json" in headers
    assert "User-Agent: sliceplane" in headers


async def test_a_redirect_is_not_followed_with_our_token() -> None:
    async def answer(head: bytes, writer: asyncio.StreamWriter) -> None:
        writer.write(reply(302, b"", "Location: http://127.0.0.1:1/elsewhere"))

    async with serving(answer) as client:
        with pytest.raises(StatusError) as error:
            await client.get(ConfigMaps, "ns", "a")
    assert error.value.code == 302


async def test_overload_keeps_its_retry_after() -> None:
    async def answer(head: bytes, writer: asyncio.StreamWriter) -> None:
        writer.write(reply(429, b"Too many requests, please try again later.\n", "Retry-After: 17"))

    async with serving(answer) as client:
        with pytest.raises(StatusError) as error:
            await client.get(ConfigMaps, "ns", "a")
    assert (error.value.code, error.value.reason, error.value.retry_after_s) == (
        429,
        "TooManyRequests",
        17,
    )
    assert error.value.message == "Too many requests, please try again later."


@pytest.mark.parametrize(
    ("body", "reason", "message"),
    [
        (b'{"kind":"Status","message":"m","reason":"R","code":409}', "R", "m"),
        (b"<html>bad gateway</html>", "Conflict", "<html>bad gateway</html>"),
        (b"", "Conflict", "the server answered 409"),
        (b"[1]", "Conflict", "[1]"),
        (b'{"kind":"Status","code":"x"}', "Conflict", '{"kind":"Status","code":"x"}'),
        (b"\xff", "Conflict", "\ufffd"),
    ],
)
def test_any_error_body_makes_a_status_error(body: bytes, reason: str, message: str) -> None:
    error = error_of(409, body)
    assert (error.code, error.reason, error.message) == (409, reason, message)


class Rotating:
    refreshable = True

    def __init__(self) -> None:
        self.token = 0

    async def authorization(self, *, refused: str | None = None) -> str:
        self.token += refused == f"Bearer t{self.token}"
        return f"Bearer t{self.token}"


async def test_a_401_refreshes_the_credentials_once() -> None:
    seen: list[bool] = []

    async def answer(head: bytes, writer: asyncio.StreamWriter) -> None:
        fresh = b"Bearer t1\r\n" in head
        seen.append(fresh)
        writer.write(reply(200, b"{}") if fresh else reply(401, b"{}"))

    async with serving(answer, Rotating()) as client:
        assert await client.get(ConfigMaps, "ns", "a") == b"{}"
    assert seen == [False, True]

    async def never(head: bytes, writer: asyncio.StreamWriter) -> None:
        seen.append(False)
        writer.write(reply(401, b"{}"))

    seen.clear()
    async with serving(never, Rotating()) as client:
        with pytest.raises(StatusError) as error:
            await client.get(ConfigMaps, "ns", "a")
    assert (error.value.code, len(seen)) == (401, 2)


async def test_a_list_that_is_no_list_is_an_error() -> None:
    async def answer(head: bytes, writer: asyncio.StreamWriter) -> None:
        writer.write(reply(200, b"<html>welcome</html>"))

    async with serving(answer) as client:
        with pytest.raises(StatusError, match="cannot be read"):
            await client.list(Selection(ConfigMaps))


EVENT = b'{"type":"ADDED","object":{"metadata":{"name":"a"}}}\n'


@pytest.mark.parametrize(
    ("sent", "clean"),
    [
        (chunk(EVENT) + b"0\r\n\r\n", True),
        (chunk(EVENT), False),
        (chunk(EVENT) + chunk(EVENT[:10]) + b"0\r\n\r\n", False),
        (chunk(EVENT) + chunk(b"<html>\n"), False),
        (chunk(EVENT[:20]) + chunk(EVENT[20:] + EVENT[:7]) + chunk(EVENT[7:]) + b"0\r\n\r\n", True),
    ],
)
async def test_how_a_watch_ends(sent: bytes, clean: bool) -> None:
    async def answer(head: bytes, writer: asyncio.StreamWriter) -> None:
        writer.write(stream_head() + sent)

    seen = []
    async with serving(answer) as client:

        async def read() -> None:
            async with client.watch(Selection(ConfigMaps), resource_version="1") as stream:
                seen.extend([message.type async for message in stream])

        if clean:
            await read()
        else:
            with pytest.raises(Unreachable):
                await read()
    assert set(seen) <= {"ADDED"}
    assert seen or not clean


async def test_a_refused_watch_is_a_status_error() -> None:
    async def answer(head: bytes, writer: asyncio.StreamWriter) -> None:
        assert b"watch=true" in head
        assert b"allowWatchBookmarks=true" in head
        assert b"timeoutSeconds=300" in head
        writer.write(reply(410, b'{"kind":"Status","reason":"Gone","message":"old","code":410}'))

    async with serving(answer) as client:
        with pytest.raises(StatusError) as error:
            async with client.watch(Selection(ConfigMaps), resource_version="1", timeout_s=300):
                pass
    assert (error.value.code, error.value.reason) == (410, "Gone")


async def test_a_silent_watch_can_be_left_at_once() -> None:
    async def answer(head: bytes, writer: asyncio.StreamWriter) -> None:
        writer.write(stream_head())
        await asyncio.sleep(3600)

    async with serving(answer) as client:

        async def read() -> None:
            async with client.watch(Selection(ConfigMaps), resource_version="1") as stream:
                await anext(stream)

        before = asyncio.get_running_loop().time()
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(read(), 0.05)
        assert asyncio.get_running_loop().time() - before < 60


async def test_a_closed_client_says_so() -> None:
    async with serving(lambda head, writer: asyncio.sleep(0)) as client:
        await client.close()
        with pytest.raises(Unreachable, match="closed"):
            await client.get(ConfigMaps, "ns", "a")


async def test_a_client_closed_while_it_connects_leaves_no_socket(plane_server: Server) -> None:
    """Cancelled in any turn of the loop; in one of them asyncio's transport does not hear of it and
    lives on.
    """
    for turns in range(40):
        client = HttpClient(kubeconfig.load(plane_server.plane.kubeconfig))
        asking = asyncio.create_task(client.list(Selection(ConfigMaps)))
        for _ in range(turns):
            # As many turns as there are: a real pause would join several.
            await asyncio.sleep(0.001 if turns % 2 else 0)
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)
        sockets = tuple(client._pool.sockets)
        await client.close()
        assert [each for each in sockets if each.fileno() >= 0] == [], f"after {turns} turns"
