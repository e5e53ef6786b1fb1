"""A client of any Kubernetes API server over HTTP/1.1: one pool of connections, one connection for
each watch.

Bodies are never decoded here beyond the envelope: list items and watch objects stay the bytes that
the server sent. Errors come in two families and are mapped in one place: an answer with a code of
300 or more is a ``StatusError`` as its Status body says; no answer is ``Unreachable`` with the
cause chained. A 401 refreshes the credentials and is tried once more, which is safe for writes too:
the server has looked at nothing but who asks. What else is sent again says ``transport.replies``.
"""

from __future__ import annotations

import asyncio
import time
import zlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, nullcontext
from typing import TYPE_CHECKING, Final, Self
from urllib.parse import urlsplit

import msgspec

from sliceplane.api.codec import UNREADABLE
from sliceplane.api.errors import StatusError, internal
from sliceplane.api.requests import ListPage, Selection, WatchMessage, Write
from sliceplane.api.scheme import Resource
from sliceplane.kit.delays import TokenBucket
from sliceplane.kit.metrics import Metrics
from sliceplane.watch.io.base import Unreachable, Verbs
from sliceplane.watch.io.bounds import (
    PAGE_BYTES_MAX,
    QUESTION_BYTES_MAX,
    AnswerTooLarge,
    QuestionAllowance,
    TooLarge,
    current_allowance,
    unzipped,
)
from sliceplane.watch.io.connection import CredentialsError
from sliceplane.watch.io.http.answers import BadStream
from sliceplane.watch.io.http.pool import ConnectionPool
from sliceplane.watch.io.http.replies import (
    LINE_BYTES_MAX,
    NO_RETRIES,
    Retries,
    WatchStream,
    error_of,
    why_no_answer,
)
from sliceplane.watch.io.http.requests import (
    HttpRequest,
    list_request,
    watch_request,
    write_request,
)
from sliceplane.watch.io.http.wire import ClientConnection

if TYPE_CHECKING:
    from sliceplane.watch.io.connection import Connection

#: lists and writes; servers end them after 60 s themselves
REQUEST_TIMEOUT_S: Final = 65.0
#: a download brings at least so much in each ``REQUEST_TIMEOUT_S``, or its end
DOWNLOAD_BYTES_MIN: Final = 64 * 1024
#: client-go's buckets
_BOUNDS_S: Final = (0.005, 0.025, 0.1, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 15.0, 30.0, 60.0)


class _ListMeta(msgspec.Struct, frozen=True, rename="camel"):
    resource_version: str = ""
    continue_: str = msgspec.field(name="continue", default="")
    remaining_item_count: int | None = None


class _List(msgspec.Struct, frozen=True):
    metadata: _ListMeta = _ListMeta()
    items: list[msgspec.Raw] | None = None


class _ListOfOne(msgspec.Struct, frozen=True):
    metadata: _ListMeta = _ListMeta()
    items: tuple[msgspec.Raw] | None = None


_list_decoder = msgspec.json.Decoder(_List)
#: ends at a second item: there may be half a million
_one_decoder = msgspec.json.Decoder(_ListOfOne)
#: a list of one object that is longer is decoded as such; a shorter one may have any number
_SHORT_LIST_BYTES: Final = 64 * 1024


class _Answer(msgspec.Struct, frozen=True):
    status: int
    retry_after: str
    body: bytes
    #: with which it was asked
    authorization: str
    #: of a stream that was not refused
    connection: ClientConnection | None


class HttpMetrics(Metrics):
    """Owned by one ``HttpClient``.  *host* is the server's, as in the label of that name."""

    def __init__(self, host: str) -> None:
        super().__init__()
        self._host = host
        answers = ("code", "method", "host")
        self._requests = self.counters(
            "rest_client_requests_total", "Requests by their answers.", *answers
        )
        self._retries = self.counters(
            "rest_client_request_retries_total", "Requests that were sent again.", *answers
        )
        self._seconds = self.histograms(
            "rest_client_request_duration_seconds",
            "Head of the request to answer.",
            _BOUNDS_S,
            "verb",
            "host",
        )
        self._limited = self.histograms(
            "rest_client_rate_limiter_duration_seconds",
            "Waiting for the limit of our own.",
            _BOUNDS_S,
            "verb",
            "host",
        )

    def answered(self, method: str, code: str, seconds: float) -> None:
        """*code* is ``<error>`` where there was no answer."""
        self._requests.of(code, method, self._host).value += 1
        self._seconds.of(method, self._host).observe(seconds)

    def retried(self, method: str, code: str) -> None:
        self._retries.of(code, method, self._host).value += 1

    def limited(self, method: str, seconds: float) -> None:
        """A request waited so long for its turn."""
        self._limited.of(method, self._host).observe(seconds)


class HttpClient(Verbs):
    """See ``watch.io.base.Client``.  Used in one loop; ``close`` when done."""

    def __init__(
        self,
        connection: Connection,
        *,
        field_manager: str = "sliceplane",
        limit: TokenBucket | None = None,
        retries: Retries = NO_RETRIES,
        read_only: bool = False,
        watch_rest_s: float = 0.0,
        bytes_max: int = PAGE_BYTES_MAX,
    ) -> None:
        """*limit*: requests wait for a token each, watches too. *read_only*: nothing but GET is
        ever sent. *watch_rest_s*: between two reads of a watch, so that many small events are read
        as one portion. *bytes_max*: of each answer and each event, for programs that read small
        objects alone.
        """
        self._connection = connection
        self._manager = field_manager
        self._limit = limit
        self._retries = retries
        self._read_only = read_only
        self._watch_rest_s = watch_rest_s
        self._bytes_max = bytes_max
        self.metrics = HttpMetrics(urlsplit(connection.server).netloc)
        self._pool = ConnectionPool(connection)
        server = urlsplit(connection.server)
        #: the whole URL for a proxy of plain HTTP, else the server's path
        through_proxy = bool(connection.proxy) and server.scheme == "http"
        self._path_prefix = connection.server if through_proxy else server.path
        self._headers = [("Host", server.netloc), ("User-Agent", "sliceplane"), *connection.headers]
        if through_proxy:
            from sliceplane.watch.io.http import proxies  # few clients have a proxy

            self._headers += proxies.authorization(connection.proxy)

    @property
    def server(self) -> str:
        """The URL of the API server."""
        return self._connection.server

    # Reading

    async def get(self, resource: Resource, namespace: str, name: str) -> bytes:
        """The object's JSON.  Raises ``StatusError`` (404 if it is not there) and
        ``Unreachable``.
        """
        if not name:
            raise ValueError(f"get of {resource.plural} needs a name; list gives all of them")
        return await self._send(HttpRequest("GET", resource.path(namespace, name), {}))

    async def list(
        self,
        selection: Selection | Resource,
        *,
        resource_version: str | None = None,
        limit: int | None = None,
        continue_token: str = "",
        **scope: str,
    ) -> ListPage:
        """*scope*: namespace, label_selector and field_selector of a bare resource, for programs by
        hand.
        """
        selection = _selection(selection, scope)
        body = await self._send(
            list_request(
                selection,
                resource_version=resource_version,
                limit=limit,
                continue_token=continue_token,
            )
        )
        try:
            is_long = selection.is_of_one and len(body) > _SHORT_LIST_BYTES
            page = (_one_decoder if is_long else _list_decoder).decode(body)
        except UNREADABLE as error:
            raise internal(f"{self.server} answered a list that cannot be read: {error}") from error
        metadata = page.metadata
        # Each item is copied: a view would keep the bytes of the whole page alive.
        items = tuple(bytes(item) for item in page.items or ())
        return ListPage(
            items, metadata.resource_version, metadata.continue_, metadata.remaining_item_count
        )

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
        request = watch_request(
            _selection(selection, scope),
            resource_version=resource_version,
            timeout_s=timeout_s,
            bookmarks=bookmarks,
        )
        async with self._streaming(request) as connection:
            yield WatchStream(
                connection, self.server, self._watch_rest_s, min(LINE_BYTES_MAX, self._bytes_max)
            )

    # Writing

    async def perform(self, write: Write) -> bytes:
        """Sends *write*; the object as it is now. Raises ``StatusError``, ``Unreachable``, and
        ``ValueError`` for a patch of a type that does not exist.
        """
        return await self._send(write_request(write, self._manager))

    async def post(self, path: str, body: bytes) -> bytes:
        """The answer to a question of ``consume.drain.reports``, which the server holds for less
        than a minute.
        """
        return await self._send(HttpRequest("POST", path, {}, body))

    async def page(self, path: str, *, bytes_max: int) -> bytes:
        """The whole body of a page that is no object.  Raises as ``get``, and
        ``AnswerTooLarge``.
        """
        allowance = current_allowance() or QuestionAllowance(QUESTION_BYTES_MAX)
        body = bytearray()
        with allowance.waiting(f"GET {path}"):
            async for portion in self.download(path, bytes_max=bytes_max):
                body += portion
                try:
                    allowance.take(len(portion))
                except TooLarge as error:
                    raise self._unreachable(error) from error
        return bytes(body)

    async def download(self, path: str, *, bytes_max: int) -> AsyncIterator[bytes]:
        """The body of a page, in portions, however long it takes while enough of it comes. Raises
        as ``get``, and ``AnswerTooLarge`` after *bytes_max*.
        """
        # No context manager: a generator that is dropped is closed beside those that it uses, in
        # any order.
        connection = (await self._answer(HttpRequest("GET", path, {}, stream=True))).connection
        assert connection is not None, "an answer to a stream's request that is accepted"
        size = in_time = 0
        ends = time.monotonic() + REQUEST_TIMEOUT_S
        try:
            while True:
                try:
                    async with asyncio.timeout(max(ends - time.monotonic(), 0.0)):
                        portion = await connection.portion()
                    size += len(portion)
                    if size + connection.answer.announced > bytes_max:
                        raise TooLarge(bytes_max)
                except (OSError, TimeoutError, BadStream) as error:
                    raise self._unreachable(error) from error
                if not portion:
                    return
                in_time += len(portion)
                if in_time >= DOWNLOAD_BYTES_MIN:
                    in_time = 0
                    ends = time.monotonic() + REQUEST_TIMEOUT_S
                yield portion
        finally:
            self._pool.release(connection)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Idempotent.  Open watches end as if the connection broke."""
        await self._pool.close()

    # Requests

    async def _send(self, request: HttpRequest) -> bytes:
        """The whole body of the answer."""
        return (await self._answer(request)).body

    @asynccontextmanager
    async def _streaming(self, request: HttpRequest) -> AsyncIterator[ClientConnection]:
        connection = (await self._answer(request)).connection
        assert connection is not None, "an answer to a stream's request that is accepted"
        try:
            yield connection
        finally:
            self._pool.release(connection)

    async def _answer(self, request: HttpRequest) -> _Answer:
        """To a request that was accepted.  Raises ``StatusError``, ``Unreachable``."""
        # First of all, and not in a layer that a caller could go around.
        if self._read_only and request.method != "GET":
            raise StatusError(
                405, "MethodNotAllowed", f"{request.method} {request.path}: this client only reads"
            )
        refreshable = self._connection.credentials.refreshable
        refused: str | None = None
        refusals = 0
        allowance = current_allowance()
        while True:
            with (
                nullcontext()
                if allowance is None
                else allowance.waiting(f"{request.method} {request.path}")
            ):
                answer = await self._exchange(request, refused=refused)
            if answer.status < 300:
                return answer
            if answer.status == 401 and refreshable and refused is None:
                refused = answer.authorization
                continue
            wait = self._retries.wait_s(request.method, answer.status, answer.retry_after, refusals)
            if wait is None:
                # Redirects are not followed: no other server is to see our credentials.
                raise error_of(answer.status, answer.body, answer.retry_after)
            self.metrics.retried(request.method, str(answer.status))
            await asyncio.sleep(wait)
            refused = None
            refusals += 1

    async def _exchange(self, request: HttpRequest, *, refused: str | None) -> _Answer:
        """*refused*: the authorization that was answered with 401 just now."""
        await self._wait_for_rate_limit(request.method)
        authorization = await self._authorization(refused)
        connection: ClientConnection | None = None
        try:
            message = request.encode(self._path_prefix, self._headers, authorization)
            async with asyncio.timeout(REQUEST_TIMEOUT_S) as limit:
                connection = await self._ask(request, message, recheck_files=refused is not None)
                status, headers = connection.answer.status, connection.answer.headers
                retry_after = headers.get("retry-after", "")
                if request.stream and status < 300:
                    answer = _Answer(status, retry_after, b"", authorization, connection)
                    connection = None
                    return answer
                if request.stream:
                    limit.reschedule(asyncio.get_running_loop().time() + REQUEST_TIMEOUT_S)
                body = await self._body(request, connection, headers.get("content-encoding", ""))
            return _Answer(status, retry_after, body, authorization, None)
        except (OSError, TimeoutError, BadStream, ValueError, zlib.error) as error:
            raise self._unreachable(error) from error
        finally:
            if connection is not None:
                self._pool.release(connection)

    async def _body(self, request: HttpRequest, connection: ClientConnection, coding: str) -> bytes:
        """Raises ``TooLarge``."""
        allowance = current_allowance()
        bytes_max = min(request.bytes_max, self._bytes_max)
        body = await connection.body(bytes_max, None if allowance is None else allowance.take)
        if coding != "gzip":
            return body
        if allowance is None:
            return unzipped(body, bytes_max)
        plain = unzipped(body, min(bytes_max, allowance.remaining))
        allowance.take(len(plain) - len(body))
        return plain

    async def _ask(
        self, request: HttpRequest, message: bytes, *, recheck_files: bool
    ) -> ClientConnection:
        """Returns the connection with the head of the answer.  *recheck_files*: as for the pool."""
        began, code, method = time.monotonic(), "<error>", request.method
        try:
            connection = await self._pool.ask(
                method, message, is_repeatable=request.may_be_repeated, recheck_files=recheck_files
            )
            code = str(connection.answer.status)
            return connection
        finally:
            self.metrics.answered(method, code, time.monotonic() - began)

    async def _wait_for_rate_limit(self, method: str) -> None:
        if self._limit is not None:
            wait = self._limit.take(time.monotonic())
            self.metrics.limited(method, wait)
            if wait > 0:
                await asyncio.sleep(wait)

    async def _authorization(self, refused: str | None) -> str:
        try:
            return await self._connection.credentials.authorization(refused=refused)
        except CredentialsError as error:
            raise Unreachable(f"no credentials for {self.server}: {error}") from error

    def _unreachable(self, error: Exception) -> Unreachable:
        kind = AnswerTooLarge if isinstance(error, TooLarge) else Unreachable
        return kind(f"{self.server}: {why_no_answer(error)}")


def _selection(selection: Selection | Resource, scope: dict[str, str]) -> Selection:
    return selection if isinstance(selection, Selection) else Selection(selection, **scope)
