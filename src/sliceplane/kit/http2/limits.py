"""Limits of the memory, work and time that a peer may cost us. Each limit has a word, counted when
a peer exceeds it.

What costs a peer nothing and us something (PING, SETTINGS, resets, empty frames) takes from an
``Allowance``, which grows with time and with what we send: gRPC's clients ping to measure the
bandwidth each time that they are sent something. When it is used up, the peer is flooding.
"""

from __future__ import annotations

from typing import Final

STREAMS_MAX: Final = 200
#: a request with larger headers is refused; it is announced as SETTINGS_MAX_HEADER_LIST_SIZE
LIST_BYTES_MAX: Final = 16 * 1024
#: a connection with larger ones ends: HPACK makes much of little
DECODED_BYTES_MAX: Final = 64 * 1024
#: of a header block as it comes
BLOCK_BYTES_MAX: Final = 2 * LIST_BYTES_MAX
BLOCK_FRAMES_MAX: Final = 16
#: of a gRPC message
MESSAGE_BYTES_MAX: Final = 4 * 1024 * 1024
#: of messages that are not whole, of all calls of a connection
PARTIAL_BYTES_MAX: Final = 16 * 1024 * 1024
#: what a client may send on a stream, and on a connection, before it hears of us; no request of an
#: Envoy waits for us
STREAM_WINDOW: Final = 1024 * 1024
CONNECTION_WINDOW: Final = 4 * 1024 * 1024
#: what is written to a socket at once
OUTPUT_BYTES: Final = 64 * 1024

PREFACE_S_MAX: Final = 10.0
#: silence, after which a client is asked whether it is there; and in which it has to say so
PING_S: Final = 30.0
PONG_S_MAX: Final = 20.0
#: without any stream
IDLE_S_MAX: Final = 300.0

#: of the allowance: at once, and then a second
BURST: Final = 1000.0
A_SECOND: Final = 100.0
#: what a frame takes, where it is not 1: a reset stream has cost a request, SETTINGS a walk over
#: all streams
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
