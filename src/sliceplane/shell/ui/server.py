"""The page's own server: on loopback, for whoever knows its URL.

The path begins with a secret, the Host must be exactly the address that was printed (a name that leads here by DNS is
refused), and what has data answers only to requests that the browser marks as of the same origin.  There are no cookies
and no CORS, so that a page of another origin can send nothing and read nothing.  Only GET and HEAD are answered.

``GET v1/stream?view=...`` is the one stream of a tab: lines of JSON, ``hello``, then ``view`` and ``delta``
(``page.feed``), and a ``beat`` each second with the time until which all of it is known to be so.  A tab that does not
take a message in time, or missed more than is remembered, is told so and closed; it loads the view anew.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import secrets
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from importlib.resources import files
from typing import TYPE_CHECKING, Any, Final

from sliceplane.page.feed import line
from sliceplane.shell.transport.http import HttpClient
from sliceplane.shell.ui.hub import Topic, ViewHub
from sliceplane.shell.ui.live import LiveCluster
from sliceplane.shell.ui.questions import WHAT_IFS_MAX, Questions, WhatIf

if TYPE_CHECKING:
    from aiohttp import web

    from sliceplane.shell.transport.kubeconfig import Connection

TABS_MAX: Final = 64
BEAT_S: Final = 1.0
#: a tab that takes no message for so long is closed
SLOW_S: Final = 10.0
PARAMETER_MAX: Final = 600
#: what comes within that time is read in one go; tabs are told no oftener
WATCH_REST_S: Final = 0.2
TYPES: Final = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
HEADERS: Final = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
    "connect-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'; "
    "require-trusted-types-for 'script'; trusted-types 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}
NO_STORE: Final = {"Cache-Control": "no-store"}
IMMUTABLE: Final = {"Cache-Control": "public, max-age=31536000, immutable"}


class StaticFiles:
    """What the page is made of.  ``digest`` is of all names and contents, and stands in every path."""

    def __init__(self) -> None:
        folder = files("sliceplane.shell.ui") / "static"
        self.files: dict[str, bytes] = {}
        for found in (folder, folder / "vendor"):
            prefix = "" if found is folder else "vendor/"
            for entry in found.iterdir():
                if entry.is_file() and any(entry.name.endswith(ending) for ending in TYPES):
                    self.files[prefix + entry.name] = entry.read_bytes()
        whole = hashlib.sha256()
        for name in sorted(self.files):
            whole.update(f"{name}\0{len(self.files[name])}\0".encode() + self.files[name])
        self.digest = whole.hexdigest()[:16]
        self.index = self.files.pop("index.html").replace(b"DIGEST", self.digest.encode())


class PageServer:
    """Answers requests.  *hub* makes what is shown; *port* is known once something listens."""

    def __init__(self, live: LiveCluster, hub: ViewHub, questions: Questions, server: str) -> None:
        self.secret = secrets.token_urlsafe(16)
        self.port = 0
        self._live = live
        self._hub = hub
        self._questions = questions
        self._server = server
        self._static = StaticFiles()
        self._tabs = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/{self.secret}/"

    async def answer(self, request: web.BaseRequest) -> web.StreamResponse:
        refusal = self._refusal(request)
        if refusal is not None:
            return refusal
        path = request.path.split("/", 2)[2]
        folder, _, name = path.partition("/")
        if not path:
            return _response(200, self._static.index, {"Content-Type": TYPES[".html"], **NO_STORE})
        if folder == self._static.digest and name in self._static.files:
            kind = TYPES[name[name.rindex(".") :]]
            return _response(200, self._static.files[name], {"Content-Type": kind, **IMMUTABLE})
        if request.headers.get("Sec-Fetch-Site") != "same-origin":
            return _text(403, "this is for the page itself: Sec-Fetch-Site must be same-origin")
        if any(len(value) > PARAMETER_MAX for value in request.query.values()):
            return _text(400, f"a parameter is longer than {PARAMETER_MAX} characters")
        if path == "v1/stream":
            return await self._stream(request)
        if path == "v1/trace":
            return await self._trace(request)
        if path == "v1/what-if":
            return await self._what_if(request)
        return _text(404, "there is no such page")

    def _refusal(self, request: web.BaseRequest) -> web.Response | None:
        if request.headers.get("Host", "") != f"127.0.0.1:{self.port}":
            return _text(421, f"this is http://127.0.0.1:{self.port}, and nothing else")
        if request.method not in ("GET", "HEAD"):
            return _text(405, "this only reads", {"Allow": "GET, HEAD"})
        first = request.path.split("/", 2)[1:2]
        if not first or not hmac.compare_digest(first[0].encode(), self.secret.encode()) or request.path.count("/") < 2:
            return _text(404, "there is no such page: the whole URL is printed by 'sliceplane ui'")
        # The document is opened from a terminal or a bookmark ("none"); no other site leads here, or loads a part.
        if request.headers.get("Sec-Fetch-Site", "none") not in ("none", "same-origin"):
            return _text(403, "another site has no business here")
        return None

    async def _trace(self, request: web.BaseRequest) -> web.Response:
        query = request.query
        asked = ("trace", *(query.get(name, "") for name in ("from", "to", "protocol", "node")))
        if asked[3] not in ("", "tcp", "udp", "sctp"):
            return _text(400, "protocol is one of tcp, udp, sctp")
        answered = await self._questions.ask((*asked, query.get("namespace") or self._live.namespace or "default"))
        return _response(200, line(answered.part()), {"Content-Type": "application/json", **NO_STORE})

    async def _what_if(self, request: web.BaseRequest) -> web.Response:
        namespace, _, name = request.query.get("service", "").partition("/")
        settings = request.query.get("set", "").split()
        if not namespace or not name or "/" in name:
            return _text(400, "service is NAMESPACE/NAME")
        answered = await self._questions.ask_what_if(("what-if", namespace, name, *settings))
        if answered is None:
            return _text(503, f"{WHAT_IFS_MAX} questions of this kind are being worked out: ask again in a while")
        return _response(200, line(answered.part()), {"Content-Type": "application/json", **NO_STORE})

    async def _stream(self, request: web.BaseRequest) -> web.StreamResponse:
        if self._tabs >= TABS_MAX:
            return _text(503, f"{TABS_MAX} tabs are open, and that is the most")
        try:
            key, topic = self._hub.enter(request.query)
        except ValueError as error:
            return _text(400, str(error))
        self._tabs += 1
        try:
            return await self._feed(request, topic)
        finally:
            self._tabs -= 1
            self._hub.leave(key)

    async def _feed(self, request: web.BaseRequest, topic: Topic) -> web.StreamResponse:
        from aiohttp import web

        response = web.StreamResponse(headers={"Content-Type": "application/x-ndjson", **HEADERS, **NO_STORE})
        try:
            await response.prepare(request)
            await _send(response, line({"type": "hello", "server": self._server, "namespace": self._live.namespace}))
            number: int | None = 0
            while number is not None:
                await topic.changed(number, BEAT_S)
                number = await self._tell(response, topic, number)
        except TimeoutError:
            if request.transport is not None:
                request.transport.abort()
        except ConnectionError:
            pass  # the tab was closed
        return response

    async def _tell(self, response: web.StreamResponse, topic: Topic, number: int) -> int | None:
        """What the tab has not seen since message *number*, and the beat.  The number that it has seen then; ``None``:
        it missed too much."""
        reached = topic.feed.number
        missed = (topic.feed.whole(),) if not number else topic.feed.after(number)
        if missed is None:
            await _send(response, line({"type": "anew"}))
            return None
        beat = {
            "type": "beat",
            "at": self._live.current(),
            "sent": self._live.now(),
            "troubles": self._live.troubles(),
        }
        await _send(response, b"".join((*missed, line(beat))))
        return reached


async def _send(response: web.StreamResponse, message: bytes) -> None:
    async with asyncio.timeout(SLOW_S):
        await response.write(message)


def _response(status: int, body: bytes, headers: dict[str, str]) -> web.Response:
    from aiohttp import web

    return web.Response(status=status, body=body, headers={**HEADERS, **headers})


def _text(status: int, sentence: str, headers: dict[str, str] | None = None) -> web.Response:
    kind = {"Content-Type": "text/plain; charset=utf-8"}
    return _response(status, f"{sentence}\n".encode(), {**kind, **NO_STORE, **(headers or {})})


@asynccontextmanager
async def page(connection: Connection, namespace: str, port: int, what_if: WhatIf) -> AsyncIterator[PageServer]:
    """The page of the cluster of *connection*, on 127.0.0.1, while the context lasts.  *namespace*: only what is in
    it; *port* 0: a free one; *what_if* answers that question.

    Raises ``OSError``, ``StatusError`` and ``Unreachable``."""
    from aiohttp import web

    connect: Callable[[], Any] = lambda: HttpClient(connection, read_only=True, watch_rest_s=WATCH_REST_S)  # noqa: E731  # of each loop its own
    async with connect() as client:
        live = LiveCluster(client, namespace, connection.namespace)
        try:
            await live.start()
            questions = Questions(connect, live.now, live.namespace, what_if)
            questions.start()
            hub = ViewHub(live, questions)
            looking = asyncio.create_task(hub.run())
            made = PageServer(live, hub, questions, connection.server)
            server = web.Server(made.answer, access_log=None)
            try:
                listening = await asyncio.get_running_loop().create_server(server, "127.0.0.1", port)
                made.port = listening.sockets[0].getsockname()[1]
                yield made
                listening.close()
            finally:
                looking.cancel()
                await server.shutdown(1.0)
                await questions.stop()
        finally:
            await live.stop()
