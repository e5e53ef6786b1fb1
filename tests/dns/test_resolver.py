"""A name server over real sockets: datagrams, connections, and a cluster that it follows."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import dns.message
import pytest
from tests.dns.world import ZONE, endpoint, headless, service, slice_of
from tests.waiting import eventually

from sliceplane.api.codec import encode
from sliceplane.api.meta import Object
from sliceplane.api.requests import Selection, Write
from sliceplane.api.scheme import EndpointSlices, Leases, Services
from sliceplane.diagnose.io.drifting import read_drift
from sliceplane.dns.clients import AnswerConfig
from sliceplane.dns.cluster_names import ZoneConfig
from sliceplane.dns.io import sockets
from sliceplane.dns.io.service import Resolver, watches
from sliceplane.dns.io.sockets import ListenError, Streams, bound
from sliceplane.dns.server import Forward
from sliceplane.dns.wire import DnsQuestion
from sliceplane.kit.rng import Rng
from sliceplane.server.io.config import PlaneConfig
from sliceplane.server.io.plane import ServerPlane
from sliceplane.watch.cache import Change
from sliceplane.watch.io.reflect import loop_clock

OWN = f"demo.default.svc.{ZONE}"


def asked(name: str = OWN, kind: str = "A", number: int = 1) -> bytes:
    return bytes(dns.message.make_query(name, kind, id=number).to_wire())


@asynccontextmanager
async def resolving(
    address: str = "127.0.0.1", *objects: Object
) -> AsyncIterator[tuple[Resolver, int]]:
    resolver = Resolver(ZoneConfig(), AnswerConfig(), clock=lambda: 1.0)
    ((_, port),) = await resolver.listen(((address, 0),))
    told = objects or (service(clusterIP="10.96.0.7"),)
    resolver.server.apply([Change(type(item).__name__, None, item) for item in told], 1.0)
    resolver.server.on_synced()
    try:
        yield resolver, port
    finally:
        await resolver.close()


async def exchanged(packet: bytes, address: str, port: int) -> dns.message.Message:
    """As a stub resolver: it asks again, and takes what comes from where it asked alone."""
    loop = asyncio.get_running_loop()
    with socket.socket(
        socket.AF_INET6 if ":" in address else socket.AF_INET, socket.SOCK_DGRAM
    ) as own:
        own.setblocking(False)
        own.connect((address, port))
        for _ in range(20):
            await loop.sock_sendall(own, packet)
            try:
                async with asyncio.timeout(5):
                    return dns.message.from_wire(await loop.sock_recv(own, 65535))
            except TimeoutError:
                continue
    raise AssertionError(f"{address} port {port} never answered")


@pytest.mark.parametrize(
    ("listen", "ask"), [("127.0.0.1", "127.0.0.1"), ("0.0.0.0", "127.0.0.5"), ("::1", "::1")]
)
async def test_a_datagram_is_answered_from_the_address_that_was_asked(
    listen: str, ask: str
) -> None:
    async with resolving(listen) as (resolver, port):
        answer = await exchanged(asked(), ask, port)
        assert [str(item) for item in answer.answer[0]] == ["10.96.0.7"]
        families = {family.name: family for family in resolver.metrics.families()}
        assert families["coredns_dns_request_duration_seconds"].samples
        (build,) = families["coredns_build_info"].samples
        assert build.labels[0].startswith("sliceplane-")
        assert [sample.labels[-1] for sample in families["coredns_plugin_enabled"].samples] == [
            "kubernetes"
        ]


@pytest.mark.parametrize(
    "option", [sockets._SO_MEMINFO, 10_000], ids=["reported", "not reported by the kernel"]
)
async def test_datagrams_that_wait_or_were_lost_are_an_overload_until_they_are_read(
    monkeypatch: pytest.MonkeyPatch, option: int
) -> None:
    monkeypatch.setattr(sockets, "_SO_MEMINFO", option)
    async with resolving() as (resolver, port):
        (datagrams,) = resolver._datagrams
        await exchanged(asked(), "127.0.0.1", port)
        assert not datagrams.is_overloaded()
        _flood(port)
        datagrams._on_readable()  # one batch
        assert datagrams.is_overloaded()
        await exchanged(asked(), "127.0.0.1", port)
        await eventually(lambda: not datagrams.is_overloaded())
        assert not resolver.server._work.is_enforced("udp")
        _flood(port)
        datagrams._on_readable()
        looking = asyncio.create_task(resolver._check_caches())
        await eventually(lambda: resolver.server._work.is_enforced("udp"))
        looking.cancel()


def _flood(port: int) -> None:
    """More datagrams than may wait or a socket keeps, within one step of the loop, so that none is
    read meanwhile.
    """
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as own:
        own.connect(("127.0.0.1", port))
        for _ in range(8000):
            own.send(b"no query")


async def test_messages_of_a_connection_are_pipelined() -> None:
    async with resolving() as (_, port):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        sent = b"".join(
            len(packet).to_bytes(2, "big") + packet for packet in map(asked_with, range(3))
        )
        # In pieces, as a network may bring them.
        for piece in (sent[:1], sent[1:50], sent[50:]):
            writer.write(piece)
            await writer.drain()
        writer.write_eof()  # and what was asked before is answered all the same
        answers = [await _message(reader) for _ in range(3)]
        assert sorted(answer.id for answer in answers) == [0, 1, 2]
        assert await _ended(reader)
        writer.close()
        await writer.wait_closed()


def asked_with(number: int) -> bytes:
    return asked(number=number)


async def _message(reader: asyncio.StreamReader) -> dns.message.Message:
    size = int.from_bytes(await reader.readexactly(2), "big")
    return dns.message.from_wire(await reader.readexactly(size))


async def _closed(*writers: asyncio.StreamWriter) -> None:
    """Their transports are closed for good, so that no later test hears of them."""
    for writer in writers:
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()


async def _ended(reader: asyncio.StreamReader) -> bool:
    try:
        return await reader.read(1) == b""
    except ConnectionError:
        return True


async def test_all_of_a_large_service_comes_over_tcp() -> None:
    many = [endpoint(f"10.1.{at // 250}.{at % 250}") for at in range(1000)]
    async with resolving("127.0.0.1", headless(), slice_of("peers", *many)) as (_, port):
        packet = asked(f"peers.default.svc.{ZONE}")
        assert (await exchanged(packet, "127.0.0.1", port)).flags & dns.flags.TC
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(len(packet).to_bytes(2, "big") + packet)
        assert len((await _message(reader)).answer[0]) == 1000
        writer.close()
        await writer.wait_closed()


async def test_a_client_that_asks_and_does_not_read_is_not_read_either() -> None:
    many = [endpoint(f"10.1.{at // 250}.{at % 250}") for at in range(200)]
    async with resolving("127.0.0.1", headless(), slice_of("peers", *many)) as (resolver, port):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        packet = asked(f"peers.default.svc.{ZONE}")
        count = 6000
        writer.write((len(packet).to_bytes(2, "big") + packet) * count)
        (connection,) = await eventually(lambda: list(resolver._streams._connections))
        await eventually(lambda: connection._is_full)
        assert connection._transport.get_write_buffer_size() < 2 * sockets.UNREAD_BYTES_MAX + 65537
        assert len(connection._unread) <= 2 * 256 * 1024
        for _ in range(count):
            assert (
                len(await reader.readexactly(int.from_bytes(await reader.readexactly(2), "big")))
                > 3200
            )
        writer.close()
        await writer.wait_closed()


async def test_a_client_has_so_many_connections_and_no_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sockets, "PER_CLIENT_MAX", 2)
    async with resolving() as (resolver, port):
        writers = [(await asyncio.open_connection("127.0.0.1", port))[1] for _ in range(2)]
        await eventually(lambda: resolver._streams.open_count, lambda count: count == 2)
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        await eventually(lambda: resolver._streams.dropped)
        assert resolver._streams.open_count == 2
        writer.write(b"\0\x36" + asked(number=3).ljust(54, b"\0"))
        assert (await _message(reader)).id == 3, "the one that did nothing for longest made room"
        await _closed(*writers, writer)
        await eventually(lambda: resolver._streams.open_count, lambda count: count == 0)


async def test_a_silent_connection_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sockets, "IDLE_S", 0.05)
    async with resolving() as (_, port):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        assert await _ended(reader)
        await _closed(writer)


async def test_single_bytes_do_not_keep_a_connection_open(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before, each byte gave it another time (issue 30)."""
    monkeypatch.setattr(sockets, "IDLE_S", 0.3)
    async with resolving() as (resolver, port):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        message = len(asked()).to_bytes(2, "big") + asked()
        ended = asyncio.create_task(_ended(reader))
        for octet in message:
            if ended.done():
                break
            writer.write(bytes((octet,)))
            await asyncio.sleep(0.05)
        assert await ended
        assert resolver._streams.open_count == 0
        await _closed(writer)
        # Whole messages do.
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        for number in range(10):
            writer.write(len(asked_with(number)).to_bytes(2, "big") + asked_with(number))
            assert (await _message(reader)).id == number
            await asyncio.sleep(0.1)
        await _closed(writer)


async def test_a_network_of_clients_leaves_connections_for_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sockets, "CONNECTIONS_MAX", 10)
    async with resolving("0.0.0.0") as (resolver, port):
        writers = []
        for number in range(30):
            _, writer = await asyncio.open_connection(
                "127.0.0.1", port, local_addr=(f"127.0.0.{number + 2}", 0)
            )
            writers.append(writer)
        await eventually(lambda: resolver._streams.dropped, lambda dropped: dropped == 25)
        assert resolver._streams.open_count == 5
        writers += [
            (await asyncio.open_connection("127.0.0.1", port, local_addr=("127.1.0.1", 0)))[1]
            for _ in range(2)
        ]
        await eventually(lambda: resolver._streams.open_count, lambda count: count == 7)
        assert resolver._streams.dropped == 25
        resolver._streams._shares.check()
        await _closed(*writers)
        await eventually(lambda: resolver._streams.open_count, lambda count: count == 0)


@pytest.mark.parametrize("long", [b"\xff\xff" + bytes(100), b"\x10\x01" + bytes(5000)])
async def test_a_connection_that_announces_a_long_query_is_closed(long: bytes) -> None:
    async with resolving() as (resolver, port):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(len(asked()).to_bytes(2, "big") + asked() + long)
        assert (await _message(reader)).id == 1
        assert await _ended(reader)
        assert resolver._streams.refused == 1
        await _closed(writer)
        # The longest one that is read is one.
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        whole = asked().ljust(sockets.QUERY_BYTES_MAX, b"\0")
        writer.write(len(whole).to_bytes(2, "big") + whole)
        assert (await _message(reader)).id == 1
        await _closed(writer)


async def test_a_connection_whose_client_does_not_read_names_of_others_is_cut() -> None:
    sends: list[sockets.Send] = []
    forward = Forward(DnsQuestion(1, 0, b"\0", 1, 1), "127.0.0.1", "tcp")
    streams = Streams(
        lambda packet, client, over_tcp: forward, lambda asked, send: sends.append(send)
    )
    listening = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    listening.bind(("127.0.0.1", 0))
    await streams.serve(listening)
    port = listening.getsockname()[1]
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as own:
        own.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        own.setblocking(False)
        await asyncio.get_running_loop().sock_connect(own, ("127.0.0.1", port))
        own.send((len(asked()).to_bytes(2, "big") + asked()) * sockets.AWAITED_MAX)
        await eventually(lambda: len(sends), lambda count: count == sockets.AWAITED_MAX)
        (connection,) = streams._connections
        largest = 0
        for send in sends:
            send(bytes(65535))
            if connection._transport is not None:
                largest = max(largest, connection._transport.get_write_buffer_size())
        await eventually(lambda: streams.open_count, lambda count: count == 0)
        assert largest <= sockets.AWAITED_BYTES_MAX + 65537
    await streams.close()


async def test_a_fault_of_ours_is_an_answer_and_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    async with resolving() as (resolver, port):

        def broken(*_: object) -> None:
            raise RuntimeError("planted")

        monkeypatch.setattr(resolver.server, "answer", broken)
        assert (await exchanged(asked(), "127.0.0.1", port)).rcode() == dns.rcode.SERVFAIL
        assert resolver._panics.value >= 1


def test_an_address_that_is_taken_is_told() -> None:
    datagrams, stream = bound("127.0.0.1", 0)
    with datagrams, stream, pytest.raises(ListenError, match=r"cannot listen on 127\.0\.0\.1 port"):
        bound("127.0.0.1", datagrams.getsockname()[1])


async def test_a_cluster_is_followed() -> None:
    async with ServerPlane(PlaneConfig(data_dir="memory:", secure_port=0), ()) as plane:
        client = plane.client("system:admin")
        for name, labels in (("a", {}), ("b", {"service.kubernetes.io/headless": ""})):
            metadata = {"name": name, "labels": {"kubernetes.io/service-name": name, **labels}}
            body = encode({"metadata": metadata, "addressType": "IPv4", "endpoints": []})
            await client.perform(
                Write(verb="create", resource=EndpointSlices, namespace="default", body=body)
            )
        resolver = Resolver(ZoneConfig(), AnswerConfig(), clock=loop_clock(1e9))
        ((_, port),) = await resolver.listen((("127.0.0.1", 0),))
        assert (await exchanged(asked(), "127.0.0.1", port)).rcode() == dns.rcode.SERVFAIL
        assert not resolver.pages()["/readyz"]().healthy  # type: ignore[union-attr]
        following = asyncio.create_task(
            resolver.follow(client, Rng(1), watches(ZoneConfig()), reported_as="here")
        )
        await resolver.wait_ready()
        assert resolver.pages()["/readyz"]().healthy  # type: ignore[union-attr]
        assert (await exchanged(asked(), "127.0.0.1", port)).rcode() == dns.rcode.NXDOMAIN
        body = encode(
            {
                "metadata": {"name": "demo"},
                "spec": {"clusterIP": "10.96.0.7", "ports": [{"port": 80}]},
            }
        )
        await client.perform(
            Write(verb="create", resource=Services, namespace="default", body=body)
        )

        async def look() -> dns.message.Message:
            return await exchanged(asked(), "127.0.0.1", port)

        answer = await eventually(look, lambda message: message.answer)
        assert [str(item) for item in answer.answer[0]] == ["10.96.0.7"]
        leases = Selection(Leases, "kube-node-lease", "sliceplane.dev/component=dns")

        async def told() -> bool:
            return bool((await client.list(leases)).items)

        await eventually(told)
        (row,) = (await read_drift(client, lambda: 1e9, port=1)).rows
        assert (row.node, row.state, row.cache) == ("here (names)", "in step", "equal")
        following.cancel()
        await asyncio.gather(following, return_exceptions=True)
        assert not await told(), "a drain does not wait for what has stopped"
        assert (await look()).answer, "answers go on without the API server"
        await resolver.close()
