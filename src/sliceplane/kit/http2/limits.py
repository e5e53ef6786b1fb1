"""Limits of the memory, work and time that a peer may cost. Each limit has a name, under which
exceedings are counted.

Frames that are cheap for a peer and costly for us (PING, SETTINGS, resets, empty frames) are
charged to an ``Allowance``. It grows with time and with sent data, because gRPC clients ping to
measure the bandwidth after each received message. A peer that exhausts it is flooding.
"""

from __future__ import annotations

from typing import Final

STREAMS_MAX: Final = 200
#: a request with larger headers is refused; announced as SETTINGS_MAX_HEADER_LIST_SIZE
LIST_BYTES_MAX: Final = 16 * 1024
#: a connection with larger headers is ended: HPACK can expand a small input greatly
DECODED_BYTES_MAX: Final = 64 * 1024
#: bytes of an encoded header block
BLOCK_BYTES_MAX: Final = 2 * LIST_BYTES_MAX
BLOCK_FRAMES_MAX: Final = 16
#: bytes of a gRPC message
MESSAGE_BYTES_MAX: Final = 4 * 1024 * 1024
#: bytes of incomplete messages of all calls of a connection
PARTIAL_BYTES_MAX: Final = 16 * 1024 * 1024
#: receive windows of a stream and of a connection; no request of an Envoy has to wait for an update
STREAM_WINDOW: Final = 1024 * 1024
CONNECTION_WINDOW: Final = 4 * 1024 * 1024
#: bytes written to a socket in one call
OUTPUT_BYTES: Final = 64 * 1024

PREFACE_S_MAX: Final = 10.0
#: seconds of silence after which a client is pinged, and in which it must answer
PING_S: Final = 30.0
PONG_S_MAX: Final = 20.0
#: seconds that a connection may be without streams
IDLE_S_MAX: Final = 300.0

#: allowance at once, and then per second
BURST: Final = 1000.0
A_SECOND: Final = 100.0
#: costs of frames other than 1: a reset stream has cost a request, SETTINGS a walk over all streams
_COSTS: Final = {"RST_STREAM": 10.0, "SETTINGS": 10.0, "refused streams": 10.0}


class Allowance:
    """The allowance of one connection."""

    def __init__(self, now: float) -> None:
        self._remaining = BURST
        self._at = now

    def on_sent(self) -> None:
        self._remaining += 1.0

    def take(self, what: str, now: float) -> bool:
        """Returns True if *what* is still within the allowance."""
        self._remaining = min(BURST, self._remaining + (now - self._at) * A_SECOND) - _COSTS.get(
            what, 1.0
        )
        self._at = now
        return self._remaining >= 0.0
