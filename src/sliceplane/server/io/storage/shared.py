"""Storage in etcd that several servers share, and what these must have in common.

Imported only where ``--etcd`` is given, as is everything that speaks to etcd.
"""

from __future__ import annotations

import asyncio
import hashlib
import json

from sliceplane.kit.io.start_error import StartError
from sliceplane.server.io.keys.pki import Pki
from sliceplane.server.io.keys.token_keys import TokenConfig
from sliceplane.server.io.storage.committing import StorageError, TroubleLog
from sliceplane.server.io.storage.etcd.backend import START_S_MAX, EtcdBackend, Snapshot
from sliceplane.server.io.storage.etcd.client import EtcdConfig
from sliceplane.server.io.storage.replicated import ReplicatedCommitter
from sliceplane.server.registry.registry import Registry
from sliceplane.server.store.hub import Hub
from sliceplane.server.store.mvcc import Store
from sliceplane.server.store.shelf import Retention


class SharedStorage:
    """The counterpart of ``own.OwnStorage``: ``store`` is what was read, ``committer`` follows and
    writes from then on.
    """

    spare_bytes = 0

    def __init__(self, config: EtcdConfig, backend: EtcdBackend, snapshot: Snapshot) -> None:
        self.name = f"etcd at {','.join(config.servers)}"
        self._backend = backend
        self._snapshot = snapshot
        loaded = snapshot.loaded
        self.store = Store.restore(loaded.history, loaded.revision, loaded.compacted)
        self.hub = Hub(self.store)
        self._committer: ReplicatedCommitter | None = None

    @classmethod
    async def open(cls, config: EtcdConfig) -> SharedStorage:
        """Everything is read.  Raises ``StorageError``."""
        backend = await asyncio.to_thread(EtcdBackend, config)
        try:
            snapshot = await asyncio.to_thread(backend.snapshot, patience_s=START_S_MAX)
            if snapshot.notice:
                TroubleLog().report(snapshot.notice)
            return cls(config, backend, snapshot)
        except BaseException:
            backend.close()
            raise

    def close(self) -> None:
        """Closes the back end if no committer was created, which closes it itself."""
        self._backend.close()

    def committer(self, registry: Registry, *, keep_s: float) -> ReplicatedCommitter:
        """Once.  *keep_s*: see ``Retention``."""
        self._committer = ReplicatedCommitter(
            self.store,
            self.hub,
            self._backend,
            snapshot=self._snapshot,
            caches=registry,
            retention=Retention(keep_s=keep_s),
        )
        return self._committer

    def unready(self) -> str:
        """Returns the reason why clients had better use another server; "" if memory is as new as
        the log.
        """
        return "storage is not followed yet" if self._committer is None else self._committer.unready

    async def check_identity(self, pki: Pki, tokens: TokenConfig) -> None:
        """Clients talk to any of the servers, so all must have one authority and one token key.
        Raises ``StartError``.
        """
        key_file = tokens.signing_key_file or pki.token_key_file
        mine = {
            "authority": pki.identity,
            "tokenKey": hashlib.sha256(b"sliceplane token key" + key_file.read_bytes()).hexdigest(),
        }
        try:
            agreed = await asyncio.to_thread(self._backend.claim_identity, json.dumps(mine))
        except StorageError as error:
            raise StartError(str(error)) from error
        theirs = json.loads(agreed)
        for name, what in (
            ("authority", "certificate authority"),
            ("tokenKey", "key of service account tokens"),
        ):
            if theirs.get(name) != mine[name]:
                raise StartError(
                    f"the other servers of this etcd have another {what}: stop this server and "
                    "copy the folder pki "
                    f"(and tokens.csv) of one of their data directories to {pki.folder}; "
                    "docs/deploy.md says more"
                )
