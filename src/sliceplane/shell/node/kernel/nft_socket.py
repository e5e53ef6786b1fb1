"""A netlink socket to netfilter, in a network namespace if asked."""

from __future__ import annotations

import ctypes
import os
import socket
import threading

from sliceplane.shell.node.kernel.netns import start_thread

_NETLINK_NETFILTER = 12
_CLONE_NEWNET = 0x40000000
NETNS_FOLDER = "/run/netns"


def namespace_of(netns: str) -> tuple[int, int]:
    """Which namespace has the name *netns* now; our own ("") stays the same.  Raises ``OSError``."""
    if not netns:
        return (0, 0)
    found = os.stat(os.path.join(NETNS_FOLDER, netns))
    return found.st_dev, found.st_ino


def netfilter_socket(netns: str = "") -> socket.socket:
    """*netns*: a name under /run/netns; "" is our own.  A socket belongs to the namespace in which it was made, whoever
    uses it.  Raises ``OSError``."""
    if not netns:
        return socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, _NETLINK_NETFILTER)
    made: list[socket.socket | OSError] = []

    def make() -> None:
        try:
            with open(os.path.join(NETNS_FOLDER, netns), "rb") as file:
                libc = ctypes.CDLL(None, use_errno=True)
                if libc.setns(file.fileno(), _CLONE_NEWNET) != 0:
                    raise OSError(ctypes.get_errno(), f"cannot enter network namespace {netns}")
            made.append(socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, _NETLINK_NETFILTER))
        except OSError as error:
            made.append(error)

    # A thread has a namespace of its own, and this one ends in it: nobody has to find the way back.
    thread = threading.Thread(target=make, name="nft-socket")
    start_thread(thread)
    thread.join()
    (found,) = made
    if isinstance(found, OSError):
        raise found
    return found
