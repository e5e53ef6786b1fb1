"""Bytes of hostile HTTP/2 clients, and what must hold whatever they send.

``python -m tests.fuzz.http2 --seconds 3600``, or ``--case N`` to see one again. Nothing is raised,
memory is bounded, what is written are whole frames, and how cut the bytes come makes no difference.
"""

from __future__ import annotations

import struct
from random import Random

from msgspec.structs import astuple
from tests.fuzz.cases_of_seconds import run_cases
from tests.http2.frames_of_a_client import OPENING, POST, block, headers, message, sent

from sliceplane.kit.http2 import frames
from sliceplane.kit.http2.grpc import CallEvent, CallMessage, CallOpened, GrpcConnection
from sliceplane.kit.http2.limits import PARTIAL_BYTES_MAX, STREAMS_MAX

_VALUES = (
    "",
    "x",
    " x",
    "x" * 300,
    "application/grpc",
    "5S",
    "gzip",
    "-1",
    "18446744073709551616",
    "a\0b",
    "trailers",
)
_NAMES = (
    ":path",
    ":method",
    "te",
    "content-length",
    "grpc-timeout",
    "grpc-encoding",
    "connection",
    "X",
    "name",
    "",
)


def script(rng: Random) -> bytes:
    """What one client sends."""
    pieces = [OPENING if rng.random() < 0.95 else rng.randbytes(rng.randrange(40))]
    number = 1
    for _ in range(rng.randrange(1, 40)):
        if rng.random() < 0.3:
            number += rng.choice((0, 1, 2, 2, 2, 2))
        pieces.append(_frame(rng, rng.choice((number, number, number, 1, 0, rng.getrandbits(31)))))
    raw = bytearray(b"".join(pieces))
    while rng.random() < 0.2:
        position = rng.randrange(len(raw) + 1)
        raw[position : position + rng.randrange(3)] = rng.randbytes(rng.randrange(3))
    return bytes(raw)


def _frame(rng: Random, number: int) -> bytes:
    kind = rng.randrange(14)
    flags = rng.choice((0, 0, 1, 4, 5, 8, 32, rng.getrandbits(8)))
    if kind <= 2:
        body = rng.choice(
            (
                b"",
                message(b"hello"),
                message(rng.randbytes(100))[: rng.randrange(105)],
                rng.randbytes(9),
            )
        )
        return frames.frame(
            frames.DATA,
            flags & ~8 if rng.random() < 0.9 else flags,
            number,
            body * rng.choice((1, 3)),
        )
    if kind <= 5:
        fields = list(POST)
        while rng.random() < 0.3:
            fields.insert(rng.randrange(len(fields) + 1), (rng.choice(_NAMES), rng.choice(_VALUES)))
        if rng.random() < 0.8:
            return headers(number, fields, end=rng.random() < 0.2)
        whole = block(fields)
        at = rng.randrange(len(whole))
        return frames.frame(1, flags, number, whole[:at]) + frames.frame(
            9, rng.choice((0, 4)), number, whole[at:]
        )
    if kind == 6:
        values = {
            rng.randrange(1, 8): rng.choice((0, 1, 65_535, 16_384, 2**31 - 1, 2**32 - 1))
            for _ in range(3)
        }
        return frames.settings(values)
    if kind == 7:
        return frames.window_update(number, rng.choice((0, 1, 1000, 2**30, 2**31 - 1)))
    if kind == 8:
        return frames.frame(frames.RST_STREAM, 0, number, struct.pack(">L", rng.randrange(20)))
    if kind == 9:
        return frames.frame(frames.PING, flags, 0, bytes(8)) * rng.choice((1, 1, 1, 1200))
    if kind == 10:
        return frames.frame(1, 4, number, rng.randbytes(rng.randrange(60)))
    return frames.frame(
        rng.randrange(16), flags, number, rng.randbytes(rng.choice((0, 4, 5, 6, 8, 50)))
    )


def played(raw: bytes, sizes: list[int], seed: int) -> tuple[list[object], bytes]:
    """What a server that echoes hears and says when *raw* comes in pieces of *sizes*.

    It answers only when all has come, so that both are the same for every way to cut.
    """
    server = GrpcConnection(0.0)
    heard: list[CallEvent] = []
    start = 0
    for size in (*sizes, len(raw)):
        heard += server.receive(raw[start : start + size], 0.0)
        start += size
        server.check()
        assert server.partial_bytes <= PARTIAL_BYTES_MAX
        assert server.http.stream_count <= STREAMS_MAX
    rng = Random(seed)
    for event in heard:
        if isinstance(event, CallMessage):
            server.send(event.call_id, event.data * rng.choice((1, 1000)))
        elif isinstance(event, CallOpened) and rng.random() < 0.3:
            server.finish(event.call_id, 14, "so it is")
    written = b""
    while output := server.http.take_output():
        written += output
        server.check()
    sent(written)
    server.on_time(1e9)
    server.http.take_output()
    server.check()
    return [(type(event).__name__, *map(str, astuple(event))) for event in heard], written


def case(number: int) -> None:
    """One client, once in one piece and once in many.  Raises ``AssertionError``, or whatever is
    wrong.
    """
    rng = Random(number)
    raw = script(rng)
    whole = played(raw, [], number)
    cut = played(raw, [rng.choice((1, 2, 5, 9, 30, 500)) for _ in range(60)], number)
    assert cut == whole, "how the bytes are cut makes a difference"


if __name__ == "__main__":
    run_cases("tests.fuzz.http2", case, "clients of HTTP/2")
