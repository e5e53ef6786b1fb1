"""Other processes of this machine: which one a process id means, its command, and which one has a
port.

A process id is used again; with the time of its start and the boot of the machine it means one
process for ever. All of it is read from ``/proc``: where that is missing or hidden, the answers are
``None`` and "".
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import suppress
from ipaddress import ip_address
from pathlib import Path
from typing import Final

import msgspec

from sliceplane.kit.io.process.lifeline import VARIABLE

_PROC: Final = Path("/proc")
_BOOT_ID: Final = _PROC / "sys/kernel/random/boot_id"
#: fields of proc_pid_stat(5) after the command, which may hold spaces: state, parent, and the start
#: in clock ticks
_STATE: Final = 0
_PARENT: Final = 1
_START: Final = 19
#: of /proc/net/tcp: a socket that listens
_LISTENS: Final = "0A"
#: characters of a command that a sentence shows
_COMMAND_MAX: Final = 80


class ProcessIdentity(msgspec.Struct, frozen=True):
    """One process, and never another: *start* is in clock ticks since *boot*, an id of the
    kernel.
    """

    pid: int
    start: int
    boot: str

    @property
    def is_alive(self) -> bool:
        """A zombie has ended."""
        fields = _stat(self.pid)
        return bool(fields) and fields[_STATE] not in ("Z", "X") and identity(self.pid) == self


def identity(pid: int) -> ProcessIdentity | None:
    """``None``: there is no such process, or the system does not tell."""
    fields = _stat(pid)
    try:
        return (
            ProcessIdentity(pid, int(fields[_START]), _BOOT_ID.read_text().strip())
            if fields
            else None
        )
    except OSError:
        return None


def command_of(pid: int) -> str:
    """The command line of *pid* as a person may see it, with ours in short; "" if it cannot be
    read.
    """
    try:
        arguments = (_PROC / str(pid) / "cmdline").read_bytes().decode(errors="replace").split("\0")
    except OSError:
        return ""
    if arguments[1:3] == ["-m", "sliceplane"]:
        arguments = ["sliceplane", *arguments[3:4]]
    elif len(arguments) > 2 and arguments[1].endswith("/sliceplane"):
        arguments = ["sliceplane", *arguments[2:3]]
    text = " ".join(argument for argument in arguments if argument)
    return "".join(c if c.isprintable() else " " for c in text)[:_COMMAND_MAX].strip()


def holder_of(address: str, port: int) -> str:
    """A clause for the message that *port* of *address* is in use: which process has it, and how to
    end a leftover.

    "" where that cannot be found out.
    """
    inodes = set(_inodes(address, port))
    pid = _owner(inodes) if inodes else None
    if pid is None:
        return ""
    command = command_of(pid)
    clause = f"process {pid}{f' ({command})' if command else ''} has it"
    if _is_orphan(pid):
        return (
            f"{clause}, a child of an earlier `sliceplane up` that is gone; end it with: kill {pid}"
        )
    return f"{clause}; if it should not run, end it with: kill {pid}"


def in_use(reason: str, address: str, port: int) -> str:
    """*reason* of a failed bind, with ``holder_of`` where another process has the port."""
    holder = holder_of(address, port) if "in use" in reason.lower() else ""
    return f"{reason}: {holder}" if holder else reason


def _is_orphan(pid: int) -> bool:
    """Returns True for a child of ``lifeline`` whose parent is another process now."""
    fields = _stat(pid)
    with suppress(OSError):
        for entry in (_PROC / str(pid) / "environ").read_bytes().split(b"\0"):
            name, _, value = entry.partition(b"=")
            if name == VARIABLE.encode():
                return bool(fields) and fields[_PARENT].encode() != value.partition(b":")[0]
    return False


def _stat(pid: int) -> list[str]:
    try:
        text = (_PROC / str(pid) / "stat").read_text(errors="replace")
    except OSError:
        return []
    return text.rpartition(")")[2].split()


def _inodes(address: str, port: int) -> Iterator[str]:
    """Sockets that listen at *port* of *address*, or of all addresses: for TCP and for UDP."""
    target = ip_address(address)
    for protocol in ("tcp", "udp", "tcp6", "udp6"):
        with suppress(OSError):
            for line in (_PROC / "net" / protocol).read_text().splitlines()[1:]:
                fields = line.split()
                host, _, number = fields[1].partition(":")
                if int(number, 16) != port or (
                    protocol.startswith("tcp") and fields[3] != _LISTENS
                ):
                    continue
                local = ip_address(_packed(host))
                if local == target or local.is_unspecified or target.is_unspecified:
                    yield fields[9]


def _packed(text: str) -> bytes:
    """An address as the kernel prints it: words of 32 bits in the machine's order."""
    chunks = (text[at : at + 8] for at in range(0, len(text), 8))
    return b"".join(int(chunk, 16).to_bytes(4, sys.byteorder) for chunk in chunks)


def _owner(inodes: set[str]) -> int | None:
    """A process that has one of the sockets open, among those that we may look at."""
    links = {f"socket:[{inode}]" for inode in inodes}
    for folder in _PROC.iterdir() if _PROC.is_dir() else ():
        if not folder.name.isdecimal():
            continue
        with suppress(OSError):
            for descriptor in (folder / "fd").iterdir():
                with suppress(OSError):
                    if os.readlink(descriptor) in links:
                        return int(folder.name)
    return None
