"""What a client sends, frame by frame, right or wrong; and what a server sent, taken apart."""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import NamedTuple

from hpack import Encoder

from sliceplane.kit.http2 import frames
from sliceplane.kit.http2.grpc import GrpcConnection

Pairs = Iterable[tuple[str, str]]

POST: tuple[tuple[str, str], ...] = (
    (":method", "POST"),
    (":scheme", "http"),
    (":path", "/a.B/C"),
    (":authority", "x"),
    ("content-type", "application/grpc"),
    ("te", "trailers"),
)
OPENING = frames.PREFACE + frames.settings({})


class SentFrame(NamedTuple):
    kind: int
    flags: int
    stream_id: int
    payload: bytes


def sent(output: bytes) -> list[SentFrame]:
    """The frames of *output*, which are whole."""
    found = []
    while output:
        high, low, kind, flags, stream_id = frames.HEAD.unpack_from(output)
        end = frames.HEAD_BYTES + (high << 8 | low)
        assert end <= len(output), "a frame is cut off"
        found.append(SentFrame(kind, flags, stream_id, output[frames.HEAD_BYTES : end]))
        output = output[end:]
    return found


def block(fields: Pairs = POST) -> bytes:
    """Of an encoder that has said nothing before, so that it can be read behind any other."""
    encoder = Encoder()
    encoder.header_table_size = 0
    return bytes(encoder.encode(fields))


def headers(stream_id: int, fields: Pairs = POST, *, end: bool = False, more: int = 0) -> bytes:
    flags = frames.END_HEADERS | more | (frames.END_STREAM if end else 0)
    return frames.frame(frames.HEADERS, flags, stream_id, block(fields))


def data(stream_id: int, payload: bytes = b"", *, end: bool = False) -> bytes:
    return frames.frame(frames.DATA, frames.END_STREAM if end else 0, stream_id, payload)


def message(body: bytes) -> bytes:
    return struct.pack(">BL", 0, len(body)) + body


def drained(server: GrpcConnection) -> list[SentFrame]:
    """All that *server* has to write."""
    output = b""
    while piece := server.http.take_output():
        output += piece
    return sent(output)


def opened(*more: bytes, now: float = 0.0) -> GrpcConnection:
    """A connection whose client has sent preface and SETTINGS, and then *more*; what it answered is
    taken.
    """
    server = GrpcConnection(now)
    server.receive(OPENING, now)
    drained(server)
    for piece in more:
        server.receive(piece, now)
    return server
