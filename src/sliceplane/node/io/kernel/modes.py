"""The back end of each mode, mutual exclusion of modes, and removal of rules of an earlier mode.

**One mode at a time.**  Rules of two modes in one network namespace translate the same packets
twice, and each proxy removes the rules of other modes at its start. So a proxy refuses to start if
one of another mode runs. Two proxies of *one* mode may overlap for a moment, as one replaces the
other; then the newest owns the table (``node.nft.table``, "One writer at a time"). Each proxy
announces itself by a listening socket with an abstract name (unix(7)). The kernel separates such
names by network namespace, and removes them with the process, however it ends. Any user may create
such a name, so the process behind it must belong to our own user, or root.

**A change of mode** does not interrupt traffic: the rules of the other modes are removed once ours
are in place.
"""

from __future__ import annotations

import os
import socket
import struct
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

from sliceplane.kit.io.log import get_logger
from sliceplane.kit.ip import Family
from sliceplane.node.configuration.fields import BACK_ENDS, Mode
from sliceplane.node.io.kernel.backend import AnyBackend, KernelError
from sliceplane.node.io.kernel.iptables_backend import Iptables
from sliceplane.node.io.kernel.netns import within
from sliceplane.node.io.kernel.nft_backend import Nftables, NftRunner
from sliceplane.node.iptables.table import iptables_plane
from sliceplane.node.nft.table import nft_plane
from sliceplane.node.plane import AnyNodePlane, NodePlaneConfig

_NAME: Final = "sliceplane-node-proxy/"
#: lists the abstract names of the reading thread's network namespace, each after an "@"
_LISTED: Final = Path("/proc/thread-self/net/unix")
_CREDENTIALS: Final = struct.Struct("=iII")
_CONNECT_S: Final = 0.2
#: maximum number of names to check
_NAMES_MAX: Final = 64

_BACKENDS: Final[dict[Mode, Callable[[str], AnyBackend]]] = {
    "nftables": lambda netns: Nftables(NftRunner(netns=netns)),
    "iptables": lambda netns: Iptables(netns=netns),
}
#: the cores alone, for renders: the same objects give the same bytes
PLANES: Final[dict[Mode, Callable[[Family, NodePlaneConfig], AnyNodePlane]]] = {
    "nftables": nft_plane,
    "iptables": iptables_plane,
}

_log = get_logger("node-proxy")


def backend_of(mode: Mode, netns: str = "") -> AnyBackend:
    return _BACKENDS[mode](netns)


async def clean_up(mode: Mode, families: tuple[Family, ...], netns: str = "") -> None:
    """Removes the rules of *mode* and those of other modes.  Raises ``KernelError``."""
    await backend_of(mode, netns).remove(families)
    await remove_leftovers(mode, families, netns)


async def remove_leftovers(mode: Mode, families: tuple[Family, ...], netns: str = "") -> None:
    """Removes the rules of modes other than *mode*.  Errors are only logged."""
    for other in BACK_ENDS:
        try:
            if other != mode:
                await backend_of(other, netns).remove_leftovers(families)
        except KernelError as error:
            if error.reason != "missing":  # a missing program cannot have written rules
                _log.warning("rules of another mode may remain", error=str(error))


@asynccontextmanager
async def exclusive_mode(mode: Mode, netns: str) -> AsyncIterator[None]:
    """Announces a proxy of *mode* in the network namespace *netns* ("": our own) while the context
    lasts. Raises ``KernelError`` if a proxy of another mode runs there.
    """
    try:
        listener = await within(netns, lambda: _announce(mode))
    except FileNotFoundError as error:
        raise KernelError("namespace", f'there is no network namespace "{netns}"') from error
    except OSError as error:
        where = f'"{netns}"' if netns else "of this process"
        raise KernelError(
            "namespace", f"the network namespace {where} cannot be entered: {error.strerror}"
        ) from error
    try:
        yield
    finally:
        listener.close()


def _announce(mode: Mode) -> socket.socket:
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    try:
        listener.bind(f"\0{_NAME}{mode}/{os.urandom(8).hex()}")
        listener.listen(8)
        for other in BACK_ENDS:
            pid = _running(other) if other != mode else 0
            if pid:
                raise KernelError(
                    "busy",
                    f"a node proxy with --proxy-mode={other} runs in this network namespace "
                    f"(process {pid}): stop it, "
                    f"then start this one with {mode}; it removes the other's rules",
                )
    except BaseException:
        listener.close()
        raise
    return listener


def _running(mode: str) -> int:
    """Returns the process id of a proxy of *mode* in this thread's namespace; 0 if none runs."""
    prefix = f"@{_NAME}{mode}/"
    try:
        lines = _LISTED.read_text(errors="replace").splitlines()
    except OSError:
        return 0
    names = [
        columns[-1]
        for line in lines
        if (columns := line.split()) and columns[-1].startswith(prefix)
    ]
    for name in names[:_NAMES_MAX]:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC) as peer:
            peer.settimeout(_CONNECT_S)
            try:
                peer.connect("\0" + name[1:])
                raw = peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
            except OSError:
                continue
            pid, uid, _ = _CREDENTIALS.unpack(raw)
            if uid in (0, os.geteuid()):
                return int(pid) or 1
    return 0
