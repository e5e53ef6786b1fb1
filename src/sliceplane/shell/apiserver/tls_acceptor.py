"""Accepts TLS connections on a listening socket, and counts those that have not shaken hands yet."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Callable
from typing import Final

from sliceplane.shell.apiserver.tls_transport import ProtocolFactory, TlsTransport

_ACCEPTS_PER_TURN: Final = 64
#: without descriptors nothing can be accepted, and the loop would call again and again
_REST_SECONDS: Final = 1.0
#: of every connection: they inherit them from the socket that listens.  A peer that vanished is noticed after 4 minutes
#: even if nothing is ever sent to it (Kubernetes' servers ask every 3 minutes)
_OPTIONS: Final = (
    (socket.IPPROTO_TCP, socket.TCP_NODELAY, 1),
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 180),
    (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 20),
    (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3),
)


class TlsAcceptor:
    """Accepts on a listening socket.  Used from one task: ``start`` once, ``close`` once, then ``abort_handshakes``."""

    def __init__(
        self, sock: socket.socket, context: ssl.SSLContext, make_protocol: ProtocolFactory, *, room: Callable[[], int]
    ) -> None:
        """*room*: how many connections more there may be, handshakes not counted; others are closed at once."""
        self._sock = sock
        self._context = context
        self._make_protocol = make_protocol
        self._room = room
        self._shaking: set[TlsTransport] = set()
        self._rest: asyncio.TimerHandle | None = None
        self._closed = False

    def start(self) -> None:
        self._sock.setblocking(False)
        for level, option, value in _OPTIONS:
            self._sock.setsockopt(level, option, value)
        self._resume()

    def _resume(self) -> None:
        asyncio.get_running_loop().add_reader(self._sock.fileno(), self._accept)

    def close(self) -> None:
        """Nobody new; handshakes under way go on.  Idempotent."""
        if not self._closed:
            self._closed = True
            if self._rest is not None:
                self._rest.cancel()
            asyncio.get_running_loop().remove_reader(self._sock.fileno())
            self._sock.close()

    def abort_handshakes(self) -> None:
        for transport in tuple(self._shaking):
            transport.abort()

    def _accept(self) -> None:
        for _ in range(_ACCEPTS_PER_TURN):
            try:
                plain, _ = self._sock.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError:
                loop = asyncio.get_running_loop()
                loop.remove_reader(self._sock.fileno())
                self._rest = loop.call_later(_REST_SECONDS, self._resume)
                return
            self._take(plain)

    def _take(self, plain: socket.socket) -> None:
        if self._room() <= len(self._shaking):
            plain.close()
            return
        try:
            plain.getpeername()
            plain.setblocking(False)
            sock = self._context.wrap_socket(plain, server_side=True, do_handshake_on_connect=False)
        except OSError:
            plain.close()  # it was reset before it was looked at
            return
        transport = TlsTransport(sock, self._make_protocol, self._shaking.discard)
        self._shaking.add(transport)
        transport.shake_hands()
