"""A client of any Kubernetes API server over HTTP/1.1: one pool of connections, one connection for each watch.

Bodies are never decoded here beyond the envelope: list items and watch objects stay the bytes that the server sent.
Errors come in two families and are mapped in one place: an answer with a code of 300 or more is a ``StatusError`` as
its Status body says; no answer is ``Unreachable`` with the cause chained.  A 401 refreshes the credentials and is
tried once more, which is safe for writes too: the server has looked at nothing but who asks.  What else is sent again
says ``client.retries``.

aiohttp is loaded with the first request.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self
from urllib.parse import urlsplit
from weakref import WeakSet

import msgspec

from sliceplane.api.errors import StatusError, internal
from sliceplane.api.requests import ListPage, PatchType, Selection, Verb, WatchMessage, Write
from sliceplane.api.scheme import Resource
from sliceplane.kit.delays import TokenBucket
from sliceplane.shell.transport.base import Unreachable, Verbs
from sliceplane.shell.transport.credentials import CredentialsError
from sliceplane.shell.transport.http_metrics import HttpMetrics
from sliceplane.shell.transport.lines import BadStream, WatchLines
from sliceplane.shell.transport.replies import error_of, why_no_answer
from sliceplane.shell.transport.retries import NO_RETRIES, Retries

if TYPE_CHECKING:
    import aiohttp

    from sliceplane.shell.transport.kubeconfig import Connection

CONNECT_TIMEOUT_S = 10.0
#: lists and writes; servers end them after 60 s themselves
REQUEST_TIMEOUT_S = 65.0
#: connections kept open although nothing uses them
IDLE_CONNECTION_S = 60.0
READ_BYTES = 256 * 1024
#: after so long without a packet the kernel asks the peer's kernel whether the connection is still there, every
#: ``KEEPALIVE_INTERVAL_S``, and gives up after ``KEEPALIVE_PROBES``: a watch whose peer vanished ends within 30 s,
#: long before its silence would tell, and costs the server's process nothing
KEEPALIVE_IDLE_S = 15
KEEPALIVE_INTERVAL_S = 5
KEEPALIVE_PROBES = 3
#: how many turns of the loop connections get to be gone when a client is closed
CLOSING_TURNS_MAX = 10

_METHODS: Mapping[Verb, str] = {"create": "POST", "update": "PUT", "patch": "PATCH", "delete": "DELETE"}
_PATCH_TYPES: Mapping[PatchType, str] = {
    "json": "application/json-patch+json",
    "merge": "application/merge-patch+json",
    "strategic": "application/strategic-merge-patch+json",
    "apply": "application/apply-patch+yaml",
}
Params = dict[str, str]
Headers = list[tuple[str, str]]


class _ListMeta(msgspec.Struct, frozen=True, rename="camel"):
    resource_version: str = ""
    continue_: str = msgspec.field(name="continue", default="")
    remaining_item_count: int | None = None


class _List(msgspec.Struct, frozen=True):
    metadata: _ListMeta = _ListMeta()
    items: list[msgspec.Raw] | None = None


_list_decoder = msgspec.json.Decoder(_List)


@dataclass(frozen=True, slots=True)
class _Request:
    method: str
    path: str
    params: Params
    body: bytes | None = None
    content_type: str = "application/json"
    #: for all of it; ``None``: whoever reads decides
    timeout_s: float | None = REQUEST_TIMEOUT_S


class HttpClient(Verbs):
    """See ``shell.transport.base.Client``.  Used in one loop; ``close`` when done."""

    def __init__(
        self,
        connection: Connection,
        *,
        field_manager: str = "sliceplane",
        limit: TokenBucket | None = None,
        retries: Retries = NO_RETRIES,
        read_only: bool = False,
    ) -> None:
        """*limit*: requests wait for a token each, watches too.  *read_only*: nothing but GET is ever sent."""
        self._connection = connection
        self._manager = field_manager
        self._limit = limit
        self._retries = retries
        self._read_only = read_only
        #: those that are not let go yet
        self._sockets: WeakSet[socket.socket] = WeakSet()
        self.metrics = HttpMetrics(urlsplit(connection.server).netloc)
        self._session: aiohttp.ClientSession | None = None
        #: made before the certificates changed; its watches go on
        self._retired: aiohttp.ClientSession | None = None
        self._tls_number = 0
        self._closed = False

    @property
    def server(self) -> str:
        return self._connection.server

    # Reading

    async def get(self, resource: Resource, namespace: str, name: str) -> bytes:
        return await self._send("GET", resource.path(namespace, name))

    async def list(
        self,
        selection: Selection | Resource,
        *,
        resource_version: str | None = None,
        limit: int | None = None,
        continue_token: str = "",
        **scope: str,
    ) -> ListPage:
        """*scope*: namespace, label_selector and field_selector of a bare resource, for programs by hand."""
        selection = _selection(selection, scope)
        params = _params(selection, resource_version)
        if limit:
            params["limit"] = str(limit)
        if continue_token:
            params["continue"] = continue_token
        body = await self._send("GET", selection.resource.path(selection.namespace), params)
        try:
            listed = _list_decoder.decode(body)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise internal(f"{self.server} answered a list that cannot be read: {error}") from error
        metadata = listed.metadata
        # Each item is copied: a view would keep the bytes of the whole page alive.
        items = tuple(bytes(item) for item in listed.items or ())
        return ListPage(items, metadata.resource_version, metadata.continue_, metadata.remaining_item_count)

    @asynccontextmanager
    async def watch(
        self,
        selection: Selection | Resource,
        *,
        resource_version: str | None = None,
        timeout_s: int | None = None,
        bookmarks: bool = True,
        **scope: str,
    ) -> AsyncIterator[AsyncIterator[WatchMessage]]:
        """*scope* as for ``list``."""
        selection = _selection(selection, scope)
        params = _params(selection, resource_version)
        params["watch"] = "true"
        if bookmarks:
            params["allowWatchBookmarks"] = "true"
        if timeout_s is not None:
            params["timeoutSeconds"] = str(timeout_s)
        # How long silence may last is decided by the reader.
        path = selection.resource.path(selection.namespace)
        response = await self._open(_Request("GET", path, params, timeout_s=None))
        try:
            yield _Messages(response, self.server)
        finally:
            # The stream may not have ended and its peer may be dead: no good-bye over TLS, which would wait for one.
            if response.connection is not None and response.connection.transport is not None:
                response.connection.transport.abort()
            response.close()

    # Writing

    async def perform(self, write: Write) -> bytes:
        path = write.resource.path(write.namespace, write.name, write.subresource)
        params = {} if write.verb == "delete" else {"fieldManager": self._manager}
        content_type = _PATCH_TYPES[write.patch_type] if write.verb == "patch" else "application/json"
        return await self._send(_METHODS[write.verb], path, params, write.body or None, content_type)

    async def download(self, path: str) -> AsyncIterator[bytes]:
        """The body of a page, in portions, however long it takes while something comes.  Raises as ``get``."""
        import aiohttp

        response = await self._open(_Request("GET", path, {}, timeout_s=None))
        try:
            async with response:
                while True:
                    async with asyncio.timeout(REQUEST_TIMEOUT_S):
                        portion = await response.content.readany()
                    if not portion:
                        return
                    yield portion
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            raise self._unreachable(error) from error

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Idempotent.  Open watches end as if the connection broke."""
        self._closed = True
        sessions = [each for each in (self._session, self._retired) if each is not None]
        self._session = self._retired = None
        for session in sessions:
            await session.close()
        # Aborted connections are let go in the next turn of the loop, which may be its last.  One whose opening was
        # cancelled before its first callback knows nothing of that, and goes on with its handshake until it finds
        # that nobody is there.
        for turn in range(CLOSING_TURNS_MAX if sessions else 0):
            await asyncio.sleep(0)
            left = [each for each in self._sockets if each.fileno() >= 0]
            if not left:
                return
            if turn == 0:
                for each in left:
                    with suppress(OSError):
                        each.shutdown(socket.SHUT_RDWR)

    # Requests

    async def _send(
        self,
        method: str,
        path: str,
        params: Params | None = None,
        body: bytes | None = None,
        content_type: str = "application/json",
    ) -> bytes:
        """The whole body of the answer."""
        import aiohttp

        response = await self._open(_Request(method, path, params or {}, body, content_type, REQUEST_TIMEOUT_S))
        try:
            async with response:
                return await response.read()
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            raise self._unreachable(error) from error

    async def _open(self, request: _Request) -> aiohttp.ClientResponse:
        """The response of a request that was accepted, its body unread.  Raises ``StatusError``, ``Unreachable``."""
        # First of all, and not in a layer that somebody could go around.
        if self._read_only and request.method != "GET":
            raise StatusError(405, "MethodNotAllowed", f"{request.method} {request.path}: this client only reads")
        refreshable = self._connection.credentials.refreshable
        refresh, refusals = False, 0
        while True:
            response = await self._exchange(request, refresh=refresh)
            if response.status == 401 and refreshable and not refresh:
                response.release()
                refresh = True
                continue
            after = response.headers.get("Retry-After", "")
            wait = self._retries.wait_s(request.method, response.status, after, refusals)
            if wait is None:
                break
            self.metrics.retried(request.method, str(response.status))
            response.release()
            await asyncio.sleep(wait)
            refresh, refusals = False, refusals + 1
        # Redirects are not followed: nobody else is to see our credentials.
        if response.status >= 300:
            raise await self._refusal(response)
        return response

    async def _exchange(self, request: _Request, *, refresh: bool) -> aiohttp.ClientResponse:
        import aiohttp

        await self._take_turn(request.method)
        headers = await self._headers(refresh)
        if request.body is not None:
            headers.append(("Content-Type", request.content_type))
        session = await self._ready_session(look=refresh)
        began = time.monotonic()
        code = "<error>"
        try:
            response = await session.request(
                request.method,
                self.server + request.path,
                params=request.params,
                headers=headers,
                data=request.body,
                timeout=aiohttp.ClientTimeout(total=request.timeout_s, sock_connect=CONNECT_TIMEOUT_S),
                allow_redirects=False,
                server_hostname=self._connection.server_hostname,
                proxy=self._connection.proxy or None,
            )
            code = str(response.status)
            return response
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            raise self._unreachable(error) from error
        finally:
            self.metrics.answered(request.method, code, time.monotonic() - began)

    async def _take_turn(self, method: str) -> None:
        if self._limit is not None:
            wait = self._limit.take(time.monotonic())
            self.metrics.limited(method, wait)
            if wait > 0:
                await asyncio.sleep(wait)

    async def _refusal(self, response: aiohttp.ClientResponse) -> StatusError:
        import aiohttp

        async with response:
            try:
                body = await response.read()
            except (aiohttp.ClientError, OSError, TimeoutError) as error:
                raise self._unreachable(error) from error
            return error_of(response.status, body, response.headers.get("Retry-After", ""))

    async def _headers(self, refresh: bool) -> Headers:
        headers: Headers = [("Accept", "application/json"), ("User-Agent", "sliceplane"), *self._connection.headers]
        try:
            authorization = await self._connection.credentials.authorization(refresh=refresh)
        except CredentialsError as error:
            raise Unreachable(f"no credentials for {self.server}: {error}") from error
        if authorization:
            headers.append(("Authorization", authorization))
        return headers

    async def _ready_session(self, *, look: bool) -> aiohttp.ClientSession:
        """With the certificates as they are now.  *look*: who we are was refused, so look at their files at once."""
        import aiohttp

        if self._closed:
            raise Unreachable("the client is closed")
        tls = self._connection.tls
        context: ssl.SSLContext | bool = self._connection.ssl_context or True
        if tls is not None:
            if look:
                tls.look_again()
            number, context = tls.current()
            if number != self._tls_number:
                # A connection has the certificate that it was opened with: no request may use it any more.
                self._tls_number = number
                oldest, self._retired, self._session = self._retired, self._session, None
                if oldest is not None:
                    await oldest.close()
        if self._session is None:
            # No limit: watches hold one connection each, and requests are bounded by those who make them.
            connector = aiohttp.TCPConnector(
                ssl=context, limit=0, keepalive_timeout=IDLE_CONNECTION_S, socket_factory=self._new_socket
            )
            self._session = aiohttp.ClientSession(
                connector=connector, read_bufsize=READ_BYTES, cookie_jar=aiohttp.DummyCookieJar(), trust_env=False
            )
        return self._session

    def _new_socket(self, address: tuple[Any, ...]) -> socket.socket:
        opened = _socket(address)
        self._sockets.add(opened)
        return opened

    def _unreachable(self, error: Exception) -> Unreachable:
        return Unreachable(f"{self.server}: {why_no_answer(error)}")


def _socket(address: tuple[Any, ...]) -> socket.socket:
    """For aiohttp: a socket for one entry of ``getaddrinfo``'s answer, whose peer's death is noticed."""
    family, kind, protocol, *_ = address
    opened = socket.socket(family=family, type=kind, proto=protocol)
    opened.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (
        ("TCP_KEEPIDLE", KEEPALIVE_IDLE_S),
        ("TCP_KEEPINTVL", KEEPALIVE_INTERVAL_S),
        ("TCP_KEEPCNT", KEEPALIVE_PROBES),
        # The same bound for what was sent and never acknowledged.
        ("TCP_USER_TIMEOUT", (KEEPALIVE_IDLE_S + KEEPALIVE_INTERVAL_S * KEEPALIVE_PROBES) * 1000),
    ):
        if hasattr(socket, name):  # not on every system
            opened.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
    return opened


class _Messages:
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


def _selection(selection: Selection | Resource, scope: dict[str, str]) -> Selection:
    return selection if isinstance(selection, Selection) else Selection(selection, **scope)


def _params(selection: Selection, resource_version: str | None) -> Params:
    params: Params = {}
    if selection.label_selector:
        params["labelSelector"] = selection.label_selector
    if selection.field_selector:
        params["fieldSelector"] = selection.field_selector
    if resource_version is not None:
        params["resourceVersion"] = resource_version
    return params
