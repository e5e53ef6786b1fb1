"""The end of a server: clients leave by themselves, what has begun is finished, and everybody is
told in time.
"""

from __future__ import annotations

import asyncio
import json
import signal
import ssl
import time
import urllib.error
import urllib.request
from pathlib import Path

from tests.e2e.running import running_plane
from tests.waiting import turns, until

from sliceplane.server.io.config import Periods, PlaneConfig
from sliceplane.server.io.plane import ServerPlane

WATCH = b"GET /api/v1/namespaces?watch=true&allowWatchBookmarks=true HTTP/1.1\r\nHost: x\r\n\r\n"


class Client:
    """One connection of the administrator."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer

    def send(self, request: bytes) -> None:
        self._writer.write(request)

    async def head(self) -> str:
        """With its status line, in lower case."""
        return (await self._reader.readuntil(b"\r\n\r\n")).decode().lower()

    async def ask(self, method: str, path: str, body: bytes = b"") -> tuple[int, str, bytes]:
        """Code, head and body."""
        self.send(
            f"{method} {path} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n".encode()
            + body
        )
        return await self.answer()

    async def answer(self) -> tuple[int, str, bytes]:
        head = await self.head()
        size = int(head.partition("content-length: ")[2].partition("\r")[0])
        return int(head.split()[1]), head, await self._reader.readexactly(size)

    async def rest(self) -> bytes:
        async with asyncio.timeout(60):
            return await self._reader.read()

    def close(self) -> None:
        self._writer.transport.abort()


def served(periods: Periods | None = None, **options: float) -> ServerPlane:
    config = PlaneConfig(data_dir="memory:", secure_port=0, **options)  # type: ignore[arg-type]
    return ServerPlane(config, periods=periods)


async def connect(plane: ServerPlane) -> Client:
    context = ssl.create_default_context(cafile=str(plane.pki.ca_file))
    folder = plane.pki.ca_file.parent
    context.load_cert_chain(folder / "admin.crt", folder / "admin.key")
    port = int(plane.url.rpartition(":")[2])
    return Client(*await asyncio.open_connection("127.0.0.1", port, ssl=context))


async def test_who_drains_serves_everybody_and_says_goodbye() -> None:
    async with served(shutdown_delay_s=0.4) as plane:
        kept, watching = await connect(plane), await connect(plane)
        code, head, _ = await kept.ask("GET", "/readyz")
        assert (code, "connection: close" in head) == (200, False)
        watching.send(WATCH)
        await watching.head()
        began = time.monotonic()
        draining = asyncio.create_task(plane.drain())
        await turns()
        code, head, _ = await kept.ask("GET", "/readyz")
        assert (code, "connection: close" in head) == (500, True)
        assert await kept.rest() == b""
        later = await connect(plane)
        assert (await later.ask("GET", "/livez"))[0] == 200
        writer = await connect(plane)
        body = json.dumps({"metadata": {"name": "late"}}).encode()
        code, head, _ = await writer.ask("POST", "/api/v1/namespaces", body)
        assert (code, "connection: close" in head) == (201, True)
        await draining
        assert time.monotonic() - began >= 0.4
        await plane.stop()
        told = await watching.rest()
        assert b'"name":"late"' in told, "a watch goes on to the end"
        assert b'"BOOKMARK"' in told, "and says where to go on"
        assert told.endswith(b"0\r\n\r\n"), "it ends cleanly"
        for each in (kept, watching, later, writer):
            each.close()


async def test_a_request_that_has_begun_to_arrive_is_answered() -> None:
    async with served() as plane:
        slow, idle = await connect(plane), await connect(plane)
        assert (await slow.ask("GET", "/livez"))[0] == 200
        assert (await idle.ask("GET", "/livez"))[0] == 200
        slow.send(b"GET /version HTTP/1.1\r\nHo")
        assert (await idle.ask("GET", "/livez"))[0] == 200, "what was sent before has arrived, too"
        stopping = asyncio.create_task(plane.stop())
        assert await idle.rest() == b"", "who asks for nothing is closed"
        slow.send(b"st: x\r\n\r\n")
        code, head, _ = await slow.answer()
        assert (code, "connection: close" in head) == (200, True)
        await stopping
        slow.close()
        idle.close()


async def test_a_request_that_never_arrives_does_not_keep_the_server() -> None:
    async with served(Periods(stop_grace_s=0.3)) as plane:
        slow, other = await connect(plane), await connect(plane)
        slow.send(b"GET /version HTTP/1.1\r\nHo")
        assert (await other.ask("GET", "/livez"))[0] == 200, "what was sent before has arrived, too"
        began = time.monotonic()
        await plane.stop()
        assert time.monotonic() - began >= 0.3
        assert await slow.rest() == b""
        slow.close()
        other.close()


def readiness(url: str) -> int:
    try:
        with urllib.request.urlopen(
            f"{url}/readyz", context=ssl._create_unverified_context(), timeout=60
        ) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        with error:
            return error.code


def test_a_second_signal_ends_the_wait(tmp_path: Path) -> None:
    with running_plane(tmp_path, "--shutdown-delay-duration=60s", command="apiserver") as plane:
        plane.process.send_signal(signal.SIGTERM)
        until(lambda: readiness(plane.url), lambda code: code == 500)
        plane.process.send_signal(signal.SIGTERM)
        assert plane.process.wait(50) == 0, "the delay is a minute"
