"""Two servers over a real etcd: what one wrote the other knows, nothing is lost, nothing is done
twice.
"""

from __future__ import annotations

import asyncio
import json
import math
import shutil
import time
from pathlib import Path

import pytest
from tests.replicated.members import Member, cluster
from tests.replicated.servers import Server, servers
from tests.waiting import eventually

from sliceplane.api.errors import StatusError
from sliceplane.api.requests import Selection
from sliceplane.api.scheme import ConfigMaps, Pods, Services
from sliceplane.server.io.storage import replicated
from sliceplane.server.io.storage.etcd import wire
from sliceplane.server.io.storage.etcd.backend import EtcdBackend


async def test_a_write_is_seen_by_linearizable_reads_of_the_other_at_once(etcd: Member) -> None:
    async with servers(2, etcd.url) as (one, two):
        for number in range(20):
            await one.put("a", str(number))
            assert await two.get("a") == str(number)
            await two.put("a", f"{number}b")
            assert await one.get("a") == f"{number}b"
        assert two.committer.replica.reads.queries > 0


async def test_waiting_reads_share_a_question(etcd: Member) -> None:
    async with servers(1, etcd.url) as (one,):
        await one.put("a", "1")
        before = one.committer.replica.reads.queries
        await asyncio.gather(*(one.get("a") for _ in range(200)))
        assert one.committer.replica.reads.queries - before <= 3


async def test_of_two_who_create_the_same_one_is_told_so(etcd: Member) -> None:
    async with servers(2, etcd.url) as running:
        for number in range(10):
            results = await asyncio.gather(
                *(server.create(f"c{number}") for server in running for _ in range(2)),
                return_exceptions=True,
            )
            failed = [result for result in results if isinstance(result, StatusError)]
            assert [error.reason for error in failed] == ["AlreadyExists"] * 3, results


async def test_both_hand_out_different_addresses(etcd: Member) -> None:
    async with servers(2, etcd.url) as running:
        spec = {"type": "NodePort", "ports": [{"port": 80}]}
        answers = await asyncio.gather(
            *(
                server.client.create(
                    Services,
                    "default",
                    json.dumps({"metadata": {"name": f"s{index}-{number}"}, "spec": spec}).encode(),
                )
                for number in range(20)
                for index, server in enumerate(running)
            )
        )
        specs = [json.loads(answer)["spec"] for answer in answers]
        assert len({spec["clusterIP"] for spec in specs}) == 40
        assert len({spec["ports"][0]["nodePort"] for spec in specs}) == 40
        for server in running:
            await server.committer.current()
            server.registry.check()


async def test_both_get_on_under_load_and_their_watches_tell_the_same(etcd: Member) -> None:
    async with servers(2, etcd.url) as running:
        watchers = [server.watch() for server in running]
        done = [0, 0]

        async def writer(index: int, number: int) -> None:
            while sum(done) < 200:
                await running[index].put(f"w{number % 4}", f"{index}/{number}/{done[index]}")
                done[index] += 1

        await asyncio.gather(*(writer(index, number) for index in (0, 1) for number in range(8)))
        assert min(done) > 0.4 * max(done), done

        for server in running:
            await server.committer.current()
        told = [
            [(item.type, item.revision, item.data) for item in watcher.take()]
            for watcher in watchers
        ]
        assert len(told[0]) == sum(done)
        newest = min(told[0][-1][1], told[1][-1][1])
        assert [each for each in told[0] if each[1] <= newest] == [
            each for each in told[1] if each[1] <= newest
        ]


async def test_without_etcd_reads_of_any_version_go_on_and_nothing_else(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    with cluster(tmp_path_factory.mktemp("alone"), 1) as (member,):
        async with servers(1, member.url) as (one,):
            await one.put("a", "1")
            member.kill()
            waiting = asyncio.create_task(one.put("b", "2"))
            with pytest.raises(StatusError) as read:
                await one.get("a")
            assert (read.value.code, read.value.reason) == (504, "Timeout")
            with pytest.raises(StatusError) as write:
                await one.put("c", "3")
            assert (write.value.code, write.value.reason) == (503, "ServiceUnavailable")
            listed = await one.client.list(Selection(ConfigMaps, "default"), resource_version="0")
            assert len(listed.items) == 1 + len(one.names()) - 1
            assert one.committer.staleness_s > 3
            assert one.committer.failing
            member.start()
            await asyncio.to_thread(member.wait_ready)
            await waiting
            assert await one.get("b") == "2"
            assert one.committer.failing is None
            await eventually(lambda: one.committer.staleness_s, lambda seconds: seconds < 3)
            with pytest.raises(StatusError, match="not found"):
                await one.get("c")


async def test_a_gap_in_the_feed_ends_watches_and_loads_the_newest_state(
    etcd: Member, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A feed that is stuck is begun anew, and would tell what is to be missed here if the writes
    # take that long.
    monkeypatch.setattr(replicated, "STUCK_S", math.inf)
    async with servers(2, etcd.url) as (one, two):
        await one.put("a", "1")
        await two.committer.current()
        feed = two.committer._feed
        assert feed is not None
        for value in map(str, range(2, 8)):
            watcher, position = two.watch(), two.committer.replica.position
            feed._generation += 1  # whatever its stream tells is not heard any more
            await one.put("a", value)
            await one.put("b", value)
            revision = one.committer.replica.position
            await asyncio.to_thread(
                one.backend.client.ask, "compact", wire.CompactionRequest(revision=revision)
            )
            if two.committer.replica.position == position:
                break
            # On a busy machine the stream broke by itself, and was begun anew: nothing was missed.
        feed.resume(position)
        await eventually(lambda: two.committer.reloads.value)
        await eventually(lambda: watcher.error)  # the state is loaded first
        assert watcher.error.code == 410
        assert (await two.get("a"), await two.get("b")) == (value, value)
        await two.put("a", "last")
        assert await one.get("a") == "last"
        two.registry.check()
        assert two.names() == one.names()


async def test_a_log_that_went_back_is_followed_from_there(tmp_path: Path) -> None:
    """etcd is restored to what it was before, here to nothing, under a server that runs: smaller
    positions. Writes and reads go on, history is dropped as ever, and etcd is not told of revisions
    to come.
    """
    with cluster(tmp_path, 1) as (member,):
        async with servers(1, member.url) as (one,):
            for number in range(30):
                await one.put(f"a{number}")
            newest = one.store.revision
            one.committer.tick(0.0)
            member.kill()
            shutil.rmtree(tmp_path / member.name)
            member.start()
            member.wait_ready()
            await eventually(lambda: one.committer.reloads.value)
            assert one.store.revision > newest, "no version is given out twice"
            one.committer.tick(1e6)
            assert any("is not the one that it was" in report for report in one.reports)
            async with asyncio.timeout(60):
                await one.committer.write(lambda: one.registry.bootstrap(time.time()), int)
                made = await one.put("b", "1")
                assert await one.get("b") == "1"
            one.committer._compaction_due = 0.0
            one.committer.tick(1e9)
            assert one.store.compacted <= made
            one.committer._compaction_due = 0.0
            one.committer.tick(1e9)
            await asyncio.sleep(0.2)
            # On a busy machine etcd may be too slow with its answer once.
            await eventually(lambda: one.put("b", "2"), ignoring=(StatusError,))
            one.committer.replica.check()
            again = Server(one.backend_config)
            assert again.store.revision == one.store.revision
            assert again.store.compacted <= again.store.revision
            again.backend.close()


async def test_what_others_do_to_this_etcd_is_no_gap(etcd: Member) -> None:
    """Another user of the cluster writes and compacts; we have missed nothing, and no watch
    ends.
    """
    async with servers(1, etcd.url) as (one,):
        await one.put("a", "1")
        watcher, position = one.watch(), one.committer.replica.position
        for number in range(3):
            request = wire.TxnRequest(success=[wire.put(b"/registry/x", str(number).encode())])
            answer = await asyncio.to_thread(one.backend.client.ask, "txn", request)
        compaction = wire.CompactionRequest(revision=answer.header.revision)
        await asyncio.to_thread(one.backend.client.ask, "compact", compaction)
        feed = one.committer._feed
        assert feed is not None
        feed.resume(position)
        await eventually(lambda: one.committer.reloads.value)
        await one.put("a", "2")
        assert [item.type for item in watcher.take()] == ["MODIFIED"]
        assert not watcher.closed


async def test_one_of_them_compacts_and_a_start_after_it_has_the_history_since(
    etcd: Member,
) -> None:
    async with servers(2, etcd.url, compaction_interval_s=0.2) as (one, two):
        for number in range(5):
            await one.put("a", str(number))
        middle = one.store.revision

        def compacted() -> int:
            """As a server that starts now finds it."""
            for server in (one, two):
                server.committer.tick(asyncio.get_running_loop().time())
            fresh = EtcdBackend(one.backend_config)
            try:
                return fresh.snapshot().loaded.compacted
            finally:
                fresh.close()

        await eventually(compacted, lambda revision: revision >= middle - 1)
        for number in range(5):
            await two.put("a", str(number))
        third = Server(two.backend_config)
        try:
            assert third.store.revision == two.store.revision
            assert third.store.compacted >= middle - 1
            events = third.store.events_since(
                max(middle, third.store.compacted), ConfigMaps.storage_key
            )
            assert [event.revision for event in events][-5:] == list(
                range(two.store.revision - 4, two.store.revision + 1)
            )
            assert third.names() == two.names()
        finally:
            third.backend.close()


async def test_an_object_that_is_too_large_is_refused_and_nothing_else(etcd: Member) -> None:
    async with servers(1, etcd.url) as (one,):
        container = {"name": "c", "image": "i", "env": [{"name": "X", "value": "x" * 1_600_000}]}
        huge = json.dumps(
            {"metadata": {"name": "huge"}, "spec": {"containers": [container]}}
        ).encode()
        results = await asyncio.gather(
            one.put("a", "1"),
            one.client.create(Pods, "default", huge),
            one.put("b", "2"),
            return_exceptions=True,
        )
        assert isinstance(results[1], StatusError)
        assert results[1].code == 500
        assert "too large" in results[1].message
        assert isinstance(results[0], int)
        assert isinstance(results[2], int)
        assert await one.get("b") == "2"


async def test_large_objects_go_in_batches_of_their_own(etcd: Member) -> None:
    async with servers(2, etcd.url) as running:
        await asyncio.gather(
            *(running[number % 2].put(f"c{number}", "x" * 700_000) for number in range(6))
        )
        assert await running[0].get("c5") == "x" * 700_000


async def test_many_objects_at_once(etcd: Member) -> None:
    """More than one transaction of etcd may hold."""
    async with servers(2, etcd.url) as (one, two):
        await asyncio.gather(*(one.create(f"c{number}") for number in range(400)))
        assert one.committer.batches >= 4
        await two.committer.current()
        assert two.names() == one.names()
