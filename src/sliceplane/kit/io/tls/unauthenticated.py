"""Connections that have not authenticated yet: bounds of their common memory and of their time.

Every program that reaches the port can open connections, and stop at any point: before the first
byte, in the middle of a handshake, of a head, of taking an answer. Each unauthenticated connection
is charged with the most that its phase can make the process hold, and all of them together have a
bound. Above it the oldest are dropped: honest clients shake hands and authenticate within moments,
so the oldest connections are the least likely to. The same happens when a connection is to be
accepted and there is no room for it.

A connection leaves when it has authenticated, or is closed. Anonymous users stay unauthenticated
for good.
"""

from __future__ import annotations

from typing import Final, Protocol

import msgspec

from sliceplane.kit.metrics import Metrics

#: the bound of all charges together
BYTES_MAX: Final = 256 * 1024 * 1024

# Measured with OpenSSL 3.0 and CPython 3.11, rounded up.
#: accepted, without any data yet
GREETING_BYTES: Final = 4 * 1024
#: OpenSSL has its buffers and the ClientHello, of which it gets no more than
#: ``transport.HELLO_BYTES_MAX``
HANDSHAKE_BYTES: Final = 48 * 1024
#: a later message of a handshake is under way: OpenSSL makes room for as much as it claims to be,
#: up to 100 KiB
HANDSHAKE_MESSAGE_BYTES: Final = 152 * 1024
#: of a connection that is open and idle; what it has sent of a head, or not taken of an answer,
#: comes on top
OPEN_BYTES: Final = 20 * 1024
#: of each header, besides its bytes
FIELD_BYTES: Final = 160


class UnauthenticatedConnection(Protocol):
    def abort(self) -> None:
        """Close at once, and leave."""


class UnauthenticatedConnections:
    """Owns who they are, in the order of their coming, and their charges.  Used from the loop's
    thread.
    """

    def __init__(self, bytes_max: int = BYTES_MAX) -> None:
        self._bytes_max = bytes_max
        self._charges: dict[UnauthenticatedConnection, int] = {}
        self.bytes = 0
        self.metrics = Metrics()
        self.metrics.computed(
            "gauge",
            "sliceplane_unauthenticated_connections",
            "Open connections, handshakes included, on which nobody has authenticated.",
            lambda: len(self),
        )
        self.metrics.computed(
            "gauge",
            "sliceplane_unauthenticated_bytes",
            "What connections on which nobody has authenticated are charged with, together.",
            lambda: self.bytes,
        )
        self.dropped = self.metrics.counter(
            "sliceplane_dropped_unauthenticated_connections_total",
            "Connections on which nobody has authenticated, closed to make room.",
        )

    def __len__(self) -> int:
        return len(self._charges)

    def enter(self, connection: UnauthenticatedConnection, size: int) -> None:
        assert connection not in self._charges, "it has entered already"
        self._charges[connection] = 0
        self.charge(connection, size)

    def charge(self, connection: UnauthenticatedConnection, size: int) -> None:
        """Charges *connection* with *size*, which may drop it or others; no effect after it
        left.
        """
        before = self._charges.get(connection)
        if before is not None and before != size:
            self._charges[connection] = size
            self.bytes += size - before
            while self.bytes > self._bytes_max and self.drop_oldest():
                pass

    def remove(self, connection: UnauthenticatedConnection) -> None:
        """Idempotent."""
        self.bytes -= self._charges.pop(connection, 0)

    def drop_oldest(self) -> bool:
        """Close the one that came first; false if there is none."""
        oldest = next(iter(self._charges), None)
        if oldest is None:
            return False
        self.dropped.value += 1
        oldest.abort()
        self.remove(oldest)
        return True

    def check(self) -> None:
        assert self.bytes == sum(self._charges.values()), (
            f"{self.bytes} is not the sum of the charges"
        )
        assert self.bytes <= self._bytes_max, f"{self.bytes} of {self._bytes_max} bytes"


class ConnectionTiming(msgspec.Struct, frozen=True, kw_only=True):
    """Seconds.  ``Listener`` hands it to all that keeps a connection."""

    # TLS

    #: from the connection to the end of the handshake
    handshake_s: float = 10.0
    #: for what was written before it was closed
    flush_s: float = 10.0
    #: for the peer's own closing, after ours
    farewell_s: float = 2.0

    # Accepting

    #: until connections are accepted again after the system refused one, as without descriptors
    rest_s: float = 1.0

    # HTTP

    #: until the head of a request is complete
    request_head_s: float = 30.0
    #: for what is still taken in of a body that was answered without being read, so that its sender
    #: sees the answer
    unread_s: float = 10.0
    #: without any request
    keep_alive_s: float = 90.0
    #: in which a client takes nothing of what is written to it; a stream has limits of its own
    stalled_s: float = 30.0
