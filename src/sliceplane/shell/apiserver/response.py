"""Answers: bytes and headers, sent in one place so that every reply has what every reply must have.

``Date`` and ``Audit-Id`` are added here, gzip is done here, and HEAD, 304 and Content-Length are right by
construction.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from email.utils import formatdate

from sliceplane.shell.apiserver.request import Request, Send

GZIP_BYTES_MIN = 128 * 1024
_GZIP_LEVEL = 4

NO_CACHE = (b"cache-control", b"no-cache, private")
NOSNIFF = (b"x-content-type-options", b"nosniff")
TEXT = b"text/plain; charset=utf-8"

Header = tuple[bytes, bytes]


@dataclass(frozen=True, slots=True)
class Response:
    """A complete answer.  ``headers`` are beyond Content-Type and Content-Length."""

    code: int
    body: bytes
    content_type: bytes = b"application/json"
    headers: tuple[Header, ...] = (NO_CACHE,)


def text_response(code: int, body: str, headers: tuple[Header, ...] = (NO_CACHE, NOSNIFF)) -> Response:
    return Response(code, body.encode(), TEXT, headers)


class _Clock:
    """The ``Date`` header, formatted once a second."""

    def __init__(self) -> None:
        self._second = -1
        self._text = b""

    def date(self, now: float) -> bytes:
        second = int(now)
        if second != self._second:
            self._second, self._text = second, formatdate(second, usegmt=True).encode()
        return self._text


_clock = _Clock()


def common_headers(now: float, audit_id: str) -> list[Header]:
    return [(b"audit-id", audit_id.encode()), (b"date", _clock.date(now))]


async def send_response(request: Request, send: Send, response: Response, *, now: float, audit_id: str) -> None:
    """Send *response* whole.  A client that went away is no error here."""
    body = response.body
    headers = common_headers(now, audit_id)
    headers.extend(response.headers)
    if response.content_type and response.code != 304:
        headers.append((b"content-type", response.content_type))
    if len(body) > GZIP_BYTES_MIN and request.wants_gzip:
        import gzip

        # zlib lets other threads run meanwhile, so other requests go on.
        body = await asyncio.to_thread(gzip.compress, body, _GZIP_LEVEL, mtime=0)
        headers.append((b"content-encoding", b"gzip"))
        headers.append((b"vary", b"Accept-Encoding"))
    if response.code != 304:
        headers.append((b"content-length", str(len(body)).encode()))
    await send({"type": "http.response.start", "status": response.code, "headers": headers})
    await send({"type": "http.response.body", "body": b"" if response.code == 304 else body})
