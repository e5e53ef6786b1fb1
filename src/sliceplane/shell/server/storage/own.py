"""The storage that one server has for itself: a file in its data folder, or memory."""

from __future__ import annotations

from pathlib import Path

from sliceplane.registry.registry import Registry
from sliceplane.shell.server.datadir import DataDir
from sliceplane.shell.server.keys.pki import Pki
from sliceplane.shell.server.keys.token_keys import TokenConfig
from sliceplane.shell.server.storage.committer import Committer
from sliceplane.shell.server.storage.committing import report_mended, report_trouble
from sliceplane.shell.server.storage.memory import MemoryBackend
from sliceplane.store.backend import Backend
from sliceplane.store.hub import Hub
from sliceplane.store.mvcc import Store
from sliceplane.store.shelf import Retention


class OwnStorage:
    """What the back end remembers, as ``store``; ``committer`` keeps the two together from then on."""

    def __init__(self, data_dir: DataDir) -> None:
        """Raises ``StorageError``."""
        database = data_dir.database
        self.name = str(data_dir.path)
        data_dir.check_database()
        self._backend: Backend = MemoryBackend() if database is None else _sqlite(database)
        try:
            loaded = self._backend.load()
            self.store = Store.restore(loaded.history, loaded.revision, loaded.compacted)
        except BaseException:
            self._backend.close()
            raise
        self.hub = Hub(self.store)

    def close(self) -> None:
        """Where no committer was made; it closes the back end itself."""
        self._backend.close()

    async def check_identity(self, pki: Pki, tokens: TokenConfig) -> None:
        """No other server has to agree."""

    def committer(self, registry: Registry, *, keep_s: float) -> Committer:
        """Once.  *keep_s*: see ``Retention``."""
        return Committer(
            self.store,
            self.hub,
            self._backend,
            report=report_trouble,
            report_mended=report_mended,
            retention=Retention(keep_s=keep_s),
            on_aborted=registry.on_aborted,
        )

    def unready(self) -> str:
        """Its own health check says all."""
        return ""


def _sqlite(database: Path) -> Backend:
    from sliceplane.shell.server.storage.sqlite import SqliteBackend

    backend = SqliteBackend.open(database)
    if backend.told:
        report_trouble(backend.told)
    return backend
