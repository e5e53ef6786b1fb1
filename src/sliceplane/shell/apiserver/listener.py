"""The listening socket and its connections: uvicorn's HTTP protocol inside our own life cycle, on TLS of our own.

uvicorn's ``Server`` is left out on purpose: it installs signal handlers, polls every 100 ms and, on shutdown,
waits for watches that never end.  What is used is its protocol class, with these additions:

- the user of the verified client certificate is put into the ASGI scope (``scope["state"]["certificate_user"]``),
  read once per connection;
- beside it is the connection itself, for watch streams: they write to it from callbacks, without a task to wake
  and without ASGI messages, which halves what an event costs (``scope["state"]["connection"]``);
- a connection always waits for something with an end (``_Phase``): the head of a request, the rest of a body that was
  answered before it was read, the next request; a client that sends drop by drop does not move that end;
- a head, or anything else that is no body, is at most ``HEAD_BYTES_MAX`` long (431);
- every request that is being answered learns of a disconnect, also behind a pipelined one;
- connections beyond ``connections_max`` are closed at once.

Stopping has an order: stop accepting, let the caller end the watches, ask every connection to close after its
current response, and after ``grace_s`` abort what is left.  Before that there may be a ``drain``: every answer then
says ``Connection: close``, so that clients leave by themselves and none is cut off between two requests.
"""

from __future__ import annotations

import asyncio
import enum
import logging
import socket
import ssl
from collections.abc import Awaitable, Callable, MutableMapping
from ipaddress import ip_address
from typing import Any

from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle
from uvicorn.server import ServerState

from sliceplane.registry.types import User
from sliceplane.shell.apiserver.auth import user_of_certificate
from sliceplane.shell.apiserver.tls_acceptor import TlsAcceptor
from sliceplane.shell.start_error import StartError

App = Callable[
    [MutableMapping[str, Any], Callable[[], Awaitable[Any]], Callable[[Any], Awaitable[None]]], Awaitable[None]
]

BACKLOG = 4096
KEEP_ALIVE_SECONDS = 90.0
REQUEST_HEAD_SECONDS_MAX = 30.0
#: of the head of a request, of its trailers and of what frames one chunk (Go's servers have the same limit)
HEAD_BYTES_MAX = 1024 * 1024
#: what is still taken in of a body that was answered without being read, so that its sender sees the answer
UNREAD_SECONDS_MAX = 10.0
UNREAD_BYTES_MAX = 16 * 1024 * 1024
PIPELINED_REQUESTS_MAX = 64
#: a stream pauses when its connection holds more than this that the socket did not take
STREAM_UNSENT_BYTES = 32 * 1024
#: at a stop: how long responses may take to leave, and then peers to say farewell
FLUSH_SECONDS_MAX = 2.0
FAREWELL_SECONDS_MAX = 0.25
_LOOK_SECONDS = 0.01
_CLOSE = (b"connection", b"close")


def bind(address: str, port: int) -> socket.socket:
    """A bound socket that does not listen yet.  Raises ``StartError`` naming address and port."""
    family = socket.AF_INET6 if ip_address(address).version == 6 else socket.AF_INET
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind((address, port))
        # Linux lets two sockets bind one port with SO_REUSEADDR; only listen() finds out.
        sock.listen(BACKLOG)
    except OSError as error:
        sock.close()
        where = f"[{address}]:{port}" if family == socket.AF_INET6 else f"{address}:{port}"
        raise StartError(f"cannot listen on {where}: {(error.strerror or str(error)).lower()}") from error
    return sock


class _Phase(enum.Enum):
    """What a connection waits for."""

    HEAD = enum.auto()
    #: the application; it has limits of its own
    ANSWER = enum.auto()
    #: the end of a body that was answered already
    UNREAD_BODY = enum.auto()
    NEXT_REQUEST = enum.auto()


class _Connection(HttpToolsProtocol):
    """One client connection.  See the module docstring for what it adds; also a ``request.Connection``."""

    def __init__(self, listener: Listener) -> None:
        super().__init__(listener.config, listener.state, {})
        self._listener = listener
        self._phase = _Phase.ANSWER
        self._timer: asyncio.TimerHandle | None = None
        #: a request has begun to arrive and not yet ended; its head is not complete
        self._in_message = False
        self._in_head = False
        #: since the parser last had something whole to tell
        self._framing_bytes = 0
        self._unread_bytes = 0
        self._answering: RequestResponseCycle | None = None
        # Set while a stream is attached.
        self._on_resumed: Callable[[], None] | None = None
        self._on_lost: Callable[[], None] | None = None

    # Life

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as the base class
        super().connection_made(transport)
        user: User | None = user_of_certificate(transport.get_extra_info("peercert"))
        self.app_state["certificate_user"] = user
        self.app_state["connection"] = self
        self._enter(_Phase.HEAD)

    def connection_lost(self, exc: Exception | None) -> None:
        self._enter(_Phase.ANSWER)
        answering, self._answering = self._answering, None
        if answering is not None and not answering.response_complete:
            # The base class tells only the newest cycle, which may be one that waits in the pipeline.
            answering.disconnected = True
            answering.message_event.set()
        self.pipeline.clear()
        on_lost = self._on_lost
        self.detach()
        super().connection_lost(exc)
        if on_lost is not None:
            on_lost()

    # Requests

    def _enter(self, phase: _Phase) -> None:
        """Wait for something else, for at most as long as it may take."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._phase = phase
        match phase:
            case _Phase.HEAD:
                self._timer = self.loop.call_later(REQUEST_HEAD_SECONDS_MAX, self.abort)
            case _Phase.UNREAD_BODY:
                self._unread_bytes = 0
                self._timer = self.loop.call_later(UNREAD_SECONDS_MAX, self.abort)
            case _Phase.NEXT_REQUEST:
                self._timer = self.loop.call_later(KEEP_ALIVE_SECONDS, self.transport.close)

    def _enter_next(self) -> None:
        """The phase that follows from what has arrived and what was answered; the time of one that goes on runs on."""
        if self.cycle is not None and not self.cycle.response_complete:
            phase = _Phase.ANSWER
        elif self._in_head or self.cycle is None:
            phase = _Phase.HEAD
        else:
            phase = _Phase.UNREAD_BODY if self._in_message else _Phase.NEXT_REQUEST
        if phase is not self._phase:
            self._enter(phase)

    def data_received(self, data: bytes) -> None:
        self._framing_bytes += len(data)
        super().data_received(data)
        if self.transport.is_closing():
            return
        if self._framing_bytes > HEAD_BYTES_MAX:
            self._refuse_head()
            return
        self._enter_next()
        if self._phase is _Phase.UNREAD_BODY:
            self._unread_bytes += len(data)
            if self._unread_bytes > UNREAD_BYTES_MAX:
                self.abort()

    def _refuse_head(self) -> None:
        if self.cycle is None or self.cycle.response_complete:
            self.transport.write(STATUS_LINE[431] + b"content-length: 0\r\nconnection: close\r\n\r\n")
            self.transport.close()
        else:
            self.abort()

    def on_message_begin(self) -> None:
        self._in_message = self._in_head = True
        self._framing_bytes = 0
        super().on_message_begin()

    def on_body(self, body: bytes) -> None:
        self._framing_bytes = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._in_message = False
        self._framing_bytes = 0
        super().on_message_complete()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        # The base class has a timer of its own for this, which any byte stops for good.
        self._unset_keepalive_if_required()
        if not self.transport.is_closing():
            self._enter_next()

    def on_headers_complete(self) -> None:
        self._in_head = False
        self._framing_bytes = 0
        super().on_headers_complete()
        if len(self.pipeline) > PIPELINED_REQUESTS_MAX:
            self.abort()
        elif self._on_lost is not None:
            # Go on reading behind a stream, or its client could leave unnoticed.
            self.flow.resume_reading()

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        self._answering = cycle
        super()._start_asgi_task(cycle, app)

    # Streams

    @property
    def write_paused(self) -> bool:
        return self.flow.write_paused

    def write(self, data: bytes) -> None:
        self.transport.write(data)

    def attach(self, on_resumed: Callable[[], None], on_lost: Callable[[], None]) -> None:
        self._on_resumed, self._on_lost = on_resumed, on_lost
        # What waits for a slow client waits in the hub, where it is counted and has a bound.
        self.transport.set_write_buffer_limits(high=STREAM_UNSENT_BYTES)
        self.flow.resume_reading()
        if self.transport.is_closing():
            # It was lost before the stream began, so nobody else will say so.
            self.loop.call_soon(on_lost)

    def detach(self) -> None:
        self._on_resumed = self._on_lost = None

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._on_resumed is not None:
            self._on_resumed()

    def abort(self) -> None:
        self.transport.abort()

    def shutdown(self) -> None:
        """Close after the answer under way; a request that has begun to arrive gets one, which says so."""
        if not self.arriving:
            super().shutdown()

    @property
    def arriving(self) -> bool:
        """A head has begun to arrive, and nothing is being answered."""
        return self._in_head and self._phase is _Phase.HEAD


class Listener:
    """Serves *app* on a socket.  Used from one task: ``start`` once, ``stop`` once."""

    def __init__(self, app: App, *, connections_max: int) -> None:
        self.connections_max = connections_max
        self.state = ServerState()
        self.config = Config(
            app=app,
            http=_Connection,
            ws="none",
            lifespan="off",
            interface="asgi3",
            log_config=None,
            access_log=False,
            proxy_headers=False,
            server_header=False,
            date_header=False,
        )
        # What clients do wrong on their connections is counted and answered, not logged line by line.
        logging.getLogger("uvicorn.error").setLevel(logging.CRITICAL)
        self.config.load()
        self._acceptor: TlsAcceptor | None = None

    @property
    def connections(self) -> int:
        return len(self.state.connections)

    def start(self, sock: socket.socket, context: ssl.SSLContext) -> None:
        self._acceptor = TlsAcceptor(
            sock, context, lambda: _Connection(self), room=lambda: self.connections_max - self.connections
        )
        self._acceptor.start()

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
        """What is being answered, and what was arriving: both end within *grace_s*, or are cancelled."""
        loop = asyncio.get_running_loop()
        ends = loop.time() + grace_s
        while (left := ends - loop.time()) > 0 and (self.state.tasks or any(map(_arriving, self.state.connections))):
            tasks = set(self.state.tasks)
            if tasks:
                await asyncio.wait(tasks, timeout=left)
            else:
                await asyncio.sleep(min(left, _LOOK_SECONDS))
        late = set(self.state.tasks)
        for task in late:
            task.cancel()
        if late:
            await asyncio.wait(late, timeout=1)

    async def _flush(self) -> None:
        """Let what was written go out, give the peers a moment for their TLS farewell, then cut them."""
        loop = asyncio.get_running_loop()
        flushed_by = loop.time() + FLUSH_SECONDS_MAX
        while loop.time() < flushed_by and any(map(_unsent, self.state.connections)):
            await asyncio.sleep(0.01)
        farewell_by = loop.time() + FAREWELL_SECONDS_MAX
        while loop.time() < farewell_by and self.state.connections:
            await asyncio.sleep(0.01)
        for connection in list(self.state.connections):
            connection.transport.abort()
        if self._acceptor is not None:
            self._acceptor.abort_handshakes()
        await asyncio.sleep(0)
        self._acceptor = None


def _arriving(connection: asyncio.Protocol) -> bool:
    assert isinstance(connection, _Connection), f"{connection!r} is not a connection of ours"
    return connection.arriving and not connection.transport.is_closing()


def _unsent(connection: asyncio.Protocol) -> bool:
    assert isinstance(connection, _Connection), f"{connection!r} is not a connection of ours"
    return connection.transport.get_write_buffer_size() > 0
