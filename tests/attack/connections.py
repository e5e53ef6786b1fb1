"""Attacks by whoever reaches the port and shows nothing: heads, handshakes, idle connections, slow
readers.

Clients that only hold connections are processes of their own, so that descriptors of this one are
no limit.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import resource
import socket
import ssl
import sys
import time
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path

import aiohttp
from benchmarks.tools.process import PlaneProcess, Process
from tests.attack.harness import (
    Attack,
    Bystander,
    Figure,
    admin_context,
    alive,
    anonymous_context,
    bystander,
)

#: what all that is not authenticated may cost, together: unauthenticated.BYTES_MAX, and what the
#: allocator makes of it
UNAUTHENTICATED_MIB_MAX = 300
#: of what it sends nothing more is held before authentication; on top come an open connection and a
#: parsed head
CONNECTION_KIB_MAX = 64 + 20 + 20
REVIEWS = "/apis/authentication.k8s.io/v1/selfsubjectreviews"
HEAD = b"GET /livez HTTP/1.1\r\nHost: x\r\n"

#: opens connections from several loopback addresses, says how many it could, and holds them until
#: it is told to end
HOLDER = """
import resource, socket, sys
host, sent = sys.argv[1], bytes.fromhex(sys.argv[4])
port, count, first = map(int, (sys.argv[2], sys.argv[3], sys.argv[5]))
soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
held = []
for number in range(min(count, hard - 50)):
    try:
        held.append(socket.create_connection((host, port), 5, (f"127.0.{first}.{1 + number % 8}", 0)))
        if sent:
            held[-1].sendall(sent)
    except OSError:
        pass
print(len(held), flush=True)
sys.stdin.readline()
"""


def address(plane: PlaneProcess) -> tuple[str, int]:
    host, _, port = plane.url.removeprefix("https://").rpartition(":")
    return host, int(port)


def dial(plane: PlaneProcess, context: ssl.SSLContext) -> ssl.SSLSocket:
    sock = socket.create_connection(address(plane), timeout=60)
    return context.wrap_socket(sock)


def holder(plane: PlaneProcess, count: int, sent: bytes = b"", number: int = 1) -> Process:
    host, port = address(plane)
    return Process(
        sys.executable, "-c", HOLDER, host, str(port), str(count), sent.hex(), str(number)
    )


def memory(plane: PlaneProcess, before: float, connections: int = 0) -> tuple[Figure, ...]:
    """What the server has grown by; each connection's part of it where *connections* are held."""
    grown = plane.rss_mib() - before
    whole = Figure("memory that it cost", round(grown, 1), "MiB", UNAUTHENTICATED_MIB_MAX)
    if not connections:
        return (whole,)
    return whole, Figure(
        "of it each connection", round(grown * 1024 / connections, 1), "KiB", CONNECTION_KIB_MAX
    )


async def new_clients_are_served(plane: PlaneProcess) -> Figure:
    """New connections of the administrator, one after another: those that failed."""
    failed = 0
    for _ in range(5):
        with_certificate = aiohttp.TCPConnector(ssl=admin_context(plane), force_close=True)
        async with aiohttp.ClientSession(connector=with_certificate) as session:
            try:
                async with session.get(
                    plane.url + "/api/v1/namespaces", timeout=aiohttp.ClientTimeout(10)
                ) as answer:
                    failed += answer.status != 200
            except (aiohttp.ClientError, OSError, TimeoutError):
                failed += 1
    return Figure("new connections of the administrator that failed", failed, "connections", 0)


@contextlib.asynccontextmanager
async def besieged(
    folder: Path, *flags: str
) -> AsyncIterator[tuple[PlaneProcess, Bystander, float]]:
    """A plane, who else uses it, and its memory before the attack."""
    with PlaneProcess(folder, *flags, command="apiserver") as plane:
        async with bystander(plane) as seen:
            await asyncio.sleep(0.5)
            before = plane.rss_mib()
            seen.longest_s = 0.0
            yield plane, seen, before


async def one_large_head(folder: Path) -> Sequence[Figure]:
    def send(plane: PlaneProcess) -> float:
        began = time.monotonic()
        with dial(plane, anonymous_context()) as tls, contextlib.suppress(OSError):
            tls.sendall(HEAD + b"a:b\r\n" * 200_000 + b"\r\n")
            while tls.recv(65536):
                pass
        return time.monotonic() - began

    async with besieged(folder) as (plane, seen, _):
        took = await asyncio.to_thread(send, plane)
    return *seen.figures(), Figure("time until the answer", round(took, 3), "s", 1.0)


async def many_large_heads(folder: Path) -> Sequence[Figure]:
    held: list[ssl.SSLSocket] = []

    def send(plane: PlaneProcess) -> None:
        context = anonymous_context()
        for _ in range(45):
            held.append(dial(plane, context))
            with contextlib.suppress(OSError):
                held[-1].sendall(HEAD + b"a:b\r\n" * 200_000)

    async with besieged(folder) as (plane, seen, before):
        await asyncio.to_thread(send, plane)
        during = memory(plane, before)[0]
        for tls in held:
            tls.close()
        await asyncio.sleep(1)
        after = Figure(
            "memory one second after they closed", round(plane.rss_mib() - before, 1), "MiB", 64
        )
        return *seen.figures(), during, after, alive(plane)


async def unfinished_heads(folder: Path) -> Sequence[Figure]:
    """The most that a stranger may send of a head, on many connections, each in pieces."""
    held: list[ssl.SSLSocket] = []
    count = 2_000

    def send(plane: PlaneProcess) -> None:
        context = anonymous_context()
        for _ in range(count):
            held.append(dial(plane, context))
            with contextlib.suppress(OSError):
                held[-1].sendall(HEAD + b"abcdefgh: ij\r\n" * 90 + b"X-A: " + b"y" * 60_000)

    async with besieged(folder) as (plane, seen, before):
        await asyncio.to_thread(send, plane)
        await asyncio.sleep(0.5)
        figures = memory(plane, before, count)
        for tls in held:
            tls.close()
        return *seen.figures(), *figures, await new_clients_are_served(plane), alive(plane)


async def trailers(folder: Path) -> Sequence[Figure]:
    counted = 0
    with PlaneProcess(folder, command="apiserver") as plane:
        for trailer in (b"Impersonate-User: ghost", b"impersonate-user: ghost"):
            sent = (
                f"POST {REVIEWS} HTTP/1.1\r\nHost: x\r\nContent-Type: "
                "application/json\r\nConnection: close\r\n"
                "Transfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n"
            ).encode()
            sock = socket.create_connection(address(plane), timeout=10)
            with admin_context(plane).wrap_socket(sock, server_hostname="localhost") as tls:
                tls.sendall(sent + trailer + b"\r\n\r\n")
                said = b""
                with contextlib.suppress(OSError):
                    while data := tls.recv(65536):
                        said += data
                counted += b"ghost" in said
    return (Figure("trailers that counted as headers", counted, "trailers", 0),)


async def idle_connections(folder: Path) -> Sequence[Figure]:
    """As many as this machine lets two clients open; the server's own descriptors are fewer."""
    async with besieged(folder) as (plane, seen, before):
        with contextlib.ExitStack() as stack:
            clients = [
                stack.enter_context(holder(plane, 15_000, number=number)) for number in (1, 2)
            ]
            opened = [int(await asyncio.to_thread(client.line, 120)) for client in clients]
            figures = (*memory(plane, before), await new_clients_are_served(plane), alive(plane))
            fewer = Figure(
                "connections that were opened", sum(opened), "connections", 20_000, at_least=True
            )
        return *seen.figures(), fewer, *figures


async def no_descriptors(folder: Path) -> Sequence[Figure]:
    """1,100 silent connections, TLS and not, at 1,024 descriptors; then the server must still
    store.
    """
    async with besieged(folder) as (plane, seen, _):
        resource.prlimit(plane.process.pid, resource.RLIMIT_NOFILE, (1024, 1024))
        with holder(plane, 1_100) as client:
            await asyncio.to_thread(client.line, 120)
            connector = aiohttp.TCPConnector(ssl=admin_context(plane))
            refused = 0
            async with aiohttp.ClientSession(connector=connector) as session:
                for number in range(20):
                    body = {"metadata": {"name": f"stored-{number}"}}
                    try:
                        async with session.post(
                            plane.url + "/api/v1/namespaces/default/configmaps",
                            data=json.dumps(body),
                            headers={"Content-Type": "application/json"},
                            timeout=aiohttp.ClientTimeout(10),
                        ) as answer:
                            refused += answer.status != 201
                    except (aiohttp.ClientError, OSError, TimeoutError):
                        refused += 1
            lost = Figure("writes that failed", refused, "writes", 0)
            return *seen.figures(), lost, await new_clients_are_served(plane), alive(plane)


async def half_open(folder: Path) -> Sequence[Figure]:
    """ClientHellos that claim to be 128 KiB long, and ones that are merely not finished."""
    claims = b"\x16\x03\x01\x10\x00\x01\x01\xf0\x00\x03\x03" + b"a" * 4090
    modest = b"\x16\x03\x01\x10\x00\x01\x00\x3f\x00\x03\x03" + b"a" * 4090
    async with besieged(folder) as (plane, seen, before):
        with holder(plane, 1_500, claims, 1) as first, holder(plane, 1_500, modest, 2) as second:
            for client in (first, second):
                await asyncio.to_thread(client.line, 120)
            await asyncio.sleep(0.5)
            figures = memory(plane, before, 3_000)
            served = await new_clients_are_served(plane)
        return *seen.figures(), *figures, served, alive(plane)


async def drip_fed(folder: Path) -> Sequence[Figure]:
    """500 heads that come byte by byte."""
    held: list[ssl.SSLSocket] = []

    def feed(plane: PlaneProcess) -> None:
        context = anonymous_context()
        held.extend(dial(plane, context) for _ in range(500))
        ends = time.monotonic() + 8
        while time.monotonic() < ends:
            for tls in held:
                with contextlib.suppress(OSError):
                    tls.send(b"G" if tls.fileno() % 2 else HEAD[:1])
            time.sleep(0.2)

    async with besieged(folder) as (plane, seen, before):
        await asyncio.to_thread(feed, plane)
        figures = memory(plane, before, len(held))
        for tls in held:
            tls.close()
        return *seen.figures(), *figures, alive(plane)


def _ask_and_read_nothing(
    paths: Sequence[str], context: Callable[[PlaneProcess], ssl.SSLContext]
) -> Callable[[PlaneProcess, list[ssl.SSLSocket]], None]:
    def ask(plane: PlaneProcess, held: list[ssl.SSLSocket]) -> None:
        shared = context(plane)
        for number in range(150):
            sock = socket.socket()
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            sock.settimeout(20)
            sock.connect(address(plane))
            tls = shared.wrap_socket(sock, server_hostname="localhost")
            held.append(tls)
            tls.setblocking(False)
            asked = f"GET {paths[number % len(paths)]} HTTP/1.1\r\nHost: x\r\n\r\n".encode()
            with contextlib.suppress(OSError):
                for _ in range(60):
                    tls.send(asked)

    return ask


async def slow_readers(folder: Path) -> Sequence[Figure]:
    """150 strangers that ask again and again and read nothing: pages, and refusals that repeat a
    long path.
    """
    ask = _ask_and_read_nothing(
        ("/version", "/readyz?verbose", "/x" + '"' * 30_000), lambda _: anonymous_context()
    )
    held: list[ssl.SSLSocket] = []
    async with besieged(folder) as (plane, seen, before):
        await asyncio.to_thread(ask, plane, held)
        await asyncio.sleep(1)
        figures = memory(plane, before)
        for tls in held:
            tls.close()
        return *seen.figures(), *figures, await new_clients_are_served(plane), alive(plane)


ATTACKS = (
    Attack(
        "one-large-head",
        "a stranger sends one request whose head is 1 MB of tiny equal fields",
        one_large_head,
    ),
    Attack(
        "many-large-heads",
        "45 strangers send such heads and do not end them, then close",
        many_large_heads,
    ),
    Attack(
        "unfinished-heads",
        "2,000 strangers send as much of a head as is taken, and stop",
        unfinished_heads,
    ),
    Attack("trailers", "headers that a proxy strips are sent behind a chunked body", trailers),
    Attack(
        "idle-connections",
        "30,000 connections from 16 addresses that say nothing",
        idle_connections,
    ),
    Attack("no-descriptors", "1,100 silent connections against 1,024 descriptors", no_descriptors),
    Attack(
        "half-open-tls",
        "3,000 handshakes that stop within a ClientHello, half of them claiming 128 KiB",
        half_open,
    ),
    Attack("drip-fed-heads", "500 strangers send heads byte by byte", drip_fed),
    Attack("slow-readers", "150 strangers ask, ask again, and read nothing", slow_readers),
)
