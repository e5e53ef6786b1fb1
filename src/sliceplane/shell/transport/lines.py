"""A watch's byte stream to messages: split on newlines, decode only the envelope, bound the length of a line."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Final

import msgspec

from sliceplane.api.requests import WatchMessage
from sliceplane.shell.transport.base import Unreachable
from sliceplane.shell.transport.replies import why_no_answer

if TYPE_CHECKING:
    import aiohttp

#: no object that an API server accepts is longer (etcd: 1.5 MiB, request bodies: 3 MiB) even with all of it escaped
LINE_BYTES_MAX: Final = 16 * 1024 * 1024


class BadStream(Exception):
    """The peer does not speak the protocol; the connection is of no use any more."""


class _Envelope(msgspec.Struct, frozen=True, gc=False):
    type: str
    object: msgspec.Raw = msgspec.Raw(b"null")


_decoder = msgspec.json.Decoder(_Envelope)


class WatchLines:
    """Bytes in, messages out; chunks may end anywhere.  Owned by one stream."""

    def __init__(self, line_bytes_max: int = LINE_BYTES_MAX) -> None:
        self._line_bytes_max = line_bytes_max
        #: the beginning of a line whose end has not come yet, in pieces, so that a long one is joined once
        self._pieces: list[bytes] = []
        self._size = 0

    def feed(self, chunk: bytes) -> list[WatchMessage]:
        """The messages that *chunk* completes.  Raises ``BadStream``."""
        first, newline, rest = chunk.partition(b"\n")
        if not newline:
            self._hold(chunk)
            return []
        if self._pieces:
            self._hold(first)
            first = b"".join(self._pieces)
            self._pieces.clear()
            self._size = 0
        lines = rest.split(b"\n")
        last = lines.pop()
        messages = [_message(line) for line in (first, *lines) if line.strip()]
        if last:
            self._hold(last)
        return messages

    def _hold(self, piece: bytes) -> None:
        self._size += len(piece)
        if self._size > self._line_bytes_max:
            raise BadStream(f"a line of the watch is longer than {self._line_bytes_max} bytes")
        self._pieces.append(piece)

    @property
    def unfinished(self) -> bool:
        """The stream broke off within a line."""
        return self._size > 0


class WatchStream:
    """The messages of one watch, for one reader."""

    def __init__(self, response: aiohttp.ClientResponse, server: str) -> None:
        self._chunks = response.content.iter_any()
        self._server = server
        self._lines = WatchLines()
        self._ready: list[WatchMessage] = []
        self._next = 0

    def __aiter__(self) -> AsyncIterator[WatchMessage]:
        return self

    async def __anext__(self) -> WatchMessage:
        while self._next == len(self._ready):
            self._ready, self._next = await self._more(), 0
        message = self._ready[self._next]
        self._next += 1
        return message

    async def _more(self) -> list[WatchMessage]:
        """Raises ``StopAsyncIteration`` at a clean end, ``Unreachable`` if the connection broke or makes no sense."""
        import aiohttp

        try:
            return self._lines.feed(await anext(self._chunks))
        except StopAsyncIteration:
            if self._lines.unfinished:
                raise Unreachable(f"{self._server}: the watch broke off within an event") from None
            raise
        except (TimeoutError, aiohttp.ClientError, OSError, BadStream) as error:
            raise Unreachable(f"{self._server}: {why_no_answer(error)}") from error


def _message(line: bytes) -> WatchMessage:
    try:
        envelope = _decoder.decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise BadStream(f"a line of the watch is no event: {error}") from error
    # A Raw is a view of the line; the copy lets go of the rest of it.
    return WatchMessage(envelope.type, bytes(envelope.object))
