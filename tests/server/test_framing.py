"""The end of a request is certain, at the server and at each small port: else it gets 400, and its
connection ends.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import pytest
from aiohttp import web
from tests.fuzz.framings import BODIES, RIGHT, WRONG, codes
from tests.server.serving import Server

from sliceplane.diagnose.page.io.server import PageServer
from sliceplane.kit.io.door import Door, GuardedPort
from sliceplane.kit.io.pages import Page, serve_pages


async def failures(port: int, context: ssl.SSLContext | None = None) -> dict[str, list[int]]:
    wrong = {name: await codes(port, sent, context) for name, sent in WRONG.items()}
    right = {name: await codes(port, sent, context) for name, sent in RIGHT.items()}
    bad = {
        name: answers
        for name, answers in wrong.items()
        if [code for code in answers if code != 400] or not answers
    }
    return bad | {name: answers for name, answers in right.items() if answers[0] in (400, -1)}


async def test_the_server_refuses_what_is_ambiguous(server: Server) -> None:
    assert await failures(server.port, server.context(certificate=False)) == {}


async def test_a_wrong_request_behind_one_that_is_being_answered_ends_the_connection(
    server: Server,
) -> None:
    """A 400 in the middle of the answer of a watch would be a part of that answer."""
    context = server.context()
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port, ssl=context)
    writer.write(b"GET /api/v1/namespaces?watch=1 HTTP/1.1\r\nHost: x\r\n\r\n")
    assert (await reader.read(15)) == b"HTTP/1.1 200 OK"
    writer.write(WRONG["two encodings, identity first"])
    received = bytearray()
    with contextlib.suppress(ConnectionError):
        async with asyncio.timeout(120):
            while data := await reader.read(65536):
                received += data
    assert b" 400 " not in received
    writer.transport.abort()


@asynccontextmanager
async def small_port(kind: str) -> AsyncIterator[int]:
    if kind == "pages":
        async with serve_pages({"/livez": lambda: Page(b"ok")}, "127.0.0.1", 0, Door()) as port:
            yield port
    elif kind == "guarded":

        async def answer(request: web.BaseRequest) -> web.Response:
            await request.read()
            return web.Response(text="ok")

        served = GuardedPort(answer, Door())
        yield await served.listen_at("127.0.0.1", 0)
        await served.close()
    else:
        shown: Any = None
        page = web.Server(PageServer(shown).answer)
        listening = await asyncio.get_running_loop().create_server(page, "127.0.0.1", 0)
        try:
            yield listening.sockets[0].getsockname()[1]
        finally:
            listening.close()
            await page.shutdown(0.1)


@contextmanager
def nothing_logged(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    caplog.clear()
    yield
    assert [record.getMessage() for record in caplog.records] == []


@pytest.mark.parametrize("kind", ["pages", "guarded"])
async def test_small_ports_refuse_what_is_ambiguous_and_log_nothing_of_it(
    kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Each wrong request was a traceback in the log, which an anonymous client could fill."""
    async with small_port(kind) as port:
        with nothing_logged(caplog):
            assert await failures(port) == {}


async def test_the_page_refuses_what_is_ambiguous() -> None:
    async with small_port("page") as port:
        wrong = {name: await codes(port, sent) for name, sent in WRONG.items()}
    # It answers the head of a request whose body is wrong, and reads no further: the rest may reset
    # the connection before the answer is read.
    answers = {
        name: [400] if codes in ([421], [-1]) and name in BODIES else codes
        for name, codes in wrong.items()
    }
    assert {name: codes for name, codes in answers.items() if codes != [400]} == {}
