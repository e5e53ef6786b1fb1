"""Sets of records as bytes, ready to be sent: each record's owner is a pointer to the question's name, so that an
answer repeats the case in which it was asked.

A set never repeats a record and has one TTL (RFC 2181 section 5).  What does not fit is left out, beginning with any
record, so that a client without TCP gets some of them too.
"""

from __future__ import annotations

from collections.abc import Sequence
from struct import Struct
from typing import Final

from sliceplane.dns.wire import HEADER_BYTES, IN, SOA, encode_record

#: to the name of the question, the first of a message
QUESTION_POINTER: Final = b"\xc0\x0c"
#: sets of fixed size up to this many bytes are kept twice in a row, so that a rotation is one slice
_TWICE_BYTES_MAX: Final = 4096
_SOA_NAMES: Final = (b"\2ns\3dns", b"\x0ahostmaster")
_soa_head: Final = Struct("!HHIH")
_soa_tail: Final = Struct("!IIIII")
#: refresh, retry and expire, as CoreDNS has them; no server transfers this zone
_SOA_TIMES: Final = (7200, 1800, 86400)


class RecordSet:
    """*data*: of each record; the list may be shared, and is not changed while this set is used."""

    __slots__ = ("_prefix", "_size", "_total", "_twice", "data", "kind")

    def __init__(self, kind: int, ttl: int, data: Sequence[bytes], size: int = 0) -> None:
        """*size*: of each one's data, if all have the same; the data are whole records otherwise (``encoded``)."""
        self.kind = kind
        self.data = data
        self._prefix = encode_record(QUESTION_POINTER, kind, ttl, b"\0" * size)[: 12 if size else 0]
        self._size = size + 12 if size else 0
        self._total = self._size * len(data) if size else sum(map(len, data))
        whole = self._prefix.join((b"", *data)) if self._total <= _TWICE_BYTES_MAX else b""
        self._twice = whole * 2

    def __len__(self) -> int:
        return len(self.data)

    def window(self, turn: int, room: int) -> tuple[int, bytes]:
        """How many records fit in *room* bytes, and they, beginning with another one each *turn*."""
        data = self.data
        count = len(data)
        start = turn % count
        if self._total <= room:
            if self._size and self._twice:
                start *= self._size
                return count, self._twice[start : start + self._total]
            return count, self._prefix.join((b"", *data[start:], *data[:start]))
        if self._size:
            count = room // self._size
            chosen = (*data[start : start + count], *data[: max(0, start + count - len(data))])
            return count, self._prefix.join((b"", *chosen))
        taken: list[bytes] = []
        for place in range(count):
            record = data[(start + place) % count]
            if len(record) > room:
                break
            room -= len(record)
            taken.append(record)
        return len(taken), b"".join(taken)

    def records(self) -> list[bytes]:
        """Each of them whole, in order."""
        return [self._prefix + data for data in self.data]


def encoded(kind: int, ttl: int, data: Sequence[bytes]) -> RecordSet:
    """Of data of different sizes."""
    return RecordSet(kind, ttl, [encode_record(QUESTION_POINTER, kind, ttl, item) for item in data])


def pointer_to(offset: int) -> bytes:
    """To what stands *offset* bytes into the name of the question."""
    return (0xC000 | HEADER_BYTES + offset).to_bytes(2, "big")


def soa(zone: bytes, serial: int, ttl: int, minimum: int) -> bytes:
    """The SOA record of *zone*, a name or a pointer to it.  A negative answer may be kept for the least of *ttl* and
    *minimum* (RFC 2308 section 5)."""
    names = _SOA_NAMES[0] + zone + _SOA_NAMES[1] + zone
    tail = _soa_tail.pack(serial & 0xFFFFFFFF, *_SOA_TIMES, minimum)
    return zone + _soa_head.pack(SOA, IN, ttl, len(names) + len(tail)) + names + tail
