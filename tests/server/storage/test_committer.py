"""Group commit: what is acknowledged is durable, published and shown, whatever the back end
does.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest
from tests.waiting import eventually, turns

from sliceplane.api.errors import StatusError, already_exists
from sliceplane.kit.rng import Rng
from sliceplane.server.io.storage.committer import Committer
from sliceplane.server.io.storage.own import MemoryBackend
from sliceplane.server.io.storage.sqlite import SqliteBackend
from sliceplane.server.store.hub import Hub
from sliceplane.server.store.mvcc import Compacted, Store
from sliceplane.server.store.shelf import Retention
from sliceplane.server.store.types import EventType, Key, Record
from sliceplane.server.store.watcher import Interest

A = Key("pods", "ns", "a")
B = Key("pods", "ns", "b")


class TypeEncoder:
    def event(self, kind: EventType, record: Record) -> bytes:
        return kind.value.encode()

    def bookmark(self, revision: int, initial_events_end: bool) -> bytes:
        return b"BOOKMARK"


class Server:
    def __init__(self, kit: Any, backend: Any, retention: Retention | None = None) -> None:
        self.kit = kit
        self.backend = backend
        self.store: Store = kit.restore(backend)
        self.hub = Hub(self.store)
        self.reports: list[str] = []
        self.mended: list[str] = []
        told = {"report": self.reports.append, "report_mended": self.mended.append}
        self.committer = Committer(self.store, self.hub, backend, retention=retention, **told)

    async def put(self, key: Key, payload: str = "") -> Record:
        record = self.kit.put(self.store, key, payload)
        await self.committer.durable(record.revision)
        shown = self.store.get_at(key, record.revision)
        assert shown is record, f"{record.revision} is acknowledged and cannot be read"
        return record


@asynccontextmanager
async def running(server: Server) -> AsyncIterator[Server]:
    server.committer.start()
    try:
        yield server
    finally:
        await server.committer.close()
        server.store.check()


async def held(backend: Any) -> None:
    """Until an append is under way."""
    await eventually(backend.appending.is_set)


def settle(task: asyncio.Task[Any]) -> str:
    assert task.done()
    error = task.exception()
    return (
        "ok"
        if error is None
        else f"{error.code} {error}"
        if isinstance(error, StatusError)
        else repr(error)
    )


async def test_acknowledged_when_durable_and_published(medium, kit):
    backend = kit.FaultyBackend(medium.open())
    async with running(Server(kit, backend)) as server:
        watcher = server.hub.subscribe(Interest(resource="pods", encoder=TypeEncoder()), now=0.0)
        backend.may_append.clear()
        task = asyncio.create_task(server.put(A))
        await held(backend)
        assert not task.done()
        assert server.store.get(A) is None
        assert not watcher.pending
        backend.may_append.set()
        record = await task
        assert server.store.get(A) is record
        assert [item.revision for item in watcher.take()] == [record.revision]
        assert kit.same(kit.restore(backend), server.store)
        await server.committer.durable(0)
        await server.committer.durable(record.revision)


async def test_what_waits_goes_in_one_batch(medium, kit):
    backend = kit.FaultyBackend(medium.open())
    async with running(Server(kit, backend)) as server:
        backend.may_append.clear()
        first = asyncio.create_task(server.put(A))
        await held(backend)
        others = [
            asyncio.create_task(server.put(Key("pods", "ns", f"{number}"))) for number in range(63)
        ]
        await turns()
        backend.may_append.set()
        await asyncio.gather(first, *others)
        assert [len(batch) for batch in backend.batches] == [1, 63]
        assert (server.committer.batches, server.committer.commits) == (2, 64)


async def test_a_cancelled_writer_does_not_take_its_write_back(medium, kit):
    backend = kit.FaultyBackend(medium.open())
    async with running(Server(kit, backend)) as server:
        backend.may_append.clear()
        task = asyncio.create_task(server.put(A))
        await held(backend)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        backend.may_append.set()
        await server.put(B)
        assert server.store.get(A) is not None


async def test_a_full_disk_fails_all_that_wait_and_later_writes_succeed(medium, kit):
    backend = kit.FaultyBackend(medium.open())
    async with running(Server(kit, backend)) as server:
        first = await server.put(A)
        backend.appending.clear()
        backend.may_append.clear()
        backend.plan = ["full", "full"]
        failing = asyncio.create_task(server.put(A))
        await held(backend)
        resting_on_it = asyncio.create_task(server.put(A))
        late = kit.put(server.store, B)
        await turns()
        backend.may_append.set()
        await asyncio.wait([failing, resting_on_it])
        assert (
            settle(failing)
            == settle(resting_on_it)
            == "500 the write was not stored: the disk is full"
        )
        assert server.store.get(A) is server.store.latest(A) is first
        assert server.store.latest(B) is None
        with pytest.raises(StatusError, match="disk is full"):
            await server.put(A)
        assert server.committer.failing == "the write was not stored: the disk is full"
        assert server.reports == ["the write was not stored: the disk is full"], (
            "once, not for each write"
        )
        assert server.mended == []
        record = await server.put(A)
        await server.put(A)
        assert server.mended == ["writes are stored again"], "once, and not as a problem"
        assert len(server.reports) == 1
        assert record.revision > late.revision
        assert server.committer.failing is None
        with pytest.raises(StatusError, match="disk is full"):
            await server.committer.durable(late.revision)
        assert kit.same(kit.restore(backend), server.store)


@pytest.mark.parametrize("outcome", ["kept", "lost"])
async def test_an_uncertain_commit_is_read_back(outcome, medium, kit):
    backend = kit.FaultyBackend(medium.open())
    async with running(Server(kit, backend)) as server:
        watcher = server.hub.subscribe(Interest(resource="pods", encoder=TypeEncoder()), now=0.0)
        backend.plan = [outcome]
        task = asyncio.create_task(server.put(A))
        await asyncio.wait([task])
        if outcome == "kept":
            assert settle(task) == "ok"
            assert len(watcher.take()) == 1
        else:
            assert settle(task) == "500 the write was not stored: input/output error"
            assert watcher.take() == []
        await server.put(B)
        assert server.committer.sealed is None
        assert kit.same(kit.restore(backend), server.store)


@pytest.mark.parametrize("outcome", ["kept", "lost"])
async def test_if_nobody_can_tell_all_further_writes_are_refused(outcome, medium, kit):
    backend = kit.FaultyBackend(medium.open())
    async with running(Server(kit, backend)) as server:
        first = await server.put(A)
        backend.plan = [outcome]
        backend.reconcilable = False
        with pytest.raises(
            StatusError, match=r"it is not known whether the write was stored.*device is gone"
        ):
            await server.put(A)
        with pytest.raises(StatusError, match="refused until a restart"):
            await server.put(B)
        assert server.committer.sealed is not None
        assert len(backend.batches) == (2 if outcome == "kept" else 1), "nothing more was tried"
        assert server.store.get(A) is first, "what was acknowledged can still be read"
        assert server.store.latest(B) is None
    # After a restart the uncertain write is there, or not; the acknowledged one is.
    backend = medium.open()
    again = kit.restore(backend)
    backend.close()
    assert again.revision == (3 if outcome == "kept" else 2)
    assert again.get_at(A, 2) == first


async def test_a_fault_of_the_committer_leaves_nobody_waiting(kit):
    server = Server(kit, kit.FaultyBackend(MemoryBackend()))
    server.hub.publish = lambda events: 1 / 0  # type: ignore[method-assign, assignment]
    server.committer.start()
    with pytest.raises(StatusError, match="the committer stopped: ZeroDivisionError"):
        await server.put(A)
    with pytest.raises(StatusError, match="the committer stopped: ZeroDivisionError"):
        async with asyncio.timeout(60):
            await server.put(B)
    with pytest.raises(ZeroDivisionError):
        await server.committer.close()


async def test_a_report_that_cannot_be_made_leaves_nobody_waiting(kit):
    """The log is on the disk that is full: telling of it fails, too."""
    backend = kit.FaultyBackend(MemoryBackend())
    server = Server(kit, backend)
    server.committer._report = lambda sentence: 1 / 0  # type: ignore[method-assign, assignment, return-value]
    server.committer.start()
    backend.plan = ["full"]
    with pytest.raises(StatusError, match="was not stored"):
        async with asyncio.timeout(60):
            await server.put(A)
    with pytest.raises(StatusError, match="the committer stopped"):
        async with asyncio.timeout(60):
            await server.put(B)
    with pytest.raises(ZeroDivisionError):
        await server.committer.close()


async def test_close_commits_what_is_staged_and_then_refuses(medium, kit):
    backend = medium.open()
    server = Server(kit, backend)
    async with running(server):
        task = asyncio.create_task(server.put(A))
        await asyncio.sleep(0)
        silent = kit.put(server.store, B)
    assert settle(task) == "ok"
    assert server.store.revision == silent.revision
    kit.put(server.store, A)
    with pytest.raises(StatusError, match="shutting down"):
        await server.committer.durable(server.store.staged_revision)
    server.store.abort_staged()
    await server.committer.close()
    backend = medium.open()
    assert kit.same(kit.restore(backend), server.store)
    backend.close()


async def test_history_is_compacted_in_chunks_and_the_rest_survives_a_restart(medium, kit):
    retention = Retention(keep_s=300.0)
    backend = kit.FaultyBackend(medium.open())
    async with running(Server(kit, backend, retention)) as server:
        for number in range(1000):
            kit.put(server.store, Key("pods", "ns", f"{number % 10}"))
        await server.put(A)
        old = server.store.revision
        server.committer.tick(1000.0)
        record = await server.put(B)
        server.committer.tick(1100.0)
        server.committer.tick(1299.0)
        await server.put(B)
        assert server.store.compacted == 1
        server.committer.tick(1300.0)
        await eventually(lambda: server.store.compacted, lambda revision: revision >= old)
        assert backend.compactions == [257, 513, 769, old]
    backend = medium.open()
    async with running(Server(kit, backend)) as server:
        assert server.store.compacted == old
        watcher = server.hub.subscribe(
            Interest(resource="pods", encoder=TypeEncoder()), now=0.0, since=old
        )
        assert [item.revision for item in watcher.take()] == [record.revision, record.revision + 1]
        with pytest.raises(Compacted):
            server.store.events_since(old - 1, "pods")


async def test_a_server_without_writes_gives_space_back(sqlite_path, kit):
    """sliceplane.db of 157 objects had 81 MB twelve minutes after the last write, nearly all of it
    free pages.
    """
    backend = SqliteBackend.open(sqlite_path)
    async with running(Server(kit, backend, Retention(keep_s=300.0))) as server:
        for number in range(1500):
            kit.put(server.store, Key("pods", "ns", f"{number % 10}"), "x" * 20_000)
        await server.put(A)
        server.committer.tick(1000.0)
        assert sqlite_path.stat().st_size > 30_000_000
        server.committer.tick(1300.0)
        await eventually(lambda: sqlite_path.stat().st_size, lambda size: size < 5_000_000)
        log = sqlite_path.with_name(f"{sqlite_path.name}-wal")
        assert log.stat().st_size < 13_000_000
        assert 0 < backend.spare_bytes <= 4 << 20, "told as it was left"
        await server.put(B)


async def test_history_of_earlier_lives_is_bounded_too(medium, kit):
    """A server that was killed every few minutes kept all that it ever wrote."""
    for _ in range(5):
        async with running(Server(kit, medium.open(), Retention(events_max=1000))) as server:
            for number in range(600):
                kit.put(server.store, Key("pods", "ns", f"{number % 10}"))
            newest = await server.put(A)
    kept = len(tuple(server.store.history()))
    assert 600 <= kept <= 1000
    assert [event.revision for event in server.store.history()] == list(
        range(newest.revision - kept + 1, newest.revision + 1)
    )
    async with running(Server(kit, medium.open(), Retention(keep_s=300.0))) as server:
        server.committer.tick(1000.0)
        server.committer.tick(1299.0)
        await server.put(B)
        assert server.store.compacted <= newest.revision - kept, (
            "what was loaded is as old as the first tick"
        )
        server.committer.tick(1300.0)
        await eventually(
            lambda: server.store.compacted, lambda revision: revision == newest.revision
        )


@pytest.mark.parametrize("outcome", ["full", "lost", "kept"])
async def test_a_compaction_that_fails_takes_no_write_with_it(outcome, medium, kit):
    backend = kit.FaultyBackend(medium.open())
    async with running(Server(kit, backend, Retention(keep_s=10.0))) as server:
        await server.put(A)
        await server.put(A)
        server.committer.tick(0.0)
        backend.compaction_plan = [outcome]
        backend.compacting.clear()
        server.committer.tick(20.0)
        await eventually(backend.compacting.is_set)
        await server.put(B)
        assert server.committer.sealed is None
        assert server.store.compacted == 1, "memory never forgets before the disk"
        assert len(server.reports) == 1
        server.committer.tick(21.0)
        await eventually(lambda: server.store.compacted, lambda revision: revision >= 3)
        assert kit.same(kit.restore(backend), server.store)


async def test_commits_go_on_while_history_is_compacted(medium, kit):
    """No write waits for more than one chunk, and compaction keeps up under load."""
    backend = kit.FaultyBackend(medium.open())
    async with running(Server(kit, backend, Retention(events_max=1000))) as server:
        for number in range(3000):
            kit.put(server.store, Key("pods", "ns", f"{number % 10}"))
        await server.put(A)
        server.committer.tick(0.0)
        for _ in range(20):
            await server.put(A)
        assert server.store.revision - server.store.compacted < 1100
        assert kit.same(kit.restore(backend), server.store)


@pytest.mark.parametrize("seed", range(6))
async def test_any_mix_of_failures(seed, medium, kit):
    """Writers against a back end that fails at random: what was acknowledged is there, and memory
    is the disk.
    """
    rng = Rng(seed)
    backend = kit.FaultyBackend(medium.open())
    acknowledged: list[Record] = []
    async with running(Server(kit, backend, Retention(events_max=50))) as server:
        stream = server.hub.subscribe(Interest(resource="pods", encoder=TypeEncoder()), now=0.0)

        async def write(key: Key) -> None:
            for _ in range(25):
                with suppress(StatusError):
                    acknowledged.append(await server.put(key))

        backend.plan = [("ok", "ok", "full", "lost", "kept")[rng.below(5)] for _ in range(200)]
        await asyncio.gather(*(write(Key("pods", "ns", f"{number % 4}")) for number in range(8)))
        backend.plan = []
        await server.put(A)
        store = server.store
        assert kit.same(kit.restore(backend), store)
        assert len({record.revision for record in acknowledged}) == len(acknowledged)
        seen = [item.revision for item in stream.take()]
        assert seen == sorted(set(seen))
        assert {record.revision for record in acknowledged} <= set(seen)
        newest = {
            record.key: record
            for record in sorted(acknowledged, key=lambda record: record.revision)
        }
        for key, record in newest.items():
            found = store.get(key)
            assert found is not None
            assert found.revision >= record.revision
        assert 0 < len(acknowledged) < 200


def _create(server: Server) -> Record:
    """A step of the registry: it refuses a name that is taken, also by a write that is only
    staged.
    """
    if server.store.latest(A) is not None:
        raise already_exists("pods", "", "a")
    return server.kit.put(server.store, A, "")


async def test_a_name_that_is_refused_as_taken_can_be_read(medium, kit):
    """Two agents create their Service at once: who hears "already exists" reads the Service that
    was first.
    """
    backend = kit.FaultyBackend(medium.open())
    async with running(Server(kit, backend)) as server:
        backend.may_append.clear()
        first, second = (
            asyncio.create_task(
                server.committer.write(lambda: _create(server), lambda record: record.revision)
            )
            for _ in range(2)
        )
        await held(backend)
        await turns()
        assert not second.done(), "the object that it is told of cannot be read yet"
        backend.may_append.set()
        assert (await first) is server.store.get(A)
        with pytest.raises(StatusError, match="already exists"):
            await second


async def test_a_refusal_is_taken_back_if_its_cause_was_not_stored(medium, kit):
    backend = kit.FaultyBackend(medium.open())
    async with running(Server(kit, backend)) as server:
        backend.may_append.clear()
        backend.plan = ["full"]
        first, second = (
            asyncio.create_task(
                server.committer.write(lambda: _create(server), lambda record: record.revision)
            )
            for _ in range(2)
        )
        await held(backend)
        await turns()
        backend.may_append.set()
        with pytest.raises(StatusError, match="disk is full"):
            await first
        assert (await second) is server.store.get(A)


async def test_a_refusal_of_a_stopping_server_does_not_wait(medium, kit):
    backend = kit.FaultyBackend(medium.open())
    async with running(Server(kit, backend)) as server:
        backend.may_append.clear()
        first = asyncio.create_task(server.put(A))
        await held(backend)
        closing = asyncio.create_task(server.committer.close())
        await turns()
        with pytest.raises(StatusError, match="shutting down"):
            await server.committer.write(lambda: _create(server), lambda record: record.revision)
        backend.may_append.set()
        await first
        await closing
