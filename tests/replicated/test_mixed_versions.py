"""Data of a newer program: an older one neither starts on it nor goes on with it."""

from __future__ import annotations

import asyncio
import re

import pytest
from tests.replicated.members import Member
from tests.replicated.servers import Server, servers
from tests.waiting import eventually

from sliceplane.api.errors import StatusError
from sliceplane.server.io.storage.committing import StorageError
from sliceplane.server.io.storage.etcd import wire
from sliceplane.server.io.storage.etcd.backend import EtcdBackend
from sliceplane.server.io.storage.etcd.layout import FORMAT
from sliceplane.server.store.types import Key, Record


def _upgrade(server: Server, version: bytes) -> None:
    """As a newer server would: the head moves with the format."""
    layout, client = server.backend.layout, server.backend.client
    (head,) = client.ask("range", wire.RangeRequest(key=layout.head)).kvs
    client.ask(
        "txn",
        wire.TxnRequest(
            success=[wire.put(layout.format, version), wire.put(layout.head, head.value)]
        ),
    )


async def _until_unready(server: Server) -> None:
    await eventually(lambda: (server.committer.unready, server.committer.failing), all)


async def test_a_server_does_not_start_on_a_format_that_it_does_not_know(etcd: Member) -> None:
    async with servers(1, etcd.url) as (server,):
        await server.put("a", "1")
        await asyncio.to_thread(_upgrade, server, b"2")
        older = EtcdBackend(server.backend_config)
        try:
            with pytest.raises(
                StorageError, match=r"has format 2, of another version of Sliceplane .* format 1"
            ):
                await asyncio.to_thread(older.snapshot, patience_s=1.0)
        finally:
            older.close()


async def test_a_server_that_runs_stops_writing_and_goes_on_when_it_is_set_back(
    etcd: Member,
) -> None:
    async with servers(1, etcd.url) as (server,):
        await server.put("a", "1")
        await asyncio.to_thread(_upgrade, server, b"2")
        await _until_unready(server)
        with pytest.raises(StatusError) as refused:
            await server.put("a", "2")
        assert (refused.value.code, refused.value.retry_after_s) == (503, 1)
        assert "format 2" in refused.value.message
        assert server.names() == ["a"], "memory can be read"
        await asyncio.to_thread(_upgrade, server, FORMAT)
        await eventually(lambda: server.committer.unready, lambda why: not why)
        await server.put("a", "3")
        assert await server.get("a") == "3"


async def test_objects_that_only_a_newer_server_knows_stay(etcd: Member) -> None:
    async with servers(2, etcd.url) as (one, other):
        key = Key("widgets.newer.dev", "default", "w")
        body = b'{"apiVersion":"newer.dev/v1","kind":"Widget","metadata":{"name":"w","uid":"u-1"}}'

        def build(revision: int) -> Record:
            return Record(
                key=key,
                revision=revision,
                created=revision,
                uid="u-1",
                body=body,
                labels={},
                fields={},
            )

        await one.committer.write(lambda: one.store.stage_put(key, build).revision, int)
        await other.put("a", "1")
        assert other.store.latest(key) is not None
        later = EtcdBackend(one.backend_config)
        try:
            rows = (await asyncio.to_thread(later.snapshot)).loaded.history
        finally:
            later.close()
        assert [row.record.body for row in rows if row.record.key == key] == [body]


async def test_a_write_that_comes_too_late_may_be_sent_again(etcd: Member) -> None:
    async with servers(1, etcd.url) as (server,):
        await server.committer.close()
        with pytest.raises(StatusError) as refused:
            await server.put("a", "1")
        assert (refused.value.code, refused.value.retry_after_s) == (503, 1)


async def test_a_server_whose_memory_is_old_is_not_ready_until_it_is_current(etcd: Member) -> None:
    async with servers(1, etcd.url) as (server,):
        assert server.committer.unready == ""
        server.committer._confirmed_at -= 60
        assert server.committer.failing is None, "etcd answers"
        assert re.fullmatch(
            r"memory was last known to be current \d+ s ago", server.committer.unready
        )
        await eventually(lambda: server.committer.unready, lambda why: not why)
