"""How much the server takes on at a time; beyond it a request is told to come back (429, reference B11)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from sliceplane.shell.apiserver.response import Response, text_response

RETRY_AFTER_SECONDS = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """``reads_max`` and ``writes_max``: requests being answered (upstream's --max-requests-inflight and
    --max-mutating-requests-inflight); ``watches_max``: open streams; ``connections_max``: TCP connections;
    ``unsent_bytes_max``: of large responses whose clients have not taken them yet, together."""

    reads_max: int = 400
    writes_max: int = 200
    watches_max: int = 20_000
    connections_max: int = 30_000
    unsent_bytes_max: int = 512 * 1024 * 1024


class TooMany(Exception):
    """The limit of this sort of request is reached."""


def too_many_requests() -> Response:
    retry = (b"retry-after", str(RETRY_AFTER_SECONDS).encode())
    return text_response(429, "Too many requests, please try again later.", (retry,))


class InFlight:
    """Counts what is being answered, by sort: ``read``, ``write`` or ``watch``.  Owned by the server."""

    def __init__(self, limits: Limits) -> None:
        self._bounds = {"read": limits.reads_max, "write": limits.writes_max, "watch": limits.watches_max}
        self.current = dict.fromkeys(self._bounds, 0)
        self._unsent_bytes_max = limits.unsent_bytes_max
        self.unsent_bytes = 0

    @contextmanager
    def admit(self, sort: str) -> Iterator[None]:
        """Raises ``TooMany`` instead of entering."""
        if self.current[sort] >= self._bounds[sort]:
            raise TooMany(sort)
        self.current[sort] += 1
        try:
            yield
        finally:
            self.current[sort] -= 1

    @contextmanager
    def hold(self, size: int) -> Iterator[None]:
        """Keep a response of *size* bytes until its client has taken it.  Raises ``TooMany`` instead of entering;
        a response that would be alone always enters."""
        if self.unsent_bytes and self.unsent_bytes + size > self._unsent_bytes_max:
            raise TooMany("unsent bytes")
        self.unsent_bytes += size
        try:
            yield
        finally:
            self.unsent_bytes -= size
