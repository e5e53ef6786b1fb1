"""Files of this user that others must not read or replace: kubeconfigs, tokens, the state of an
agent.

A user who can write to a folder can create a symbolic link, a FIFO or a huge file there. So
symbolic links are not followed, opens do not block, reads are bounded, and a new file has its mode
from its creation.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO, Final

_NEW: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


def check_folder(folder: Path) -> None:
    """Raises ``PermissionError`` with a sentence if another user could replace files in *folder*.

    Symbolic links of root or this user are followed: systemd creates one for a ``DynamicUser=``.
    """
    trusted = (os.getuid(), 0)
    link = folder.lstat()
    info = folder.stat()
    if link.st_uid not in trusted or info.st_uid not in trusted:
        raise PermissionError(f"{folder} belongs to another user")
    if info.st_mode & 0o022:
        raise PermissionError(f"others can write to {folder}: chmod go-w {folder}")


def read_own(path: Path, size_max: int) -> str:
    """Returns the file's text. Raises ``OSError`` unless it is a regular file of this user or root
    with at most *size_max* bytes.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        check_regular(descriptor, path)
        content = os.read(descriptor, size_max + 1)
    finally:
        os.close(descriptor)
    if len(content) > size_max:
        raise OSError(errno.EFBIG, os.strerror(errno.EFBIG), str(path))
    return content.decode(errors="replace")


def check_regular(descriptor: int, path: Path) -> None:
    """Raises ``OSError`` unless it is a regular file of this user or root."""
    info = os.fstat(descriptor)
    if not stat.S_ISREG(info.st_mode) or info.st_uid not in (os.getuid(), 0):
        raise OSError(errno.EPERM, "not a regular file of this user", str(path))


def write_own(path: Path, text: str) -> None:
    """Replaces the file in one step.  Raises ``OSError``."""
    with new_own(path, overwrite=True) as file:
        file.write(text.encode())


@contextmanager
def new_own(path: Path, *, overwrite: bool) -> Iterator[BinaryIO]:
    """Opens a file that only this user can read; it is complete when the block ends, and removed if
    the block fails.

    *overwrite*: it replaces an existing file at the end; otherwise ``FileExistsError`` is raised.
    Raises ``OSError``.
    """
    target = path.with_name(f".{path.name}.{os.getpid()}") if overwrite else path
    if overwrite:
        with suppress(FileNotFoundError):
            target.unlink()  # left by a killed process with the same id
    descriptor = os.open(target, _NEW, 0o600)
    try:
        with os.fdopen(descriptor, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        if overwrite:
            target.replace(path)
    except BaseException:
        with suppress(OSError):
            target.unlink()
        raise


def readers_of_output(descriptor: int) -> str:
    """Returns a sentence if *descriptor* is a regular file that other users can read, else ""."""
    try:
        info = os.fstat(descriptor)
    except OSError:
        return ""
    if not stat.S_ISREG(info.st_mode) or not info.st_mode & 0o077:
        return ""
    return (
        "other users can read the file that this is written to (mode "
        f"{stat.S_IMODE(info.st_mode):04o})"
    )
