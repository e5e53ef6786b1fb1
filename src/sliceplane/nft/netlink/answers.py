"""What the kernel answers to a batch: a message for each command that it refused, and what it was asked to confirm."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import NamedTuple

from sliceplane.nft.netlink.attributes import HEADER

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
            told = _ERRNO.size + (HEADER.size if flags & _CAPPED or not errno else max(inner, HEADER.size) + 3 & ~3)
            yield KernelAnswer(sequence, errno, _text(data[body + told : end]) if flags & _EXTENDED else "")
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
