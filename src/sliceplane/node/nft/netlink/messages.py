"""The format of netlink messages (headers, nested attributes, each padded to four bytes), and the
kernel's answers to a batch.

Lengths and types are in host byte order, numbers in attributes in network byte order. The kernel
sends one answer for each refused command, and one for each message with the flag ``ACK``.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import NamedTuple

#: header of every netlink message: length, type, flags, sequence number, sender
HEADER = struct.Struct("=IHHII")
#: the second header of netfilter messages: address family, version, resource
_NETFILTER = struct.Struct("=BBH")
_RESOURCE = struct.Struct(">BBH")
_ATTRIBUTE = struct.Struct("=HH")
_NUMBER = struct.Struct(">I")
_LONG = struct.Struct(">Q")
_HOST = struct.Struct("=I")

REQUEST, ACK, CREATE, APPEND = 0x1, 0x4, 0x400, 0x800
_NESTED = 0x8000
#: an attribute has its length in 16 bits
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
    """Packs *value* as a register has it, in host byte order."""
    return _HOST.pack(value)


def message(kind: int, flags: int, sequence: int, family: int, body: bytes) -> bytes:
    length = HEADER.size + _NETFILTER.size + len(body)
    return (
        HEADER.pack(length, kind, flags | REQUEST, sequence, 0)
        + _NETFILTER.pack(family, 0, 0)
        + body
    )


def boundary(kind: int, sequence: int, subsystem: int) -> bytes:
    """Returns the first or the last message of a batch for *subsystem*."""
    length = HEADER.size + _NETFILTER.size
    return HEADER.pack(length, kind, REQUEST, sequence, 0) + _RESOURCE.pack(0, 0, subsystem)


def parse_attributes(body: bytes) -> Iterator[tuple[int, bytes]]:
    """Yields the number and the contents of each attribute."""
    at, end = 0, len(body)
    while at + 4 <= end:
        length, kind = _ATTRIBUTE.unpack_from(body, at)
        if length < 4:
            return
        yield kind & 0x3FFF, body[at + 4 : at + length]
        at += length + 3 & ~3


_ERROR = 2  # NLMSG_ERROR: a negative errno, and the header of the message that it answers
_ERRNO = struct.Struct("=i")
_CAPPED, _EXTENDED = 0x100, 0x200  # NLM_F_CAPPED, NLM_F_ACK_TLVS
_TEXT = 1  # NLMSGERR_ATTR_MSG


class KernelAnswer(NamedTuple):
    """The kernel's answer to one message.  ``errno`` 0: success.  ``text``: its message, if any."""

    sequence: int
    errno: int
    text: str = ""


def parse_answers(data: bytes) -> Iterator[KernelAnswer]:
    """Yields the answers in one read of the socket; skips other messages."""
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
