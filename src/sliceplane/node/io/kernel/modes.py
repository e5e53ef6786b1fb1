"""The back end of each mode; one mode at a time; and the rules that a change of mode leaves.

**One at a time.**  Rules of two modes in one network namespace translate the same packets twice,
and each proxy takes away at its start what the other mode left. So of two modes the second refuses
to start. Two of *one* mode may overlap for a moment, as one replaces the other; of those the newest
has the table (``node.nft.table``, "One writer at a time"). The sign is a listening socket with an
abstract name (unix(7)): the kernel keeps such names apart by network namespace, and takes them away
with the process, however it ends. Any user may make up a name, so the process behind it must be of
our own user, or root.

**A change of mode** is not noticed by traffic: the rules of the other modes go when ours are in
place.
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
#: the abstract names of the network namespace of the thread that reads it, each behind an "@"
_LISTED: Final = Path("/proc/thread-self/net/unix")
_CREDENTIALS: Final = struct.Struct("=iII")
_CONNECT_S: Final = 0.2
#: others are looked at up to this many names
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
    """Takes away the rules of *mode*, and those that other modes left.  Raises ``KernelError``."""
    await backend_of(mode, netns).remove(families)
    await remove_leftovers(mode, families, netns)


async def remove_leftovers(mode: Mode, families: tuple[Family, ...], netns: str = "") -> None:
    """Takes away what other modes than *mode* left.  It is a courtesy: what fails is told of, no
    more.
    """
    for other in BACK_ENDS:
        try:
            if other != mode:
                await backend_of(other, netns).remove_leftovers(families)
        except KernelError as error:
            if (
                error.reason != "missing"
            ):  # without the program there is nothing that it could have written
                _log.warning("rules of another mode may be left", error=str(error))


@asynccontextmanager
async def exclusive_mode(mode: Mode, netns: str) -> AsyncIterator[None]:
    """This process runs a proxy of *mode* in the network namespace *netns* ("": our own). Raises
    ``KernelError`` if one of another mode does.
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
                    f"and start this one with {mode} then; it takes over what the other leaves",
                )
    except BaseException:
        listener.close()
        raise
    return listener


def _running(mode: str) -> int:
    """The process of a proxy of *mode* in the namespace of this thread; 0: there is none."""
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
