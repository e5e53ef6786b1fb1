"""Sets of addresses as bytes: five bytes for an IPv4 address with its state, seventeen for IPv6.

A cluster of 100,000 full slices has 10,000,000 addresses; as Python sets they would need too much
memory.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from ipaddress import ip_address
from typing import Final

from sliceplane.kit.ip import parse_lenient

WAITING: Final = 0
READY: Final = 1
#: neither ready nor about to be: Endpoints never have such an address
TERMINATING: Final = 2
_IPV6: Final = 4
_IPV4_BYTES: Final = 4
_IPV6_BYTES: Final = 16

#: an address as its 4 or 16 bytes
Packed = bytes


def packed(text: str) -> Packed | None:
    """Returns the bytes of an address, read leniently; ``None`` if it is no IP address."""
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
    """Encodes the set of *entries*; their order makes no difference."""
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
