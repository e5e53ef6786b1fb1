"""The parser of answers, and the heads of requests."""

from __future__ import annotations

import httptools
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sliceplane.watch.io.http.answers import (
    HEAD_BYTES_MAX,
    LINE_BYTES_MAX,
    AnswerParser,
    BadStream,
    request_head,
)

HEAD = b"HTTP/1.1 200 OK\r\n"
CHUNKED = HEAD + b"Transfer-Encoding: chunked\r\n\r\n"


class Oracle:
    """What another parser (llhttp) makes of the same bytes."""

    def __init__(self) -> None:
        self.body = b""
        self.headers: dict[str, str] = {}
        self.complete = False
        self.parser = httptools.HttpResponseParser(self)

    def on_header(self, name: bytes, value: bytes) -> None:
        self.headers[name.decode().lower()] = value.decode().strip()

    def on_body(self, body: bytes) -> None:
        self.body += body

    def on_message_complete(self) -> None:
        self.complete = True


@st.composite
def answers(draw: st.DrawFn) -> bytes:
    """One answer, as a server may send it."""
    portions = draw(st.lists(st.binary(min_size=1, max_size=40), max_size=4))
    code = draw(st.sampled_from([200, 201, 204, 304, 404, 500]))
    headers = draw(
        st.lists(
            st.sampled_from(
                [b"Retry-After:  7", b"Connection: close", b"connection: keep-alive", b"X:"]
            )
        )
    )
    before = draw(
        st.sampled_from(
            [b"", b"HTTP/1.1 100 Continue\r\n\r\n", b"HTTP/1.1 103 E\r\nLink: x\r\n\r\n"]
        )
    )
    if code in (204, 304):
        head, body = [], b""
    elif draw(st.booleans()):
        ends = draw(st.sampled_from([b"", b";a=b"]))
        head = [b"Transfer-Encoding: chunked"]
        body = b"".join(b"%X%b\r\n%b\r\n" % (len(portion), ends, portion) for portion in portions)
        body += b"0\r\n" + draw(st.sampled_from([b"", b"Trailer: x\r\n"])) + b"\r\n"
    else:
        body = b"".join(portions)
        head = [b"Content-Length: %d" % len(body)]
    return before + b"\r\n".join(
        [b"HTTP/1.1 %d X" % code, *dict.fromkeys(headers), *head, b"", body]
    )


@given(answers(), st.data())
def test_portions_may_end_anywhere(answer: bytes, data: st.DataObject) -> None:
    oracle, parser, body, rest = Oracle(), AnswerParser("GET"), b"", answer
    oracle.parser.feed_data(answer)
    while rest:
        assert not parser.complete
        size = data.draw(st.integers(1, len(rest)))
        body += b"".join(parser.feed(rest[:size]))
        rest = rest[size:]
    assert parser.complete
    assert oracle.complete
    assert body == oracle.body
    assert parser.status == oracle.parser.get_status_code()
    assert parser.headers.get("retry-after") == oracle.headers.get("retry-after")
    assert parser.keeps_alive is (b"Connection: close" not in answer)
    parser.feed(b"more")
    assert not parser.keeps_alive, "what was not asked for makes the connection useless"


def test_a_body_without_a_length_ends_with_the_connection() -> None:
    parser = AnswerParser("GET")
    assert parser.feed(HEAD + b"\r\nab") == [b"ab"]
    assert not parser.complete
    parser.end()
    assert (parser.complete, parser.keeps_alive) == (True, False)
    broken = AnswerParser("GET")
    broken.feed(HEAD + b"Content-Length: 3\r\n\r\nab")
    broken.end()
    assert not broken.complete


def test_a_proxy_that_opens_a_way_sends_no_body() -> None:
    parser = AnswerParser("CONNECT")
    parser.feed(HEAD + b"\r\n")
    assert parser.complete


@pytest.mark.parametrize(
    "answer",
    [
        b"\x15\x03\x03\x00\x02\x02\x50\r\n\r\n",
        b"HTTP/2 200 OK\r\n\r\n",
        b"HTTP/1.1 2x0 OK\r\n\r\n",
        b"HTTP/1.1 101 Switching Protocols\r\n\r\n",
        HEAD + b"no header\r\n\r\n",
        HEAD + b"Content-Length: -1\r\n\r\n",
        HEAD + b"Content-Length: 1\r\nContent-Length: 2\r\n\r\n",
        HEAD + b"Transfer-Encoding: gzip, chunked\r\n\r\n",
        CHUNKED + b"0x1\r\n",
        CHUNKED + b"1_0\r\n",
        CHUNKED + b"-1\r\n",
        CHUNKED + b"\r\n",
        CHUNKED + b"1\r\nab\r\n",
        CHUNKED + b"1" * (LINE_BYTES_MAX + 1),
        HEAD + b"x" * HEAD_BYTES_MAX,
    ],
)
def test_what_is_no_answer(answer: bytes) -> None:
    with pytest.raises(BadStream):
        AnswerParser("GET").feed(answer)


def test_a_header_cannot_become_two() -> None:
    assert request_head("GET", "/", [("A", "b")]) == b"GET / HTTP/1.1\r\nA: b\r\n\r\n"
    for value in ("b\r\nX: y", "b\nX: y", "b\rX", "b\0"):
        with pytest.raises(ValueError, match="control character"):
            request_head("GET", "/", [("A", value)])


def test_a_body_of_tiny_chunks_is_given_up() -> None:
    head = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
    parser = AnswerParser("GET")
    parser.feed(head)
    with pytest.raises(BadStream, match="fewer than 16 bytes on average"):
        parser.feed(b"1\r\n \r\n" * 5_000)
    parser = AnswerParser("GET")
    parser.feed(head)
    assert len(parser.feed(b"10\r\n0123456789abcdef\r\n" * 5_000)) == 5_000
