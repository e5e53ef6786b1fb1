"""The file of the audit log: private, and renamed when it would grow beyond its bound. Only the
thread of its ``line_writer`` comes here, so everything may wait for the disk.

Renamed files have the time in their name, as kube-apiserver's have, so that what collects those
collects these; of them the newest few stay. What is no regular file (a FIFO, a terminal,
``/dev/stdout``) is only appended to.

The standard library's ``RotatingFileHandler`` is not used: at the end of the process ``logging``
takes the lock of each handler and flushes its buffer, and so waits for ever for a writer that is
stuck in a pipe or on a dead disk.
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import msgspec

_MEGABYTE = 1024 * 1024


class AuditConfig(msgspec.Struct, frozen=True, kw_only=True):
    """``size_max``: bytes of one file; ``backups_max``: how many renamed files stay (0: all)."""

    path: Path
    size_max: int = 100 * _MEGABYTE
    backups_max: int = 10


class AuditFile:
    """Owns the descriptor.  What is not open is opened by the next lines."""

    def __init__(self, config: AuditConfig, clock: Callable[[], float]) -> None:
        self._config = config
        self._clock = clock
        self._fd = -1
        self._size = 0
        self._regular = True
        self._renamed_at_ms = 0
        #: a write ended in the middle of a line
        self._torn = False

    def open(self) -> None:
        """Raises ``OSError``; waits for the reader of a FIFO."""
        fd = os.open(
            self._config.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600
        )
        try:
            status = os.fstat(fd)
            self._regular = stat.S_ISREG(status.st_mode)
            if self._regular:
                os.fchmod(fd, 0o600)
        except OSError:
            os.close(fd)
            raise
        self._fd = fd
        self._size = status.st_size

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def append(self, lines: list[bytes]) -> None:
        """All of *lines*, none beyond the bound of a file.  Raises ``OSError``; ``NotAll`` tells
        how many are there.
        """
        done = run_begins = 0
        try:
            if self._fd < 0:
                self.open()
            size = self._size
            for number, line in enumerate(lines):
                if self._regular and size and size + len(line) > self._config.size_max:
                    done += self._write(lines[run_begins:number])
                    self._rotate()
                    run_begins = number
                    size = 0
                size += len(line)
            done += self._write(lines[run_begins:])
        except NotAll as error:
            raise NotAll(error.why, done + error.lines) from error.why
        except OSError as error:
            raise NotAll(error, done) from error

    def _write(self, lines: list[bytes]) -> int:
        """Writes *lines* and returns their number. Raises ``NotAll``."""
        data = (b"\n" if self._torn else b"") + b"".join(lines)
        done = 0
        view = memoryview(data)
        try:
            while done < len(data):
                done += os.write(self._fd, view[done:])
        except OSError as error:
            raise NotAll(error, data.count(b"\n", self._torn, done)) from error
        finally:
            self._size += done
            if done:
                self._torn = data[done - 1 : done] != b"\n"
        return len(lines)

    def _rotate(self) -> None:
        path = self._config.path
        old = self._fd
        with contextlib.suppress(
            FileNotFoundError
        ):  # another process moved it, or the last try ended here
            path.rename(self._backup_name())
        self.open()
        os.close(old)
        backups = sorted(path.parent.glob(f"{path.stem}-[0-9]*{path.suffix}"))
        if self._config.backups_max:
            for gone in backups[: -self._config.backups_max]:
                gone.unlink()

    def _backup_name(self) -> Path:
        """``audit-2026-01-31T12-00-00.000.log``; the order of the names is the order of the
        files.
        """
        path = self._config.path
        # Later than the last one also if the clock is not: names of files that went are not given
        # again.
        milliseconds = max(int(self._clock() * 1000), self._renamed_at_ms + 1)
        while True:
            self._renamed_at_ms = milliseconds
            moment = datetime.fromtimestamp(milliseconds / 1000, UTC)
            stamp = f"{moment:%Y-%m-%dT%H-%M-%S}.{milliseconds % 1000:03d}"
            name = path.with_name(f"{path.stem}-{stamp}{path.suffix}")
            if not name.exists():
                return name
            milliseconds += 1


class NotAll(OSError):
    """The file took only the first *lines* of what it was given."""

    def __init__(self, why: OSError, lines: int) -> None:
        super().__init__(why.errno, why.strerror)
        self.why = why
        self.lines = lines
