"""One client connection: uvicorn's HTTP protocol class, with what it lacks against clients that
mean no good.

- A connection always waits for something with an end (``_Phase``): the head of a request, the rest
  of a body that was answered before it was read, the next request; a client that sends drop by drop
  does not move that end. Nor does it wait for ever for a client that takes nothing.
- Heads have limits, in bytes and in fields (431 beyond, as Go's server says it): narrow ones for
  who has not authenticated yet on this connection, Go's for the others (see ``HeadLimits``).
  Trailers count as well, and are dropped: what comes behind a body is no header (RFC 9110 6.5.1).
- Until it authenticates, a connection is charged with the memory that it costs (see
  ``kit.io.tls.unauthenticated``).
- A request whose end two readers could see in two places gets 400: one ``Transfer-Encoding``, which
  is ``chunked``, in HTTP/1.1 only, and one ``Host`` (RFC 9112 3.2, 6.1). The parser refuses the
  rest of the family.
- The verified client certificate is put into the ASGI scope (``scope["state"]["certificate"]``),
  read once; for a request of a front proxy one that names its user (``front_proxy``). Beside it is
  the connection itself, for watch streams: they write to it from callbacks, without a task to wake
  and without ASGI messages, which halves what an event costs (``scope["state"]["connection"]``).
- Every request that is being answered learns of a disconnect, also behind a pipelined one.
- A connection that is lost lets go of all that knows it, so that nothing of it waits for the cyclic
  collector.
"""

from __future__ import annotations

import asyncio
import enum
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

import msgspec
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from sliceplane.api.users import User, standing_of
from sliceplane.kit.io.tls.unauthenticated import FIELD_BYTES, OPEN_BYTES
from sliceplane.server.io.connections.front_proxy import of_request
from sliceplane.watch.io.certificates import Certificate, certificate_of

if TYPE_CHECKING:
    from sliceplane.server.io.connections.listener import Listener

#: of what is still taken in of a body that was answered without being read, so that its sender sees
#: the answer
UNREAD_BYTES_MAX = 16 * 1024 * 1024
PIPELINED_REQUESTS_MAX = 64
#: a stream pauses when its connection holds more than this that the socket did not take
STREAM_UNSENT_BYTES = 32 * 1024

#: byte for byte what net/http of Go answers
_TOO_LARGE: Final = (
    b"HTTP/1.1 431 Request Header Fields Too Large\r\nContent-Type: text/plain; charset=utf-8\r\n"
    b"Connection: close\r\n\r\n431 Request Header Fields Too Large"
)


class HeadLimits(msgspec.Struct, frozen=True):
    """Bounds on the head of a request, on heads in the pipeline together, on trailers, and on the
    framing of a chunk.

    ``fields``: how many headers.  ``size``: bytes.
    """

    fields: int
    size: int


#: on a connection without an authenticated user; ordinary clients send ten fields and a kilobyte
UNAUTHENTICATED_HEAD = HeadLimits(100, 64 * 1024)
#: long selectors and many ``Impersonate-Extra-...``; the size is what Go's servers take
AUTHENTICATED_HEAD = HeadLimits(1000, 1024 * 1024)


class _Phase(enum.Enum):
    """The event that a connection waits for."""

    HEAD = enum.auto()
    #: the application; it has limits of its own
    ANSWER = enum.auto()
    #: the end of a body that was answered already
    UNREAD_BODY = enum.auto()
    NEXT_REQUEST = enum.auto()


class _TooLarge(Exception):
    """Ends the parsing of a head."""


class _Ambiguous(Exception):
    """Ends the parsing: where the request ends, or for whom it is, is not certain."""


class HttpConnection(HttpToolsProtocol):
    """See the module docstring; also a ``request.StreamConnection``."""

    # Those of the base class have a dict, which has 1.5 KiB once it has more than 29 attributes.
    __slots__ = (
        "_account",
        "_answering",
        "_fields",
        "_framing_bytes",
        "_head_bytes",
        "_head_limits",
        "_in_head",
        "_in_message",
        "_listener",
        "_on_lost",
        "_on_resumed",
        "_phase",
        "_pipelined_bytes",
        "_stalled",
        "_timer",
        "_unread_bytes",
        "_url",
        "write_paused",
    )

    def __init__(self, listener: Listener) -> None:
        super().__init__(listener.config, listener.state, {})
        self._listener = listener
        self._head_limits = UNAUTHENTICATED_HEAD
        #: the user who is charged with it; "" while unauthenticated
        self._account = ""
        self._phase = _Phase.ANSWER
        self._timer: asyncio.TimerHandle | None = None
        self._stalled: asyncio.TimerHandle | None = None
        #: a request has begun to arrive and not yet ended; its head is not complete
        self._in_message = False
        self._in_head = False
        self._url: list[bytes] = []
        #: of the newest head, as far as it was parsed
        self._fields = 0
        self._head_bytes = 0
        #: of the heads in the pipeline
        self._pipelined_bytes = 0
        #: since the parser last had something whole to tell
        self._framing_bytes = 0
        self._unread_bytes = 0
        #: as ``flow`` says, for streams, which ask before each event
        self.write_paused = False
        self._answering: RequestResponseCycle | None = None
        # Set while a stream is attached.
        self._on_resumed: Callable[[], None] | None = None
        self._on_lost: Callable[[], None] | None = None

    # Life

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as the base class
        super().connection_made(transport)
        certificate: Certificate | None = certificate_of(transport.get_extra_info("ssl_object"))
        self.app_state["certificate"] = certificate
        self.app_state["connection"] = self
        # A front proxy is charged with the connection, and none of its users.
        counts = certificate is not None and (certificate.is_user or certificate.is_proxy)
        if certificate is not None and counts and not self.authenticated(certificate.user):
            self.abort()
            return
        self._enter(_Phase.HEAD)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._account:
            self._listener.accounts.release(self._account)
            self._account = ""
        self._enter(_Phase.ANSWER)
        self._stop_stalling()
        answering, self._answering = self._answering, None
        if answering is not None and not answering.response_complete:
            # The base class tells only the newest cycle, which may be one that waits in the
            # pipeline.
            answering.disconnected = True
            answering.message_event.set()
        self.pipeline.clear()
        on_lost = self._on_lost
        self.detach()
        super().connection_lost(exc)
        # All of these know the connection.
        self.cycle = self.scope = None  # type: ignore[assignment]  # as before the first request
        self.app_state = {}
        if on_lost is not None:
            on_lost()

    def authenticated(self, user: User) -> bool:
        if self._account:
            return True
        if not self._listener.accounts.take(user.name, 1, standing_of(user)):
            if self._answering is not None:
                self._answering.keep_alive = False
            return False
        self._account = user.name
        self._head_limits = AUTHENTICATED_HEAD
        self._listener.unauthenticated.remove(self.transport)
        return True

    def distrust_certificate(self) -> None:
        """The signer of its certificate is not trusted any more: what is being answered is the
        last.
        """
        if self.app_state["certificate"] is None:
            return
        answering = self._answering
        is_stream = self._on_lost is not None or (answering and answering.chunked_encoding)
        if self._phase is _Phase.ANSWER and answering is not None and not is_stream:
            answering.keep_alive = False
        else:
            self.transport.close()

    # Time

    def _enter(self, phase: _Phase) -> None:
        """Wait for something else, for at most as long as it may take."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._phase = phase
        match phase:
            case _Phase.HEAD:
                self._timer = self.loop.call_later(self._listener.timing.request_head_s, self.abort)
            case _Phase.UNREAD_BODY:
                self._unread_bytes = 0
                self._timer = self.loop.call_later(self._listener.timing.unread_s, self.abort)
            case _Phase.NEXT_REQUEST:
                self._timer = self.loop.call_later(
                    self._listener.timing.keep_alive_s, self.transport.close
                )

    def _enter_next(self) -> None:
        """The phase that follows from what has arrived and what was answered; the time of one that
        goes on runs on.
        """
        if self.cycle is not None and not self.cycle.response_complete:
            phase = _Phase.ANSWER
        elif self._in_head or self.cycle is None:
            phase = _Phase.HEAD
        else:
            phase = _Phase.UNREAD_BODY if self._in_message else _Phase.NEXT_REQUEST
        if phase is not self._phase:
            self._enter(phase)

    def _begin_stalling(self) -> None:
        if self._stalled is None:
            self._stalled = self.loop.call_later(self._listener.timing.stalled_s, self.abort)

    def _stop_stalling(self) -> None:
        if self._stalled is not None:
            self._stalled.cancel()
            self._stalled = None

    # Requests

    def data_received(self, data: bytes) -> None:
        self._framing_bytes += len(data)
        super().data_received(data)
        if self.transport.is_closing():
            return
        if self._framing_bytes > self._head_limits.size:
            self._refuse_head()
            return
        self._charge()
        self._enter_next()
        if self._phase is _Phase.UNREAD_BODY:
            self._unread_bytes += len(data)
            if self._unread_bytes > UNREAD_BYTES_MAX:
                self.abort()

    def _charge(self) -> None:
        """Charges an unauthenticated connection with unfinished requests and untaken answers."""
        if self._head_limits is UNAUTHENTICATED_HEAD:
            body = len(self.cycle.body) if self.cycle is not None else 0
            heads = (
                self._framing_bytes
                + self._head_bytes
                + self._pipelined_bytes
                + FIELD_BYTES * self._fields
            )
            unsent = self.transport.get_write_buffer_size()
            self._listener.unauthenticated.charge(
                self.transport, OPEN_BYTES + heads + body + unsent
            )

    def _refuse_head(self) -> None:
        self._listener.refused_heads.value += 1
        if self.cycle is None or self.cycle.response_complete:
            self.transport.write(_TOO_LARGE)
            self.transport.close()
        else:
            self.abort()

    def send_400_response(self, msg: str) -> None:
        """Called for whatever ends the parsing."""
        if self._fields > self._head_limits.fields or self._head_bytes > self._head_limits.size:
            self._refuse_head()
        elif self._is_unanswered():
            super().send_400_response(msg)
        elif self.cycle.response_complete:
            self.transport.close()
        else:
            # It would be read as the answer to the request before, or as a part of one.
            self.abort()

    def _is_unanswered(self) -> bool:
        """Returns True if the next bytes to the client are the answer to what is being parsed."""
        cycle = self.cycle
        if self._in_head or cycle is None:
            return cycle is None or cycle.response_complete
        return self._answering is cycle and not cycle.response_started and self._on_lost is None

    def _count(self, size: int) -> None:
        """Raises what ends the parsing if that was too much."""
        self._head_bytes += size
        if self._fields > self._head_limits.fields or self._head_bytes > self._head_limits.size:
            raise _TooLarge

    def on_message_begin(self) -> None:
        self._in_message = self._in_head = True
        self._framing_bytes = self._fields = self._head_bytes = 0
        self._url.clear()
        super().on_message_begin()

    def on_url(self, url: bytes) -> None:
        self._url.append(url)
        self._count(len(url))

    def on_header(self, name: bytes, value: bytes) -> None:
        self._fields += 1
        self._count(len(name) + len(value))
        # Behind the body it is a trailer.
        if self._in_head:
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        if _is_ambiguous(self.headers, self.parser.get_http_version()):
            raise _Ambiguous
        self._in_head = False
        self._framing_bytes = 0
        self.url = b"".join(self._url)
        self._url.clear()
        certificate = self.app_state["certificate"]
        if certificate is not None and certificate.is_proxy:
            self.scope["state"]["certificate"] = of_request(certificate, self.headers)
        super().on_headers_complete()
        if self.pipeline:
            self._pipelined_bytes += self._head_bytes
        if (
            len(self.pipeline) > PIPELINED_REQUESTS_MAX
            or self._pipelined_bytes > self._head_limits.size
        ):
            self.abort()
        elif self._on_lost is not None:
            # Go on reading behind a stream, or its client could leave unnoticed.
            self.flow.resume_reading()

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
        if not self.pipeline:
            self._pipelined_bytes = 0
            self._forget_head()
        if not self.transport.is_closing():
            self._charge()
            self._enter_next()

    def _forget_head(self) -> None:
        """Lets go of the head of what was answered: it may have a megabyte, and the connection be
        idle for long.
        """
        if self.cycle.response_complete and not self._in_head:
            self.headers = []
            self.scope = self.cycle.scope = {}  # type: ignore[typeddict-item]  # nothing reads it any more

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        self._answering = cycle
        super()._start_asgi_task(cycle, app)

    # Writing, and streams

    def write(self, data: bytes) -> None:
        self.transport.write(data)

    def attach(self, on_resumed: Callable[[], None], on_lost: Callable[[], None]) -> None:
        self._on_resumed = on_resumed
        self._on_lost = on_lost
        self._stop_stalling()
        # What waits for a slow client waits in the hub, where it is counted and has a bound.
        self.transport.set_write_buffer_limits(high=STREAM_UNSENT_BYTES)
        self.flow.resume_reading()
        if self.transport.is_closing():
            # It was lost before the stream began, so there is no other place that says so.
            self.loop.call_soon(on_lost)

    def detach(self) -> None:
        self._on_resumed = self._on_lost = None
        if self.write_paused and not self.transport.is_closing():
            self._begin_stalling()

    def pause_writing(self) -> None:
        super().pause_writing()
        self.write_paused = True
        self._charge()
        if self._on_lost is None:
            self._begin_stalling()

    def resume_writing(self) -> None:
        super().resume_writing()
        self.write_paused = False
        self._stop_stalling()
        if not self.transport.is_closing():
            self._charge()
        if self._on_resumed is not None:
            self._on_resumed()

    def abort(self) -> None:
        self.transport.abort()

    def shutdown(self) -> None:
        """Close after the answer under way; a request that has begun to arrive gets one, which says
        so.
        """
        if not self.arriving:
            super().shutdown()

    @property
    def arriving(self) -> bool:
        """A head has begun to arrive, and nothing is being answered."""
        return self._in_head and self._phase is _Phase.HEAD


def _is_ambiguous(headers: list[tuple[bytes, bytes]], version: str) -> bool:
    hosts = 0
    encodings = []
    for name, value in headers:
        if name == b"host":
            hosts += 1
        elif name == b"transfer-encoding":
            encodings.append(value.lower())
    if encodings and (encodings != [b"chunked"] or version != "1.1"):
        return True
    return hosts > 1 or (version == "1.1" and not hosts) or version not in ("1.0", "1.1")
