"""The folder of one plane's files, which one process has at a time.

Layout of a data folder (mode 0700; every file 0600)::

    lock                taken with flock(2) for the life of the process, whose id is in it
    sliceplane.db...    the log (server.io.storage)
    restoring.db...     a database that a restore writes, or that it left when it was killed
    pki/                certificate authority and certificates (server.io.keys.pki)
    tokens.csv          static bearer tokens, upstream's format
    admin.kubeconfig    for kubectl
    children/           kubeconfigs and tokens of processes beside the plane (consume.io.accounts)
    readers/            the Unix socket of further processes of this server (relay.io.readers)
    recordings/         files of the flight recorder (watch.io.flight)

``memory:`` means that nothing outlives the process: there is no database, and the other files live
in a private temporary folder that ``close`` removes.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import shutil
import tempfile
from pathlib import Path

from sliceplane.kit.io.data_folder import KUBECONFIG, default_data_dir
from sliceplane.kit.io.identity import command_of
from sliceplane.kit.io.start_error import StartError

MEMORY = "memory:"
_ELSEWHERE = "--data-dir chooses another folder, and --data-dir memory: keeps nothing"


class DataDir:
    """An opened and locked data folder.  The caller that opened it closes it, last of all."""

    def __init__(self, path: Path, *, ephemeral: bool, lock_fd: int) -> None:
        self.path = path
        #: nothing outlives the process
        self.ephemeral = ephemeral
        self._lock_fd = lock_fd

    @classmethod
    def open(cls, where: str) -> DataDir:
        """*where* is a path, ``memory:`` or "" (the default folder).  Raises ``StartError``."""
        if where == MEMORY:
            try:
                path = Path(tempfile.mkdtemp(prefix="sliceplane-"))
            except OSError as error:
                raise StartError(
                    f"cannot make a folder for temporary files in {tempfile.gettempdir()}: "
                    f"{_reason(error)}; TMPDIR "
                    "chooses another place"
                ) from error
            return cls(path, ephemeral=True, lock_fd=_lock(path))
        path = Path(where).expanduser().absolute() if where else default_data_dir()
        try:
            path.mkdir(mode=0o700, parents=True, exist_ok=True)
        except FileExistsError as error:
            raise StartError(f"data directory {path}: it is a file, not a directory") from error
        except OSError as error:
            raise StartError(
                f"data directory {path}: cannot create it: {_reason(error)}; {_ELSEWHERE}"
            ) from error
        return cls(path, ephemeral=False, lock_fd=_lock(path))

    @property
    def database(self) -> Path | None:
        """The file of the log; ``None`` for ``memory:``."""
        return None if self.ephemeral else self.path / "sliceplane.db"

    @property
    def restoring(self) -> Path:
        """The database that a restore writes."""
        return self.path / "restoring.db"

    def check_database(self) -> None:
        """Raises ``StartError`` if there was a database and it was emptied or taken away, or there
        is to be one and its restore did not end: beginning anew would lose it for good.

        A first start that is killed early leaves an empty file; but the kubeconfig is written when
        there is a database, the certificates of a first start when the first objects are on disk.
        """
        database = self.database
        if database is None or (database.exists() and database.stat().st_size):
            return
        if self.restoring.exists():
            raise StartError(
                f"cannot use {database} for storage: a restore was begun and did not end "
                f"({self.restoring.name}); "
                f"restore again, or remove {self.restoring.name} to begin with nothing"
            )
        emptied = database.exists()
        if self.kubeconfig.exists() or (emptied and (self.pki / "ca.crt").exists()):
            raise StartError(
                f"cannot use {database} for storage: it is {'empty' if emptied else 'missing'}, "
                "although this data "
                "directory has been in use; restore it from a copy, or remove "
                f"{self.kubeconfig.name} and all files {database.name}* to begin with nothing"
            )

    @property
    def pki(self) -> Path:
        return self.path / "pki"

    @property
    def tokens(self) -> Path:
        return self.path / "tokens.csv"

    @property
    def kubeconfig(self) -> Path:
        return self.path / KUBECONFIG

    def close(self) -> None:
        """Release the lock; a ``memory:`` folder goes away.  Idempotent."""
        if self._lock_fd < 0:
            return
        if self.ephemeral:
            shutil.rmtree(self.path, ignore_errors=True)
        os.close(self._lock_fd)
        self._lock_fd = -1


def _lock(path: Path) -> int:
    """Take the folder for this process; proves on the way that it can be written to."""
    try:
        fd = os.open(path / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise StartError(
            f"data directory {path}: cannot write to it: {_reason(error)}; {_ELSEWHERE}"
        ) from error
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        holder = os.pread(fd, 32, 0).decode(errors="replace").strip()
        os.close(fd)
        where = _server_of(path / KUBECONFIG)
        at = f", at {where}" if where else ""
        raise StartError(
            f"data directory {path}: {_named(holder)} is using it{at}; {_ELSEWHERE}"
        ) from error
    try:
        os.ftruncate(fd, 0)
        os.pwrite(fd, str(os.getpid()).encode(), 0)
    except OSError:  # a full disk: the lock holds without its holder's number
        pass
    return fd


def _named(holder: str) -> str:
    """The process whose number the lock has, which its holder wrote; a moment ago it may not have
    yet.
    """
    if not holder.isdecimal():
        return "another process"
    command = command_of(int(holder))
    return f"process {holder}{f' ({command})' if command else ''}"


def _server_of(kubeconfig: Path) -> str:
    """The URL of the plane that wrote *kubeconfig*; "" if that cannot be read."""
    with contextlib.suppress(OSError, UnicodeDecodeError):
        match = re.search(
            r"\bserver\W+(https?://[^\s\"']+)", kubeconfig.read_text(encoding="utf-8")
        )
        return match[1] if match is not None else ""
    return ""


def write_private(path: Path, content: bytes) -> None:
    """Replace *path* atomically; no other user may read it.  Raises ``StartError``.

    A reader sees the old or the new content, never a part, also after a crash.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        with os.fdopen(fd, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except OSError as error:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise StartError(f"cannot write {path}: {_reason(error)}") from error


def _reason(error: OSError) -> str:
    return (error.strerror or str(error)).lower()
