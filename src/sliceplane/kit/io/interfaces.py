"""The addresses of this machine's interfaces, from the kernel (rtnetlink(7), RTM_GETADDR)."""

from __future__ import annotations

import asyncio
import json
import socket
import struct
from collections.abc import Iterator
from ipaddress import ip_address

_RTM_GETADDR = 22
_RTM_NEWADDR = 20
_NLMSG_DONE = 3
_NLMSG_ERROR = 2
_REQUEST_DUMP = 0x301
_IFA_ADDRESS = 1
_IFA_LOCAL = 2
#: of ``ifaddrmsg.ifa_scope``: addresses with a narrower scope are unreachable from other machines
_SCOPE_LINK = 253
_HEADER = struct.Struct("=IHHII")
_ADDRESS = struct.Struct("=BBBBI")
_ATTRIBUTE = struct.Struct("=HH")
_LENGTHS = {socket.AF_INET: 4, socket.AF_INET6: 16}
_ANSWER_BYTES_MAX = 1 << 17


def addresses(*, ipv6: bool) -> tuple[str, ...]:
    """Returns the IPv4 addresses of every interface, with *ipv6* also IPv6; sorted, without
    loopback and link-local ones.

    Returns none if the kernel does not report them.
    """
    try:
        return _query(ipv6=ipv6)
    except (OSError, AttributeError):  # other systems have no rtnetlink
        return ()


def outward(version: int) -> str:
    """Returns the source address of this machine's default route, else its first address; "" if it
    has none.
    """
    family, elsewhere = (
        (socket.AF_INET, "192.0.2.1") if version == 4 else (socket.AF_INET6, "2001:db8::1")
    )
    try:
        with socket.socket(family, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as probe:
            probe.connect((elsewhere, 9))  # no packet: the kernel chooses a route
            return str(probe.getsockname()[0])
    except OSError:
        candidates = addresses(ipv6=version == 6)
        return next((address for address in candidates if (":" in address) == (version == 6)), "")


def _query(*, ipv6: bool) -> tuple[str, ...]:
    """Raises ``OSError``."""
    families = (socket.AF_INET, socket.AF_INET6) if ipv6 else (socket.AF_INET,)
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, 0) as link:
        link.settimeout(1.0)
        addresses = {address for family in families for address in _dump(link, family)}
    return tuple(sorted(addresses, key=lambda text: (":" in text, ip_address(text).packed)))


async def addresses_of(netns: str) -> tuple[str, ...] | None:
    """Returns ``addresses`` of both families in the network namespace *netns*; "" is our own.

    Returns ``None`` if they cannot be read, which differs from no addresses: rules must not be
    removed because a descriptor for the query was missing.
    """
    try:
        if not netns:
            return _query(ipv6=True)
        process = await asyncio.create_subprocess_exec(
            *("ip", "-n", netns, "-j", "address"),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
        )
        output, _ = await process.communicate()
        if process.returncode:
            return None
        interfaces = json.loads(output or b"[]")
    except (OSError, ValueError, RuntimeError):
        return None
    listed = {
        ip_address(entry["local"])
        for interface in interfaces
        for entry in interface.get("addr_info", ())
        if entry.get("local")
    }
    usable = [address for address in listed if not (address.is_loopback or address.is_link_local)]
    return tuple(
        str(address)
        for address in sorted(usable, key=lambda address: (address.version, address.packed))
    )


def _dump(link: socket.socket, family: int) -> Iterator[str]:
    """Raises ``OSError``."""
    body = _ADDRESS.pack(family, 0, 0, 0, 0)
    link.sendall(_HEADER.pack(_HEADER.size + len(body), _RTM_GETADDR, _REQUEST_DUMP, 1, 0) + body)
    while True:
        answer = link.recv(_ANSWER_BYTES_MAX)
        start = 0
        while start < len(answer):
            size, kind, _, _, _ = _HEADER.unpack_from(answer, start)
            if kind in (_NLMSG_DONE, _NLMSG_ERROR) or size < _HEADER.size:
                return
            if kind == _RTM_NEWADDR:
                yield from _address(answer[start + _HEADER.size : start + size], family)
            start += (size + 3) & ~3


def _address(message: bytes, family: int) -> Iterator[str]:
    message_family, _, _, scope, _ = _ADDRESS.unpack_from(message)
    if message_family != family or scope >= _SCOPE_LINK:
        return
    attributes: dict[int, bytes] = {}
    start = _ADDRESS.size
    while start + _ATTRIBUTE.size <= len(message):
        size, kind = _ATTRIBUTE.unpack_from(message, start)
        if size < _ATTRIBUTE.size:
            break
        attributes[kind] = message[start + _ATTRIBUTE.size : start + size]
        start += (size + 3) & ~3
    # On a point-to-point link IFA_ADDRESS is the peer's, and IFA_LOCAL ours.
    raw = attributes.get(_IFA_LOCAL) or attributes.get(_IFA_ADDRESS) or b""
    if len(raw) == _LENGTHS[socket.AddressFamily(family)]:
        address = ip_address(raw)
        if not (address.is_loopback or address.is_link_local):
            yield str(address)
