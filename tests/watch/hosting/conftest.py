"""A client over the fake API server, in virtual time, and a controller core to be hosted."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest
import pytest_asyncio
from tests.fakes.fake_api import FakeApi
from tests.fakes.fake_watch import FakeWatch

from sliceplane.api import codec
from sliceplane.api.meta import Document, Object
from sliceplane.api.scheme import ConfigMaps, Resource
from sliceplane.kit.workqueue import WorkQueue
from sliceplane.watch.cache import Change
from sliceplane.watch.controller.base import (
    ControllerInfo,
    Done,
    EventNote,
    Job,
    Selection,
    Work,
    Write,
)
from sliceplane.watch.io.base import ListPage, Unreachable, WatchMessage

EPOCH = 1_000_000.0


class LiveApi(FakeApi):
    """A fake server that wakes its readers."""

    changed: asyncio.Event

    def _commit(self, resource: Resource, kind: str, document: Document) -> Document:
        stored = FakeApi._commit(self, resource, kind, document)
        self.changed.set()
        return stored

    def cut_all(self, error: Any = None) -> None:
        FakeApi.cut_all(self, error)
        self.changed.set()


@dataclass
class FakeClient:
    """``watch.io.base.Client`` over a ``LiveApi``; writes take *write_s*."""

    api: LiveApi
    clock: Callable[[], float]
    write_s: float = 0.01
    in_flight: int = 0
    most_in_flight: int = 0
    #: answers of so many writes are lost after they happened
    lose_answers: int = 0
    hang_lists: bool = False
    log: list[tuple[float, str, str]] = field(default_factory=list)

    async def get(self, resource: Resource, namespace: str, name: str) -> bytes:
        return self.api.perform(
            Write(verb="get", resource=resource, namespace=namespace, name=name)
        )

    async def list(
        self,
        selection: Selection,
        *,
        resource_version: str | None = None,
        limit: int | None = None,
        continue_token: str = "",
    ) -> ListPage:
        if self.hang_lists:
            await asyncio.Event().wait()
        await asyncio.sleep(0.001)
        return self.api.list(selection, limit=limit, continue_token=continue_token)

    @asynccontextmanager
    async def watch(
        self,
        selection: Selection,
        *,
        resource_version: str | None = None,
        timeout_s: int | None = None,
        bookmarks: bool = True,
    ) -> AsyncIterator[AsyncIterator[WatchMessage]]:
        assert resource_version, "informers watch from a version"
        yield self._messages(
            self.api.watch(
                selection, resource_version, now=self.clock(), timeout_s=timeout_s or 1800
            )
        )

    async def _messages(self, stream: FakeWatch) -> AsyncIterator[WatchMessage]:
        while True:
            self.api.changed.clear()
            for kind, body in stream.pull(self.clock()):
                yield WatchMessage(kind, body)
            if stream.ended:
                if stream.error is not None:
                    raise Unreachable("the connection broke")
                return
            due = stream.next_at()
            delay = None if due == float("inf") else max(due - self.clock(), 0.0)
            try:
                async with asyncio.timeout(delay):
                    await self.api.changed.wait()
            except TimeoutError:
                pass
            # Several readers share the event: the others must see it, too.
            await asyncio.sleep(0)

    async def perform(self, write: Write) -> bytes:
        name = write.name or codec.decode(write.body, Object).metadata.name
        self.in_flight += 1
        self.most_in_flight = max(self.most_in_flight, self.in_flight)
        try:
            await asyncio.sleep(self.write_s)
            self.log.append((self.clock() - EPOCH, write.verb, f"{write.resource.plural}/{name}"))
            result = self.api.perform(write)
            if self.lose_answers:
                self.lose_answers -= 1
                raise Unreachable("connection reset by peer")
            return result
        finally:
            self.in_flight -= 1

    async def close(self) -> None:
        pass


SOURCE = Selection(ConfigMaps, label_selector="role=source")
COPY = Selection(ConfigMaps, label_selector="role=copy")


class Copier:
    """For each source ``x`` a ConfigMap ``copy-x``: create, update and delete through a work
    queue.
    """

    def __init__(self, **faults: Any) -> None:
        self.info = ControllerInfo("copier", (SOURCE, COPY))
        self.queue: WorkQueue[str] = WorkQueue()
        self.sources: dict[str, Object] = {}
        self.copies: dict[str, Object] = {}
        self.done: list[Done] = []
        self.synced = False
        self.faults = faults
        self.events: list[str] = []

    def on_change(self, change: Change[Object], now: float) -> None:
        name = change.object.metadata.name
        self.events.append(name)
        if name == self.faults.get("raise_on"):
            raise RuntimeError(f"cannot stand {name}")
        held = self.copies if name.startswith("copy-") else self.sources
        key = name.removeprefix("copy-")
        if change.new is None:
            del held[key]
        else:
            held[key] = change.new
        self.queue.add(key, now)

    def on_synced(self, now: float) -> None:
        self.synced = True

    def take_work(self, now: float, max_jobs: int) -> Work:
        assert self.synced, "asked before the caches were filled"
        jobs, notes = [], []
        while len(jobs) < max_jobs and (key := self.queue.get(now)) is not None:
            writes = self._writes(key)
            if not writes:
                self.queue.done(key)
                continue
            jobs.append(Job(key=key, writes=writes))
            if key in self.sources and not self.faults.get("quiet"):
                notes.append(
                    EventNote(
                        regarding=self.sources[key],
                        regarding_resource=ConfigMaps,
                        type="Normal",
                        reason="Copying",
                        note=f"copying {key}",
                        component="copier",
                    )
                )
        return Work(jobs=tuple(jobs), notes=tuple(notes))

    def _writes(self, key: str) -> tuple[Write, ...]:
        name = f"copy-{key}"
        if key not in self.sources:
            delete = Write(
                verb="delete",
                resource=ConfigMaps,
                namespace="ns",
                name=name,
                tolerate=("NotFound",),
            )
            return (delete,) if key in self.copies else ()
        version = self.sources[key].metadata.resource_version
        copy = self.copies.get(key)
        if copy is not None and (copy.metadata.annotations or {}).get("of") == version:
            return ()
        body = codec.encode(
            {"metadata": {"name": name, "labels": {"role": "copy"}, "annotations": {"of": version}}}
        )
        if copy is None:
            return (Write(verb="create", resource=ConfigMaps, namespace="ns", body=body),)
        return (Write(verb="patch", resource=ConfigMaps, namespace="ns", name=name, body=body),)

    def on_done(self, done: Done, now: float) -> None:
        self.done.append(done)
        self.queue.done(done.job.key)
        if done.error is None:
            self.queue.forget(done.job.key)
        else:
            self.queue.add_rate_limited(done.job.key, now)

    def next_deadline(self) -> float | None:
        return self.queue.next_deadline()

    def check(self) -> None:
        self.queue.check()


def put_source(api: FakeApi, name: str, **data: str) -> None:
    api.put(ConfigMaps, "ns", name, {"metadata": {"labels": {"role": "source"}}, "data": data})


@pytest_asyncio.fixture
async def api() -> LiveApi:
    live = LiveApi()
    live.changed = asyncio.Event()
    return live


@pytest_asyncio.fixture
async def client(api: LiveApi) -> FakeClient:
    # Fixtures run in real time, tests in virtual time that begins at 0: the clock is read in tests
    # only.
    loop = asyncio.get_running_loop()
    return FakeClient(api, lambda: EPOCH + loop.time())


@pytest.fixture
def copier() -> type[Copier]:
    return Copier


@pytest.fixture
def source() -> Callable[..., None]:
    return put_source
