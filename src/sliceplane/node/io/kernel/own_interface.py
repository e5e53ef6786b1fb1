"""An interface for a link-local address of this node, at which a name server listens
(rtnetlink(7); kubernetes/dns, ``cmd/node-cache``). Its kind is "dummy", so that no packet leaves by
it. If the kernel has no dummy interfaces, it is a bridge without ports, which is equivalent.

Like the rules, it stays when the process ends, and the next process uses it.  ``remove`` deletes it.
"""

from __future__ import annotations

import errno
import os
import socket
from contextlib import suppress
from ipaddress import ip_address
from struct import Struct
from typing import Final

from sliceplane.node.nft.netlink.messages import HEADER, attribute

NAME: Final = "sliceplane-dns"
_NEWLINK, _DELLINK, _NEWADDR = 16, 17, 20
_REQUEST_ACK: Final = 0x5
_CREATE_NEW: Final = 0x600
_IFF_UP: Final = 1
#: attributes: name and kind of a link, address
_IFLA_IFNAME, _IFLA_LINKINFO, _IFLA_INFO_KIND = 3, 18, 1
_IFA_ADDRESS, _IFA_LOCAL = 1, 2
_link: Final = Struct("=BxHiII")
_address: Final = Struct("=BBBBI")


def ensure(address: str) -> None:
    """Adds *address* to this network namespace.  An address that is not link-local is left to the
    administrator. Raises ``OSError``.
    """
    parsed = ip_address(address)
    if not parsed.is_link_local or _has_address(address):
        return
    try:
        _create(b"dummy")
    except OSError as error:
        if error.errno != errno.EOPNOTSUPP:
            raise
        _create(b"bridge")
    family = socket.AF_INET if parsed.version == 4 else socket.AF_INET6
    head = _address.pack(family, parsed.max_prefixlen, 0, 0, socket.if_nametoindex(NAME))
    with suppress(FileExistsError):
        _request(
            _NEWADDR,
            head,
            attribute(_IFA_LOCAL, parsed.packed) + attribute(_IFA_ADDRESS, parsed.packed),
            flags=_CREATE_NEW,
        )
    _request(_NEWLINK, _link.pack(0, 0, 0, _IFF_UP, _IFF_UP), _name())


def remove() -> None:
    """Deletes the interface, if it exists.  Raises ``OSError``."""
    try:
        _request(_DELLINK, _link.pack(0, 0, 0, 0, 0), _name())
    except OSError as error:
        if error.errno != errno.ENODEV:
            raise


def _create(kind: bytes) -> None:
    with suppress(FileExistsError):
        link_info = attribute(_IFLA_LINKINFO, attribute(_IFLA_INFO_KIND, kind))
        _request(_NEWLINK, _link.pack(0, 0, 0, 0, 0), _name() + link_info, flags=_CREATE_NEW)


def _has_address(address: str) -> bool:
    with socket.socket(
        socket.AF_INET6 if ":" in address else socket.AF_INET, socket.SOCK_DGRAM
    ) as own:
        try:
            own.bind((address, 0))
        except OSError as error:
            if error.errno != errno.EADDRNOTAVAIL:
                raise
            return False
    return True


def _name() -> bytes:
    return attribute(_IFLA_IFNAME, NAME.encode() + b"\0")


def _request(kind: int, head: bytes, attributes: bytes, *, flags: int = 0) -> None:
    """Sends a request; raises ``OSError`` with the kernel's error."""
    body = head + attributes
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, 0) as link:
        link.settimeout(5.0)
        link.sendall(HEADER.pack(HEADER.size + len(body), kind, _REQUEST_ACK | flags, 1, 0) + body)
        answer = link.recv(65536)
    number = -int.from_bytes(answer[HEADER.size : HEADER.size + 4], "little", signed=True)
    if number:
        raise OSError(number, f"interface {NAME}: {os.strerror(number)}")
