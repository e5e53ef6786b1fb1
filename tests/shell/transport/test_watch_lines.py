"""The splitter of watch streams."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sliceplane.shell.transport.base import WatchMessage
from sliceplane.shell.transport.replies import BadStream, WatchLines

EVENTS = [
    {"type": "ADDED", "object": {"metadata": {"name": "ä\n€"}}},
    {"type": "BOOKMARK", "object": {"metadata": {"resourceVersion": "7"}}},
    {"object": {"a": [1, {"b": None}]}, "type": "ERROR"},
]


@given(st.lists(st.sampled_from(EVENTS), max_size=6), st.data())
def test_chunks_may_end_anywhere(events: list[dict[str, object]], data: st.DataObject) -> None:
    stream = b"".join(json.dumps(event, ensure_ascii=False).encode() + b"\n" for event in events)
    lines, messages = WatchLines(), []
    while stream:
        size = data.draw(st.integers(1, len(stream)))
        messages.extend(lines.feed(stream[:size]))
        stream = stream[size:]
    assert [(message.type, json.loads(message.body)) for message in messages] == [
        (event["type"], event["object"]) for event in events
    ]
    assert not lines.unfinished


def test_blank_lines_and_carriage_returns_are_passed_over() -> None:
    assert WatchLines().feed(b'\n\r\n{"type":"ADDED","object":{}}\r\n') == [WatchMessage("ADDED", b"{}")]


def test_bodies_stay_as_they_were_sent() -> None:
    (message,) = WatchLines().feed(b'{"type":"ADDED","object": { "a" : 1.50 } }\n')
    assert message.body.strip() == b'{ "a" : 1.50 }'


def test_a_broken_off_line_is_known() -> None:
    lines = WatchLines()
    assert lines.feed(b'{"type":') == []
    assert lines.unfinished


@pytest.mark.parametrize("garbage", [b"<html>\n", b"[]\n", b'{"object":{}}\n', b"\xff\n", b'{"type":7,"object":{}}\n'])
def test_garbage_ends_the_stream(garbage: bytes) -> None:
    with pytest.raises(BadStream, match="no event"):
        WatchLines().feed(garbage)


def test_lines_are_bounded_even_in_small_pieces() -> None:
    lines = WatchLines(line_bytes_max=1000)
    for _ in range(100):
        lines.feed(b"x" * 10)
    with pytest.raises(BadStream, match="longer than 1000 bytes"):
        lines.feed(b"x")
