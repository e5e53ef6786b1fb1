"""What fan-out costs at least: a server that knows one event and one HTTP head, and writes them by
hand.

Every connection gets the head of a chunked answer for whatever it asks, and for each line of the
standard input the same 25 KB chunk. No objects, no watches, no queues, no limits: what is left is
TLS, the kernel, and the loop.

Run as ``python -m benchmarks.tools.floor_server HOW CERTIFICATE KEY EVENT``; HOW is ``loop`` (TLS
by the event loop: encrypted in memory, then sent) or ``socket`` (OpenSSL writes to the socket
itself, as in the real server: one copy less). Prints ``ready PORT``. EVENT is a file; ends with its
standard input.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import uvloop

HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n"
#: as the real server, which lets requests be read in between
STREAMS_PER_TURN = 16


class LoopConnection(asyncio.Protocol):
    """A connection whose TLS is the loop's."""

    everybody: list[LoopConnection] = []

    def connection_made(self, transport: Any) -> None:
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        if data.endswith(b"\r\n\r\n"):
            self._transport.write(HEAD)
            self.everybody.append(self)

    def send(self, chunk: bytes) -> None:
        self._transport.write(chunk)


class SocketConnection:
    """A connection whose TLS is OpenSSL's on the socket: nothing is buffered but by the kernel."""

    everybody: list[SocketConnection] = []

    def __init__(self, sock: ssl.SSLSocket) -> None:
        self._sock = sock
        self._rest = memoryview(b"")

    def send(self, chunk: bytes) -> None:
        idle = not self._rest
        self._rest = memoryview(bytes(self._rest) + chunk if self._rest else chunk)
        if idle:
            self._flush()

    def _flush(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            while self._rest:
                self._rest = self._rest[self._sock.write(self._rest) :]
        except ssl.SSLWantWriteError:
            loop.add_writer(self._sock.fileno(), self._flush)
            return
        loop.remove_writer(self._sock.fileno())


async def write_in_turns(everybody: list[Any], chunk: bytes) -> None:
    for number, connection in enumerate(everybody, 1):
        connection.send(chunk)
        if number % STREAMS_PER_TURN == 0:
            await asyncio.sleep(0)


async def serve_by_loop(context: ssl.SSLContext) -> tuple[int, list[Any]]:
    loop = asyncio.get_running_loop()
    server = await loop.create_server(LoopConnection, "127.0.0.1", 0, ssl=context, backlog=1024)
    return server.sockets[0].getsockname()[1], LoopConnection.everybody


async def serve_by_socket(context: ssl.SSLContext) -> tuple[int, list[Any]]:
    listener = socket.create_server(("127.0.0.1", 0), backlog=1024)

    def accept() -> None:
        while True:
            plain, _ = listener.accept()
            plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            sock = context.wrap_socket(plain, server_side=True)
            asked = b""
            while not asked.endswith(b"\r\n\r\n"):
                asked += sock.recv(4096)
            sock.sendall(HEAD)
            sock.setblocking(False)
            SocketConnection.everybody.append(SocketConnection(sock))

    import threading

    threading.Thread(target=accept, daemon=True).start()
    return listener.getsockname()[1], SocketConnection.everybody


async def main(how: str, certificate: str, key: str, line: bytes) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    chunk = b"%x\r\n%s\r\n" % (len(line), line)
    serve: Callable[[ssl.SSLContext], Any] = {"loop": serve_by_loop, "socket": serve_by_socket}[how]
    port, everybody = await serve(context)
    print(f"ready {port}", flush=True)
    loop = asyncio.get_running_loop()
    while await loop.run_in_executor(None, sys.stdin.readline):
        await write_in_turns(everybody, chunk)


if __name__ == "__main__":
    uvloop.run(main(*sys.argv[1:4], Path(sys.argv[4]).read_bytes()))
