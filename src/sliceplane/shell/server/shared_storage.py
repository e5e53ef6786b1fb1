"""A plane's storage in etcd: opening it, what its servers must have in common, and its figures.

Imported only where ``--etcd`` is given, as is everything that speaks to etcd.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
from typing import TYPE_CHECKING

from sliceplane.shell.process.start_error import StartError
from sliceplane.shell.server.storage.errors import StorageError
from sliceplane.shell.server.storage.etcd.backend import START_SECONDS_MAX, EtcdBackend, Snapshot
from sliceplane.shell.server.storage.etcd.client import EtcdConfig
from sliceplane.shell.server.storage.replicated import ReplicatedCommitter
from sliceplane.store.hub import Hub
from sliceplane.store.mvcc import Store
from sliceplane.store.retention import Retention

if TYPE_CHECKING:
    from sliceplane.shell.server.keys.pki import Pki
    from sliceplane.shell.server.keys.token_keys import TokenConfig
    from sliceplane.shell.server.plane import Plane


class SharedStorage:
    """Made by one plane; the back end is closed with its committer."""

    def __init__(self, config: EtcdConfig, backend: EtcdBackend, snapshot: Snapshot) -> None:
        self._config = config
        self.backend = backend
        self._snapshot: Snapshot | None = snapshot
        self._committer: ReplicatedCommitter | None = None

    @classmethod
    async def open(cls, config: EtcdConfig) -> SharedStorage:
        """Everything is read.  Raises ``StorageError``."""
        backend = await asyncio.to_thread(EtcdBackend, config)
        try:
            snapshot = await asyncio.to_thread(backend.snapshot, patience_s=START_SECONDS_MAX)
        except BaseException:
            backend.close()
            raise
        return cls(config, backend, snapshot)

    def attach(self, plane: Plane) -> tuple[Store, Hub, ReplicatedCommitter]:
        """The parts of *plane* that rest on what was read."""
        from sliceplane.shell.server.plane import report_mended_storage, report_storage

        assert self._snapshot is not None, "what was read is used once"
        snapshot, self._snapshot = self._snapshot, None
        if snapshot.told:
            report_storage(snapshot.told)
        loaded = snapshot.loaded
        store = Store.restore(loaded.history, loaded.revision, loaded.compacted)
        hub = Hub(store)
        committer = self._committer = ReplicatedCommitter(
            store,
            hub,
            self.backend,
            snapshot=snapshot,
            on_changed=lambda keys: plane.registry.on_changed(keys),  # noqa: PLW0108  # it is made later
            on_replaced=lambda: plane.registry.on_aborted(),  # noqa: PLW0108
            retention=Retention(keep_s=plane.config.history_keep_s),
            compaction_interval_s=self._config.compaction_interval_s,
            report=report_storage,
            report_mended=report_mended_storage,
        )
        return store, hub, committer

    def unready(self) -> str:
        """Why clients had better ask another server; "" where memory is as new as the log."""
        assert self._committer is not None, "attached before anybody asks"
        return self._committer.unready

    async def check_identity(self, pki: Pki, tokens: TokenConfig) -> None:
        """Clients talk to any of the servers, so all must have one authority and one token key.  Raises
        ``StartError``."""
        key_file = tokens.signing_key_file or pki.token_key_file
        mine = {
            "authority": pki.identity,
            "tokenKey": hashlib.sha256(b"sliceplane token key" + key_file.read_bytes()).hexdigest(),
        }
        try:
            found = await asyncio.to_thread(self.backend.claim_identity, json.dumps(mine))
        except StorageError as error:
            raise StartError(str(error)) from error
        theirs = json.loads(found)
        for name, what in (("authority", "certificate authority"), ("tokenKey", "key of service account tokens")):
            if theirs.get(name) != mine[name]:
                raise StartError(
                    f"the other servers of this etcd have another {what}: stop this server and copy the folder pki "
                    f"(and tokens.csv) of one of their data directories to {pki.folder}; docs/etcd.md says more"
                )
