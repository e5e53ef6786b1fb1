"""Many watchers in a process of their own, as cheap as TLS allows, so that the server is what is measured.

No event loop and no HTTP library: one ``epoll``, one OpenSSL object for each connection, and events counted by
their line ends.  A watch event is one line of JSON in one HTTP chunk, which makes three line ends (head, event,
tail).  The first watcher keeps its stream, and each round ends with reading it properly: the count is right, and so
is what was counted.

Run as ``python -m benchmarks.tools.watchers KUBECONFIG PATH COUNT``.  It prints ``open SECONDS`` when all watches are
open.  For each line ``NUMBER`` of its standard input it waits until every watcher has got NUMBER events more, and
prints ``got MONOTONIC BYTES LAST``: when that was, what all of them got, the last event's resourceVersion.
Ends with its standard input; ends with an error when a stream does.
"""

from __future__ import annotations

import json
import select
import socket
import ssl
import sys
import time
from pathlib import Path
from urllib.parse import urlsplit

from sliceplane.shell.client.kubeconfig import load

READ_BYTES = 256 * 1024
LINE_ENDS_PER_EVENT = 3


class Watcher:
    """One connection: handshake and request are blocking, what follows is not."""

    # One pair for all: nothing stays in them between two calls.
    _cipher = bytearray(READ_BYTES)
    _plain = bytearray(2 * READ_BYTES)
    _cipher_view, _plain_view = memoryview(_cipher), memoryview(_plain)

    def __init__(self, server: str, context: ssl.SSLContext, path: str) -> None:
        url = urlsplit(server)
        assert url.hostname is not None, server
        assert url.port is not None, server
        self.sock = socket.create_connection((url.hostname, url.port), timeout=60)
        self._incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._incoming, outgoing, server_hostname=url.hostname)
        while True:
            try:
                self._tls.do_handshake()
                break
            except ssl.SSLWantReadError:
                self.sock.sendall(outgoing.read())
                self._incoming.write(self.sock.recv(65536))
        self._tls.write(f"GET {path} HTTP/1.1\r\nHost: {url.netloc}\r\nAccept: application/json\r\n\r\n".encode())
        self.sock.sendall(outgoing.read())
        head = b""
        while b"\r\n\r\n" not in head:
            head += self._plain[: self._receive()]
        head, _, body = head.partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 200"), head
        assert not body, f"a watch that starts from now began with {body[:80]!r}"
        self.line_ends = self.size = 0
        self.kept: bytearray | None = None
        self.sock.setblocking(False)

    def _receive(self) -> int:
        """One read of the socket: how many bytes of plain text it brought.  Raises ``ConnectionError`` at the end."""
        count = self.sock.recv_into(self._cipher)
        if not count:
            raise ConnectionError("the server closed the connection")
        self._incoming.write(self._cipher_view[:count])
        filled = 0
        try:
            while read := self._tls.read(READ_BYTES, self._plain_view[filled:]):  # type: ignore[arg-type]
                filled += read  # type: ignore[operator]  # a number, as it was given a buffer
        except ssl.SSLWantReadError:
            return filled
        raise ConnectionError("the server ended the watch")

    def read(self) -> None:
        filled = self._receive()
        self.line_ends += self._plain.count(b"\n", 0, filled)
        self.size += filled
        if self.kept is not None:
            self.kept += self._plain_view[:filled]


def last_version(stream: bytearray, events: int) -> str:
    """The resourceVersion of the last event of *stream*, which must be *events* chunks of one event each."""
    text, last, at = bytes(stream), "", 0
    for number in range(events):
        begin = text.index(b"\r\n", at) + 2
        end = begin + int(text[at : begin - 2], 16)
        event = json.loads(text[begin:end])
        assert event["type"] in ("ADDED", "MODIFIED"), f"event {number} is {event['type']}"
        last = event["object"]["metadata"]["resourceVersion"]
        assert text[end : end + 2] == b"\r\n", f"event {number} has no end"
        at = end + 2
    assert at == len(text), f"{len(text) - at} bytes after {events} events"
    return last


def wait_for(watchers: dict[int, Watcher], poll: select.epoll, line_ends: int) -> None:
    """Until every watcher has got *line_ends*."""
    missing = sum(watcher.line_ends < line_ends for watcher in watchers.values())
    while missing:
        for number, _ in poll.poll():
            watcher = watchers[number]
            before = watcher.line_ends
            watcher.read()
            missing -= before < line_ends <= watcher.line_ends


def main() -> None:
    kubeconfig, path, count = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
    connection = load(kubeconfig)
    assert connection.ssl_context is not None, "watchers use TLS"
    poll = select.epoll()
    watchers: dict[int, Watcher] = {}
    started = time.monotonic()
    for _ in range(count):
        watcher = Watcher(connection.server, connection.ssl_context, path)
        watchers[watcher.sock.fileno()] = watcher
        poll.register(watcher.sock, select.EPOLLIN)
    first = next(iter(watchers.values()))
    print(f"open {time.monotonic() - started:.2f}", flush=True)
    line_ends = 0
    for line in sys.stdin:
        first.kept = bytearray()
        events = int(line)
        line_ends += events * LINE_ENDS_PER_EVENT
        wait_for(watchers, poll, line_ends)
        done, size = time.monotonic(), sum(watcher.size for watcher in watchers.values())
        print(f"got {done:.6f} {size} {last_version(first.kept, events)}", flush=True)


if __name__ == "__main__":
    main()
