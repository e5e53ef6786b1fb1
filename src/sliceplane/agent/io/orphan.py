"""The process of ``agent run`` after its agent was killed: the next start identifies it, and adopts
or ends it.

The agent records the process it started (``NAME.child`` in its state folder, mode 0600). The record
has its id, start time and the boot id of the machine, so that no other process is mistaken for it;
its command; its NOTIFY_SOCKET, and whether it sent READY=1. While that process is alive, no start
creates a second copy.

``adopt``: if the command is the same, the agent watches the process by its pidfd (pidfd_open(2));
only a parent learns the exit code. If the command differs, the process is ended as in a restart,
and the new one is started.

``end``: the process does not outlive its agent (``process.orphans``), and the next start ends one
that does. This mode is also used if the system does not report start times: a process that cannot
be identified later must not run on.
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
from sliceplane.kit.io.tasks import ends_within

OnOrphan = Literal["adopt", "end"]
#: name prefix of folders with a NOTIFY_SOCKET
FOLDER_PREFIX: Final = "sliceplane-agent-"
#: exit code of an adopted process: only a parent learns the real one
EXIT_UNKNOWN: Final = 1
#: of the record file; a command line has at most 2 MiB
_RECORD_BYTES_MAX: Final = 4 << 20
#: seconds between polls if there is no pidfd
_POLL_S: Final = 0.25


class Custody(NamedTuple):
    """``record``: path of the record; ``stop_s``: seconds between SIGTERM and SIGKILL."""

    record: Path
    on_orphan: OnOrphan
    stop_s: float


class ChildRecord(msgspec.Struct, frozen=True):
    process: ProcessIdentity
    command: tuple[str, ...]
    #: path of its NOTIFY_SOCKET
    notify: str
    ready: bool = False

    def write(self, path: Path) -> None:
        """Raises ``OSError``."""
        write_own(path, msgspec.json.encode(self).decode())


class AdoptedProcess:
    """The part of ``asyncio.subprocess.Process`` that ``Child`` uses, for a process that another
    agent started.
    """

    def __init__(self, process: ProcessIdentity) -> None:
        """Raises ``ProcessLookupError`` if it has ended."""
        self._identity = process
        self.pid: Final = process.pid
        self.returncode: int | None = None
        self._pidfd = -1
        with suppress(AttributeError, PermissionError):
            self._pidfd = os.pidfd_open(process.pid)
        # Checked after the pidfd was opened: the pidfd is this process's for good, or another's.
        if not process.is_alive:
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
    """Reads a record; ``None`` if the file is missing or damaged."""
    try:
        return msgspec.json.decode(read_own(path, _RECORD_BYTES_MAX), type=ChildRecord)
    except (OSError, msgspec.DecodeError):
        return None


def get_notify_folder(child: ChildRecord) -> Path:
    """Returns the folder of its NOTIFY_SOCKET, which the agent created for it.

    Raises ``OSError`` if it is missing, or other users can access it: the agent writes to that
    path.
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
    """Removes the NOTIFY_SOCKET folder of a process that has ended; *record* names it."""
    child = read_record(record)
    if child is not None:
        with suppress(OSError):
            shutil.rmtree(get_notify_folder(child), ignore_errors=True)


def find_orphan(record: Path) -> tuple[ChildRecord, AdoptedProcess] | None:
    """Returns the process that a killed agent left behind; ``None``: there is none."""
    child = read_record(record)
    try:
        return (child, AdoptedProcess(child.process)) if child is not None else None
    except OSError:
        return None


def is_adopted(child: ChildRecord, command: Sequence[str], custody: Custody) -> bool:
    return custody.on_orphan == "adopt" and child.command == tuple(command)


async def end(process: AdoptedProcess, stop_s: float) -> None:
    """Ends the process and waits for its end: its port must be free for a second copy."""
    process.send_signal(signal.SIGTERM)
    if not await ends_within(stop_s, process.wait()):
        process.send_signal(signal.SIGKILL)
        await process.wait()
    process.close()
