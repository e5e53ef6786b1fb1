"""The sockets of a name server: datagrams in batches, connections within limits.

Each wake-up reads up to ``BATCH`` datagrams of a socket and then yields to the loop, so that
neither queries delay the informers nor their lists the queries. A socket that is bound to every
address answers from the address that was queried: clients drop answers from others (RFC 1123
section 6.1.3.1).

Messages over TCP are pipelined and answered in any order (RFC 7766). Within each ``IDLE_S`` a
connection must send a whole message or receive its answers; single bytes do not count. A network of
clients may have as many connections as it leaves for all others, and a client ``PER_CLIENT_MAX``;
beyond that, its longest idle connection is closed. The server stops reading from a client that does
not receive its answers.
"""

from __future__ import annotations

import asyncio
import socket
import struct
import time
from collections.abc import Callable, Iterable
from functools import partial
from typing import Final, cast

from sliceplane.dns.clients import source_network
from sliceplane.dns.server import Forward
from sliceplane.kit.io.identity import in_use
from sliceplane.kit.shares import Shares

#: sends an answer, now or later
Send = Callable[[bytes], None]
#: handles a query, its client, and True for TCP: returns the answer, ``None`` for none, or the
#: argument of ``OnForward``
OnQuery = Callable[[bytes, str, bool], "bytes | Forward | None"]
OnForward = Callable[[Forward, Send], None]

#: datagrams, or seconds, of one wake-up; the time is checked after every fourth datagram
BATCH: Final = 64
BATCH_S: Final = 0.01
#: bytes of a query; a connection that announces a longer one is closed
QUERY_BYTES_MAX: Final = 4096
#: seconds within which a connection must send a whole message, or receive its answers
IDLE_S: Final = 10.0
PER_CLIENT_MAX: Final = 32
#: connections of all clients, shared fairly by network
CONNECTIONS_MAX: Final = 1000
#: bytes of answers that the client of a connection does not receive; one answer of 64 KiB may
#: exceed it
UNREAD_BYTES_MAX: Final = 32 * 1024
#: forwarded queries of a connection, and bytes of their answers that its client does not receive
AWAITED_MAX: Final = 100
AWAITED_BYTES_MAX: Final = 128 * 1024
#: octets that one wake-up reads from a connection
_READ_BYTES: Final = 16 * 1024
_RECEIVE_BYTES: Final = 4 * 1024 * 1024
#: memory of datagrams that wait in the kernel, 832 bytes each; more counts as an overload, of some
#: 150 ms of work
WAITING_BYTES_MAX: Final = 4 << 20
#: constants that ``socket`` lacks in some Pythons: <linux/in.h>, <asm-generic/socket.h>;
#: <linux/sock_diag.h> has the fields
_IP_PKTINFO: Final = 8
_SO_MEMINFO: Final = 55
_MEMORY: Final = struct.Struct("9I")
_ANCILLARY_BYTES: Final = socket.CMSG_SPACE(64)


class ListenError(Exception):
    """An address cannot be bound; the text is a sentence for the user."""


#: the sockets for UDP and TCP
Bound = tuple[socket.socket, socket.socket]


async def here(open_sockets: Callable[[], Bound]) -> Bound:
    return open_sockets()


def bound(address: str, port: int, *, shared: bool = False) -> Bound:
    """Opens sockets for UDP and TCP on the same port; 0 picks one.

    *shared*: other processes of this user may listen on the same port (``SO_REUSEPORT``).  Raises
    ``ListenError``.
    """
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    for attempt in range(10):
        datagrams = socket.socket(family, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
        stream = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        stream.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        datagrams.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _RECEIVE_BYTES)
        try:
            for sock in (datagrams, stream):
                if shared:
                    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
                if family == socket.AF_INET6:
                    sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            datagrams.bind((address, port))
            stream.bind((address, datagrams.getsockname()[1]))
            stream.listen(256)
        except OSError as error:
            datagrams.close()
            stream.close()
            if port == 0 and attempt < 9:  # another program has the picked port for TCP
                continue
            reason = in_use(str(error.strerror), address, port)
            raise ListenError(f"cannot listen on {address} port {port}: {reason}") from error
        return datagrams, stream
    raise AssertionError("the last attempt raises")


class Datagrams:
    """One UDP socket.  *on_batch* gets the number of datagrams of each wake-up, and their total
    seconds.
    """

    def __init__(
        self,
        own: socket.socket,
        on_query: OnQuery,
        on_forward: OnForward,
        on_batch: Callable[[int, float], None],
    ) -> None:
        self._socket = own
        self._on_query = on_query
        self._on_forward = on_forward
        self._on_batch = on_batch
        self._name = own.getsockname()[:2]
        self._is_wildcard = self._name[0] in ("0.0.0.0", "::")
        self.lost = 0
        self._dropped = 0
        #: the last wake-up left datagrams unread
        self._has_more = False
        if self._is_wildcard:
            if own.family == socket.AF_INET6:
                own.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_RECVPKTINFO, 1)
            else:
                own.setsockopt(socket.IPPROTO_IP, _IP_PKTINFO, 1)
        asyncio.get_running_loop().add_reader(own.fileno(), self._on_readable)

    def close(self) -> None:
        asyncio.get_running_loop().remove_reader(self._socket.fileno())
        self._socket.close()

    def is_overloaded(self) -> bool:
        """Returns True if many datagrams wait, or some were lost since the last call. Where the
        kernel does not report it, more than a batch is many.
        """
        try:
            memory = _MEMORY.unpack(
                self._socket.getsockopt(socket.SOL_SOCKET, _SO_MEMINFO, _MEMORY.size)
            )
        except (OSError, struct.error):
            return self._has_more
        waiting: int = memory[0]
        before, self._dropped = self._dropped, memory[-1]
        return waiting > WAITING_BYTES_MAX or self._dropped != before

    def _on_readable(self) -> None:
        own = self._socket
        on_query = self._on_query
        began = time.perf_counter()
        count = 0
        packet_info: list[tuple[int, int, bytes]] = []
        self._has_more = True
        try:
            while count < BATCH and (count & 3 or time.perf_counter() - began < BATCH_S):
                if self._is_wildcard:
                    packet, ancillary, _, source = own.recvmsg(QUERY_BYTES_MAX, _ANCILLARY_BYTES)
                    packet_info = [
                        (level, kind, _answering(level, data)) for level, kind, data in ancillary
                    ]
                else:
                    packet, source = own.recvfrom(QUERY_BYTES_MAX)
                count += 1
                if source[1] == 0 or source[:2] == self._name:
                    continue  # an answer would come back to this socket, or reach nobody
                answer = on_query(packet, source[0], False)
                if isinstance(answer, bytes):
                    self.send(answer, source, packet_info)
                elif answer is not None:
                    self._on_forward(
                        answer, partial(self.send, client=source, ancillary=packet_info)
                    )
        except (BlockingIOError, InterruptedError):
            self._has_more = False
        except OSError:
            self.lost += 1
        if count:
            self._on_batch(count, time.perf_counter() - began)

    def send(
        self, packet: bytes, client: tuple[str, int], ancillary: Iterable[tuple[int, int, bytes]]
    ) -> None:
        """Sends a datagram; drops it if the socket does not accept it: the client retries."""
        try:
            if ancillary:
                self._socket.sendmsg((packet,), ancillary, 0, client)
            else:
                self._socket.sendto(packet, client)
        except OSError:
            self.lost += 1


def _answering(level: int, data: bytes) -> bytes:
    """Returns the packet information that sends an answer from the queried address; for IPv4 that
    is the second field.
    """
    return b"\0\0\0\0" + data[4:8] + b"\0\0\0\0" if level == socket.IPPROTO_IP else data


class Streams:
    """All TCP connections of a name server.  Metrics read ``open_count``, ``refused`` and
    ``dropped``.
    """

    def __init__(self, on_query: OnQuery, on_forward: OnForward) -> None:
        self.on_query = on_query
        self.on_forward = on_forward
        #: the read buffer that all connections use in turn
        self.buffer: Final = memoryview(bytearray(_READ_BYTES))
        self._servers: list[asyncio.Server] = []
        self._connections: dict[DnsConnection, None] = {}
        self._by_client: dict[str, dict[DnsConnection, None]] = {}
        self._shares = Shares(CONNECTIONS_MAX)
        #: connections that were refused, and idle ones that were closed to make room
        self.refused = 0
        self.dropped = 0

    @property
    def open_count(self) -> int:
        return len(self._connections)

    async def serve(self, listening: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        self._servers.append(await loop.create_server(lambda: DnsConnection(self), sock=listening))

    async def close(self) -> None:
        for server in self._servers:
            server.close()
        for connection in list(self._connections):
            connection.end()
        for server in self._servers:
            await server.wait_closed()

    def opened(self, connection: DnsConnection) -> bool:
        """Registers *connection*; returns False if there are too many, and none is idle."""
        own = self._by_client.get(connection.client, {})
        if len(own) >= PER_CLIENT_MAX and not self._drop_idle(own):
            self.refused += 1
            return False
        if not self._shares.take(connection.network):
            same = [other for other in self._connections if other.network == connection.network]
            if not self._drop_idle(same or self._connections) or not self._shares.take(
                connection.network
            ):
                self.refused += 1
                return False
        self._connections[connection] = None
        self._by_client.setdefault(connection.client, {})[connection] = None
        return True

    def _drop_idle(self, connections: Iterable[DnsConnection]) -> bool:
        """Closes the longest idle one of *connections*, unless all of them wait for an answer."""
        idle = min(
            (other for other in connections if not other.awaits), key=_last_progress, default=None
        )
        if idle is None:
            return False
        self.dropped += 1
        self.closed(idle)
        idle.end()
        return True

    def closed(self, connection: DnsConnection) -> None:
        """Removes *connection*.  Idempotent."""
        if connection in self._connections:
            del self._connections[connection]
            self._shares.release(connection.network)
            own = self._by_client[connection.client]
            del own[connection]
            if not own:
                del self._by_client[connection.client]


class DnsConnection(asyncio.BufferedProtocol):
    """A TCP connection, with messages after their length (RFC 1035 section 4.2.2).

    Reading pauses beyond ``AWAITED_MAX`` forwarded queries, and while the client leaves more than
    ``UNREAD_BYTES_MAX`` of answers unread: further queries stay in the kernel.
    """

    def __init__(self, streams: Streams) -> None:
        self._streams = streams
        self._transport: asyncio.Transport | None = None
        self._unread = b""
        self._is_full = False
        self._is_scheduled = False
        self._ended = False
        self._awaited = 0
        #: when the client last sent a whole message or received its answers
        self.progress_at = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self.client = ""
        self.network = ""

    @property
    def awaits(self) -> bool:
        return self._awaited > 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport = cast(asyncio.Transport, transport)  # uvloop's is no subclass
        self.client = (transport.get_extra_info("peername") or ("",))[0]
        loop = asyncio.get_running_loop()
        self.progress_at = loop.time()
        self.network = source_network(self.client) if self.client else ""
        if not self.client or not self._streams.opened(self):
            transport.abort()
            return
        transport.set_write_buffer_limits(high=UNREAD_BYTES_MAX)
        self._timer = loop.call_later(IDLE_S, self._check_idle)

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._streams.buffer

    def buffer_updated(self, nbytes: int) -> None:
        data = bytes(self._streams.buffer[:nbytes])
        self._unread = self._unread + data if self._unread else data
        if not self._is_scheduled:
            self._answer_some()

    def _answer_some(self) -> None:
        """Answers up to ``BATCH`` messages, then yields to the loop; reads more when all are
        answered.
        """
        self._is_scheduled = False
        transport = self._transport
        if transport is None or transport.is_closing():
            return
        answers: list[bytes] = []
        offset = count = size = 0
        end = _end_of_message(self._unread, 0)
        began = time.perf_counter()
        while end and count < BATCH and size < UNREAD_BYTES_MAX and not self._is_blocked():
            if not count & 3 and time.perf_counter() - began > BATCH_S:
                break
            answer = self._streams.on_query(self._unread[offset + 2 : end], self.client, True)
            if isinstance(answer, bytes):
                answers.append(_with_length(answer))
                size += len(answer)
            elif answer is not None:
                self._awaited += 1
                self._streams.on_forward(answer, self._send_awaited)
            count += 1
            offset = end
            end = _end_of_message(self._unread, offset)
        self._unread = self._unread[offset:]
        if count:
            self.progress_at = asyncio.get_running_loop().time()
        if answers:
            transport.write(b"".join(answers))
        if _is_too_long(self._unread, 0):
            self._streams.refused += 1
            transport.close()
            return
        if self._ended and not end and not self._awaited:
            transport.close()
            return
        if not end and not self._is_full:
            transport.resume_reading()
            return
        transport.pause_reading()
        if not self._is_blocked():
            self._schedule()

    def _is_blocked(self) -> bool:
        return self._is_full or self._awaited >= AWAITED_MAX

    def _schedule(self) -> None:
        if not self._is_scheduled:
            self._is_scheduled = True
            asyncio.get_running_loop().call_soon(self._answer_some)

    def _send_awaited(self, packet: bytes) -> None:
        self._awaited -= 1
        if self._transport is None or self._transport.is_closing():
            return
        if self._transport.get_write_buffer_size() > AWAITED_BYTES_MAX:
            self.end()
            return
        self._transport.write(_with_length(packet))
        self.progress_at = asyncio.get_running_loop().time()
        self._schedule()

    def pause_writing(self) -> None:
        self._is_full = True
        if self._transport is not None:
            self._transport.pause_reading()

    def resume_writing(self) -> None:
        self._is_full = False
        self.progress_at = asyncio.get_running_loop().time()
        self._schedule()

    def eof_received(self) -> bool:
        """Keeps the connection open until all earlier queries are answered."""
        self._ended = True
        return bool(self._awaited or _end_of_message(self._unread, 0))

    def connection_lost(self, exc: Exception | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._transport = None
        self._streams.closed(self)

    def end(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def _check_idle(self) -> None:
        loop = asyncio.get_running_loop()
        remaining_s = self.progress_at + IDLE_S - loop.time()
        if remaining_s > 0:
            self._timer = loop.call_later(remaining_s, self._check_idle)
        else:
            self.end()


def _last_progress(connection: DnsConnection) -> float:
    return connection.progress_at


def _with_length(packet: bytes) -> bytes:
    """Prepends the length, for one write: some clients expect both in one read (RFC 7766 section
    8).
    """
    return len(packet).to_bytes(2, "big") + packet


def _end_of_message(unread: bytes, offset: int) -> int:
    """Returns the end of the message whose length is at *offset*; 0 if it is incomplete, or too
    long.
    """
    end = offset + 2 + int.from_bytes(unread[offset : offset + 2], "big")
    return (
        end
        if offset + 2 <= len(unread) and end <= len(unread) and not _is_too_long(unread, offset)
        else 0
    )


def _is_too_long(unread: bytes, offset: int) -> bool:
    return (
        offset + 2 <= len(unread)
        and int.from_bytes(unread[offset : offset + 2], "big") > QUERY_BYTES_MAX
    )
