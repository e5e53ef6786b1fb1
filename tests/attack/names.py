"""Attacks on the name server, with queries alone: no account, no name that exists but those that
everybody knows.

The server is a process of its own on loopback. Attackers ask from 127.0.0.2 and above, the
bystander from 127.0.0.1.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Final

import dns.message
import dns.rcode
import dns.rdatatype
import dns.rrset
from benchmarks.tools.process import Process
from tests.attack.harness import STEP_SECONDS_MAX, Attack, Bystander, Figure, alive
from tests.attack.name_server_process import SERVICES

OWN: Final = "demo.default.svc.cluster.local."
QUERIES = 300
QUERY_S = 0.01
MEMORY_MIB_MAX = 32
#: of CPU, in milliseconds
QUERY_MS_MAX = 2.0
_HEADER: Final = struct.Struct("!6H")


def query(name: str, kind: str = "A", number: int = 7) -> bytes:
    return bytes(dns.message.make_query(name, kind, id=number, use_edns=0).to_wire())


@contextmanager
def name_server(folder: Path, forward: str = "none") -> Iterator[tuple[Process, int]]:
    module = "tests.attack.name_server_process"
    with Process(sys.executable, "-m", module, forward, log=folder / "dns.log") as process:
        yield process, int(process.line().rpartition(" ")[2])


def longest_step(process: Process) -> Figure:
    """Since it was asked for last."""
    process.say("figures")
    return Figure(
        "longest step of the server's loop", float(process.line()) / 1000, "s", STEP_SECONDS_MAX
    )


@contextmanager
def datagrams(address: str, port: int) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as own:
        own.setblocking(False)
        own.bind((address, 0))
        own.connect(("127.0.0.1", port))
        yield own


async def answer_to(own: socket.socket, packet: bytes, within_s: float = 5.0) -> bytes | None:
    """``None``: none came."""
    loop = asyncio.get_running_loop()
    await loop.sock_sendall(own, packet)
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(within_s):
            while (answer := await loop.sock_recv(own, 65535))[:2] != packet[:2]:
                pass
            return answer
    return None


@asynccontextmanager
async def asking(
    port: int, name: Callable[[int], str] = lambda _: OWN, period_s: float = 0.02
) -> AsyncIterator[Bystander]:
    """A bystander asks over UDP for as long as the block runs; an answer without records is a
    failure.
    """
    seen = Bystander()
    ending = asyncio.Event()

    async def ask() -> None:
        with datagrams("127.0.0.1", port) as own:
            while not ending.is_set():
                began = time.monotonic()
                answer = await answer_to(
                    own, query(name(seen.answers), number=seen.answers % 65536)
                )
                seen.failed += answer is None or answer[6:8] == b"\0\0"
                seen.answers += 1
                seen.longest_s = max(seen.longest_s, time.monotonic() - began)
                await asyncio.sleep(period_s)

    task = asyncio.create_task(ask())
    try:
        yield seen
    finally:
        ending.set()
        await task


async def _flood(
    folder: Path, packets: Callable[[int], bytes], *, count: int = QUERIES
) -> Sequence[Figure]:
    """*count* datagrams, one every ``QUERY_S``: what each costs, and what others wait."""
    with name_server(folder) as (process, port), datagrams("127.0.0.2", port) as own:
        async with asking(port) as seen:
            await asyncio.sleep(0.2)
            longest_step(process)
            cpu, memory = process.cpu_s(), process.rss_mib()
            for number in range(count):
                with contextlib.suppress(OSError):
                    own.send(packets(number))
                await asyncio.sleep(QUERY_S)
            own.setblocking(True)
            own.settimeout(30)
            own.send(query(OWN, number=999))
            while own.recv(65535)[:2] != (999).to_bytes(2, "big"):
                pass  # until all that was sent before is answered
        each = (process.cpu_s() - cpu) / count * 1000
        return (
            Figure(
                "CPU for each query, the bystander's with it", round(each, 2), "ms", QUERY_MS_MAX
            ),
            Figure("more memory", round(process.rss_mib() - memory, 1), "MiB", MEMORY_MIB_MAX),
            longest_step(process),
            *seen.figures(),
            alive(process),
        )


async def _made_up(folder: Path) -> Sequence[Figure]:
    def packet(number: int) -> bytes:
        return query(
            f"r{number}.prefer._zone.big{number % SERVICES}.default.svc.cluster.local.", "SRV"
        )

    return await _flood(folder, packet)


def pointers(size: int) -> bytes:
    """A query with as many small additional records as fit, each with a name of 126 pointers."""
    packet = bytearray(_HEADER.pack(7, 0x100, 1, 0, 0, 0) + b"\1a\0\0\1\0\1")
    first = len(packet) + 11
    chain = b"\0" + b"".join(
        struct.pack("!H", 0xC000 | (first if at == 0 else first + 1 + 2 * (at - 1)))
        for at in range(125)
    )
    packet += b"\0" + struct.pack("!HHIH", 16, 1, 0, len(chain)) + chain
    last = first + len(chain) - 2
    record = struct.pack("!HHHIH", 0xC000 | last, 16, 1, 0, 0)
    count = (size - len(packet)) // len(record)
    packet += record * count
    packet[10:12] = struct.pack("!H", count + 1)
    return bytes(packet)


async def _pointers_udp(folder: Path) -> Sequence[Figure]:
    packet = pointers(4090)
    return await _flood(folder, lambda _: packet, count=150)


async def _pointers_tcp(folder: Path) -> Sequence[Figure]:
    packet = pointers(65_000)
    with name_server(folder) as (process, port):
        longest_step(process)
        async with asking(port) as seen:
            for _ in range(20):
                reader, writer = await _connected("127.0.0.2", port)
                writer.write(len(packet).to_bytes(2, "big") + packet)
                with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
                    await reader.readexactly(2)
                await _close(writer)
        return (longest_step(process), *seen.figures(), alive(process))


async def _connected(address: str, port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    return await asyncio.open_connection("127.0.0.1", port, local_addr=(address, 0))


async def _close(writer: asyncio.StreamWriter) -> None:
    writer.transport.abort()
    with contextlib.suppress(OSError):
        await writer.wait_closed()


async def _asks_over_tcp(
    port: int, name: str, kind: str = "A", within_s: float = 3.0
) -> dns.message.Message | None:
    """On a connection of its own from the bystander's address."""
    writer: asyncio.StreamWriter | None = None
    try:
        async with asyncio.timeout(within_s):
            reader, writer = await _connected("127.0.0.1", port)
            packet = query(name, kind)
            writer.write(len(packet).to_bytes(2, "big") + packet)
            return dns.message.from_wire(
                await reader.readexactly(int.from_bytes(await reader.readexactly(2), "big"))
            )
    except (OSError, TimeoutError, asyncio.IncompleteReadError):
        return None
    finally:
        if writer is not None:
            await _close(writer)


async def _drips(folder: Path) -> Sequence[Figure]:
    """1,000 connections of 40 addresses bring one byte of a query every two seconds, and come again
    when cut.
    """
    packet = len(query(OWN)).to_bytes(2, "big") + query(OWN)
    with name_server(folder) as (process, port):
        ending = asyncio.Event()

        async def drip(address: str) -> None:
            while not ending.is_set():
                with contextlib.suppress(OSError):
                    _, writer = await _connected(address, port)
                    for octet in packet:
                        if ending.is_set() or writer.transport.is_closing():
                            break
                        writer.write(bytes((octet,)))
                        with contextlib.suppress(TimeoutError):
                            await asyncio.wait_for(ending.wait(), 2)
                    await _close(writer)

        drips = [asyncio.create_task(drip(f"127.0.0.{2 + at % 40}")) for at in range(1000)]
        await asyncio.sleep(2)
        longest_step(process)
        answers = []
        for _ in range(20):
            answers.append(await _asks_over_tcp(port, OWN))
            await asyncio.sleep(0.4)
        ending.set()
        figures = (
            Figure(
                "queries over TCP without an answer, of 20",
                sum(not answer for answer in answers),
                "queries",
                0,
            ),
            Figure("memory", round(process.rss_mib(), 0), "MiB", 160),
            longest_step(process),
            alive(process),
        )
        await asyncio.gather(*drips, return_exceptions=True)
        return figures


async def _large_answers(folder: Path) -> Sequence[Figure]:
    """Four connections ask for answers of 64 KiB without end."""
    packet = query("big0.default.svc.cluster.local.", "SRV")
    with name_server(folder) as (process, port):
        ending = asyncio.Event()
        octets = 0

        async def ask() -> None:
            nonlocal octets
            reader, writer = await _connected("127.0.0.2", port)
            with contextlib.suppress(ConnectionError):
                while not ending.is_set():
                    writer.write((len(packet).to_bytes(2, "big") + packet) * 50)
                    await writer.drain()
                    octets += len(await reader.read(1 << 20))
            await _close(writer)

        async with asking(port) as seen:
            greedy = [asyncio.create_task(ask()) for _ in range(4)]
            await asyncio.sleep(0.5)
            octets = 0
            await asyncio.sleep(4)
            each_second = octets / 4e6
            ending.set()
            await asyncio.gather(*greedy)
        return (
            Figure("answers to one client", round(each_second, 1), "MB/s", 45),
            longest_step(process),
            *seen.figures(),
            alive(process),
        )


class _Upstream(asyncio.DatagramProtocol):
    """Answers as a hostile zone wants, or not at all: names that begin with "silent"."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport

    def datagram_received(self, data: bytes, addr: tuple[str, int]) -> None:
        asked = dns.message.from_wire(data)
        name = asked.question[0].name
        text = name.to_text().lower()
        if text.startswith("silent"):
            return
        reply = dns.message.make_response(asked, recursion_available=True)
        if text.startswith("poison"):
            reply.answer = [
                dns.rrset.from_text(name, 60, "IN", "CNAME", OWN),
                dns.rrset.from_text(OWN, 60, "IN", "A", "192.0.2.66"),
            ]
            reply.authority = [
                dns.rrset.from_text("cluster.local.", 60, "IN", "SOA", "a. b. 1 2 3 4 86400")
            ]
        else:
            reply.answer = [dns.rrset.from_text(name, 60, "IN", "A", "192.0.2.1")]
        self.transport.sendto(reply.to_wire(), addr)  # type: ignore[attr-defined]


@asynccontextmanager
async def upstream() -> AsyncIterator[str]:
    loop = asyncio.get_running_loop()
    transport, _ = await loop.create_datagram_endpoint(_Upstream, local_addr=("127.0.0.1", 0))
    try:
        yield "127.0.0.1:{}".format(transport.get_extra_info("sockname")[1])
    finally:
        transport.close()


async def _rate(own: socket.socket, packets: Sequence[bytes]) -> float:
    """Questions a second that the server answers now, asked in bursts that its socket holds."""
    began = time.monotonic()
    for burst in range(20):
        for packet in packets[burst * 200 : (burst + 1) * 200]:
            own.send(packet)
        assert await answer_to(own, query(OWN, number=60_000 + burst)), (
            "the bystander's name is answered"
        )
    return 20 * 200 / (time.monotonic() - began)


async def _spam(own: socket.socket, packets: Sequence[bytes], rate: float, seconds: float) -> None:
    began = time.monotonic()
    sent = 0
    while (passed := time.monotonic() - began) < seconds:
        while sent < rate * passed:
            with contextlib.suppress(OSError):
                own.send(packets[sent % len(packets)])
            sent += 1
        await asyncio.sleep(0.005)


async def _spams(folder: Path) -> Sequence[Figure]:
    """Half as many questions again as the server answers; another client asks from the time on when
    it has noticed.
    """
    made_up = [
        query(f"r{at}.prefer._zone.big{at % SERVICES}.default.svc.cluster.local.", "SRV")
        for at in range(5000)
    ]
    async with upstream() as forward:
        with name_server(folder, forward) as (process, port), datagrams("127.0.0.2", port) as own:
            rate = 1.5 * await _rate(own, made_up)
            spam = asyncio.create_task(_spam(own, made_up, rate, 12))
            await asyncio.sleep(7)
            longest_step(process)
            async with asking(
                port, lambda number: OWN if number % 2 else f"good{number % 20}.example.org."
            ) as seen:
                await asyncio.sleep(4)
            await spam
            return (longest_step(process), *seen.figures(), alive(process))


async def _poison(folder: Path) -> Sequence[Figure]:
    forged = 0
    async with upstream() as forward:
        with name_server(folder, forward) as (process, port), datagrams("127.0.0.1", port) as own:
            for number in range(20):  # each twice: from the upstream, and from the cache
                for _ in range(2):
                    packet = await answer_to(
                        own, query(f"poison{number}.example.org.", number=number)
                    )
                    assert packet is not None, "the upstream answers"
                    answer = dns.message.from_wire(packet)
                    records = [*answer.answer, *answer.authority, *answer.additional]
                    forged += any(
                        rrset.name.to_text().lower().endswith("cluster.local.") for rrset in records
                    )
            own_answer = await answer_to(own, query(OWN, number=99))
            assert own_answer is not None
            is_right = "10.96.0.7" in str(dns.message.from_wire(own_answer))
            return (
                Figure(
                    "answers with records of the cluster's zone from outside, of 40",
                    forged,
                    "answers",
                    0,
                ),
                Figure("own names that lead elsewhere", float(not is_right), "names", 0),
                alive(process),
            )


async def _hog(folder: Path) -> Sequence[Figure]:
    """One client asks for names that no upstream answers, 500 a second; another one for names that
    are answered.
    """
    async with upstream() as forward:
        with name_server(folder, forward) as (process, port), datagrams("127.0.0.2", port) as own:
            loop = asyncio.get_running_loop()
            await answer_to(own, query("www.example.org."))

            def drain() -> None:
                with contextlib.suppress(OSError):
                    while own.recv(65535):
                        pass

            loop.add_reader(own.fileno(), drain)
            for number in range(2500):
                own.send(query(f"silent{number}.example.org.", number=number))
                if number % 100 == 0:
                    await asyncio.sleep(0.05)
            longest_step(process)
            async with asking(port, lambda number: f"good{number}.example.org.", 0.05) as seen:
                for number in range(2000):
                    own.send(query(f"silent-again{number}.example.org.", number=number))
                    await asyncio.sleep(0.002)
            loop.remove_reader(own.fileno())
            return (longest_step(process), *seen.figures(), alive(process))


ATTACKS: Final = (
    Attack(
        "names-made-up", "SRV names that a client makes up, of large headless Services", _made_up
    ),
    Attack(
        "names-pointers",
        "datagrams of 4 kB, full of records whose names are chains of pointers",
        _pointers_udp,
    ),
    Attack("names-pointers-tcp", "messages of 65 kB over TCP, full of such records", _pointers_tcp),
    Attack("names-drips", "1,000 connections over TCP that bring a byte every two seconds", _drips),
    Attack(
        "names-large-answers",
        "four connections that ask for answers of 64 KiB without end",
        _large_answers,
    ),
    Attack(
        "names-spam",
        "1.5 times as many SRV names that a client makes up as the server answers",
        _spams,
    ),
    Attack(
        "names-poison", "a name outside whose CNAME brings a record of the cluster's zone", _poison
    ),
    Attack(
        "names-forward-hog", "a client that asks for thousands of names that nobody answers", _hog
    ),
)
