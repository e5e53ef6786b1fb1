"""One HTTP request as the handlers see it: parsed once, from the ASGI scope."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Mapping, MutableMapping, Sequence
from typing import Any, Protocol
from urllib.parse import parse_qsl

from sliceplane.api.errors import too_large_body
from sliceplane.flowcontrol.types import Flow
from sliceplane.registry.attendance import Claim
from sliceplane.registry.types import User
from sliceplane.shell.server.requests.auth import Certificate
from sliceplane.shell.server.requests.limits import RequestPlace

BODY_BYTES_MAX = 3 * 1024 * 1024

Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]

_PRETTY_AGENTS = ("curl", "Wget", "Mozilla/5.0")
_TRUTHS = ("1", "t", "T", "true", "TRUE", "True")


class StreamConnection(Protocol):
    """What a stream needs of the connection that carries it, beyond ASGI."""

    @property
    def write_paused(self) -> bool:
        """The peer does not take what was written; *on_resumed* tells when it does again."""

    def write(self, data: bytes) -> None: ...

    def attach(self, on_resumed: Callable[[], None], on_lost: Callable[[], None]) -> None:
        """A stream begins.  Neither callback may raise."""

    def detach(self) -> None: ...

    def abort(self) -> None:
        """Cut the connection without ceremony."""

    def authenticated(self) -> None:
        """A request on it has shown who sends it: larger heads are taken.  Idempotent."""


class Query(dict[str, list[str]]):
    """The query string.  Upstream's readers take the first value of a name, and so do we."""

    def __init__(self, raw: bytes) -> None:
        if raw:
            # What is no UTF-8 becomes U+FFFD: half a character must not reach what is encoded again, answers and logs.
            for name, value in parse_qsl(raw.decode(errors="replace"), keep_blank_values=True, errors="replace"):
                self.setdefault(name, []).append(value)

    def first(self, name: str) -> str:
        """The first value; "" if the name is absent (or empty)."""
        values = self.get(name)
        return values[0] if values else ""

    def optional(self, name: str) -> str | None:
        """The first value, or ``None`` if it is absent or empty (upstream sees no difference)."""
        return self.first(name) or None

    def flag(self, name: str) -> bool:
        """A boolean: absent, "false" and "0" are false, anything else (also "") is true
        (``staging/src/k8s.io/apimachinery/pkg/runtime/conversion.go``)."""
        return name in self and self[name][0].lower() not in ("false", "0")


class Request:
    """A request.  Owned by the task that answers it."""

    __slots__ = (
        "_receive",
        "_scope",
        "certificate",
        "claim",
        "connection",
        "created",
        "flow",
        "headers",
        "method",
        "path",
        "place",
        "query",
        "user",
    )

    def __init__(self, scope: Mapping[str, Any], receive: Receive) -> None:
        self.method: str = scope["method"]
        self.path: str = scope["path"]
        self.query = Query(scope["query_string"])
        headers = dict(scope["headers"])
        self.headers = headers if len(headers) == len(scope["headers"]) else _joined(scope["headers"])
        #: verified when the connection was made
        self.certificate: Certificate | None = scope["state"]["certificate"]
        self.connection: StreamConnection = scope["state"]["connection"]
        #: set once authentication has succeeded
        self.user: User | None = None
        #: set once it is clear whose request this is
        self.flow: Flow | None = None
        #: set before a handler is called
        self.place: RequestPlace
        #: what lets the request in, set once it is
        self.claim: Claim | None = None
        #: the object that was created, as JSON
        self.created = b""
        self._scope = scope
        self._receive = receive

    @property
    def uri(self) -> str:
        """Path and query as they were sent."""
        path = self._scope["raw_path"].decode("latin-1")
        query = self._scope["query_string"].decode("latin-1")
        return f"{path}?{query}" if query else path

    @property
    def client_address(self) -> str:
        """The IP address of the peer; "" if it is gone."""
        client = self._scope.get("client")
        return str(client[0]) if client else ""

    def header(self, name: bytes) -> str:
        """A header by its lower-case name; "" if absent."""
        return self.headers.get(name, b"").decode("latin-1")

    def headers_of(self, prefix: bytes) -> tuple[tuple[str, str], ...]:
        """Every header whose lower-case name begins with *prefix*, in the order in which they came."""
        if not any(name.startswith(prefix) for name in self.headers):
            return ()
        headers = ((name, value) for name, value in self._scope["headers"] if name.startswith(prefix))
        return tuple((name.decode("latin-1"), value.decode(errors="replace")) for name, value in headers)

    @property
    def pretty(self) -> bool:
        """Whether query or user agent ask for indented JSON; the query wins."""
        if "pretty" in self.query:
            return self.query.first("pretty") in _TRUTHS
        return self.header(b"user-agent").startswith(_PRETTY_AGENTS)

    @property
    def wants_gzip(self) -> bool:
        return "gzip" in self.header(b"accept-encoding")

    def credentials_end_in(self, now: float) -> float:
        """How many seconds longer the client certificate counts by which the request was authenticated; infinite for
        any other request: upstream lets a watch outlive its token."""
        if self.certificate is None or not self.certificate.counts(now):
            return math.inf
        return self.certificate.ends - now

    async def body(self) -> bytes:
        """The whole body; when it is there the request takes its seat, and not before.  Raises the 413 ``StatusError``
        beyond ``BODY_BYTES_MAX``, ``TooMany``, and ``ConnectionError`` if the client went away."""
        declared = self.headers.get(b"content-length", b"")
        if declared.isdigit() and int(declared) > BODY_BYTES_MAX:
            raise too_large_body(BODY_BYTES_MAX)
        chunks = []
        size = 0
        self.place.hold_body(0)
        while True:
            message = await self._receive()
            if message["type"] == "http.disconnect":
                raise ConnectionAbortedError("the client went away while sending its request")
            chunk = message.get("body", b"")
            size += len(chunk)
            if size > BODY_BYTES_MAX:
                raise too_large_body(BODY_BYTES_MAX)
            self.place.hold_body(size)
            chunks.append(chunk)
            if not message.get("more_body", False):
                await self.place.sit()
                return chunks[0] if len(chunks) == 1 else b"".join(chunks)


def _joined(fields: Sequence[tuple[bytes, bytes]]) -> dict[bytes, bytes]:
    """Header by header; values of one name become one, in their order (RFC 9110 5.3).  As long as *fields* are."""
    values: dict[bytes, list[bytes]] = {}
    for name, value in fields:
        values.setdefault(name, []).append(value)
    return {name: b", ".join(found) for name, found in values.items()}
