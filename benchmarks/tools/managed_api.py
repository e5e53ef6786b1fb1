"""The API server of a managed cluster: an HTTP layer in front of one of ours that takes away what
such a cluster does not have, and counts the requests.

Nothing in its answers is of Sliceplane: metrics and readiness are those of a kube-apiserver.
``ManagedApi`` runs in a thread of its own and speaks plain HTTP. It forwards a request with the
caller's token, else with the administrator's certificate of the kubeconfig behind it, unless the
``Shape`` answers it: another ``/version``, resources and pages that are not served, groups whose
extension server is down (503), and webhooks that time out on every write.

    with ManagedApi(plane.kubeconfig, SHAPES["1.28"]) as api:
        run("check", "--kubeconfig", api.kubeconfig(folder))
    api.requests[0]     # Request(at=1.2, method="GET", target="/api/v1/services?limit=500", ...)
"""

from __future__ import annotations

import asyncio
import base64
import json
import ssl
import threading
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path
from tempfile import NamedTemporaryFile
from types import TracebackType
from typing import Any, Final, NamedTuple, Self
from urllib.parse import urlsplit

import yaml

#: release -> the resources that it serves and the one before does not (kubernetes.io, "Feature
#: Gates" and "Deprecated API Migration Guide")
_SINCE: Final = {
    30: ("validatingadmissionpolicies", "validatingadmissionpolicybindings"),
    33: ("servicecidrs", "ipaddresses"),
    36: ("mutatingadmissionpolicies", "mutatingadmissionpolicybindings"),
}
TRIES_MAX: Final = 5
READYZ: Final = b"[+]ping ok\n[+]etcd ok\n[+]informer-sync ok\nreadyz check passed\n"
METRICS: Final = b"""# TYPE apiserver_storage_objects gauge
apiserver_storage_objects{resource="pods"} 12
# TYPE apiserver_longrunning_requests gauge
apiserver_longrunning_requests{group="",resource="pods",scope="cluster",verb="WATCH"} 3
# TYPE workqueue_depth gauge
workqueue_depth{name="admission_quota_controller"} 0
"""
WEBHOOK: Final = (
    'Internal error occurred: failed calling webhook "validate.example.com": failed to call '
    'webhook: Post "https://policy.policy.svc:443/validate?timeout=10s": context deadline exceeded'
)


class Shape(NamedTuple):
    """``version``: minor release. ``missing``: plurals that are not served. ``broken``: API groups
    whose extension server is down. ``webhook_s``: seconds until a webhook times out on each write;
    ``None``: there is none.
    """

    version: int = 36
    missing: frozenset[str] = frozenset()
    broken: frozenset[str] = frozenset({"metrics.k8s.io"})
    webhook_s: float | None = None


def release(minor: int) -> Shape:
    """The API server of Kubernetes 1.*minor*."""
    later = [name for since, names in _SINCE.items() if since > minor for name in names]
    return Shape(minor, frozenset(later))


class Request(NamedTuple):
    """``at``: seconds of the monotonic clock."""

    at: float
    method: str
    target: str

    @property
    def path(self) -> str:
        return urlsplit(self.target).path


class ManagedApi:
    """See the module. Ended by the ``with`` block."""

    def __init__(self, kubeconfig: str | Path, shape: Shape) -> None:
        config = yaml.safe_load(Path(kubeconfig).read_text())
        cluster, user = config["clusters"][0]["cluster"], config["users"][0]["user"]
        address = urlsplit(cluster["server"])
        self._behind = (address.hostname, address.port)
        self._as_admin = _tls(cluster, user)
        self._as_caller = _tls(cluster, {})
        self.shape = shape
        self.port = 0
        self.requests: list[Request] = []
        self._loop: asyncio.AbstractEventLoop
        self._tasks: set[asyncio.Task[None]] = set()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()), daemon=True)
        self._listening = threading.Event()
        self._ended = asyncio.Event()

    def __enter__(self) -> Self:
        self._thread.start()
        assert self._listening.wait(60), "the layer does not listen"
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._loop.call_soon_threadsafe(self._ended.set)
        self._thread.join()

    def kubeconfig(self, folder: Path, token: str = "") -> str:
        """The path of one that leads here."""
        path = folder / f"kubeconfig-{self.port}"
        document = {
            "current-context": "c",
            "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
            "clusters": [{"name": "c", "cluster": {"server": f"http://127.0.0.1:{self.port}"}}],
            "users": [{"name": "u", "user": {"token": token} if token else {}}],
        }
        path.write_text(json.dumps(document))
        return str(path)

    def counts(self) -> Counter[str]:
        """Requests by method and path, pages of a list included."""
        return Counter(f"{request.method} {request.path}" for request in self.requests)

    def most_within(self, seconds: float) -> int:
        """The largest number of requests in any such time."""
        times = [request.at for request in self.requests]
        return max((sum(at <= t < at + seconds for t in times) for at in times), default=0)

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        server = await asyncio.start_server(self._handle, "127.0.0.1", 0, limit=1 << 21)
        self.port = server.sockets[0].getsockname()[1]
        self._listening.set()
        await self._ended.wait()
        # A connection that is being accepted is a task of the loop until its handler is one; its
        # socket is lost if the server is closed before.
        own = {asyncio.current_task()}
        while asyncio.all_tasks() - self._tasks - own:
            await asyncio.sleep(0)
        server.close()
        while len(asyncio.all_tasks()) > 1:
            while self._tasks:
                self._tasks.pop().cancel()
            await asyncio.sleep(0.001)

    async def _handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None, "a handler is a task"
        self._tasks.add(task)
        try:
            with suppress(OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
                head = await reader.readuntil(b"\r\n\r\n")
                fields = _fields(head)
                body = await reader.readexactly(int(fields.get("content-length", "0")))
                method, target, _ = head.decode("latin-1").split(" ", 2)
                self.requests.append(Request(time.monotonic(), method, target))
                answer = await self._answer(method, urlsplit(target).path)
                if answer is None:
                    await self._forward(head, body, "authorization" in fields, writer)
                else:
                    writer.write(_response(*answer))
                    await writer.drain()
        finally:
            self._tasks.discard(task)
            await _closed(writer)

    async def _answer(self, method: str, path: str) -> tuple[int, Any] | None:
        """Returns the answer of the shape; ``None``: that of the server behind."""
        shape = self.shape
        steps = path.strip("/").split("/")
        if path == "/version":
            version = f"v1.{shape.version}.3-eks-1a2b3c4"
            return 200, {"major": "1", "minor": f"{shape.version}+", "gitVersion": version}
        if path in ("/readyz", "/metrics"):
            return 200, READYZ if path == "/readyz" else METRICS
        if steps[0] == "sliceplane":
            return 404, _status(404, "NotFound", "the server could not find the requested resource")
        if len(steps) > 1 and steps[0] == "apis" and steps[1] in shape.broken:
            return 503, b"service unavailable\n"
        if shape.missing & set(steps):
            return 404, b"404 page not found\n"
        if method != "GET" and shape.webhook_s is not None:
            await asyncio.sleep(shape.webhook_s)
            return 500, _status(500, "InternalError", WEBHOOK)
        return None

    async def _connect(
        self, tls: ssl.SSLContext
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Tries again: on a busy machine the server behind ends handshakes that are slow."""
        for _ in range(TRIES_MAX):
            with suppress(OSError):
                return await self._open(tls)
        return await self._open(tls)

    async def _open(self, tls: ssl.SSLContext) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        opening = asyncio.create_task(asyncio.open_connection(*self._behind, ssl=tls))
        try:
            return await asyncio.shield(opening)
        except asyncio.CancelledError:
            # Cancelled before its first callback, asyncio would leave the connection open.
            with suppress(OSError):
                (await opening)[1].transport.abort()
            raise

    async def _forward(
        self, head: bytes, body: bytes, has_token: bool, writer: asyncio.StreamWriter
    ) -> None:
        line, _, rest = head.partition(b"\r\n")
        kept = [text for text in rest.split(b"\r\n") if not text.lower().startswith(b"connection:")]
        tls = self._as_caller if has_token else self._as_admin
        behind, to_behind = await self._connect(tls)
        try:
            to_behind.write(line + b"\r\nConnection: close\r\n" + b"\r\n".join(kept) + body)
            while data := await behind.read(1 << 16):
                writer.write(data)
                await writer.drain()
        finally:
            # A watch behind goes on sending: asyncio would wait 30 s for the end of its TLS stream.
            to_behind.transport.abort()
            await _closed(to_behind)


async def _closed(writer: asyncio.StreamWriter) -> None:
    writer.close()
    with suppress(OSError):
        await writer.wait_closed()


def _fields(head: bytes) -> dict[str, str]:
    lines = head.decode("latin-1").rstrip().split("\r\n")[1:]
    pairs = (line.partition(":") for line in lines)
    return {name.lower(): value.strip() for name, _, value in pairs}


def _status(code: int, reason: str, message: str) -> dict[str, Any]:
    status = {"kind": "Status", "apiVersion": "v1", "status": "Failure"}
    return {**status, "message": message, "reason": reason, "code": code}


def _response(code: int, body: Any) -> bytes:
    kind = "text/plain" if isinstance(body, bytes) else "application/json"
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    head = f"HTTP/1.1 {code} X\r\nContent-Type: {kind}\r\nContent-Length: {len(data)}\r\n"
    return head.encode() + b"Connection: close\r\n\r\n" + data


def _tls(cluster: dict[str, str], user: dict[str, str]) -> ssl.SSLContext:
    """A client's context; *user* without a certificate: of a caller who has a token."""
    authority = _pem(cluster, "certificate-authority")
    context = ssl.create_default_context(cadata=authority)
    if user:
        with NamedTemporaryFile("w") as file:
            file.write(_pem(user, "client-certificate") + _pem(user, "client-key"))
            file.flush()
            context.load_cert_chain(file.name)
    return context


def _pem(entry: dict[str, str], member: str) -> str:
    data = entry.get(f"{member}-data")
    return base64.b64decode(data).decode() if data else Path(entry[member]).read_text()
