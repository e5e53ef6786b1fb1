"""Bounds of what a server may make its client hold, and wait for: a kubeconfig may lead to a
stranger.

Every body has a bound, compressed and not. A *question* (what one command or one view of the page
asks) bounds all of its requests together, in time and bytes, whatever task sends them: the server
decides how many pages there are, so a bound of each is none. Services that follow a cluster for
ever have no question; their lists and caches are bounded by ``watch.paging``.
"""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from contextvars import ContextVar
from typing import Final

from sliceplane.watch.io.base import Unreachable
from sliceplane.watch.io.http.answers import BadStream

#: a page of 500 objects, decompressed; EndpointSlices of 1,000 endpoints have some 400 kB each
PAGE_BYTES_MAX: Final = 256 << 20
#: no object that an API server accepts is longer (etcd: 1.5 MiB, request bodies: 3 MiB) even with
#: all of it escaped
OBJECT_BYTES_MAX: Final = 16 << 20
#: the answers to one question, together: 200,000 Pods of 5 kB
QUESTION_BYTES_MAX: Final = 1 << 30
QUESTION_TIMEOUT_S: Final = 300.0
#: for a window of any size, with gzip's head
_GZIP_BITS: Final = 16 + zlib.MAX_WBITS


class TooLarge(BadStream):
    """The answer is longer than what is read."""

    def __init__(self, bytes_max: int, subject: str = "the answer has") -> None:
        super().__init__(f"{subject} more than {bytes_max:,} bytes, which is the most that is read")


class AnswerTooLarge(Unreachable):
    """The server sends more than a client takes; the text names the limit."""


def unzipped(body: bytes, bytes_max: int) -> bytes:
    """Raises ``TooLarge`` and ``zlib.error``."""
    reader = zlib.decompressobj(_GZIP_BITS)
    plain = reader.decompress(body, bytes_max + 1)
    if len(plain) > bytes_max:
        raise TooLarge(bytes_max)
    if not reader.eof:
        raise zlib.error("incomplete or truncated stream")
    return plain


class QuestionAllowance:
    """The remaining part of ``QUESTION_BYTES_MAX``, and the requests without an answer so far."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._remaining = bytes_max
        #: by a number of its own, in the order in which they were sent
        self._waiting: dict[int, str] = {}
        self._number = 0

    @property
    def remaining(self) -> int:
        return max(self._remaining, 0)

    def take(self, size: int) -> None:
        """*size* bytes more have come.  Raises ``TooLarge``."""
        self._remaining -= size
        if self._remaining < 0:
            raise TooLarge(self._bytes_max, "the answers to this question together have")

    @contextmanager
    def waiting(self, request: str) -> Iterator[None]:
        self._number += 1
        number = self._number
        self._waiting[number] = request
        try:
            yield
        except asyncio.CancelledError:
            raise  # stays: the end of the question says what was not answered
        except BaseException:
            del self._waiting[number]
            raise
        del self._waiting[number]

    def unanswered(self) -> str:
        """ "; the server has not answered ...", or ""."""
        if not self._waiting:
            return ""
        first, *others = self._waiting.values()
        return f"; still unanswered: {first}{f' and {len(others)} more' if others else ''}"


_current: ContextVar[QuestionAllowance | None] = ContextVar("allowance", default=None)


def current_allowance() -> QuestionAllowance | None:
    """Returns the allowance of the question that the running task belongs to."""
    return _current.get()


@asynccontextmanager
async def question(timeout_s: float | None = QUESTION_TIMEOUT_S) -> AsyncIterator[None]:
    """Bounds what all requests within, of this task and those that it starts, may take together.
    Raises ``Unreachable``, whose text names the limit and what the server did not answer.
    """
    allowance = QuestionAllowance(QUESTION_BYTES_MAX)
    token = _current.set(allowance)
    limit = asyncio.timeout(timeout_s)
    try:
        async with limit:
            yield
    except TimeoutError as error:
        if not limit.expired():
            raise
        raise Unreachable(
            f"no complete answer within {timeout_s:g} s{allowance.unanswered()}"
        ) from error
    finally:
        _current.reset(token)
