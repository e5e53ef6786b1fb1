"""TLS connections without HTTP: what was written arrives, whatever the peer's pace, and every end
is an end.
"""

from __future__ import annotations

import asyncio
import errno
import gc
import os
import socket
import ssl
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest
import uvloop
from hypothesis import given
from hypothesis import strategies as st
from tests.effort import effort
from tests.server.tls_peer import Contexts, Meeting, Noting, Peer, meeting
from tests.waiting import eventually, turns

from sliceplane.kit.io.tls.newcomers import ConnectionTiming
from sliceplane.kit.io.tls.transport import RECORD_BYTES, TlsTransport

SECONDS_MAX = 120.0
Test = Callable[[Meeting], Coroutine[Any, Any, None]]


@pytest.fixture(scope="module")
def contexts(tmp_path_factory: pytest.TempPathFactory) -> Contexts:
    return Contexts(tmp_path_factory.mktemp("pki"))


def run(contexts: Contexts, test: Test, *, on_uvloop: bool = True, **options: Any) -> None:
    async def main() -> None:
        async with asyncio.timeout(SECONDS_MAX), meeting(contexts, **options) as found:
            await test(found)

    with asyncio.Runner(loop_factory=uvloop.new_event_loop if on_uvloop else None) as runner:
        runner.run(main())


def pattern(size: int, seed: int = 0) -> bytes:
    """Bytes of which no two stretches are alike."""
    return b"".join(b"%d.%d," % (seed, number) for number in range(size // 6 + 1))[:size]


SIZES = st.one_of(
    st.integers(1, 300), st.integers(RECORD_BYTES - 3, RECORD_BYTES + 3), st.integers(1, 300_000)
)


@effort(40)
@given(
    writes=st.lists(
        st.tuples(SIZES, st.sampled_from(("at once", "next turn", "later"))), max_size=8
    ),
    sent=st.lists(SIZES, max_size=4),
    reads=st.integers(1, 100_000),
    version=st.sampled_from((ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3)),
    on_uvloop=st.booleans(),
)
def test_both_directions_at_any_pace(
    contexts: Contexts,
    writes: list[tuple[int, str]],
    sent: list[int],
    reads: int,
    version: ssl.TLSVersion,
    on_uvloop: bool,
) -> None:
    there = b"".join(pattern(size, number) for number, (size, _) in enumerate(writes))
    back = b"".join(pattern(size, number) for number, size in enumerate(sent))

    async def test(found: Meeting) -> None:
        peer, protocol = await found.connect(receive_buffer=8192)

        async def write() -> None:
            at = 0
            for size, when in writes:
                protocol.transport.write(there[at : at + size])
                at += size
                if when != "at once":
                    await asyncio.sleep(0 if when == "next turn" else 0.002)

        async def send() -> None:
            at = 0
            for size in sent:
                await peer.send(back[at : at + size])
                at += size

        async def read() -> None:
            arrived = bytearray()
            while len(arrived) < len(there):
                arrived += await peer.receive(reads)
                if len(arrived) % 3 == 0:
                    await asyncio.sleep(0)
            assert arrived == there

        await asyncio.gather(write(), send(), read())
        await eventually(lambda: len(protocol.received), lambda size: size >= len(back))
        assert protocol.received == back
        assert protocol.transport.get_write_buffer_size() == 0
        assert protocol.pressure == ["pause", "resume"] * (len(protocol.pressure) // 2)

    contexts.client.maximum_version = version
    try:
        run(contexts, test, on_uvloop=on_uvloop)
    finally:
        contexts.client.maximum_version = ssl.TLSVersion.MAXIMUM_SUPPORTED


def test_a_peer_that_does_not_read_is_felt(contexts: Contexts) -> None:
    async def test(found: Meeting) -> None:
        peer, protocol = await found.connect(receive_buffer=4096)
        transport = protocol.transport
        transport.set_write_buffer_limits(high=30_000)
        assert transport.get_write_buffer_limits() == (7_500, 30_000)
        written = 0
        while not protocol.pressure:
            transport.write(pattern(20_000, written))
            written += 1
            assert written < 2_000, "the kernel takes 40 MB"
            await asyncio.sleep(0)
        assert protocol.pressure == ["pause"]
        assert 30_000 < transport.get_write_buffer_size() <= 60_000
        expected = b"".join(pattern(20_000, number) for number in range(written))
        assert await peer.receive_exactly(len(expected)) == expected
        assert protocol.pressure == ["pause", "resume"]
        assert transport.get_write_buffer_size() == 0

    run(contexts, test)


def test_small_writes_of_one_turn_are_one_record(contexts: Contexts) -> None:
    async def test(found: Meeting) -> None:
        peer, protocol = await found.connect()
        await peer.send(b"!")
        protocol.transport.write(b"first, ")
        await peer.receive_exactly(7)
        before = peer.records()
        for _ in range(100):
            protocol.transport.write(b"0123456789")
        assert await peer.receive_exactly(1000) == b"0123456789" * 100
        assert peer.records() == before + 1

    run(contexts, test)


def test_all_that_was_written_before_close_arrives_and_then_a_farewell(contexts: Contexts) -> None:
    async def test(found: Meeting) -> None:
        peer, protocol = await found.connect(receive_buffer=4096)
        whole = pattern(2_000_000)
        protocol.transport.write(whole)
        protocol.transport.close()
        protocol.transport.write(b"too late")
        assert protocol.transport.is_closing()
        assert await peer.receive_exactly(len(whole)) == whole
        assert await peer.receive() == b""
        assert not protocol.lost.done()
        peer.close()
        assert await protocol.lost is None
        protocol.transport.close()
        protocol.transport.abort()

    run(contexts, test)


def test_an_answer_survives_what_its_client_still_sends(contexts: Contexts) -> None:
    """Closed at once, the kernel would answer the unread with RST, which overtakes the answer."""

    async def test(found: Meeting) -> None:
        peer, protocol = await found.connect(receive_buffer=4096)
        protocol.transport.pause_reading()
        await peer.send(pattern(100_000))
        whole = pattern(200_000)
        protocol.transport.write(whole)
        protocol.transport.close()
        await peer.send(pattern(100_000))
        assert await peer.receive_exactly(len(whole)) == whole
        assert await peer.receive() == b""

    run(contexts, test)


@pytest.mark.parametrize("reads", [True, False])
def test_a_peer_that_stays_is_left(contexts: Contexts, reads: bool) -> None:
    timing = ConnectionTiming(farewell_s=0.05) if reads else ConnectionTiming(flush_s=0.05)

    async def test(found: Meeting) -> None:
        peer, protocol = await found.connect(receive_buffer=4096)
        protocol.transport.write(pattern(10 if reads else 20_000_000))
        protocol.transport.close()
        assert await protocol.lost is None
        assert await peer.closed()

    run(contexts, test, timing=timing)


@pytest.mark.parametrize("sent", [b"", b"\0" * 300, b"\x16\x03\x01"])
def test_a_handshake_that_does_not_come(contexts: Contexts, sent: bytes) -> None:
    async def test(found: Meeting) -> None:
        peer = await found.dial()
        await peer.send_raw(sent)
        assert await peer.closed()
        assert found.protocols.empty(), "nobody is told of a connection that never was"

    run(contexts, test, timing=ConnectionTiming(handshake_s=0.05))


async def asks(peer: Peer) -> None:
    await peer.shake_hands()
    await peer.send(pattern(100_000))
    await peer.receive()


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_who_is_not_trusted_is_told(
    contexts: Contexts, tmp_path: Path, version: ssl.TLSVersion
) -> None:
    """Although it has sent its request already, which nobody reads."""
    stranger = Contexts(tmp_path)
    stranger.client.maximum_version = version

    async def test(found: Meeting) -> None:
        peer = await found.dial(context=stranger.client)
        with pytest.raises(ssl.SSLError, match=r"(?i)unknown.ca"):
            await asks(peer)
        assert found.protocols.empty()

    run(contexts, test)


def test_who_speaks_plain_http_is_told(contexts: Contexts) -> None:
    async def test(found: Meeting) -> None:
        peer = await found.dial()
        await peer.send_raw(b"GET /version HTTP/1.1\r\nhost: localhost\r\n\r\n" + b"x" * 100_000)
        assert await peer.closed()
        assert peer.raw.startswith(b"HTTP/1.0 400 Bad Request\r\n\r\nClient sent an HTTP request")
        assert found.protocols.empty()

    run(contexts, test)


def test_handshakes_count_and_can_be_ended(contexts: Contexts) -> None:
    async def test(found: Meeting) -> None:
        first, *waiting = [await found.dial() for _ in range(3)]
        await eventually(lambda: len(found.newcomers), lambda count: count == 3)
        waiting.append(await found.dial())
        assert await first.closed(), "there is room for three, and who came first makes some"
        assert (len(found.newcomers), found.newcomers.dropped.value) == (3, 1)
        found.acceptor.abort_handshakes()
        for peer in waiting:
            assert await peer.closed()
        assert (len(found.newcomers), found.newcomers.bytes) == (0, 0)
        await found.connect()

    run(contexts, test, room=3)


def test_a_handshake_that_is_over_at_once_counts_no_longer(
    contexts: Contexts, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As with a client on another processor: its second message is there when OpenSSL looks
    for it.
    """
    shake_hands = TlsTransport.shake_hands

    def at_once(self: TlsTransport) -> None:
        self._sock.setblocking(True)
        shake_hands(self)
        self._sock.setblocking(False)

    monkeypatch.setattr(TlsTransport, "shake_hands", at_once)

    async def test(found: Meeting) -> None:
        for _ in range(3):
            sock = await asyncio.to_thread(connect_in_thread, found)
            protocol = await found.protocols.get()
            sock.close()
            await protocol.lost

    run(contexts, test, room=1)


def connect_in_thread(found: Meeting) -> ssl.SSLSocket:
    return found.contexts.client.wrap_socket(socket.create_connection(found.address))


def test_after_close_handshakes_go_on_and_nobody_new_comes(contexts: Contexts) -> None:
    async def test(found: Meeting) -> None:
        peer = await found.dial()
        await eventually(lambda: len(found.newcomers), lambda count: count == 1)
        found.acceptor.close()
        with pytest.raises(ConnectionRefusedError):
            await found.dial()
        await peer.shake_hands()
        assert isinstance(await found.protocols.get(), Noting)

    run(contexts, test)


def test_without_descriptors_accepting_rests(
    contexts: Contexts, capfd: pytest.CaptureFixture[str]
) -> None:
    class Exhausted(socket.socket):
        refused = 0

        def accept(self) -> tuple[socket.socket, Any]:
            if self.refused < 2:
                self.refused += 1
                raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
            return super().accept()

    listening = Exhausted()
    listening.bind(("127.0.0.1", 0))
    listening.listen()

    async def test(found: Meeting) -> None:
        began = asyncio.get_running_loop().time()
        await found.connect()
        assert listening.refused == found.acceptor.failures == 2
        assert asyncio.get_running_loop().time() - began > 0.09

    run(contexts, test, listening=listening, timing=ConnectionTiming(rest_s=0.05))
    told = capfd.readouterr().err.splitlines()
    assert len(told) == 1, "one line a minute, whatever comes"
    for words in ("connections are refused", "too many open files", "LimitNOFILE="):
        assert words in told[0]


@pytest.mark.parametrize("sent", [0, 1, 500_000])
@pytest.mark.parametrize("reset", [True, False])
def test_what_came_before_a_reset_is_read_and_then_the_end_told(
    contexts: Contexts, sent: int, reset: bool
) -> None:
    """uvloop tells of an error once, and forgets the socket, whatever there was to read."""

    async def test(found: Meeting) -> None:
        peer, protocol = await found.connect()
        if sent:
            await peer.send(pattern(sent))
        if reset:
            peer.close(reset=True)
        else:
            peer.send_no_more()
            assert await peer.closed()
            peer.close()
        await protocol.lost
        assert protocol.transport.is_closing()
        assert pattern(sent).startswith(protocol.received)
        assert reset or len(protocol.received) == sent

    for _ in range(5):
        run(contexts, test)


@pytest.mark.parametrize("politely", [True, False])
def test_the_end_of_the_peer_is_the_end(contexts: Contexts, politely: bool) -> None:
    """With a farewell or without one; what was written before still leaves."""

    async def test(found: Meeting) -> None:
        peer, protocol = await found.connect()
        protocol.transport.write(b"last words")
        if politely:
            await peer.say_farewell()
            assert await peer.receive_exactly(10) == b"last words"
            assert await peer.receive() == b""
        peer.close()
        assert await protocol.lost is None or not politely
        assert protocol.ended or not politely

    run(contexts, test)


def test_reading_pauses(contexts: Contexts) -> None:
    """Also where OpenSSL holds the rest of a record that the kernel has given already."""

    async def test(found: Meeting) -> None:
        peer, protocol = await found.connect()
        protocol.transport.pause_reading()
        assert not protocol.transport.is_reading()
        sent = pattern(60_000)
        await peer.send(sent)
        await turns()
        assert not protocol.received
        while len(protocol.received) < len(sent):
            protocol.transport.resume_reading()
            await asyncio.sleep(0.001)
            protocol.transport.pause_reading()
        assert protocol.received == sent

    run(contexts, test)


def test_a_protocol_that_raises_ends_its_connection_alone(contexts: Contexts) -> None:
    async def test(found: Meeting) -> None:
        told: list[dict[str, Any]] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: told.append(context))
        peer, protocol = await found.connect()
        other, unhurt = await found.connect()
        protocol.data_received = lambda data: 1 // 0  # type: ignore[method-assign,assignment]  # as a bug would
        await peer.send(b"x")
        assert isinstance(await protocol.lost, ZeroDivisionError)
        assert [context["message"] for context in told] == ["a connection's protocol failed"]
        await other.send(b"y")
        unhurt.transport.write(b"z")
        assert await other.receive() == b"z"
        assert unhurt.received == b"y"

    run(contexts, test)


def test_what_is_known_of_a_connection(contexts: Contexts) -> None:
    async def test(found: Meeting) -> None:
        peer, protocol = await found.connect()
        about = protocol.transport.get_extra_info
        await peer.send(b"!")
        assert about("sockname") == found.address
        assert about("peername") == about("socket").getpeername()
        assert about("sslcontext") is contexts.server
        assert (("organizationName", "system:masters"),) in about("peercert")["subject"]
        assert about("cipher", "unknown") == "unknown"
        assert protocol.transport.get_protocol() is protocol
        assert about("socket").getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
        assert about("socket").getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)

    run(contexts, test)


def test_nothing_remains_of_what_was_closed(contexts: Contexts) -> None:
    async def test(found: Meeting) -> None:
        before = len(os.listdir("/proc/self/fd"))
        for number in range(60):
            peer, protocol = await found.connect()
            await peer.send(b"!")
            if number % 3 == 0:
                protocol.transport.abort()
            elif number % 3 == 1:
                protocol.transport.close()
            peer.close(reset=number % 2 == 0)
            await protocol.lost
        found.peers.clear()
        assert len(os.listdir("/proc/self/fd")) <= before

    gc.collect()
    run(contexts, test)
    gc.collect()
    assert not [each for each in gc.get_objects() if isinstance(each, TlsTransport)]
