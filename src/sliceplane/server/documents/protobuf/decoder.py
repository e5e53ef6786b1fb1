"""Messages to documents.

A message is compiled, on first use, into a table from tag key (number and wire type in one) to a
closure that puts the field into the document. An unknown key is skipped if its number is unknown,
else it is an error. Nesting is bounded by the schema, which has no recursive message, so recursion
is bounded too.

As in every protobuf decoder a field may come twice: a scalar's last value counts, messages are
merged, lists grow.
"""

from __future__ import annotations

import base64
from collections.abc import Callable
from functools import cache
from typing import Any, Final

from sliceplane.api.meta import Document
from sliceplane.kit.protobuf import (
    BYTES,
    TRUNCATED,
    VARINT,
    MalformedProtobuf,
    field_number,
    read_length,
    read_varint,
    signed,
    skip,
)
from sliceplane.server.documents.protobuf.schema import SCALARS, ProtobufField, message
from sliceplane.server.documents.protobuf.special import (
    NOT_UTF8,
    SPECIALS,
    decode_text,
    flat_fields,
)

#: puts a varint into a document
PutNumber = Callable[[Document, int], None]
#: puts data[start:stop] into a document
PutBytes = Callable[[Document, bytes, int, int], None]

_ZEROS: Final[dict[str, Any]] = {"string": "", "bool": False, "int32": 0, "int64": 0, "bytes": ""}


class MessageDecoder:
    """One compiled message.  Immutable."""

    __slots__ = ("_bytes", "_name", "_numbers", "_required", "_wire_types")

    def __init__(self, name: str) -> None:
        self._name = message(name).short_name
        self._numbers: dict[int, PutNumber] = {}
        self._bytes: dict[int, PutBytes] = {}
        self._wire_types: dict[int, str] = {}
        #: members that JSON always has, and what makes their zero
        self._required: list[tuple[str, Callable[[], Any]]] = []
        for field in message(name).fields:
            self._add(field)

    def _add(self, field: ProtobufField) -> None:
        self._wire_types[field.number] = field.name
        scalar = field.type in ("bool", "int32", "int64") and field.label != "map"
        if scalar:
            convert = _converter(field.type)
            put_number = (
                _append_number(field, convert)
                if field.label == "list"
                else _put_number(field, convert)
            )
            self._numbers[field.number << 3 | VARINT] = put_number
            if field.label == "list":
                self._bytes[field.number << 3 | BYTES] = _unpack(put_number)
        else:
            self._bytes[field.number << 3 | BYTES] = _put_bytes(field)
        if field.label == "one":
            required = _required(field)
            if required is not None:
                self._required.append((field.name, required))

    def read(self, document: Document, data: bytes, position: int, end: int) -> None:
        """Merge the message at ``data[position:end]`` into *document*.  Raises
        ``MalformedProtobuf``.
        """
        numbers = self._numbers
        strings = self._bytes
        while position < end:
            key = data[position]
            position += 1
            if key >= 0x80:
                key, position = read_varint(data, position - 1, end)
            put = strings.get(key)
            if put is not None:
                if position < end and data[position] < 0x80:
                    start = position + 1
                    position = start + data[position]
                    if position > end:
                        raise MalformedProtobuf(TRUNCATED)
                else:
                    start, position = read_length(data, position, end)
                put(document, data, start, position)
                continue
            put_number = numbers.get(key)
            if put_number is not None:
                if position < end and data[position] < 0x80:
                    value = data[position]
                    position += 1
                else:
                    value, position = read_varint(data, position, end)
                put_number(document, value)
            else:
                position = self._skip(data, position, end, key)
        for name, make in self._required:
            if not name:
                make_inlined(document, make)
            elif name not in document:
                document[name] = make()

    def _skip(self, data: bytes, position: int, end: int, key: int) -> int:
        number = field_number(key, self._name)
        if number in self._wire_types:
            raise MalformedProtobuf(
                f"proto: wrong wireType = {key & 7} for field {self._wire_types[number] or number}"
            )
        return skip(data, position, end, key & 7)

    def zero(self) -> Document:
        """An empty message as a document of its own."""
        document: Document = {}
        self.read(document, b"", 0, 0)
        return document


def make_inlined(document: Document, make: Callable[[], Document]) -> None:
    """The members that an absent inlined message has in JSON all the same."""
    for name, value in make().items():
        document.setdefault(name, value)


@cache
def decoder(name: str) -> MessageDecoder:
    """The compiled message of that full name."""
    return MessageDecoder(name)


def _required(field: ProtobufField) -> Callable[[], Any] | None:
    """Returns a function that makes the zero of a member that JSON has even if the wire had
    nothing, or ``None``.
    """
    if field.presence == "pointer":
        return None
    if field.type in SCALARS:
        zero = _ZEROS[field.type]
        return (lambda: zero) if field.presence == "always" else None
    special = SPECIALS.get(field.type)
    if special is None:
        return decoder(field.type).zero
    value = special.read(special.zero)
    return None if value is None else lambda: value


def _converter(kind: str) -> Callable[[int], Any]:
    if kind == "bool":
        return bool
    bits = 32 if kind == "int32" else 64
    half = 1 << 31
    return lambda value: value if value < half else signed(value, bits)


def _put_number(field: ProtobufField, convert: Callable[[int], Any]) -> PutNumber:
    name = field.name
    omit = field.presence == "omit"

    def put(document: Document, number: int) -> None:
        value = convert(number)
        if value or not omit:
            document[name] = value
        else:
            document.pop(name, None)

    return put


def _append_number(field: ProtobufField, convert: Callable[[int], Any]) -> PutNumber:
    name = field.name

    def put(document: Document, number: int) -> None:
        document.setdefault(name, []).append(convert(number))

    return put


def _unpack(put_number: PutNumber) -> PutBytes:
    """Numbers of a list may come packed into one field."""

    def put(document: Document, data: bytes, start: int, stop: int) -> None:
        while start < stop:
            value, start = read_varint(data, start, stop)
            put_number(document, value)

    return put


def _put_bytes(field: ProtobufField) -> PutBytes:
    if field.label == "map":
        return _put_entry(field)
    if field.type not in SCALARS and field.type not in SPECIALS:
        return _put_message(field)
    if field.type == "string":
        return _append_string(field) if field.label == "list" else _put_string(field)
    convert = _to_value(field.type)
    name = field.name
    is_list = field.label == "list"
    omit = (
        field.presence == "omit" and field.type in SCALARS
    )  # an empty int-or-string is not omitted

    def append(document: Document, data: bytes, start: int, stop: int) -> None:
        document.setdefault(name, []).append(convert(data[start:stop]))

    def put(document: Document, data: bytes, start: int, stop: int) -> None:
        value = convert(data[start:stop])
        if value is None or (omit and value == ""):
            document.pop(name, None)
        else:
            document[name] = value

    return append if is_list else put


def _put_string(field: ProtobufField) -> PutBytes:
    name = field.name
    omit = field.presence == "omit"

    def put(document: Document, data: bytes, start: int, stop: int) -> None:
        if start == stop and omit:
            document.pop(name, None)
            return
        try:
            document[name] = data[start:stop].decode()
        except UnicodeDecodeError:
            raise MalformedProtobuf(NOT_UTF8) from None

    return put


def _append_string(field: ProtobufField) -> PutBytes:
    name = field.name

    def append(document: Document, data: bytes, start: int, stop: int) -> None:
        document.setdefault(name, []).append(decode_text(data[start:stop]))

    return append


def _to_value(kind: str) -> Callable[[bytes], Any]:
    if kind == "string":
        return decode_text
    if kind == "bytes":
        return lambda data: base64.b64encode(data).decode("ascii")
    return SPECIALS[kind].read


def _put_message(field: ProtobufField) -> PutBytes:
    name = field.name
    read = decoder(field.type).read

    def inlined(document: Document, data: bytes, start: int, stop: int) -> None:
        read(document, data, start, stop)

    def append(document: Document, data: bytes, start: int, stop: int) -> None:
        item: Document = {}
        read(item, data, start, stop)
        document.setdefault(name, []).append(item)

    def put(document: Document, data: bytes, start: int, stop: int) -> None:
        inner = document.get(name)
        if inner is None:
            inner = document[name] = {}
        read(inner, data, start, stop)

    return inlined if field.presence == "inline" else append if field.label == "list" else put


def _put_entry(field: ProtobufField) -> PutBytes:
    """A map's entry {1 key, 2 value}; what it lacks is empty."""
    name = field.name
    convert = _to_value(field.type)

    def put(document: Document, data: bytes, start: int, stop: int) -> None:
        entry = dict(flat_fields(data, name, (BYTES, BYTES), start, stop))
        value = convert(entry.get(2, b""))
        document.setdefault(name, {})[decode_text(entry.get(1, b""))] = value

    return put
