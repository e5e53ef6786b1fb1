"""gRPC over HTTP/2, as its specification says it, from the bytes of a client to those of the
server.
"""

from __future__ import annotations

import pytest
from hpack import Decoder
from hypothesis import given
from hypothesis import strategies as st
from tests.effort import effort
from tests.http2.frames_of_a_client import POST, SentFrame, data, drained, headers, message, opened

from sliceplane.kit.http2 import frames
from sliceplane.kit.http2.frames import frame
from sliceplane.kit.http2.grpc import (
    CallClosed,
    CallHalfClosed,
    CallMessage,
    CallOpened,
    GrpcConnection,
)


def answer(found: list[SentFrame]) -> dict[str, str]:
    """All headers and trailers of a call."""
    decoder = Decoder()
    blocks = b"".join(each.payload for each in found if each.kind == frames.HEADERS)
    return dict(decoder.decode(blocks))


def changed(*changes: tuple[str, str]) -> bytes:
    names = {name for name, _ in changes}
    pseudo = [pair for pair in changes if pair[0].startswith(":")]
    regular = [pair for pair in changes if not pair[0].startswith(":")]
    kept = [pair for pair in POST if pair[0] not in names]
    return headers(1, [*pseudo, *kept, *regular])


def test_a_call_from_its_headers_to_its_trailers() -> None:
    server = opened()
    events = server.receive(changed(("x-name", "ä")) + data(1, message(b"hi"), end=True), 0.0)
    names = {"content-type": "application/grpc", "te": "trailers", "x-name": "Ã¤"}
    assert events == [CallOpened(1, "/a.B/C", names), CallMessage(1, b"hi"), CallHalfClosed(1)]
    server.send(1, b"there")
    server.send(1, b"")
    server.finish(1, 0)
    found = drained(server)
    assert [(each.kind, each.flags) for each in found] == [(1, 4), (0, 0), (0, 0), (1, 5)]
    assert [each.payload for each in found if each.kind == 0] == [message(b"there"), message(b"")]
    assert answer(found) == {
        ":status": "200",
        "content-type": "application/grpc",
        "grpc-status": "0",
    }
    server.check()


def test_a_call_that_ends_before_its_client_has_is_reset_behind_its_trailers() -> None:
    server = opened(headers(1))
    server.finish(1, 7, "no: 100 %, ä")
    found = drained(server)
    assert [(each.kind, each.flags) for each in found] == [(1, 5), (3, 0)]
    assert answer(found)["grpc-message"] == "no: 100 %25, %C3%A4"
    assert server.receive(data(1, message(b"late")), 0.0) == []
    assert drained(server) == []


@pytest.mark.parametrize(
    ("change", "status", "http_status"),
    [
        ((":method", "GET"), "12", "405"),
        (("content-type", "text/html"), "13", "415"),
        (("content-type", "application/grpcx"), "13", "415"),
        (("grpc-encoding", "gzip"), "12", "200"),
        (("grpc-timeout", "1 s"), "13", "200"),
    ],
)
def test_a_request_that_is_no_call_of_ours_gets_only_trailers(
    change: tuple[str, str], status: str, http_status: str
) -> None:
    server = opened()
    assert server.receive(changed(change), 0.0) == []
    found = drained(server)
    said = answer(found)
    assert (said["grpc-status"], said[":status"]) == (status, http_status)
    assert found[0].flags & frames.END_STREAM
    server.check()


@pytest.mark.parametrize(
    "content_type", ["application/grpc", "application/grpc+proto", "application/grpc;x=y"]
)
def test_content_types_of_grpc(content_type: str) -> None:
    (event,) = opened().receive(
        changed(("content-type", content_type), ("grpc-encoding", "identity")), 0.0
    )
    assert isinstance(event, CallOpened)


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b"\1\0\0\0\1x", "13"),
        (b"\2\0\0\0\1x", "13"),
        (b"\0\0\x40\0\1", "8"),
        (b"\0\xff\xff\xff\xff", "8"),
    ],
)
def test_a_message_that_is_not_taken(body: bytes, status: str) -> None:
    server = opened(headers(1))
    (event,) = server.receive(data(1, body), 0.0)
    assert isinstance(event, CallClosed)
    assert answer(drained(server))["grpc-status"] == status
    server.check()


def test_the_last_message_must_be_whole() -> None:
    server = opened(headers(1))
    (event,) = server.receive(data(1, message(b"abc")[:-1], end=True), 0.0)
    assert isinstance(event, CallClosed)
    assert answer(drained(server))["grpc-status"] == "13"


@pytest.mark.parametrize(
    ("text", "seconds"), [("5S", 5.0), ("2M", 120.0), ("1H", 3600.0), ("1500m", 1.5), ("9u", 9e-6)]
)
def test_a_call_ends_when_its_time_is_up(text: str, seconds: float) -> None:
    server = opened(changed(("grpc-timeout", text)))
    drained(server)
    assert server.next_deadline() == min(seconds, 30.0)
    assert server.on_time(seconds - 1e-6) == []
    assert server.on_time(seconds) == [CallClosed(1, "its deadline has passed")]
    assert "4" in [
        answer([each])["grpc-status"] for each in drained(server) if each.kind == frames.HEADERS
    ]
    server.check()


def test_trailers_of_a_client_are_its_end() -> None:
    server = opened(headers(1))
    assert server.receive(headers(1, [("name", "x")], end=True), 0.0) == [CallHalfClosed(1)]


def test_a_reset_closes_the_call_and_what_waits_for_it_is_gone() -> None:
    server = opened(headers(1))
    server.send(1, bytes(100_000))
    assert server.http.pending_bytes(1)
    (event,) = server.receive(frame(3, 0, 1, bytes((0, 0, 0, 8))), 0.0)
    assert isinstance(event, CallClosed)
    assert server.http.pending_bytes(1) == 0
    server.send(1, b"dropped")
    server.finish(1, 0)
    server.check()


def test_a_client_that_goes_away_is_served_to_the_end() -> None:
    server = opened(headers(1), frames.goaway(0, frames.ErrorCode.NO_ERROR))
    assert not server.http.is_over
    server.send(1, b"x")
    server.finish(1, 0)
    assert [each.kind for each in drained(server)] == [1, 0, 1, 3]
    assert server.http.is_over


def test_a_server_that_goes_away_takes_no_new_call_and_finishes_those_that_it_has() -> None:
    server = opened(headers(1))
    server.http.go_away()
    assert server.receive(headers(3), 0.0) == []
    assert not server.http.is_over
    server.finish(1, 0)
    found = drained(server)
    assert [each.kind for each in found] == [
        frames.GOAWAY,
        frames.RST_STREAM,
        frames.HEADERS,
        frames.RST_STREAM,
    ]
    assert int.from_bytes(found[0].payload[:4], "big") == 1, "the client sends the rest elsewhere"
    assert server.http.is_over


@effort(60)
@given(st.lists(st.binary(max_size=40), max_size=8), st.lists(st.integers(1, 60), max_size=20))
def test_messages_do_not_depend_on_how_they_are_cut_into_frames(
    bodies: list[bytes], sizes: list[int]
) -> None:
    server = opened(headers(1))
    stream = b"".join(map(message, bodies))
    seen: list[bytes] = []
    for size in (*sizes, len(stream) + 1):
        events = server.receive(data(1, stream[:size]), 0.0)
        assert all(isinstance(event, CallMessage) for event in events)
        seen += [event.data for event in events if isinstance(event, CallMessage)]
        stream = stream[size:]
        server.check()
    assert seen == bodies
    assert server.partial_bytes == 0


def test_what_a_call_is_sent_behind_its_end_is_dropped() -> None:
    server = GrpcConnection(0.0)
    server.send(7, b"x")
    server.finish(7, 0)
    assert [each.kind for each in drained(server)] == [frames.SETTINGS, frames.WINDOW_UPDATE]
