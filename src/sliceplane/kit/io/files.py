"""The only reader of files that a command line names: manifests, configurations, kubeconfigs, keys,
tokens, recordings.

A file may be untrusted, or not be a regular file. Every caller passes its bound in bytes and
handles one kind of error: ``OSError`` with a sentence as ``strerror`` and the name as ``filename``.

- A directory, a device and a socket are refused; reading one could last for ever or change it.
- A pipe is read, because a shell makes one of ``<(command)``. Opening it never waits, a pipe
  without a writer is refused, and a writer may be silent for ``PIPE_WAIT_S``.
- A file that is longer than its bound is refused when it is opened, and one that grows beyond it
  when that is read.

The parsers bound the expansion of the content: ``manifests`` beside this module for YAML and JSON,
and ``watch.recorder.blocks`` for recordings.
"""

from __future__ import annotations

import contextlib
import errno
import os
import select
import stat
import sys
from collections.abc import Iterator
from io import BufferedReader, BytesIO
from pathlib import Path
from typing import Final

#: configurations, kubeconfigs, lists of nodes or tokens
CONFIG_BYTES_MAX: Final = 4 << 20
#: keys, certificates, tokens; a bundle of all public authorities is 250 kB
CREDENTIAL_BYTES_MAX: Final = 1 << 20
#: objects of a cluster: the output of ``kubectl get -o json``
MANIFEST_BYTES_MAX: Final = 128 << 20
#: lines of logs and reports; the API server's audit log has lines of 3 MiB at the level
#: RequestResponse
LINE_BYTES_MAX: Final = 16 << 20
#: seconds between two checks of the ``stamp`` of files
FILE_CHECK_PERIOD_S: Final = 5.0
#: seconds that a pipe may be without a writer, and that its writer may be silent
WRITER_WAIT_S: Final = 1.0
PIPE_WAIT_S: Final = 60.0
_PORTION_BYTES: Final = 1 << 16
_KINDS: Final = (
    (stat.S_ISDIR, "Is a directory"),
    (stat.S_ISCHR, "Is a device"),
    (stat.S_ISBLK, "Is a device"),
    (stat.S_ISSOCK, "Is a socket"),
)


def read_bytes(path: Path, bytes_max: int = CONFIG_BYTES_MAX) -> bytes:
    """Returns the content of *path*, or of standard input if it is ``-``. Raises ``OSError``."""
    if str(path) == "-":
        return _bounded(sys.stdin.buffer.read(bytes_max + 1), bytes_max, path)
    with _opened(path) as descriptor:
        size = os.fstat(descriptor).st_size
        if size > bytes_max:
            raise _too_large(bytes_max, path)
        return _read(descriptor, bytes_max, path)


def read_text(path: Path, bytes_max: int = CONFIG_BYTES_MAX) -> str:
    """Returns UTF-8 text like ``read_bytes``. Raises ``OSError`` that names the position of invalid
    UTF-8.
    """
    return decoded(read_bytes(path, bytes_max), path)


def stamp(path: Path | None) -> object:
    """Returns a value that changes with the file, also behind symbolic links (as the kubelet swaps
    them); ``None`` if there is none.
    """
    if path is None:
        return None
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_ino, status.st_mtime_ns, status.st_size


def decoded(raw: bytes, path: Path) -> str:
    """Returns *raw* as text. Raises ``OSError`` with the line and column of invalid UTF-8."""
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        column = error.start - raw.rfind(b"\n", 0, error.start)
        raise _refused(
            errno.EILSEQ, f"is no text: line {line}, column {column} is not UTF-8", path
        ) from error


@contextlib.contextmanager
def opened_lines(
    path: Path, *, bytes_max: int = sys.maxsize, line_bytes_max: int = LINE_BYTES_MAX
) -> Iterator[Lines]:
    """Yields the lines of *path*, one at a time in memory. Raises ``OSError``, also while
    iterating.
    """
    with _opened(path) as descriptor:
        status = os.fstat(descriptor)
        if status.st_size > bytes_max:
            raise _too_large(bytes_max, path)
        if stat.S_ISFIFO(status.st_mode):
            raw = _read(descriptor, min(bytes_max, MANIFEST_BYTES_MAX), path)
            yield Lines(BytesIO(raw), path, line_bytes_max, len(raw))
            return
        with open(descriptor, "rb", closefd=False) as file:
            yield Lines(file, path, line_bytes_max, status.st_size)


class Lines:
    """An iterator over lines with their newlines, each of a bounded length. ``size_bytes``: size of
    the file.
    """

    def __init__(
        self, file: BufferedReader | BytesIO, path: Path, line_bytes_max: int, size_bytes: int
    ) -> None:
        self.size_bytes = size_bytes
        self._file = file
        self._path = path
        self._line_bytes_max = line_bytes_max
        self._number = 0

    def __iter__(self) -> Lines:
        return self

    def __next__(self) -> bytes:
        self._number += 1
        line = self._file.readline(self._line_bytes_max + 1)
        if not line:
            raise StopIteration
        if len(line) > self._line_bytes_max:
            text = f"line {self._number} is longer than {self._line_bytes_max:,} bytes"
            raise _refused(errno.EFBIG, text, self._path)
        return line


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[int]:
    """Opens a regular file, or a pipe that has a writer, and returns its descriptor."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)
    try:
        mode = os.fstat(descriptor).st_mode
        for is_kind, text in _KINDS:
            if is_kind(mode):
                number = errno.EISDIR if stat.S_ISDIR(mode) else errno.EINVAL
                raise _refused(number, f"{text}; name a file", path)
        yield descriptor
    finally:
        os.close(descriptor)


def _is_ready(descriptor: int, timeout_s: float) -> bool:
    poll = select.poll()
    poll.register(descriptor, select.POLLIN | select.POLLHUP)
    return bool(poll.poll(timeout_s * 1000))


def _read(descriptor: int, bytes_max: int, path: Path) -> bytes:
    read = bytearray()
    # A pipe without a writer reads as an empty file; its writer may need a moment to open it.
    is_written = not stat.S_ISFIFO(os.fstat(descriptor).st_mode) or _is_ready(
        descriptor, WRITER_WAIT_S
    )
    while True:
        try:
            portion = os.read(descriptor, _PORTION_BYTES)
        except BlockingIOError:
            is_written = True
            if not _is_ready(descriptor, PIPE_WAIT_S):
                text = f"is a pipe that brought nothing for {PIPE_WAIT_S:.0f} s"
                raise _refused(errno.ETIMEDOUT, text, path) from None
            continue
        if not portion:
            if not is_written:
                raise _refused(errno.ENXIO, "is a pipe that no program writes to", path)
            return bytes(read)
        read += portion
        if len(read) > bytes_max:
            raise _too_large(bytes_max, path)


def _bounded(raw: bytes, bytes_max: int, path: Path) -> bytes:
    if len(raw) > bytes_max:
        raise _too_large(bytes_max, path)
    return raw


def _too_large(bytes_max: int, path: Path) -> OSError:
    return _refused(errno.EFBIG, f"is larger than {bytes_max:,} bytes", path)


def _refused(number: int, text: str, path: Path) -> OSError:
    return OSError(number, text, str(path))
