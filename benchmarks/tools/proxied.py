"""A node proxy in a process of its own, fed with made Services and EndpointSlices, writing to a real kernel.

The informers are the production ones; their server is replaced by lists and watch events made here, as bytes, so
that what is measured is the node's own work: decoding, tracking, rules, ``nft``, the kernel.

Run as ``python -m benchmarks.tools.proxied SIZES CHANGES`` in the network namespace to write to.  SIZES is like
``5000x40,7x100``: so many services with so many endpoints each, of which the first one changes.  Prints one JSON
object: ``services``, ``endpoints``, ``first_sync_s``, ``rss_mib`` after it, ``change_s`` and ``nft_s`` (lists: one
endpoint changes, until the kernel has it and until ``nft`` has ended).
"""

from __future__ import annotations

import asyncio
import itertools
import json
import socket
import struct
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import IO, Any

from benchmarks.tools.objects import PER_SLICE, service_document, slice_document, uid
from sliceplane.api.codec import encode
from sliceplane.api.scheme import EndpointSlices, Resource, Services
from sliceplane.kit.rng import Rng
from sliceplane.shell.client.base import ListPage, WatchMessage
from sliceplane.shell.nft_backend import Nftables
from sliceplane.shell.nft_runner import NftRunner
from sliceplane.shell.node_proxy import NodeProxy

SECONDS_MAX = 60.0
#: objects in one answer to a list
PAGE = 500
PAUSE_S = 0.05
# From linux/netlink.h, linux/netfilter/nfnetlink.h and nf_tables.h.
NETLINK_NETFILTER, NFNLGRP_NFTABLES, NEW_GENERATION = 12, 7, 10 << 8 | 15


def service_ip(number: int) -> str:
    return f"10.{96 + (number >> 16)}.{number >> 8 & 255}.{number & 255}"


def sizes_of(groups: str) -> list[int]:
    """How many endpoints each service has, from text like ``5000x40,7x100``."""
    sizes: list[int] = []
    for group in groups.split(","):
        services, endpoints = map(int, group.split("x"))
        sizes += [endpoints] * services
    return sizes


class Cluster:
    """Services ``s-00000`` and on.  Knows the bytes of everything, keeps none of them."""

    def __init__(self, sizes: list[int]) -> None:
        self._sizes = sizes
        self.revision = len(sizes) + 10

    def services(self) -> Iterator[bytes]:
        for number in range(len(self._sizes)):
            yield self._stored(service_document(f"s-{number:05d}", cluster_ip=service_ip(number + 2)), number, 1)

    def slices(self) -> Iterator[bytes]:
        first = 0
        for number, size in enumerate(self._sizes):
            for part, begin in enumerate(range(first, first + size, PER_SLICE)):
                pods = range(begin, min(begin + PER_SLICE, first + size))
                yield self.slice(number, part, pods)
            first += size

    def slice(self, service: int, part: int, pods: range, *, without: int = -1, revision: int = 1) -> bytes:
        name = f"s-{service:05d}"
        document = slice_document(f"{name}-{part:03d}", name, pods)
        if without >= 0:
            document["endpoints"][without]["conditions"] = {"ready": False, "serving": False, "terminating": False}
        return self._stored(document, service * 1000 + part, revision)

    @staticmethod
    def _stored(document: dict[str, Any], number: int, revision: int) -> bytes:
        document["metadata"] |= {"uid": uid(number), "resourceVersion": str(revision)}
        return encode(document)


class Server:
    """As much of ``shell.client.base.Client`` as informers use."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._events: asyncio.Queue[WatchMessage] = asyncio.Queue()
        self._spools = {Services.key: _spool(cluster.services()), EndpointSlices.key: _spool(cluster.slices())}

    def send(self, body: bytes) -> None:
        self._events.put_nowait(WatchMessage("MODIFIED", body))

    async def list(self, resource: Resource, **ignored: object) -> ListPage:
        """Pages of 500, as over HTTP."""
        spool = self._spools.get(resource.key)
        lines = [] if spool is None else [line.rstrip(b"\n") for line in itertools.islice(spool, PAGE)]
        return ListPage(tuple(lines), str(self._cluster.revision), "more" if len(lines) == PAGE else "")

    @asynccontextmanager
    async def watch(self, resource: Resource, **ignored: object) -> AsyncIterator[AsyncIterator[WatchMessage]]:
        async def events() -> AsyncIterator[WatchMessage]:
            while True:
                if resource is EndpointSlices:
                    yield await self._events.get()
                else:
                    await asyncio.Event().wait()

        yield events()


def _spool(bodies: Iterator[bytes]) -> IO[bytes]:
    """A file, one body a line, so that what a server would hold does not count as the proxy's memory."""
    file = tempfile.TemporaryFile()  # noqa: SIM115  # lives as long as the process
    for body in bodies:
        file.write(body + b"\n")
    file.seek(0)
    return file


def rss_mib() -> float:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) / 1024
    raise RuntimeError("no VmRSS")


class Commits:
    """When the kernel took a transaction, from its own mouth: nftables tells listeners of each new generation."""

    def __init__(self) -> None:
        self.times: list[float] = []
        self._sock = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, NETLINK_NETFILTER)
        self._sock.setblocking(False)

    def listen(self) -> None:
        """From now on, as listeners make large transactions slower."""
        self._sock.bind((0, 1 << (NFNLGRP_NFTABLES - 1)))
        asyncio.get_running_loop().add_reader(self._sock, self._read)

    def _read(self) -> None:
        data, now, at = self._sock.recv(1 << 20), time.perf_counter(), 0
        while at < len(data):
            length, kind = struct.unpack_from("=IH", data, at)
            if kind == NEW_GENERATION:
                self.times.append(now)
            at += (length + 3) & ~3

    def close(self) -> None:
        asyncio.get_running_loop().remove_reader(self._sock)
        self._sock.close()


class Watched(NftRunner):
    """Tells of each transaction what it said, when the kernel had it and when ``nft`` had ended."""

    def __init__(self, commits: Commits) -> None:
        super().__init__()
        self._commits = commits
        self.taken: asyncio.Queue[tuple[str, float, float]] = asyncio.Queue()

    async def run(self, text: str) -> None:
        before = len(self._commits.times)
        await super().run(text)
        ended = time.perf_counter()
        kernel = self._commits.times[before] if len(self._commits.times) > before else ended
        self.taken.put_nowait((text, kernel, ended))


async def changes(
    server: Server, runner: Watched, cluster: Cluster, size: int, count: int
) -> tuple[list[float], list[float]]:
    """Endpoint 0 of the first service goes and comes back, *count* times in all: seconds to the kernel, to nft's
    end."""
    pods, kernel, ends = range(min(size, PER_SLICE)), [], []
    for number in range(count):
        body = cluster.slice(0, 0, pods, without=0 if number % 2 == 0 else -1, revision=cluster.revision + number + 1)
        started = time.perf_counter()
        server.send(body)
        async with asyncio.timeout(SECONDS_MAX):
            # Objects out of use are removed a second later, by transactions that have no rules.
            text, committed, ended = await runner.taken.get()
            while "numgen" not in text:
                text, committed, ended = await runner.taken.get()
        kernel.append(committed - started)
        ends.append(ended - started)
        await asyncio.sleep(PAUSE_S)
    return kernel, ends


async def main(groups: str, count: int) -> None:
    sizes = sizes_of(groups)
    cluster = Cluster(sizes)
    server, commits = Server(cluster), Commits()
    runner = Watched(commits)
    proxy = NodeProxy("node-00000", Nftables(runner))
    started = time.perf_counter()
    following = asyncio.create_task(proxy.follow(server, Rng(1)))  # type: ignore[arg-type]  # it needs no writes
    try:
        async with asyncio.timeout(SECONDS_MAX):
            await proxy.wait_ready()
        first_sync, memory = time.perf_counter() - started, rss_mib()
        runner.taken = asyncio.Queue()
        commits.listen()
        kernel, ends = await changes(server, runner, cluster, sizes[0], count)
    finally:
        following.cancel()
        await asyncio.gather(following, return_exceptions=True)
        commits.close()
    figures = {"services": len(sizes), "endpoints": sum(sizes), "first_sync_s": first_sync, "rss_mib": memory}
    print(json.dumps({**figures, "change_s": kernel, "nft_s": ends}), flush=True)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], int(sys.argv[2])))
