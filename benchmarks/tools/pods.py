"""Pods, as servers of one process: HTTP at port 8080 and gRPC at 9090 of an address, which they
answer with.

Lines of standard input are ``start ADDRESS`` and ``stop ADDRESS``, each of which is answered with a
line. 0.0.0.0 is every Pod that has no server of its own. A Pod that stops closes its HTTP
connections at once, whatever is under way, and gives gRPC a second.
"""

from __future__ import annotations

import asyncio
import sys
from typing import Any, cast

from grpc import aio, method_handlers_generic_handler, unary_unary_rpc_method_handler

METHOD = "/test.Echo/Say"
HTTP_PORT = 8080
GRPC_PORT = 9090


class HttpConnection(asyncio.Protocol):
    def __init__(self, transports: set[asyncio.Transport]) -> None:
        self._transports = transports
        self._unread = b""
        self._answer = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._transports.add(self._transport)
        address = transport.get_extra_info("sockname")[0].encode()
        self._answer = b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%b" % (len(address), address)

    def data_received(self, data: bytes) -> None:
        *requests, self._unread = (self._unread + data).split(b"\r\n\r\n")
        self._transport.write(self._answer * len(requests))

    def connection_lost(self, exc: Exception | None) -> None:
        self._transports.discard(self._transport)


async def say(_request: bytes, context: Any) -> bytes:
    """The address that was called is the one from which it was called (``tools.loopback``)."""
    return context.peer().partition(":")[2].rpartition(":")[0].encode()  # type: ignore[no-any-return]


class EmulatedPod:
    def __init__(self) -> None:
        self._transports: set[asyncio.Transport] = set()

    async def start(self, address: str) -> None:
        loop = asyncio.get_running_loop()
        self._http = await loop.create_server(
            lambda: HttpConnection(self._transports),
            address,
            HTTP_PORT,
            reuse_port=True,
            backlog=512,
        )
        self._grpc = aio.server()
        handlers = {"Say": unary_unary_rpc_method_handler(say)}
        self._grpc.add_generic_rpc_handlers(
            (method_handlers_generic_handler("test.Echo", handlers),)
        )
        self._grpc.add_insecure_port(f"{address}:{GRPC_PORT}")
        await self._grpc.start()

    async def stop(self) -> None:
        self._http.close()
        for transport in list(self._transports):
            transport.abort()
        await self._grpc.stop(1.0)


async def main() -> None:
    pods: dict[str, EmulatedPod] = {}
    loop = asyncio.get_running_loop()
    while line := await loop.run_in_executor(None, sys.stdin.readline):
        verb, address = line.split()
        if verb == "start":
            pods[address] = EmulatedPod()
            await pods[address].start(address)
        else:
            await pods.pop(address).stop()
        print(verb, flush=True)


if __name__ == "__main__":
    asyncio.run(main())
