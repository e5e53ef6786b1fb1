"""One connection of a client: HTTP/1.1 on the loop's own transport, and nothing between.

Of all that a controller does for a Pod that turns ready a general HTTP library was the third part.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable
from typing import Final, cast

from sliceplane.watch.io.bounds import TooLarge
from sliceplane.watch.io.http.answers import AnswerParser, BadStream

#: of an answer that its reader has not taken yet; then the rest waits in the socket
UNREAD_BYTES_MAX: Final = 512 * 1024
#: pieces of a body that are kept apart: a server that sends two bytes at a time makes more of them
#: than of bytes
PIECES_MAX: Final = 4096


class ClientConnection(asyncio.Protocol):
    """One connection, and the answer that is under way on it.  One caller at a time."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._parser = AnswerParser("")
        #: of the body, what was not taken yet
        self._portions: list[bytes] = []
        self._unread = 0
        self._is_paused = False
        self._waiter: asyncio.Future[None] | None = None
        #: why nothing comes any more
        self._lost: Exception | None = None
        #: of the certificates that it was opened with
        self.tls_number = 0
        self.idle_since: float | None = None

    # Of the loop

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is none by inheritance

    def data_received(self, data: bytes) -> None:
        try:
            portions = self._parser.feed(data)
        except BadStream as error:
            self._lose(error)
            self.abort()
            return
        if portions:
            self._portions += portions
            self._unread += len(data)
            if self._unread > UNREAD_BYTES_MAX and not self._is_paused:
                self._is_paused = True
                self.transport.pause_reading()
        self._wake()

    def connection_lost(self, error: Exception | None) -> None:
        self._parser.end()
        what = (
            "the connection broke within the answer" if self._parser.began else "the server hung up"
        )
        self._lose(error or ConnectionError(what))

    def _lose(self, error: Exception) -> None:
        self._lost = self._lost or error
        self._wake()

    def _wake(self) -> None:
        waiter = self._waiter
        if waiter is not None and not waiter.done():
            waiter.set_result(None)

    # Of the caller, whose waits raise ``OSError`` and ``BadStream``

    @property
    def transport(self) -> asyncio.Transport:
        assert self._transport is not None, "a connection is used when it was made"
        return self._transport

    @property
    def answer(self) -> AnswerParser:
        return self._parser

    @property
    def is_usable(self) -> bool:
        """A request may be sent: the answer before is complete, and nothing came after it."""
        return (
            self._lost is None
            and self._parser.complete
            and self._parser.keeps_alive
            and not self._portions
        )

    async def ask(self, method: str, request: bytes) -> AnswerParser:
        """The answer, its body not read."""
        self._parser = parser = AnswerParser(method)
        self.transport.write(request)
        while not parser.status:
            await self._wait()
        return parser

    async def portion(self) -> bytes:
        """Returns the part of the body that arrived since the last call, at least a byte; b"" at
        its end.
        """
        while not self._portions:
            if self._parser.complete:
                return b""
            await self._wait()
        portions = self._portions
        portion = portions[0] if len(portions) == 1 else b"".join(portions)
        portions.clear()
        self._unread = 0
        if self._is_paused:
            self._is_paused = False
            self.transport.resume_reading()
        return portion

    async def body(self, bytes_max: int, take: Callable[[int], object] | None = None) -> bytes:
        """All of it. Raises ``TooLarge``, before it has come where its length is said, and what
        *take* raises, which is called with the size of each portion.
        """
        portions: list[bytes] = []
        size = 0
        while not self._parser.complete or self._portions or not portions:
            portions.append(await self.portion())
            if take is not None:
                take(len(portions[-1]))
            size += len(portions[-1])
            if size + self._parser.announced > bytes_max:
                raise TooLarge(bytes_max)
            if len(portions) > PIECES_MAX:
                portions = [b"".join(portions)]
        return portions[0] if len(portions) == 1 else b"".join(portions)

    def rest(self, seconds: float) -> None:
        """Pauses reading: data waits in the socket and is read in one go."""
        if not self._is_paused and self._lost is None:
            self._is_paused = True
            self.transport.pause_reading()
            self._loop.call_later(seconds, self._end_rest)

    def _end_rest(self) -> None:
        if self._is_paused and self._lost is None:
            self._is_paused = False
            self.transport.resume_reading()

    def abort(self) -> None:
        """No good-bye over TLS, which would wait for one of a peer that may be dead."""
        if self._transport is not None:
            self._transport.abort()

    async def start_tls(self, context: ssl.SSLContext, host: str) -> None:
        transport = await self._loop.start_tls(self.transport, self, context, server_hostname=host)
        assert transport is not None, "a transport that is closed raises"
        self._transport = transport

    async def _wait(self) -> None:
        if self._lost is not None:
            raise self._lost
        self._waiter = self._loop.create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None
