"""Requests that a relay does not serve: passed on to the parent as the child sent them, and the
answer as the parent sent it.

The child's own bearer token goes with them, and the relay's credentials never do: the connections
have no client certificate, so the parent sees the child alone. A child that shows a client
certificate cannot be passed on, since nobody can prove it to the parent: it gets 403.

Everything is bounded: bodies in bytes, requests in number, both shared by the addresses of
children. An answer is read from the parent as fast as the child takes it.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Iterable
from typing import Any, Final
from urllib.parse import urlsplit

from msgspec.structs import replace

from sliceplane.api.errors import StatusError, too_large_body
from sliceplane.api.users import User, bearer_token
from sliceplane.kit.metrics import Metrics
from sliceplane.kit.shares import Shares
from sliceplane.server.io.requests.limits import OverCapacity
from sliceplane.server.io.requests.request import BODY_BYTES_MAX, Receive, Request, Send
from sliceplane.watch.io.base import Unreachable
from sliceplane.watch.io.connection import Connection, Fixed
from sliceplane.watch.io.http.answers import BadStream
from sliceplane.watch.io.http.pool import ConnectionPool
from sliceplane.watch.io.http.replies import why_no_answer
from sliceplane.watch.io.http.wire import ClientConnection

#: of all requests that are passed on, and of their bodies
PASSED_MAX: Final = 2_000
BODIES_BYTES_MAX: Final = 64 * 1024 * 1024
#: until the head of the parent's answer; servers end requests after 60 s themselves
ANSWER_S_MAX: Final = 65.0
#: methods that may be sent twice (RFC 9110, section 9.2.2)
_REPEATABLE: Final = ("GET", "HEAD", "PUT", "DELETE")
#: of one connection alone (RFC 9110, section 7.6.1), and what is made anew
_NOT_PASSED: Final = frozenset(
    (
        *("connection", "keep-alive", "proxy-authenticate", "proxy-authorization"),
        *("proxy-connection", "te", "trailer", "transfer-encoding", "upgrade", "via"),
        *("host", "content-length", "expect"),
    )
)


class Passage:
    """Owned by one relay.  *name* is the relay's in the Via header."""

    #: every client can be passed on, and the relay has no pages of its own
    takes_all = False

    def __init__(self, connection: Connection, name: str) -> None:
        tls = None if connection.tls is None else connection.tls.without_certificate()
        self._connection = replace(connection, credentials=Fixed(), headers=(), tls=tls)
        if tls is not None:
            self._connection = replace(self._connection, ssl_context=tls.current()[1])
        self._pool = ConnectionPool(self._connection)
        server = urlsplit(connection.server)
        self._host = server.netloc
        self._prefix = server.path
        self._name = name
        self.requests = Shares(PASSED_MAX)
        self.bodies = Shares(BODIES_BYTES_MAX)
        self.metrics = Metrics()
        self.passed = self.metrics.counter(
            "sliceplane_relay_passed_requests_total", "Requests passed on to the parent."
        )

    async def close(self) -> None:
        await self._pool.close()

    async def respond(self, request: Request, scope: Any, receive: Receive, send: Send) -> None:
        """Raises ``StatusError`` and ``OverCapacity`` before the answer begins, and
        ``ConnectionAbortedError`` when either side breaks off.
        """
        child = await self._account(request)
        if not self.requests.take(child):
            raise OverCapacity
        try:
            body = await self._body(child, receive)
            try:
                await self._exchange(request, scope, body, receive, send)
            finally:
                self._release_body(child, len(body))
        finally:
            self.requests.release(child, 1)

    async def _account(self, request: Request) -> str:
        """Returns the name under which the request is counted. Raises ``StatusError`` for a client
        that cannot be passed on.
        """
        _refuse_unpassable(request)
        return request.client_address

    def _trust(self, request: Request, status: int) -> None:
        """The parent answered: if it accepted the child's token, its connection is one of an
        authenticated account. Raises ``OverCapacity`` if that account has too many.
        """
        authorization = request.headers.get(b"authorization", b"")
        if status == 401 or not bearer_token(authorization):
            return
        account = User(name=f"token {hashlib.sha256(authorization).hexdigest()}")
        if not request.connection.authenticated(account):
            raise OverCapacity

    def _fields(self, request: Request, scope: Any) -> Iterable[tuple[bytes, bytes]]:
        """Returns the headers of the request as it is passed on, but for the length."""
        via = request.header(b"via")
        mine = f"1.1 {self._name}"
        yield b"Host", self._host.encode()
        yield from passed(scope["headers"])
        yield b"Via", (f"{via}, {mine}" if via else mine).encode("latin-1")

    async def _body(self, child: str, receive: Receive) -> bytes:
        """Raises the 413 ``StatusError``, ``OverCapacity`` and ``ConnectionAbortedError``."""
        portions: list[bytes] = []
        size = 0
        try:
            while True:
                message = await receive()
                if message["type"] == "http.disconnect":
                    raise ConnectionAbortedError("the child went away while sending its request")
                portion = message.get("body", b"")
                if size + len(portion) > BODY_BYTES_MAX:
                    raise too_large_body(BODY_BYTES_MAX)
                if portion and not self.bodies.take(child, len(portion)):
                    raise OverCapacity
                size += len(portion)
                portions.append(portion)
                if not message.get("more_body", False):
                    return b"".join(portions)
        except BaseException:
            self._release_body(child, size)
            raise

    def _release_body(self, child: str, size: int) -> None:
        if size:
            self.bodies.release(child, size)

    async def _exchange(
        self, request: Request, scope: Any, body: bytes, receive: Receive, send: Send
    ) -> None:
        self.passed.value += 1
        connection = await self._ask(request.method, self._message(request, scope, body))
        try:
            self._trust(request, connection.answer.status)
            await self._answer(request, connection, receive, send)
        finally:
            self._pool.release(connection)

    async def _ask(self, method: str, message: bytes) -> ClientConnection:
        """Returns the connection with the head of the answer.  Raises the 503 ``StatusError``."""
        try:
            async with asyncio.timeout(ANSWER_S_MAX):
                while True:
                    connection = await self._pool.take(recheck_files=False)
                    try:
                        await connection.ask(method, message)
                        return connection
                    except BaseException as error:
                        # The parent may have closed it while nothing was asked.
                        unheard = connection.idle_since is not None and not connection.answer.began
                        self._pool.release(connection)
                        if not (isinstance(error, ConnectionError) and unheard):
                            raise
                        if method not in _REPEATABLE:
                            raise
        except (OSError, TimeoutError, BadStream, Unreachable) as error:
            raise _no_parent(why_no_answer(error)) from error

    def _message(self, request: Request, scope: Any, body: bytes) -> bytes:
        """Raises the 400 ``StatusError``."""
        fields = list(self._fields(request, scope))
        if body or request.method in ("POST", "PUT", "PATCH"):
            fields.append((b"Content-Length", b"%d" % len(body)))
        target = f"{request.method} {self._prefix}{request.uri} HTTP/1.1".encode("latin-1")
        lines = [target, *(b"%b: %b" % field for field in fields), b"", b""]
        head = b"\r\n".join(lines)
        if head.count(b"\n") != len(lines) - 1 or head.count(b"\r") != len(lines) - 1:
            raise StatusError(400, "BadRequest", "a header has a control character", {})
        return head + body

    async def _answer(
        self, request: Request, connection: ClientConnection, receive: Receive, send: Send
    ) -> None:
        """The parent's answer, as it comes, until either side has gone."""
        answer = connection.answer
        fields = (line.encode("latin-1").split(b":", 1) for line in answer.lines)
        headers = [
            (name.lower(), value.strip())
            for name, value in fields
            if (key := name.decode("latin-1").lower()) not in _NOT_PASSED or key == "content-length"
        ]
        await send({"type": "http.response.start", "status": answer.status, "headers": headers})
        if request.method == "HEAD":
            connection.abort()
            await send({"type": "http.response.body", "body": b""})
            return
        if answer.complete:
            await send({"type": "http.response.body", "body": await connection.portion()})
            return
        leaving = asyncio.create_task(_left(receive, connection))
        try:
            while portion := await connection.portion():
                await send({"type": "http.response.body", "body": portion, "more_body": True})
        except (OSError, BadStream) as error:
            raise ConnectionAbortedError("the parent broke off its answer") from error
        finally:
            leaving.cancel()
        await send({"type": "http.response.body", "body": b""})


async def _left(receive: Receive, connection: ClientConnection) -> None:
    """Ends *connection* when the child goes away."""
    while (await receive())["type"] != "http.disconnect":
        pass
    connection.abort()


def _refuse_unpassable(request: Request) -> None:
    """Raises the 403 ``StatusError`` for a child that the parent cannot know, and 501."""
    if b"upgrade" in request.headers.get(b"connection", b"").lower():
        raise StatusError(
            501,
            "NotImplemented",
            "a relay passes on no upgraded connections (exec, attach, port-forward): send them to "
            "the API server itself",
            {},
        )
    token = bearer_token(request.headers.get(b"authorization", b""))
    if request.certificate is not None and not token:
        raise StatusError(
            403,
            "Forbidden",
            "this relay serves reads of its resources alone to a client certificate, which it "
            "cannot show to its parent: use a bearer token, or send this to the API server itself",
            {},
        )


def passed(headers: Iterable[tuple[bytes, bytes]]) -> Iterable[tuple[bytes, bytes]]:
    """Returns the headers that are of more than one connection."""
    return ((name, value) for name, value in headers if name.decode("latin-1") not in _NOT_PASSED)


def _no_parent(why: str) -> StatusError:
    message = f"the relay's parent gives no answer: {why}"
    return StatusError(503, "ServiceUnavailable", message, {}, retry_after_s=1)
