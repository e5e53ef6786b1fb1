"""Sends a batch of netlink messages to nftables and reads what the kernel says to it.

The kernel works on a batch while it is sent: when ``sendto`` returns, all is done or nothing, and the answers are
there to be read.  So nothing here waits for longer than the kernel works.
"""

from __future__ import annotations

import errno
import socket

from sliceplane.nft.netlink.answers import Answer, parse_answers
from sliceplane.nft.netlink.batch import Batch
from sliceplane.shell.nft_socket import netfilter_socket

_SOL_NETLINK, _NETLINK_CAP_ACK, _NETLINK_EXT_ACK = 270, 10, 11
_SO_SNDBUFFORCE = 32
#: the kernel wants this much more room than a message has bytes
_SEND_SLACK_BYTES = 4096
_RECEIVE_BYTES = 1 << 16


def send(batch: Batch, netns: str = "") -> tuple[Answer, ...]:
    """What the kernel answers; nothing, if nobody knows what became of the batch.

    Raises ``OSError`` if it was not sent: there is no such socket, it may not be used, or the batch is too large for it.
    """
    with netfilter_socket(netns) as sock:
        sock.bind((0, 0))
        for option in (_NETLINK_CAP_ACK, _NETLINK_EXT_ACK):  # refusals are short, and say why
            try:
                sock.setsockopt(_SOL_NETLINK, option, 1)
            except OSError:  # a kernel before 4.3 or 4.12: they are longer, or say less
                continue
        _make_room(sock, len(batch.data) + _SEND_SLACK_BYTES)
        sock.sendto(batch.data, (0, 0))
        return _answers(sock)


def _make_room(sock: socket.socket, size: int) -> None:
    if size <= sock.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF):
        return
    try:
        sock.setsockopt(socket.SOL_SOCKET, _SO_SNDBUFFORCE, size)
    except OSError:  # not root of the host: up to net.core.wmem_max
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, size)


def _answers(sock: socket.socket) -> tuple[Answer, ...]:
    found: list[Answer] = []
    while True:
        try:
            found.extend(parse_answers(sock.recv(_RECEIVE_BYTES, socket.MSG_DONTWAIT)))
        except BlockingIOError:
            return tuple(found)
        except OSError as error:
            if error.errno != errno.ENOBUFS:  # more refusals than the socket holds: the first ones tell enough
                raise
