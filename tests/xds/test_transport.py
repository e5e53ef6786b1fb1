"""The xDS server's port with real clients: gRPC's own over TLS and plain, and one that breaks
off.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import time
from collections.abc import Awaitable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
import h2.config
import h2.connection
import h2.events
import pytest
from tests.waiting import eventually, turns
from tests.xds.echo import ANA, Answering, Echo, plain, secure

from sliceplane.api.requests import Write
from sliceplane.api.users import User
from sliceplane.kit.http2 import frames
from sliceplane.kit.http2.grpc import GrpcStatus
from sliceplane.watch.io.base import Unreachable
from sliceplane.watch.io.certificates import Certificate
from sliceplane.xds.io import connection, transport
from sliceplane.xds.io.authentication import CallRefused, ReviewedTokens, Unsecured

PATH = "/echo.Echo/Say"


@dataclass
class Reviewing:
    """An API server that answers TokenReviews."""

    users: dict[str, dict[str, Any]]
    asked: list[str] = field(default_factory=list)
    away: bool = False

    async def perform(self, write: Write) -> bytes:
        token = json.loads(write.body)["spec"]["token"]
        self.asked.append(token)
        await asyncio.sleep(0)
        if self.away:
            raise Unreachable("it is away")
        user = self.users.get(token)
        return json.dumps(
            {"status": {"authenticated": user is not None, "user": user or {}}}
        ).encode()


def call(
    channel: grpc.Channel, messages: Iterable[bytes], **how: Any
) -> tuple[list[bytes], grpc.StatusCode, str]:
    """What a client of gRPC gets, with how the call ends."""
    answers: list[bytes] = []
    asked = channel.stream_stream(PATH)(iter(messages), timeout=100, wait_for_ready=True, **how)
    with contextlib.suppress(grpc.RpcError):
        answers += asked
    return answers, asked.code(), asked.details()


def talk(
    port: int, messages: Iterable[bytes], **how: Any
) -> tuple[list[bytes], grpc.StatusCode, str]:
    options = [("grpc.max_receive_message_length", -1)]
    with grpc.insecure_channel(f"127.0.0.1:{port}", options) as channel:
        return call(channel, messages, **how)


async def test_grpc_talks_to_it_in_messages_of_every_size() -> None:
    echo = Echo()
    messages = [b"", b"a", b"b" * 16_384, b"c" * 100_000, b"d" * (4 * 1024 * 1024)]
    async with plain(echo) as (_, port):
        assert await asyncio.to_thread(talk, port, messages) == (messages, grpc.StatusCode.OK, "")
    assert echo.told == [f"opened {PATH} by system:unsecured", "half closed"]


async def test_a_status_and_its_text_reach_the_client() -> None:
    async with plain(Echo()) as (_, port):
        answers, code, text = await asyncio.to_thread(talk, port, [b"finish"])
    assert (answers, code, text) == (
        [b"finish"],
        grpc.StatusCode.NOT_FOUND,
        "there is no 100 % näme",
    )


async def test_a_message_that_is_too_large_ends_its_call_and_is_counted() -> None:
    async with plain(Echo()) as (listener, port):
        _, code, text = await asyncio.to_thread(talk, port, [b"x" * (4 * 1024 * 1024 + 1)])
        assert (code, text) == (
            grpc.StatusCode.RESOURCE_EXHAUSTED,
            "a message of 4194305 bytes; 4194304 are taken",
        )
        assert met(listener) == {"message": 1}


async def test_a_compressed_call_is_unimplemented() -> None:
    async with plain(Echo()) as (_, port):
        _, code, text = await asyncio.to_thread(
            talk, port, [b"x" * 1000], compression=grpc.Compression.Gzip
        )
    assert code is grpc.StatusCode.UNIMPLEMENTED
    assert "gzip" in text


async def test_a_fault_of_the_handler_ends_its_own_call_alone(
    capsys: pytest.CaptureFixture[str],
) -> None:
    echo = Echo()
    async with plain(echo) as (_, port):
        _, code, _ = await asyncio.to_thread(talk, port, [b"fail"])
        assert code is grpc.StatusCode.INTERNAL
        assert echo.told[-1] == "closed"
        answers, code, _ = await asyncio.to_thread(talk, port, [b"on it goes"])
        assert (answers, code) == ([b"on it goes"], grpc.StatusCode.OK)
    assert "asked for" in "".join(capsys.readouterr())


async def test_over_tls_a_client_certificate_says_who_asks(tmp_path: Path) -> None:
    echo = Echo()
    reviewing = Reviewing({})
    now = [time.time()]
    async with secure(echo, ReviewedTokens(reviewing, lambda: now[0]), tmp_path) as (_, port, pki):  # type: ignore[arg-type]
        pems = [file.read_bytes() for file in (pki.ca_file, pki.admin_key_file, pki.admin_file)]

        def ask(*credentials: bytes) -> tuple[list[bytes], grpc.StatusCode, str]:
            secured = grpc.ssl_channel_credentials(*credentials)
            with grpc.secure_channel(f"localhost:{port}", secured) as channel:
                return call(channel, [b"hello"])

        good = await asyncio.to_thread(ask, *pems)
        now[0] += 1e9
        late = await asyncio.to_thread(ask, *pems)
        none = await asyncio.to_thread(ask, pems[0])
    assert none == (
        [],
        grpc.StatusCode.UNAUTHENTICATED,
        "the client sent neither a certificate nor a token",
    )
    assert good == ([b"hello"], grpc.StatusCode.OK, "")
    # A connection outlives the certificate that it came with.
    assert late == ([], grpc.StatusCode.UNAUTHENTICATED, "the client certificate has expired")
    assert echo.told == [f"opened {PATH} by sliceplane-admin", "half closed"]
    assert reviewing.asked == []


async def test_the_api_server_says_whose_a_token_is_and_is_asked_once(tmp_path: Path) -> None:
    echo = Echo()
    bound = {"authentication.kubernetes.io/pod-uid": ["7"]}
    reviewing = Reviewing(
        {"good": {"username": "system:serviceaccount:a:b", "groups": ["g"], "extra": bound}}
    )
    async with secure(echo, ReviewedTokens(reviewing, lambda: 0.0), tmp_path) as (_, port, pki):  # type: ignore[arg-type]
        authority = pki.ca_file.read_bytes()

        def ask(token: str) -> tuple[list[bytes], grpc.StatusCode, str]:
            secured = grpc.composite_channel_credentials(
                grpc.ssl_channel_credentials(authority), grpc.access_token_call_credentials(token)
            )
            with grpc.secure_channel(f"localhost:{port}", secured) as channel:
                return call(channel, [b"hello"])

        for _ in range(2):
            assert await asyncio.to_thread(ask, "good") == ([b"hello"], grpc.StatusCode.OK, "")
        _, code, text = await asyncio.to_thread(ask, "bad")
        assert (code, text) == (
            grpc.StatusCode.UNAUTHENTICATED,
            "the token is not valid",
        )
        reviewing.away = True
        _, code, _ = await asyncio.to_thread(ask, "other")
        assert code is grpc.StatusCode.UNAVAILABLE
    assert reviewing.asked == ["good", "bad", "other"]
    assert echo.calls[0].user == User(
        name="system:serviceaccount:a:b",
        groups=("g",),
        extra=(("authentication.kubernetes.io/pod-uid", ("7",)),),
    )


class Client:
    """HTTP/2 by hand, in the loop."""

    def __init__(self) -> None:
        self.http = h2.connection.H2Connection(h2.config.H2Configuration(header_encoding=None))
        self.events: list[h2.events.Event] = []
        self.reader: asyncio.StreamReader
        self.writer: asyncio.StreamWriter

    async def connect(self, port: int, *, window: int = 65_535) -> None:
        self.reader, self.writer = await asyncio.open_connection("127.0.0.1", port)
        self.http.initiate_connection()
        self.http.update_settings({h2.settings.SettingCodes.INITIAL_WINDOW_SIZE: window})

    def open(self, *messages: bytes) -> int:
        number = self.http.get_next_available_stream_id()
        head = {":method": "POST", ":scheme": "http", ":path": PATH, ":authority": "x"}
        self.http.send_headers(
            number, [*head.items(), ("content-type", "application/grpc"), ("te", "trailers")]
        )
        for message in messages:
            self.http.send_data(number, b"\0" + len(message).to_bytes(4, "big") + message)
        self.writer.write(self.http.data_to_send())
        return number

    async def read(self, wanted: type[h2.events.Event]) -> h2.events.Event:
        """The next event of that kind."""
        while True:
            for event in self.events:
                if isinstance(event, wanted):
                    self.events.remove(event)
                    return event
            data = await self.reader.read(65_536)
            assert data, "the server has closed"
            self.events += self.http.receive_data(data)
            self.writer.write(self.http.data_to_send())

    async def close(self) -> None:
        self.writer.close()
        await self.writer.wait_closed()


async def test_a_client_that_takes_nothing_costs_the_message_and_no_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(connection, "UNSENT_BYTES_MAX", 3_000_000)
    echo = Echo()
    async with plain(echo) as (listener, port):
        slow, quick = Client(), Client()
        await slow.connect(port, window=0)
        await quick.connect(port)
        slow.open()
        quick.open()
        await eventually(lambda: len(echo.calls) == 2)
        message = b"x" * 1_000_000
        echo.calls[0].send(message)
        assert echo.calls[0].pending_bytes == 1_000_005
        assert sum(one.grpc.http.unwritten_frames for one in listener._connections) <= 3, (
            "it is kept, not framed"
        )
        echo.calls[1].send(b"at once")
        received = await quick.read(h2.events.DataReceived)
        assert received.data == b"\0\0\0\0\7at once"  # type: ignore[attr-defined]
        # Beyond its bound the call ends, and the others go on.
        for _ in range(3):
            echo.calls[0].send(message)
        assert echo.told.count("closed") == 1
        assert met(listener) == {"unsent": 1}
        echo.calls[0].send(b"dropped")
        await slow.close()
        await quick.close()
        await eventually(lambda: echo.told.count("closed") == 2)


async def test_a_stop_sends_clients_away_and_tells_the_handler() -> None:
    echo = Echo()
    async with plain(echo) as (listener, port):
        client = Client()
        await client.connect(port)
        client.open(b"hello")
        await client.read(h2.events.DataReceived)
        stopping = asyncio.create_task(listener.stop(0.01))
        # h2 takes GOAWAY for the end of everything, so the frames are looked at as they are.
        kinds = kinds_of(await client.reader.read())
        assert kinds == [frames.GOAWAY, frames.HEADERS, frames.RST_STREAM]
        await client.close()
        await stopping
    assert echo.told[-1] == "closed"


@pytest.mark.parametrize("on_its_way", range(6), ids=lambda count: f"{count} turns of the loop")
async def test_no_client_stays_with_a_listener_that_has_stopped(on_its_way: int) -> None:
    """Whatever of a connection has happened by then."""
    async with plain(Echo()) as (listener, port):
        sock = socket.create_connection(("127.0.0.1", port))
        await turns(on_its_way)
        await listener.stop(0.0)
        sock.setblocking(False)
        loop = asyncio.get_running_loop()
        with contextlib.suppress(ConnectionError):
            while await asyncio.wait_for(loop.sock_recv(sock, 1000), 30.0):
                """What it says before it goes."""
        sock.close()


async def test_who_asks_is_asked_again_and_calls_have_an_age(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(transport, "RECHECK_S", 0.001)
    echo = Echo()
    answering = Answering()
    async with plain(echo, answering) as (_, port):
        client = Client()
        await client.connect(port)
        client.open(b"hello")
        await client.read(h2.events.DataReceived)
        answering.answer = CallRefused(GrpcStatus.UNAVAILABLE, "the API server is away")
        before = answering.asked
        await eventually(lambda: answering.asked > before + 2)
        assert echo.told == [f"opened {PATH} by ana"], "what it has is better than nothing"
        answering.answer = CallRefused(GrpcStatus.UNAUTHENTICATED, "the token is over")
        trailers = await client.read(h2.events.TrailersReceived)
        assert dict(trailers.headers)[b"grpc-status"] == b"16"  # type: ignore[attr-defined]
        answering.answer = ANA
        monkeypatch.setattr(transport, "AGE_S_MAX", 0.0)
        client.open(b"again")
        trailers = await client.read(h2.events.TrailersReceived)
        assert dict(trailers.headers)[b"grpc-status"] == b"14"  # type: ignore[attr-defined]
        await client.close()


async def test_a_user_has_so_many_calls() -> None:
    echo = Echo()
    async with plain(echo, Answering()) as (listener, port):
        listener._calls_per_user_max = 2
        client = Client()
        await client.connect(port)
        for _ in range(3):
            client.open()
        trailers = await client.read(h2.events.ResponseReceived)
        assert dict(trailers.headers)[b"grpc-status"] == b"8"  # type: ignore[attr-defined]
        assert met(listener) == {"calls-of-user": 1}
        assert len(echo.calls) == 2
        await client.close()


async def test_what_comes_before_it_is_known_who_asks_waits_in_order_and_within_a_bound() -> None:
    echo = Echo()
    answer: asyncio.Future[User] = asyncio.get_running_loop().create_future()

    class Slow:
        def user(
            self, certificate: Certificate | None, authorization: str, peer: str
        ) -> Awaitable[User]:
            return answer

    async with plain(echo, Slow()) as (listener, port):
        client = Client()
        await client.connect(port)
        first = client.open(b"one", b"two")
        client.http.end_stream(first)
        greedy = client.open()
        client.writer.write(client.http.data_to_send())
        await eventually(lambda: any(len(one.calls) == 2 for one in listener._connections))
        connected = next(iter(listener._connections))
        connected._queue_early_message(connected.calls[greedy], b"x" * connection.MESSAGE_BYTES_MAX)
        assert met(listener) == {"held": 1}
        assert greedy not in connected.calls
        answer.set_result(ANA)
        await client.read(h2.events.TrailersReceived)
        assert echo.told == [f"opened {PATH} by ana", "half closed"]
        assert connected._early_bytes == 0
        await client.close()


async def test_bytes_that_are_no_http2_close_the_connection() -> None:
    async with plain(Echo()) as (listener, port):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"GET / HTTP/1.1\r\n\r\n")
        answer = await reader.read()
        assert b"this is not HTTP/2" in answer
        writer.close()
        await eventually(lambda: not listener._connections)


async def test_connections_have_a_bound() -> None:
    async with plain(Echo()) as (listener, port):
        listener._connections_max = 1
        first, second = (socket.create_connection(("127.0.0.1", port)) for _ in range(2))
        await eventually(lambda: met(listener) == {"connections": 1})
        first.sendall(frames.PREFACE)
        second.close()
        first.close()
        await eventually(lambda: not listener._connections)


def kinds_of(data: bytes) -> list[int]:
    """Of whole frames."""
    kinds = []
    while data:
        high, low, kind, _, _ = frames.HEAD.unpack_from(data)
        kinds.append(kind)
        data = data[frames.HEAD_BYTES + (high << 8 | low) :]
    return kinds


def met(listener: transport.GrpcListener) -> dict[str, float]:
    return {
        labels[0]: value
        for labels, value in listener._limits.read()
        if isinstance(value, (int, float))
    }


def test_the_port_without_tls_is_the_administrators() -> None:
    assert "system:masters" in Unsecured().user(None, "", "").groups
