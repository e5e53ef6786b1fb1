"""A node proxy in a process of its own, fed with made Services and EndpointSlices, writing to a
real kernel.

The informers are the production ones; their server is replaced by lists and watch events made here,
as bytes, so that what is measured is the node's own work: decoding, tracking, rules, messages, the
kernel.

Run as ``python -m benchmarks.tools.proxied SIZES CHANGES`` in the network namespace to write to.
SIZES is like ``5000x40,7x100``: so many services with so many endpoints each, of which the first
one changes. Prints one JSON object: ``services``, ``endpoints``; ``first_sync_s``, of which
``first_write_s`` from the finished transaction on, and ``first_cpu_s`` all CPU until then,
``first_bytes`` of its text, ``rss_mib`` after it; ``change``, ``scaled`` and ``added`` (one
endpoint is replaced by another, one goes or comes, one service comes), each of lists: ``kernel_s``
until the kernel has it, ``ours_s`` of that until the transaction is finished, ``end_s`` until the
writer knows, ``cpu_s`` of all of it, and ``bytes`` of its text; ``by_program``, how many writes
were made by ``nft``; ``load_s``, ``load_cpu_s`` and ``list_s``: ``nft`` alone loads the text of the
first sync again, and lists the table.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import resource
import socket
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import IO, Any, NamedTuple

from benchmarks.tools.objects import (
    PER_SLICE,
    node_document,
    node_name,
    service_document,
    slice_document,
    uid,
)
from sliceplane.api.codec import encode
from sliceplane.api.requests import Selection
from sliceplane.api.scheme import EndpointSlices, Nodes, Resource, Services
from sliceplane.kit.rng import Rng
from sliceplane.node.io.kernel.nft_backend import Nftables, NftRunner
from sliceplane.node.io.node_proxy import NodeProxy
from sliceplane.node.io.options import ProxyConfig
from sliceplane.node.nft.objects import Transaction
from sliceplane.watch.io.base import ListPage, WatchMessage

WAIT_MAX_S = 60.0
NODE = node_name(0)
#: objects in one answer to a list
PAGE = 500
PAUSE_S = 0.05
#: numbers from here on are those of Pods that no service begins with
ELSEWHERE = 4_000_000
# From linux/netlink.h, linux/netfilter/nfnetlink.h and nf_tables.h.
NETLINK_NETFILTER = 12
NFNLGRP_NFTABLES = 7
NEW_GENERATION = 10 << 8 | 15


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
            yield self.service(number)

    def slices(self) -> Iterator[bytes]:
        first = 0
        for number, size in enumerate(self._sizes):
            for part, begin in enumerate(range(first, first + size, PER_SLICE)):
                pods = range(begin, min(begin + PER_SLICE, first + size))
                yield self.slice(number, part, pods)
            first += size

    def service(self, number: int, revision: int = 1) -> bytes:
        return self._stored(
            service_document(f"s-{number:05d}", cluster_ip=service_ip(number + 2)), number, revision
        )

    def slice(
        self, service: int, part: int, pods: Sequence[int], *, without: int = -1, revision: int = 1
    ) -> bytes:
        name = f"s-{service:05d}"
        document = slice_document(f"{name}-{part:03d}", name, pods)
        if without >= 0:
            document["endpoints"][without]["conditions"] = {
                "ready": False,
                "serving": False,
                "terminating": False,
            }
        return self._stored(document, service * 1000 + part, revision)

    @staticmethod
    def _stored(document: dict[str, Any], number: int, revision: int) -> bytes:
        document["metadata"] |= {"uid": uid(number), "resourceVersion": str(revision)}
        return encode(document)


class Server:
    """As much of ``watch.io.base.Client`` as informers use."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._events: dict[str, asyncio.Queue[WatchMessage]] = {
            resource.key: asyncio.Queue() for resource in (Services, EndpointSlices)
        }
        node = node_document(0)
        node["metadata"] |= {"uid": uid(0), "resourceVersion": "1"}
        self._spools = {
            Services.key: _spool(cluster.services()),
            EndpointSlices.key: _spool(cluster.slices()),
            Nodes.key: _spool(iter((encode(node),))),
        }

    def send(
        self, body: bytes, resource: Resource = EndpointSlices, what: str = "MODIFIED"
    ) -> None:
        self._events[resource.key].put_nowait(WatchMessage(what, body))

    async def list(self, selection: Selection, **ignored: object) -> ListPage:
        """Pages of 500, as over HTTP."""
        resource = selection.resource
        spool = self._spools.get(resource.key)
        lines = (
            [] if spool is None else [line.rstrip(b"\n") for line in itertools.islice(spool, PAGE)]
        )
        # A token that two pages have in common ends a list (``watch.paging``).
        token = f"at-{spool.tell()}" if spool is not None and len(lines) == PAGE else ""
        return ListPage(tuple(lines), str(self._cluster.revision), token)

    @asynccontextmanager
    async def watch(
        self, selection: Selection, **ignored: object
    ) -> AsyncIterator[AsyncIterator[WatchMessage]]:
        async def events() -> AsyncIterator[WatchMessage]:
            resource = selection.resource
            while True:
                if resource.key in self._events:
                    yield await self._events[resource.key].get()
                else:
                    await asyncio.Event().wait()

        yield events()


def _spool(bodies: Iterator[bytes]) -> IO[bytes]:
    """A file, one body a line, so that what a server would hold does not count as the proxy's
    memory.
    """
    file = tempfile.TemporaryFile()  # noqa: SIM115  # lives as long as the process
    for body in bodies:
        file.write(body + b"\n")
    file.seek(0)
    return file


def rss_mib(field: str = "VmRSS") -> float:
    """*field*: VmHWM for the maximum so far."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{field}:"):
            return int(line.split()[1]) / 1024
    raise RuntimeError(f"no {field}")


class Commits:
    """When the kernel took a transaction, from its own mouth: nftables tells listeners of each new
    generation.
    """

    def __init__(self) -> None:
        self.times: list[float] = []
        self._sock = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, NETLINK_NETFILTER)
        self._sock.setblocking(False)

    def listen(self) -> None:
        """From now on, as listeners make large transactions slower."""
        self._sock.bind((0, 1 << (NFNLGRP_NFTABLES - 1)))
        asyncio.get_running_loop().add_reader(self._sock, self._read)

    def _read(self) -> None:
        data = self._sock.recv(1 << 20)
        now = time.perf_counter()
        at = 0
        while at < len(data):
            length, kind = struct.unpack_from("=IH", data, at)
            if kind == NEW_GENERATION:
                self.times.append(now)
            at += (length + 3) & ~3

    def close(self) -> None:
        asyncio.get_running_loop().remove_reader(self._sock)
        self._sock.close()


def cpu_s() -> float:
    """Of this process, the kernel's work for it, and the programs that it ran."""
    used = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(usage.ru_utime + usage.ru_stime for usage in used)


class Taken(NamedTuple):
    """A transaction, when its write began, when the kernel had it and when the writer knew."""

    transaction: Transaction
    began: float
    committed: float
    ended: float
    cpu_s: float


class Watched(NftRunner):
    """Tells of each transaction.  Keeps the text of the first of IPv4 in a file, as it is large."""

    def __init__(self, commits: Commits) -> None:
        super().__init__()
        self._commits = commits
        self.taken: asyncio.Queue[Taken] = asyncio.Queue()
        self.first_text = tempfile.NamedTemporaryFile("w+")  # noqa: SIM115  # lives as long as the process
        self.first_write_s = 0.0
        self.first_bytes = 0
        #: what keeping that text took
        self.keeping_s = self.keeping_cpu_s = 0.0

    async def write(self, transaction: Transaction) -> bool:
        before = len(self._commits.times)
        began = time.perf_counter()
        by_messages = await super().write(transaction)
        ended = time.perf_counter()
        used = cpu_s()
        kernel = self._commits.times[before] if len(self._commits.times) > before else ended
        self.taken.put_nowait(Taken(transaction, began, kernel, ended, used))
        if not self.first_write_s and transaction.table.family == "ip":
            self.first_write_s = ended - began
            self.first_bytes = self.first_text.write(transaction.render())
            self.first_text.flush()
            self.keeping_s = time.perf_counter() - ended
            self.keeping_cpu_s = cpu_s() - used
        return by_messages


class Measures:
    """One list for each figure."""

    def __init__(self) -> None:
        self.lists: dict[str, list[float]] = {
            "kernel_s": [],
            "ours_s": [],
            "end_s": [],
            "cpu_s": [],
            "bytes": [],
        }

    async def wait(self, runner: Watched, started: float, used: float) -> None:
        """For the transaction that a change of *started* makes."""
        async with asyncio.timeout(WAIT_MAX_S):
            taken = await runner.taken.get()
            while taken.began < started:  # objects out of use are removed a second later
                taken = await runner.taken.get()
        size = float(len(taken.transaction.render()))
        times = (taken.committed - started, taken.began - started, taken.ended - started)
        found = (*times, taken.cpu_s - used, size)
        for values, value in zip(self.lists.values(), found, strict=True):
            values.append(value)
        await asyncio.sleep(PAUSE_S)


async def scale(
    server: Server, runner: Watched, cluster: Cluster, size: int, count: int
) -> Measures:
    """Endpoint 0 of the first service goes and comes back, *count* times in all; beside an only one
    another comes.
    """
    pods = range(max(2, min(size, PER_SLICE)))
    measures = Measures()
    for number in range(count):
        cluster.revision += 1
        body = cluster.slice(
            0, 0, pods, without=0 if number % 2 == 0 else -1, revision=cluster.revision
        )
        started = time.perf_counter()
        used = cpu_s()
        server.send(body)
        await measures.wait(runner, started, used)
    return measures


async def replace_endpoints(
    server: Server, runner: Watched, cluster: Cluster, size: int, count: int
) -> Measures:
    """All endpoints of a slice of the first service but one stay, and that one moves, *count* times
    in all.
    """
    measures = Measures()
    stay = min(size, PER_SLICE) - 1
    for number in range(count):
        cluster.revision += 1
        first = ELSEWHERE + number
        body = cluster.slice(0, 0, [*range(stay), first], revision=cluster.revision)
        started = time.perf_counter()
        used = cpu_s()
        server.send(body)
        await measures.wait(runner, started, used)
    return measures


async def add_services(
    server: Server, runner: Watched, cluster: Cluster, sizes: list[int], count: int
) -> Measures:
    """Services with as many endpoints as the first (a slice's worth at most) come one after the
    other.
    """
    measures = Measures()
    first = sum(sizes)
    for number in range(len(sizes), len(sizes) + count):
        cluster.revision += 1
        slice_body = cluster.slice(
            number, 0, range(first, first + min(sizes[0], PER_SLICE)), revision=cluster.revision
        )
        service_body = cluster.service(number, cluster.revision)
        started = time.perf_counter()
        used = cpu_s()
        server.send(slice_body, EndpointSlices, "ADDED")
        server.send(service_body, Services, "ADDED")
        await measures.wait(runner, started, used)
    return measures


def bare(*arguments: str) -> float:
    """Seconds that ``nft`` takes by itself."""
    started = time.perf_counter()
    subprocess.run(["nft", *arguments], stdout=subprocess.DEVNULL, check=True)
    return time.perf_counter() - started


async def main(groups: str, count: int) -> None:
    sizes = sizes_of(groups)
    cluster = Cluster(sizes)
    server = Server(cluster)
    commits = Commits()
    runner = Watched(commits)
    backend = Nftables(runner)
    proxy = NodeProxy(ProxyConfig(NODE), backend)
    started = time.perf_counter()
    used = cpu_s()
    following = asyncio.create_task(proxy.follow(server, Rng(1)))  # type: ignore[arg-type]  # it needs no writes
    try:
        async with asyncio.timeout(WAIT_MAX_S):
            await proxy.wait_ready()
        first_sync = time.perf_counter() - started - runner.keeping_s
        memory = rss_mib()
        served = proxy.counts()["IPv4"][0]
        assert served == len(sizes), f"{served} Services are served, not {len(sizes)}"
        first_cpu = cpu_s() - used - runner.keeping_cpu_s
        runner.taken = asyncio.Queue()
        commits.listen()
        changed = await replace_endpoints(server, runner, cluster, sizes[0], count)
        scaled = await scale(server, runner, cluster, sizes[0], count)
        added = await add_services(server, runner, cluster, sizes, max(1, count // 4))
    finally:
        following.cancel()
        await asyncio.gather(following, return_exceptions=True)
        commits.close()
    before_load = cpu_s()
    figures = {
        "services": len(sizes),
        "endpoints": sum(sizes),
        "first_sync_s": first_sync,
        "first_write_s": runner.first_write_s,
        "first_cpu_s": first_cpu,
        "first_bytes": runner.first_bytes,
        "rss_mib": memory,
        "change": changed.lists,
        "scaled": scaled.lists,
        "added": added.lists,
        "by_program": backend.writes_by_transport["nft"],
        "load_s": bare("-f", runner.first_text.name),
        "load_cpu_s": cpu_s() - before_load,
        "list_s": bare("list", "table", "ip", "sliceplane"),
    }
    print(json.dumps(figures), flush=True)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], int(sys.argv[2])))
