"""What RFC 9113 demands when a client breaks its rules, case by case: the connection ends, or the
stream does.
"""

from __future__ import annotations

import struct

import pytest
from tests.http2.frames_of_a_client import (
    OPENING,
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
from sliceplane.kit.http2.grpc import GrpcConnection
from sliceplane.kit.http2.limits import CONNECTION_WINDOW, STREAM_WINDOW

E = ErrorCode
LARGE = b"x" * 16_384


def setting(name: int, value: int) -> bytes:
    return frames.settings({name: value})


def window(stream_id: int, size: int) -> bytes:
    return frames.window_update(stream_id, size)


def fields(*changes: tuple[str, str], without: str = "") -> bytes:
    return headers(1, [pair for pair in POST if pair[0] != without] + list(changes))


CONNECTION_ERRORS = {
    "3.4 a frame before SETTINGS": (frames.PREFACE + frame(6, 0, 0, bytes(8)), E.PROTOCOL_ERROR),
    "3.4 an ACK before SETTINGS": (frames.PREFACE + frame(4, 1, 0), E.PROTOCOL_ERROR),
    "3.4 another preface": (b"PRI * HTTP/2.0\r\n\r\nXX\r\n\r\n", E.PROTOCOL_ERROR),
    "4.2 a frame over SETTINGS_MAX_FRAME_SIZE": (
        OPENING + frame(0, 0, 1, LARGE + b"x"),
        E.FRAME_SIZE_ERROR,
    ),
    "4.3 a block that HPACK cannot read": (
        OPENING + frame(1, 4, 1, b"\xff\xff\xff\xff\xff\xff"),
        E.COMPRESSION_ERROR,
    ),
    "5.1 DATA on an idle stream": (OPENING + data(1), E.PROTOCOL_ERROR),
    "5.1 RST_STREAM on an idle stream": (OPENING + frame(3, 0, 1, bytes(4)), E.PROTOCOL_ERROR),
    "5.1 WINDOW_UPDATE on an idle stream": (OPENING + window(1, 1), E.PROTOCOL_ERROR),
    "5.1 HEADERS on a stream that was reset": (
        OPENING + headers(1) + frame(3, 0, 1, bytes(4)) + headers(1),
        E.STREAM_CLOSED,
    ),
    "5.1.1 an even stream": (OPENING + headers(2), E.PROTOCOL_ERROR),
    "5.1.1 a lower stream than before": (OPENING + headers(5) + headers(3), E.STREAM_CLOSED),
    "6.1 DATA on stream 0": (OPENING + data(0), E.PROTOCOL_ERROR),
    "6.1 padding as long as the payload": (
        OPENING + headers(1) + frame(0, 8, 1, b"\4abc"),
        E.PROTOCOL_ERROR,
    ),
    "6.1 padding without a length": (OPENING + headers(1) + frame(0, 8, 1), E.PROTOCOL_ERROR),
    "6.2 HEADERS on stream 0": (OPENING + headers(0), E.PROTOCOL_ERROR),
    "6.2 a priority that is cut off": (OPENING + frame(1, 4 | 32, 1, b"abc"), E.FRAME_SIZE_ERROR),
    "6.3 PRIORITY on stream 0": (OPENING + frame(2, 0, 0, bytes(5)), E.PROTOCOL_ERROR),
    "6.4 RST_STREAM on stream 0": (OPENING + frame(3, 0, 0, bytes(4)), E.PROTOCOL_ERROR),
    "6.4 RST_STREAM of another length": (
        OPENING + headers(1) + frame(3, 0, 1, bytes(5)),
        E.FRAME_SIZE_ERROR,
    ),
    "6.5 SETTINGS on a stream": (OPENING + frame(4, 0, 1), E.PROTOCOL_ERROR),
    "6.5 SETTINGS that are cut off": (OPENING + frame(4, 0, 0, bytes(5)), E.FRAME_SIZE_ERROR),
    "6.5 an ACK that says something": (OPENING + frame(4, 1, 0, bytes(6)), E.FRAME_SIZE_ERROR),
    "6.5.2 ENABLE_PUSH of 2": (OPENING + setting(2, 2), E.PROTOCOL_ERROR),
    "6.5.2 a window of 2 GiB": (OPENING + setting(4, 2**31), E.FLOW_CONTROL_ERROR),
    "6.5.2 frames of less than 16 KiB": (OPENING + setting(5, 16_383), E.PROTOCOL_ERROR),
    "6.5.2 frames of 16 MiB": (OPENING + setting(5, 2**24), E.PROTOCOL_ERROR),
    "6.6 PUSH_PROMISE of a client": (
        OPENING + headers(1) + frame(5, 4, 1, bytes(4)),
        E.PROTOCOL_ERROR,
    ),
    "6.7 PING on a stream": (OPENING + frame(6, 0, 1, bytes(8)), E.PROTOCOL_ERROR),
    "6.7 PING of another length": (OPENING + frame(6, 0, 0, bytes(7)), E.FRAME_SIZE_ERROR),
    "6.8 GOAWAY on a stream": (OPENING + frame(7, 0, 1, bytes(8)), E.PROTOCOL_ERROR),
    "6.9 WINDOW_UPDATE of another length": (OPENING + frame(8, 0, 0, bytes(3)), E.FRAME_SIZE_ERROR),
    "6.9 the connection's window by nothing": (OPENING + window(0, 0), E.PROTOCOL_ERROR),
    "6.9.1 the connection's window over 2 GiB": (
        OPENING + window(0, 2**31 - 1),
        E.FLOW_CONTROL_ERROR,
    ),
    "6.9.2 SETTINGS make a window too large": (
        OPENING + headers(1) + window(1, 2**31 - 1 - 65_535) + setting(4, 65_536),
        E.FLOW_CONTROL_ERROR,
    ),
    "6.10 CONTINUATION of nothing": (OPENING + frame(9, 4, 1), E.PROTOCOL_ERROR),
    "6.10 another frame within a block": (
        OPENING + frame(1, 0, 1, block()) + frame(6, 0, 0, bytes(8)),
        E.PROTOCOL_ERROR,
    ),
    "6.10 CONTINUATION of another stream": (
        OPENING + frame(1, 0, 1, block()) + frame(9, 4, 3),
        E.PROTOCOL_ERROR,
    ),
}

STREAM_ERRORS = {
    "5.1 DATA behind the end": (headers(1, end=True) + data(1, b"x"), E.STREAM_CLOSED),
    "5.1 HEADERS behind the end": (headers(1, end=True) + headers(1, end=True), E.STREAM_CLOSED),
    "5.1 DATA on a stream that the client reset": (
        headers(1) + frame(3, 0, 1, bytes(4)) + data(1),
        E.STREAM_CLOSED,
    ),
    "6.3 PRIORITY of another length": (headers(1) + frame(2, 0, 1, bytes(4)), E.FRAME_SIZE_ERROR),
    "6.9 a window by nothing": (headers(1) + window(1, 0), E.PROTOCOL_ERROR),
    "6.9.1 a window over 2 GiB": (headers(1) + window(1, 2**31 - 1), E.FLOW_CONTROL_ERROR),
    "8.1 trailers that do not end the stream": (
        headers(1) + headers(1, [("a", "b")]),
        E.PROTOCOL_ERROR,
    ),
    "8.1.1 a body longer than content-length": (
        fields(("content-length", "1")) + data(1, b"xx"),
        E.PROTOCOL_ERROR,
    ),
    "8.1.1 a body shorter than content-length": (
        fields(("content-length", "3")) + data(1, b"xx", end=True),
        E.PROTOCOL_ERROR,
    ),
    "8.1.1 a content-length that is no number": (
        fields(("content-length", "+1")),
        E.PROTOCOL_ERROR,
    ),
    "8.2.1 a name in capitals": (fields(("Name", "x")), E.PROTOCOL_ERROR),
    "8.2.1 a name with a space": (fields(("na me", "x")), E.PROTOCOL_ERROR),
    "8.2.1 a value with a line break": (fields(("name", "x\r\ny")), E.PROTOCOL_ERROR),
    "8.2.1 a value with space around it": (fields(("name", " x")), E.PROTOCOL_ERROR),
    "8.2.2 a header of the connection": (fields(("connection", "close")), E.PROTOCOL_ERROR),
    "8.2.2 te but trailers": (fields(("te", "gzip"), without="te"), E.PROTOCOL_ERROR),
    "8.3 a pseudo-header that is unknown": (headers(1, [(":name", "x"), *POST]), E.PROTOCOL_ERROR),
    "8.3 a pseudo-header behind others": (
        fields((":path", "/"), without=":path"),
        E.PROTOCOL_ERROR,
    ),
    "8.3 a pseudo-header twice": (headers(1, [(":path", "/"), *POST]), E.PROTOCOL_ERROR),
    "8.3 a pseudo-header in trailers": (
        headers(1) + headers(1, [(":path", "/")], end=True),
        E.PROTOCOL_ERROR,
    ),
    "8.3.1 no method": (fields(without=":method"), E.PROTOCOL_ERROR),
    "8.3.1 no path": (fields(without=":path"), E.PROTOCOL_ERROR),
}


@pytest.mark.parametrize("case", CONNECTION_ERRORS)
def test_a_connection_error(case: str) -> None:
    script, code = CONNECTION_ERRORS[case]
    server = GrpcConnection(0.0)
    server.receive(script, 0.0)
    last = drained(server)[-1]
    assert (last.kind, last.stream_id) == (frames.GOAWAY, 0)
    assert ErrorCode(int.from_bytes(last.payload[4:8], "big")) is code
    assert server.http.is_over
    # Nothing that follows counts.
    assert server.receive(headers(99), 0.0) == []
    assert drained(server) == []


@pytest.mark.parametrize("case", STREAM_ERRORS)
def test_a_stream_error_leaves_the_connection_as_it_was(case: str) -> None:
    script, code = STREAM_ERRORS[case]
    server = opened(script)
    ended = [
        (found.stream_id, int.from_bytes(found.payload, "big"))
        for found in drained(server)
        if found.kind == 3
    ]
    assert ended == [(1, code)]
    # What of the stream is still on its way is passed over, and a new one works.
    server.receive(data(1, b"late"), 0.0)
    events = server.receive(headers(3) + data(3, message(b"hello")), 0.0)
    assert [type(event).__name__ for event in events] == ["CallOpened", "CallMessage"]
    assert server.http.fault is None
    server.check()


def test_more_data_than_the_windows() -> None:
    """Section 6.9.1."""
    whole = message(bytes(STREAM_WINDOW))
    half = [whole[start : start + 16_384] for start in range(0, STREAM_WINDOW // 2, 16_384)]
    server = opened(headers(1), *(data(1, piece) for piece in half))
    assert server.http.fault is None
    updates = {
        found.stream_id: found.payload
        for found in drained(server)
        if found.kind == frames.WINDOW_UPDATE
    }
    assert updates == {}, "half a window is there yet"
    server.receive(data(1, b"x" * 100), 0.0)
    (update,) = [found for found in drained(server) if found.kind == frames.WINDOW_UPDATE]
    assert (update.stream_id, int.from_bytes(update.payload, "big")) == (
        1,
        STREAM_WINDOW // 2 + 100,
    )
    server.http._streams[1].receive_window = 10
    server.receive(data(1, b"x" * 11), 0.0)
    (reset,) = [found for found in drained(server) if found.kind == frames.RST_STREAM]
    assert int.from_bytes(reset.payload, "big") == E.FLOW_CONTROL_ERROR
    server.http._receive_window = 10
    server.receive(data(1, b"x" * 11), 0.0)
    assert server.http.fault is not None
    assert server.http.fault.code is E.FLOW_CONTROL_ERROR


def test_pitfall_31_a_connection_opens_with_its_settings_and_a_large_window() -> None:
    first, second = drained(GrpcConnection(0.0))
    assert first.kind == frames.SETTINGS
    assert dict(struct.iter_unpack(">HL", first.payload)) == {3: 200, 4: STREAM_WINDOW, 6: 16_384}
    assert second.kind == frames.WINDOW_UPDATE
    assert int.from_bytes(second.payload, "big") + 65_535 == CONNECTION_WINDOW


def test_settings_and_pings_are_answered_and_what_is_unknown_is_passed_over() -> None:
    server = opened(
        setting(77, 5),
        frame(6, 0, 0, b"12345678"),
        frame(6, 1, 0, bytes(8)),
        frame(77, 255, 3, b"x"),
    )
    server.receive(frame(2, 0, 9, bytes(5)), 0.0)
    assert drained(server) == sent(frame(4, 1, 0) + frame(6, 1, 0, b"12345678"))


def test_padding_and_priority_of_a_request_are_passed_over() -> None:
    padded = frame(1, 4 | 8 | 32, 1, b"\3" + bytes(5) + block() + b"xxx")
    server = opened()
    events = server.receive(padded + frame(0, 8, 1, b"\2" + message(b"hi") + b"xx"), 0.0)
    assert [type(event).__name__ for event in events] == ["CallOpened", "CallMessage"]


def test_windows_may_become_less_than_nothing() -> None:
    """Section 6.9.2."""
    server = opened(headers(1))
    server.send(1, b"x" * 60_000)
    drained(server)
    server.receive(setting(4, 0), 0.0)
    server.send(1, b"y")
    assert [found.kind for found in drained(server)] == [frames.SETTINGS]
    server.receive(window(1, 60_000), 0.0)
    assert drained(server) == [], "10 bytes are owed still"
    server.receive(window(1, 20), 0.0)
    (found,) = drained(server)
    assert found.payload == message(b"y")
    server.check()
