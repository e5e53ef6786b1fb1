"""The protobuf wire format: varints, tags, lengths, and skipping unknown fields without recursion.

Every reading function takes ``data``, a position and an ``end`` that it must not pass, and raises
``MalformedProtobuf`` for whatever cannot be. Leniencies are those of upstream's decoder: a varint
may be padded to ten bytes, bits above 64 are dropped, and groups are skipped if they are balanced.
"""

from __future__ import annotations

from functools import cache
from typing import Final

VARINT: Final = 0
FIXED64: Final = 1
BYTES: Final = 2
START_GROUP: Final = 3
END_GROUP: Final = 4
FIXED32: Final = 5

_UINT64: Final = (1 << 64) - 1
_VARINT_BYTES_MAX: Final = 10


class MalformedProtobuf(Exception):
    """Bytes that are no message.  The text ends up in a StatusError 400."""


TRUNCATED: Final = "unexpected EOF"


def varint(number: int) -> bytes:
    """*number* as 64 bits, two's complement if it is negative."""
    if 0 <= number < 0x80:
        return bytes((number,))
    number &= _UINT64
    out = bytearray()
    while number >= 0x80:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


def tag(number: int, wire_type: int) -> bytes:
    return varint(number << 3 | wire_type)


@cache
def heads(field_tag: bytes) -> tuple[bytes, ...]:
    """Tag and length for every length of one byte: most fields are short, and this spares the
    arithmetic.
    """
    return tuple(field_tag + bytes((size,)) for size in range(0x80))


def framed(field_tag: bytes, data: bytes) -> bytes:
    """A length-delimited field."""
    return field_tag + varint(len(data)) + data


def read_varint(data: bytes, position: int, end: int) -> tuple[int, int]:
    """The unsigned 64-bit value and the position behind it."""
    result = 0
    for index in range(_VARINT_BYTES_MAX):
        if position >= end:
            raise MalformedProtobuf(TRUNCATED)
        byte = data[position]
        position += 1
        result |= (byte & 0x7F) << (7 * index)
        if byte < 0x80:
            return result & _UINT64, position
    raise MalformedProtobuf("proto: integer overflow")


def read_length(data: bytes, position: int, end: int) -> tuple[int, int]:
    """Where the content of a length-delimited field starts and stops."""
    size, start = read_varint(data, position, end)
    if size >> 63:
        raise MalformedProtobuf("proto: negative length found during unmarshaling")
    if size > end - start:
        raise MalformedProtobuf(TRUNCATED)
    return start, start + size


def signed(value: int, bits: int) -> int:
    """The low *bits* of *value* as a signed number."""
    value &= (1 << bits) - 1
    return value - (1 << bits) if value >> (bits - 1) else value


def field_number(key: int, message: str) -> int:
    """The field number of a tag's *key*.  Raises for what can never start a field."""
    number = signed(key >> 3, 32)
    if key & 7 == END_GROUP:
        raise MalformedProtobuf(f"proto: {message}: wiretype end group for non-group")
    if number <= 0:
        raise MalformedProtobuf(f"proto: {message}: illegal tag {number} (wire type {key & 7})")
    return number


def skip(data: bytes, position: int, end: int, wire_type: int) -> int:
    """The position behind a field whose tag was read.  Groups are counted, not recursed into."""
    depth = 0
    while True:
        if wire_type == VARINT:
            _, position = read_varint(data, position, end)
        elif wire_type == BYTES:
            _, position = read_length(data, position, end)
        elif wire_type == START_GROUP:
            depth += 1
        elif wire_type == END_GROUP:
            depth -= 1
        elif wire_type in (FIXED32, FIXED64):
            position += 8 if wire_type == FIXED64 else 4
            if position > end:
                raise MalformedProtobuf(TRUNCATED)
        else:
            raise MalformedProtobuf(f"proto: illegal wireType {wire_type}")
        if depth == 0:
            return position
        key, position = read_varint(data, position, end)
        wire_type = key & 7
