"""The process of ``agent run`` after its agent was killed: known again at the next start, and
adopted or ended.

The agent writes down which process it started (``NAME.child`` in its state folder, mode 0600): its
id, the time of its start and the boot of the machine, so that no other process is ever taken for
it; its command; where it says READY=1, and whether it has. A start that finds it alive never starts
a second copy beside it.

``adopt``: with the same command it is watched from then on, by its pidfd (pidfd_open(2)); a parent
learns an exit code, an adopter does not. With another command it is ended as a restart would, and
the new one is started.

``end``: it does not outlive its agent (``process.orphans``), and what is left all the same is ended
by the next start. So it is where the system does not tell when a process began: a process that
nobody can know again is not left alone.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import stat
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final, Literal, NamedTuple

import msgspec

from sliceplane.agent.io.own_files import read_own, write_own
from sliceplane.kit.io.identity import ProcessIdentity
from sliceplane.kit.io.last_steps import ends_within

OnOrphan = Literal["adopt", "end"]
#: of folders with a NOTIFY_SOCKET
FOLDER_PREFIX: Final = "sliceplane-agent-"
#: of an adopted process: nobody but a parent is told it
EXIT_UNKNOWN: Final = 1
#: of the file; a command line has at most 2 MiB
_RECORD_BYTES_MAX: Final = 4 << 20
#: where there is no pidfd
_POLL_S: Final = 0.25


class Custody(NamedTuple):
    """``record``: the file; ``stop_s``: the time of a process between SIGTERM and SIGKILL."""

    record: Path
    on_orphan: OnOrphan
    stop_s: float


class ChildRecord(msgspec.Struct, frozen=True):
    process: ProcessIdentity
    command: tuple[str, ...]
    #: the path of its NOTIFY_SOCKET
    notify: str
    ready: bool = False

    def write(self, path: Path) -> None:
        """Raises ``OSError``."""
        write_own(path, msgspec.json.encode(self).decode())


class AdoptedProcess:
    """The part of ``asyncio.subprocess.Process`` that ``Child`` uses, for a process that another
    one started.
    """

    def __init__(self, process: ProcessIdentity) -> None:
        """Raises ``ProcessLookupError`` if it has ended."""
        self._identity = process
        self.pid: Final = process.pid
        self.returncode: int | None = None
        self._pidfd = -1
        with suppress(AttributeError, PermissionError):
            self._pidfd = os.pidfd_open(process.pid)
        if (
            not process.is_alive
        ):  # after the descriptor: it means this process for ever now, or another one
            self.close()
            raise ProcessLookupError(process.pid)

    def send_signal(self, number: int) -> None:
        with suppress(ProcessLookupError):
            if self._pidfd >= 0:
                signal.pidfd_send_signal(self._pidfd, number)
            elif self._identity.is_alive:
                os.kill(self.pid, number)

    async def wait(self) -> int:
        loop = asyncio.get_running_loop()
        if self.returncode is None and self._pidfd >= 0:
            ended = asyncio.Event()
            watched = os.dup(
                self._pidfd
            )  # several tasks may wait, and a loop has one reader of a descriptor
            loop.add_reader(watched, ended.set)
            try:
                await ended.wait()
            finally:
                loop.remove_reader(watched)
                os.close(watched)
        while self.returncode is None and self._pidfd < 0 and self._identity.is_alive:
            await asyncio.sleep(_POLL_S)
        self.returncode = EXIT_UNKNOWN
        return self.returncode

    def close(self) -> None:
        if self._pidfd >= 0:
            os.close(self._pidfd)
            self._pidfd = -1


def read_record(path: Path) -> ChildRecord | None:
    """``None``: there is no such file, or it is damaged."""
    try:
        return msgspec.json.decode(read_own(path, _RECORD_BYTES_MAX), type=ChildRecord)
    except (OSError, msgspec.DecodeError):
        return None


def get_notify_folder(child: ChildRecord) -> Path:
    """The folder of its NOTIFY_SOCKET, which the agent made for it.

    Raises ``OSError`` if it is gone, or is not this user's alone: the record names a path that is
    written to.
    """
    folder = Path(child.notify).parent
    info = folder.lstat()
    if (
        not stat.S_ISDIR(info.st_mode)
        or info.st_uid != os.geteuid()
        or stat.S_IMODE(info.st_mode) & 0o077
    ):
        raise PermissionError(f"{folder} is not ours alone")
    if not folder.name.startswith(FOLDER_PREFIX):
        raise PermissionError(f"{folder} was not made by an agent")
    return folder


def forget(record: Path) -> None:
    """The process that *record* names has ended: nothing of it stays."""
    child = read_record(record)
    if child is not None:
        with suppress(OSError):
            shutil.rmtree(get_notify_folder(child), ignore_errors=True)


def find_orphan(record: Path) -> tuple[ChildRecord, AdoptedProcess] | None:
    """The process that an agent which was killed left behind; ``None``: there is none."""
    child = read_record(record)
    try:
        return (child, AdoptedProcess(child.process)) if child is not None else None
    except OSError:
        return None


def is_adopted(child: ChildRecord, command: Sequence[str], custody: Custody) -> bool:
    return custody.on_orphan == "adopt" and child.command == tuple(command)


async def end(process: AdoptedProcess, stop_s: float) -> None:
    """Returns when it has ended: a second copy must not find its port taken."""
    process.send_signal(signal.SIGTERM)
    if not await ends_within(stop_s, process.wait()):
        process.send_signal(signal.SIGKILL)
        await process.wait()
    process.close()
