"""What a client that means no good can make a connection hold and do."""

from __future__ import annotations

import pytest
from tests.http2.frames_of_a_client import (
    POST,
    block,
    data,
    drained,
    headers,
    message,
    opened,
    sent,
)

from sliceplane.kit.http2 import frames
from sliceplane.kit.http2.frames import ErrorCode, frame
from sliceplane.kit.http2.grpc import CallClosed, CallOpened, GrpcConnection
from sliceplane.kit.http2.limits import (
    BLOCK_FRAMES_MAX,
    BURST,
    IDLE_S_MAX,
    MESSAGE_BYTES_MAX,
    OUTPUT_BYTES,
    PING_S,
    PONG_S_MAX,
    PREFACE_S_MAX,
    STREAM_WINDOW,
    STREAMS_MAX,
)

RESET = int(ErrorCode.CANCEL).to_bytes(4, "big")
FLOODS = {
    "PING": frame(6, 0, 0, bytes(8)),
    "SETTINGS": frames.settings({}),
    "acknowledged SETTINGS": frame(4, 1, 0),
    "empty DATA": data(1),
    "PRIORITY": frame(2, 0, 1, bytes(5)),
    "unknown frames": frame(99, 0, 0),
}


@pytest.mark.parametrize("flood", FLOODS)
def test_a_flood_ends_the_connection(flood: str) -> None:
    server = opened(headers(1))
    frames_sent = 0
    while server.http.fault is None:
        server.receive(FLOODS[flood], 0.0)
        frames_sent += 1
        assert frames_sent <= BURST + 1
    assert server.http.fault.code is ErrorCode.ENHANCE_YOUR_CALM
    assert server.http.met == ["flood"]
    assert drained(server)[-1].kind == frames.GOAWAY


def test_rapid_resets_end_the_connection() -> None:
    """CVE-2023-44487: requests that are reset at once never meet the limit of streams."""
    server = opened()
    for number in range(1, 10_000, 2):
        server.receive(headers(number) + frame(3, 0, number, RESET), 0.0)
        if server.http.fault is not None:
            break
    assert number < 2 * BURST / 10 + 10
    assert server.http.met == ["flood"]


def test_a_client_that_pings_as_often_as_it_is_sent_something_goes_on() -> None:
    """gRPC measures the bandwidth so."""
    server = opened(headers(1))
    for _ in range(int(3 * BURST)):
        server.send(1, b"x")
        server.http.take_output()
        server.receive(
            frame(6, 0, 0, bytes(8)) + frames.window_update(1, 100) + frames.window_update(0, 100),
            0.0,
        )
    assert server.http.fault is None


def test_an_allowance_grows_with_time() -> None:
    server = opened()
    for second in range(100):
        server.receive(FLOODS["PING"] * 90, float(second))
    assert server.http.fault is None


def test_a_block_of_many_frames_ends_the_connection() -> None:
    """CVE-2024-27316 and its kin: CONTINUATION without end."""
    server = opened(frame(1, 0, 1, block()))
    for _ in range(BLOCK_FRAMES_MAX - 1):
        server.receive(frame(9, 0, 1), 0.0)
    assert server.http.fault is None
    server.receive(frame(9, 0, 1), 0.0)
    assert server.http.met == ["continuation"]


def test_a_block_of_many_bytes_ends_the_connection() -> None:
    server = opened(
        frame(1, 0, 1, block()), frame(9, 0, 1, bytes(16_384)), frame(9, 0, 1, bytes(16_384))
    )
    assert server.http.met == ["continuation"]


def test_large_headers_are_refused_and_the_next_call_works() -> None:
    server = opened(headers(1, [*POST, *((f"name-{n}", "a" * 1000) for n in range(20))]))
    assert server.http.met == ["header-list"]
    (reset,) = drained(server)
    assert (reset.kind, reset.payload[-1]) == (frames.RST_STREAM, ErrorCode.ENHANCE_YOUR_CALM)
    assert isinstance(server.receive(headers(3), 0.0)[0], CallOpened)


def test_a_header_bomb_ends_the_connection() -> None:
    """One field in the table, and then a byte for each time that it comes again."""
    field = (
        b"\x40" + b"\x01a" + b"\x7f\xc1\x1e" + b"x" * 4000
    )  # literal with indexing, 4000 bytes of value
    server = opened(frame(1, 4, 1, field + b"\xbe" * 200))
    assert server.http.fault is not None
    assert server.http.fault.code is ErrorCode.ENHANCE_YOUR_CALM
    assert server.http.met == ["header-list"]


def test_streams_have_a_bound_and_room_comes_again() -> None:
    server = opened(*(headers(2 * number + 1) for number in range(STREAMS_MAX)))
    drained(server)
    events = server.receive(headers(2 * STREAMS_MAX + 1), 0.0)
    assert events == []
    assert server.http.met == ["streams"]
    (reset,) = drained(server)
    assert reset.payload[-1] == ErrorCode.REFUSED_STREAM
    server.finish(1, 0)
    assert isinstance(server.receive(headers(2 * STREAMS_MAX + 3), 0.0)[0], CallOpened)
    server.check()


def test_messages_that_are_never_whole_have_a_bound() -> None:
    server = opened()
    cut_off = message(bytes(MESSAGE_BYTES_MAX))[: STREAM_WINDOW - 100]
    closed = []
    for number in range(1, 50, 2):
        events = server.receive(headers(number), 0.0)
        for start in range(0, len(cut_off), 16_384):
            events += server.receive(data(number, cut_off[start : start + 16_384]), 0.0)
        closed += [event for event in events if isinstance(event, CallClosed)]
        drained(server)
    assert closed
    assert server.partial_bytes <= 16 * 1024 * 1024
    assert set(server.http.met) == {"partial-messages"}
    server.check()


def test_output_comes_in_portions_and_is_not_copied_before() -> None:
    server = opened(frames.settings({4: 2**31 - 1}), frames.window_update(0, 2**30))
    server.receive(headers(1) + headers(3), 0.0)
    drained(server)
    body = bytes(3_000_000)
    server.send(1, body)
    server.send(3, body)
    assert server.http.pending_bytes(1) == 3_000_005
    seen = {1: 0, 3: 0}
    while output := server.http.take_output():
        assert len(output) <= OUTPUT_BYTES + 16_384 + 1000
        for found in sent(output):
            if found.kind == frames.DATA:
                seen[found.stream_id] += len(found.payload)
        assert abs(seen[1] - seen[3]) <= 16_384, "streams have turns"
        server.check()
    assert seen == {1: 3_000_005, 3: 3_000_005}


def test_a_client_that_does_not_begin_is_left() -> None:
    server = GrpcConnection(0.0)
    server.receive(frames.PREFACE[:10], 5.0)
    assert server.next_deadline() == PREFACE_S_MAX
    server.on_time(PREFACE_S_MAX - 0.1)
    assert not server.http.is_over
    server.on_time(PREFACE_S_MAX)
    assert server.http.met == ["preface"]
    assert server.http.is_over


def test_a_silent_client_is_asked_whether_it_is_there() -> None:
    server = opened(headers(1))
    drained(server)
    assert server.next_deadline() == PING_S
    server.on_time(PING_S)
    (ping,) = drained(server)
    assert ping.kind == frames.PING
    server.receive(frame(6, 1, 0, ping.payload), PING_S + 1)
    assert server.next_deadline() == 2 * PING_S + 1
    server.on_time(2 * PING_S + 1)
    assert server.on_time(2 * PING_S + 1 + PONG_S_MAX) == [CallClosed(1, "a PING was not answered")]
    assert server.http.met == ["keepalive"]
    server.check()


def test_a_connection_without_calls_is_left_after_a_while() -> None:
    server = opened()
    now = 0.0
    while not server.http.is_over:
        now = server.next_deadline()
        server.on_time(now)
        for found in drained(server):
            if found.kind == frames.PING:
                server.receive(frame(6, 1, 0, found.payload), now)
    assert now == IDLE_S_MAX
    assert server.http.fault is None
