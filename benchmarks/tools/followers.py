"""Watchers that go to another server when theirs is gone, and check what they receive.

Each has a TLS connection, decrypts all events and notes their versions. One whose connection ends
opens the next one within ``RETRY_S``, as a Service sends it to the Pod that is left, and resumes at
the version that it has. No event loop and no HTTP library: one ``epoll``, so that the servers are
what is measured.

Run as ``python -m benchmarks.tools.followers PATH VERSION COUNT KUBECONFIG ...``: the servers, in
their order. It prints ``open SECONDS`` when all watches are open. For a line ``back`` of its standard
input it waits until each of them has lost its server and has a watch again, and prints
``back MONOTONIC REFUSED``: when the last of them had, and the number of answers other than 200. For
a line ``check VERSION,VERSION...`` it waits until all watchers have the last of these versions, and
prints ``got MONOTONIC LOST REPEATED``: the events that watchers did not get, and those that they got
twice or out of their order. Ends with its standard input.
"""

from __future__ import annotations

import heapq
import re
import select
import socket
import ssl
import sys
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from random import Random
from urllib.parse import urlsplit

from sliceplane.kit.io.process.descriptors import raise_limit
from sliceplane.watch.io.kubeconfig import load

#: informers wait as long before they watch again
RETRY_S = 1.0
#: handshakes of watchers that are opened first
AT_A_TIME = 32
READ_BYTES = 64 * 1024
_VERSION = re.compile(rb'"resourceVersion":"(\d+)"')


class Follower:
    """One watcher."""

    def __init__(self, number: int, version: int) -> None:
        self.number = number
        self.versions = [version]
        #: the number of its server
        self.at = 0
        self.has_asked = self.is_open = False
        self.sock: ssl.SSLSocket | None = None
        self.kept = b""

    def take(self, data: bytes) -> None:
        """Notes the events of *data*, a line each."""
        *lines, self.kept = (self.kept + data).split(b"\n")
        for line in lines:
            if line.startswith(b'{"type":"') and (found := _VERSION.search(line)) is not None:
                self.versions.append(int(found[1]))


class Followers:
    """All of one process."""

    def __init__(self, path: str, version: int, count: int, kubeconfigs: list[Path]) -> None:
        self._path = path
        self._servers = []
        for kubeconfig in kubeconfigs:
            connection = load(kubeconfig)
            assert connection.ssl_context is not None, "watchers use TLS"
            self._servers.append((urlsplit(connection.server), connection.ssl_context))
        self.all = [Follower(number, version) for number in range(count)]
        self.refused = 0
        self.lost = 0
        self._poll = select.epoll()
        self._by_descriptor: dict[int, Follower] = {}
        #: when a watcher opens its next connection
        self._due = [(0.0, number) for number in range(count)]
        self._random = Random(1)

    @property
    def opening(self) -> int:
        return sum(not each.is_open for each in self.all)

    def step(self) -> None:
        """Waits for something to happen, and does what follows from it."""
        connecting = len(self._by_descriptor) - (len(self.all) - self.opening)
        limit = AT_A_TIME if not self.lost else len(self.all)
        while self._due and self._due[0][0] <= time.monotonic() and connecting < limit:
            self._connect(self.all[heapq.heappop(self._due)[1]])
            connecting += 1
        for descriptor, _ in self._poll.poll(0.01 if self._due else 1.0):
            follower = self._by_descriptor[descriptor]
            try:
                self._go_on(follower)
            except (ConnectionError, ssl.SSLEOFError):
                self._leave(follower)

    def _connect(self, follower: Follower) -> None:
        url, context = self._servers[follower.at]
        raw = socket.socket()
        raw.setblocking(False)
        raw.connect_ex((url.hostname, url.port))
        follower.sock = context.wrap_socket(
            raw, server_hostname=url.hostname, do_handshake_on_connect=False
        )
        follower.kept = b""
        self._by_descriptor[follower.sock.fileno()] = follower
        self._poll.register(follower.sock, select.EPOLLOUT)

    def _leave(self, follower: Follower) -> None:
        assert follower.sock is not None, "it is connected"
        self._poll.unregister(follower.sock)
        del self._by_descriptor[follower.sock.fileno()]
        follower.sock.close()
        self.lost += follower.is_open
        follower.has_asked = follower.is_open = False
        follower.at = (follower.at + 1) % len(self._servers)
        due = time.monotonic() + self._random.random() * RETRY_S
        heapq.heappush(self._due, (due, follower.number))

    def _go_on(self, follower: Follower) -> None:
        """Raises ``ConnectionError`` and ``ssl.SSLEOFError`` when the connection has ended."""
        sock = follower.sock
        assert sock is not None, "it is connected"
        if not follower.has_asked:
            try:
                sock.do_handshake()
            except ssl.SSLWantReadError:
                self._poll.modify(sock, select.EPOLLIN)
                return
            except ssl.SSLWantWriteError:
                return
            path = f"{self._path}&resourceVersion={follower.versions[-1]}"
            head = f"GET {path} HTTP/1.1\r\nHost: relay\r\nAccept: application/json\r\n\r\n"
            sock.sendall(head.encode())
            self._poll.modify(sock, select.EPOLLIN)
            follower.has_asked = True
        for data in received(sock):
            if not follower.is_open:
                follower.kept += data
                status, end, rest = follower.kept.partition(b"\r\n\r\n")
                if not end:
                    continue
                if not status.startswith(b"HTTP/1.1 200"):
                    self.refused += 1
                    raise ConnectionError(status.decode())
                follower.is_open = True
                follower.kept, data = b"", rest
            follower.take(data)


def received(sock: ssl.SSLSocket) -> Iterator[bytes]:
    """Yields what has arrived.  Raises ``ConnectionError`` at the end."""
    while True:
        try:
            data = sock.recv(READ_BYTES)
        except ssl.SSLWantReadError:
            return
        if not data:
            raise ConnectionError("the server closed the connection")
        yield data


def faults(watched: list[int], sent: list[int]) -> tuple[int, int]:
    """Returns the numbers of events of *sent* that a watcher did not get, and of those that it got
    twice or too late.
    """
    late = sum(after <= before for before, after in pairwise(watched))
    return len(set(sent) - set(watched)), late


def main() -> None:
    path, version, count, *kubeconfigs = sys.argv[1:]
    raise_limit()
    began = time.monotonic()
    followers = Followers(path, int(version), int(count), [Path(each) for each in kubeconfigs])
    while followers.opening:
        followers.step()
    print(f"open {time.monotonic() - began:.2f}", flush=True)
    waits = select.poll()
    waits.register(sys.stdin, select.POLLIN)
    while True:
        while not waits.poll(0):
            followers.step()
        word, _, versions = sys.stdin.readline().strip().partition(" ")
        if word == "back":
            while followers.lost < len(followers.all) or followers.opening:
                followers.step()
            print(f"back {time.monotonic():.6f} {followers.refused}", flush=True)
        elif word == "check":
            sent = [int(each) for each in versions.split(",")]
            while any(each.versions[-1] < sent[-1] for each in followers.all):
                followers.step()
            found = [faults(each.versions, sent) for each in followers.all]
            lost, repeated = (sum(numbers) for numbers in zip(*found, strict=True))
            print(f"got {time.monotonic():.6f} {lost} {repeated}", flush=True)
        else:
            return


if __name__ == "__main__":
    main()
