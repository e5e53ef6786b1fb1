"""Sets of addresses as bytes: five bytes for an IPv4 address and what is said of it, seventeen for
IPv6.

A cluster of 100,000 full slices has 10,000,000 addresses; as Python's sets they would not fit where
the audit runs.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from ipaddress import ip_address
from typing import Final

from sliceplane.kit.ip import parse_lenient

WAITING: Final = 0
READY: Final = 1
#: neither ready nor about to be: Endpoints never hold such an address
LEAVING: Final = 2
_IPV6: Final = 4
_IPV4_BYTES: Final = 4
_IPV6_BYTES: Final = 16

#: an address as its 4 or 16 bytes
Packed = bytes


def packed(text: str) -> Packed | None:
    """``None`` for what is no IP address, however leniently read."""
    parts = text.split(".")
    if len(parts) == 4 and "".join(parts).isdecimal() and text.isascii():
        try:
            return bytes(map(int, parts))
        except ValueError:
            return None
    address = parse_lenient(text)
    return None if address is None else address.packed


def spelled(address: Packed) -> str:
    return str(ip_address(address))


def pack(entries: Iterable[tuple[Packed, int]]) -> bytes:
    """Each entry once, whatever their order."""
    records = {
        bytes((state if len(address) == _IPV4_BYTES else state | _IPV6,)) + address
        for address, state in entries
    }
    return b"".join(sorted(records))


def unpack(data: bytes) -> Iterator[tuple[Packed, int]]:
    start = 0
    while start < len(data):
        mark = data[start]
        end = start + 1 + (_IPV6_BYTES if mark & _IPV6 else _IPV4_BYTES)
        yield data[start + 1 : end], mark & ~_IPV6
        start = end
