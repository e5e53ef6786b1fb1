"""The whole server but for its sockets: the ASGI application over a registry that keeps nothing,
and clients of it.

A case gets a server of its own, so that it can be replayed by its number alone. The clock stands
still at ``NOW``.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, MutableMapping
from dataclasses import dataclass, field
from typing import Any
from unittest.mock import Mock
from urllib.parse import unquote

from tests.registry.conftest import begin
from tests.troubles import Troubles

from sliceplane.api.scheme import OPTIONAL_RESOURCES, RESOURCES, SERVED
from sliceplane.api.users import User
from sliceplane.kit.rng import Rng
from sliceplane.server.io.metrics import ServerMetrics
from sliceplane.server.io.nonresource.discovery import Discovery
from sliceplane.server.io.nonresource.pages import HealthChecks
from sliceplane.server.io.offload.service import OffloadService
from sliceplane.server.io.requests import app as app_module
from sliceplane.server.io.requests.app import ApiServer, Services
from sliceplane.server.io.requests.auth import Tokens
from sliceplane.server.io.requests.limits import Limits
from sliceplane.server.io.requests.reports import ReportService
from sliceplane.server.io.requests.resources import ResourceHandlers
from sliceplane.server.io.requests.timers import HubTicker, Revocation
from sliceplane.server.io.requests.watch import WatchHandler
from sliceplane.server.io.storage.committer import Committer
from sliceplane.server.io.storage.own import MemoryBackend
from sliceplane.server.registry.config import RegistryConfig
from sliceplane.server.registry.registry import Registry
from sliceplane.server.registry.types import NoTokens
from sliceplane.server.store.hub import Hub
from sliceplane.watch.io.certificates import Certificate

NOW = 1_800_000_000.0
ADMIN = User(name="fuzzer", groups=("system:masters", "system:authenticated"))
STORED = {resource.storage_key for resource in RESOURCES}


@dataclass(frozen=True, slots=True)
class Ask:
    """A request as it is on the wire; *path* and *query* are percent-encoded as far as their maker
    cared.
    """

    method: str
    path: str
    query: bytes = b""
    headers: tuple[tuple[bytes, bytes], ...] = ()
    body: bytes = b""


@dataclass
class Answer:
    code: int = 0
    headers: dict[bytes, bytes] = field(default_factory=dict)
    body: bytes = b""

    @property
    def content_type(self) -> str:
        return self.headers.get(b"content-type", b"").decode("latin-1")


SHOWN = Certificate(ADMIN, -math.inf, math.inf)


class Wire:
    """The connection of a stream: takes everything at once."""

    write_paused = False

    def __init__(self) -> None:
        self.written = bytearray()
        self.on_lost: Callable[[], None] | None = None
        self.aborted = False

    def write(self, data: bytes) -> None:
        self.written += data

    def attach(self, on_resumed: Callable[[], None], on_lost: Callable[[], None]) -> None:
        self.on_lost = on_lost

    def detach(self) -> None:
        self.on_lost = None

    def authenticated(self, user: User) -> bool:
        """Nothing here has a limit that it would widen."""
        return True

    def abort(self) -> None:
        self.aborted = True
        self.hang_up()

    def hang_up(self) -> None:
        if self.on_lost is not None:
            self.on_lost()


@dataclass
class OpenWatch:
    ask: Ask
    answer: Answer
    wire: Wire
    task: asyncio.Task[None]


class _OneToken(NoTokens):
    """Who shows "secret" is somebody without rights."""

    def __init__(self) -> None:
        self._tokens = Tokens({"secret": User(name="nobody", groups=("system:authenticated",))})

    def read(self, token: str) -> User | None:
        return self._tokens.find(token)


class Application:
    """An async context manager.  What the server logs as its own fault is in ``faults``."""

    def __init__(self, seed: int, heavy: OffloadService | None = None) -> None:
        self.store, _ = begin(0, RegistryConfig(), NOW)
        self.hub = Hub(self.store)
        trouble = Troubles()
        self.committer = Committer(
            self.store, self.hub, MemoryBackend(), trouble=trouble, on_aborted=self._on_aborted
        )
        self.registry = Registry(self.store, rng=Rng(seed), tokens=_OneToken())
        self.faults = trouble.reports
        self.watches: list[OpenWatch] = []
        # What never comes need not be waited for.
        handlers = ResourceHandlers(
            self.registry, self.store, self.committer, lambda: NOW, heavy, future_version_s=0.0
        )
        self._ticker = HubTicker(self.hub)
        self._revocation = Revocation(self.registry, lambda: NOW)
        services = Services(
            respond=handlers.respond,
            stream=WatchHandler(handlers, self.registry, self._ticker, self._revocation).respond,
            discovery=Discovery("127.0.0.1:6443", (*SERVED, *OPTIONAL_RESOURCES)),
            health=HealthChecks(),
            metrics=ServerMetrics(),
            find_user=lambda token: self.registry.authenticate(token, NOW),
            impersonate=self.registry.impersonate,
            decide=self.registry.decide,
            store=self.store,
            limits=Limits(),
            reports=ReportService(lambda: NOW),
            clock=lambda: NOW,
        )
        self.app = ApiServer(services)
        self._saved: Any = None

    def _on_aborted(self) -> None:
        self.registry.on_aborted()

    async def __aenter__(self) -> Application:
        self._saved = app_module._log
        log = Mock()
        log.error.side_effect = lambda message, **known: self.faults.append(
            f"{message}: {known.get('exc_info')!r}"
        )
        app_module._log = log
        self.committer.start()
        await self.committer.durable(
            self.registry.bootstrap(NOW)
        )  # nothing lacks: as at a second start
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.hang_up()
        self._ticker.close()
        await self.committer.close()
        assert self._saved is not None, "entered"
        app_module._log = self._saved

    async def ask(self, ask: Ask) -> Answer:
        """The answer.  A watch that stays open is kept in ``watches``, and its head is the
        answer.
        """
        answer, wire = Answer(), Wire()
        task = asyncio.create_task(self._call(ask, answer, wire))
        for _ in range(2000):
            if task.done() or wire.on_lost is not None:
                break
            await asyncio.sleep(0)
        if wire.on_lost is None:
            await asyncio.wait_for(task, 60)
        elif not task.done():
            self.watches.append(OpenWatch(ask, answer, wire, task))
        else:
            await task
        return answer

    async def whole(self, ask: Ask) -> Answer:
        """The answer to what is no watch, however long it takes."""
        answer = Answer()
        await self._call(ask, answer, Wire())
        return answer

    async def hang_up(self) -> list[OpenWatch]:
        """End every open watch; they are returned for inspection."""
        ended, self.watches = self.watches, []
        await asyncio.sleep(0)
        for watch in ended:
            watch.wire.hang_up()
        if ended:
            await asyncio.wait({watch.task for watch in ended}, timeout=60)
        for watch in ended:
            watch.task.result()
        return ended

    async def _call(self, ask: Ask, answer: Answer, wire: Wire) -> None:
        scope: dict[str, Any] = {
            "type": "http",
            "method": ask.method,
            "path": unquote(ask.path),
            "raw_path": ask.path.encode("latin-1", "replace"),
            "query_string": ask.query,
            "headers": [(name.lower(), value) for name, value in ask.headers],
            "client": ("127.0.0.1", 1),
            "state": {"certificate": SHOWN, "connection": wire},
        }
        halves = [ask.body[: len(ask.body) // 2], ask.body[len(ask.body) // 2 :]]

        async def receive() -> MutableMapping[str, Any]:
            if not halves:
                return {"type": "http.disconnect"}
            return {"type": "http.request", "body": halves.pop(0), "more_body": bool(halves)}

        async def send(message: MutableMapping[str, Any]) -> None:
            if message["type"] == "http.response.start":
                answer.code = message["status"]
                answer.headers = {bytes(name): bytes(value) for name, value in message["headers"]}
            else:
                parts.append(bytes(message.get("body", b"")))

        parts: list[bytes] = []
        try:
            await self.app(scope, receive, send)
        finally:
            answer.body += b"".join(parts)

    def check(self) -> None:
        """Every invariant that the server's parts can assert."""
        self.store.check()
        self.hub.check()
        self.registry.check()
