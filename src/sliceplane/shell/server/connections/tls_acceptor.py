"""Accepts TLS connections on a listening socket, as far as there is room for them.

Room is what the configuration says, and what the process's descriptors allow: the highest ones are never given to
clients, so that storage, logs and whatever else the process does can open files when clients hold all the rest.  The
system gives the lowest number that is free, so the number of an accepted connection tells how many are in use.

Where there is no room, the oldest connection of an unknown client makes some (see ``newcomers``); if all are known, the
new one is refused: closed at once, counted, and told of once a minute.  The same where the system itself refuses to
accept; then accepting rests a little too, or the loop would be called for it again and again.
"""

from __future__ import annotations

import asyncio
import os
import resource
import socket
import ssl
from collections.abc import Callable
from typing import Final

from sliceplane.shell.process.log import get_logger
from sliceplane.shell.server.connections.newcomers import Newcomers
from sliceplane.shell.server.connections.timing import Timing
from sliceplane.shell.server.connections.tls_transport import GREETING_HEAD_BYTES, ProtocolFactory, TlsTransport

#: kept for everything that is no connection of a client; of a small limit it is a quarter
RESERVED_DESCRIPTORS: Final = 128
_ACCEPTS_PER_TURN: Final = 64
#: between two lines about connections that were refused
TELL_S: Final = 60.0
#: of every connection: they inherit them from the socket that listens.  A peer that vanished is noticed after 4 minutes
#: even if nothing is ever sent to it (Kubernetes' servers ask every 3 minutes)
_OPTIONS: Final = (
    (socket.IPPROTO_TCP, socket.TCP_NODELAY, 1),
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    (socket.SOL_SOCKET, socket.SO_RCVLOWAT, GREETING_HEAD_BYTES),
    (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 180),
    (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 20),
    (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3),
)

_log = get_logger("apiserver")


class TlsAcceptor:
    """Accepts on a listening socket.  Used from one task: ``start`` once, ``close`` once, then ``abort_handshakes``."""

    def __init__(
        self,
        sock: socket.socket,
        context: ssl.SSLContext,
        make_protocol: ProtocolFactory,
        *,
        room: Callable[[], int],
        newcomers: Newcomers,
        timing: Timing = Timing(),  # noqa: B008  # it is frozen
    ) -> None:
        """*room*: how many connections more there may be, handshakes not counted."""
        self._sock = sock
        #: of the connections that come from now on
        self.context = context
        self._make_protocol = make_protocol
        self._room = room
        self._newcomers = newcomers
        self._timing = timing
        self._shaking: set[TlsTransport] = set()
        self._rest: asyncio.TimerHandle | None = None
        self._closed = False
        #: closed at once for want of room, and failures of accept(2), since the process began
        self.refused = 0
        self.failures = 0
        #: not told of yet; the next line may come then
        self._untold = 0
        self._tell_at = float("-inf")

    def start(self) -> None:
        self._sock.setblocking(False)
        for level, option, value in _OPTIONS:
            self._sock.setsockopt(level, option, value)
        self._resume()

    def _resume(self) -> None:
        asyncio.get_running_loop().add_reader(self._sock.fileno(), self._accept)

    def close(self) -> None:
        """No new connection; handshakes under way go on.  Idempotent."""
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
            except OSError as error:
                self._on_failure(error)
                return
            self._take(plain)

    def _on_failure(self, error: OSError) -> None:
        """No descriptor or no memory is left, the reserve included."""
        self.failures += 1
        loop = asyncio.get_running_loop()
        loop.remove_reader(self._sock.fileno())
        self._rest = loop.call_later(self._timing.rest_s, self._resume)
        for _ in range(_ACCEPTS_PER_TURN):
            if not self._newcomers.drop_oldest():
                break
        self._tell((error.strerror or str(error)).lower())

    def _take(self, plain: socket.socket) -> None:
        why = self._full(plain)
        if why and not self._newcomers.drop_oldest():
            plain.close()
            self.refused += 1
            self._tell(why)
            return
        plain.setblocking(False)
        transport = TlsTransport(
            plain, self.context, self._make_protocol, self._shaking.discard, self._newcomers, timing=self._timing
        )
        self._shaking.add(transport)
        transport.start()

    def _full(self, plain: socket.socket) -> str:
        """Why there is no room for *plain*; "" if there is."""
        if self._room() <= len(self._shaking):
            return "there are as many as the server takes"
        limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        if limit != resource.RLIM_INFINITY and plain.fileno() >= limit - min(RESERVED_DESCRIPTORS, limit // 4):
            return "the rest of the file descriptors is kept for storage and logs"
        return ""

    def _tell(self, why: str) -> None:
        """Once in a while, with what to do."""
        self._untold += 1
        now = asyncio.get_running_loop().time()
        if now < self._tell_at:
            return
        limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        _log.error(
            "connections are refused",
            why=why,
            refused=self._untold,
            descriptors=f"{_open_descriptors()} of {limit}",
            advice="raise the limit of open files (ulimit -n; LimitNOFILE= of a systemd unit), or see who connects: "
            f"ss -tnp state established '( sport = :{self._sock.getsockname()[1]} )'",
        )
        self._untold = 0
        self._tell_at = now + TELL_S


def _open_descriptors() -> int | str:
    try:
        return len(os.listdir("/proc/self/fd"))
    except OSError:
        return "nearly all"  # to look takes one
