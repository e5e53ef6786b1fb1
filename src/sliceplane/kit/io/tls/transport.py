"""TLS connections of the server: OpenSSL reads and writes the socket itself; an asyncio transport
is built on that.

The loop's own TLS encrypts into memory, sends from there, and keeps that memory as large as the
largest write: with 5,000 watches of 25 KB events that is 150 MB, and every event is copied once
more. Here nothing is between OpenSSL and the kernel, and OpenSSL frees its buffers when a
connection is idle.

A connection passes through these states in order:

    GREETING --> HANDSHAKE --> OPEN --close--> FLUSHING --all was sent--> FAREWELL --the peer closed--> CLOSED
        '------------'----------'------------------'----- abort, failure, reset, time is up
        --'------------^

- GREETING: no data has arrived. There is no TLS yet: OpenSSL's buffers are allocated when the peer
  begins to send.
- HANDSHAKE: there is no protocol yet, and a failure is not reported.
- OPEN: readable and writable, each with its own wait. Small writes of one iteration of the loop are
  sent as one record.
- FLUSHING: pending writes are sent; nothing is read, no write is accepted.
- FAREWELL: ``close_notify`` and FIN are sent. Further data of the peer is discarded until it
  closes: after an immediate close the kernel would answer it with RST, which may destroy data that
  the peer has not read yet.

A reader reads until there is no more data, because it might not be called again. uvloop forgets a
socket after it reported an error on it, even if there was data before the error; and the loop does
not see data that OpenSSL has buffered.
"""

from __future__ import annotations

import asyncio
import contextlib
import enum
import socket
import ssl
from collections.abc import Callable
from functools import partial
from typing import Any, Final

from sliceplane.kit.io.batches import BatchQueue
from sliceplane.kit.io.tls.unauthenticated import (
    GREETING_BYTES,
    HANDSHAKE_BYTES,
    HANDSHAKE_MESSAGE_BYTES,
    OPEN_BYTES,
    ConnectionTiming,
    UnauthenticatedConnections,
)

#: bytes of the headers of the first record and its message (RFC 8446 4 and 5.1), by which a
#: greeting is checked
GREETING_HEAD_BYTES: Final = 9
#: OpenSSL allocates the claimed size of a ClientHello, up to 128 KiB; real ones are below 4 KiB
HELLO_BYTES_MAX: Final = 16 * 1024
_HANDSHAKE_RECORD: Final = 22
#: the largest TLS record; one read returns at most this
RECORD_BYTES: Final = 16 * 1024
#: bytes of one write to OpenSSL: it accepts all or must be called again, and until then none of it
#: counts as sent
_PORTION_BYTES: Final = 64 * 1024
_HIGH_BYTES: Final = 64 * 1024
#: records that one callback reads before other tasks run
_RECORDS_PER_BATCH: Final = 16

#: the answer of Go's servers to a client that used http instead of https
_PLAIN_HTTP: Final = (
    b"HTTP/1.0 400 Bad Request\r\n\r\nClient sent an HTTP request to an HTTPS server.\n"
)

#: a fatal alert (RFC 8446 6), for an invalid ClientHello
_DECODE_ERROR: Final = b"\x15\x03\x01\x00\x02\x02\x32"

ProtocolFactory = Callable[[], asyncio.Protocol]


class _State(enum.Enum):
    GREETING = enum.auto()
    HANDSHAKE = enum.auto()
    OPEN = enum.auto()
    FLUSHING = enum.auto()
    FAREWELL = enum.auto()
    CLOSED = enum.auto()


class TlsTransport(asyncio.Transport):
    """One connection. Used from the loop's thread. It is an asyncio transport without support for
    changing the protocol and for buffered protocols.
    """

    __slots__ = (
        "_backlog",
        "_batches",
        "_context",
        "_fd",
        "_flush_scheduled",
        "_high",
        "_loop",
        "_low",
        "_make_protocol",
        "_on_shaken",
        "_paused",
        "_protocol",
        "_read_waits_for_write",
        "_reader_added",
        "_sock",
        "_state",
        "_timer",
        "_timing",
        "_unauthenticated",
        "_unsent",
        "_waits_for_write",
        "_writing_paused",
    )

    def __init__(
        self,
        sock: socket.socket,
        context: ssl.SSLContext,
        make_protocol: ProtocolFactory,
        on_shaken: Callable[[TlsTransport], None],
        unauthenticated: UnauthenticatedConnections,
        *,
        timing: ConnectionTiming,
        batches: BatchQueue,
    ) -> None:
        """*sock* is non-blocking, and becomes readable when ``GREETING_HEAD_BYTES`` have arrived
        (``SO_RCVLOWAT``).

        *on_shaken* is called when the handshake has succeeded or failed. The owner calls ``start``
        once after the construction. *batches*: shared by all its connections, whose peers may
        disconnect at the same moment.
        """
        self._loop = asyncio.get_running_loop()
        #: a plain socket until TLS begins
        self._sock: Any = sock
        self._fd = sock.fileno()
        self._context = context
        self._unauthenticated = unauthenticated
        self._timing = timing
        self._batches = batches
        self._make_protocol = make_protocol
        self._on_shaken = on_shaken
        self._protocol: asyncio.Protocol | None = None
        self._state = _State.GREETING
        #: written and unsent data; the first piece may be with OpenSSL already, and then must not
        #: change
        self._backlog: list[bytes | memoryview] = []
        self._unsent = 0
        self._high = _HIGH_BYTES
        self._low = _HIGH_BYTES // 4
        self._writing_paused = False
        self._flush_scheduled = False
        self._waits_for_write = False
        self._read_waits_for_write = False
        self._paused = False
        self._reader_added = False
        self._timer: asyncio.TimerHandle | None = self._loop.call_later(
            timing.handshake_s, self.abort
        )

    # asyncio.Transport

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        match name:
            case "socket" | "ssl_object":
                return self._sock
            case "sslcontext":
                return self._context
            case "peercert":
                return self._sock.getpeercert()
            case "peername" | "sockname":
                with contextlib.suppress(OSError):
                    return (
                        self._sock.getpeername() if name == "peername" else self._sock.getsockname()
                    )
        return default

    def get_protocol(self) -> asyncio.BaseProtocol:
        assert self._protocol is not None, "there is none before the handshake is over"
        return self._protocol

    def is_closing(self) -> bool:
        return self._state is not _State.OPEN

    def is_reading(self) -> bool:
        return self._state is _State.OPEN and not self._paused

    def pause_reading(self) -> None:
        self._paused = True
        self._remove_reader()

    def resume_reading(self) -> None:
        if self._paused:
            self._paused = False
            if self._state is _State.OPEN:
                self._add_reader()
                self._loop.call_soon(self._read)

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        high = high if high is not None else _HIGH_BYTES if low is None else 4 * low
        low = low if low is not None else high // 4
        assert 0 <= low <= high, f"the limits are 0 <= {low} <= {high}"
        self._high = high
        self._low = low
        self._signal_backpressure()

    def get_write_buffer_limits(self) -> tuple[int, int]:
        return self._low, self._high

    def get_write_buffer_size(self) -> int:
        return self._unsent

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Writes *data*; dropped after ``close`` or after the connection was lost."""
        if self._state is not _State.OPEN or not data:
            return
        self._unsent += len(data)
        self._backlog.append(data if isinstance(data, (bytes, memoryview)) else bytes(data))
        if not self._waits_for_write:
            if self._unsent >= RECORD_BYTES:
                self._flush()
            elif not self._flush_scheduled:
                self._flush_scheduled = True
                self._loop.call_soon(self._flush_small)
        if self._unsent > self._high:
            self._signal_backpressure()

    def can_write_eof(self) -> bool:
        return False

    def close(self) -> None:
        """Sends pending writes and ``close_notify``, then closes. Idempotent."""
        if self._state is _State.OPEN:
            self._state = _State.FLUSHING
            self._timer = self._loop.call_later(self._timing.flush_s, self.abort)
            self._remove_reader()
            if not self._waits_for_write:
                self._flush()
        elif self._state in (_State.GREETING, _State.HANDSHAKE):
            self.abort()

    def abort(self) -> None:
        self._end(None)

    # The handshake

    def start(self) -> None:
        self._unauthenticated.enter(self, GREETING_BYTES)
        if self._state is _State.GREETING:
            self._add_reader()

    def _begin(self) -> None:
        """Checks the first bytes: a peer that claims to send more than a ClientHello is rejected
        immediately.
        """
        try:
            head = self._sock.recv(GREETING_HEAD_BYTES, socket.MSG_PEEK)
            self._sock.getpeername()
            self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, 1)
            if not _plausible(head):
                self._sock.send(_DECODE_ERROR)
                self._wait_for_close()
                return
            self._sock = self._context.wrap_socket(
                self._sock, server_side=True, do_handshake_on_connect=False
            )
        except OSError as error:
            self._end(error)  # it was reset before it was checked
            return
        self._state = _State.HANDSHAKE
        self._unauthenticated.charge(self, HANDSHAKE_BYTES)
        if self._state is _State.HANDSHAKE:
            self.shake_hands()

    def shake_hands(self) -> None:
        """Continues the handshake; called until it is complete, which may be immediately."""
        try:
            self._sock.do_handshake()
        except ssl.SSLWantReadError:
            self._wait_for_write(False)
            self._add_reader()
        except ssl.SSLWantWriteError:
            self._wait_for_write(True)
        except ssl.SSLError as error:
            if error.reason == "HTTP_REQUEST":
                with contextlib.suppress(OSError):
                    socket.socket.send(self._sock, _PLAIN_HTTP)  # past OpenSSL
            self._wait_for_close()  # the peer must be able to read the reason
        except OSError as error:
            self._end(error)
        else:
            self._wait_for_write(False)
            self._remove_reader()
            self._cancel_timer()
            self._unauthenticated.charge(self, OPEN_BYTES)
            self._state = _State.OPEN
            self._on_shaken(self)
            self._protocol = self._make_protocol()
            self._protocol.connection_made(self)
            if self._state is _State.OPEN and not self._paused:
                self._add_reader()

    # Reading

    def _add_reader(self) -> None:
        if not self._reader_added:
            self._reader_added = True
            self._loop.add_reader(self._fd, self._readable)

    def _remove_reader(self) -> None:
        if self._reader_added:
            self._reader_added = False
            self._loop.remove_reader(self._fd)

    def _readable(self) -> None:
        match self._state:
            case _State.OPEN:
                self._read()
            case _State.GREETING:
                self._begin()
            case _State.HANDSHAKE:
                self.shake_hands()
                if self._state is _State.HANDSHAKE:
                    # More than the ClientHello has arrived, and it is incomplete: it may be part of
                    # a large message.
                    self._unauthenticated.charge(self, HANDSHAKE_MESSAGE_BYTES)
            case _State.FAREWELL:
                self._discard()

    def _read(self) -> None:
        """Passes available data to the protocol, record by record, until there is no more."""
        for _ in range(_RECORDS_PER_BATCH):
            if self._state is not _State.OPEN or self._paused:
                return
            try:
                data = self._sock.recv(RECORD_BYTES)
            except ssl.SSLWantReadError:
                return
            except ssl.SSLWantWriteError:
                self._read_waits_for_write = True
                self._wait_for_write(True)
                return
            except OSError as error:
                self._remove_reader()
                self._batches.add(partial(self._end, error))
                return
            if not data:
                self._remove_reader()
                self._batches.add(self._on_eof)
                return
            assert self._protocol is not None, "it is open"
            try:
                self._protocol.data_received(data)
            except Exception as error:
                self._on_fault(error)
        self._loop.call_soon(self._read)

    def _on_eof(self) -> None:
        if self._state is not _State.OPEN:
            return
        assert self._protocol is not None, "it is open"
        try:
            self._protocol.eof_received()
        except Exception as error:
            self._on_fault(error)
        else:
            self.close()

    def _on_fault(self, error: Exception) -> None:
        self._loop.call_exception_handler(
            {"message": "a connection's protocol failed", "exception": error, "transport": self}
        )
        self._end(error)

    # Writing

    def _flush_small(self) -> None:
        self._flush_scheduled = False
        if not self._waits_for_write and self._state in (_State.OPEN, _State.FLUSHING):
            self._flush()

    def _wait_for_write(self, waits: bool) -> None:
        if waits is not self._waits_for_write:
            self._waits_for_write = waits
            if waits:
                self._loop.add_writer(self._fd, self._writable)
            else:
                self._loop.remove_writer(self._fd)

    def _writable(self) -> None:
        if self._state is _State.HANDSHAKE:
            self.shake_hands()
            return
        self._wait_for_write(False)
        if self._read_waits_for_write:
            self._read_waits_for_write = False
            self._read()
        if self._state in (_State.OPEN, _State.FLUSHING):
            self._flush(again=True)

    def _flush(self, *, again: bool = False) -> None:
        """Sends pending data as far as the kernel accepts it; *again*: the first piece is with
        OpenSSL already.
        """
        backlog = self._backlog
        while backlog:
            if not again and (len(backlog) > 1 or self._unsent > _PORTION_BYTES):
                self._prepare_first()
            again = False
            try:
                self._sock.send(backlog[0])
            except ssl.SSLWantWriteError:
                self._wait_for_write(True)
                return
            except OSError as error:
                self._end(error)
                return
            self._unsent -= len(backlog.pop(0))
        if self._writing_paused:
            self._signal_backpressure()
        if self._state is not _State.FLUSHING or backlog:
            return
        try:
            self._sock.unwrap()
        except ssl.SSLWantWriteError:
            self._wait_for_write(True)
            return
        except (OSError, ValueError):
            # close_notify was sent and the peer's has not arrived yet; or the peer has
            # disconnected, which is detected below
            pass
        self._wait_for_close()

    def _prepare_first(self) -> None:
        """Makes the first piece the right size: large ones are divided, small ones joined."""
        backlog = self._backlog
        first = backlog[0]
        if len(first) > _PORTION_BYTES:
            whole = memoryview(first)
            backlog[:1] = whole[:_PORTION_BYTES], whole[_PORTION_BYTES:]
        elif len(backlog) > 1 and len(first) + len(backlog[1]) <= RECORD_BYTES:
            count = size = 0
            while count < len(backlog) and size + len(backlog[count]) <= RECORD_BYTES:
                size += len(backlog[count])
                count += 1
            backlog[:count] = [b"".join(backlog[:count])]

    def _signal_backpressure(self) -> None:
        if self._protocol is None or self._state is _State.CLOSED:
            return
        if self._unsent > self._high and not self._writing_paused:
            self._writing_paused = True
            self._protocol.pause_writing()
        elif self._unsent <= self._low and self._writing_paused:
            self._writing_paused = False
            self._protocol.resume_writing()

    # The end

    def _wait_for_close(self) -> None:
        """Stops sending, and discards further input until the peer closes."""
        self._state = _State.FAREWELL
        self._cancel_timer()
        self._timer = self._loop.call_later(self._timing.farewell_s, self.abort)
        with contextlib.suppress(OSError):
            # From here on the socket is a plain one.
            self._sock.shutdown(socket.SHUT_WR)
        self._wait_for_write(False)
        self._add_reader()
        self._loop.call_soon(self._discard)

    def _discard(self) -> None:
        if self._state is not _State.FAREWELL:
            return
        try:
            for _ in range(_RECORDS_PER_BATCH):
                if not self._sock.recv(_PORTION_BYTES):
                    self._end(None)
                    return
        except BlockingIOError:
            return
        except OSError:
            self._end(None)
        else:
            self._loop.call_soon(self._discard)

    def _cancel_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _end(self, error: Exception | None) -> None:
        """Closes now; the protocol is notified in its own iteration of the loop. Idempotent."""
        if self._state is _State.CLOSED:
            return
        self._state = _State.CLOSED
        self._cancel_timer()
        self._remove_reader()
        self._wait_for_write(False)
        self._backlog.clear()
        self._unsent = 0
        self._sock.close()
        self._unauthenticated.remove(self)
        # Protocol and transport reference each other: this breaks the cycle, which only the garbage
        # collector would free.
        protocol, self._protocol = self._protocol, None
        if protocol is None:
            self._on_shaken(self)
        else:
            self._loop.call_soon(protocol.connection_lost, error)


def _plausible(head: bytes) -> bool:
    """Returns True if data with this beginning may be passed to OpenSSL, which itself refuses
    anything but a handshake immediately.
    """
    if len(head) < GREETING_HEAD_BYTES:
        return False
    if head[0] != _HANDSHAKE_RECORD:
        return True
    # A message whose header is split over records hides its claimed size.
    whole = int.from_bytes(head[3:5], "big") >= GREETING_HEAD_BYTES - 5
    return whole and int.from_bytes(head[6:9], "big") <= HELLO_BYTES_MAX
