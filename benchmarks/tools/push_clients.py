"""Many clients of incremental xDS in one process: each has a stream, and acknowledges what it is
sent.

``python -m benchmarks.tools.push_clients PORT CLIENTS [OPTIONS]``; OPTIONS is JSON of ``Wish``. For
each number N that it reads it prints a line of JSON (``Told``) when N messages more than at the
line before have come to all together; for 0 when no message has come for half a second. HTTP/2 by
hand, the same for all servers; messages are made once for all clients, and answers are looked into
only where a client must know more than their nonce.
"""

from __future__ import annotations

import asyncio
import ssl
import struct
import sys
import threading
import time
from collections import deque
from typing import cast

import msgspec
import uvloop
from envoy.config.endpoint.v3 import endpoint_pb2
from envoy.service.discovery.v3 import discovery_pb2

from sliceplane.kit.http2 import frames
from sliceplane.kit.http2.fields import literals
from sliceplane.xds.names import ASSIGNMENT, CLUSTER, ENDPOINT

METHOD = b"/envoy.service.discovery.v3.AggregatedDiscoveryService/DeltaAggregatedResources"
QUIET_S = 0.5
AGAIN_S = 0.05
#: what every peer takes (RFC 9113, 6.5.2)
FRAME_MAX = 16_384
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


class Wish(msgspec.Struct, kw_only=True):
    """``names``: whose assignments. ``clusters``: all of them, by wildcard. ``leds``: as an Envoy
    that takes endpoints one by one. ``ca_file``, ``cert_file``, ``key_file``: over TLS. ``again``:
    come again, with what is held, when the server is gone.
    """

    names: tuple[str, ...] = ("default/web:http",)
    clusters: bool = False
    leds: bool = False
    ca_file: str = ""
    cert_file: str = ""
    key_file: str = ""
    again: bool = False


class Told(msgspec.Struct, kw_only=True):
    """Since the start; ``size``: of the message that came last.  ``at``: CLOCK_MONOTONIC."""

    messages: int
    octets: int
    size: int
    at: float
    connected: int


def data(message: bytes) -> tuple[bytes, ...]:
    """Frames."""
    parts = b"\0" + len(message).to_bytes(4, "big") + message
    starts = range(0, len(parts), FRAME_MAX)
    return tuple(
        frames.frame(frames.DATA, 0, 1, parts[start : start + FRAME_MAX]) for start in starts
    )


def request(type_url: str, **members: object) -> bytes:
    encoded: bytes = discovery_pb2.DeltaDiscoveryRequest(
        type_url=type_url, **members
    ).SerializeToString()
    return encoded


def item(tag: int, value: bytes) -> bytes:
    """*value* is shorter than 128 bytes."""
    return bytes((tag, len(value))) + value


def outer(message: bytes) -> tuple[bytes, bytes]:
    """The type and the nonce of a ``DeltaDiscoveryResponse``, without a look at its resources."""
    found = {4: b"", 5: b""}
    start = 0
    while start < len(message):
        number = message[start] >> 3
        start += 1
        length = shift = 0
        while True:
            octet = message[start]
            start += 1
            length |= (octet & 127) << shift
            shift += 7
            if octet < 128:
                break
        if number in found:
            found[number] = message[start : start + length]
        start += length
    return found[4], found[5]


class Client(asyncio.Protocol):
    """One connection with one stream."""

    def __init__(self, fleet: Fleet, number: int) -> None:
        self._fleet = fleet
        self._number = number
        self._unread = b""
        self._body: list[bytes] = []
        self._missing = 0
        #: what the server takes: on the connection, on the stream
        self._windows = [frames.FIRST_WINDOW, frames.FIRST_WINDOW]
        self._first_window = frames.FIRST_WINDOW
        self._unsent: deque[bytes] = deque()
        self._transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._fleet.connected += 1
        self._transport.write(
            frames.PREFACE
            + frames.settings({frames.INITIAL_WINDOW_SIZE: _WINDOW})
            + frames.window_update(0, _WINDOW - frames.FIRST_WINDOW)
            + frames.header_block(_HEADERS, 1, end_stream=False)
        )
        self._send(self._fleet.first_of(self._number))

    def _send(self, wanted: tuple[bytes, ...]) -> None:
        """As far as the server's windows go; the rest when it opens them."""
        self._unsent.extend(wanted)
        while self._unsent:
            size = len(self._unsent[0]) - frames.HEAD_BYTES
            if size > min(self._windows):
                return
            self._windows = [window - size for window in self._windows]
            self._transport.write(self._unsent.popleft())

    def _on_settings(self, payload: bytes) -> None:
        for start in range(0, len(payload), 6):
            name, value = struct.unpack_from(">HL", payload, start)
            if name == frames.INITIAL_WINDOW_SIZE:
                self._windows[1] += value - self._first_window
                self._first_window = value
        self._send(())

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
                if kind == frames.SETTINGS:
                    self._on_settings(payload)
            elif kind == frames.WINDOW_UPDATE:
                self._windows[stream_id] += int.from_bytes(payload, "big")
                self._send(())
            elif kind in (frames.RST_STREAM, frames.GOAWAY) and not self._fleet.wish.again:
                raise SystemExit(f"the server ended stream {stream_id}: {payload!r}")
            start = end
        self._unread = unread[start:]

    def _on_data(self, payload: bytes) -> None:
        while payload:
            if not self._missing:
                self._missing = int.from_bytes(payload[1:5], "big")
                payload = payload[5:]
            piece = payload[: self._missing]
            payload = payload[len(piece) :]
            self._missing -= len(piece)
            self._body.append(piece)
            if not self._missing:
                message = self._body[0] if len(self._body) == 1 else b"".join(self._body)
                self._body = []
                self._on_message(message)

    def _on_message(self, message: bytes) -> None:
        type_url, nonce = outer(message)
        answer = data(item(2 << 3 | 2, type_url) + item(6 << 3 | 2, nonce))
        self._send(answer + self._fleet.on_message(self._number, type_url, message))

    def connection_lost(self, exc: Exception | None) -> None:
        self._fleet.on_lost(self._number)


class Fleet:
    def __init__(self, port: int, count: int, wish: Wish) -> None:
        self._port = port
        self._count = count
        self.wish = wish
        self.connected = 0
        self._messages = self._octets = self._size = 0
        self._target = -1
        self._asked_at = 0
        self._last = time.monotonic()
        self._context: ssl.SSLContext | None = None
        #: what the first client holds: version by name, by type
        self._held: dict[str, dict[str, str]] = {CLUSTER: {}, ASSIGNMENT: {}}
        #: collections to which a client has subscribed
        self._followed: dict[int, set[str]] = {}
        self._subscriptions: tuple[bytes, ...] = ()
        self.ended = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        if self.wish.ca_file:
            self._context = ssl.create_default_context(cafile=self.wish.ca_file)
            self._context.set_alpn_protocols(["h2"])
            if self.wish.cert_file:
                self._context.load_cert_chain(self.wish.cert_file, self.wish.key_file)
        self._make_subscriptions()
        for number in range(self._count):
            await self._connect(number)

    async def _connect(self, number: int) -> None:
        loop = asyncio.get_running_loop()
        name = "localhost" if self._context is not None else None
        await loop.create_connection(
            lambda: Client(self, number),
            "127.0.0.1",
            self._port,
            ssl=self._context,
            server_hostname=name,
        )

    def _make_subscriptions(self) -> None:
        made = []
        if self.wish.clusters:
            made.append(request(CLUSTER, initial_resource_versions=self._held[CLUSTER]))
        names = {
            "resource_names_subscribe": self.wish.names,
            "initial_resource_versions": self._held[ASSIGNMENT],
        }
        made.append(request(ASSIGNMENT, **names))
        # All but the node, which is in the first one and differs.
        first, *others = made
        self._first = first
        self._subscriptions = tuple(frame for message in others for frame in data(message))

    def first_of(self, number: int) -> tuple[bytes, ...]:
        node = discovery_pb2.DeltaDiscoveryRequest()
        node.node.id = f"client-{number}"
        node.node.locality.zone = "zone-a"
        if self.wish.leds:
            node.node.user_agent_name = "envoy"
            node.node.user_agent_build_version.version.major_number = 1
            node.node.user_agent_build_version.version.minor_number = 40
        return data(node.SerializeToString() + self._first) + self._subscriptions

    def on_message(self, number: int, type_url: bytes, message: bytes) -> tuple[bytes, ...]:
        """What the client says besides its ACK."""
        self._messages += 1
        self._octets += len(message)
        self._size = len(message)
        self._last = time.monotonic()
        kind = type_url.decode()
        if self._messages == self._target:
            self._tell()
        if kind in self._held and (self.wish.leds or (self.wish.again and number == 0)):
            return self._look_into(number, kind, message)
        return ()

    def _look_into(self, number: int, kind: str, message: bytes) -> tuple[bytes, ...]:
        globs: set[str] = set()
        response = discovery_pb2.DeltaDiscoveryResponse.FromString(message)
        for resource in response.resources:
            self._held[kind][resource.name] = resource.version
            if kind == ASSIGNMENT and self.wish.leds:
                made = endpoint_pb2.ClusterLoadAssignment.FromString(resource.resource.value)
                configs = [locality.leds_cluster_locality_config for locality in made.endpoints]
                globs.update(
                    config.leds_collection_name for config in configs if config.leds_collection_name
                )
        if not globs:
            return ()
        before = self._followed.get(number, set())
        self._followed[number] = globs
        new, old = sorted(globs - before), sorted(before - globs)
        return data(request(ENDPOINT, resource_names_subscribe=new, resource_names_unsubscribe=old))

    def on_lost(self, number: int) -> None:
        self.connected -= 1
        if not self.wish.again:
            self.ended.set()
            return
        if number == 0:
            self._make_subscriptions()
        task = asyncio.create_task(self._come_again(number))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _come_again(self, number: int) -> None:
        while not self.ended.is_set():
            await asyncio.sleep(AGAIN_S)
            try:
                await self._connect(number)
            except OSError:
                continue
            return

    # -- what the driver asks

    def on_line(self, line: str) -> None:
        if int(line):
            self._target = self._asked_at + int(line)
            if self._messages >= self._target:
                self._tell()
        else:
            task = asyncio.create_task(self._tell_when_quiet())
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _tell_when_quiet(self) -> None:
        while time.monotonic() - self._last < QUIET_S or self.connected < self._count:
            await asyncio.sleep(0.05)
        self._tell()

    def _tell(self) -> None:
        self._target = -1
        self._asked_at = self._messages
        told = Told(
            messages=self._messages,
            octets=self._octets,
            size=self._size,
            at=self._last,
            connected=self.connected,
        )
        print(msgspec.json.encode(told).decode(), flush=True)


async def run(port: int, count: int, wish: Wish) -> None:
    fleet = Fleet(port, count, wish)
    loop = asyncio.get_running_loop()

    def read() -> None:
        for line in sys.stdin:
            loop.call_soon_threadsafe(fleet.on_line, line)
        loop.call_soon_threadsafe(fleet.ended.set)

    await fleet.start()
    threading.Thread(target=read, daemon=True).start()
    await fleet.ended.wait()


if __name__ == "__main__":
    wanted = msgspec.json.decode(sys.argv[3], type=Wish) if len(sys.argv) > 3 else Wish()
    uvloop.run(run(int(sys.argv[1]), int(sys.argv[2]), wanted))
