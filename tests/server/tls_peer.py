"""Both ends of a TLS connection for tests: a protocol that notes what it is told, and a peer that
does nothing unasked.

The peer's TLS is in memory, so that a test decides when it reads, what it leaves unread, and how it
goes.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
import struct
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path

from sliceplane.kit.io.tls.acceptor import TlsAcceptor
from sliceplane.kit.io.tls.newcomers import BYTES_MAX, ConnectionTiming, Newcomers
from sliceplane.kit.io.tls.transport import TlsTransport
from sliceplane.server.io.connections.tls import server_context
from sliceplane.server.io.keys.pki import ensure

APPLICATION_DATA = 23


class Noting(asyncio.Protocol):
    """What the transport told, in order of arrival."""

    def __init__(self) -> None:
        self.transport: TlsTransport
        self.received = bytearray()
        self.pressure: list[str] = []
        self.ended = False
        self.lost: asyncio.Future[Exception | None] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, TlsTransport)
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        assert not self.lost.done(), "nothing comes after the end"
        self.received += data

    def eof_received(self) -> None:
        self.ended = True

    def pause_writing(self) -> None:
        self.pressure.append("pause")

    def resume_writing(self) -> None:
        self.pressure.append("resume")

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost.set_result(exc)


@dataclass
class Contexts:
    """Of a server with a certificate authority of its own, and of its clients."""

    folder: Path
    server: ssl.SSLContext = field(init=False)
    client: ssl.SSLContext = field(init=False)

    def __post_init__(self) -> None:
        pki, _ = ensure(self.folder, ("localhost",), time.time())
        self.server = server_context(pki)
        self.client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        self.client.check_hostname, self.client.verify_mode = False, ssl.CERT_NONE
        self.client.load_cert_chain(pki.admin_file, pki.admin_key_file)


class Peer:
    """One client.  ``shake_hands`` first."""

    def __init__(self, sock: socket.socket, context: ssl.SSLContext) -> None:
        self._sock = sock
        self._in, self._out = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._in, self._out)
        #: everything that came, as it came
        self.raw = bytearray()

    async def shake_hands(self) -> None:
        while True:
            try:
                self._tls.do_handshake()
            except ssl.SSLWantReadError:
                await self._send_out()
                await self._take_in()
            else:
                await self._send_out()
                return

    @property
    def session(self) -> ssl.SSLSession | None:
        return self._tls.session

    async def send_raw(self, data: bytes) -> None:
        await asyncio.get_running_loop().sock_sendall(self._sock, data)

    async def send(self, data: bytes) -> None:
        self._tls.write(data)
        await self._send_out()

    async def receive(self, size: int = 1 << 16) -> bytes:
        """Something, or b"" when the other end has said farewell; raises ``ssl.SSLEOFError`` if it
        just went.
        """
        while True:
            try:
                return self._tls.read(size)
            except ssl.SSLWantReadError:
                await self._take_in()
            except ssl.SSLZeroReturnError:
                return b""

    async def receive_exactly(self, size: int) -> bytes:
        found = bytearray()
        while len(found) < size:
            data = await self.receive(size - len(found))
            assert data, f"the end came after {len(found)} of {size} bytes"
            found += data
        return bytes(found)

    async def say_farewell(self) -> None:
        with contextlib.suppress(ssl.SSLWantReadError):
            self._tls.unwrap()
        await self._send_out()

    async def closed(self) -> bool:
        """The other end has closed the socket itself; what it still sent is in ``raw``."""
        with contextlib.suppress(ConnectionResetError):
            while data := await asyncio.get_running_loop().sock_recv(self._sock, 1 << 16):
                self.raw += data
        return True

    def send_no_more(self) -> None:
        """Without a farewell, as one whose process ended; reading goes on."""
        self._sock.shutdown(socket.SHUT_WR)

    def close(self, *, reset: bool = False) -> None:
        if reset:
            self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._sock.close()

    def records(self, kind: int = APPLICATION_DATA) -> int:
        """How many records of *kind* have come."""
        count = at = 0
        while at + 5 <= len(self.raw):
            count += self.raw[at] == kind
            at += 5 + int.from_bytes(self.raw[at + 3 : at + 5], "big")
        return count

    async def _send_out(self) -> None:
        if self._out.pending:
            await asyncio.get_running_loop().sock_sendall(self._sock, self._out.read())

    async def _take_in(self) -> None:
        data = await asyncio.get_running_loop().sock_recv(self._sock, 1 << 16)
        self.raw += data
        if data:
            self._in.write(data)
        else:
            self._in.write_eof()


@dataclass
class Meeting:
    """A listening server; ``connect`` gives both ends."""

    contexts: Contexts
    acceptor: TlsAcceptor
    address: tuple[str, int]
    protocols: asyncio.Queue[Noting]
    newcomers: Newcomers
    peers: list[Peer] = field(default_factory=list)

    async def dial(self, *, receive_buffer: int = 0, context: ssl.SSLContext | None = None) -> Peer:
        """A connection without a handshake."""
        sock = socket.socket()
        if receive_buffer:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        sock.setblocking(False)
        try:
            await asyncio.get_running_loop().sock_connect(sock, self.address)
        except OSError:
            sock.close()
            raise
        self.peers.append(Peer(sock, context or self.contexts.client))
        return self.peers[-1]

    async def connect(self, *, receive_buffer: int = 0) -> tuple[Peer, Noting]:
        peer = await self.dial(receive_buffer=receive_buffer)
        await peer.shake_hands()
        return peer, await self.protocols.get()


@contextlib.asynccontextmanager
async def meeting(
    contexts: Contexts,
    *,
    room: int = 100,
    listening: socket.socket | None = None,
    newcomer_bytes: int = BYTES_MAX,
    timing: ConnectionTiming = ConnectionTiming(),  # noqa: B008  # it is frozen
) -> AsyncIterator[Meeting]:
    sock = listening if listening is not None else socket.create_server(("127.0.0.1", 0))
    protocols: asyncio.Queue[Noting] = asyncio.Queue()
    made: list[Noting] = []

    def make() -> Noting:
        made.append(Noting())
        protocols.put_nowait(made[-1])
        return made[-1]

    newcomers = Newcomers(newcomer_bytes)
    acceptor = TlsAcceptor(
        sock, contexts.server, make, room=lambda: room, newcomers=newcomers, timing=timing
    )
    address = sock.getsockname()
    acceptor.start()
    found = Meeting(contexts, acceptor, address, protocols, newcomers)
    try:
        yield found
    finally:
        acceptor.close()
        acceptor.abort_handshakes()
        for protocol in made:
            protocol.transport.abort()
        for peer in found.peers:
            peer.close()
        await asyncio.gather(*(protocol.lost for protocol in made))
