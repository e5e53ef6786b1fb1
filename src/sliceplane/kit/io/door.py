"""Protection of the plain HTTP ports of all processes except API servers: health, metrics, health
check node ports.

They are open to the network and anonymous, and a load balancer or a kubelet must get its answer
under any load. So a connection serves one request, and all its resources are bounded:

* the head of the request must arrive within ``HEAD_S_MAX``, and the connection ends within
  ``LIFETIME_S_MAX``; slow peers do not extend these;
* a peer sends at most ``BYTES_MAX``;
* all ports of a process together have at most ``CONNECTIONS_MAX`` connections, and at most an
  eighth of its descriptors. A further connection replaces the oldest one without a request: a
  client that sends its request immediately is answered, however many are silent.

aiohttp implements HTTP; this is a protocol around its protocol. A request with ambiguous framing
gets 400. Malformed requests are not logged, because any client could fill the log with them.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from typing import TYPE_CHECKING, cast

from sliceplane.kit.io.logs import output as log_output
from sliceplane.kit.io.process import descriptors
from sliceplane.kit.metrics import Metrics

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from aiohttp import web

    Answer = Callable[[web.BaseRequest], Awaitable[web.Response]]

HEAD_S_MAX = 10.0
LIFETIME_S_MAX = 30.0
BYTES_MAX = 64 * 1024
CONNECTIONS_MAX = 256
_SHARE_OF_DESCRIPTORS = 8
#: seconds for answers in progress when a port is closed
_SHUTDOWN_S = 1.0


class Door:
    """The connections of all ports of this process.  Owned by the event loop's thread."""

    def __init__(self, *, head_s: float = HEAD_S_MAX, lifetime_s: float = LIFETIME_S_MAX) -> None:
        self.head_s = head_s
        self.lifetime_s = lifetime_s
        #: connections without a request, in order of arrival
        self._silent: dict[_Guarded, None] = {}
        self._answering: dict[_Guarded, None] = {}
        #: metrics of the ports and of the log, which every such process has
        self.metrics = Metrics()
        self.metrics.include(log_output.metrics.families)
        self.metrics.computed(
            "gauge",
            "sliceplane_pages_connections",
            "Open connections to health and metrics ports.",
            lambda: len(self),
        )
        self.cut = self.metrics.counters(
            "sliceplane_pages_cut_connections_total",
            "Connections to health and metrics ports that were cut, by the bound that they met.",
            "bound",
        )

    def __len__(self) -> int:
        return len(self._silent) + len(self._answering)

    def enter(self, connection: _Guarded) -> None:
        self._silent[connection] = None
        if len(self) > min(CONNECTIONS_MAX, max(8, descriptors.limit() // _SHARE_OF_DESCRIPTORS)):
            next(iter(self._silent if len(self._silent) > 1 else self._answering)).cut(
                "connections"
            )

    def on_request(self, connection: _Guarded) -> None:
        if connection in self._silent:
            del self._silent[connection]
            self._answering[connection] = None

    def remove(self, connection: _Guarded) -> None:
        self._silent.pop(connection, None)
        self._answering.pop(connection, None)

    def check(self) -> None:
        assert not self._silent.keys() & self._answering.keys(), (
            "a connection has asked or it has not"
        )


#: one for the process, like its descriptors
door = Door()


class _Guarded(asyncio.Protocol):
    """One connection: passes everything to *inner*, and cuts it at its bounds."""

    def __init__(self, inner: web.RequestHandler, port_door: Door) -> None:
        self._inner = inner
        self._door = port_door
        self._bytes = 0
        self._transport: asyncio.Transport
        self._timers: list[asyncio.TimerHandle] = []

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports are no subclasses.
        self._transport = cast(asyncio.Transport, transport)
        loop = asyncio.get_running_loop()
        self._timers = [
            loop.call_later(self._door.head_s, self.cut, "head"),
            loop.call_later(self._door.lifetime_s, self.cut, "life"),
        ]
        self._inner.connection_made(transport)
        self._door.enter(self)

    def on_request(self) -> None:
        """Notes that the head of a request is complete."""
        self._timers[0].cancel()
        self._door.on_request(self)

    def data_received(self, data: bytes) -> None:
        self._bytes += len(data)
        if self._bytes > BYTES_MAX:
            self.cut("bytes")
        else:
            self._inner.data_received(data)

    def eof_received(self) -> bool | None:
        self._inner.eof_received()
        return None

    def pause_writing(self) -> None:
        self._inner.pause_writing()

    def resume_writing(self) -> None:
        self._inner.resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        self._release()
        self._inner.connection_lost(exc)

    def cut(self, bound: str) -> None:
        """Aborts the connection and counts the exceeded *bound*."""
        self._door.cut.of(bound).value += 1
        self._release()
        self._transport.abort()

    def _release(self) -> None:
        for timer in self._timers:
            timer.cancel()
        self._door.remove(self)


def is_ambiguous(request: web.BaseRequest) -> bool:
    """Returns True if readers could differ on where the request ends (RFC 9112 6.1), beyond what
    aiohttp refuses.
    """
    encodings = [value.lower() for value in request.headers.getall("Transfer-Encoding", ())]
    if encodings and (encodings != ["chunked"] or request.version != (1, 1)):
        return True
    return request.version not in ((1, 0), (1, 1))


class _ServerFaults(logging.Filter):
    """Drops log records about malformed requests."""

    def filter(self, record: logging.LogRecord) -> bool:
        from aiohttp.http_exceptions import HttpProcessingError

        return not (record.exc_info and isinstance(record.exc_info[1], HttpProcessingError))


def http_logger() -> logging.Logger:
    """Returns the logger of aiohttp's servers, which logs only our own faults."""
    logger = logging.getLogger("aiohttp.server.faults")
    if not logger.filters:
        logger.addFilter(_ServerFaults())
    return logger


class GuardedPort:
    """Listening sockets whose requests *answer* serves. ``close`` ends them and their connections."""

    def __init__(self, answer: Answer, port_door: Door = door) -> None:
        from aiohttp import web  # imported here: half of all starts serve nothing

        async def answer_and_close(request: web.BaseRequest) -> web.Response:
            if request.transport is not None:
                cast(_Guarded, request.transport.get_protocol()).on_request()
            response = web.Response(status=400) if is_ambiguous(request) else await answer(request)
            response.force_close()
            return response

        self._server: web.Server = web.Server(
            answer_and_close, access_log=None, lingering_time=0, logger=http_logger()
        )
        self._port_door = port_door
        self._listening: list[asyncio.Server] = []

    async def listen(self, sock: socket.socket) -> None:
        """Serves *sock*, and takes ownership of it. Raises ``OSError``."""
        try:
            self._listening.append(
                await asyncio.get_running_loop().create_server(self._protocol, sock=sock)
            )
        except BaseException:
            sock.close()
            raise

    async def listen_at(self, address: str, port: int) -> int:
        """Serves an address; returns the port, for which 0 picks a free one. Raises ``OSError``."""
        server = await asyncio.get_running_loop().create_server(self._protocol, address, port)
        self._listening.append(server)
        return int(server.sockets[0].getsockname()[1])

    def _protocol(self) -> asyncio.Protocol:
        return _Guarded(self._server(), self._port_door)

    async def close(self) -> None:
        for listening in self._listening:
            listening.close()
        await self._server.shutdown(_SHUTDOWN_S)
