"""The SQLite back end: one file, one table, one transaction per batch.

    history(revision PRIMARY KEY, type, resource, namespace, name, previous, ...)    every version that is needed
    meta(key PRIMARY KEY, value, crc)                                                schema, compacted, history
    tally(id, text)                                                                  see ``tally``

``previous`` is the revision of the version before. So compaction to R needs no index besides the
primary key: what may go are the rows that the rows up to R name as their previous ones, and the
DELETED rows up to R themselves.

Settings, and what rests on them: WAL with ``synchronous=FULL`` (COMMIT returns after fsync of the
log: durable means durable); ``locking_mode=EXCLUSIVE`` (SQLite holds a lock on the file as long as
it is open, the kernel lets it go when the process dies: two servers never share a file, and no
program changes it behind the store's back); ``auto_vacuum=INCREMENTAL`` (compaction gives space
back to the file system instead of keeping the largest size for ever).

Damage is found at five places. SQLite itself says when pages or the tree are broken; since the
table is read whole at start, by ``load``, everything that it would find in its data pages is found
there, without a second pass (on small files ``quick_check`` looks at the rest, too). Each row has a
CRC-32 over its columns, for bits that rot where SQLite does not look. The rows must form a history
(``backend.chain``), and be those that were written (``tally``), for rows that are missing. And they
must reach what was acknowledged (``mark``), for the end of the log, whose damage SQLite takes for a
write that a crash has torn.

Before a file is opened for writing it is looked at read-only (``sqlite_file``): one that is not
ours, is damaged, has not all, or was written by a newer version is not touched.
"""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterator, Sequence
from operator import itemgetter
from pathlib import Path

from sliceplane.server.io.storage import rows, sqlite_file
from sliceplane.server.io.storage.committing import StorageError
from sliceplane.server.io.storage.rows import AckedMark
from sliceplane.server.io.storage.sqlite_file import code_of, log_of, reason_of
from sliceplane.server.store.backend import (
    REVISIONS_BEYOND,
    Loaded,
    OutcomeUnknown,
    StoredRow,
    WriteFailed,
    chain,
)
from sliceplane.server.store.types import StoreEvent

#: files up to this size are checked whole at start (tens of milliseconds)
QUICK_CHECK_BYTES_MAX = 16 * 1024 * 1024
#: how SQLite tells of ``synchronous=FULL``
_SYNCHRONOUS_FULL = 2
#: SQLite's own choice
_PAGE_BYTES = 4096
#: free pages that stay in the file (4 MiB), so that it does not shrink and grow with each write
_SPARE_PAGES = 1024
#: others are given back, so many in one step
_VACUUM_PAGES = 256

_checksum = itemgetter(rows.CHECKSUM)
_DROP_SUPERSEDED = f"history WHERE revision IN ({rows.SUPERSEDED})"
_DROP_DELETED = "history WHERE revision > ? AND revision <= ? AND type = 'DELETED'"


class SqliteBackend:
    """See ``server.store.backend.Backend``.  Opened in one thread, then used from one other."""

    blocking = True

    def __init__(self, path: Path, connection: sqlite3.Connection, notice: str) -> None:
        """*notice*: see the attribute.  Raises ``sqlite3.Error`` and
        ``OSError``.
        """
        self._path = path
        self._log = log_of(path)
        self._connection = connection
        #: what the paths led to when they were opened; an open file that has lost its name is lost
        #: with the process
        self._identity = _identity(path)
        self._log_identity = _identity(self._log)
        self._compacted = sqlite_file.meta(connection, "compacted")
        self._history_number = sqlite_file.meta(connection, "history")
        self._tally = sqlite_file.read_tally(connection)
        self._usable = True
        #: free pages of the file after the last ``release_space``
        self.spare_bytes = 0
        #: a notice to the operator about the start, one sentence; "": none
        self.notice = notice
        self._mark = AckedMark.begin(path, self._history_number, self._tally.revision)

    @classmethod
    def open(cls, path: Path) -> SqliteBackend:
        """Open *path*, or make it.  Raises ``StorageError``."""
        connection: sqlite3.Connection | None = None
        try:
            prepared = sqlite_file.prepare(path)
            connection = sqlite_file.connect(path)
            if prepared.beyond:
                _go_beyond(connection, prepared.beyond)
            return cls(path, connection, prepared.why)
        except BaseException as error:
            if connection is not None:
                connection.close()  # or it owns the file until it is collected
            if not isinstance(error, (OSError, sqlite3.Error)):
                raise
            why = (
                reason_of(error)
                if isinstance(error, sqlite3.Error)
                else (error.strerror or str(error)).lower()
            )
            raise StorageError(f"cannot use {path} for storage: {why}") from error

    def load(self) -> Loaded:
        """Raises ``StorageError``, also while ``history`` is read."""
        try:
            newest = sqlite_file.newest(self._connection)
        except sqlite3.Error as error:
            raise StorageError(f"cannot read {self._path}: {reason_of(error)}") from error
        return Loaded(self._history(newest), newest, self._compacted)

    def _history(self, newest: int) -> Iterator[StoreEvent]:
        count = total = 0

        def counted() -> Iterator[StoredRow]:
            nonlocal count, total
            for row in self._connection.execute(rows.SELECT):
                count += 1
                total += row[rows.CHECKSUM]
                yield rows.decode(row)

        try:
            if self._path.stat().st_size <= QUICK_CHECK_BYTES_MAX:
                (verdict,) = self._connection.execute("PRAGMA quick_check(1)").fetchone()
                if verdict != "ok":
                    raise ValueError(verdict)
            yield from chain(counted(), self._compacted)
            sqlite_file.check_rows(self._tally, newest, count, total)
        except (sqlite3.Error, ValueError) as error:
            problem = " ".join(str(error).split())
            why = (
                reason_of(error)
                if isinstance(error, sqlite3.Error)
                else f"it is damaged ({problem})"
            )
            advice = "" if "restore it" in why else "; restore it from a copy or move it away"
            raise StorageError(f"cannot read {self._path}: {why}{advice}") from error

    def append(self, events: Sequence[StoreEvent]) -> None:
        with self._transaction():
            encoded = [rows.encode(event) for event in events]
            before = self._tally
            total = before.total + sum(map(_checksum, encoded))
            after = rows.Tally(
                events[-1].revision, before.rows + len(encoded), total, acknowledged=before.revision
            )
            self._connection.executemany(rows.INSERT, encoded)
            self._connection.execute(rows.SET_TALLY, (after.encode(self._history_number),))
        self._tally = after
        # A mark that cannot be written is an older one, which is true as well.
        with contextlib.suppress(OSError):
            self._mark.note(self._history_number, after.revision)

    def compact(self, revision: int) -> None:
        if revision <= self._compacted:
            return
        with self._unsynced(), self._transaction():
            after = _drop(self._connection, self._tally, self._compacted, revision)
        self._compacted = revision
        self._tally = after

    def release_space(self) -> bool:
        if not self._usable:
            return False
        self._check_file(WriteFailed)
        self._check_log()
        try:
            (free,) = self._connection.execute("PRAGMA freelist_count").fetchone()
            self.spare_bytes = free * _PAGE_BYTES
            if free <= _SPARE_PAGES:
                return False
            with self._unsynced():
                # It works a page per step, and only executescript steps a statement without columns
                # to its end.
                pages = min(_VACUUM_PAGES, free - _SPARE_PAGES)
                self._connection.executescript(f"PRAGMA incremental_vacuum({pages})")
            self.spare_bytes -= pages * _PAGE_BYTES
            is_more = bool(free > pages + _SPARE_PAGES)
            if not is_more:
                # The file gets its new size when the log is copied into it, for which an idle
                # server has no reason.
                self._connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()
        except sqlite3.Error as error:
            raise self._failure(error, in_commit=False) from error
        return is_more

    @contextlib.contextmanager
    def _unsynced(self) -> Iterator[None]:
        """The block has no fsync of its own: if it is lost, more history or a larger file is there
        after a restart. The next append syncs it.
        """
        self._connection.execute("PRAGMA synchronous=NORMAL")
        try:
            yield
        finally:
            self._sync_again()

    def reconcile(self) -> int:
        """Opens the file anew (never another one, nor a new one), and copies the log into it: after
        a failed fsync the pages of the log may be clean in memory and missing on disk, so only what
        is written and synced once more is durable. A log that has lost its name is not lost yet:
        closing copies it into the file.
        """
        self._check_file(OutcomeUnknown)
        with contextlib.suppress(sqlite3.Error):
            self._connection.close()
        try:
            self._connection = sqlite_file.connect(self._path)
            (busy, _, _) = self._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
            newest = sqlite_file.newest(self._connection)
            self._compacted = sqlite_file.meta(self._connection, "compacted")
            self._tally = sqlite_file.read_tally(self._connection)
            self._log_identity = _identity(self._log)
        except (sqlite3.Error, OSError, StorageError) as error:
            raise OutcomeUnknown(f"cannot read {self._path} back: {error}") from error
        if busy:
            raise OutcomeUnknown(f"cannot read {self._path} back: it is locked")
        self._usable = True
        return newest

    def close(self) -> None:
        with contextlib.suppress(sqlite3.Error):
            self._connection.close()
        self._mark.close()

    def _sync_again(self) -> None:
        """Nothing may be appended unless this has worked (in a transaction that did not end, SQLite
        ignores it).
        """
        try:
            self._connection.execute("PRAGMA synchronous=FULL")
            (mode,) = self._connection.execute("PRAGMA synchronous").fetchone()
        except sqlite3.Error:
            mode = -1
        if mode != _SYNCHRONOUS_FULL:
            self._usable = False

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[None]:
        """Raises ``WriteFailed`` and ``OutcomeUnknown``, where the block or the commit failed."""
        if not self._usable:
            raise OutcomeUnknown(
                f"cannot write {self._path}: an earlier write has to be looked at first"
            )
        self._check_file(WriteFailed)
        self._check_log()
        try:
            self._connection.execute("BEGIN IMMEDIATE")
            yield
        except sqlite3.Error as error:
            raise self._failure(error, in_commit=False) from error
        except BaseException:
            self._roll_back()
            raise
        try:
            self._connection.execute("COMMIT")
        except sqlite3.Error as error:
            raise self._failure(error, in_commit=True) from error
        self._check_log()

    def _check_file(self, blame: type[Exception]) -> None:
        """Raises *blame* if the file was deleted, moved or replaced under us: SQLite would go on
        writing to nowhere.
        """
        if _identity(self._path) != self._identity:
            raise blame(
                f"cannot write {self._path}: it was removed or replaced while the server was "
                "using it"
            )

    def _check_log(self) -> None:
        """The same of the log, before and after a transaction.  ``reconcile`` saves what is
        in it.
        """
        if _identity(self._log) != self._log_identity:
            self._usable = False
            raise OutcomeUnknown(
                f"{self._log} was removed or replaced while the server was using it"
            )

    def _failure(self, error: sqlite3.Error, *, in_commit: bool) -> WriteFailed | OutcomeUnknown:
        """Undo, and say how certain that is."""
        message = f"cannot write {self._path}: {reason_of(error)}"
        # A full disk is noticed while the log is written, before the mark that makes it count. Any
        # other error of COMMIT can come after that mark.
        certain = not in_commit or code_of(error) in (sqlite3.SQLITE_FULL, sqlite3.SQLITE_BUSY)
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
    """Returns device and inode of the file at *path*; ``None`` if there is none."""
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_dev, status.st_ino


def _drop(
    connection: sqlite3.Connection, before: rows.Tally, compacted: int, revision: int
) -> rows.Tally:
    """Compact to *revision*, which may be beyond the newest, in a transaction of the caller's; the
    tally after it.
    """
    after = rows.Tally(max(before.revision, revision), before.rows, before.total, before.revision)
    for what in (_DROP_SUPERSEDED, _DROP_DELETED):
        span = (compacted, revision)
        after = after.without(
            *connection.execute(
                f"SELECT count(*), coalesce(sum(crc), 0) FROM {what}", span
            ).fetchone()
        )
        connection.execute(f"DELETE FROM {what}", span)
    connection.execute(sqlite_file.SET_META, rows.meta("compacted", revision))
    connection.execute(rows.SET_TALLY, (after.encode(sqlite_file.meta(connection, "history")),))
    return after


def _go_beyond(connection: sqlite3.Connection, published_revision: int) -> None:
    """Have the history go on where no client can have been, and forget what was before.  Raises
    ``sqlite3.Error``.
    """
    connection.execute("BEGIN IMMEDIATE")
    stored = sqlite_file.read_tally(connection)
    sqlite_file.check_rows(
        stored, sqlite_file.newest(connection), *connection.execute(rows.COUNT_ROWS).fetchone()
    )
    _drop(
        connection,
        stored,
        sqlite_file.meta(connection, "compacted"),
        published_revision + REVISIONS_BEYOND,
    )
    connection.execute("COMMIT")
