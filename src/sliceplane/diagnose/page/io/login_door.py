"""``/ui/`` of our own server: the page for logged-in users, with only their own rights.

A user is identified by the client certificate of the connection, by a token that was pasted once,
or by the one-time link of ``link``, which logs in as the administrator of the local kubeconfig. A
cookie then identifies the login, and the token stays in memory. The page's own requests to the
server use the user's token, or a secret that only this door maps to the user's certificate. So the
server authenticates, authorises, limits and audits them like the user's own requests. Token,
certificate and all rights are checked at each request and every ten seconds: if one of them
changed, everything read before is dropped.

Views and engines run in a thread of their own, and the server's loop forwards bytes. The page is
read-only: it serves only GET, and POST to log in and out, which needs a document of the same
origin.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import math
import secrets
import ssl
import time
from collections.abc import Awaitable, Callable, Coroutine, Hashable, MutableMapping
from http.cookies import CookieError, SimpleCookie
from typing import Any, Final
from urllib.parse import parse_qsl

from sliceplane.api.errors import StatusError
from sliceplane.api.users import AUTHENTICATED, MASTERS, User, bearer_token
from sliceplane.diagnose.page.feed import line
from sliceplane.diagnose.page.io import viewer
from sliceplane.diagnose.page.io.questions import WhatIf
from sliceplane.diagnose.page.io.rooms import Rooms
from sliceplane.diagnose.page.io.static_files import (
    HEADERS,
    NO_STORE,
    STREAM_TYPE,
    PageAnswer,
    StaticFiles,
    text,
)
from sliceplane.diagnose.page.io.viewer import WATCH_REST_S, Tab, Viewer, refused_query
from sliceplane.diagnose.page.logins import LAST_S, LINK_S, Login, LoginLink, Logins
from sliceplane.kit.io.log import get_logger
from sliceplane.kit.metrics import Metrics
from sliceplane.kit.names import check_dns_label
from sliceplane.kit.shares import Shares, Standing
from sliceplane.server.io.connections.listener import App
from sliceplane.server.io.keys.pki import ADMIN_GROUP, ADMIN_NAME
from sliceplane.server.io.plane import ServerPlane
from sliceplane.server.io.requests.request import StreamConnection
from sliceplane.server.registry.types import Attributes
from sliceplane.watch.io.base import Unreachable
from sliceplane.watch.io.certificates import Certificate
from sliceplane.watch.io.connection import Connection, bearer
from sliceplane.watch.io.http.client import HttpClient
from sliceplane.watch.io.service import ServiceContext

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Any]]
Send = Callable[[Any], Awaitable[None]]

ROOT: Final = "/ui/"
COOKIE: Final = "__Host-sliceplane-ui"
#: seconds between checks of the logins
PERIOD_S: Final = 10.0
BODY_MAX: Final = 32 * 1024
#: streams of all logins, and of one account
STREAMS_MAX: Final = 256
STREAMS_EACH_MAX: Final = 64
#: concurrent queries (trace, what-if), of all logins and of one account
QUESTIONS_MAX: Final = 12
QUESTIONS_EACH_MAX: Final = 3
SERVICE_ACCOUNT: Final = "system:serviceaccount:"

_log = get_logger("page")


class LoginDoor:
    """A ``PlaneService`` around the application of *plane*, which is set before the start."""

    name = "page"

    def __init__(self, what_if: WhatIf) -> None:
        self.plane: ServerPlane
        self._what_if = what_if
        self._static = StaticFiles()
        self._logins = Logins()
        #: no secret has this digest
        self._link = LoginLink(b"", 0.0)
        #: by account, for all of its logins
        self._streams = Shares(STREAMS_MAX, most_each=STREAMS_EACH_MAX)
        self._questions = Shares(QUESTIONS_MAX, most_each=QUESTIONS_EACH_MAX)
        self._metrics = Metrics()
        shared = {
            "logins": self._logins.shares,
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
        #: secret of the page's own requests for a certificate's login -> the certificate
        self._certificates: dict[str, Certificate] = {}
        self._rooms = Rooms()
        self._reviewing: asyncio.Task[None] | None = None
        self._stopping: set[asyncio.Task[None]] = set()

    def link(self) -> str:
        """Returns a URL that logs in once, within ``LINK_S``. The secret is in the fragment, which
        browsers send to no server and in no Referer; only its digest is kept. An earlier link
        becomes invalid.
        """
        secret = secrets.token_urlsafe(16)
        self._link = LoginLink(_digest(secret), time.monotonic() + LINK_S)
        return f"{self.plane.url}{ROOT}#login={secret}"

    # As a service

    async def start(self, context: ServiceContext) -> None:
        context.add_samples(self._metrics.families)
        self._reviewing = asyncio.create_task(self._review_periodically())

    async def drain(self) -> None: ...

    async def stop(self) -> None:
        if self._reviewing is not None:
            self._reviewing.cancel()
        for login in self._logins:
            self._end(login, "the server stops")
        await asyncio.gather(*self._stopping, return_exceptions=True)
        await self._rooms.close()

    # Requests

    def around(self, app: App) -> App:
        async def application(scope: Scope, receive: Receive, send: Send) -> None:
            path = scope["path"]
            if path == ROOT or path.startswith(ROOT):
                await self._serve(scope, receive, send)
            elif path == ROOT.rstrip("/"):
                await _send(send, PageAnswer(308, b"", {"Location": ROOT, **NO_STORE}))
            else:
                if self._certificates:
                    self._show_certificate(scope)
                await app(scope, receive, send)

        return application

    def _show_certificate(self, scope: Scope) -> None:
        authorization = dict(scope["headers"]).get(b"authorization", b"")
        certificate = self._certificates.get(bearer_token(authorization)) if authorization else None
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
            return await self._log_in(receive) if path == "v1/login" else self._log_out(headers)
        query = dict(
            parse_qsl(scope["query_string"].decode(errors="replace"), keep_blank_values=True)
        )
        refusal = refused_query(query)
        if refusal is not None:
            return refusal
        login = self._login_of(scope, headers)
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
            own_viewer = await self._viewer(login)
            if streams:
                tab = await self._rooms.run(_opened(own_viewer, query))
                answer = tab if isinstance(tab, PageAnswer) else _OpenTab(login, tab)
            else:
                answer = await self._rooms.run(own_viewer.answer(path, query))
        finally:
            if not isinstance(answer, _OpenTab):
                shares.release(login.account)
        if isinstance(answer, _OpenTab):
            login.tabs += 1
        return answer

    # Logins

    async def _log_in(self, receive: Receive) -> PageAnswer:
        body = await _body(receive)
        try:
            form = json.loads(body)
            if "link" in form:
                return self._follow_link(_digest(form["link"].strip()))
            token, namespace = form["token"].strip(), form.get("namespace", "").strip()
        except (ValueError, TypeError, KeyError, AttributeError):
            return text(400, 'the body is {"token": "...", "namespace": "..."} or {"link": "..."}')
        if namespace and (problems := check_dns_label(namespace)):
            return text(400, f"namespace {problems[0]}")
        user = self.plane.registry.authenticate(token, self.plane.clock()) if token else None
        if user is None:
            return text(401, "this token is not known here, or its time is over")
        return self._begin(user, namespace or _own_namespace(user), token=token)

    def _follow_link(self, digest: bytes) -> PageAnswer:
        now = time.monotonic()
        if self._link.is_limited(now):
            return text(
                429, "too many links were tried: try again in a few seconds, or log in with a token"
            )
        why = self._link.redeem(digest, now)
        if why:
            _log.warning("a link was refused at the page", why=why)
            return text(401, f"{why}; log in with a token")
        user = User(name=ADMIN_NAME, groups=(ADMIN_GROUP, AUTHENTICATED))
        return self._begin(user, "default", certificate=Certificate(user, 0.0, math.inf))

    def _begin(
        self, user: User, namespace: str, *, token: str = "", certificate: Certificate | None = None
    ) -> PageAnswer:
        """Begins a login that a cookie identifies."""
        secret = secrets.token_urlsafe(32)
        login = self._new_login(
            _digest(secret), user, namespace, token=token, certificate=certificate
        )
        refusal = self._admit(login)
        if refusal is not None:
            return refusal
        _log.info("logged in at the page", user=user.name, by="token" if token else "link")
        attributes = f"Path=/; Secure; HttpOnly; SameSite=Strict; Max-Age={int(LAST_S)}"
        return PageAnswer(204, b"", {"Set-Cookie": f"{COOKIE}={secret}; {attributes}", **NO_STORE})

    def _log_out(self, headers: dict[bytes, bytes]) -> PageAnswer:
        login = self._logins.find(_digest(_cookie(headers)), time.monotonic())
        if login is not None:
            self._end(login, "you have logged out")
        expired = f"{COOKIE}=; Path=/; Secure; HttpOnly; SameSite=Strict; Max-Age=0"
        return PageAnswer(204, b"", {"Set-Cookie": expired, **NO_STORE})

    def _login_of(self, scope: Scope, headers: dict[bytes, bytes]) -> Login | PageAnswer:
        """Returns the login of the request, after a check of its rights."""
        now = time.monotonic()
        certificate: Certificate | None = scope["state"]["certificate"]
        if certificate is not None and certificate.counts(self.plane.clock()):
            login = self._logins.find(certificate, now)
            if login is None:
                login = self._new_login(
                    certificate, certificate.user, "default", certificate=certificate
                )
                refusal = self._admit(login)
                if refusal is not None:
                    return refusal
        else:
            login = self._logins.find(_digest(_cookie(headers)), now)
            if login is None:
                return text(401, "log in")
        why = self._review(login)
        return login if not why else text(401, why)

    def _new_login(
        self,
        key: Hashable,
        user: User,
        namespace: str,
        *,
        token: str = "",
        certificate: Certificate | None = None,
    ) -> Login:
        return Login(
            key,
            user,
            user.name,
            namespace,
            time.monotonic(),
            standing=self._standing(user),
            token=token,
            certificate=certificate,
        )

    def _standing(self, user: User) -> Standing:
        """Returns the standing: administrators come before accounts that read the whole cluster,
        and these before all others.
        """
        decide = self.plane.registry.decide
        if (
            MASTERS in user.groups
            or decide(user, Attributes(verb="*", group="*", resource="*")).allowed
        ):
            return "exempt"
        return (
            "vital"
            if decide(user, Attributes(verb="list", resource="services")).allowed
            else "ordinary"
        )

    def _admit(self, login: Login) -> PageAnswer | None:
        try:
            ended = self._logins.admit(login, time.monotonic())
        except OverflowError as error:
            return text(503, str(error))
        for other in ended:
            self._drop(other, {"type": "ended", "says": "another login needed the room"})
        login.rights = self.plane.registry.rights(login.user)
        return None

    def _review(self, login: Login) -> str:
        """Checks *login*. Returns why it has ended; "" if it has not. Drops everything read with
        other rights.
        """
        now = self.plane.clock()
        user: User | None = login.user
        if login.certificate is not None:
            why = "" if login.certificate.counts(now) else "the time of the certificate is over"
        else:
            user = self.plane.registry.authenticate(login.token, now)
            why = "" if user == login.user else "the token is worth nothing any more"
        if not why and self._logins.is_over(login, time.monotonic()):
            why = "the time of the login is over"
        if why:
            self._end(login, why)
            return why
        rights = self.plane.registry.rights(login.user)
        if rights != login.rights:
            login.rights = rights
            self._drop(login, {"type": "dropped"})
        return ""

    async def _review_periodically(self) -> None:
        while True:
            await asyncio.sleep(PERIOD_S)
            for login in self._logins:
                self._review(login)

    def _end(self, login: Login, why: str) -> None:
        self._logins.end(login)
        self._drop(login, {"type": "ended", "says": why})

    # The viewer of a login

    async def _viewer(self, login: Login) -> Viewer:
        """Returns the login's viewer, created by the first request. Raises ``StatusError`` and
        ``Unreachable``.
        """
        if login.viewer is None:
            login.viewer = asyncio.ensure_future(self._rooms.run(self._build_viewer(login)))
        starting = login.viewer
        try:
            return await asyncio.shield(starting)
        except BaseException:
            if login.viewer is starting and starting.done():
                login.viewer = None
            raise

    def _build_viewer(self, login: Login) -> Coroutine[Any, Any, Viewer]:
        secret = login.token
        if login.certificate is not None:
            secret = secrets.token_urlsafe(32)
            self._certificates[secret] = login.certificate
        context = ssl.create_default_context(cafile=self.plane.pki.ca_file)
        connection = Connection(
            server=self.plane.url, ssl_context=context, credentials=bearer(secret)
        )
        served_by = asyncio.get_running_loop()
        hello = {
            "server": self.plane.url,
            "user": login.user.name,
            "cookie": isinstance(login.key, bytes),
        }

        async def make() -> Viewer:
            created = Viewer(
                lambda: HttpClient(connection, read_only=True, watch_rest_s=WATCH_REST_S),
                self._what_if,
                hello,
                namespace="",
                fallback=login.namespace,
                served_by=served_by,
            )
            try:
                await created.start()
            except BaseException:
                await created.stop()
                raise
            return created

        return make()

    def _drop(self, login: Login, last: dict[str, str]) -> None:
        """Drops everything that was read for *login*."""
        viewer, login.viewer = login.viewer, None
        for secret in [
            secret
            for secret, certificate in self._certificates.items()
            if certificate is login.certificate
        ]:
            del self._certificates[secret]
        if viewer is None:
            return

        async def stop_viewer() -> None:
            with contextlib.suppress(StatusError, Unreachable, asyncio.CancelledError):
                await self._rooms.run((await viewer).stop(last))

        task = asyncio.create_task(stop_viewer())
        self._stopping.add(task)
        task.add_done_callback(self._stopping.discard)

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
            self._rooms.call(tab.tab.close)

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


def _cookie(headers: dict[bytes, bytes]) -> str:
    try:
        cookies = SimpleCookie(headers.get(b"cookie", b"").decode("latin-1"))
    except CookieError:
        return ""
    return cookies[COOKIE].value if COOKIE in cookies else ""


def _digest(secret: str) -> bytes:
    return hashlib.sha256(secret.encode()).digest()


def _own_namespace(user: User) -> str:
    return user.name.split(":")[2] if user.name.startswith(SERVICE_ACCOUNT) else "default"


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
