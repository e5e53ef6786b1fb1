"""What connections cost before somebody has authenticated on them: each alone, and all together."""

from __future__ import annotations

import asyncio
import ssl
from collections import OrderedDict
from pathlib import Path

import pytest
import uvloop
from hypothesis import given
from hypothesis import strategies as st
from tests.effort import effort
from tests.server.tls_peer import Contexts, Meeting, meeting
from tests.waiting import eventually

from sliceplane.kit.io.tls.unauthenticated import (
    GREETING_BYTES,
    HANDSHAKE_BYTES,
    HANDSHAKE_MESSAGE_BYTES,
    OPEN_BYTES,
    UnauthenticatedConnections,
)

#: a ClientHello that claims to be so long, and its first bytes
HELLO = b"\x16\x03\x01\x40\x00\x01%b\x03\x03"


class Someone:
    def __init__(self, unauthenticated: UnauthenticatedConnections) -> None:
        self._unauthenticated = unauthenticated
        self.closed = False

    def abort(self) -> None:
        self.closed = True
        self._unauthenticated.remove(self)


@effort(200)
@given(
    bound=st.integers(1, 60),
    steps=st.lists(
        st.tuples(
            st.sampled_from(("enter", "charge", "leave", "drop")),
            st.integers(0, 9),
            st.integers(0, 30),
        )
    ),
)
def test_the_oldest_go_until_the_others_fit(bound: int, steps: list[tuple[str, int, int]]) -> None:
    unauthenticated = UnauthenticatedConnections(bound)
    everybody: list[Someone] = []
    expected: OrderedDict[Someone, int] = OrderedDict()
    dropped = 0
    for what, which, size in steps:
        if what == "enter":
            everybody.append(Someone(unauthenticated))
            expected[everybody[-1]] = size
            unauthenticated.enter(everybody[-1], size)
        elif what == "drop":
            assert unauthenticated.drop_oldest() is bool(expected)
            if expected:
                expected.popitem(last=False)
                dropped += 1
        elif everybody:
            someone = everybody[which % len(everybody)]
            if what == "leave":
                unauthenticated.remove(someone)
                expected.pop(someone, None)
            else:
                unauthenticated.charge(someone, size)
                if someone in expected:
                    expected[someone] = size
        while sum(expected.values()) > bound:
            expected.popitem(last=False)
            dropped += 1
        unauthenticated.check()
        assert (len(unauthenticated), unauthenticated.bytes, unauthenticated.dropped.value) == (
            len(expected),
            sum(expected.values()),
            dropped,
        )
        assert sum(someone.closed for someone in everybody) == dropped


@pytest.fixture(scope="module")
def contexts(tmp_path_factory: pytest.TempPathFactory) -> Contexts:
    return Contexts(tmp_path_factory.mktemp("pki"))


async def charged(found: Meeting, size: int) -> None:
    await eventually(lambda: found.unauthenticated.bytes, lambda charged: charged == size)


def test_each_phase_is_charged_what_it_costs(contexts: Contexts) -> None:
    async def test() -> None:
        async with asyncio.timeout(60), meeting(contexts) as found:
            silent = await found.dial()
            await charged(found, GREETING_BYTES)
            await silent.send_raw(HELLO % b"\x00\x10\x00")
            await charged(found, HANDSHAKE_BYTES)
            await silent.send_raw(b"more")
            await charged(found, HANDSHAKE_MESSAGE_BYTES)
            silent.close(reset=True)
            await charged(found, 0)
            peer, protocol = await found.connect()
            await charged(found, OPEN_BYTES)
            found.unauthenticated.remove(protocol.transport)
            await peer.send(b"x")
            await charged(found, 0)

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(test())


@pytest.mark.parametrize("claimed", [b"\x00\x40\x01", b"\x01\x00\x00", b"\xff\xff\xff"])
def test_a_client_hello_that_claims_to_be_large_is_refused_at_once(
    contexts: Contexts, claimed: bytes
) -> None:
    """OpenSSL would make room for 128 KiB of it."""

    async def test() -> None:
        async with asyncio.timeout(60), meeting(contexts) as found:
            peer = await found.dial()
            await peer.send_raw(HELLO % claimed)
            assert await peer.closed()
            assert peer.raw == b"\x15\x03\x01\x00\x02\x02\x32", (
                "an alert of its own, not the end of a handshake's time"
            )
            peer = await found.dial()
            await peer.send_raw(b"\x16\x03\x01\x00\x01\x01" + b"\x16\x03\x01\x00\x03\x00\xff\xff")
            assert await peer.closed(), (
                "nor is one believed that hides its length in a second record"
            )

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(test())


def test_handshakes_that_do_not_end_make_room_for_others(contexts: Contexts) -> None:
    async def test() -> None:
        async with (
            asyncio.timeout(60),
            meeting(contexts, unauthenticated_bytes=3 * HANDSHAKE_BYTES) as found,
        ):
            half_open = []
            for _ in range(3):
                half_open.append(await found.dial())
                await half_open[-1].send_raw(HELLO % b"\x00\x10\x00")
                await charged(found, len(half_open) * HANDSHAKE_BYTES)
            await found.connect()
            assert await half_open[0].closed()
            assert found.unauthenticated.dropped.value == 1
            found.unauthenticated.check()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(test())


def test_a_session_of_tls_is_not_resumed_by_ticket(contexts: Contexts, tmp_path: Path) -> None:
    """A resumed session brings a certificate that nobody verifies."""

    async def test(version: ssl.TLSVersion) -> None:
        async with asyncio.timeout(60), meeting(contexts) as found:
            contexts.client.maximum_version = version
            peer, protocol = await found.connect()
            protocol.transport.write(b"!")
            await peer.receive()
            session = peer.session
            assert session is None or not session.has_ticket

    try:
        for version in (ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3):
            with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
                runner.run(test(version))
    finally:
        contexts.client.maximum_version = ssl.TLSVersion.MAXIMUM_SUPPORTED
