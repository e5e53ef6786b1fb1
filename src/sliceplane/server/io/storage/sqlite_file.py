"""A database file: looked at before it is touched, compared with what was acknowledged, then opened
for good.

    check_file   read-only: is it ours, whole, and does it have all that was acknowledged?  Refused or ``FileState``
    connect      for writing, with the lock; makes what a new file needs, and brings an older schema up

The look needs care, as SQLite itself takes damage of a log for its end: it would go on from there,
and copy a wrong log into the database when the connection is closed. So everything is decided on a
connection that can write to nothing. It keeps the log's index in memory, which also makes it
independent of what is in ``-shm``.

What was acknowledged is known from the mark (``mark``) and from the log (``tally``). Without a mark
an operator has said that what is there is to do, and the history goes on beyond everything that may
have been told to clients.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
from pathlib import Path
from typing import Final

import msgspec

from sliceplane.server.io.storage import rows
from sliceplane.server.io.storage.committing import StorageError
from sliceplane.server.io.storage.rows import AckedMark, BadMark, MarkContent, Tally

SCHEMA: Final = 2
#: without a tally and a mark
_SCHEMA_BEFORE: Final = 1
#: marks the file as ours ("SlPl")
APPLICATION_ID: Final = 0x536C506C
#: the log is cut back to this size after a checkpoint
_WAL_BYTES_MAX: Final = 12 * 1024 * 1024
#: pages of the log after which it is copied into the file
_CHECKPOINT_PAGES: Final = 2000

_CREATE: Final = (
    (
        "CREATE TABLE meta (key TEXT PRIMARY KEY, value INTEGER NOT NULL, crc INTEGER NOT NULL) "
        "WITHOUT ROWID"
    ),
    rows.CREATE,
    rows.CREATE_TALLY,
)
SET_META: Final = "INSERT OR REPLACE INTO meta VALUES (?, ?, ?)"
_NEWEST: Final = (
    "SELECT max(value, coalesce((SELECT max(revision) FROM history), 0)) FROM meta WHERE key = "
    "'compacted'"
)


class FileState(msgspec.Struct, frozen=True):
    """The result of inspecting a file before it is opened."""

    #: versions go on beyond this one, which clients may know; 0: they go on where the file ends
    beyond: int = 0
    #: why, for an operator
    why: str = ""


def log_of(path: Path) -> Path:
    return path.with_name(f"{path.name}-wal")


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


def prepare(path: Path) -> FileState:
    """Look at what is at *path*, or make an empty file.  Raises ``StorageError``, ``sqlite3.Error``
    and ``OSError``.
    """
    if path.is_dir():
        raise StorageError(f"cannot use {path} for storage: it is a directory")
    if _size(path):
        return check_file(path)
    for companion in (log_of(path), AckedMark.path_of(path)):
        if _size(companion):
            what = "it is empty" if path.exists() else "it is missing"
            raise StorageError(
                f"cannot use {path} for storage: {what}, but {companion.name} is there; restore it "
                "from a copy, or remove "
                f"all files {path.name}* to begin with nothing"
            )
    _make_file(path)
    return FileState()


def _make_file(path: Path) -> None:
    """An empty file that only we may read, with its name on disk for good; the folder, too."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def check_file(path: Path) -> FileState:
    """Refuse a file that is not ours, not whole or not all.  Raises ``StorageError`` and
    ``sqlite3.Error``.
    """
    uri = f"{path.absolute().as_uri()}?mode=ro"
    # With SQLite's locks, to learn of another process. Beside a log that was left behind it needs a
    # little new file for its index; where that cannot be made (the disk is full), ``connect`` will
    # tell.
    with contextlib.closing(sqlite3.connect(uri, uri=True, timeout=0)) as connection:
        try:
            accept(path, connection)
        except sqlite3.OperationalError as error:
            if code_of(error) not in (sqlite3.SQLITE_IOERR, sqlite3.SQLITE_CANTOPEN):
                raise
    with contextlib.closing(
        sqlite3.connect(f"{uri}&vfs=unix-none", uri=True, timeout=0)
    ) as connection:
        connection.execute("PRAGMA locking_mode=EXCLUSIVE")  # with the index in memory
        return _compared(path, connection)


def _compared(path: Path, connection: sqlite3.Connection) -> FileState:
    """The file and its log with what was acknowledged."""
    schema = accept(path, connection)
    try:
        marked = AckedMark.read(path)
    except BadMark as error:
        raise _refused(
            path,
            f"{AckedMark.path_of(path).name} cannot be used to tell whether it is whole: {error}",
        ) from error
    if not schema:
        if marked is not None and marked.revision > 1:
            raise _refused(
                path, f"it has nothing in it, and revision {marked.revision} was acknowledged"
            )
        return FileState()
    revision = newest(connection)
    if schema == _SCHEMA_BEFORE:
        _check_reaches(path, revision, marked.revision if marked is not None else 0)
        return FileState(
            why=f"{path} has the form of an older version and is changed to the present one: to "
            "go back to that "
            "version, restore a copy that was made before"
        )
    history = meta(connection, "history")
    stored = read_tally(connection)
    if _size(log_of(path)):
        # It may be put together of two moments, and the log is copied into it when it is opened for
        # writing.
        check_rows(stored, revision, *connection.execute(rows.COUNT_ROWS).fetchone())
    if marked is not None and marked.history != history:
        raise _refused(path, f"{AckedMark.path_of(path).name} is of another database")
    proved = rows.proved(log_of(path), history) if _size(log_of(path)) else 0
    return _judged(path, revision, marked, proved)


def _judged(path: Path, revision: int, marked: MarkContent | None, proved: int) -> FileState:
    name = AckedMark.path_of(path).name
    if marked is None:
        if revision == 1:
            return FileState()  # we were killed while making it
        return FileState(
            max(revision, proved),
            f"{name} was missing, so nobody knows whether {path} is whole: it is used as it is, "
            "and versions go on far "
            "beyond it, so that clients list again",
        )
    _check_reaches(path, revision, max(marked.revision, proved))
    if not marked.copied:
        return FileState()
    return FileState(
        revision,
        f"{path} is a copy, which may be older than what clients have seen: versions go on far "
        "beyond it, so that "
        "clients list again",
    )


def _check_reaches(path: Path, revision: int, acknowledged: int) -> None:
    if revision < acknowledged:
        raise _refused(
            path,
            f"it ends with revision {revision}, but {acknowledged} was acknowledged: its log "
            f"({log_of(path).name}) was "
            "damaged, cut off or removed, or an older copy was put in its place",
        )


def _refused(path: Path, why: str) -> StorageError:
    return StorageError(
        f"cannot use {path} for storage: {why}; put the newest whole copy of the folder back or "
        "restore a snapshot "
        f"elsewhere, or remove {AckedMark.path_of(path).name} to go on with what is there and "
        "lose the rest"
    )


def check_rows(tally: Tally, revision: int, count: int, total: int) -> None:
    """Raises ``sqlite3.DatabaseError`` if the rows that are there are not those of the tally."""
    if (tally.revision, tally.rows, tally.total) != (revision, count, total):
        raise damaged(
            f"{count} rows up to revision {revision} are there, and they are not the {tally.rows} "
            "rows up to revision "
            f"{tally.revision} that were written"
        )


def accept(path: Path, connection: sqlite3.Connection) -> int:
    """The schema of what is in it; 0: nothing yet.  Raises ``StorageError`` if it is not ours,
    ``sqlite3.Error``.
    """
    (tables,) = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
    (application,) = connection.execute("PRAGMA application_id").fetchone()
    if not tables and application in (0, APPLICATION_ID):
        return 0  # we were killed while making it
    if application != APPLICATION_ID:
        raise StorageError(f"cannot use {path} for storage: it is a database of another program")
    schema = meta(connection, "schema")
    if schema > SCHEMA:
        raise StorageError(
            f"cannot use {path} for storage: it was written by a newer Sliceplane "
            f"(schema {schema}, we know up to {SCHEMA}); use that version or another data directory"
        )
    return schema


def connect(path: Path) -> sqlite3.Connection:
    """A connection that owns the file.  Raises ``StorageError``, ``sqlite3.Error`` and
    ``OSError``.
    """
    connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False, timeout=0)
    try:
        connection.execute("PRAGMA locking_mode=EXCLUSIVE")
        (tables,) = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
        if not tables:
            # Counts only before the first table; later it would be a write, and an open must work
            # on a full disk.
            connection.execute("PRAGMA auto_vacuum=INCREMENTAL")
        (mode,) = connection.execute("PRAGMA journal_mode=WAL").fetchone()
        if mode != "wal":
            raise StorageError(
                f"cannot use {path} for storage: its file system cannot have a write-ahead log"
            )
        connection.execute("PRAGMA synchronous=FULL")
        # What a statement needs for itself is small; a full /tmp is no reason to write nothing
        # here.
        connection.execute("PRAGMA temp_store=MEMORY")
        connection.execute(f"PRAGMA journal_size_limit={_WAL_BYTES_MAX}")
        connection.execute(f"PRAGMA wal_autocheckpoint={_CHECKPOINT_PAGES}")
        connection.execute("BEGIN IMMEDIATE")
        # Once more: the file may be another one since we looked.
        schema = accept(path, connection)
        if not schema:
            _create(connection)
        elif schema == _SCHEMA_BEFORE:
            _bring_up(path, connection)
        connection.execute("COMMIT")
    except BaseException:
        connection.close()
        raise
    return connection


def _create(connection: sqlite3.Connection) -> None:
    connection.execute(f"PRAGMA application_id={APPLICATION_ID}")
    for statement in _CREATE:
        connection.execute(statement)
    history = _new_history()
    facts = (rows.meta("schema", SCHEMA), rows.meta("compacted", 1), rows.meta("history", history))
    connection.executemany(SET_META, facts)
    connection.execute(rows.SET_TALLY, (Tally(1, 0, 0, 1).encode(history),))


def _bring_up(path: Path, connection: sqlite3.Connection) -> None:
    """A file without a tally, of the schema before.  The mark comes first: who finds the tally
    wants the mark, too.
    """
    history = _new_history()
    revision = newest(connection)
    AckedMark.begin(path, history, revision).close()
    connection.execute(rows.CREATE_TALLY)
    count, total = connection.execute(rows.COUNT_ROWS).fetchone()
    connection.execute(rows.SET_TALLY, (Tally(revision, count, total, revision).encode(history),))
    connection.executemany(SET_META, (rows.meta("schema", SCHEMA), rows.meta("history", history)))


def _new_history() -> int:
    return int.from_bytes(os.urandom(8), "big") >> 1 or 1


def newest(connection: sqlite3.Connection) -> int:
    """The newest revision, as the rows say.  Raises ``sqlite3.Error``."""
    (revision,) = connection.execute(_NEWEST).fetchone()
    return int(revision)


def read_tally(connection: sqlite3.Connection) -> Tally:
    """Raises ``sqlite3.Error``."""
    row = connection.execute(rows.GET_TALLY).fetchone()
    try:
        return rows.decode_tally("" if row is None else str(row[0]), meta(connection, "history"))
    except ValueError as error:
        raise damaged(str(error)) from error


def meta(connection: sqlite3.Connection, key: str) -> int:
    """Raises ``sqlite3.Error``."""
    row = connection.execute("SELECT key, value, crc FROM meta WHERE key = ?", (key,)).fetchone()
    if row is None or not isinstance(row[1], int) or row != rows.meta(key, row[1]):
        raise damaged(f"meta, {key}")
    value: int = row[1]
    return value


def damaged(what: str) -> sqlite3.DatabaseError:
    return sqlite3.DatabaseError(f"it is damaged ({what}){_ADVICE}")


def code_of(error: sqlite3.Error) -> int:
    """The primary result code; 0 for errors that do not come from SQLite."""
    return getattr(error, "sqlite_errorcode", 0) & 0xFF


_ADVICE: Final = "; restore it from a copy or move it away"
_REASONS: Final = {
    sqlite3.SQLITE_BUSY: "another process is using it",
    sqlite3.SQLITE_CANTOPEN: "it cannot be opened",
    sqlite3.SQLITE_CORRUPT: "it is damaged",
    sqlite3.SQLITE_FULL: "the disk is full",
    sqlite3.SQLITE_IOERR: "the disk reports an error",
    sqlite3.SQLITE_NOTADB: "it is not a database, or it is damaged",
    sqlite3.SQLITE_READONLY: "it is read-only",
}


def reason_of(error: sqlite3.Error) -> str:
    code = code_of(error)
    advice = _ADVICE if code in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB) else ""
    return f"{_REASONS[code]} ({error}){advice}" if code in _REASONS else str(error)
