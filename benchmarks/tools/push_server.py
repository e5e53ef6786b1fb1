"""A server that pushes a message to each call when it comes, and to all for each line that it
reads; prints its port.

``python -m benchmarks.tools.push_server ours|grpc BYTES [PKI]``: the port of the xDS server with a
handler that does nothing else, or ``grpc.aio``. With PKI, the folder of a certificate authority of
ours, over TLS.
"""

from __future__ import annotations

import asyncio
import socket
import sys
import threading
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import uvloop

from sliceplane.kit.rng import Rng
from sliceplane.server.io.connections.tls import server_context
from sliceplane.server.io.keys.pki import Pki
from sliceplane.xds.io.authentication import Unsecured
from sliceplane.xds.io.connection import Call
from sliceplane.xds.io.transport import GrpcListener


def response(size: int, nonce: int) -> bytes:
    """A DeltaDiscoveryResponse of *size* bytes: a resource that nobody looks into, and a nonce."""
    tail = b"\x2a\x10%016d" % nonce  # field 5
    body = bytes(size - len(tail) - 4)
    length = bytes((len(body) & 127 | 128, len(body) >> 7 & 127 | 128, len(body) >> 14))
    return b"\x12" + length + body + tail  # field 2


class Pushing:
    def __init__(self, first: bytes) -> None:
        self._first = first
        self.calls: dict[Call, None] = {}

    def opened(self, call: Call) -> None:
        self.calls[call] = None
        call.send(self._first)

    def message(self, call: Call, data: bytes) -> None:
        """A subscription, or an ACK."""

    def half_closed(self, call: Call) -> None:
        call.finish(0)

    def closed(self, call: Call) -> None:
        self.calls.pop(call, None)

    def push(self, message: bytes) -> None:
        for call in self.calls:
            call.send(message)


async def ours(first: bytes, pki: Pki | None) -> tuple[int, Callable[[bytes], None]]:
    handler = Pushing(first)
    listener = GrpcListener(handler, Rng(1))
    sock = socket.create_server(("127.0.0.1", 0), backlog=4096)
    if pki is None:
        listener.start_plain(sock, Unsecured())
    else:
        listener.start(sock, server_context(pki), Unsecured())
    return sock.getsockname()[1], handler.push


async def grpc_aio(first: bytes, pki: Pki | None) -> tuple[int, Callable[[bytes], None]]:
    import grpc
    from grpc import aio

    queues: dict[asyncio.Queue[bytes], None] = {}

    async def stream(requests: AsyncIterator[bytes], _context: Any) -> AsyncIterator[bytes]:
        queue: asyncio.Queue[bytes] = asyncio.Queue()
        queue.put_nowait(first)
        await anext(requests)
        queues[queue] = None
        while True:
            yield await queue.get()
            await anext(requests)

    class Handlers(grpc.GenericRpcHandler):
        def service(self, _details: Any) -> Any:
            return grpc.stream_stream_rpc_method_handler(stream)

    def push(message: bytes) -> None:
        for queue in queues:
            queue.put_nowait(message)

    server = aio.server()
    server.add_generic_rpc_handlers((Handlers(),))
    if pki is None:
        port = server.add_insecure_port("127.0.0.1:0")
    else:
        pair = (pki.server_key_file.read_bytes(), pki.server_file.read_bytes())
        port = server.add_secure_port("127.0.0.1:0", grpc.ssl_server_credentials([pair]))
    await server.start()
    globals()["kept"] = server  # it stops when it is forgotten
    return port, push


async def serve(kind: str, size: int, pki: Pki | None) -> None:
    port, push = await (ours if kind == "ours" else grpc_aio)(response(size, 0), pki)
    loop = asyncio.get_running_loop()
    print(port, flush=True)

    def read() -> None:
        for number, _ in enumerate(sys.stdin):
            loop.call_soon_threadsafe(push, response(size, number))
        loop.call_soon_threadsafe(ended.set)

    ended = asyncio.Event()
    threading.Thread(target=read, daemon=True).start()
    await ended.wait()


if __name__ == "__main__":
    arguments = sys.argv[1:]
    runner = uvloop.run if arguments[0] == "ours" else asyncio.run
    runner(
        serve(
            arguments[0], int(arguments[1]), Pki(Path(arguments[2])) if len(arguments) > 2 else None
        )
    )
