"""Content of a database: records as rows of the table ``history``, and the proofs that it has all
that was acknowledged, its *tally* and the *mark* beside it.

Labels, fields and owners are JSON text, "" if there are none.  ``crc`` is over all other columns.

    tally(id = 0, text)      "slpl-tally REVISION ROWS TOTAL ACKNOWLEDGED DIGEST", numbers in hexadecimal

Every transaction writes this row anew. ROWS and TOTAL are the number of rows of ``history`` and the
sum of their checksums, so they name the set of rows, whatever the order is. A database that is put
together of pages of two moments (an older file under a newer log, an older log over a newer file, a
checkpoint whose log is gone) has a tally that is not that of its rows.

ACKNOWLEDGED is the newest revision that was on disk for certain when the transaction began. A log
that has lost its end still has, in what follows the damage, the tallies of later transactions, and
each proves what had been acknowledged before it. So they are looked for in the log's bytes
(``proved``), whatever SQLite takes for its end. A write that was torn by a crash leaves no such
proof of itself, as nothing began after it.

DIGEST is keyed with the history's number, which never leaves the database: bodies are in the log as
well, and who writes one must not be able to write a proof.

    sliceplane-acknowledged 1 HISTORY REVISION FILE CHECKSUM       numbers in hexadecimal, then a line end

The mark, a small file, is written over after each batch that the disk has, and not synced: that
costs some microseconds, and what is in it is never newer than what the database has on disk. So a
database with less than the mark says has lost something: its log was damaged, cut off or removed,
or an older copy was put in its place. What an unfinished write of a crash leaves was never marked.
The kernel writes the mark to disk within about half a minute; what a failure of power takes of that
is covered by the tallies in the log, but for its last batch.

FILE names the very file that the mark is in (inode and generation). In a copy of the folder it is
another one: the copy may be old, and clients may know versions that it never heard of. The line is
always of one length and fits into a sector, so it is on disk as a whole.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import mmap
import os
import re
import struct
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final
from zlib import crc32

import msgspec
from msgspec.structs import replace

from sliceplane.server.store.backend import StoredRow
from sliceplane.server.store.types import EventType, Key, Record, StoreEvent

CREATE = """
CREATE TABLE history (
    revision INTEGER PRIMARY KEY,
    type TEXT NOT NULL,
    resource TEXT NOT NULL,
    namespace TEXT NOT NULL,
    name TEXT NOT NULL,
    previous INTEGER NOT NULL,
    created INTEGER NOT NULL,
    uid TEXT NOT NULL,
    labels TEXT NOT NULL,
    fields TEXT NOT NULL,
    owners TEXT NOT NULL,
    crc INTEGER NOT NULL,
    body BLOB NOT NULL
)"""
INSERT = "INSERT INTO history VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
SELECT = """
SELECT revision, type, resource, namespace, name, previous, created, uid, labels, fields, owners, crc, body
FROM history ORDER BY revision"""
#: what the rows in (?, ?] have replaced
SUPERSEDED = "SELECT previous FROM history WHERE revision > ? AND revision <= ? AND previous > 0"

Row = tuple[int, str, str, str, str, int, int, str, str, str, str, int, bytes]
#: the column ``crc``
CHECKSUM: Final = 11

_encoder = msgspec.json.Encoder(order="sorted")
_mapping = msgspec.json.Decoder(dict[str, str])
_sequence = msgspec.json.Decoder(tuple[str, ...])
#: shared by all records without labels: a dictionary of each one's own is 64 bytes
_EMPTY: Mapping[str, str] = MappingProxyType({})


def encode(event: StoreEvent) -> Row:
    """The row of *event*, for ``INSERT``."""
    record = event.record
    key = record.key
    kind = event.type.value
    previous = event.previous.revision if event.previous is not None else 0
    labels = _encoder.encode(dict(record.labels)).decode() if record.labels else ""
    fields = _encoder.encode(dict(record.fields)).decode() if record.fields else ""
    owners = _encoder.encode(record.owners).decode() if record.owners else ""
    columns = (
        *(record.revision, kind, *key, previous, record.created, record.uid),
        *(labels, fields, owners),
    )
    return (*columns, _crc(record.body, *columns), record.body)


def decode(row: tuple[Any, ...]) -> StoredRow:
    """A row of ``SELECT``.  Raises ``ValueError`` if it is not what was written."""
    (
        revision,
        kind,
        resource,
        namespace,
        name,
        previous,
        created,
        uid,
        labels,
        fields,
        owners,
        crc,
        body,
    ) = row
    if not isinstance(body, bytes) or crc != _crc(body, *row[:-2]):
        raise ValueError(f"the row of revision {revision} has a wrong checksum")
    record = Record(
        key=Key(resource, namespace, name),
        revision=revision,
        created=created,
        uid=uid,
        body=body,
        labels=_mapping.decode(labels) if labels else _EMPTY,
        fields=_mapping.decode(fields) if fields else _EMPTY,
        owners=_sequence.decode(owners) if owners else (),
    )
    return StoredRow(EventType(kind), record, previous)


def meta(key: str, value: int) -> tuple[str, int, int]:
    """A row of the table ``meta``."""
    return key, value, _crc(b"", key, value)


def _crc(body: bytes, *columns: str | int) -> int:
    return crc32(body, crc32("\0".join(map(str, columns)).encode()))


CREATE_TALLY: Final = (
    "CREATE TABLE tally (id INTEGER PRIMARY KEY CHECK (id = 0), text TEXT NOT NULL)"
)
SET_TALLY: Final = "INSERT OR REPLACE INTO tally VALUES (0, ?)"
GET_TALLY: Final = "SELECT text FROM tally WHERE id = 0"
#: rows, and the sum of their checksums, of a history that is there
COUNT_ROWS: Final = "SELECT count(*), coalesce(sum(crc), 0) FROM history"

_PATTERN: Final = re.compile(
    rb"slpl-tally ([0-9a-f]{16}) ([0-9a-f]{16}) ([0-9a-f]{16}) ([0-9a-f]{16}) ([0-9a-f]{32})"
)
_NAME: Final = "sliceplane-acknowledged"
_BYTES_MAX: Final = 256
#: linux/fs.h: a number that changes when an inode is used for another file; not every file system
#: has one
_FS_IOC_GETVERSION: Final = 0x80087601


class Tally(msgspec.Struct, frozen=True):
    revision: int
    rows: int
    #: of their checksums
    total: int
    #: the newest revision that was on disk for certain before
    acknowledged: int

    def without(self, rows: int, total: int) -> Tally:
        """After a compaction, which adds nothing."""
        return replace(self, rows=self.rows - rows, total=self.total - total)

    def encode(self, history: int) -> str:
        content = (
            f"slpl-tally {self.revision:016x} {self.rows:016x} {self.total:016x} "
            f"{self.acknowledged:016x}"
        )
        return f"{content} {_digest(content.encode(), history)}"


def decode_tally(text: str, history: int) -> Tally:
    """Raises ``ValueError`` if it is not a tally of this *history*."""
    match = _PATTERN.fullmatch(text.encode())
    tally = _proof(match, history) if match is not None else None
    if tally is None:
        raise ValueError("its tally is wrong")
    return tally


def proved(log: Path, history: int) -> int:
    """The newest revision that *log* proves to have been acknowledged; 0: none.  Raises
    ``OSError``.
    """
    with log.open("rb") as file:
        if not file.seek(0, 2):
            return 0
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
            tallies = (_proof(match, history) for match in _PATTERN.finditer(content))
            return max((tally.acknowledged for tally in tallies if tally is not None), default=0)


def _proof(match: re.Match[bytes], history: int) -> Tally | None:
    content = match[0][: -len(match[5]) - 1]
    if _digest(content, history).encode() != match[5]:
        return None
    return Tally(*(int(match[number], 16) for number in range(1, 5)))


def _digest(content: bytes, history: int) -> str:
    return hashlib.blake2b(content, digest_size=16, key=history.to_bytes(8, "big")).hexdigest()


class BadMark(Exception):
    """The file is there and is no mark of ours.  The text says why."""


class MarkContent(msgspec.Struct, frozen=True):
    """The content of a mark."""

    history: int
    revision: int
    #: the folder was copied since it was written
    copied: bool


class AckedMark:
    """The open file.  Owned by one back end; calls come from one thread at a time."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._file = _file_of(descriptor)

    @staticmethod
    def path_of(database: Path) -> Path:
        return database.with_name(f"{database.name}-acked")

    @classmethod
    def read(cls, database: Path) -> MarkContent | None:
        """``None``: there is none.  Raises ``BadMark`` and ``OSError``."""
        try:
            descriptor = os.open(cls.path_of(database), os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return None
        try:
            return _decoded(os.read(descriptor, _BYTES_MAX), _file_of(descriptor))
        finally:
            os.close(descriptor)

    @classmethod
    def begin(cls, database: Path, history: int, revision: int) -> AckedMark:
        """Make it, or write it over, with its name on disk for good.  Raises ``OSError``."""
        path = cls.path_of(database)
        mark = cls(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
        try:
            os.ftruncate(mark._descriptor, mark.note(history, revision))
            mark.sync()
            folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                os.fsync(folder)
            finally:
                os.close(folder)
        except BaseException:
            mark.close()
            raise
        return mark

    def note(self, history: int, revision: int) -> int:
        """*revision* of *history* is on disk, and will be told to clients. Returns how long the
        mark is. Raises ``OSError``.
        """
        content = f"{_NAME} 1 {history:016x} {revision:016x} {self._file}"
        return os.pwrite(self._descriptor, f"{content} {crc32(content.encode()):08x}\n".encode(), 0)

    def sync(self) -> None:
        os.fsync(self._descriptor)

    def close(self) -> None:
        """Idempotent."""
        if self._descriptor >= 0:
            with contextlib.suppress(OSError):
                self.sync()
            os.close(self._descriptor)
            self._descriptor = -1


def _decoded(content: bytes, file: str) -> MarkContent:
    payload, _, checksum = content.rpartition(b" ")
    parts = payload.decode(errors="replace").split(" ")
    if checksum != f"{crc32(payload):08x}\n".encode() or parts[0] != _NAME:
        raise BadMark("it is damaged")
    if parts[1] != "1" or len(parts) != 5:
        raise BadMark("it was written by a newer Sliceplane; use that version")
    return MarkContent(int(parts[2], 16), int(parts[3], 16), copied=parts[4] != file)


def _file_of(descriptor: int) -> str:
    generation = 0
    with contextlib.suppress(OSError):
        (generation,) = struct.unpack("l", fcntl.ioctl(descriptor, _FS_IOC_GETVERSION, bytes(8)))
    return f"{os.fstat(descriptor).st_ino:016x}.{generation & 0xFFFFFFFF:08x}"
