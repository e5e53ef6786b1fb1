"""An API server for Pods that plays a part: lists and watches over plain HTTP/1.1, and whatever
goes wrong on them.

A ``World`` is what is true: Pods, one counter of versions, the history of events and how far it is
compacted. A ``Stage`` serves one world on a port of its own. Unless its scenario says otherwise it
answers as a real API server does: a watch from a version that is compacted gets 410, one from a
version that is not reached yet 504, bookmarks come every second where they were asked for.
"""

from __future__ import annotations

import asyncio
import json
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Self
from urllib.parse import parse_qsl, urlsplit

BOOKMARK_PERIOD_S = 1.0
#: what some clients ask before anything else
DISCOVERY: dict[str, dict[str, Any]] = {
    "/version": {"major": "1", "minor": "35", "gitVersion": "v1.35.0"},
    "/api": {"kind": "APIVersions", "versions": ["v1"]},
    "/apis": {"kind": "APIGroupList", "apiVersion": "v1", "groups": []},
}
TOO_LARGE = "Too large resource version: {asked}, current: {current}"

#: name -> (uid, generation): what a client believes, or what is true
State = dict[str, tuple[str, int]]


@dataclass
class World:
    """Pods ``a``, ``b`` and ``c`` to begin with."""

    version: int = 100
    compacted: int = 0
    pods: dict[str, dict[str, Any]] = field(default_factory=dict)
    #: (version, type, Pod as it was)
    events: list[tuple[int, str, dict[str, Any]]] = field(default_factory=list)
    _uids: int = 0

    def __post_init__(self) -> None:
        for name in "abc":
            self.put(name)

    def put(self, name: str) -> None:
        """Create, or change."""
        self.version += 1
        old = self.pods.get(name)
        if old is None:
            self._uids += 1
        uid = old["metadata"]["uid"] if old else f"uid-{name}-{self._uids}"
        generation = int(old["metadata"]["labels"]["generation"]) + 1 if old else 1
        self.pods[name] = pod(name, uid, generation, self.version)
        self.events.append((self.version, "MODIFIED" if old else "ADDED", self.pods[name]))

    def delete(self, name: str) -> None:
        self.version += 1
        gone = self.pods.pop(name)
        metadata = gone["metadata"] | {"resourceVersion": str(self.version)}
        self.events.append((self.version, "DELETED", gone | {"metadata": metadata}))

    def compact(self) -> None:
        """Forget the history: every version below the newest is too old."""
        self.compacted = self.version
        self.events.clear()

    def restore(self, version: int) -> None:
        """As after a restore of a backup: versions count on from *version*, and what was later
        never happened.
        """
        self.version = version
        self.compacted = 0
        self.events.clear()
        for pod in self.pods.values():
            pod["metadata"]["resourceVersion"] = str(version)

    def state(self) -> State:
        return {name: believed(pod) for name, pod in self.pods.items()}


def pod(name: str, uid: str, generation: int, version: int) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name,
            "namespace": "default",
            "uid": uid,
            "resourceVersion": str(version),
            "creationTimestamp": "2026-11-21T10:00:00Z",
            "labels": {"generation": str(generation)},
        },
        "spec": {"containers": [{"name": "main", "image": "example"}]},
        "status": {"phase": "Running", "podIP": f"10.0.0.{ord(name[0]) - 90}"},
    }


def believed(each: dict[str, Any]) -> tuple[str, int]:
    metadata = each["metadata"]
    return metadata["uid"], int(metadata["labels"]["generation"])


def status(
    code: int, reason: str, message: str, details: dict[str, Any] | None = None
) -> dict[str, Any]:
    made = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure", "code": code}
    return made | {"reason": reason, "message": message} | ({"details": details} if details else {})


def expired() -> dict[str, Any]:
    return status(410, "Expired", "too old resource version")


def too_large(asked: int, current: int) -> dict[str, Any]:
    details = {
        "causes": [{"reason": "ResourceVersionTooLarge", "message": "Too large resource version"}]
    }
    return status(
        504,
        "Timeout",
        TOO_LARGE.format(asked=asked, current=current),
        details | {"retryAfterSeconds": 1},
    )


class Stream:
    """A watch that was answered 200, in chunks."""

    def __init__(self, writer: asyncio.StreamWriter) -> None:
        self._writer = writer

    async def begin(self) -> None:
        head = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n"
        self._writer.write(head)
        await self._writer.drain()

    async def raw(self, data: bytes) -> None:
        self._writer.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")
        await self._writer.drain()

    async def event(self, kind: str, what: dict[str, Any]) -> None:
        await self.raw(line(kind, what))

    async def bookmark(self, version: int) -> None:
        metadata = {"resourceVersion": str(version), "creationTimestamp": None}
        what = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": metadata,
            "spec": {"containers": None},
            "status": {},
        }
        await self.event("BOOKMARK", what)

    async def end(self) -> None:
        self._writer.write(b"0\r\n\r\n")
        await self._writer.drain()

    def abort(self) -> None:
        """The connection breaks: no last chunk, no good-bye."""
        self._writer.transport.abort()


def line(kind: str, what: dict[str, Any]) -> bytes:
    return json.dumps({"type": kind, "object": what}).encode() + b"\n"


class Refused(Exception):
    """Answer with this Status instead."""

    def __init__(self, body: dict[str, Any], retry_after_s: int = 0) -> None:
        super().__init__(body["message"])
        self.body = body
        self.retry_after_s = retry_after_s


@dataclass(frozen=True)
class Request:
    path: str
    params: dict[str, str]

    @property
    def is_watch(self) -> bool:
        return self.params.get("watch", "").lower() in ("true", "1")

    @property
    def version(self) -> int | None:
        text = self.params.get("resourceVersion", "")
        return int(text) if text not in ("", "0") else None

    @property
    def wants_bookmarks(self) -> bool:
        return self.params.get("allowWatchBookmarks", "").lower() in ("true", "1")


class Stage:
    """One world on one port.  Scenarios override ``first_watch`` and what else they need."""

    def __init__(self) -> None:
        self.world = World()
        #: the world will not change any more
        self.settled = asyncio.Event()
        self.lists: list[float] = []
        self.watches: list[float] = []
        self.port = 0
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.close()
        for task in tuple(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._server.wait_closed()

    # What scenarios override

    async def first_watch(self, request: Request, stream: Stream) -> None:
        await self.follow(request, stream)

    async def later_watch(self, request: Request, stream: Stream) -> None:
        await self.follow(request, stream)

    def refuse(self, request: Request) -> None:
        """Raise ``Refused``, or ``ConnectionError`` to hang up, before anything else is
        looked at.
        """

    # What a real server does

    async def follow(self, request: Request, stream: Stream) -> None:
        """A healthy watch, for ever."""
        await self.begin(request, stream)
        sent = self.world.version
        idle = 0.0
        while True:
            if self.world.version < sent:
                return
            for version, kind, what in list(self.world.events):
                if version > sent:
                    await stream.event(kind, what)
                    sent = version
                    idle = 0.0
            await asyncio.sleep(0.02)
            idle += 0.02
            if idle >= BOOKMARK_PERIOD_S and request.wants_bookmarks:
                await stream.bookmark(sent)
                idle = 0.0

    async def begin(self, request: Request, stream: Stream) -> None:
        """Bring the watcher up to now: the state if it named no version, else the events after it.

        Raises ``Refused`` with 504 before the stream begins; 410 comes as an event, as from a real
        server.
        """
        version = request.version
        world = self.world
        if version is not None and version > world.version:
            raise Refused(too_large(version, world.version), 1)
        await stream.begin()
        if version is None:
            for name in sorted(world.pods):
                await stream.event("ADDED", world.pods[name])
        elif version < world.compacted:
            await stream.event("ERROR", expired())
            await stream.end()
            raise ConnectionAbortedError
        else:
            for at, kind, what in list(world.events):
                if at > version:
                    await stream.event(kind, what)

    def list_body(self, request: Request) -> dict[str, Any]:
        if request.version is not None and request.version > self.world.version:
            raise Refused(too_large(request.version, self.world.version), 1)
        items = [self.world.pods[name] for name in sorted(self.world.pods)]
        metadata = {"resourceVersion": str(self.world.version)}
        return {"kind": "PodList", "apiVersion": "v1", "metadata": metadata, "items": items}

    # Connections

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            while await self._answer(await reader.readuntil(b"\r\n\r\n"), writer):
                pass
        except (asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
            pass
        finally:
            self._tasks.discard(task)
            writer.close()

    async def _answer(self, head: bytes, writer: asyncio.StreamWriter) -> bool:
        """Whether the connection stays open."""
        target = urlsplit(head.split(b" ", 2)[1].decode())
        request = Request(target.path, dict(parse_qsl(target.query)))
        try:
            if request.path.rstrip("/") in DISCOVERY:
                await self._reply(writer, 200, DISCOVERY[request.path.rstrip("/")])
                return True
            if not request.path.endswith("/pods"):
                raise Refused(status(404, "NotFound", "there is nothing here but Pods"))
            kept = self.watches if request.is_watch else self.lists
            kept.append(asyncio.get_running_loop().time())
            self.refuse(request)
            if not request.is_watch:
                await self._reply(writer, 200, self.list_body(request))
                return True
            stream = Stream(writer)
            play = self.first_watch if len(self.watches) == 1 else self.later_watch
            await play(request, stream)
        except Refused as refusal:
            await self._reply(writer, refusal.body["code"], refusal.body, refusal.retry_after_s)
            return True
        except ConnectionAbortedError:
            return False
        except ConnectionError:
            writer.transport.abort()
            return False
        return False

    @staticmethod
    async def _reply(
        writer: asyncio.StreamWriter, code: int, body: dict[str, Any], retry_after_s: int = 0
    ) -> None:
        data = json.dumps(body).encode()
        lines = [
            f"HTTP/1.1 {code} Answer",
            "Content-Type: application/json",
            f"Content-Length: {len(data)}",
        ]
        if retry_after_s:
            lines.append(f"Retry-After: {retry_after_s}")
        writer.write("\r\n".join(lines).encode() + b"\r\n\r\n" + data)
        with suppress(ConnectionError):
            await writer.drain()
