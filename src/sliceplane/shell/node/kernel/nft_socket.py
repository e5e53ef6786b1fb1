"""Netlink sockets to netfilter, in a network namespace if asked; and the generation of nftables' rules.

The generation is a number that the kernel raises with each transaction, whichever program made it.  It costs one small
message, at any size of the rules, so it can be asked often.  (``nft`` itself reads it before it lists, but does not
tell it.)  From linux/netlink.h, linux/netfilter/nfnetlink.h and nf_tables.h.
"""

from __future__ import annotations

import os
import socket
import struct

from sliceplane.shell.node.kernel.netns import FOLDER, within_at_once

_NETLINK_NETFILTER = 12
_REQUEST = 1  # NLM_F_REQUEST
_GET_GENERATION, _NEW_GENERATION = 10 << 8 | 16, 10 << 8 | 15
_GENERATION_ID = 1  # NFTA_GEN_ID
_HEADER = struct.Struct("=IHHII")  # of any netlink message: length, type, flags, sequence number, sender
#: the kernel answers at once
_TIMEOUT_S = 1.0


def namespace_of(netns: str) -> tuple[int, int]:
    """Which namespace has the name *netns* now; our own ("") stays the same.  Raises ``OSError``."""
    if not netns:
        return (0, 0)
    status = os.stat(FOLDER / netns)
    return status.st_dev, status.st_ino


def netfilter_socket(netns: str = "") -> socket.socket:
    """*netns*: a name under /run/netns; "" is our own.  A socket belongs to the namespace in which it was made.  Raises
    ``OSError``."""
    return within_at_once(netns, lambda: socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, _NETLINK_NETFILTER))


def generation(netns: str = "") -> int | None:
    """Of the network namespace *netns* (a name under /run/netns; "" is our own).  ``None``: the kernel does not say,
    for lack of rights, of the namespace, or of nftables."""
    try:
        with netfilter_socket(netns) as sock:
            sock.settimeout(_TIMEOUT_S)
            body = struct.pack("=BBH", 0, 0, 0)
            sock.sendto(_HEADER.pack(_HEADER.size + len(body), _GET_GENERATION, _REQUEST, 1, 0) + body, (0, 0))
            return parse_generation(sock.recv(4096))
    except OSError:
        return None


def parse_generation(message: bytes) -> int | None:
    """``None`` for an answer that does not say (an error, say)."""
    if len(message) < _HEADER.size:
        return None
    length, kind, *_ = _HEADER.unpack_from(message)
    at = _HEADER.size + 4
    while kind == _NEW_GENERATION and at + 8 <= min(length, len(message)):
        size, attribute = struct.unpack_from("=HH", message, at)
        if attribute == _GENERATION_ID:
            return int.from_bytes(message[at + 4 : at + 8], "big")
        at += (max(size, 4) + 3) & ~3
    return None
