"""The connections to one server: its HTTP proxy, current certificates, peers whose death shows."""

from __future__ import annotations

import asyncio
import socket
import ssl
from asyncio.staggered import staggered_race
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit
from weakref import WeakSet

from sliceplane.kit.ip import join_host_port
from sliceplane.watch.io.base import Unreachable
from sliceplane.watch.io.http.answers import request_head
from sliceplane.watch.io.http.wire import ClientConnection

if TYPE_CHECKING:
    from sliceplane.watch.io.connection import Connection


CONNECT_TIMEOUT_S: Final = 10.0
#: before the next address of a server's name is tried beside the one that does not answer (RFC
#: 8305, section 8)
NEXT_ADDRESS_S: Final = 0.25
#: connections kept open although nothing uses them
IDLE_CONNECTION_S: Final = 60.0
#: after so long without a packet the kernel probes the peer's kernel, every
#: ``KEEPALIVE_INTERVAL_S``, and gives up after ``KEEPALIVE_PROBES``: a watch whose peer vanished
#: ends within 30 s, and costs the server's process nothing
KEEPALIVE_IDLE_S: Final = 15
KEEPALIVE_INTERVAL_S: Final = 5
KEEPALIVE_PROBES: Final = 3
#: passes of the event loop that connections get to close when their pool is closed
CLOSING_PASSES_MAX: Final = 10
_PORTS: Final = {"http": 80, "https": 443}


class ConnectionPool:
    """Owned by one client, in one loop."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        #: those that are not let go yet
        self.sockets: WeakSet[socket.socket] = WeakSet()
        #: the one that was used last is at the end
        self._idle: list[ClientConnection] = []
        self._used: set[ClientConnection] = set()
        self._tls_number = 0
        self._closed = False

    async def take(self, *, recheck_files: bool) -> ClientConnection:
        """Returns a connection with the current certificates. *recheck_files*: the server refused
        our credentials, so check the files at once. There is no limit: every watch uses one
        connection, and callers bound their requests.
        """
        self._must_be_open()
        tls = self._connection.tls
        context = self._connection.ssl_context
        if tls is not None:
            if recheck_files:
                tls.check_files()
            number, context = tls.current()
            if number != self._tls_number:
                # A connection has the certificate that it was opened with: no request may use it
                # any more.
                self._tls_number = number
                self._drop_idle(before=None)
        self._drop_idle(before=asyncio.get_running_loop().time() - IDLE_CONNECTION_S)
        while self._idle:
            opened = self._idle.pop()
            if opened.is_usable:
                break
            opened.abort()
        else:
            opened = await self._open(context)
            opened.tls_number = self._tls_number
        self._used.add(opened)
        self._must_be_open()
        return opened

    async def ask(
        self, method: str, message: bytes, *, is_repeatable: bool, recheck_files: bool = False
    ) -> ClientConnection:
        """Returns the connection with the head of the answer. *is_repeatable*: *message* is sent
        again if the server had closed an idle connection. *recheck_files*: as for ``take``.
        """
        while True:
            connection = await self.take(recheck_files=recheck_files)
            try:
                await connection.ask(method, message)
                return connection
            except BaseException as error:
                unheard = connection.idle_since is not None and not connection.answer.began
                self.release(connection)
                if not (isinstance(error, ConnectionError) and unheard and is_repeatable):
                    raise

    def release(self, opened: ClientConnection) -> None:
        """Takes back a connection in any state."""
        self._used.discard(opened)
        if opened.is_usable and opened.tls_number == self._tls_number and not self._closed:
            opened.idle_since = asyncio.get_running_loop().time()
            self._idle.append(opened)
        else:
            opened.abort()

    async def close(self) -> None:
        """Idempotent.  Open watches end as if the connection broke."""
        self._closed = True
        self._drop_idle(before=None)
        for opened in tuple(self._used):
            opened.abort()
        # Aborted connections close in the next pass of the event loop, which may be its last. One
        # whose opening was cancelled before its first callback goes on with its handshake.
        for closing_pass in range(CLOSING_PASSES_MAX):
            await asyncio.sleep(0)
            open_sockets = [opened for opened in self.sockets if opened.fileno() >= 0]
            if not open_sockets:
                return
            if closing_pass == 0:
                for open_socket in open_sockets:
                    with suppress(OSError):
                        open_socket.shutdown(socket.SHUT_RDWR)

    def _must_be_open(self) -> None:
        if self._closed:
            for opened in self._used:
                opened.abort()
            raise Unreachable("the client is closed")

    def _drop_idle(self, *, before: float | None) -> None:
        """Closes the idle connections that were last used *before* that time, or all."""
        while self._idle and (before is None or (self._idle[0].idle_since or 0.0) < before):
            self._idle.pop(0).abort()

    # Opening.  Raises ``OSError``, ``TimeoutError`` and ``BadStream``.

    async def _open(self, context: ssl.SSLContext | None) -> ClientConnection:
        if path := self._connection.socket_path:
            loop = asyncio.get_running_loop()
            return (await loop.create_unix_connection(ClientConnection, path))[1]
        server = urlsplit(self._connection.server)
        host = server.hostname or ""
        port = server.port or _PORTS[server.scheme]
        name = self._connection.server_hostname or host.removesuffix(".")
        if not self._connection.proxy:
            return await self._connect(host, port, context, name)
        proxy = urlsplit(self._connection.proxy)
        at = proxy.hostname or ""
        outer = ssl.create_default_context() if proxy.scheme == "https" else None
        opened = await self._connect(at, proxy.port or _PORTS[proxy.scheme], outer, at)
        if context is not None:
            try:
                await self._through(opened, join_host_port(host, port))
                await opened.start_tls(context, name)
            except BaseException:
                opened.abort()
                raise
        return opened

    async def _through(self, opened: ClientConnection, authority: str) -> None:
        """From here on the proxy passes on what comes."""
        from sliceplane.watch.io.http import proxies  # few clients have a proxy

        headers = [("Host", authority), *proxies.authorization(self._connection.proxy)]
        answer = await opened.ask("CONNECT", request_head("CONNECT", authority, headers))
        if answer.status >= 300:
            raise ConnectionError(f"the proxy answered {answer.status}")

    async def _connect(
        self, host: str, port: int, context: ssl.SSLContext | None, name: str
    ) -> ClientConnection:
        loop = asyncio.get_running_loop()
        async with asyncio.timeout(CONNECT_TIMEOUT_S):
            addresses = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
            ways = [partial(self._connect_to, address) for address in addresses]
            if len(ways) == 1:
                plain = await ways[0]()
            else:
                winner, _, errors = await staggered_race(ways, NEXT_ADDRESS_S)
                if winner is None:
                    raise next(error for error in errors if error is not None)
                plain = winner
        server_hostname = None if context is None else name
        _, opened = await loop.create_connection(
            ClientConnection, sock=plain, ssl=context, server_hostname=server_hostname
        )
        return opened

    async def _connect_to(self, address: tuple[Any, ...]) -> socket.socket:
        opened = watchful_socket(address)
        self.sockets.add(opened)
        try:
            opened.setblocking(False)
            await asyncio.get_running_loop().sock_connect(opened, address[4])
        except BaseException:
            opened.close()
            raise
        return opened


def watchful_socket(address: tuple[Any, ...]) -> socket.socket:
    """A socket for one entry of ``getaddrinfo``'s answer, whose peer's death is noticed."""
    family, kind, protocol, *_ = address
    opened = socket.socket(family=family, type=kind, proto=protocol)
    opened.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (
        ("TCP_KEEPIDLE", KEEPALIVE_IDLE_S),
        ("TCP_KEEPINTVL", KEEPALIVE_INTERVAL_S),
        ("TCP_KEEPCNT", KEEPALIVE_PROBES),
        # The same bound for what was sent and never acknowledged.
        ("TCP_USER_TIMEOUT", (KEEPALIVE_IDLE_S + KEEPALIVE_INTERVAL_S * KEEPALIVE_PROBES) * 1000),
    ):
        if hasattr(socket, name):  # not on every system
            opened.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
    return opened
