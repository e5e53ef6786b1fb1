"""The mark: a small file beside the database that says what was acknowledged.

    sliceplane-acknowledged 1 HISTORY REVISION FILE CHECKSUM       numbers in hexadecimal, then a line end

It is written over after each batch that the disk has, and not synced: that costs some microseconds, and what is in it
is never newer than what the database has on disk.  So a database with less than the mark says has lost something: its
log was damaged, cut off or removed, or an older copy was put in its place.  What an unfinished write of a crash leaves
was never marked.  The kernel writes the mark to disk within about half a minute; what a failure of power takes of that
is covered by the log itself (``tally``), but for its last batch.

FILE names the very file that the mark is in (inode and generation).  In a copy of the folder it is another one: the
copy may be old, and clients may know versions that it never heard of.

The line is always of one length and fits into a sector, so it is on disk as a whole.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from zlib import crc32

_NAME: Final = "sliceplane-acknowledged"
_BYTES_MAX: Final = 256
#: linux/fs.h: a number that changes when an inode is used for another file; not every file system has one
_FS_IOC_GETVERSION: Final = 0x80087601


class BadMark(Exception):
    """The file is there and is no mark of ours.  The text says why."""


@dataclass(frozen=True, slots=True)
class Marked:
    """What a mark says."""

    history: int
    revision: int
    #: the folder was copied since it was written
    copied: bool


class Mark:
    """The open file.  Owned by one back end; calls come from one thread at a time."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._file = _file_of(descriptor)

    @staticmethod
    def path_of(database: Path) -> Path:
        return database.with_name(f"{database.name}-acked")

    @classmethod
    def read(cls, database: Path) -> Marked | None:
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
    def begin(cls, database: Path, history: int, revision: int) -> Mark:
        """Make it, or write it over, with its name on disk for good.  Raises ``OSError``."""
        path = cls.path_of(database)
        mark = cls(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
        try:
            mark.note(history, revision)
            os.ftruncate(mark._descriptor, len(_encoded(history, revision, mark._file)))
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

    def note(self, history: int, revision: int) -> None:
        """*revision* of *history* is on disk, and will be told to clients.  Raises ``OSError``."""
        os.pwrite(self._descriptor, _encoded(history, revision, self._file), 0)

    def sync(self) -> None:
        os.fsync(self._descriptor)

    def close(self) -> None:
        """Idempotent."""
        if self._descriptor >= 0:
            with contextlib.suppress(OSError):
                self.sync()
            os.close(self._descriptor)
            self._descriptor = -1


def _encoded(history: int, revision: int, file: str) -> bytes:
    content = f"{_NAME} 1 {history:016x} {revision:016x} {file}"
    return f"{content} {crc32(content.encode()):08x}\n".encode()


def _decoded(content: bytes, file: str) -> Marked:
    told, _, checksum = content.rpartition(b" ")
    parts = told.decode(errors="replace").split(" ")
    if checksum != f"{crc32(told):08x}\n".encode() or parts[0] != _NAME:
        raise BadMark("it is damaged")
    if parts[1] != "1" or len(parts) != 5:
        raise BadMark("it was written by a newer Sliceplane; use that version")
    return Marked(int(parts[2], 16), int(parts[3], 16), copied=parts[4] != file)


def _file_of(descriptor: int) -> str:
    generation = 0
    with contextlib.suppress(OSError):
        (generation,) = struct.unpack("l", fcntl.ioctl(descriptor, _FS_IOC_GETVERSION, bytes(8)))
    return f"{os.fstat(descriptor).st_ino:016x}.{generation & 0xFFFFFFFF:08x}"
