"""API servers without sockets, in the test's process: store, registry and the committer over a real
etcd.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import AsyncIterator
from typing import Any

from tests.troubles import Troubles

from sliceplane.api.scheme import ConfigMaps
from sliceplane.api.users import User
from sliceplane.kit.rng import Rng
from sliceplane.server.io.inprocess import InProcessClient
from sliceplane.server.io.requests.reports import ReportService
from sliceplane.server.io.requests.timers import HubTicker
from sliceplane.server.io.storage.etcd.backend import EtcdBackend
from sliceplane.server.io.storage.etcd.client import EtcdConfig
from sliceplane.server.io.storage.replicated import ReplicatedCommitter
from sliceplane.server.registry.registry import Registry
from sliceplane.server.store.hub import Hub
from sliceplane.server.store.mvcc import Store
from sliceplane.server.store.watcher import Interest, Watcher


class _Body:
    """Watches get the stored bytes."""

    def event(self, kind: Any, record: Any) -> bytes:
        return bytes(record.body)

    def bookmark(self, revision: int, initial_events_end: bool) -> bytes:
        return b"{}"


class Server:
    def __init__(self, config: EtcdConfig) -> None:
        self.backend_config = config
        self.backend = EtcdBackend(config)
        snapshot = self.backend.snapshot()
        loaded = snapshot.loaded
        self.store = Store.restore(loaded.history, loaded.revision, loaded.compacted)
        self.hub = Hub(self.store)
        trouble = Troubles()
        self.reports, self.mended = trouble.reports, trouble.mended
        self.registry = Registry(self.store, rng=Rng(int.from_bytes(os.urandom(4), "big")))
        self.committer = ReplicatedCommitter(
            self.store,
            self.hub,
            self.backend,
            snapshot=snapshot,
            caches=self.registry,
            trouble=trouble,
        )
        self.ticker = HubTicker(self.hub)
        self.client = InProcessClient(
            self.registry,
            self.committer,
            self.ticker,
            ReportService(time.time),
            clock=time.time,
            user=User(name="tester", groups=("system:masters",)),
        )

    async def put(self, name: str, value: str = "") -> int:
        """Create or replace a ConfigMap; its revision."""
        document = {
            "kind": "ConfigMap",
            "apiVersion": "v1",
            "metadata": {"name": name},
            "data": {"value": value},
        }
        body = json.dumps(document).encode()
        answer = await self.client.patch(ConfigMaps, "default", name, body, patch_type="apply")
        return revision_of(answer)

    async def create(self, name: str, value: str = "") -> int:
        body = json.dumps({"metadata": {"name": name}, "data": {"value": value}}).encode()
        return revision_of(await self.client.create(ConfigMaps, "default", body))

    async def get(self, name: str) -> str:
        return str(json.loads(await self.client.get(ConfigMaps, "default", name))["data"]["value"])

    def watch(self, since: int | None = None) -> Watcher:
        interest = Interest(resource=ConfigMaps.storage_key, encoder=_Body())
        return self.hub.subscribe(interest, now=0.0, since=since)

    def names(self) -> list[str]:
        return [
            record.key.name
            for record in self.store.list(ConfigMaps.storage_key, namespace="default").records
        ]


def revision_of(body: bytes) -> int:
    return int(json.loads(body)["metadata"]["resourceVersion"])


@contextlib.asynccontextmanager
async def servers(count: int, *urls: str, **options: Any) -> AsyncIterator[list[Server]]:
    """*count* of them over one etcd, under a prefix of their own; the first makes what a cluster
    begins with.
    """
    config = EtcdConfig(servers=urls, prefix=f"/{os.urandom(6).hex()}", **options)
    running: list[Server] = []
    try:
        for _ in range(count):
            running.append(Server(config))
            running[-1].committer.start()
            await running[-1].committer.write(
                lambda: running[-1].registry.bootstrap(time.time()), int
            )
        yield running
    finally:
        for server in running:
            server.ticker.close()
            await server.committer.close()
