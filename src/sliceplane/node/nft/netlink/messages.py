"""The form of netlink messages: headers, attributes in attributes, each padded to four bytes; and
what the kernel answers to a batch.

Lengths and kinds are in the host's byte order, numbers in attributes in that of the network. An
answer is a message for each command that was refused, and what the kernel was asked to confirm.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import NamedTuple

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
    """A transaction has a statement that we cannot encode as netlink messages."""


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
    return (
        HEADER.pack(length, kind, flags | REQUEST, sequence, 0)
        + _NETFILTER.pack(family, 0, 0)
        + body
    )


def boundary(kind: int, sequence: int, subsystem: int) -> bytes:
    """The first or the last message of a batch for *subsystem*."""
    length = HEADER.size + _NETFILTER.size
    return HEADER.pack(length, kind, REQUEST, sequence, 0) + _RESOURCE.pack(0, 0, subsystem)


_ERROR = 2  # NLMSG_ERROR: an errno, negative, and the header of the message that it is about
_ERRNO = struct.Struct("=i")
_CAPPED, _EXTENDED = 0x100, 0x200  # NLM_F_CAPPED, NLM_F_ACK_TLVS
_TEXT = 1  # NLMSGERR_ATTR_MSG


class KernelAnswer(NamedTuple):
    """``errno`` 0: done.  ``text``: the kernel's own words, if it has any."""

    sequence: int
    errno: int
    text: str = ""


def parse_answers(data: bytes) -> Iterator[KernelAnswer]:
    """The answers in what was read from the socket at once; others' messages are passed over."""
    at = 0
    while at + HEADER.size <= len(data):
        length, kind, flags, *_ = HEADER.unpack_from(data, at)
        end = min(at + length, len(data))
        body = at + HEADER.size
        if length < HEADER.size:
            return
        if kind == _ERROR and body + _ERRNO.size + HEADER.size <= end:
            errno = -_ERRNO.unpack_from(data, body)[0]
            inner, _, _, sequence, _ = HEADER.unpack_from(data, body + _ERRNO.size)
            skipped = _ERRNO.size + (
                HEADER.size if flags & _CAPPED or not errno else max(inner, HEADER.size) + 3 & ~3
            )
            yield KernelAnswer(
                sequence, errno, _text(data[body + skipped : end]) if flags & _EXTENDED else ""
            )
        at += length + 3 & ~3


def _text(attributes: bytes) -> str:
    at = 0
    while at + 4 <= len(attributes):
        length, kind = struct.unpack_from("=HH", attributes, at)
        if length < 4:
            break
        if kind & 0x3FFF == _TEXT:
            return attributes[at + 4 : at + length].rstrip(b"\0").decode(errors="replace")
        at += length + 3 & ~3
    return ""
