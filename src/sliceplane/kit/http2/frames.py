"""The frames of HTTP/2 (RFC 9113 section 6), and the errors that end a stream or a connection."""

from __future__ import annotations

import enum
import struct
from typing import Final

PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
#: header of a frame: length in three bytes (two and one), type, flags, stream
HEAD: Final = struct.Struct(">HBBBL")
HEAD_BYTES: Final = 9
#: maximum payload that we receive and send: the initial value of HTTP/2
FRAME_BYTES_MAX: Final = 16_384
#: maximum window (section 6.9.1); stream identifiers have as many bits
MAX_31: Final = 2**31 - 1
#: initial size of both windows, until SETTINGS or WINDOW_UPDATE change it
FIRST_WINDOW: Final = 65_535

DATA: Final = 0
HEADERS: Final = 1
PRIORITY: Final = 2
RST_STREAM: Final = 3
SETTINGS: Final = 4
PUSH_PROMISE: Final = 5
PING: Final = 6
GOAWAY: Final = 7
WINDOW_UPDATE: Final = 8
CONTINUATION: Final = 9
NAMES: Final = (
    *("DATA", "HEADERS", "PRIORITY", "RST_STREAM", "SETTINGS"),
    *("PUSH_PROMISE", "PING", "GOAWAY", "WINDOW_UPDATE", "CONTINUATION"),
)

END_STREAM: Final = 1
ACK: Final = 1
END_HEADERS: Final = 4
PADDED: Final = 8
HAS_PRIORITY: Final = 32

#: of SETTINGS
ENABLE_PUSH: Final = 2
MAX_CONCURRENT_STREAMS: Final = 3
INITIAL_WINDOW_SIZE: Final = 4
MAX_FRAME_SIZE: Final = 5
MAX_HEADER_LIST_SIZE: Final = 6


class ErrorCode(enum.IntEnum):
    """Section 7."""

    NO_ERROR = 0
    PROTOCOL_ERROR = 1
    INTERNAL_ERROR = 2
    FLOW_CONTROL_ERROR = 3
    SETTINGS_TIMEOUT = 4
    STREAM_CLOSED = 5
    FRAME_SIZE_ERROR = 6
    REFUSED_STREAM = 7
    CANCEL = 8
    COMPRESSION_ERROR = 9
    ENHANCE_YOUR_CALM = 11


class ConnectionFault(Exception):
    """An error of the peer that ends its connection. ``limit``: the name of the exceeded limit, or
    "".
    """

    def __init__(self, code: ErrorCode, text: str, limit: str = "") -> None:
        super().__init__(text)
        self.code = code
        self.text = text
        self.limit = limit


class StreamFault(Exception):
    """The same for one stream."""

    def __init__(self, code: ErrorCode, text: str, limit: str = "") -> None:
        super().__init__(text)
        self.code = code
        self.text = text
        self.limit = limit


def head(length: int, kind: int, flags: int, stream_id: int) -> bytes:
    return HEAD.pack(length >> 8, length & 255, kind, flags, stream_id)


def frame(kind: int, flags: int, stream_id: int, payload: bytes = b"") -> bytes:
    return head(len(payload), kind, flags, stream_id) + payload


def settings(values: dict[int, int]) -> bytes:
    return frame(
        SETTINGS, 0, 0, b"".join(struct.pack(">HL", name, value) for name, value in values.items())
    )


def window_update(stream_id: int, size: int) -> bytes:
    return frame(WINDOW_UPDATE, 0, stream_id, size.to_bytes(4, "big"))


def rst_stream(stream_id: int, code: ErrorCode) -> bytes:
    return frame(RST_STREAM, 0, stream_id, code.to_bytes(4, "big"))


def goaway(last_id: int, code: ErrorCode, text: str = "") -> bytes:
    return frame(GOAWAY, 0, 0, struct.pack(">LL", last_id, code) + text.encode("ascii", "replace"))


def header_block(block: bytes, stream_id: int, *, end_stream: bool) -> bytes:
    """Splits *block* into frames, which must be sent without any others between them."""
    flags = END_STREAM if end_stream else 0
    if len(block) <= FRAME_BYTES_MAX:
        return frame(HEADERS, flags | END_HEADERS, stream_id, block)
    pieces = [
        block[start : start + FRAME_BYTES_MAX] for start in range(0, len(block), FRAME_BYTES_MAX)
    ]
    chunks = [frame(HEADERS, flags, stream_id, pieces[0])]
    chunks += [frame(CONTINUATION, 0, stream_id, piece) for piece in pieces[1:-1]]
    return b"".join((*chunks, frame(CONTINUATION, END_HEADERS, stream_id, pieces[-1])))


def unpadded(flags: int, payload: bytes) -> bytes:
    """Returns the payload of DATA or HEADERS without its padding (section 6.1)."""
    if not flags & PADDED:
        return payload
    if not payload or payload[0] >= len(payload):
        raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "a frame has more padding than bytes")
    return payload[1 : len(payload) - payload[0]]
