"""The listening socket of the API server: connections inside our own life cycle, on TLS of our own.

uvicorn's ``Server`` is left out on purpose: it installs signal handlers, polls every 100 ms and, on
shutdown, waits for watches that never end. What is used is its protocol class (see ``connection``).

Stopping has an order: stop accepting, let the caller end the watches, ask every connection to close
after its current response, and after ``grace_s`` abort the rest. Before that there may be a
``drain``: every answer then says ``Connection: close``, so that clients leave by themselves and
none is cut off between two requests.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import socket
import ssl
from collections.abc import Awaitable, Callable, MutableMapping
from functools import partial
from ipaddress import ip_address
from typing import Any

from uvicorn.config import Config
from uvicorn.server import ServerState

from sliceplane.kit.io.identity import in_use
from sliceplane.kit.io.start_error import StartError
from sliceplane.kit.io.tls.acceptor import TlsAcceptor
from sliceplane.kit.io.tls.unauthenticated import (
    BYTES_MAX,
    ConnectionTiming,
    UnauthenticatedConnections,
)
from sliceplane.kit.ip import join_host_port
from sliceplane.kit.metrics import Metrics
from sliceplane.kit.shares import Shares
from sliceplane.server.io.connections.connection import HttpConnection
from sliceplane.server.io.connections.local import LocalAcceptor, LocalConnection

App = Callable[
    [MutableMapping[str, Any], Callable[[], Awaitable[Any]], Callable[[Any], Awaitable[None]]],
    Awaitable[None],
]

BACKLOG = 4096
#: at a stop: how long responses may take to leave, and then peers to say farewell
FLUSH_S_MAX = 2.0
FAREWELL_S_MAX = 0.25
_CHECK_INTERVAL_S = 0.01
_CLOSE = (b"connection", b"close")


def bind(address: str, port: int, *, shared: bool = False) -> socket.socket:
    """A listening socket. Raises ``StartError`` naming address and port. *shared*: the kernel
    spreads connections over the sockets of this port, all of which are *shared*.
    """
    family = socket.AF_INET6 if ip_address(address).version == 6 else socket.AF_INET
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, shared)
        sock.bind((address, port))
        # Linux lets two sockets bind one port with SO_REUSEADDR; only listen() finds out.
        sock.listen(BACKLOG)
    except OSError as error:
        sock.close()
        reason = in_use((error.strerror or str(error)).lower(), address, port)
        remedy = "; --secure-port 0 takes a free port" if error.errno == errno.EADDRINUSE else ""
        raise StartError(
            f"cannot listen on {join_host_port(address, port)}: {reason}{remedy}"
        ) from error
    return sock


def bind_shared(address: str, port: int, count: int) -> list[socket.socket]:
    """*count* listening sockets of one port, for as many processes. Raises ``StartError``, also if
    another program of this user shares the port.
    """
    with bind(address, port) as probe:
        port = probe.getsockname()[1]
    return [bind(address, port, shared=True) for _ in range(count)]


class Listener:
    """Serves *app* on a socket.  Used from one task: ``start`` once, ``stop`` once."""

    def __init__(
        self,
        app: App,
        *,
        connections_max: int,
        unauthenticated_bytes_max: int = BYTES_MAX,
        timing: ConnectionTiming = ConnectionTiming(),  # noqa: B008
    ) -> None:  # it is frozen
        self.connections_max = connections_max
        self.timing = timing
        self.state = ServerState()
        self.config = Config(
            app=app,
            http=HttpConnection,
            ws="none",
            lifespan="off",
            interface="asgi3",
            log_config=None,
            access_log=False,
            proxy_headers=False,
            server_header=False,
            date_header=False,
        )
        # What clients do wrong on their connections is counted and answered, not logged line by
        # line.
        logging.getLogger("uvicorn.error").setLevel(logging.CRITICAL)
        self.config.load()
        self.unauthenticated = UnauthenticatedConnections(unauthenticated_bytes_max)
        #: connections by the user who authenticated first
        self.accounts = Shares(connections_max)
        self._acceptor: TlsAcceptor | LocalAcceptor | None = None
        metrics = self.metrics = Metrics()
        metrics.include(self.unauthenticated.metrics.families)
        metrics.computed(
            "gauge", "apiserver_connections", "Open client connections.", lambda: self.connections
        )
        metrics.computed(
            "counter",
            "sliceplane_refused_connections_total",
            "Connections closed at once: too many, or too few file descriptors.",
            lambda: 0 if self._acceptor is None else self._acceptor.refused,
        )
        metrics.computed(
            "counter",
            "sliceplane_accept_failures_total",
            "How often the system refused to accept a connection, as without file descriptors.",
            lambda: 0 if self._acceptor is None else self._acceptor.failures,
        )
        metrics.computed(
            "counter",
            "sliceplane_refused_account_connections_total",
            "Connections closed with 429: their user has as many as it may have.",
            lambda: self.accounts.refused,
        )
        self.refused_heads = metrics.counter(
            "sliceplane_refused_heads_total",
            "Requests refused with 431: too many headers, or too large a head.",
        )

    @property
    def connections(self) -> int:
        return len(self.state.connections)

    def start(self, sock: socket.socket, context: ssl.SSLContext) -> None:
        self._acceptor = TlsAcceptor(
            sock,
            context,
            partial(HttpConnection, self),
            room=lambda: self.connections_max - len(self.state.connections),
            unauthenticated=self.unauthenticated,
            timing=self.timing,
        )
        self._acceptor.start()

    async def start_local(self, sock: socket.socket, on_context: Callable[[], None]) -> None:
        """Serves processes of this server on *sock*, a Unix socket, in the place of ``start``.
        *on_context*: called by ``use``, for TLS is theirs.
        """
        server = await asyncio.get_running_loop().create_unix_server(
            partial(LocalConnection, self), sock=sock
        )
        self._acceptor = LocalAcceptor(server, on_context)

    def use(self, context: ssl.SSLContext, *, distrusting: bool) -> None:
        """Connections that come from now on get *context*.

        *distrusting*: it lacks an authority that the one before had. Who came by certificate must
        shake hands anew: idle connections and watches end at once, others with the answer under
        way.
        """
        if self._acceptor is not None:
            connections = map(_ours, self.state.connections)
            self._acceptor.use(context, distrusting=connections if distrusting else None)

    def drain(self) -> None:
        """Go on, but have clients leave: each connection ends with its next answer.  Idempotent."""
        # One list for all requests, those under way included.
        if not self.state.default_headers:
            self.state.default_headers.append(_CLOSE)

    async def stop(self, *, grace_s: float, end_watches: Callable[[], None]) -> None:
        """Stop accepting, end the streams, let responses finish for *grace_s*, then abort."""
        if self._acceptor is None:
            return
        self._acceptor.close()
        self.drain()
        end_watches()
        for connection in list(self.state.connections):
            connection.shutdown()
        await self._finish(grace_s)
        for connection in list(self.state.connections):
            if not connection.transport.is_closing():
                connection.transport.abort()
        await self._flush()

    async def _finish(self, grace_s: float) -> None:
        """Ends requests that are being answered or arriving within *grace_s*, or cancels them."""
        loop = asyncio.get_running_loop()
        ends = loop.time() + grace_s
        while (remaining_s := ends - loop.time()) > 0 and (
            self.state.tasks or any(map(_arriving, self.state.connections))
        ):
            tasks = set(self.state.tasks)
            if tasks:
                await asyncio.wait(tasks, timeout=remaining_s)
            else:
                await asyncio.sleep(min(remaining_s, _CHECK_INTERVAL_S))
        late = set(self.state.tasks)
        for task in late:
            task.cancel()
        if late:
            await asyncio.wait(late, timeout=1)

    async def _flush(self) -> None:
        """Let what was written go out, give the peers a moment for their TLS farewell, then cut
        them.
        """
        loop = asyncio.get_running_loop()
        flushed_by = loop.time() + FLUSH_S_MAX
        while loop.time() < flushed_by and any(map(_unsent, self.state.connections)):
            await asyncio.sleep(0.01)
        farewell_by = loop.time() + FAREWELL_S_MAX
        while loop.time() < farewell_by and self.state.connections:
            await asyncio.sleep(0.01)
        for connection in list(self.state.connections):
            connection.transport.abort()
        if self._acceptor is not None:
            self._acceptor.abort_handshakes()
        await asyncio.sleep(0)
        self._acceptor = None


def _ours(connection: asyncio.Protocol) -> HttpConnection:
    assert isinstance(connection, HttpConnection), f"{connection!r} is not a connection of ours"
    return connection


def _arriving(connection: asyncio.Protocol) -> bool:
    ours = _ours(connection)
    return ours.arriving and not ours.transport.is_closing()


def _unsent(connection: asyncio.Protocol) -> bool:
    return _ours(connection).transport.get_write_buffer_size() > 0
