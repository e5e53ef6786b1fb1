"""The SQLite back end: one file, one table, one transaction per batch.

    history(revision PRIMARY KEY, type, resource, namespace, name, previous, ...)    every version that is needed
    meta(key PRIMARY KEY, value, crc)                                                schema, compacted

``previous`` is the revision of the version before.  So compaction to R needs no index besides the primary key: what
may go are the rows that the rows up to R name as their previous ones, and the DELETED rows up to R themselves.

Settings, and what rests on them: WAL with ``synchronous=FULL`` (COMMIT returns after fsync of the log: durable means
durable); ``locking_mode=EXCLUSIVE`` (SQLite holds a lock on the file as long as it is open, the kernel lets it go when
the process dies: two servers never share a file, and nobody changes it behind the store's back);
``auto_vacuum=INCREMENTAL`` (compaction gives space back to the file system instead of keeping the largest size for
ever).

Damage is found at three places.  SQLite itself says when pages or the tree are broken; since the table is read whole
at start, by ``load``, everything that it would find in its data pages is found there, without a second pass (on small
files ``quick_check`` looks at the rest, too).  Each row has a CRC-32 over its columns, for bits that rot where SQLite
does not look.  And the rows must form a history (``backend.chain``), for rows that are missing.

Before a file is opened for writing it is looked at read-only: a file that is not ours, is damaged at its head or was
written by a newer version is not touched.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from sliceplane.shell.storage import rows
from sliceplane.shell.storage.errors import StorageError
from sliceplane.store.backend import Loaded, OutcomeUnknown, WriteFailed, chain
from sliceplane.store.types import StoreEvent

SCHEMA = 1
#: marks the file as ours ("SlPl")
APPLICATION_ID = 0x536C506C
#: files up to this size are checked whole at start (tens of milliseconds)
QUICK_CHECK_BYTES_MAX = 16 * 1024 * 1024
#: how SQLite tells of ``synchronous=FULL``
_SYNCHRONOUS_FULL = 2
#: the log is cut back to this size after a checkpoint
_WAL_BYTES_MAX = 64 * 1024 * 1024
#: pages of the log after which it is copied into the file
_CHECKPOINT_PAGES = 2000
#: free pages are given back when there are so many and they are a quarter of the file; so many at a time
_VACUUM_PAGES = 256

_CREATE = (
    "CREATE TABLE meta (key TEXT PRIMARY KEY, value INTEGER NOT NULL, crc INTEGER NOT NULL) WITHOUT ROWID",
    rows.CREATE,
)
_SET_META = "INSERT OR REPLACE INTO meta VALUES (?, ?, ?)"
_NEWEST = "SELECT max(value, coalesce((SELECT max(revision) FROM history), 0)) FROM meta WHERE key = 'compacted'"


class SqliteBackend:
    """See ``store.backend.Backend``.  Opened in one thread, then used from one other."""

    blocking = True

    def __init__(self, path: Path, connection: sqlite3.Connection) -> None:
        self._path = path
        self._connection = connection
        #: what the path led to when it was opened; an open file that has lost its name is lost with the process
        self._identity = _identity(path)
        self._compacted = _meta(connection, "compacted")
        self._usable = True

    @classmethod
    def open(cls, path: Path) -> SqliteBackend:
        """Open *path*, or make it.  Raises ``StorageError``."""
        try:
            if path.is_dir():
                raise StorageError(f"cannot use {path} for storage: it is a directory")
            if _is_new(path):
                _make_file(path)
            else:
                _look_at(path)
            connection = _connect(path)
        except OSError as error:
            raise StorageError(f"cannot use {path} for storage: {(error.strerror or str(error)).lower()}") from error
        except sqlite3.Error as error:
            raise StorageError(f"cannot use {path} for storage: {_reason(error)}") from error
        return cls(path, connection)

    def load(self) -> Loaded:
        """Raises ``StorageError``, also while ``history`` is read."""
        newest = self._read(lambda: int(self._connection.execute(_NEWEST).fetchone()[0]))
        return Loaded(self._history(), newest, self._compacted)

    def _history(self) -> Iterator[StoreEvent]:
        try:
            if self._path.stat().st_size <= QUICK_CHECK_BYTES_MAX:
                (verdict,) = self._connection.execute("PRAGMA quick_check(1)").fetchone()
                if verdict != "ok":
                    raise ValueError(verdict)
            stored = map(rows.decode, self._connection.execute(rows.SELECT))
            yield from chain(stored, self._compacted)
        except (sqlite3.Error, ValueError) as error:
            told = " ".join(str(error).split())
            why = _reason(error) if isinstance(error, sqlite3.Error) else f"it is damaged ({told})"
            raise StorageError(f"cannot read {self._path}: {why}; restore it from a copy or move it away") from error

    def _read(self, query: Callable[[], int]) -> int:
        try:
            return query()
        except sqlite3.Error as error:
            raise StorageError(f"cannot read {self._path}: {_reason(error)}") from error

    def append(self, events: Sequence[StoreEvent]) -> None:
        self._transact(lambda: self._connection.executemany(rows.INSERT, map(rows.encode, events)))

    def compact(self, revision: int) -> None:
        if revision <= self._compacted:
            return
        span = (self._compacted, revision)

        def drop() -> None:
            execute = self._connection.execute
            execute(f"DELETE FROM history WHERE revision IN ({rows.SUPERSEDED})", span)
            execute("DELETE FROM history WHERE revision > ? AND revision <= ? AND type = 'DELETED'", span)
            execute(_SET_META, rows.meta("compacted", revision))

        # No fsync of its own: if it is lost, more history is there after the restart.  The next append syncs it.
        self._connection.execute("PRAGMA synchronous=NORMAL")
        try:
            self._transact(drop)
            self._compacted = revision
            self._give_back()
        finally:
            self._sync_again()

    def _give_back(self) -> None:
        """Some free pages go back to the file system, if there are many."""
        try:
            (free,) = self._connection.execute("PRAGMA freelist_count").fetchone()
            (pages,) = self._connection.execute("PRAGMA page_count").fetchone()
            if free > _VACUUM_PAGES and free * 4 > pages:
                # It works a page per step, and only executescript steps a statement without columns to its end.
                self._connection.executescript(f"PRAGMA incremental_vacuum({_VACUUM_PAGES})")
        except sqlite3.Error as error:
            raise self._failure(error, in_commit=False) from error

    def reconcile(self) -> int:
        """Opens the file anew (never another one, nor a new one), and copies the log into it: after a failed fsync the
        pages of the log may be clean in memory and missing on disk, so only what is written and synced once more is
        durable."""
        self._check_place(OutcomeUnknown)
        with contextlib.suppress(sqlite3.Error):
            self._connection.close()
        try:
            self._connection = _connect(self._path)
            (busy, _, _) = self._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
            newest = int(self._connection.execute(_NEWEST).fetchone()[0])
            self._compacted = _meta(self._connection, "compacted")
        except (sqlite3.Error, OSError, StorageError) as error:
            raise OutcomeUnknown(f"cannot read {self._path} back: {error}") from error
        if busy:
            raise OutcomeUnknown(f"cannot read {self._path} back: it is locked")
        self._usable = True
        return newest

    def close(self) -> None:
        with contextlib.suppress(sqlite3.Error):
            self._connection.close()

    def _sync_again(self) -> None:
        """Nothing may be appended unless this has worked (in a transaction that did not end, SQLite ignores it)."""
        try:
            self._connection.execute("PRAGMA synchronous=FULL")
            (mode,) = self._connection.execute("PRAGMA synchronous").fetchone()
        except sqlite3.Error:
            mode = -1
        if mode != _SYNCHRONOUS_FULL:
            self._usable = False

    def _transact(self, work: Callable[[], object]) -> None:
        if not self._usable:
            raise OutcomeUnknown(f"cannot write {self._path}: an earlier write has to be looked at first")
        self._check_place(WriteFailed)
        try:
            self._connection.execute("BEGIN IMMEDIATE")
            work()
        except sqlite3.Error as error:
            raise self._failure(error, in_commit=False) from error
        except BaseException:
            self._roll_back()
            raise
        try:
            self._connection.execute("COMMIT")
        except sqlite3.Error as error:
            raise self._failure(error, in_commit=True) from error

    def _check_place(self, blame: type[Exception]) -> None:
        """Raises *blame* if the file was deleted, moved or replaced under us: SQLite would go on writing to nowhere."""
        if _identity(self._path) != self._identity:
            raise blame(f"cannot write {self._path}: it was removed or replaced while the server was using it")

    def _failure(self, error: sqlite3.Error, *, in_commit: bool) -> WriteFailed | OutcomeUnknown:
        """Undo, and say how certain that is."""
        message = f"cannot write {self._path}: {_reason(error)}"
        # A full disk is noticed while the log is written, before the mark that makes it count.  Any other error of
        # COMMIT can come after that mark.
        certain = not in_commit or _code(error) in (sqlite3.SQLITE_FULL, sqlite3.SQLITE_BUSY)
        if self._roll_back() and certain:
            return WriteFailed(message)
        self._usable = False
        return OutcomeUnknown(message)

    def _roll_back(self) -> bool:
        try:
            # SQLite ends the transaction itself after some errors.
            if self._connection.in_transaction:
                self._connection.execute("ROLLBACK")
        except sqlite3.Error:
            self._usable = False
            return False
        return True


def _identity(path: Path) -> tuple[int, int] | None:
    """Of the file at *path*; ``None`` if there is none."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino


def _is_new(path: Path) -> bool:
    try:
        return path.stat().st_size == 0
    except FileNotFoundError:
        return True


def _make_file(path: Path) -> None:
    """An empty file that only we may read, with its name on disk for good; the folder, too."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def _look_at(path: Path) -> None:
    """Refuse a file that is not ours, without writing to it.  Raises ``StorageError`` and ``sqlite3.Error``.

    Reading beside a log that was left behind needs a little new file for its index.  Where that cannot be made (the
    disk is full), ``_connect`` alone decides: it keeps the index in memory.
    """
    with contextlib.closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True, timeout=0)) as connection:
        try:
            _accept(path, connection)
        except sqlite3.OperationalError as error:
            if _code(error) not in (sqlite3.SQLITE_IOERR, sqlite3.SQLITE_CANTOPEN):
                raise


def _accept(path: Path, connection: sqlite3.Connection) -> bool:
    """Whether there is anything in it yet.  Raises ``StorageError`` if it is not ours, ``sqlite3.Error``."""
    (tables,) = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
    (application,) = connection.execute("PRAGMA application_id").fetchone()
    if not tables and application in (0, APPLICATION_ID):
        return False  # we were killed while making it
    if application != APPLICATION_ID:
        raise StorageError(f"cannot use {path} for storage: it is a database of another program")
    schema = _meta(connection, "schema")
    if schema > SCHEMA:
        raise StorageError(
            f"cannot use {path} for storage: it was written by a newer Sliceplane "
            f"(schema {schema}, we know up to {SCHEMA}); use that version or another data directory"
        )
    return True


def _connect(path: Path) -> sqlite3.Connection:
    """A connection that owns the file.  Raises ``StorageError`` and ``sqlite3.Error``."""
    connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False, timeout=0)
    try:
        connection.execute("PRAGMA locking_mode=EXCLUSIVE")
        (tables,) = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
        if not tables:
            # Counts only before the first table; later it would be a write, and an open must work on a full disk.
            connection.execute("PRAGMA auto_vacuum=INCREMENTAL")
        (mode,) = connection.execute("PRAGMA journal_mode=WAL").fetchone()
        if mode != "wal":
            raise StorageError(f"cannot use {path} for storage: its file system cannot have a write-ahead log")
        connection.execute("PRAGMA synchronous=FULL")
        connection.execute(f"PRAGMA journal_size_limit={_WAL_BYTES_MAX}")
        connection.execute(f"PRAGMA wal_autocheckpoint={_CHECKPOINT_PAGES}")
        connection.execute("BEGIN IMMEDIATE")
        # Once more: the file may be another one since we looked.
        if not _accept(path, connection):
            connection.execute(f"PRAGMA application_id={APPLICATION_ID}")
            for statement in _CREATE:
                connection.execute(statement)
            connection.executemany(_SET_META, (rows.meta("schema", SCHEMA), rows.meta("compacted", 1)))
        connection.execute("COMMIT")
    except BaseException:
        connection.close()
        raise
    return connection


def _meta(connection: sqlite3.Connection, key: str) -> int:
    """Raises ``sqlite3.Error``."""
    row = connection.execute("SELECT key, value, crc FROM meta WHERE key = ?", (key,)).fetchone()
    if row is None or row != rows.meta(key, row[1]):
        raise sqlite3.DatabaseError(f"it is damaged (meta, {key})")
    value: int = row[1]
    return value


def _code(error: sqlite3.Error) -> int:
    """The primary result code; 0 for errors that do not come from SQLite."""
    return getattr(error, "sqlite_errorcode", 0) & 0xFF


_REASONS = {
    sqlite3.SQLITE_BUSY: "another process is using it",
    sqlite3.SQLITE_CANTOPEN: "it cannot be opened",
    sqlite3.SQLITE_CORRUPT: "it is damaged",
    sqlite3.SQLITE_FULL: "the disk is full",
    sqlite3.SQLITE_IOERR: "the disk reports an error",
    sqlite3.SQLITE_NOTADB: "it is not a database, or it is damaged",
    sqlite3.SQLITE_READONLY: "it is read-only",
}


def _reason(error: sqlite3.Error) -> str:
    reason = _REASONS.get(_code(error))
    return f"{reason} ({error})" if reason else str(error)
