"""Many watchers in a process of their own, as cheap as can be, so that the server is what is
measured.

Real watchers decrypt on machines of their own; here they would take the server's processors away.
So every connection makes a full TLS handshake and request, but only one in ``DECRYPTING`` decrypts
what comes: it counts events by their line ends (a watch event is one line of JSON, which ends with
a line feed alone; lines of HTTP have a carriage return before it), and the first of them keeps its
stream and reads it properly at the end of each round. The others follow the TLS records, whose
heads tell how much plain text is in them, and must get exactly as many bytes as the ones that look.
No event loop and no HTTP library: one ``epoll``.

Run as ``python -m benchmarks.tools.watchers KUBECONFIG PATH COUNT``. It prints ``open SECONDS``
when all watches are open. For each line ``NUMBER`` of its standard input it waits until every
watcher has got NUMBER events more, and prints ``got MONOTONIC BYTES LAST``: when that was, what all
of them got, the last event's resourceVersion. Ends with its standard input; ends with an error when
a stream does.
"""

from __future__ import annotations

import asyncio
import json
import select
import socket
import ssl
import sys
import time
from pathlib import Path
from urllib.parse import urlsplit

from sliceplane.watch.io.kubeconfig import load

READ_BYTES = 256 * 1024
DECRYPTING = 50
#: TLS 1.3: type, version and length before a record; inner type and tag at its end
APPLICATION_DATA = 23
RECORD_HEAD_BYTES = 5
RECORD_TAIL_BYTES = 17


class Watcher:
    """One connection: handshake and request are blocking, what follows is not."""

    # One pair for all: nothing stays in them between two calls.
    _cipher = bytearray(READ_BYTES)
    _plain = bytearray(2 * READ_BYTES)
    _cipher_view = memoryview(_cipher)
    _plain_view = memoryview(_plain)

    def __init__(
        self, server: str, context: ssl.SSLContext, path: str, token: str, *, decrypts: bool
    ) -> None:
        """*token*: the header ``Authorization``; "": none is sent."""
        url = urlsplit(server)
        assert url.hostname is not None, server
        assert url.port is not None, server
        self.sock = socket.create_connection((url.hostname, url.port), timeout=60)
        self._incoming = ssl.MemoryBIO()
        outgoing = ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._incoming, outgoing, server_hostname=url.hostname)
        while True:
            try:
                self._tls.do_handshake()
                break
            except ssl.SSLWantReadError:
                self.sock.sendall(outgoing.read())
                self._incoming.write(self.sock.recv(65536))
        allowed = f"Authorization: {token}\r\n" if token else ""
        self._tls.write(
            f"GET {path} HTTP/1.1\r\nHost: {url.netloc}\r\nAccept: "
            f"application/json\r\n{allowed}\r\n".encode()
        )
        self.sock.sendall(outgoing.read())
        head = b""
        while b"\r\n\r\n" not in head:
            head += self._plain[: self._receive()]
        head, _, body = head.partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 200"), head
        assert not body, f"a watch that starts from now began with {body[:80]!r}"
        assert self._tls.version() == "TLSv1.3", self._tls.version()
        # Half a record that OpenSSL has seen already cannot be followed by another reader.
        self.decrypts = decrypts or self._incoming.pending > 0
        self._tail = b""
        self._skip = 0
        self.events = self.size = 0
        #: the last two bytes of plain text: a chunk of HTTP ends with a line end
        self._end = b""
        self.kept: bytearray | None = None
        self.sock.setblocking(False)

    def _receive(self) -> int:
        """One read of the socket: how many bytes of plain text it brought.  Raises
        ``ConnectionError`` at the end.
        """
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
        if not self.decrypts:
            self._follow()
            return
        filled = self._receive()
        self.events += self._plain.count(b"\n", 0, filled) - self._plain.count(b"\r\n", 0, filled)
        self.size += filled
        self._end = (self._end + self._plain_view[max(0, filled - 2) : filled])[-2:]
        if self.kept is not None:
            self.kept += self._plain_view[:filled]

    def _follow(self) -> None:
        """One read of the socket, record by record.  Raises ``ConnectionError`` at the end."""
        kept = len(self._tail)
        self._cipher[:kept] = self._tail
        count = self.sock.recv_into(self._cipher_view[kept:])
        if not count:
            raise ConnectionError("the server closed the connection")
        end = kept + count
        at = self._skip
        while at + RECORD_HEAD_BYTES <= end:
            assert self._cipher[at] == APPLICATION_DATA, f"a record of type {self._cipher[at]}"
            length = self._cipher[at + 3] << 8 | self._cipher[at + 4]
            self.size += length - RECORD_TAIL_BYTES
            at += RECORD_HEAD_BYTES + length
        # The rest of a record comes with the next reads; half a head is kept.
        self._tail, self._skip = (bytes(self._cipher[at:end]), 0) if at < end else (b"", at - end)

    def has(self, events: int) -> bool:
        """Returns True if *events* were read whole."""
        return self.events >= events and self._end == b"\r\n"

    @property
    def behind(self) -> int:
        """Bytes of the last record that have not arrived."""
        return self._skip + len(self._tail)


def last_version(stream: bytearray, events: int) -> str:
    """The resourceVersion of the last event of *stream*, chunks of HTTP, which must have *events*
    events.
    """
    text = bytes(stream)
    body = b""
    at = 0
    while at < len(text):
        begin = text.index(b"\r\n", at) + 2
        end = begin + int(text[at : begin - 2], 16)
        body += text[begin:end]
        assert text[end : end + 2] == b"\r\n", f"the chunk at {at} has no end"
        at = end + 2
    lines = body.splitlines()
    assert len(lines) == events, f"{len(lines)} events, not {events}"
    last = ""
    for number, line in enumerate(lines):
        event = json.loads(line)
        assert event["type"] in ("ADDED", "MODIFIED"), f"event {number} is {event['type']}"
        last = event["object"]["metadata"]["resourceVersion"]
    return last


def wait_for(watchers: dict[int, Watcher], poll: select.epoll, events: int) -> None:
    """Until every watcher that decrypts has *events*, and every other one as many bytes as they."""
    looking = [watcher for watcher in watchers.values() if watcher.decrypts]
    while not all(watcher.has(events) for watcher in looking):
        for number, _ in poll.poll():
            watchers[number].read()
    size = looking[0].size
    late = {number for number, watcher in watchers.items() if watcher.size < size or watcher.behind}
    while late:
        for number, _ in poll.poll():
            watchers[number].read()
            if watchers[number].size >= size and not watchers[number].behind:
                late.discard(number)
    assert {watcher.size for watcher in watchers.values()} == {size}, (
        "every stream has the same bytes"
    )


def main() -> None:
    kubeconfig = Path(sys.argv[1])
    path = sys.argv[2]
    count = int(sys.argv[3])
    connection = load(kubeconfig)
    assert connection.ssl_context is not None, "watchers use TLS"
    token = asyncio.run(connection.credentials.authorization())
    poll = select.epoll()
    watchers: dict[int, Watcher] = {}
    started = time.monotonic()
    for index in range(count):
        decrypts = index % DECRYPTING == 0
        watcher = Watcher(connection.server, connection.ssl_context, path, token, decrypts=decrypts)
        watchers[watcher.sock.fileno()] = watcher
        poll.register(watcher.sock, select.EPOLLIN)
    first = next(iter(watchers.values()))
    print(f"open {time.monotonic() - started:.2f}", flush=True)
    expected = 0
    for line in sys.stdin:
        first.kept = bytearray()
        events = int(line)
        expected += events
        wait_for(watchers, poll, expected)
        done = time.monotonic()
        size = sum(watcher.size for watcher in watchers.values())
        print(f"got {done:.6f} {size} {last_version(first.kept, events)}", flush=True)


if __name__ == "__main__":
    main()
