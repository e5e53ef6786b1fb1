"""Requests that a relay does not serve: passed on to the parent as the child sent them, and the
answer as the parent sent it.

The child's own bearer token goes with them, and the relay's credentials never do: the connections
have no client certificate, so the parent sees the child alone. A child that shows a client
certificate is passed on over other connections, with the relay's certificate as a front proxy, and
headers that name the child (``server.io.connections.front_proxy``). Without such a certificate it
gets 403. Headers of children that name a user are dropped.

Everything is bounded: bodies in bytes, requests in number, both shared by the addresses of
children. An answer is read from the parent as fast as the child takes it.
"""

from __future__ import annotations

import asyncio
import hashlib
import ssl
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Final, NamedTuple
from urllib.parse import urlsplit

from msgspec.structs import replace

from sliceplane.api.errors import StatusError, unauthorized, unavailable
from sliceplane.api.scheme import SelfSubjectReviews
from sliceplane.api.users import User, bearer_token
from sliceplane.kit.io.start_error import StartError
from sliceplane.kit.metrics import Metrics
from sliceplane.kit.shares import Shares
from sliceplane.relay.reviews import VERDICT_S, self_of
from sliceplane.relay.siblings import Siblings
from sliceplane.server.io.connections.front_proxy import PREFIX, headers_of
from sliceplane.server.io.requests.limits import OverCapacity
from sliceplane.server.io.requests.request import Receive, Request, Send, read_body
from sliceplane.watch.io.base import Unreachable
from sliceplane.watch.io.connection import Connection, Fixed
from sliceplane.watch.io.http.answers import BadStream
from sliceplane.watch.io.http.pool import ConnectionPool
from sliceplane.watch.io.http.replies import why_no_answer
from sliceplane.watch.io.http.wire import ClientConnection
from sliceplane.watch.io.tls import Pem

#: of all requests that are passed on, and of their bodies
PASSED_MAX: Final = 2_000
BODIES_BYTES_MAX: Final = 64 * 1024 * 1024
#: until the head of the parent's answer; servers end requests after 60 s themselves
ANSWER_S_MAX: Final = 65.0
#: of the answer that tells whether the parent believes a front proxy
ANSWER_BYTES_MAX: Final = 64 * 1024
_WHO_AM_I: Final = b'{"kind":"SelfSubjectReview","apiVersion":"authentication.k8s.io/v1"}'
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


class _ProxyPool(ConnectionPool):
    """Connections that show the certificate of a front proxy.  A parent that takes it for that of a
    user would let every child act as this user, so it is asked who somebody is that a header names.
    """

    def __init__(self, connection: Connection, name: str) -> None:
        super().__init__(connection)
        server = urlsplit(connection.server)
        self._name = name
        self._question = (
            f"POST {server.path}{SelfSubjectReviews.path()} HTTP/1.1\r\nHost: {server.netloc}\r\n"
            f"X-Remote-User: {name}\r\nContent-Type: application/json\r\n"
            f"Content-Length: {len(_WHO_AM_I)}\r\nVia: "
        ).encode()
        #: the certificate for which the parent has given the right answer, and until when it counts
        self._proven = (0, 0.0)

    async def prove(self, via: bytes) -> None:
        """Returns if the parent believes the headers, and else raises the 403 ``StatusError``, and as
        ``ask``.  *via*: of the request that needs it, so that the question ends in a loop, too.
        """
        now = asyncio.get_running_loop().time()
        assert self._connection.tls is not None, "a certificate is shown"
        number, until = self._proven
        if self._connection.tls.current()[0] == number and now < until:
            return
        message = b"%b%b\r\n\r\n%b" % (self._question, via, _WHO_AM_I)
        connection = await self.ask("POST", message, is_repeatable=True)
        try:
            self._check(connection.answer.status, await connection.body(ANSWER_BYTES_MAX))
        finally:
            self.release(connection)
        self._proven = connection.tls_number, now + VERDICT_S

    def _check(self, status: int, body: bytes) -> None:
        user = self_of(body) if status == 201 else ""
        if user != self._name:
            found = f"takes it for {user!r}" if user else f"answers {status}"
            raise _forbidden(
                f"this relay cannot name you to its parent, which {found}: its "
                "--proxy-client-cert-file must be of the parent's --requestheader-client-ca-file and "
                "--requestheader-allowed-names"
            )


class _Way(NamedTuple):
    """Connections to one parent: without credentials, and, where the relay has a certificate for
    that, as a front proxy.
    """

    pool: ConnectionPool
    proxy_pool: _ProxyPool | None
    host: bytes
    prefix: str

    @classmethod
    def of(cls, connection: Connection, name: str, certificate: tuple[Path, Path] | None) -> _Way:
        """Raises ``StartError``."""
        plain = replace(connection, credentials=Fixed(), headers=())
        proxy_pool = None
        if plain.tls is not None:
            tls = plain.tls.showing()
            plain = replace(plain, tls=tls, ssl_context=tls.current()[1])
            if certificate is not None:
                try:
                    tls = tls.showing(*(Pem(path=path) for path in certificate))
                except (OSError, ssl.SSLError) as error:
                    raise StartError(f"cannot use {certificate[0]}: {error}") from error
                proxy_pool = _ProxyPool(replace(plain, tls=tls), name)
        elif certificate is not None:
            raise StartError(f"{plain.server} has no TLS, which --proxy-client-cert-file needs")
        server = urlsplit(plain.server)
        return cls(ConnectionPool(plain), proxy_pool, server.netloc.encode(), server.path)


class Passage:
    """Owned by one relay.  *name* is the relay's in the Via header."""

    #: every client can be passed on, and the relay has no pages of its own
    takes_all = False

    def __init__(
        self,
        connections: Iterable[Connection],
        siblings: Siblings,
        name: str,
        *,
        proxy_certificate: tuple[Path, Path] | None = None,
        clock: Callable[[], float] = time.time,
        passed_max: int = PASSED_MAX,
        bodies_bytes_max: int = BODIES_BYTES_MAX,
    ) -> None:
        """*connections*: to each parent, in the order of *siblings*. *proxy_certificate*: files of
        certificate and key of a front proxy.  Raises ``StartError``.
        """
        self._ways = [_Way.of(each, name, proxy_certificate) for each in connections]
        self._is_proxy = proxy_certificate is not None
        self._clock = clock
        self._siblings = siblings
        self._name = name
        self.requests = Shares(passed_max)
        self.bodies = Shares(bodies_bytes_max)
        self.metrics = Metrics()
        self.passed = self.metrics.counter(
            "sliceplane_relay_passed_requests_total", "Requests passed on to the parent."
        )

    async def close(self) -> None:
        for way in self._ways:
            await way.pool.close()
            if way.proxy_pool is not None:
                await way.proxy_pool.close()

    async def respond(self, request: Request, scope: Any, receive: Receive, send: Send) -> None:
        """Raises ``StatusError`` and ``OverCapacity`` before the answer begins, and
        ``ConnectionAbortedError`` when either side breaks off.
        """
        child = await self._account(request)
        if not self.requests.take(child):
            raise OverCapacity
        charged = 0

        def charge(size: int) -> None:
            nonlocal charged
            if size > charged and not self.bodies.take(child, size - charged):
                raise OverCapacity
            charged = size

        try:
            body = await read_body(receive, charge)
            await self._exchange(request, scope, body, receive, send)
        finally:
            if charged:
                self.bodies.release(child, charged)
            self.requests.release(child)

    def can_pass(self, request: Request) -> bool:
        """Returns True if the parent can be shown who the child is."""
        return self._is_proxy or not _has_certificate_alone(request)

    async def _account(self, request: Request) -> str:
        """Returns the name under which the request is counted. Raises ``StatusError`` for a client
        that cannot be passed on.
        """
        _refuse_upgrade(request)
        certificate = request.certificate
        if certificate is None or not _has_certificate_alone(request):
            return request.client_address
        if not certificate.counts(self._clock()):
            raise unauthorized()
        if not self._is_proxy:
            raise _forbidden(
                "this relay serves reads of its resources alone to a client certificate, which it "
                "cannot show to its parent: use a bearer token, or send this to the API server "
                "itself"
            )
        return certificate.user.name

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

    def _fields(self, request: Request, scope: Any, host: bytes) -> Iterable[tuple[bytes, bytes]]:
        """Returns the headers of the request as it is passed on, but for the length."""
        yield b"Host", host
        fields = passed(scope["headers"])
        if request.certificate is not None and _has_certificate_alone(request):
            fields = (field for field in fields if field[0] != b"authorization")
            yield from headers_of(request.certificate.user)
        yield from fields
        yield b"Via", self._via(request)

    def _via(self, request: Request) -> bytes:
        via = request.header(b"via")
        mine = f"1.1 {self._name}"
        return (f"{via}, {mine}" if via else mine).encode("latin-1")

    async def _exchange(
        self, request: Request, scope: Any, body: bytes, receive: Receive, send: Send
    ) -> None:
        self.passed.value += 1
        number = self._siblings.current
        way = self._ways[number]
        message = self._message(request, scope, body, way)
        # On no connection that shows the relay's certificate is a request that names no child.
        proxy_pool = way.proxy_pool if _has_certificate_alone(request) else None
        pool = proxy_pool or way.pool
        try:
            async with asyncio.timeout(ANSWER_S_MAX):
                if proxy_pool is not None:
                    await proxy_pool.prove(self._via(request))
                connection = await pool.ask(
                    request.method, message, is_repeatable=request.method in _REPEATABLE
                )
        except (OSError, TimeoutError, BadStream, Unreachable) as error:
            if proxy_pool is None:  # the parent may refuse the certificate, and be sound
                self._siblings.on_failure(number)
            raise unavailable(
                f"the relay's parent gives no answer: {why_no_answer(error)}"
            ) from error
        try:
            self._trust(request, connection.answer.status)
            # Upstream lets a watch outlive its token.
            ends_in = request.credentials_end_in(self._clock())
            async with asyncio.timeout(ends_in if proxy_pool is not None else None):
                await self._answer(request, connection, receive, send)
        except TimeoutError:
            raise ConnectionAbortedError("the child's certificate is over") from None
        finally:
            pool.release(connection)

    def _message(self, request: Request, scope: Any, body: bytes, way: _Way) -> bytes:
        """Raises the 400 ``StatusError``."""
        fields = list(self._fields(request, scope, way.host))
        if body or request.method in ("POST", "PUT", "PATCH"):
            fields.append((b"Content-Length", b"%d" % len(body)))
        target = f"{request.method} {way.prefix}{request.uri} HTTP/1.1".encode("latin-1")
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


def _refuse_upgrade(request: Request) -> None:
    """Raises the 501 ``StatusError``."""
    if b"upgrade" in request.headers.get(b"connection", b"").lower():
        raise StatusError(
            501,
            "NotImplemented",
            "a relay passes on no upgraded connections (exec, attach, port-forward): send them to "
            "the API server itself",
            {},
        )


def _has_certificate_alone(request: Request) -> bool:
    """Returns True if nothing that can be passed on as it is shows who the child is."""
    token = bearer_token(request.headers.get(b"authorization", b""))
    return request.certificate is not None and not token


def _forbidden(message: str) -> StatusError:
    return StatusError(403, "Forbidden", message, {})


def passed(headers: Iterable[tuple[bytes, bytes]]) -> Iterable[tuple[bytes, bytes]]:
    """Returns the headers that are of more than one connection, and name no user: only the relay
    says who a child is.
    """
    names = ((name.decode("latin-1"), name, value) for name, value in headers)
    return (
        (name, value)
        for key, name, value in names
        if key not in _NOT_PASSED and not key.startswith(PREFIX)
    )
