"""Encodes and decodes fields of protobuf messages; ``kit.protobuf`` has the primitives.

Fields are encoded in ascending order and without defaults, as in every protobuf library, so that the
hash of a message is the same in every process. A message is the concatenation of its fields.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Final

from sliceplane.kit.protobuf import (
    BYTES,
    START_GROUP,
    TRUNCATED,
    VARINT,
    MalformedProtobuf,
    field_number,
    framed,
    heads,
    read_length,
    read_varint,
    skip,
    tag,
    varint,
)

#: tags of length-delimited fields, by number; the tags in use have at most two octets
_TAGS: Final = tuple(tag(number, BYTES) for number in range(1024))


def message(number: int, *fields: bytes) -> bytes:
    """Encodes a message, or octets, in the field *number*, even if it is empty."""
    body = fields[0] if len(fields) == 1 else b"".join(fields)
    size = len(body)
    if size < 0x80:
        return heads(_TAGS[number])[size] + body
    return framed(_TAGS[number], body)


def head(number: int, size: int) -> bytes:
    """Returns the tag and length before *size* octets of the field *number*, to be joined later."""
    return _TAGS[number] + varint(size)


def text(number: int, value: str) -> bytes:
    return message(number, value.encode()) if value else b""


def integer(number: int, value: int) -> bytes:
    """Encodes a number, an enum or a boolean."""
    return varint(number << 3 | VARINT) + varint(value) if value else b""


def wrapped(number: int, value: int) -> bytes:
    """Encodes a ``UInt32Value`` or ``BoolValue``, which distinguishes zero from an absent value."""
    return message(number, integer(1, value))


def any_of(type_url: str, body: bytes) -> bytes:
    """Encodes a ``google.protobuf.Any``."""
    return b"".join((*any_parts(type_url, body), body))


def any_parts(type_url: str, body: bytes) -> tuple[bytes, bytes]:
    """Returns the parts of an ``Any`` before its *body*, which may be long: to be joined once."""
    return text(1, type_url), head(2, len(body)) if body else b""


def any_field(number: int, type_url: str, *fields: bytes) -> bytes:
    return message(number, any_of(type_url, b"".join(fields)))


def fields(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Yields number and value of each field in the order of the octets; skips fields of a fixed size.

    Raises ``MalformedProtobuf`` if the message is truncated or invalid.
    """
    position = 0
    end = len(data)
    while position < end:
        number, value, position = _field(data, position, end)
        if value is not None:
            yield number, value


class TooLong(Exception):
    """A field has more bytes than its number may have."""

    def __init__(self, number: int, size: int, most: int) -> None:
        super().__init__(f"field {number} has {size} bytes, and may have {most}")
        self.number = number
        self.size = size
        self.most = most


def collect(
    data: bytes,
    position: int,
    most: int,
    collected: dict[int, list[int | bytes]],
    longest: Mapping[int, int],
) -> int:
    """Adds up to *most* fields of *data* from *position* on to *collected*, by number; returns where
    the next one begins.

    *longest*: bytes that a field may have, by number, 127 or more; a longer one is not copied.
    Raises ``TooLong`` and ``MalformedProtobuf``.
    """
    end = len(data)
    remaining = most
    while remaining and position < end:
        key = data[position]
        if key & 7 == BYTES and 8 <= key < 0x80:
            run, position = _short_fields(data, position, remaining)
            if run:
                collected.setdefault(key >> 3, []).extend(run)
                remaining -= len(run)
                continue
        number, value, position = _field(data, position, end, longest)
        remaining -= 1
        if value is not None:
            collected.setdefault(number, []).append(value)
    return position


def _short_fields(data: bytes, position: int, most: int) -> tuple[list[bytes], int]:
    """Returns the values of at most *most* fields from *position* on that have the tag of the first
    and a length of one octet, and where the next one begins: ``_field`` without its calls, for the
    thousands of names of one request.

    Raises ``MalformedProtobuf``.
    """
    last = len(data) - 1
    key = data[position]
    run: list[bytes] = []
    while position < last and data[position] == key and (size := data[position + 1]) < 0x80:
        start = position + 2
        position = start + size
        run.append(data[start:position])
        if len(run) == most:
            break
    if position > last + 1:
        raise MalformedProtobuf(TRUNCATED)
    return run, position


def _field(
    data: bytes, position: int, end: int, longest: Mapping[int, int] = MappingProxyType({})
) -> tuple[int, int | bytes | None, int]:
    """Returns number, value (``None``: of a skipped kind), and the position of the next field."""
    key, position = read_varint(data, position, end)
    number = field_number(key, "message")
    kind = key & 7
    if kind == START_GROUP:
        raise MalformedProtobuf("a group, which no message of proto3 has")
    if kind == BYTES:
        start, position = read_length(data, position, end)
        if position - start > longest.get(number, end):
            raise TooLong(number, position - start, longest[number])
        return number, data[start:position], position
    if kind == VARINT:
        value, position = read_varint(data, position, end)
        return number, value, position
    return number, None, skip(data, position, end, kind)


def as_bytes(value: int | bytes) -> bytes:
    """Returns *value* of a field with a message or a text.  Raises ``MalformedProtobuf``."""
    if isinstance(value, int):
        raise MalformedProtobuf("a number where a message or a text belongs")
    return value


def as_text(value: int | bytes) -> str:
    """Raises ``MalformedProtobuf``."""
    try:
        return as_bytes(value).decode()
    except UnicodeDecodeError:
        raise MalformedProtobuf("a text that is not UTF-8") from None


def as_integer(value: int | bytes) -> int:
    """Raises ``MalformedProtobuf``."""
    if isinstance(value, bytes):
        raise MalformedProtobuf("a message or a text where a number belongs")
    return value
