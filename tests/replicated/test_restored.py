"""etcd is restored from a backup under servers that run or hang: nothing that was acknowledged
since is overwritten, no version means two things, and who knows a version of the lost history is
told to list again.
"""

from __future__ import annotations

import asyncio
import copy
import shutil
from pathlib import Path
from typing import Any

import pytest
from tests.replicated.interleaving import Node, World
from tests.replicated.members import Member, cluster
from tests.replicated.servers import Server, servers
from tests.replicated.test_replica_interleavings import create, prepared
from tests.waiting import eventually

from sliceplane.api.errors import StatusError
from sliceplane.api.scheme import ConfigMaps
from sliceplane.server.io.storage.etcd.backend import EtcdBackend
from sliceplane.server.io.storage.etcd.client import EtcdConfig
from sliceplane.server.io.storage.etcd.layout import Origin, decode_head
from sliceplane.server.store.backend import REVISIONS_BEYOND
from sliceplane.server.store.replica import OutOfOrder
from sliceplane.server.store.watcher import Interest


class Restored(World):
    """Two servers; ``hang`` knows batches that are lost, and the other one has written as many
    others since.
    """

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        prepared(self)
        self.hung, self.other = self.nodes
        backup = copy.deepcopy((self.etcd.revision, self.etcd.state, self.etcd.events))
        for number in range(3):
            self.submit(self.hung, create(ConfigMaps, f"lost-{number}", data={}))
            self.settle()
        self.etcd.revision, self.etcd.state, self.etcd.events = backup
        self.reload(self.other)
        while self.etcd.head < self.hung.replica.position:
            self.submit(self.other, create(ConfigMaps, f"kept-{self.etcd.head}", data={}))
            self.alone(self.other)

    def alone(self, node: Node) -> None:
        for _ in range(20):
            self.send(node)
            self.arrive(node, lose_answer=False)
            self.answer(node)
            self.feed(node, 100)

    def read_by(self, node: Node) -> None:
        node.replica.reads.add(lambda: None)
        self.send(node)
        self.answer(node)


def objects(world: World) -> dict[bytes, Any]:
    """And the head: all but turns."""
    return {
        key: kv for key, kv in world.etcd.state.items() if not key.startswith(world.layout.queue)
    }


def test_a_server_that_hung_overwrites_nothing_although_the_numbers_are_its_own() -> None:
    world = Restored(1)
    assert world.etcd.head == world.hung.replica.position
    before = copy.deepcopy(objects(world))
    request = world.submit(world.hung, create(ConfigMaps, "overwritten", data={}))
    world.send(world.hung)
    world.arrive(world.hung, lose_answer=False)
    world.answer(world.hung)
    assert objects(world) == before, "another history's head is no basis"
    assert not request.told


def test_its_reads_wait_although_the_numbers_are_its_own() -> None:
    world = Restored(2)
    with pytest.raises(OutOfOrder, match="is what is here"):
        world.read_by(world.hung)


@pytest.mark.parametrize("batches", [1, 3])
def test_it_does_not_follow_a_feed_that_rests_on_something_else(batches: int) -> None:
    """No object of both histories is touched, so nothing but the names tells."""
    world = Restored(3)
    for number in range(batches):
        world.submit(world.other, create(ConfigMaps, f"later-{number}", data={}))
        world.alone(world.other)
    with pytest.raises(OutOfOrder, match="rests on"):
        world.feed(world.hung, 100)
    world.reload(world.hung)
    world.settle()
    world.check()
    assert [record.key for record in world.hung.store.list(ConfigMaps.storage_key).records] == [
        record.key for record in world.other.store.list(ConfigMaps.storage_key).records
    ]


def test_servers_that_missed_nothing_go_on_beyond_as_well() -> None:
    """One of them found that a history is lost; the others learn by the feed that versions mean
    something else.
    """
    world = prepared(World(4, servers=2))
    one, two = world.nodes
    watcher = two.hub.subscribe(Interest(resource=ConfigMaps.storage_key, encoder=Shown()), now=0.0)
    world.submit(two, create(ConfigMaps, "under-way", data={}))
    world.send(two)
    before = [record.key for record in one.store.list(ConfigMaps.storage_key).records]
    beyond = one.store.revision + REVISIONS_BEYOND
    head = decode_head(world.etcd.state[world.layout.head].value)
    raised = world.layout.going_beyond(world.etcd.head, head, "finder", Origin("1", 0), beyond)
    assert world.etcd.txn(raised).succeeded
    world.feed(one, 100)
    assert one.store.revision == one.store.compacted == beyond
    assert [record.key for record in one.store.list(ConfigMaps.storage_key).records] == before
    world.settle()
    world.check()
    assert watcher.error is not None
    assert watcher.error.code == 410
    assert world.requests[-1].told == "201"
    assert [node.store.revision for node in world.nodes] == [beyond + 1, beyond + 1]
    assert [node.store.compacted for node in world.nodes] == [beyond, beyond]


class Shown:
    """Watches get the stored bytes."""

    def event(self, kind: Any, record: Any) -> bytes:
        return bytes(record.body)

    def bookmark(self, revision: int, initial_events_end: bool) -> bytes:
        return b"{}"


def restore(member: Member, backup: Path) -> None:
    """The member's folder is what it was at *backup*; its number, and that of the cluster, stay the
    same.
    """
    member.kill()
    shutil.rmtree(member.folder / member.name)
    shutil.copytree(backup, member.folder / member.name)
    member.start()
    member.wait_ready()


def back_up(member: Member) -> Path:
    member.kill()
    backup = member.folder / "backup"
    shutil.copytree(member.folder / member.name, backup)
    member.start()
    member.wait_ready()
    return backup


async def answered(*running: Server) -> None:
    """etcd was away for as long as it takes to start, and each of *running* has met it again."""
    for server in running:
        await eventually(server.committer.current, lambda _: True, ignoring=(StatusError,))


async def reloaded(*running: Server) -> None:
    await eventually(lambda: [server.committer.reloads.value for server in running], all)


async def test_servers_that_run_notice_and_versions_go_on_beyond_what_was_given_out(
    tmp_path: Path,
) -> None:
    with cluster(tmp_path, 1) as (member,):
        async with servers(2, member.url) as running:
            one, two = running
            await one.put("kept", "1")
            backup = await asyncio.to_thread(back_up, member)
            await answered(*running)
            lost = [await one.put(f"lost-{number}") for number in range(5)]
            changed = await two.put("kept", "2")
            for server in running:
                await server.committer.current()
            watchers = [server.watch() for server in running]
            await asyncio.to_thread(restore, member, backup)
            await reloaded(*running)
            for server in running:
                assert await server.get("kept") == "1"
                assert not [name for name in server.names() if name.startswith("lost")]
                assert changed < server.store.compacted < 2 * REVISIONS_BEYOND, (
                    "one of them did it, once"
                )
                assert any(
                    "versions go on after" in report or "loading the state anew" in report
                    for report in server.reports
                )
            assert [watcher.error and watcher.error.code for watcher in watchers] == [410, 410]
            assert one.store.revision == two.store.revision
            assert await two.put("new") > changed
            resumed = one.watch(since=lost[2])
            assert resumed.error is not None
            assert resumed.error.code == 410
            third = Server(one.backend_config)
            assert (third.store.compacted > changed, third.names()) == (True, two.names())
            third.backend.close()


async def test_a_start_on_a_restored_etcd_goes_on_beyond(tmp_path: Path) -> None:
    """All servers were stopped. The cluster that is made of a backup has another number, or at
    least a log that began anew, which is told by how far it is ahead of the revisions.
    """
    with cluster(tmp_path, 1) as (member,):
        async with servers(1, member.url) as (one,):
            for number in range(60):
                await one.put(f"a-{number}")
            newest = one.store.revision
            config = one.backend_config
        for wrong in ("cluster", "index"):
            again = Server(config)
            assert again.store.revision == newest, "an etcd that was only restarted is the same"
            again.backend.close()
            another = _pretending(config, wrong)
            snapshot = another.snapshot()
            assert "restored from a backup" in snapshot.notice
            assert (
                snapshot.loaded.revision == snapshot.loaded.compacted == newest + REVISIONS_BEYOND
            )
            assert (
                len(
                    [
                        each
                        for each in snapshot.loaded.history
                        if each.record.key.resource == "configmaps"
                    ]
                )
                >= 60
            )
            assert another.snapshot().notice == "", "once is enough"
            another.close()
            # The next one pretends on what the real one has noted.
            real = Server(config)
            newest = real.store.revision
            real.backend.close()


def _pretending(config: EtcdConfig, wrong: str) -> EtcdBackend:
    backend = EtcdBackend(config)
    ask = backend.client.ask

    def asked(method: str, request: Any, **more: Any) -> Any:
        answer = ask(method, request, **more)
        if wrong == "cluster":
            answer.header.cluster_id += 1
        elif method == "status":
            answer.raft_index = 5
        return answer

    backend.client.ask = asked  # type: ignore[method-assign]
    return backend


async def test_a_compaction_point_never_goes_back(etcd: Member) -> None:
    """A server that learned by the feed has a target of before; history of the lost versions must
    stay refused.
    """
    async with servers(1, etcd.url) as (one,):
        middle = await one.put("a")
        await one.put("b")
        beyond, backend = one.store.revision + REVISIONS_BEYOND, one.backend
        seen: asyncio.Queue[Any] = asyncio.Queue()
        loop = asyncio.get_running_loop()
        backend.read_head(lambda found: loop.call_soon_threadsafe(seen.put_nowait, found))
        head = await seen.get()
        raised = backend.layout.going_beyond(
            head.position, head.head, "finder", Origin(head.cluster, 0), beyond
        )
        assert (await asyncio.to_thread(backend.client.ask, "txn", raised)).succeeded
        await eventually(lambda: one.store.revision, lambda revision: revision >= beyond)
        for _ in range(3):
            assert not await asyncio.to_thread(backend.compact, middle)
        third = Server(one.backend_config)
        assert third.store.compacted == beyond
        third.backend.close()


def unread(port: int) -> int:
    """Bytes that have arrived at connections of *port* and that its process has not taken."""
    rows = (
        Path("/proc/net/tcp").read_text().splitlines()[1:]
        + Path("/proc/net/tcp6").read_text().splitlines()[1:]
    )
    fields = [row.split() for row in rows]
    return sum(
        int(row[4].partition(":")[2], 16)
        for row in fields
        if int(row[1].rpartition(":")[2], 16) == port
    )


async def test_a_write_under_way_is_not_reported_as_stored(tmp_path: Path) -> None:
    with cluster(tmp_path, 1) as (member,):
        async with servers(1, member.url) as (one,):
            await one.put("a", "1")
            backup = await asyncio.to_thread(back_up, member)
            await eventually(lambda: one.put("a", "2"), ignoring=(StatusError,))
            member.pause()
            writing = asyncio.create_task(one.put("a", "3" * 20_000))
            await eventually(lambda: unread(member.port), lambda count: count > 20_000)
            await asyncio.to_thread(restore, member, backup)
            (outcome,) = await asyncio.wait_for(asyncio.gather(writing, return_exceptions=True), 60)
            if isinstance(outcome, StatusError):
                assert "not known whether" in str(outcome)
                assert await one.get("a") == "1"
            else:  # sent again by the connection, and stored after the restore
                assert not isinstance(outcome, BaseException), outcome
                assert await one.get("a") == "3" * 20_000
