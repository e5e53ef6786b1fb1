"""``/ui/`` of our own server: the page for logged-in users, with only their own rights.

``login_sessions`` finds the login of a request. The page's own requests to the server use the rights
of its user, so the server authenticates, authorises, limits and audits them like the user's own
requests.

Views and engines run in a thread of their own, and the server's loop forwards bytes. The page is
read-only: it serves only GET, and POST to log in and out, which needs a document of the same
origin.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, Final
from urllib.parse import parse_qsl

from sliceplane.api.errors import StatusError
from sliceplane.api.users import bearer_token
from sliceplane.diagnose.page.feed import line
from sliceplane.diagnose.page.io import viewer
from sliceplane.diagnose.page.io.login_sessions import LoginSessions
from sliceplane.diagnose.page.io.questions import WhatIf
from sliceplane.diagnose.page.io.static_files import (
    HEADERS,
    NO_STORE,
    STREAM_TYPE,
    PageAnswer,
    StaticFiles,
    text,
)
from sliceplane.diagnose.page.io.viewer import Tab, Viewer, refused_query
from sliceplane.diagnose.page.logins import Login
from sliceplane.kit.metrics import Metrics
from sliceplane.kit.shares import Shares
from sliceplane.server.io.connections.listener import App
from sliceplane.server.io.plane import ServerPlane
from sliceplane.server.io.requests.request import StreamConnection
from sliceplane.watch.io.base import Unreachable
from sliceplane.watch.io.service import ServiceContext

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Any]]
Send = Callable[[Any], Awaitable[None]]

ROOT: Final = "/ui/"
BODY_MAX: Final = 32 * 1024
#: streams of all logins, and of one account
STREAMS_MAX: Final = 256
STREAMS_EACH_MAX: Final = 64
#: concurrent queries (trace, what-if), of all logins and of one account
QUESTIONS_MAX: Final = 12
QUESTIONS_EACH_MAX: Final = 3


class LoginDoor:
    """A ``PlaneService`` around the application of *plane*, which is set before the start."""

    name = "page"

    def __init__(self, what_if: WhatIf) -> None:
        self.plane: ServerPlane
        self._static = StaticFiles()
        self.sessions = LoginSessions(what_if, ROOT)
        #: by account, for all of its logins
        self._streams = Shares(STREAMS_MAX, most_each=STREAMS_EACH_MAX)
        self._questions = Shares(QUESTIONS_MAX, most_each=QUESTIONS_EACH_MAX)
        self._metrics = Metrics()
        shared = {
            "logins": self.sessions.shares,
            "streams": self._streams,
            "questions": self._questions,
        }
        self._metrics.computed(
            "gauge",
            "sliceplane_page_shared_held",
            "Logins, streams and questions of the page now.",
            lambda: [((what,), shares.total) for what, shares in shared.items()],
            "what",
        )
        self._metrics.computed(
            "counter",
            "sliceplane_page_shared_refused_total",
            "Logins that took the room of another or got none, and streams and questions that "
            "were refused, since "
            "accounts share them.",
            lambda: [((what,), shares.refused) for what, shares in shared.items()],
            "what",
        )

    # As a service

    async def start(self, context: ServiceContext) -> None:
        context.add_samples(self._metrics.families)
        self.sessions.start(self.plane)

    async def drain(self) -> None: ...

    async def stop(self) -> None:
        await self.sessions.stop()

    # Requests

    def around(self, app: App) -> App:
        async def application(scope: Scope, receive: Receive, send: Send) -> None:
            path = scope["path"]
            if path == ROOT or path.startswith(ROOT):
                await self._serve(scope, receive, send)
            elif path == ROOT.rstrip("/"):
                await _send(send, PageAnswer(308, b"", {"Location": ROOT, **NO_STORE}))
            else:
                if self.sessions.certificates:
                    self._show_certificate(scope)
                await app(scope, receive, send)

        return application

    def _show_certificate(self, scope: Scope) -> None:
        authorization = dict(scope["headers"]).get(b"authorization", b"")
        secret = bearer_token(authorization) if authorization else ""
        certificate = self.sessions.certificates.get(secret)
        if certificate is not None:
            scope["state"]["certificate"] = certificate
            scope["headers"] = [field for field in scope["headers"] if field[0] != b"authorization"]

    async def _serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            answer = await self._answer(scope, receive)
        except (StatusError, Unreachable) as error:
            answer = text(502, str(error))
        if isinstance(answer, PageAnswer):
            await _send(send, answer, head=scope["method"] == "HEAD")
        else:
            await self._feed(answer, scope["state"]["connection"], receive, send)

    async def _answer(self, scope: Scope, receive: Receive) -> PageAnswer | _OpenTab:
        headers = dict(scope["headers"])
        method, path = scope["method"], scope["path"][len(ROOT) :]
        if method not in ("GET", "HEAD") and not (
            method == "POST" and path in ("v1/login", "v1/logout")
        ):
            return text(405, "this only reads", {"Allow": "GET, HEAD"})
        site = headers.get(b"sec-fetch-site", b"none")
        if site not in (b"none", b"same-origin"):
            return text(403, "another site has no business here")
        file = self._static.answer(path)
        if file is not None:
            return file
        if not path.startswith("v1/"):
            return text(404, f"there is no such page: open {self.plane.url}{ROOT}")
        if site != b"same-origin":
            return text(403, "this is for the page itself: Sec-Fetch-Site must be same-origin")
        if method == "POST":
            if headers.get(b"origin", b"") != b"https://" + headers.get(b"host", b""):
                return text(403, "this is for the page itself: Origin must be the server's")
            if path == "v1/logout":
                return self.sessions.log_out(headers)
            return self.sessions.log_in(await _body(receive))
        query = dict(
            parse_qsl(scope["query_string"].decode(errors="replace"), keep_blank_values=True)
        )
        refusal = refused_query(query)
        if refusal is not None:
            return refusal
        login = self.sessions.find(scope["state"]["certificate"], headers)
        if isinstance(login, PageAnswer):
            # For the stream of a tab it is no error: the page shows its login form.
            message = line({"type": "ended", "says": login.body.decode().strip()})
            streams = path == "v1/stream" and login.status == 401
            return (
                PageAnswer(200, message, {"Content-Type": STREAM_TYPE, **NO_STORE})
                if streams
                else login
            )
        if not scope["state"]["connection"].authenticated(login.user):
            return text(429, f"too many connections are open for {login.account}: try again later")
        return await self._answer_query(login, path, query)

    async def _answer_query(
        self, login: Login, path: str, query: dict[str, str]
    ) -> PageAnswer | _OpenTab:
        """Raises ``StatusError`` and ``Unreachable``."""
        streams = path == "v1/stream"
        shares = self._streams if streams else self._questions
        if not shares.take(login.account, 1, login.standing):
            what = "streams are open" if streams else "questions are being answered"
            return text(503, f"too many {what} for {login.account}: try again later")
        answer: PageAnswer | _OpenTab | None = None
        try:
            own_viewer = await self.sessions.viewer(login)
            if streams:
                tab = await self.sessions.rooms.run(_opened(own_viewer, query))
                answer = tab if isinstance(tab, PageAnswer) else _OpenTab(login, tab)
            else:
                answer = await self.sessions.rooms.run(own_viewer.answer(path, query))
        finally:
            if not isinstance(answer, _OpenTab):
                shares.release(login.account)
        if isinstance(answer, _OpenTab):
            login.tabs += 1
        return answer

    async def _feed(
        self, tab: _OpenTab, connection: StreamConnection, receive: Receive, send: Send
    ) -> None:
        """Sends messages until the tab is closed or too slow, or its login ends."""
        feeding = asyncio.ensure_future(self._pass_on(tab.tab, send))
        disconnected = asyncio.ensure_future(_disconnected(receive))
        try:
            await asyncio.wait({feeding, disconnected}, return_when=asyncio.FIRST_COMPLETED)
            if feeding.done():
                feeding.result()
        except TimeoutError:
            connection.abort()
        finally:
            feeding.cancel()
            disconnected.cancel()
            tab.login.tabs -= 1
            tab.login.last_used = time.monotonic()
            self._streams.release(tab.login.account)
            self.sessions.rooms.call(tab.tab.close)

    async def _pass_on(self, tab: Tab, send: Send) -> None:
        """Raises ``TimeoutError``."""
        headers = {"Content-Type": STREAM_TYPE, **HEADERS, **NO_STORE}
        await send({"type": "http.response.start", "status": 200, "headers": _encoded(headers)})
        message = b"-"
        while message:
            message = await tab.next()
            async with asyncio.timeout(viewer.SLOW_S):
                await send(
                    {"type": "http.response.body", "body": message, "more_body": bool(message)}
                )


class _OpenTab:
    def __init__(self, login: Login, tab: Tab) -> None:
        self.login = login
        self.tab = tab


async def _opened(source: Viewer, query: dict[str, str]) -> Tab | PageAnswer:
    return source.open(query)


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _body(receive: Receive) -> bytes:
    """Returns the body of a request; empty if it is too long."""
    body = b""
    while True:
        message = await receive()
        portion: bytes = message.get("body", b"")
        body += portion
        if len(body) > BODY_MAX or message["type"] == "http.disconnect":
            return b""
        if not message.get("more_body", False):
            return body


def _encoded(headers: dict[str, str]) -> list[tuple[bytes, bytes]]:
    return [
        (name.lower().encode(), value.encode("latin-1", "replace"))
        for name, value in headers.items()
    ]


async def _send(send: Send, answer: PageAnswer, *, head: bool = False) -> None:
    headers = {**HEADERS, **answer.headers}
    if answer.status != 204:
        headers["Content-Length"] = str(len(answer.body))
    await send(
        {"type": "http.response.start", "status": answer.status, "headers": _encoded(headers)}
    )
    await send({"type": "http.response.body", "body": b"" if head else answer.body})
