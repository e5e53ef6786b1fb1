"""The storage that one server has for itself: a file in its data folder, or memory."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from sliceplane.server.io.datadir import DataDir
from sliceplane.server.io.keys.pki import Pki
from sliceplane.server.io.keys.token_keys import TokenConfig
from sliceplane.server.io.storage.committer import Committer
from sliceplane.server.io.storage.committing import TroubleLog
from sliceplane.server.registry.registry import Registry
from sliceplane.server.store.backend import Loaded, StoredRow, chain
from sliceplane.server.store.hub import Hub
from sliceplane.server.store.mvcc import Store
from sliceplane.server.store.shelf import Retention
from sliceplane.server.store.types import EventType, StoreEvent

if TYPE_CHECKING:
    from sliceplane.server.io.storage.sqlite import SqliteBackend


class OwnStorage:
    """The state of the back end, as ``store``; ``committer`` keeps the two together from then
    on.
    """

    def __init__(self, data_dir: DataDir) -> None:
        """Raises ``StorageError``."""
        database = data_dir.database
        self.name = str(data_dir.path)
        data_dir.check_database()
        self._backend = MemoryBackend() if database is None else _sqlite(database)
        try:
            loaded = self._backend.load()
            self.store = Store.restore(loaded.history, loaded.revision, loaded.compacted)
        except BaseException:
            self._backend.close()
            raise
        self.hub = Hub(self.store)

    @property
    def spare_bytes(self) -> int:
        """Free pages of the database, as of the last tick."""
        return self._backend.spare_bytes

    def close(self) -> None:
        """Closes the back end if no committer was created, which closes it itself."""
        self._backend.close()

    async def check_identity(self, pki: Pki, tokens: TokenConfig) -> None:
        """No other server has to agree."""

    def committer(self, registry: Registry, *, keep_s: float) -> Committer:
        """Once.  *keep_s*: see ``Retention``."""
        return Committer(
            self.store,
            self.hub,
            self._backend,
            retention=Retention(keep_s=keep_s),
            on_aborted=registry.on_aborted,
        )

    def unready(self) -> str:
        """Its own health check says all."""
        return ""


def _sqlite(database: Path) -> SqliteBackend:
    from sliceplane.server.io.storage.sqlite import SqliteBackend

    backend = SqliteBackend.open(database)
    if backend.notice:
        TroubleLog().report(backend.notice)
    return backend


class MemoryBackend:
    """See ``server.store.backend.Backend``.  Not shared between committers."""

    blocking = False
    spare_bytes = 0

    def __init__(self) -> None:
        self._rows: dict[int, StoredRow] = {}
        self._revision = 1
        self._compacted = 1

    def load(self) -> Loaded:
        return Loaded(chain(self._rows.values(), self._compacted), self._revision, self._compacted)

    def append(self, events: Sequence[StoreEvent]) -> None:
        for event in events:
            previous = event.previous.revision if event.previous is not None else 0
            self._rows[event.revision] = StoredRow(event.type, event.record, previous)
        self._revision = events[-1].revision

    def reconcile(self) -> int:
        return self._revision

    def compact(self, revision: int) -> None:
        for passed in range(self._compacted + 1, revision + 1):
            row = self._rows.get(passed)
            if row is None:  # a revision that was given up, or never was ours
                continue
            self._rows.pop(row.previous, None)
            if row.type is EventType.DELETED:
                del self._rows[passed]
        self._compacted = max(self._compacted, revision)

    def release_space(self) -> bool:
        return False

    def close(self) -> None:
        """Nothing to let go of."""
