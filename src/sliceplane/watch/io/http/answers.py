"""The client's side of HTTP/1.1 (RFC 9112): the head of a request as text, and a parser of one
answer. No I/O.

What is read is what API servers, and the proxies before them, send: lines end in CRLF, a body has a
length, is chunked, or ends with the connection. Anything else is ``BadStream``, and ends it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from enum import IntEnum
from typing import Final

from sliceplane.kit.integers import NotAnInteger, parse_uint64

#: of all lines of a head, and of a line between chunks
HEAD_BYTES_MAX: Final = 64 * 1024
LINE_BYTES_MAX: Final = 8 * 1024
#: answers before the answer (1xx), of which a server may send as many as it likes
INTERIM_MAX: Final = 16
#: of a body in chunks: after so many, each must have brought so many bytes on average, or parsing
#: them takes too long
CHUNKS_MIN: Final = 4096
CHUNK_BYTES_MIN: Final = 16
#: of a request: what a server gave us (a continue token, a version) is sent back to it
REQUEST_HEAD_BYTES_MAX: Final = 256 * 1024
_END_OF_HEAD: Final = b"\r\n\r\n"
_CHUNK_SIZE: Final = re.compile(rb"[0-9A-Fa-f]{1,15}")
_BODYLESS: Final = (204, 304)

Headers = Sequence[tuple[str, str]]


class BadStream(Exception):
    """The peer does not speak the protocol; the connection is of no use any more."""


class _Part(IntEnum):
    """The part of an answer that is expected next."""

    HEAD = 0
    #: the line with a chunk's size, the chunk, and the end of the line that it is
    SIZE = 1
    CHUNK = 2
    GAP = 3
    #: lines after the last chunk
    TRAILER = 4
    #: a body with a length, and one that ends with the connection
    BODY = 5
    REST = 6
    NOTHING = 7


def request_head(method: str, target: str, headers: Headers) -> bytes:
    """Raises ``ValueError`` for a head with more lines than it says, or that is too long."""
    lines = [
        f"{method} {target} HTTP/1.1",
        *[f"{name}: {value}" for name, value in headers],
        "",
        "",
    ]
    text = "\r\n".join(lines)
    if text.count("\n") != len(lines) - 1 or text.count("\r") != len(lines) - 1 or "\0" in text:
        raise ValueError("a header of the request has a control character")
    if len(text) > REQUEST_HEAD_BYTES_MAX:
        raise ValueError(
            f"the head of the request would have more than {REQUEST_HEAD_BYTES_MAX:,} bytes"
        )
    return text.encode()


class AnswerParser:
    """One answer: bytes in, portions of its body out."""

    __slots__ = (
        "_chunk_bytes",
        "_chunks",
        "_incomplete",
        "_interim",
        "_method",
        "_part",
        "_remaining",
        "headers",
        "keeps_alive",
        "lines",
        "status",
    )

    def __init__(self, method: str) -> None:
        """*method*: of the request, which an answer does not say."""
        self._method = method
        self._part = _Part.HEAD
        #: a line, or a head, that is not complete
        self._incomplete = b""
        #: of the body or the chunk; after them, of trailers so far
        self._remaining = 0
        self._interim = 0
        #: so far, and their bytes
        self._chunks = self._chunk_bytes = 0
        #: 0 until the head is there
        self.status = 0
        #: names in lower case; values of one name are joined, but not in the head's lines
        self.headers: dict[str, str] = {}
        self.lines: list[str] = []
        #: another request may follow over the connection, when this answer is complete
        self.keeps_alive = False

    @property
    def began(self) -> bool:
        return bool(self._incomplete) or self._part is not _Part.HEAD

    @property
    def announced(self) -> int:
        """Bytes that are still to come of the body, or of the chunk."""
        return self._remaining if self._part is _Part.CHUNK or self._part is _Part.BODY else 0

    @property
    def complete(self) -> bool:
        return self._part is _Part.NOTHING

    def feed(self, data: bytes) -> list[bytes]:
        """The portions of the body that *data* has.  Raises ``BadStream``."""
        if self._incomplete:
            data, self._incomplete = self._incomplete + data, b""
        portions: list[bytes] = []
        at, size = 0, len(data)
        while at < size:
            part = self._part
            if part is _Part.CHUNK or part is _Part.BODY:
                end = min(at + self._remaining, size)
                portions.append(data[at:end])
                self._remaining -= end - at
                at = end
                if not self._remaining:
                    self._part = _Part.GAP if part is _Part.CHUNK else _Part.NOTHING
            elif part is _Part.REST:
                portions.append(data[at:])
                break
            elif part is _Part.NOTHING:
                self.keeps_alive = False  # it says more than it was asked
                break
            else:
                mark, bytes_max = (
                    (_END_OF_HEAD, HEAD_BYTES_MAX)
                    if part is _Part.HEAD
                    else (b"\r\n", LINE_BYTES_MAX)
                )
                end = data.find(mark, at)
                if (size if end < 0 else end) - at > bytes_max:
                    raise BadStream(
                        f"a line of the answer, or its head, is longer than {bytes_max} bytes"
                    )
                if end < 0:
                    self._incomplete = data[at:]
                    break
                self._read(part, data[at:end])
                at = end + len(mark)
        return portions

    def end(self) -> None:
        """The connection has ended, which ends a body without a length."""
        if self._part is _Part.REST:
            self._part = _Part.NOTHING

    def _read(self, part: _Part, text: bytes) -> None:
        match part:
            case _Part.HEAD:
                self._read_head(text)
            case _Part.SIZE:
                digits = text.partition(b";")[0].strip()
                if not _CHUNK_SIZE.fullmatch(digits):
                    raise BadStream(f"{digits[:20]!r} is no size of a chunk")
                self._remaining = int(digits, 16)
                self._chunks += 1
                self._chunk_bytes += self._remaining
                if self._chunks > CHUNKS_MIN and self._chunk_bytes < self._chunks * CHUNK_BYTES_MIN:
                    raise BadStream(
                        f"chunks of the answer have fewer than {CHUNK_BYTES_MIN} bytes on average"
                    )
                self._part = _Part.CHUNK if self._remaining else _Part.TRAILER
            case _Part.GAP:
                if text:
                    raise BadStream("a chunk is longer than its size")
                self._part = _Part.SIZE
            case _:
                self._remaining += len(text)
                if self._remaining > HEAD_BYTES_MAX:
                    raise BadStream(
                        f"the trailers of the answer are longer than {HEAD_BYTES_MAX} bytes"
                    )
                if not text:
                    self._part = _Part.NOTHING

    def _read_head(self, head: bytes) -> None:
        first, *self.lines = head.decode("latin-1").split("\r\n")
        version, code = first[:9], first[9:12]
        if (
            version not in ("HTTP/1.1 ", "HTTP/1.0 ")
            or not (code.isascii() and code.isdecimal())
            or code < "100"
        ):
            raise BadStream(f"{first[:40]!r} is no answer of HTTP/1.1")
        status = int(code)
        if status < 200:
            if status == 101:
                raise BadStream(
                    "the server speaks another protocol from here on, without being asked"
                )
            self._interim += 1
            if self._interim > INTERIM_MAX:
                raise BadStream(f"more than {INTERIM_MAX} interim answers (1xx), and no answer")
            return  # news of an answer that is still to come
        self.status = status
        headers = self.headers
        for line in self.lines:
            name, colon, value = line.partition(":")
            if not colon:
                raise BadStream(f"{line[:40]!r} is no header")
            name = name.lower()
            value = value.strip(" \t")
            headers[name] = f"{headers[name]}, {value}" if name in headers else value
        connection = headers.get("connection", "").lower()
        self.keeps_alive = (
            "keep-alive" in connection if version == "HTTP/1.0 " else "close" not in connection
        )
        self._part = self._body_of(status)

    def _body_of(self, status: int) -> _Part:
        """RFC 9112, section 6.3."""
        coding, length = self.headers.get("transfer-encoding"), self.headers.get("content-length")
        if status in _BODYLESS or (self._method == "CONNECT" and status < 300):
            return _Part.NOTHING
        if coding is not None:
            if coding.lower() != "chunked":
                raise BadStream(f"the coding {coding!r} was not asked for")
            return _Part.SIZE
        if length is None:
            self.keeps_alive = False
            return _Part.REST
        try:
            self._remaining = parse_uint64(length)
        except NotAnInteger as error:
            raise BadStream(f"{length[:40]!r} is no length of a body") from error
        return _Part.BODY if self._remaining else _Part.NOTHING
