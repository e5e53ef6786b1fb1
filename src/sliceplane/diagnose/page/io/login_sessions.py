"""Logins of users at the page of our own server: how they begin and end, and what is read for them.

A user logs in by the client certificate of the connection, by a token that was pasted once, or by
the one-time link of ``link``, which logs in as the administrator of the local kubeconfig. A cookie
then identifies the login, and the token stays in memory. The page's own requests to the server use
the user's token, or a secret that only this server maps to the user's certificate. Token,
certificate and all rights are checked at each request and every ten seconds: if one of them
changed, everything read before is dropped.

Views and engines run in a thread of their own (``rooms``).
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
from collections.abc import Coroutine, Hashable
from http.cookies import CookieError, SimpleCookie
from typing import Any, Final

from sliceplane.api.errors import StatusError
from sliceplane.api.users import AUTHENTICATED, MASTERS, User
from sliceplane.diagnose.page.io.questions import WhatIf
from sliceplane.diagnose.page.io.rooms import Rooms
from sliceplane.diagnose.page.io.static_files import NO_STORE, PageAnswer, text
from sliceplane.diagnose.page.io.viewer import WATCH_REST_S, Viewer
from sliceplane.diagnose.page.logins import LAST_S, LINK_S, Login, LoginLink, Logins
from sliceplane.kit.io.log import get_logger
from sliceplane.kit.names import check_dns_label
from sliceplane.kit.shares import Shares, Standing
from sliceplane.server.io.keys.pki import ADMIN_GROUP, ADMIN_NAME
from sliceplane.server.io.plane import ServerPlane
from sliceplane.server.registry.types import Attributes
from sliceplane.watch.io.base import Unreachable
from sliceplane.watch.io.certificates import Certificate
from sliceplane.watch.io.connection import Connection, bearer
from sliceplane.watch.io.http.client import HttpClient

COOKIE: Final = "__Host-sliceplane-ui"
#: seconds between checks of the logins
PERIOD_S: Final = 10.0
SERVICE_ACCOUNT: Final = "system:serviceaccount:"

_log = get_logger("page")


class LoginSessions:
    """Owned by one door. *root*: the path of the page."""

    def __init__(self, what_if: WhatIf, root: str) -> None:
        self.plane: ServerPlane
        self.rooms = Rooms()
        self._root = root
        self._what_if = what_if
        self._logins = Logins()
        #: no secret has this digest
        self._link = LoginLink(b"", 0.0)
        #: secret of the page's own requests for a certificate's login -> the certificate
        self.certificates: dict[str, Certificate] = {}
        self._reviewing: asyncio.Task[None] | None = None
        self._stopping: set[asyncio.Task[None]] = set()

    @property
    def shares(self) -> Shares:
        """Logins by account."""
        return self._logins.shares

    def start(self, plane: ServerPlane) -> None:
        self.plane = plane
        self._reviewing = asyncio.create_task(self._review_periodically())

    async def stop(self) -> None:
        if self._reviewing is not None:
            self._reviewing.cancel()
        for login in self._logins:
            self._end(login, "the server stops")
        await asyncio.gather(*self._stopping, return_exceptions=True)
        await self.rooms.close()

    # Beginnings and ends

    def link(self) -> str:
        """Returns a URL that logs in once, within ``LINK_S``. The secret is in the fragment, which
        browsers send to no server and in no Referer; only its digest is kept. An earlier link
        becomes invalid.
        """
        secret = secrets.token_urlsafe(16)
        self._link = LoginLink(_digest(secret), time.monotonic() + LINK_S)
        return f"{self.plane.url}{self._root}#login={secret}"

    def log_in(self, body: bytes) -> PageAnswer:
        """Begins the login that the *body* of a request asks for: with a token, or by the link."""
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

    def log_out(self, headers: dict[bytes, bytes]) -> PageAnswer:
        login = self._logins.find(_digest(_cookie(headers)), time.monotonic())
        if login is not None:
            self._end(login, "you have logged out")
        expired = f"{COOKIE}=; Path=/; Secure; HttpOnly; SameSite=Strict; Max-Age=0"
        return PageAnswer(204, b"", {"Set-Cookie": expired, **NO_STORE})

    def find(
        self, certificate: Certificate | None, headers: dict[bytes, bytes]
    ) -> Login | PageAnswer:
        """Returns the login of a request, by the *certificate* of its connection or its cookie,
        after a check of its rights; or the answer to a request without one.
        """
        now = time.monotonic()
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

    # Viewers

    async def viewer(self, login: Login) -> Viewer:
        """Returns the login's viewer, created by the first request. Raises ``StatusError`` and
        ``Unreachable``.
        """
        if login.viewer is None:
            login.viewer = asyncio.ensure_future(self.rooms.run(self._build_viewer(login)))
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
            self.certificates[secret] = login.certificate
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
            for secret, certificate in self.certificates.items()
            if certificate is login.certificate
        ]:
            del self.certificates[secret]
        if viewer is None:
            return

        async def stop_viewer() -> None:
            with contextlib.suppress(StatusError, Unreachable, asyncio.CancelledError):
                await self.rooms.run((await viewer).stop(last))

        task = asyncio.create_task(stop_viewer())
        self._stopping.add(task)
        task.add_done_callback(self._stopping.discard)


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
