"""Documents to messages.

A message is compiled, on first use, into one entry per field in the order of field numbers: the
name in the document, the bytes to write when the member is absent (or null), and a closure that
writes it when it is there. So the encoder's loop has no case distinction left in it.

What absence writes is upstream's choice and the reason why byte equality needs
``ProtobufField.presence``: a plain scalar is written as zero, a plain message as its own zero,
everything else not at all.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable
from functools import cache
from typing import Any, Final

from sliceplane.kit.protobuf import BYTES, VARINT, heads, tag, varint
from sliceplane.server.documents.protobuf.schema import SCALARS, ProtobufField, message
from sliceplane.server.documents.protobuf.special import SPECIALS, Mismatch

Write = Callable[[Any], bytes]

_RANGES: Final = {"int32": 1 << 31, "int64": 1 << 63}


class MessageEncoder:
    """One compiled message.  Immutable."""

    __slots__ = ("_fields", "zero")

    def __init__(self, name: str) -> None:
        self._fields = tuple(
            (field.name, _absent(field), _writer(field))
            for field in sorted(message(name).fields, key=_number)
        )
        #: the bytes of an empty document
        self.zero = self.encode({})

    def encode(self, document: Any) -> bytes:
        """The message's bytes.  Members that the message does not have are passed over.  Raises
        ``Mismatch``.
        """
        if document.__class__ is not dict:
            raise Mismatch("an object", document)
        get = document.get
        out: list[bytes] = []
        for name, absent, write in self._fields:
            value = (
                get(name) if name else document
            )  # an inlined message finds its members in this document
            out.append(absent if value is None else write(value))
        return b"".join(out)


def _number(field: ProtobufField) -> int:
    return field.number


@cache
def encoder(name: str) -> MessageEncoder:
    """The compiled message of that full name."""
    return MessageEncoder(name)


def _field_tag(field: ProtobufField) -> bytes:
    delimited = field.label == "map" or field.type not in ("bool", "int32", "int64")
    return tag(field.number, BYTES if delimited else VARINT)


def _absent(field: ProtobufField) -> bytes:
    if field.label != "one" or field.presence == "pointer":
        return b""
    return _zero(field.type, _field_tag(field))


def _zero(kind: str, field_tag: bytes) -> bytes:
    """A plain field of type *kind* that has no value."""
    if kind in SCALARS:
        return field_tag + b"\x00"
    special = SPECIALS.get(kind)
    body = special.zero if special else encoder(kind).zero
    return field_tag + varint(len(body)) + body


def _writer(field: ProtobufField) -> Write:
    field_tag = _field_tag(field)
    if field.label == "map":
        return _map(field.type, field_tag, field.name)
    write = _one(field.type, field_tag, field.name)
    return (
        _list(write, _zero(field.type, field_tag), field.name) if field.label == "list" else write
    )


def _one(kind: str, field_tag: bytes, name: str) -> Write:
    """A writer of one value; *name* is for errors."""
    if kind == "string":
        return _string(field_tag, name)
    if kind == "bool":
        return _bool(field_tag, name)
    if kind == "bytes":
        return _delimited(field_tag, _from_base64, name)
    if kind in _RANGES:
        return _integer(field_tag, kind, name)
    special = SPECIALS.get(kind)
    return _delimited(field_tag, special.write if special else encoder(kind).encode, name)


def _string(field_tag: bytes, name: str) -> Write:
    short = heads(field_tag)

    def write(value: Any) -> bytes:
        if value.__class__ is not str:
            raise Mismatch("a string", value, name)
        data: bytes = value.encode()
        size = len(data)
        return short[size] + data if size < 0x80 else field_tag + varint(size) + data

    return write


def _bool(field_tag: bytes, name: str) -> Write:
    true = field_tag + b"\x01"
    false = field_tag + b"\x00"

    def write(value: Any) -> bytes:
        if value is True:
            return true
        if value is False:
            return false
        raise Mismatch("a boolean", value, name)

    return write


def _integer(field_tag: bytes, kind: str, name: str) -> Write:
    short = heads(field_tag)
    limit = _RANGES[kind]

    def write(value: Any) -> bytes:
        if value.__class__ is not int or not -limit <= value < limit:
            raise Mismatch(f"an {kind}", value, name)
        return short[value] if 0 <= value < 0x80 else field_tag + varint(value)

    return write


def _delimited(field_tag: bytes, to_bytes: Write, name: str) -> Write:
    short = heads(field_tag)

    def write(value: Any) -> bytes:
        try:
            data = to_bytes(value)
        except Mismatch as error:
            raise error.under(name) from None
        size = len(data)
        return short[size] + data if size < 0x80 else field_tag + varint(size) + data

    return write


def _from_base64(value: Any) -> bytes:
    try:
        return base64.b64decode(value, validate=True)
    except (binascii.Error, TypeError, ValueError):
        raise Mismatch("base64", value) from None


def _list(write_one: Write, zero: bytes, name: str) -> Write:
    def write(value: Any) -> bytes:
        if value.__class__ is not list:
            raise Mismatch("a list", value, name)
        return b"".join([zero if item is None else write_one(item) for item in value])

    return write


def _map(kind: str, field_tag: bytes, name: str) -> Write:
    """A map is a list of entries {1 key, 2 value}, sorted by key, both always written."""
    key_of = _string(tag(1, BYTES), "")
    value_tag = tag(2, BYTES)
    value_of = _one(kind, value_tag, "")
    zero = _zero(kind, value_tag)

    def entry(item: tuple[str, Any]) -> bytes:
        key, value = item
        return key_of(key) + (zero if value is None else value_of(value))

    write_entry = _delimited(field_tag, entry, name)

    def write(value: Any) -> bytes:
        if value.__class__ is not dict:
            raise Mismatch("an object", value, name)
        return b"".join([write_entry(item) for item in sorted(value.items())])

    return write
