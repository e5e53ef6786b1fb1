"""Connections: used again, given up when the server closed them, and through proxies."""

from __future__ import annotations

import asyncio
import base64
import gzip
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from msgspec.structs import replace
from tests.server.serving import Server
from tests.waiting import eventually
from tests.watch.transport.test_http_faults import chunk, reply, serving, stream_head

from sliceplane.api.requests import Selection
from sliceplane.api.scheme import ConfigMaps, Namespaces
from sliceplane.watch.io import kubeconfig
from sliceplane.watch.io.base import Unreachable
from sliceplane.watch.io.connection import Connection, Fixed
from sliceplane.watch.io.http import pool
from sliceplane.watch.io.http.client import HttpClient

KEPT = reply(200, b"{}").replace(b"Connection: close\r\n", b"")


class KeepingServer:
    """Answers ``{}`` to every request of a connection, up to *requests_max*; then it hangs up."""

    def __init__(self, requests_max: int = 1_000_000, *, at_next: bool = False) -> None:
        self.requests_max = requests_max
        #: only when the next request is there, which gets no answer
        self.at_next = at_next
        self.connections = 0
        self.requests: list[bytes] = []

    async def handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            for _ in range(self.requests_max):
                head = await reader.readuntil(b"\r\n\r\n")
                self.requests.append(head)
                length = head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0]
                await reader.readexactly(int(length or 0))
                writer.write(KEPT)
            if self.at_next:
                await reader.readuntil(b"\r\n\r\n")
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.transport.abort()


@asynccontextmanager
async def client_of(server: KeepingServer) -> AsyncIterator[HttpClient]:
    listener = await asyncio.start_server(server.handle, "127.0.0.1", 0)
    port = listener.sockets[0].getsockname()[1]
    async with HttpClient(
        Connection(server=f"http://127.0.0.1:{port}", ssl_context=None, credentials=Fixed())
    ) as client:
        yield client
    listener.close()


async def test_requests_share_a_connection_unless_they_overlap() -> None:
    server = KeepingServer()
    async with client_of(server) as client:
        for _ in range(3):
            await client.get(ConfigMaps, "ns", "a")
            await client.create(ConfigMaps, "ns", b"{}")
        assert server.connections == 1
        await asyncio.gather(*(client.get(ConfigMaps, "ns", "a") for _ in range(3)))
        assert server.connections == 3
        assert len(server.requests) == 9


@pytest.mark.parametrize("at_next", [False, True])
async def test_a_connection_that_was_closed_while_idle_costs_no_read(at_next: bool) -> None:
    server = KeepingServer(1, at_next=at_next)
    async with client_of(server) as client:
        for _ in range(3):
            assert await client.get(ConfigMaps, "ns", "a") == b"{}"
        if at_next:
            with pytest.raises(Unreachable):  # it may have happened
                await client.create(ConfigMaps, "ns", b"{}")
    assert len(server.requests) == 3


@pytest.mark.parametrize("at_next", [False, True])
async def test_a_patch_that_says_what_shall_be_is_sent_again(at_next: bool) -> None:
    server = KeepingServer(1, at_next=at_next)
    async with client_of(server) as client:
        for _ in range(3):
            assert await client.patch(ConfigMaps, "ns", "a", b"{}", patch_type="merge") == b"{}"
        if at_next:
            with pytest.raises(Unreachable):  # one step more for each time
                await client.patch(ConfigMaps, "ns", "a", b"[]", patch_type="json")
    assert len(server.requests) == 3


async def test_connections_that_nothing_uses_are_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    server = KeepingServer()
    async with client_of(server) as client:
        await client.get(ConfigMaps, "ns", "a")
        monkeypatch.setattr(pool, "IDLE_CONNECTION_S", -1.0)
        await client.get(ConfigMaps, "ns", "a")
        assert server.connections == 2


async def test_a_compressed_list_is_read() -> None:
    listed = b'{"metadata":{"resourceVersion":"7"},"items":[{"a":1}]}'

    async def answer(head: bytes, writer: asyncio.StreamWriter) -> None:
        assert b"Accept-Encoding: gzip\r\n" in head
        writer.write(reply(200, gzip.compress(listed), "Content-Encoding: gzip"))

    async with serving(answer) as client:
        page = await client.list(Selection(ConfigMaps))
    assert (page.items, page.resource_version) == ((b'{"a":1}',), "7")


async def test_a_reader_that_is_slow_lets_the_rest_wait_in_the_socket(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """However much a server sends, what waits for the reader is bounded."""
    event = b'{"type":"ADDED","object":{"a":"' + b"x" * 1000 + b'"}}\n'
    sent = 0
    done = asyncio.Event()

    async def answer(head: bytes, writer: asyncio.StreamWriter) -> None:
        nonlocal sent
        writer.write(stream_head())
        for _ in range(20_000):
            writer.write(chunk(event))
            await writer.drain()
            sent += 1
        writer.write(b"0\r\n\r\n")
        done.set()

    async with (
        serving(answer) as client,
        client.watch(Selection(ConfigMaps), resource_version="1") as stream,
    ):
        opened = next(iter(client._pool._used))
        await eventually(lambda: opened._is_paused, lambda paused: paused)
        assert opened._unread < 2 * 1024 * 1024
        assert not done.is_set()
        assert len([message async for message in stream]) == 20_000
    assert sent == 20_000


async def test_a_request_over_tls_goes_through_a_proxy(
    tmp_path: Path, plane_server: Server
) -> None:
    """The proxy sees where it goes, and who may use it; nothing of what is in it."""
    heads: list[bytes] = []
    passing: set[asyncio.Task[None]] = set()

    async def pass_on(source: asyncio.StreamReader, to: asyncio.StreamWriter) -> None:
        while data := await source.read(65536):
            to.write(data)
        to.close()

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heads.append(await reader.readuntil(b"\r\n\r\n"))
        host, _, port = heads[-1].split()[1].decode().rpartition(":")
        if b"Proxy-Authorization" not in heads[-1]:
            writer.write(reply(407))
            writer.close()
            return
        there, back = await asyncio.open_connection(host, int(port))
        writer.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
        passing.update(
            asyncio.create_task(pass_on(*ways)) for ways in ((reader, back), (there, writer))
        )

    listener = await asyncio.start_server(handle, "127.0.0.1", 0)
    at = f"127.0.0.1:{listener.sockets[0].getsockname()[1]}"
    connection = kubeconfig.load(plane_server.plane.kubeconfig)
    async with HttpClient(replace(connection, proxy=f"http://me:p%20w@{at}")) as client:
        assert b"kube-system" in await client.get(Namespaces, "", "kube-system")
    line, *headers = heads[0].decode().split("\r\n")
    assert line == f"CONNECT {plane_server.host}:{plane_server.port} HTTP/1.1"
    assert f"Proxy-Authorization: Basic {base64.b64encode(b'me:p w').decode()}" in headers
    async with HttpClient(replace(connection, proxy=f"http://{at}")) as client:
        with pytest.raises(Unreachable, match="the proxy answered 407"):
            await client.get(Namespaces, "", "kube-system")
    listener.close()
    await asyncio.gather(*passing, return_exceptions=True)
