"""Connections that have not authenticated yet: bounds of their total memory and of their time.

Every program that reaches the port can open connections, and stall at any point: before the first
byte, or in the middle of a handshake, a request head or an answer. Each unauthenticated connection
is charged with the maximum memory of its phase, and all of them together have a bound. Above it the
oldest are dropped: honest clients authenticate within moments, so the oldest connections are the
least likely to. The same happens when there is no room for a new connection.

A connection is removed when it has authenticated, or is closed. Anonymous users always stay
unauthenticated.
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
#: OpenSSL has its buffers and the ClientHello, of which it receives at most
#: ``transport.HELLO_BYTES_MAX``
HANDSHAKE_BYTES: Final = 48 * 1024
#: a later message of a handshake is incomplete: OpenSSL allocates its claimed size, up to 100 KiB
HANDSHAKE_MESSAGE_BYTES: Final = 152 * 1024
#: an open and idle connection; a partial request head and an unsent answer are charged in addition
OPEN_BYTES: Final = 20 * 1024
#: overhead of each header besides its bytes
FIELD_BYTES: Final = 160


class UnauthenticatedConnection(Protocol):
    def abort(self) -> None:
        """Closes immediately, and removes itself."""


class UnauthenticatedConnections:
    """Owns the connections in order of arrival, and their charges. Used from the loop's thread."""

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
        """Charges *connection* with *size*, which may drop it or others; no effect after its
        removal.
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
        """Closes the oldest connection; returns False if there is none."""
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
    """Timeouts of a connection in seconds. ``Listener`` passes it to all parts of a connection."""

    # TLS

    #: from the connection to the end of the handshake
    handshake_s: float = 10.0
    #: for pending writes after ``close``
    flush_s: float = 10.0
    #: for the peer's close after ours
    farewell_s: float = 2.0

    # Accepting

    #: until accepting resumes after the system refused a connection, for lack of descriptors for
    #: example
    rest_s: float = 1.0

    # HTTP

    #: until the head of a request is complete
    request_head_s: float = 30.0
    #: for reading the rest of a body that was answered unread, so that its sender receives the
    #: answer
    unread_s: float = 10.0
    #: without any request
    keep_alive_s: float = 90.0
    #: for a client that accepts no written data; streams have their own limits
    stalled_s: float = 30.0
