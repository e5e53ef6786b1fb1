"""Back ends to test, a writer that behaves like the registry, and a back end that fails to
order.
"""

from __future__ import annotations

import os
import queue
import sqlite3
import sys
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol

import pytest
from msgspec.structs import replace
from tests.replicated.members import Member, cluster

from sliceplane.server.io.storage.etcd.backend import Answer, EtcdBackend, Snapshot, Taken
from sliceplane.server.io.storage.etcd.client import EtcdConfig
from sliceplane.server.io.storage.own import MemoryBackend
from sliceplane.server.io.storage.sqlite import SqliteBackend
from sliceplane.server.store.backend import Backend, Loaded, WriteFailed
from sliceplane.server.store.batches import Batch, HeadName
from sliceplane.server.store.mvcc import Store
from sliceplane.server.store.types import Key, Record, StoreEvent


def put(store: Store, key: Key, payload: str = "", owners: tuple[str, ...] = ()) -> Record:
    previous = store.latest(key)
    return store.stage_put(
        key,
        lambda revision: Record(
            key=key,
            revision=revision,
            created=previous.created if previous else revision,
            uid=f"uid-{key.name}",
            body=b'{"metadata":{"name":"%s","resourceVersion":"%d"},"x":"%s"}'
            % (key.name.encode(), revision, payload.encode()),
            labels={"app": key.name, "unicode": "é"} if len(key.name) % 2 else {},
            fields={"spec.nodeName": "n"} if payload else {},
            owners=owners,
        ),
    )


def delete(store: Store, key: Key) -> Record:
    previous = store.latest(key)
    assert previous is not None

    def build(revision: int) -> Record:
        return Record(
            key=key,
            revision=revision,
            created=previous.created,
            uid=previous.uid,
            body=b'{"deleted":"%d"}' % revision,
            labels=previous.labels,
            fields=previous.fields,
            owners=previous.owners,
        )

    return store.stage_delete(key, build)


def restore(backend: Backend) -> Store:
    loaded = backend.load()
    store = Store.restore(loaded.history, loaded.revision, loaded.compacted)
    store.check()
    return store


def same(left: Store, right: Store) -> bool:
    """Equal for every reader."""
    resources = sorted({*left.resources(), *right.resources()})
    return (left.revision, left.compacted) == (right.revision, right.compacted) and all(
        left.list(name) == right.list(name)
        and left.events_since(left.compacted, name) == right.events_since(right.compacted, name)
        for name in resources
    )


class Medium(Protocol):
    """Where a back end keeps its data while it is not open."""

    def open(self) -> Backend: ...


class MemoryMedium:
    def __init__(self) -> None:
        self.backend = MemoryBackend()

    def open(self) -> MemoryBackend:
        return self.backend


class SqliteMedium:
    def __init__(self, path: Path) -> None:
        self.path = path

    def open(self) -> SqliteBackend:
        return SqliteBackend.open(self.path)


class EtcdMedium:
    """A prefix of its own in a running etcd."""

    def __init__(self, server: str) -> None:
        self.config = EtcdConfig(servers=(server,), prefix=f"/{os.urandom(6).hex()}")

    def open(self) -> EtcdAlone:
        return EtcdAlone(self.config)


class EtcdAlone:
    """An etcd of one server as a ``Backend``: its layout holds any history, as files do."""

    blocking = True

    def __init__(self, config: EtcdConfig) -> None:
        self._etcd = EtcdBackend(config)
        self._snapshot: Snapshot
        self._batches = 0

    def load(self) -> Loaded:
        self._snapshot = self._etcd.snapshot()
        return self._snapshot.loaded

    def append(self, events: Sequence[StoreEvent]) -> None:
        self._batches += 1
        basis = self._snapshot
        batch = Batch(
            self._batches, basis.position, basis.name, tuple(events), (), queues_if_refused=False
        )
        answers: queue.SimpleQueue[Answer] = queue.SimpleQueue()
        self._etcd.send(batch, answers.put)
        answer = answers.get()
        assert isinstance(answer, Taken), answer
        name = HeadName(self._etcd.server, self._batches, events[-1].revision)
        self._snapshot = replace(basis, position=answer.position, name=name)
        self._etcd.note(events[-1].revision, answer.position)

    def reconcile(self) -> int:
        return self.load().revision

    def compact(self, revision: int) -> None:
        self._etcd.compact(revision)

    def release_space(self) -> bool:
        return False

    def close(self) -> None:
        self._etcd.close()


@pytest.fixture(params=["memory", "sqlite", "etcd"])
def medium(request: pytest.FixtureRequest, tmp_path: Path) -> Medium:
    if request.param == "etcd":
        return EtcdMedium(request.getfixturevalue("etcd").url)
    return (
        MemoryMedium()
        if request.param == "memory"
        else SqliteMedium(tmp_path / "data" / "sliceplane.db")
    )


@pytest.fixture(scope="session")
def etcd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Member]:
    """One member, for all tests of this folder; each uses a prefix of its own."""
    with cluster(tmp_path_factory.mktemp("etcd"), 1) as (member,):
        yield member


class FaultyBackend:
    """A real back end whose next calls can be held, refused or left uncertain.

    ``plan`` holds, for the next appends: "ok", "full", "lost" (uncertain, not written), "kept"
    (uncertain, written); ``compaction_plan`` the same for compactions.
    """

    blocking = True

    def __init__(self, inner: Backend) -> None:
        self.inner = inner
        self.plan: list[str] = []
        self.batches: list[tuple[int, ...]] = []
        self.may_append = threading.Event()
        self.may_append.set()
        self.appending = threading.Event()
        self.reconcilable = True
        self.compaction_plan: list[str] = []
        self.compacting = threading.Event()
        self.compactions: list[int] = []

    def load(self) -> Loaded:
        return self.inner.load()

    def append(self, events: Sequence[StoreEvent]) -> None:
        self.appending.set()
        assert self.may_append.wait(60)
        what = self.plan.pop(0) if self.plan else "ok"
        if what == "full":
            raise WriteFailed("the disk is full")
        if what != "lost":
            self.inner.append(events)
            self.batches.append(tuple(event.revision for event in events))
        if what != "ok":
            raise OSError("input/output error")

    def reconcile(self) -> int:
        if not self.reconcilable:
            raise OSError("device is gone")
        return self.inner.reconcile()

    def compact(self, revision: int) -> None:
        self.compactions.append(revision)
        self.compacting.set()
        what = self.compaction_plan.pop(0) if self.compaction_plan else "ok"
        if what == "full":
            raise WriteFailed("the disk is full")
        if what != "lost":
            self.inner.compact(revision)
        if what != "ok":
            raise OSError("input/output error")

    def release_space(self) -> bool:
        return self.inner.release_space()

    def close(self) -> None:
        self.inner.close()


class FailingConnection:
    """A SQLite connection whose next COMMIT reports an I/O error, after or instead of
    committing.
    """

    def __init__(self, inner: sqlite3.Connection, *, committed: bool) -> None:
        self._inner = inner
        self._committed = committed

    def execute(self, statement: str, *arguments: Any) -> Any:
        if statement == "COMMIT":
            self._inner.execute("COMMIT" if self._committed else "ROLLBACK")
            error = sqlite3.OperationalError("disk I/O error")
            error.sqlite_errorcode = sqlite3.SQLITE_IOERR | 4 << 8
            raise error
        return self._inner.execute(statement, *arguments)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


@pytest.fixture
def sqlite_path(tmp_path: Path) -> Path:
    return tmp_path / "sliceplane.db"


@pytest.fixture
def kit() -> Any:
    """The helpers of this file."""
    return sys.modules[__name__]
