"""One mode at a time: a node proxy shows that it is there, and does not start beside one of another mode.

Rules of two modes in one network namespace translate the same packets twice, and each proxy takes away at its start
what the other mode left (``proxy_modes``).  So of two modes the second refuses to start.  Two of *one* mode may overlap
for a moment, as one replaces the other; of those the newest has the table (``nft.table``, "One writer at a time").

The sign is a listening socket with an abstract name (unix(7)): the kernel keeps such names apart by network namespace,
and takes them away with the process, however it ends.  Any user may make up a name, so the process behind it must be of
our own user, or root.
"""

from __future__ import annotations

import os
import socket
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final, get_args

from sliceplane.shell.node.kernel.backend import KernelError, Mode
from sliceplane.shell.node.kernel.netns import within

_NAME: Final = "sliceplane-node-proxy/"
#: the abstract names of the network namespace of the thread that reads it, each behind an "@"
_LISTED: Final = Path("/proc/thread-self/net/unix")
_CREDENTIALS: Final = struct.Struct("=iII")
_CONNECT_S: Final = 0.2
#: others are looked at up to this many names
_NAMES_MAX: Final = 64


@asynccontextmanager
async def present(mode: Mode, netns: str) -> AsyncIterator[None]:
    """This process runs a proxy of *mode* in the network namespace *netns* ("": our own).  Raises ``KernelError`` if
    one of another mode does."""
    try:
        sign = await within(netns, lambda: _shown(mode))
    except FileNotFoundError as error:
        raise KernelError("namespace", f'there is no network namespace "{netns}"') from error
    except OSError as error:
        where = f'"{netns}"' if netns else "of this process"
        raise KernelError("namespace", f"the network namespace {where} cannot be entered: {error.strerror}") from error
    try:
        yield
    finally:
        sign.close()


def _shown(mode: Mode) -> socket.socket:
    sign = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    try:
        sign.bind(f"\0{_NAME}{mode}/{os.urandom(8).hex()}")
        sign.listen(8)
        for other in get_args(Mode):
            pid = _running(other) if other != mode else 0
            if pid:
                raise KernelError(
                    "busy",
                    f"a node proxy with --proxy-mode={other} runs in this network namespace (process {pid}): stop it, "
                    f"and start this one with {mode} then; it takes over what the other leaves",
                )
    except BaseException:
        sign.close()
        raise
    return sign


def _running(mode: str) -> int:
    """The process of a proxy of *mode* in the namespace of this thread; 0: there is none."""
    prefix = f"@{_NAME}{mode}/"
    try:
        lines = _LISTED.read_text(errors="replace").splitlines()
    except OSError:
        return 0
    names = [words[-1] for line in lines if (words := line.split()) and words[-1].startswith(prefix)]
    for name in names[:_NAMES_MAX]:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC) as asking:
            asking.settimeout(_CONNECT_S)
            try:
                asking.connect("\0" + name[1:])
                raw = asking.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
            except OSError:
                continue
            pid, uid, _ = _CREDENTIALS.unpack(raw)
            if uid in (0, os.geteuid()):
                return int(pid) or 1
    return 0
