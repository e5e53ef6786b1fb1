"""Many clients of incremental xDS in one process: each opens a stream, and acknowledges what it is sent.

``python -m benchmarks.tools.push_clients PORT CLIENTS [CA]`` prints a line each time that every client has had one more
message: how many bytes it was.  The first is the answer to who subscribes.  HTTP/2 by hand, the same for all servers.
"""

from __future__ import annotations

import asyncio
import ssl
import sys
from typing import cast

import uvloop

from sliceplane.http2 import frames
from sliceplane.http2.fields import literals

METHOD = b"/envoy.service.discovery.v3.AggregatedDiscoveryService/DeltaAggregatedResources"
NAME = b"default/web:http"
TYPE_URL = b"type.googleapis.com/envoy.config.endpoint.v3.ClusterLoadAssignment"
_WINDOW = 2**31 - 1
_HEADERS = literals(
    (
        (b":method", b"POST"),
        (b":scheme", b"http"),
        (b":path", METHOD),
        (b":authority", b"localhost"),
        (b"te", b"trailers"),
        (b"content-type", b"application/grpc"),
    )
)


def field(number: int, value: bytes) -> bytes:
    """Of a message: *value* is shorter than 128 bytes."""
    return bytes((number << 3 | 2, len(value))) + value


def nonce_of(message: bytes) -> bytes:
    """Field 5 of a DeltaDiscoveryResponse."""
    start = 0
    while True:
        tag = message[start]
        start += 1
        length = shift = 0
        while True:
            octet = message[start]
            start += 1
            length |= (octet & 127) << shift
            shift += 7
            if octet < 128:
                break
        if tag == 5 << 3 | 2:
            return message[start : start + length]
        start += length


def data(message: bytes) -> bytes:
    return frames.frame(frames.DATA, 0, 1, b"\0" + len(message).to_bytes(4, "big") + message)


class Client(asyncio.Protocol):
    """One connection with one stream."""

    def __init__(self, fleet: Fleet, number: int) -> None:
        self._fleet = fleet
        self._number = number
        self._unread = b""
        self._body = b""
        self._transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        node = field(1, field(1, b"client-%d" % self._number))
        subscribe = node + field(2, TYPE_URL) + field(3, NAME)
        self._transport.write(
            frames.PREFACE
            + frames.settings({frames.INITIAL_WINDOW_SIZE: _WINDOW})
            + frames.window_update(0, _WINDOW - frames.FIRST_WINDOW)
            + frames.header_block(_HEADERS, 1, end_stream=False)
            + data(subscribe)
        )

    def data_received(self, received: bytes) -> None:
        unread = self._unread + received if self._unread else received
        start = 0
        while len(unread) - start >= frames.HEAD_BYTES:
            high, low, kind, flags, stream_id = frames.HEAD.unpack_from(unread, start)
            end = start + frames.HEAD_BYTES + (high << 8 | low)
            if end > len(unread):
                break
            payload = unread[start + frames.HEAD_BYTES : end]
            if kind == frames.DATA:
                self._on_data(payload)
            elif kind in (frames.SETTINGS, frames.PING) and not flags & frames.ACK:
                answer = payload if kind == frames.PING else b""
                self._transport.write(frames.frame(kind, frames.ACK, 0, answer))
            elif kind in (frames.RST_STREAM, frames.GOAWAY):
                raise SystemExit(f"the server ended stream {stream_id}: {payload!r}")
            start = end
        self._unread = unread[start:]

    def _on_data(self, payload: bytes) -> None:
        body = self._body + payload if self._body else payload
        size = int.from_bytes(body[1:5], "big") + 5
        if len(body) < size:
            self._body = body
            return
        assert len(body) == size, "a message more than was asked for"
        self._body = b""
        message = body[5:]
        self._transport.write(data(field(2, TYPE_URL) + field(6, nonce_of(message))))
        self._fleet.on_message(len(message))

    def connection_lost(self, exc: Exception | None) -> None:
        self._fleet.ended.set()


class Fleet:
    def __init__(self, count: int) -> None:
        self._count = count
        self._messages = 0
        self.ended = asyncio.Event()

    def on_message(self, size: int) -> None:
        self._messages += 1
        if self._messages % self._count == 0:
            print(size, flush=True)


async def run(port: int, count: int, authority: str) -> None:
    fleet = Fleet(count)
    context = None
    if authority:
        context = ssl.create_default_context(cafile=authority)
        context.set_alpn_protocols(["h2"])
    loop = asyncio.get_running_loop()
    for number in range(count):
        name = "localhost" if context is not None else None
        await loop.create_connection(
            lambda number=number: Client(fleet, number),  # type: ignore[misc]
            "127.0.0.1",
            port,
            ssl=context,
            server_hostname=name,
        )
    await fleet.ended.wait()


if __name__ == "__main__":
    uvloop.run(run(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3] if len(sys.argv) > 3 else ""))
