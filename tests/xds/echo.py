"""A listener that sends back what it hears, for tests and benchmarks of the transport."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import time
from collections.abc import AsyncIterator, Awaitable
from pathlib import Path

from sliceplane.api.users import User
from sliceplane.kit.rng import Rng
from sliceplane.server.io.connections.tls import server_context
from sliceplane.server.io.keys.pki import Pki, ensure
from sliceplane.watch.io.certificates import Certificate
from sliceplane.xds.io.authentication import Authenticator, CallRefused, Unsecured
from sliceplane.xds.io.connection import Call
from sliceplane.xds.io.transport import GrpcListener

ANA = User(name="ana", groups=("people",))


class Answering:
    """An authenticator whose answer a test changes."""

    def __init__(self, user: User | CallRefused = ANA) -> None:
        self.answer = user
        self.asked = 0

    def user(
        self, certificate: Certificate | None, authorization: str, peer: str
    ) -> User | Awaitable[User]:
        self.asked += 1
        if isinstance(self.answer, CallRefused):
            raise self.answer
        return self.answer


class Echo:
    """Says each message again; notes what it was told."""

    def __init__(self) -> None:
        self.calls: list[Call] = []
        self.told: list[str] = []

    def opened(self, call: Call) -> None:
        self.calls.append(call)
        self.told.append(f"opened {call.path} by {call.user.name}")

    def message(self, call: Call, data: bytes) -> None:
        if data == b"fail":
            raise RuntimeError("asked for")
        call.send(data)
        if data == b"finish":
            call.finish(5, "there is no 100 % näme")

    def half_closed(self, call: Call) -> None:
        self.told.append("half closed")
        call.finish(0)

    def closed(self, call: Call) -> None:
        self.told.append("closed")


@contextlib.asynccontextmanager
async def plain(
    echo: Echo, authenticator: Authenticator | None = None
) -> AsyncIterator[tuple[GrpcListener, int]]:
    """Listening on loopback without TLS; its port."""
    sock = socket.create_server(("127.0.0.1", 0))
    listener = GrpcListener(echo, Rng(1))
    listener.start_plain(sock, authenticator or Unsecured())
    try:
        yield listener, sock.getsockname()[1]
    finally:
        await listener.stop(0.0)


@contextlib.asynccontextmanager
async def secure(
    echo: Echo, authenticator: Authenticator, folder: Path
) -> AsyncIterator[tuple[GrpcListener, int, Pki]]:
    """The same with TLS and a certificate authority of its own in *folder*."""
    pki, _ = await asyncio.to_thread(ensure, folder, ("localhost",), time.time())
    sock = socket.create_server(("127.0.0.1", 0))
    listener = GrpcListener(echo, Rng(1))
    listener.start(sock, server_context(pki), authenticator)
    try:
        yield listener, sock.getsockname()[1], pki
    finally:
        await listener.stop(0.0)
