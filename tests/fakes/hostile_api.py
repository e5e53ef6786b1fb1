"""An API server that lies: raw sockets that answer as a stranger's server may, for clients that
must survive it.

``HostileApi`` runs in a thread of its own, so a command under test may block or run a loop of its
own. It serves a healthy cluster (``tests.diagnose.explain.world``), except for its *behaviour*, one of
``BEHAVIOURS``. It counts requests, and keeps what reaches its second listener, ``elsewhere``:
another origin, where no client has business.

    with HostileApi("endless-pages") as api:
        run("lint", "--kubeconfig", api.kubeconfig(folder))
"""

from __future__ import annotations

import asyncio
import json
import ssl
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self
from urllib.parse import parse_qsl, unquote, urlsplit

from tests.diagnose.explain.world import healthy
from tests.fakes.fake_api import FakeApi

from sliceplane.api.errors import StatusError
from sliceplane.api.requests import Selection
from sliceplane.api.scheme import RESOURCES, Resource, Services
from sliceplane.consume.progress import (
    ANNOTATION_PROGRESS,
    COMPONENT,
    LABEL_COMPONENT,
    LEASE_NAMESPACE,
)
from sliceplane.slices.removing.guard import REASON_RETAINED

TOKEN: Final = "a-secret-of-the-kubeconfig"
#: colour, window title, clipboard, carriage return, C1, bidirectional override, and a line that
#: looks like ours
PAYLOAD: Final = (
    "\x1b[31mred\x1b]0;owned\x07\x1b]52;c;b3duZWQ=\x07\r\x9b2J\u202eoverride\u2066\nready "
    "https://evil.example"
)
SERVICES: Final = Selection(Services)
#: of an answer in chunks
WATCH_HEAD: Final = (
    b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n"
)
_BY_PATH: Final = {
    (f"apis/{row.group}/{row.version}" if row.group else f"api/{row.version}", row.plural): row
    for row in RESOURCES
}


class Exchange:
    """One request, and the way to answer it."""

    def __init__(self, api: HostileApi, head: bytes, writer: asyncio.StreamWriter) -> None:
        line, *fields = head.decode("latin-1").rstrip().split("\r\n")
        self.api = api
        self.method, target, _ = line.split(" ", 2)
        self.headers = {
            name.lower(): value.strip()
            for name, _, value in (text.partition(":") for text in fields)
        }
        parts = urlsplit(target)
        self.target = target
        self.query = dict(parse_qsl(parts.query))
        self._writer = writer
        steps = unquote(parts.path).strip("/").split("/")
        version = "/".join(steps[: 3 if steps[0] == "apis" else 2])
        rest = steps[version.count("/") + 1 :]
        self.namespace = ""
        if rest[:1] == ["namespaces"] and len(rest) > 2:
            self.namespace, rest = rest[1], rest[2:]
        self.resource: Resource | None = _BY_PATH.get((version, rest[0])) if rest else None
        self.name = rest[1] if len(rest) > 1 else ""

    @property
    def is_watch(self) -> bool:
        return self.query.get("watch") == "true"

    @property
    def is_list(self) -> bool:
        return (
            self.resource is not None
            and not self.name
            and not self.is_watch
            and self.method == "GET"
        )

    @property
    def selection(self) -> Selection:
        assert self.resource is not None, "only paths of a resource select objects"
        return Selection(
            self.resource,
            self.namespace,
            self.query.get("labelSelector", ""),
            self.query.get("fieldSelector", ""),
        )

    def documents(self) -> list[dict[str, Any]]:
        """The honest items of a list; all of the resource where the selectors are none."""
        try:
            items = self.api.store.list(self.selection).items
        except StatusError:
            assert self.resource is not None, "only a resource is listed"
            items = self.api.store.list(Selection(self.resource)).items
        return [json.loads(item) for item in items]

    async def send(self, data: bytes) -> None:
        self._writer.write(data)
        self.api.sent_bytes += len(data)
        await self._writer.drain()

    async def reply(self, status: int, body: Any, *fields: str) -> None:
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        lines = [
            f"HTTP/1.1 {status} X",
            "Content-Type: application/json",
            f"Content-Length: {len(data)}",
            *fields,
        ]
        await self.send("\r\n".join(lines).encode() + b"\r\n\r\n" + data)

    async def list_of(self, items: list[Any], **metadata: Any) -> None:
        await self.reply(200, {"metadata": {"resourceVersion": "1000", **metadata}, "items": items})

    async def chunk(self, data: bytes) -> None:
        await self.send(f"{len(data):x}\r\n".encode() + data + b"\r\n")

    async def event(self, kind: str, document: Any) -> None:
        await self.chunk(json.dumps({"type": kind, "object": document}).encode() + b"\n")

    async def bookmark(self, version: str) -> None:
        assert self.resource is not None, "only a resource is watched"
        await self.event(
            "BOOKMARK", {"kind": self.resource.kind, "metadata": {"resourceVersion": version}}
        )

    async def status(self, code: int, message: str, *fields: str, **more: Any) -> None:
        body = {
            "kind": "Status",
            "apiVersion": "v1",
            "status": "Failure",
            "message": message,
            "code": code,
            **more,
        }
        await self.reply(code, body, *fields)


Behaviour = Callable[[Exchange], Awaitable[None]]
BEHAVIOURS: Final[dict[str, Behaviour]] = {}


def behaviour(function: Behaviour) -> Behaviour:
    BEHAVIOURS[function.__name__.replace("_", "-")] = function
    return function


@behaviour
async def honest(exchange: Exchange) -> None:
    resource = exchange.resource
    if exchange.target.startswith("/version"):
        await exchange.reply(200, {"major": "1", "minor": "34", "gitVersion": "v1.34.0"})
    elif exchange.target.startswith("/readyz"):
        await exchange.reply(200, b"[+]ping ok\nreadyz check passed\n")
    elif exchange.target.startswith("/metrics"):
        await exchange.reply(200, b"# TYPE up gauge\nup 1\n")
    elif resource is None or exchange.method != "GET":
        await exchange.status(404, "there is no such page", reason="NotFound")
    elif exchange.is_watch:
        await exchange.send(WATCH_HEAD)
        await exchange.bookmark("1000")
        await asyncio.sleep(3600)
    elif exchange.is_list:
        await exchange.list_of(exchange.documents())
    else:
        named = [item for item in exchange.documents() if item["metadata"]["name"] == exchange.name]
        if named:
            await exchange.reply(
                200, {**named[0], "kind": resource.kind, "apiVersion": resource.api_version}
            )
        else:
            await exchange.status(
                404, f'{resource.plural} "{exchange.name}" not found', reason="NotFound"
            )


class HostileApi:
    """See the module.  *tls*: the context of a server, for https.  Ended by the ``with`` block."""

    def __init__(self, behaves: str, tls: ssl.SSLContext | None = None) -> None:
        from tests.fakes import hostile_answers  # which imports this module

        self.behaviour = hostile_answers.BEHAVIOURS[behaves]
        self.store = _store()
        self.port = self.elsewhere_port = 0
        #: moves with what a behaviour says
        self.revision = 1000
        self.sent_bytes = 0
        self.requests: list[tuple[str, str]] = []
        #: heads of the requests that came to the other origin
        self.elsewhere: list[bytes] = []
        self._tls = tls
        self._loop: asyncio.AbstractEventLoop
        self._handlers: set[asyncio.Task[None]] = set()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._listening = threading.Event()
        self._ended = asyncio.Event()

    def __enter__(self) -> Self:
        self._thread.start()
        self._listening.wait(10)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        with suppress(RuntimeError):  # it has ended already
            self._loop.call_soon_threadsafe(self._ended.set)
        self._thread.join()

    @property
    def url(self) -> str:
        return f"http{'s' if self._tls else ''}://127.0.0.1:{self.port}"

    def kubeconfig(self, folder: Path, **cluster: Any) -> str:
        """The path of one that leads here, with a token."""
        path = folder / f"kubeconfig-{self.port}"
        document = {
            "current-context": "c",
            "contexts": [
                {"name": "c", "context": {"cluster": "c", "user": "u", "namespace": "shop"}}
            ],
            "clusters": [{"name": "c", "cluster": {"server": self.url, **cluster}}],
            "users": [{"name": "u", "user": {"token": TOKEN}}],
        }
        path.write_text(json.dumps(document))
        return str(path)

    def _run(self) -> None:
        self._loop = asyncio.new_event_loop()
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_until_complete(self._serve())
        finally:
            self._loop.close()

    async def _serve(self) -> None:
        server = await asyncio.start_server(
            self._handle, "127.0.0.1", 0, ssl=self._tls, limit=1 << 21
        )
        other = await asyncio.start_server(self._note, "127.0.0.1", 0)
        self.port, self.elsewhere_port = (
            each.sockets[0].getsockname()[1] for each in (server, other)
        )
        self._listening.set()
        await self._ended.wait()
        # A connection that is being accepted is a task of the loop until its handler is one; its
        # socket is lost if the server is closed before.
        own = asyncio.current_task()
        while any(task is not own for task in asyncio.all_tasks() - self._handlers):
            await asyncio.sleep(0)
        server.close()
        other.close()
        while self._handlers:
            for task in self._handlers:
                task.cancel()
            await asyncio.wait(self._handlers, timeout=0.01)
        await asyncio.sleep(0)  # a transport that was aborted closes its socket in the next turn
        await asyncio.sleep(0)

    @contextmanager
    def _handling(self, writer: asyncio.StreamWriter) -> Iterator[None]:
        """Registers this task until the connection has ended or the task is cancelled."""
        task = asyncio.current_task()
        assert task is not None, "a handler is a task"
        self._handlers.add(task)
        try:
            with suppress(
                asyncio.IncompleteReadError,
                asyncio.LimitOverrunError,
                OSError,
                asyncio.CancelledError,
            ):
                yield
        finally:
            self._handlers.discard(task)
            if writer.transport is not None:
                writer.transport.abort()

    async def _handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with self._handling(writer):
            while True:
                exchange = Exchange(self, await reader.readuntil(b"\r\n\r\n"), writer)
                await reader.readexactly(int(exchange.headers.get("content-length", "0")))
                self.requests.append((exchange.method, exchange.target))
                await self.behaviour(exchange)

    async def _note(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Reads a request to the other origin. What is not ours asks the program that had the port
        before: peers of an etcd of another test, say.
        """
        with self._handling(writer):
            head = await reader.readuntil(b"\r\n\r\n")
            if b"\r\nUser-Agent: sliceplane" in head:
                self.elsewhere.append(head)


def honest_document(kind: str) -> dict[str, Any]:
    """One object of *kind* as an honest server has it."""
    found: dict[str, Any] = next(healthy().all(kind))
    return found


def _store() -> FakeApi:
    world = healthy()
    held = {
        "type": REASON_RETAINED,
        "status": "True",
        "reason": "Held",
        "message": "3 endpoints",
        "lastTransitionTime": "2026-01-01T00:00:00Z",
    }
    world.get("Service", "shop", "cart")["status"]["conditions"] = [held]
    store = FakeApi()
    rows = {row.key: row for row in RESOURCES}
    for key, documents in world.documents.items():
        for document in documents.values():
            metadata = document["metadata"]
            store.put(rows[key], metadata.get("namespace", ""), metadata["name"], document)
    lease = {
        "metadata": {
            "labels": {LABEL_COMPONENT: COMPONENT},
            "annotations": {ANNOTATION_PROGRESS: '{"a":1}'},
        },
        "spec": {
            "holderIdentity": "node-0",
            "leaseDurationSeconds": 90,
            "renewTime": "2026-01-01T00:00:00.000000Z",
        },
    }
    store.put(rows["leases.coordination.k8s.io"], LEASE_NAMESPACE, "sliceplane-proxy-node-0", lease)
    event = {
        "involvedObject": {"kind": "Service", "name": "cart", "namespace": "shop"},
        "reason": "Happened",
        "message": "it did",
        "type": "Normal",
        "count": 1,
        "firstTimestamp": "2026-01-01T00:00:00Z",
        "lastTimestamp": "2026-01-01T00:00:00Z",
    }
    store.put(rows["events"], "shop", "cart.1", event)
    return store
