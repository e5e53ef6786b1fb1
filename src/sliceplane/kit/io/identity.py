"""Other processes of this machine: the identity behind a process id, its command, and the owner of
a port.

Process ids are reused; together with the start time and the boot id an id identifies one process
for ever. All data is read from ``/proc``; if that is missing or hidden, the answers are ``None``
and "".
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
#: fields of proc_pid_stat(5) after the command, which may contain spaces: state, parent, and start
#: in clock ticks
_STATE: Final = 0
_PARENT: Final = 1
_START: Final = 19
#: state of a listening socket in /proc/net/tcp
_LISTENS: Final = "0A"
#: maximum characters of a command in a sentence
_COMMAND_MAX: Final = 80


class ProcessIdentity(msgspec.Struct, frozen=True):
    """The identity of one process: *start* is in clock ticks since *boot*, the kernel's boot id."""

    pid: int
    start: int
    boot: str

    @property
    def is_alive(self) -> bool:
        """Returns True if the process runs; a zombie has ended."""
        fields = _stat(self.pid)
        return bool(fields) and fields[_STATE] not in ("Z", "X") and identity(self.pid) == self


def identity(pid: int) -> ProcessIdentity | None:
    """Returns the identity of a process; ``None``: it does not exist, or the system does not report
    it.
    """
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
    """Returns the command line of *pid* as printable text, our own shortened; "" if it cannot be
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
    """Returns a clause for the message that *port* of *address* is in use: the process that has it,
    and how to end a leftover.

    Returns "" if that is unknown.
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
    """Returns the *reason* of a failed bind, with ``holder_of`` if another process has the port."""
    holder = holder_of(address, port) if "in use" in reason.lower() else ""
    return f"{reason}: {holder}" if holder else reason


def _is_orphan(pid: int) -> bool:
    """Returns True for a child of ``lifeline`` whose original parent has ended."""
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
    """Yields the inodes of sockets that listen at *port* of *address*, or of all addresses, for TCP
    and UDP.
    """
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
    """Parses an address as the kernel prints it: words of 32 bits in the machine's byte order."""
    chunks = (text[at : at + 8] for at in range(0, len(text), 8))
    return b"".join(int(chunk, 16).to_bytes(4, sys.byteorder) for chunk in chunks)


def _owner(inodes: set[str]) -> int | None:
    """Returns a process that has one of the sockets open, among those that we may inspect."""
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
