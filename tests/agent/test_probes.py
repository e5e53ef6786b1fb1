"""One look over HTTP: kubelet's rules, without a library, and a reason that helps when it fails."""

from __future__ import annotations

import asyncio
import socket
import ssl
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest

from sliceplane.agent.io.probes import run_probe
from sliceplane.consume.agents.checks import CheckSpec
from sliceplane.server.io.keys.pki import ensure

ADDRESS = "127.0.0.1"


@asynccontextmanager
async def answering(
    answer: bytes, context: ssl.SSLContext | None = None
) -> AsyncIterator[tuple[int, list[bytes]]]:
    """A server that reads a request's head, and answers so; its port, and the heads."""
    heads: list[bytes] = []
    served = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            heads.append(await reader.readuntil(b"\r\n\r\n"))
            writer.write(answer)
            await writer.drain()
        except (OSError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()
            with suppress(OSError):
                await writer.wait_closed()
            served.set()

    server = await asyncio.start_server(serve, ADDRESS, 0, ssl=context)
    try:
        yield server.sockets[0].getsockname()[1], heads
        if context is None:  # a handshake that fails reaches no handler
            await asyncio.wait_for(served.wait(), 60)
    finally:
        server.close()


def spec(kind: str = "http", target: str = "/healthz", timeout_s: float = 5.0) -> CheckSpec:
    return CheckSpec(kind=kind, target=target, timeout_s=timeout_s)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("status", "passes"),
    [
        ("200 OK", True),
        ("204 No Content", True),
        ("302 Found", True),
        ("399 X", True),
        ("400 Bad Request", False),
        ("404 Not Found", False),
        ("503 Service Unavailable", False),
    ],
)
async def test_a_status_of_200_to_399_passes_and_a_redirect_is_not_followed(
    status: str, passes: bool
) -> None:
    head = f"HTTP/1.1 {status}\r\nLocation: http://192.0.2.1/\r\nContent-Length: 0\r\n\r\n".encode()
    async with answering(head) as (port, heads):
        assert await run_probe(spec(), ADDRESS, port) == (passes, f"status {status[:3]}")
    (asked,) = heads
    assert asked.startswith(f"GET /healthz HTTP/1.1\r\nHost: {ADDRESS}:{port}\r\n".encode())
    assert b"\r\nConnection: close\r\n" in asked


async def test_a_body_without_an_end_is_not_waited_for() -> None:
    async with answering(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello") as (
        port,
        _,
    ):
        assert await run_probe(spec(), ADDRESS, port) == (True, "status 200")


async def test_a_path_with_spaces_and_a_query_is_one_line() -> None:
    async with answering(b"HTTP/1.0 200 OK\r\n\r\n") as (port, heads):
        assert (await run_probe(spec(target="/a b?x=1&y=é"), ADDRESS, port))[0]
    assert heads[0].startswith(b"GET /a%20b?x=1&y=%C3%A9 HTTP/1.1\r\n")


@pytest.mark.parametrize(
    ("answer", "reason"),
    [(b"SSH-2.0-x\r\n\r\n", "no HTTP: "), (b"", "the server hung up")],
    ids=["ssh", "nothing"],
)
async def test_a_peer_that_speaks_something_else_is_told_apart(answer: bytes, reason: str) -> None:
    async with answering(answer) as (port, _):
        passed, text = await run_probe(spec(), ADDRESS, port)
    assert not passed
    assert reason in text


async def test_tls_is_not_verified_and_a_plain_port_is_named_as_such(tmp_path: Path) -> None:
    pki, _ = ensure(tmp_path, ("elsewhere.example",), time.time())
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pki.server_file, pki.server_key_file)
    async with answering(b"HTTP/1.1 200 OK\r\n\r\n", context) as (port, _):
        assert await run_probe(spec("https"), ADDRESS, port) == (True, "status 200")
    async with answering(b"HTTP/1.1 400 Bad Request\r\n\r\n") as (port, _):
        passed, text = await run_probe(spec("https", timeout_s=2.0), ADDRESS, port)
    assert not passed
    assert text.startswith(("no TLS: ", "no answer within 2 s"))
    assert "not permitted" not in text


async def test_a_silent_peer_fails_in_time() -> None:
    with socket.create_server((ADDRESS, 0)) as server:  # the kernel accepts, and no program reads
        port = server.getsockname()[1]
        assert await run_probe(spec(timeout_s=0.2), ADDRESS, port) == (
            False,
            "no answer within 0.2 s",
        )


async def test_a_command_that_prints_without_end_is_shown_in_part_and_leaves_no_pipe_open() -> None:
    before = len(list(Path("/proc/self/fd").iterdir()))  # noqa: ASYNC240  # the kernel's own
    for _ in range(3):
        passed, text = await run_probe(
            CheckSpec(kind="exec", target="yes", timeout_s=0.3), "127.0.0.1", 1
        )
        assert (passed, text) == (False, "no answer within 0.3 s")
    passed, text = await run_probe(
        CheckSpec(kind="exec", target="yes | head -c 3000000"), "127.0.0.1", 1
    )
    assert passed
    assert len(text) < 201
    assert len(list(Path("/proc/self/fd").iterdir())) <= before + 1  # noqa: ASYNC240
