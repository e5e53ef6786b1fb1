"""Answers as values: a code, bytes and headers.  ``sending`` puts them on the wire."""

from __future__ import annotations

from dataclasses import dataclass
from email.utils import formatdate

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
            self._second = second
            self._text = formatdate(second, usegmt=True).encode()
        return self._text


_clock = _Clock()


def common_headers(now: float, audit_id: str) -> list[Header]:
    return [(b"audit-id", audit_id.encode()), (b"date", _clock.date(now))]
