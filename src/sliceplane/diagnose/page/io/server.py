"""The page's own server: on loopback, for clients that know its URL.

The path begins with a secret, the Host must be exactly the printed address (a DNS name for it is
refused), and data is served only to requests that the browser marks as same-origin. There are no
cookies and no CORS, so that a page of another origin can send nothing and read nothing. Only GET
and HEAD are answered.

``GET v1/stream?view=...`` is the one stream of a tab (``viewer``). A tab that does not take a
message in time is closed.
"""

from __future__ import annotations

import asyncio
import hmac
import secrets
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from sliceplane.diagnose.page.io import viewer
from sliceplane.diagnose.page.io.questions import WhatIf
from sliceplane.diagnose.page.io.static_files import (
    HEADERS,
    NO_STORE,
    STREAM_TYPE,
    PageAnswer,
    StaticFiles,
    text,
)
from sliceplane.diagnose.page.io.viewer import WATCH_REST_S, Tab, Viewer, refused_query
from sliceplane.kit.io.door import http_logger, is_ambiguous
from sliceplane.watch.io.http.client import HttpClient

if TYPE_CHECKING:
    from aiohttp import web

    from sliceplane.watch.io.connection import Connection


class PageServer:
    """Answers requests; ``port`` is set once the server listens."""

    def __init__(self, source: Viewer) -> None:
        self.secret = secrets.token_urlsafe(16)
        self.port = 0
        self.viewer = source
        self._static = StaticFiles()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/{self.secret}/"

    async def answer(self, request: web.BaseRequest) -> web.StreamResponse:
        from aiohttp import web

        answer = self._refusal(request) or await self._answer(request)
        if isinstance(answer, Tab):
            return await self._feed(request, answer)
        response = web.Response(
            status=answer.status, body=answer.body, headers={**HEADERS, **answer.headers}
        )
        if answer.status == 400:
            response.force_close()
        return response

    async def _answer(self, request: web.BaseRequest) -> PageAnswer | Tab:
        path = request.path.split("/", 2)[2]
        file = self._static.answer(path)
        if file is not None:
            return file
        if not path.startswith("v1/"):
            return text(404, f"there is no such page: open {self.url}")
        if request.headers.get("Sec-Fetch-Site") != "same-origin":
            return text(403, "this is for the page itself: Sec-Fetch-Site must be same-origin")
        refusal = refused_query(request.query)
        if refusal is not None:
            return refusal
        if path == "v1/stream":
            return self.viewer.open(request.query)
        return await self.viewer.answer(path, request.query)

    def _refusal(self, request: web.BaseRequest) -> PageAnswer | None:
        if is_ambiguous(request):
            return text(400, "it is not certain where this request ends")
        if request.headers.get("Host", "") != f"127.0.0.1:{self.port}":
            return text(421, f"this is http://127.0.0.1:{self.port}, and nothing else")
        if request.method not in ("GET", "HEAD"):
            return text(405, "this only reads", {"Allow": "GET, HEAD"})
        first = request.path.split("/", 2)[1:2]
        if (
            not first
            or not hmac.compare_digest(first[0].encode(), self.secret.encode())
            or request.path.count("/") < 2
        ):
            return text(404, "there is no such page: the whole URL is printed by 'sliceplane ui'")
        # The document is opened from a terminal or a bookmark ("none"); no other site may link
        # here, or load a part.
        if request.headers.get("Sec-Fetch-Site", "none") not in ("none", "same-origin"):
            return text(403, "another site has no business here")
        return None

    async def _feed(self, request: web.BaseRequest, tab: Tab) -> web.StreamResponse:
        from aiohttp import web

        response = web.StreamResponse(headers={"Content-Type": STREAM_TYPE, **HEADERS, **NO_STORE})
        try:
            await response.prepare(request)
            while message := await tab.next():
                async with asyncio.timeout(viewer.SLOW_S):
                    await response.write(message)
        except TimeoutError:
            if request.transport is not None:
                request.transport.abort()
        except ConnectionError:
            pass  # the tab was closed
        finally:
            tab.close()
        return response


@asynccontextmanager
async def page(
    connection: Connection, namespace: str, port: int, what_if: WhatIf
) -> AsyncIterator[PageServer]:
    """Serves the page of the cluster of *connection* on 127.0.0.1, while the context lasts.
    *namespace*: the only one shown; *port* 0: a free one; *what_if*: the engine of that query.

    Raises ``OSError``, ``StatusError`` and ``Unreachable``.
    """
    from aiohttp import web

    connect: Callable[[], Any] = lambda: HttpClient(  # noqa: E731
        connection, read_only=True, watch_rest_s=WATCH_REST_S
    )  # of each loop its own
    hello = {"server": connection.server, "user": connection.account}
    source = Viewer(connect, what_if, hello, namespace=namespace, fallback=connection.namespace)
    try:
        await source.start()
        page_server = PageServer(source)
        server = web.Server(page_server.answer, access_log=None, logger=http_logger())
        try:
            listening = await asyncio.get_running_loop().create_server(server, "127.0.0.1", port)
            page_server.port = listening.sockets[0].getsockname()[1]
            yield page_server
            listening.close()
        finally:
            await server.shutdown(1.0)
    finally:
        await source.stop()
