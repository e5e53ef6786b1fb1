"""Saves a snapshot to a file, and restores a file into a data directory.

Saving requests the snapshot from a running server, over HTTPS. The file appears under its name when
it is complete and on disk: parts that a full disk or a lost connection leaves are removed. The
received file is read back like for a restore, with its digest.

Restoring creates a database in a data directory without one; the folder's lock proves that no
server uses it. The database, too, appears under its name when it is complete.

A killed process (SIGKILL, power) leaves a part beside the file, which contains Secrets and is of no
use: the next one that saves to the same name removes it.
"""

from __future__ import annotations

import contextlib
import glob
import os
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from sliceplane.api.errors import StatusError
from sliceplane.kit.io.files import opened_lines
from sliceplane.kit.io.start_error import StartError
from sliceplane.server.io.datadir import DataDir
from sliceplane.server.store.backend import REVISIONS_BEYOND
from sliceplane.server.store.snapshot import (
    LINE_BYTES_MAX,
    PATH,
    REVISION_MAX,
    BadSnapshot,
    SnapshotReader,
    restored,
)

if TYPE_CHECKING:
    from sliceplane.watch.io.http.client import HttpClient

#: bound of a snapshot: all objects of a server that keeps them in memory
SNAPSHOT_BYTES_MAX = 16 << 30
#: objects in one write to the database
_BATCH = 1000


class SnapshotError(Exception):
    """A sentence for a person."""


class SnapshotSummary(msgspec.Struct, frozen=True):
    """``bytes`` is the file's size."""

    objects: int
    revision: int
    bytes: int


async def save(client: HttpClient, path: Path) -> SnapshotSummary:
    """Raises ``SnapshotError``, and what the client raises: ``StatusError``, ``Unreachable``."""
    part = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        _remove_leftovers(path)
        with _removed_unless_whole(part):
            await _receive(client.download(PATH, bytes_max=SNAPSHOT_BYTES_MAX), part)
            summary = _inspected(part, "what the server sent")
            part.replace(path)
            _sync_folder(path.parent)
    except OSError as error:
        raise SnapshotError(f"cannot write {path}: {_reason(error)}") from error
    except StatusError as error:
        if error.code != 404:
            raise
        raise SnapshotError(
            f"{client.server} saves no snapshots: it is no API server of Sliceplane; a backup of "
            "its etcd is its operator's"
        ) from error
    return summary


async def _receive(portions: AsyncIterator[bytes], part: Path) -> None:
    with os.fdopen(
        os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600), "wb"
    ) as file:
        async for portion in portions:
            file.write(portion)
        file.flush()
        os.fsync(file.fileno())


def inspect(path: Path) -> SnapshotSummary:
    """Reads all of it. Raises ``SnapshotError`` if it is incomplete."""
    return _inspected(path, str(path))


def _inspected(path: Path, name: str) -> SnapshotSummary:
    """*name*: the file in error messages."""
    with _opened(path, name) as (reader, size):
        return SnapshotSummary(sum(1 for _ in reader.records()), reader.revision, size)


def restore(path: Path, data_dir: str, *, bump: int = REVISIONS_BEYOND) -> SnapshotSummary:
    """Creates *data_dir*'s database from the snapshot, at its revision plus *bump*. Raises
    ``SnapshotError``.
    """
    from sliceplane.server.io.storage.committing import StorageError
    from sliceplane.server.store.backend import OutcomeUnknown, WriteFailed

    try:
        folder = DataDir.open(data_dir)
    except StartError as error:
        raise SnapshotError(str(error)) from error
    try:
        database = folder.database
        if database is None:
            raise SnapshotError("memory: keeps nothing; give a data directory")
        for existing in (database, database.with_name(f"{database.name}-wal")):
            if existing.exists():
                # A write-ahead log left by another database would be copied into it.
                raise SnapshotError(
                    f"{existing} exists: restoring replaces nothing; move it away, and everything "
                    "else that is called "
                    f"{database.name}-..."
                )
        with _opened(path, str(path)) as (reader, size):
            if reader.revision + bump > REVISION_MAX:
                raise SnapshotError(
                    f"revision {reader.revision} plus {bump} is more than {REVISION_MAX}"
                )
            objects = _make_database(folder, database, reader, reader.revision + bump)
            return SnapshotSummary(objects, reader.revision + bump, size)
    except (OSError, StorageError, WriteFailed, OutcomeUnknown) as error:
        why = _reason(error) if isinstance(error, OSError) else str(error)
        raise SnapshotError(f"cannot restore into {folder.path}: {why}") from error
    finally:
        folder.close()


def _make_database(folder: DataDir, database: Path, reader: SnapshotReader, revision: int) -> int:
    """Returns the number of its objects. Raises what the back end raises."""
    from sliceplane.server.io.storage.rows import AckedMark
    from sliceplane.server.io.storage.sqlite import SqliteBackend

    part = folder.restoring
    for leftover in database.parent.glob(f"{part.name}*"):
        leftover.unlink()
    with _removed_unless_whole(part):
        events = restored(reader.records())
        backend = SqliteBackend.open(part)
        try:
            for first in range(0, len(events), _BATCH):
                backend.append(events[first : first + _BATCH])
            # The history before the snapshot does not exist.
            backend.compact(revision)
        finally:
            backend.close()  # its log goes into the file
        with part.open("rb") as file:
            os.fsync(file.fileno())
        # If killed in between, the database has no mark, and versions continue even further beyond.
        AckedMark.path_of(database).unlink(missing_ok=True)
        part.replace(database)
        AckedMark.path_of(part).replace(AckedMark.path_of(database))
        _sync_folder(database.parent)
    return len(events)


@contextlib.contextmanager
def _opened(path: Path, name: str) -> Iterator[tuple[SnapshotReader, int]]:
    try:
        with opened_lines(path, line_bytes_max=LINE_BYTES_MAX) as lines:
            yield SnapshotReader(lines), lines.size_bytes
    except BadSnapshot as error:
        raise SnapshotError(f"{name}: {error}") from error
    except OSError as error:
        if error.filename != str(path):
            raise  # an error of the disk of the data directory
        raise SnapshotError(f"cannot read {name}: {_reason(error)}") from error


@contextlib.contextmanager
def _removed_unless_whole(part: Path) -> Iterator[None]:
    try:
        yield
    except BaseException:
        for leftover in part.parent.glob(f"{glob.escape(part.name)}*"):
            with contextlib.suppress(OSError):
                leftover.unlink()
        raise


def _remove_leftovers(path: Path) -> None:
    for leftover in path.parent.glob(f".{glob.escape(path.name)}.[0-9]*"):
        process = leftover.name.rpartition(".")[2]
        if process.isdecimal() and not Path("/proc", process).exists():
            with contextlib.suppress(OSError):
                leftover.unlink()


def _sync_folder(folder: Path) -> None:
    """Syncs the folder, so that the file's name is on disk, too."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _reason(error: OSError) -> str:
    return (error.strerror or str(error)).lower()
