"""Names of others over real sockets: a name server of this machine is asked, over UDP and TCP, and
files are read.
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, cast

import dns.flags
import dns.message
import dns.rcode
import dns.rrset
import pytest
from tests.dns.world import NOW, ZONE, service
from tests.ports import free_port
from tests.waiting import eventually

from sliceplane.api.codec import encode
from sliceplane.api.requests import Selection, Write
from sliceplane.api.scheme import EventsV1, Services
from sliceplane.dns.clients import FORWARD_WORK, AnswerConfig
from sliceplane.dns.cluster_names import ZoneConfig
from sliceplane.dns.io import upstream
from sliceplane.dns.io.service import Resolver, watches
from sliceplane.dns.io.sockets import ListenError, bound
from sliceplane.dns.io.upstream import ForwardFlags
from sliceplane.kit.rng import Rng
from sliceplane.server.io.config import PlaneConfig
from sliceplane.server.io.plane import ServerPlane
from sliceplane.watch.cache import Change


class NameServerOfOthers(asyncio.DatagramProtocol):
    """Answers with its own number; a name that begins with "large" has more than UDP takes; "lost"
    is heard twice.
    """

    def __init__(self, number: int) -> None:
        self.number = number
        self.ports: list[int] = []
        self.asked: list[bytes] = []
        self._lost = 1

    def reply(self, packet: bytes, *, tcp: bool) -> bytes:
        query = dns.message.from_wire(packet)
        name = query.question[0].name
        reply = dns.message.make_response(query, recursion_available=True)
        count = 100 if name.to_text().lower().startswith("large") else 1
        texts = [f"192.0.2.{self.number}", *(f"198.51.100.{n}" for n in range(1, count))]
        reply.answer = [dns.rrset.from_text(name, 60, "IN", "A", *texts)]
        if not tcp and count > 1:
            reply.answer = []
            reply.flags |= dns.flags.TC
        return reply.to_wire(max_size=65535)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.DatagramTransport, transport)

    def datagram_received(self, data: bytes, addr: tuple[str, int]) -> None:
        self.ports.append(addr[1])
        self.asked.append(data)
        if b"lost" in data.lower() and self._lost:
            self._lost -= 1
            return
        self.transport.sendto(self.reply(data, tcp=False), addr)

    async def serve_stream(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        packet = await reader.readexactly(int.from_bytes(await reader.readexactly(2), "big"))
        reply = self.reply(packet, tcp=True)
        writer.write(len(reply).to_bytes(2, "big") + reply)
        await writer.drain()
        writer.close()


@asynccontextmanager
async def others(number: int) -> AsyncIterator[tuple[NameServerOfOthers, str]]:
    """A name server of others, and where it is."""
    loop = asyncio.get_running_loop()
    datagrams, listening = bound("127.0.0.1", 0)  # at one port, and another one if that is taken
    transport, served = await loop.create_datagram_endpoint(
        lambda: NameServerOfOthers(number), sock=datagrams
    )
    port = datagrams.getsockname()[1]
    stream = await asyncio.start_server(served.serve_stream, sock=listening)
    try:
        yield served, f"127.0.0.1:{port}"
    finally:
        transport.close()
        stream.close()


@asynccontextmanager
async def forwarding(flags: ForwardFlags) -> AsyncIterator[tuple[Resolver, int]]:
    loop = asyncio.get_running_loop()
    resolver = Resolver(ZoneConfig(), AnswerConfig(forwards=True), clock=loop.time, forward=flags)
    ((_, port),) = await resolver.listen((("127.0.0.1", 0),))
    out = service("out", type="ExternalName", externalName="www.example.org")
    resolver.server.apply(
        [Change("Service", None, item) for item in (service(clusterIP="10.96.0.7"), out)], NOW
    )
    resolver.server.on_synced()
    try:
        yield resolver, port
    finally:
        await resolver.close()


async def ask(port: int, name: str, *, tcp: bool = False) -> dns.message.Message:
    """As a stub resolver does, with patience."""
    packet = dns.message.make_query(name, "A").to_wire()
    if tcp:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(len(packet).to_bytes(2, "big") + packet)
        told = await reader.readexactly(int.from_bytes(await reader.readexactly(2), "big"))
        writer.close()
        return dns.message.from_wire(told)
    loop = asyncio.get_running_loop()
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as own:
        own.setblocking(False)
        own.connect(("127.0.0.1", port))
        for _ in range(20):
            await loop.sock_sendall(own, packet)
            try:
                async with asyncio.timeout(6):
                    return dns.message.from_wire(await loop.sock_recv(own, 65535))
            except TimeoutError:
                continue
    raise AssertionError(f"no answer for {name}")


def told(message: dns.message.Message) -> list[str]:
    return [line for rrset in message.answer for line in rrset.to_text().splitlines()]


async def test_a_query_of_an_upstream_is_charged_to_the_client_and_an_answer_of_the_cache_is_not() -> (
    None
):
    async with (
        others(1) as (_, where),
        forwarding(ForwardFlags(forward=(where,))) as (resolver, port),
    ):
        shares = resolver.server._work._shares["tcp"]
        await ask(port, "www.example.org.", tcp=True)
        first = shares.total
        await ask(port, "www.example.org.", tcp=True)
        assert first - (shares.total - first) == FORWARD_WORK


async def test_names_of_others_come_from_the_upstream_and_ours_do_not() -> None:
    async with (
        others(1) as (served, where),
        forwarding(ForwardFlags(forward=(where,))) as (resolver, port),
    ):
        first = await ask(port, "www.example.org.")
        assert told(first) == ["www.example.org. 60 IN A 192.0.2.1"]
        assert first.flags & dns.flags.RA
        assert told(await ask(port, f"demo.default.svc.{ZONE}")) == [
            f"demo.default.svc.{ZONE} 5 IN A 10.96.0.7"
        ]
        assert told(await ask(port, "lost.example.org.")) == ["lost.example.org. 60 IN A 192.0.2.1"]
        external = told(await ask(port, f"out.default.svc.{ZONE}"))
        assert external[0] == f"out.default.svc.{ZONE} 5 IN CNAME www.example.org."
        assert external[1].startswith("www.example.org. ")
        assert not [packet for packet in served.asked if b"cluster" in packet.lower()]
        for number in range(30):
            await ask(port, f"n{number}.example.org.")
        assert len(set(served.ports)) > 20, "each query has a port of its own"
        names = {family.name for family in resolver.metrics.families()}
        assert {"coredns_cache_hits_total", "coredns_proxy_request_duration_seconds"} <= names


async def test_a_large_answer_comes_over_tcp_from_the_upstream_and_to_the_client() -> None:
    async with others(1) as (_, where), forwarding(ForwardFlags(forward=(where,))) as (_, port):
        cut = await ask(port, "large.example.org.")
        assert cut.flags & dns.flags.TC
        assert 0 < len(told(cut)) < 100
        assert len(told(await ask(port, "large.example.org.", tcp=True))) == 100


async def test_a_file_that_changes_counts_from_then_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(upstream, "CHECK_S", 0.01)
    table = tmp_path / "hosts"
    table.write_text("203.0.113.1 printer.lab\nnonsense\n")
    flags = ForwardFlags(forward=("127.0.0.1:9",), hosts=str(table))
    async with forwarding(flags) as (resolver, port):
        assert told(await ask(port, "printer.lab.")) == ["printer.lab. 60 IN A 203.0.113.1"]
        assert resolver._upstreams is not None
        following = asyncio.create_task(resolver._upstreams.follow())
        changed = tmp_path / "changed"
        changed.write_text("203.0.113.22 printer.lab\n")
        os.replace(changed, table)
        await eventually(
            lambda: ask(port, "printer.lab."), lambda message: "203.0.113.22" in str(message)
        )
        table.unlink()  # what it said last stands
        await asyncio.sleep(0.05)
        assert "203.0.113.22" in str(await ask(port, "printer.lab."))
        following.cancel()
        await asyncio.gather(following, return_exceptions=True)


async def test_a_stub_zone_and_the_servers_of_a_resolv_conf(tmp_path: Path) -> None:
    async with others(1) as (_, default), others(2) as (_, corp):
        flags = ForwardFlags(forward=(default,), stubs=(f"corp.example={corp}",))
        async with forwarding(flags) as (_, port):
            assert told(await ask(port, "db.corp.example."))[0].endswith("192.0.2.2")
            assert told(await ask(port, "www.example."))[0].endswith("192.0.2.1")
    file = tmp_path / "resolv.conf"
    async with forwarding(ForwardFlags(forward=(str(file),))) as (_, port):
        assert (await ask(port, "www.example.")).rcode() == dns.rcode.REFUSED


@pytest.mark.parametrize("address", ["127.0.0.1", "0.0.0.0"])
async def test_an_upstream_that_is_ourselves_is_refused(address: str) -> None:
    port = free_port()
    flags = ForwardFlags(forward=(f"127.0.0.1:{port}",))
    resolver = Resolver(ZoneConfig(), AnswerConfig(forwards=True), clock=lambda: NOW, forward=flags)
    with pytest.raises(ListenError, match="is this server itself"):
        await resolver.listen(((address, port),))
    await resolver.close()


async def test_a_resolv_conf_that_names_this_server_first_is_forwarded_to_its_others(
    tmp_path: Path,
) -> None:
    """As a machine's own is once it asks the plane: by the address of the Service, too, which leads
    back here.
    """
    file = tmp_path / "resolv.conf"
    async with others(1) as (_, where):
        file.write_text(f"nameserver 10.96.0.10\nnameserver {where}\n")
        async with forwarding(ForwardFlags(forward=(str(file),), skip=("10.96.0.10",))) as (
            _,
            port,
        ):
            assert told(await ask(port, "www.example.")) == ["www.example. 60 IN A 192.0.2.1"]
        file.write_text("nameserver 10.96.0.10\n")
        async with forwarding(ForwardFlags(forward=(str(file),), skip=("10.96.0.10",))) as (
            _,
            port,
        ):
            assert (await ask(port, "www.example.")).rcode() == dns.rcode.REFUSED


async def test_two_servers_that_forward_to_each_other_notice_it() -> None:
    """The first asks the second, which asks the first; people are told by an Event, too."""
    async with (
        ServerPlane(PlaneConfig(data_dir="memory:", secure_port=0), ()) as plane,
        others(1) as (_, where),
        forwarding(ForwardFlags(forward=(where,))) as (first, port),
        forwarding(ForwardFlags(forward=(f"127.0.0.1:{port}",))) as (_, second),
    ):
        client = plane.client("system:admin")
        assert first._upstreams is not None
        first._upstreams._flags = ForwardFlags(forward=(f"127.0.0.1:{second}",))
        first._upstreams.begin()
        assert (await ask(port, "www.example.org.")).rcode() == dns.rcode.SERVFAIL
        assert told(await ask(second, f"demo.default.svc.{ZONE}"))
        following = asyncio.create_task(first.follow(client, Rng(1), watches(ZoneConfig())))
        body = encode({"metadata": {"name": "kube-dns"}, "spec": {"ports": [{"port": 53}]}})
        await client.perform(
            Write(verb="create", resource=Services, namespace="kube-system", body=body)
        )

        async def events() -> list[Any]:
            return [
                json.loads(item)
                for item in (await client.list(Selection(EventsV1, "kube-system"))).items
            ]

        (event,) = await eventually(events)
        assert (event["reason"], event["regarding"]["name"], event["type"]) == (
            "ForwardingLoop",
            "kube-dns",
            "Warning",
        )
        assert f"127.0.0.1:{second}" in event["note"]
        following.cancel()
        await asyncio.gather(following, return_exceptions=True)
