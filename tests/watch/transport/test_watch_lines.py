"""The splitter of watch streams."""

from __future__ import annotations

import asyncio
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.waiting import eventually

from sliceplane.watch.io.base import WatchMessage
from sliceplane.watch.io.http.answers import BadStream
from sliceplane.watch.io.http.replies import WatchLines, WatchStream, message_of
from sliceplane.watch.io.http.wire import ClientConnection

EVENTS = [
    {"type": "ADDED", "object": {"metadata": {"name": "ä\n€"}}},
    {"type": "BOOKMARK", "object": {"metadata": {"resourceVersion": "7"}}},
    {"object": {"a": [1, {"b": None}]}, "type": "ERROR"},
]


def fed(lines: WatchLines, chunk: bytes) -> list[WatchMessage]:
    return [message_of(line) for line in lines.feed(chunk)]


@given(st.lists(st.sampled_from(EVENTS), max_size=6), st.data())
def test_chunks_may_end_anywhere(events: list[dict[str, object]], data: st.DataObject) -> None:
    stream = b"".join(json.dumps(event, ensure_ascii=False).encode() + b"\n" for event in events)
    lines, messages = WatchLines(), []
    while stream:
        size = data.draw(st.integers(1, len(stream)))
        messages.extend(fed(lines, stream[:size]))
        stream = stream[size:]
    assert [(message.type, json.loads(message.body)) for message in messages] == [
        (event["type"], event["object"]) for event in events
    ]
    assert not lines.unfinished


def test_blank_lines_and_carriage_returns_are_passed_over() -> None:
    assert fed(WatchLines(), b'\n\r\n{"type":"ADDED","object":{}}\r\n') == [
        WatchMessage("ADDED", b"{}")
    ]


def test_bodies_stay_as_they_were_sent() -> None:
    (message,) = fed(WatchLines(), b'{"type":"ADDED","object": { "a" : 1.50 } }\n')
    assert message.body.strip() == b'{ "a" : 1.50 }'


def test_a_broken_off_line_is_known() -> None:
    lines = WatchLines()
    assert lines.feed(b'{"type":') == []
    assert lines.unfinished


@pytest.mark.parametrize(
    "garbage", [b"<html>\n", b"[]\n", b'{"object":{}}\n', b"\xff\n", b'{"type":7,"object":{}}\n']
)
def test_garbage_ends_the_stream(garbage: bytes) -> None:
    with pytest.raises(BadStream, match="no event"):
        fed(WatchLines(), garbage)


def test_an_event_as_servers_write_it_is_split_and_nothing_else_is_taken_for_one() -> None:
    event = b'{"type":"MODIFIED","object":{"a":{}}}'
    assert fed(WatchLines(), event + b"\n") == [WatchMessage("MODIFIED", b'{"a":{}}')]
    for other in (
        b' {"type":"MODIFIED","object":{"a":{}}}',
        b'{"object":{"a":{}},"type":"MODIFIED"}',
    ):
        assert fed(WatchLines(), other + b"\n") == [WatchMessage("MODIFIED", b'{"a":{}}')]
    for broken in (event + b"x", event[:-2]):
        with pytest.raises(BadStream, match="no event"):
            fed(WatchLines(), broken + b"\n")


def test_lines_are_bounded_even_in_small_pieces() -> None:
    lines = WatchLines(line_bytes_max=1000)
    for _ in range(100):
        lines.feed(b"x" * 10)
    with pytest.raises(BadStream, match="longer than 1000 bytes"):
        lines.feed(b"x")


class Reading(asyncio.Transport):
    def __init__(self) -> None:
        self.told: list[str] = []

    def pause_reading(self) -> None:
        self.told.append("pause")

    def resume_reading(self) -> None:
        self.told.append("resume")

    def write(self, data: object) -> None:
        pass


@pytest.mark.parametrize("rest_s", [0.0, 0.001])
async def test_a_stream_that_rests_lets_what_comes_wait_in_the_socket(rest_s: float) -> None:
    connection, transport = ClientConnection(), Reading()
    connection.connection_made(transport)
    connection.data_received(b"HTTP/1.1 200 OK\r\n\r\n")
    stream = WatchStream(connection, "server", rest_s)
    event = json.dumps(EVENTS[0]).encode() + b"\n"
    connection.data_received(event)
    assert (await anext(stream)).type == "ADDED"
    assert transport.told == (["pause"] if rest_s else [])
    if rest_s:
        await eventually(lambda: transport.told, lambda told: told == ["pause", "resume"])
    connection.data_received(event + event)
    connection.connection_lost(None)
    assert [message.type async for message in stream] == ["ADDED"] * 2, (
        "a connection that is gone is none to rest"
    )
    assert transport.told == (["pause", "resume"] if rest_s else [])
