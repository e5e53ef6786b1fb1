"""A server's answers: errors as ``StatusError``, retries, and the messages of a watch."""

from __future__ import annotations

import errno
import os
import random
import socket
import ssl
from collections.abc import AsyncIterator
from typing import Final

import msgspec

from sliceplane.api import codec
from sliceplane.api.codec import UNREADABLE
from sliceplane.api.errors import RETRY_AFTER_SECONDS_MAX, StatusError, from_status
from sliceplane.api.requests import WatchMessage
from sliceplane.kit.integers import NotAnInteger, parse_uint64
from sliceplane.watch.io.base import Unreachable
from sliceplane.watch.io.http.answers import BadStream
from sliceplane.watch.io.http.wire import ClientConnection

#: of an error without a Status, this much goes into the message
TEXT_CHARACTERS_MAX: Final = 1024
#: a server that asks for more than this is not waited for here: the caller has plans of its own for
#: that
RETRY_AFTER_S_MAX: Final = 10
#: where no time is given
RETRY_S: Final = 0.5
JITTER: Final = 0.2

_REASONS = {
    400: "BadRequest",
    401: "Unauthorized",
    403: "Forbidden",
    404: "NotFound",
    405: "MethodNotAllowed",
    409: "Conflict",
    410: "Gone",
    422: "Invalid",
    429: "TooManyRequests",
    500: "InternalError",
    503: "ServiceUnavailable",
    504: "Timeout",
}
#: an event has one object
LINE_BYTES_MAX: Final = 16 * 1024 * 1024
#: pieces of a line that are kept apart
_PIECES_MAX: Final = 4096


def error_of(code: int, body: bytes, retry_after: str = "") -> StatusError:
    """The error that an answer with *code* stands for; *retry_after* is its header, seconds or
    nothing.
    """
    error = _from_body(code, body)
    if error.retry_after_s is not None:
        return error
    after_s = _seconds(retry_after)
    if after_s is None:
        return error
    return StatusError(
        error.code,
        error.reason,
        error.message,
        error.details,
        error.metadata,
        retry_after_s=after_s,
    )


def _seconds(retry_after: str) -> int | None:
    """The value of a Retry-After, as far as anything waits for it; a date (RFC 9110, section
    10.2.3) is none.
    """
    try:
        return min(parse_uint64(retry_after), RETRY_AFTER_SECONDS_MAX)
    except NotAnInteger as error:
        return RETRY_AFTER_SECONDS_MAX if error.why == "value out of range" else None


def _from_body(code: int, body: bytes) -> StatusError:
    try:
        document = codec.decode_document(body)
    except UNREADABLE:
        document = {}
    if document.get("kind") == "Status" or "status" in document:
        try:
            return from_status(document, code)
        except (TypeError, ValueError):
            pass
    text = body.decode(errors="replace").strip()[:TEXT_CHARACTERS_MAX]
    # Proxies and overloaded servers answer in plain text.
    return StatusError(code, _REASONS.get(code, ""), text or f"the server answered {code}")


class Retries(msgspec.Struct, frozen=True):
    """When a request that was refused may be sent again, and after how long; ``times`` at most.

    Only after answers that say that the server did nothing: 429 (it, or something before it, has
    too much to do), and 503 with Retry-After, with which an API server refuses what it has not
    begun. A read may be sent again after any
    503. A request without an answer is never sent again here: whether a write happened is found out
         by the caller, who
    reads its object.
    """

    times: int = 4

    def wait_s(self, method: str, status: int, retry_after: str, attempt: int) -> float | None:
        """Seconds before try ``attempt + 2``, jittered so that clients that were refused together
        do not come together; ``None``: no. *attempt* counts from 0.
        """
        if attempt >= self.times or not (
            status == 429 or (status == 503 and (retry_after or method == "GET"))
        ):
            return None
        if retry_after:
            after_s = _seconds(retry_after)
            if after_s is None or after_s > RETRY_AFTER_S_MAX:
                return None
            base = float(after_s)
        else:
            base = RETRY_S * 2.0**attempt
        return base + random.uniform(0.0, JITTER * max(base, RETRY_S))


NO_RETRIES: Final = Retries(0)


def why_no_answer(error: Exception) -> str:
    """In a few words for people what kept an answer from coming: *error* is the system's or
    ours.
    """
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"the server's certificate is not accepted: {error.verify_message}"
    if isinstance(error, ssl.SSLError):
        reason = str(getattr(error, "reason", "") or error)
        return f"no TLS there: {reason.replace('_', ' ').lower()}"
    if isinstance(error, socket.gaierror):
        return f"the name is not known: {(error.strerror or str(error)).lower()}"
    if isinstance(error, OSError) and error.errno is not None and error.errno in errno.errorcode:
        return os.strerror(error.errno).lower()
    return str(error) or ("timed out" if isinstance(error, TimeoutError) else type(error).__name__)


class _Envelope(msgspec.Struct, frozen=True, gc=False):
    type: str
    object: msgspec.Raw = msgspec.Raw(b"null")


_decoder = msgspec.json.Decoder(_Envelope)
#: an event as API servers write it: an object that is long is then not looked at twice
_TYPE: Final = b'{"type":"'
_OBJECT: Final = b'","object":{'
_TYPE_BYTES_MAX: Final = 32


class WatchLines:
    """Bytes in, messages out; chunks may end anywhere.  Owned by one stream."""

    def __init__(self, line_bytes_max: int = LINE_BYTES_MAX) -> None:
        self._line_bytes_max = line_bytes_max
        #: the beginning of a line whose end has not come yet, in pieces, so that a long one is
        #: joined once
        self._pieces: list[bytes] = []
        self._size = 0

    def feed(self, chunk: bytes) -> list[bytes]:
        """The lines that *chunk* completes, for ``message_of``.  Raises ``BadStream``."""
        first, newline, rest = chunk.partition(b"\n")
        if not newline:
            self._append_piece(chunk)
            return []
        if self._pieces:
            self._append_piece(first)
            first = b"".join(self._pieces)
            self._pieces.clear()
            self._size = 0
        lines = rest.split(b"\n")
        last = lines.pop()
        if last:
            self._append_piece(last)
        return [line for line in (first, *lines) if line.strip()]

    def _append_piece(self, piece: bytes) -> None:
        self._size += len(piece)
        if self._size > self._line_bytes_max:
            raise BadStream(f"a line of the watch is longer than {self._line_bytes_max} bytes")
        self._pieces.append(piece)
        if len(self._pieces) > _PIECES_MAX:
            self._pieces = [b"".join(self._pieces)]

    @property
    def unfinished(self) -> bool:
        """The stream broke off within a line."""
        return self._size > 0


class WatchStream:
    """The messages of one watch, for one reader."""

    def __init__(
        self,
        connection: ClientConnection,
        server: str,
        rest_s: float = 0.0,
        line_bytes_max: int = LINE_BYTES_MAX,
    ) -> None:
        self._connection = connection
        self._rest_s = rest_s
        self._server = server
        self._lines = WatchLines(line_bytes_max)
        #: decoded one by one: a portion may have tens of thousands, and the reader lets others run
        #: in between
        self._ready: list[bytes] = []
        self._next = 0

    def __aiter__(self) -> AsyncIterator[WatchMessage]:
        return self

    async def __anext__(self) -> WatchMessage:
        while self._next == len(self._ready):
            self._ready = await self._more()
            self._next = 0
        line = self._ready[self._next]
        self._next += 1
        try:
            return message_of(line)
        except BadStream as error:
            raise self._unreachable(error) from error

    async def _more(self) -> list[bytes]:
        """Raises ``StopAsyncIteration`` at a clean end, ``Unreachable`` if the connection broke or
        makes no sense.
        """
        try:
            portion = await self._connection.portion()
            lines = self._lines.feed(portion)
        except (OSError, BadStream) as error:
            raise self._unreachable(error) from error
        if portion:
            if self._rest_s:
                self._connection.rest(self._rest_s)
            return lines
        if self._lines.unfinished:
            raise Unreachable(f"{self._server}: the watch broke off within an event")
        raise StopAsyncIteration

    def _unreachable(self, error: Exception) -> Unreachable:
        return Unreachable(f"{self._server}: {why_no_answer(error)}")


def message_of(line: bytes) -> WatchMessage:
    """The message in one line of a watch.  Its object is for the reader to judge.  Raises
    ``BadStream``.
    """
    at = line.find(_OBJECT, len(_TYPE), _TYPE_BYTES_MAX)
    if at > 0 and line.startswith(_TYPE) and line.endswith(b"}}"):
        return WatchMessage(line[len(_TYPE) : at].decode(), line[at + len(_OBJECT) - 1 : -1])
    try:
        envelope = _decoder.decode(line)
    except UNREADABLE as error:
        raise BadStream(f"a line of the watch is no event: {error}") from error
    # A Raw is a view of the line; the copy lets go of the rest of it.
    return WatchMessage(envelope.type, bytes(envelope.object))
