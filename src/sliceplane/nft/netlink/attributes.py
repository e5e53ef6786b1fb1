"""The form of netlink messages: headers, and attributes in attributes, each padded to four bytes.

Lengths and kinds are in the host's byte order, numbers in attributes in that of the network.
"""

from __future__ import annotations

import struct

#: of any netlink message: length, type, flags, sequence number, sender
HEADER = struct.Struct("=IHHII")
#: what follows it in messages of netfilter: address family, version, resource
_NETFILTER = struct.Struct("=BBH")
_RESOURCE = struct.Struct(">BBH")
_ATTRIBUTE = struct.Struct("=HH")
_NUMBER = struct.Struct(">I")
_LONG = struct.Struct(">Q")
_HOST = struct.Struct("=I")

REQUEST, ACK, CREATE, APPEND = 0x1, 0x4, 0x400, 0x800
_NESTED = 0x8000
#: an attribute tells its length in 16 bits
ATTRIBUTE_BYTES_MAX = 0xFFFF
LIST_ELEMENT = 1  # NFTA_LIST_ELEM


class Inexpressible(ValueError):
    """What a transaction says cannot be said in messages, or not by us."""


def attribute(kind: int, body: bytes) -> bytes:
    length = 4 + len(body)
    if length > ATTRIBUTE_BYTES_MAX:
        raise Inexpressible(f"an attribute of {length} bytes")
    return _ATTRIBUTE.pack(length, kind) + body + bytes(-length % 4)


def nest(kind: int, *parts: bytes) -> bytes:
    return attribute(kind | _NESTED, b"".join(parts))


def number(kind: int, value: int) -> bytes:
    return attribute(kind, _NUMBER.pack(value & 0xFFFFFFFF))


def long_number(kind: int, value: int) -> bytes:
    return attribute(kind, _LONG.pack(value))


def text(kind: int, value: str) -> bytes:
    return attribute(kind, value.encode() + b"\0")


def host_number(value: int) -> bytes:
    """As it stands in a register."""
    return _HOST.pack(value)


def message(kind: int, flags: int, sequence: int, family: int, body: bytes) -> bytes:
    length = HEADER.size + _NETFILTER.size + len(body)
    return HEADER.pack(length, kind, flags | REQUEST, sequence, 0) + _NETFILTER.pack(family, 0, 0) + body


def boundary(kind: int, sequence: int, subsystem: int) -> bytes:
    """The first or the last message of a batch for *subsystem*."""
    length = HEADER.size + _NETFILTER.size
    return HEADER.pack(length, kind, REQUEST, sequence, 0) + _RESOURCE.pack(0, 0, subsystem)
