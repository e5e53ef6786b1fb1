"""Messages whose JSON form is not an object: each with a writer (JSON value to the message's bytes)
and a reader (bytes to the JSON value, ``None`` for null, which documents do not have).

Zero times are empty messages and null in JSON. ``Time`` is whole seconds in both forms;
``MicroTime`` has six fraction digits, always. A quantity is kept as it is written.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import msgspec

from sliceplane.kit import times
from sliceplane.kit.protobuf import (
    BYTES,
    VARINT,
    MalformedProtobuf,
    field_number,
    framed,
    read_length,
    read_varint,
    signed,
    skip,
    varint,
)
from sliceplane.server.documents.protobuf.schema import META
from sliceplane.server.documents.schema.walks import DEPTH_MAX, deeper_than

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_DAY_S: Final = 86400
#: 0001-01-01, Go's zero time
_ZERO_S: Final = -62135596800
_QUANTITY: Final = re.compile("([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)")
#: a document with such a set must not be deeper than one that came as JSON
_FIELDS_DEPTH_MAX: Final = DEPTH_MAX - 8
_INT32: Final = range(-(1 << 31), 1 << 31)


class Mismatch(Exception):
    """A document's value does not fit its field.  ``path`` grows while the error travels up."""

    def __init__(self, expected: str, value: object, name: str = "") -> None:
        super().__init__(expected, value)
        self.expected = expected
        self.value = value
        self.path = [name] if name else []

    def under(self, name: str) -> Mismatch:
        if name:
            self.path.insert(0, name)
        return self

    def __str__(self) -> str:
        return f"{'.'.join(self.path)}: want {self.expected}, found {self.value!r:.100}"


class Special(msgspec.Struct, frozen=True):
    """``zero`` is what an absent plain (non-pointer) value is on the wire."""

    write: Callable[[Any], bytes]
    read: Callable[[bytes], Any]
    zero: bytes = b""


def flat_fields(
    data: bytes, name: str, kinds: tuple[int, ...], start: int = 0, end: int | None = None
) -> Iterator[tuple[int, Any]]:
    """Yields the number and the value (an integer or bytes) of each field 1..n of the message
    *name*, which has no messages inside; ``kinds[i]`` is the wire type of field i+1.  Others are
    skipped.
    """
    position = start
    end = len(data) if end is None else end
    while position < end:
        key, position = read_varint(data, position, end)
        number = field_number(key, name)
        wire_type = key & 7
        if number > len(kinds):
            position = skip(data, position, end, wire_type)
        elif wire_type != kinds[number - 1]:
            raise MalformedProtobuf(
                f"proto: wrong wireType = {wire_type} for field {number} of {name}"
            )
        elif wire_type == VARINT:
            value, position = read_varint(data, position, end)
            yield number, value
        else:
            begin, position = read_length(data, position, end)
            yield number, data[begin:position]


def _scan(data: bytes, name: str, kinds: tuple[int, ...]) -> list[Any]:
    """Returns the fields 1..n in their order, ``None`` for one that is not there."""
    values = dict(flat_fields(data, name, kinds))
    return [values.get(number) for number in range(1, len(kinds) + 1)]


NOT_UTF8: Final = "proto: string field contains invalid UTF-8"


def decode_text(data: bytes) -> str:
    """Strings must be UTF-8: documents are JSON, and silent replacement would change names."""
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise MalformedProtobuf(NOT_UTF8) from None


def _parse_time(value: Any, expected: str) -> timedelta:
    if value.__class__ is not str:
        raise Mismatch(expected, value)
    try:
        return times.since_epoch(value)
    except (ValueError, OverflowError):
        raise Mismatch(expected, value) from None


def _write_timestamp(since_epoch: timedelta, nanos: int) -> bytes:
    seconds = since_epoch.days * _DAY_S + since_epoch.seconds
    if seconds == _ZERO_S and nanos == 0:
        return b""
    return b"\x08" + varint(seconds) + b"\x10" + varint(nanos)


def _write_time(value: Any) -> bytes:
    since_epoch = _parse_time(value, "an RFC 3339 time")
    return _write_timestamp(since_epoch, 0)


def _write_micro_time(value: Any) -> bytes:
    since_epoch = _parse_time(value, "an RFC 3339 time with six fraction digits")
    return _write_timestamp(since_epoch, since_epoch.microseconds * 1000)


def _read_timestamp(data: bytes) -> tuple[datetime, int]:
    """The whole second, and nanoseconds as they came."""
    seconds, nanos = _scan(data, "Timestamp", (VARINT, VARINT))
    try:
        return _EPOCH + timedelta(seconds=signed(seconds or 0, 64)), signed(nanos or 0, 32)
    except OverflowError:
        raise MalformedProtobuf("proto: Timestamp: seconds out of range") from None


def _read_time(data: bytes) -> str | None:
    if not data:
        return None
    moment, _ = _read_timestamp(data)
    return f"{moment:%Y-%m-%dT%H:%M:%SZ}".rjust(20, "0") if _not_zero(moment) else None


def _read_micro_time(data: bytes) -> str | None:
    if not data:
        return None
    moment, nanos = _read_timestamp(data)
    micros = abs(nanos) // 1000 * (1 if nanos >= 0 else -1)  # towards zero, as Go truncates
    try:
        moment += timedelta(microseconds=micros)
    except OverflowError:
        raise MalformedProtobuf("proto: Timestamp: seconds out of range") from None
    return f"{moment:%Y-%m-%dT%H:%M:%S.%fZ}".rjust(27, "0") if _not_zero(moment) else None


def _not_zero(moment: datetime) -> bool:
    return (moment - _EPOCH) != timedelta(seconds=_ZERO_S)


def _write_quantity(value: Any) -> bytes:
    if value.__class__ is int:
        value = str(value)
    if value.__class__ is not str:
        raise Mismatch("a quantity", value)
    return framed(b"\x0a", value.encode())


def _read_quantity(data: bytes) -> str:
    (raw,) = _scan(data, "Quantity", (BYTES,))
    if raw is None:
        return "0"
    text = decode_text(raw)
    if not _QUANTITY.fullmatch(text):
        raise MalformedProtobuf(
            f"quantities must match the regular expression '^{_QUANTITY.pattern}$'"
        )
    return text


def _write_int_or_string(value: Any) -> bytes:
    if value.__class__ is str:
        return b"\x08\x01\x10\x00" + framed(b"\x1a", value.encode())
    if value.__class__ is int and value in _INT32:
        return b"\x08\x00\x10" + varint(value) + b"\x1a\x00"
    raise Mismatch("a 32-bit number or a string", value)


def _read_int_or_string(data: bytes) -> int | str:
    kind, number, text = _scan(data, "IntOrString", (VARINT, VARINT, BYTES))
    if not kind:
        return signed(number or 0, 32)
    if kind == 1:
        return decode_text(text or b"")
    raise MalformedProtobuf(f"impossible IntOrString.Type {kind}")


def _write_fields(value: Any) -> bytes:
    return framed(b"\x0a", msgspec.json.encode(value))


def _read_fields(data: bytes) -> Any:
    (raw,) = _scan(data, "FieldsV1", (BYTES,))
    if not raw:
        return None
    try:
        fields = msgspec.json.decode(raw)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        raise MalformedProtobuf("proto: what should be JSON is none") from None
    if deeper_than(fields, _FIELDS_DEPTH_MAX):
        raise MalformedProtobuf("proto: JSON: exceeded max depth")
    return fields


def _write_strings(value: Any) -> bytes:
    if value.__class__ is not list or any(item.__class__ is not str for item in value):
        raise Mismatch("a list of strings", value)
    return b"".join(framed(b"\x0a", item.encode()) for item in value)


def _read_strings(data: bytes) -> list[str]:
    items: list[str] = []
    position = 0
    end = len(data)
    while position < end:
        key, position = read_varint(data, position, end)
        number = field_number(key, "list of strings")
        if number != 1:
            position = skip(data, position, end, key & 7)
        elif key & 7 != BYTES:
            raise MalformedProtobuf(f"proto: wrong wireType = {key & 7} for field Items")
        else:
            start, position = read_length(data, position, end)
            items.append(decode_text(data[start:position]))
    return items


_STRINGS: Final = Special(_write_strings, _read_strings)
_FREE_FORM: Final = Special(_write_fields, _read_fields)

#: by the message's full name
SPECIALS: Final[dict[str, Special]] = {
    f"{META}.Time": Special(_write_time, _read_time),
    f"{META}.MicroTime": Special(_write_micro_time, _read_micro_time),
    f"{META}.FieldsV1": _FREE_FORM,
    # The bytes of one are JSON wherever a document has one.
    "k8s.io.apimachinery.pkg.runtime.RawExtension": _FREE_FORM,
    f"{META}.Verbs": _STRINGS,
    "k8s.io.api.authentication.v1.ExtraValue": _STRINGS,
    "k8s.io.api.authentication.v1.AttestationValue": _STRINGS,
    "k8s.io.api.authorization.v1.ExtraValue": _STRINGS,
    "k8s.io.apimachinery.pkg.api.resource.Quantity": Special(
        _write_quantity, _read_quantity, b"\x0a\x010"
    ),
    "k8s.io.apimachinery.pkg.util.intstr.IntOrString": Special(
        _write_int_or_string, _read_int_or_string, b"\x08\x00\x10\x00\x1a\x00"
    ),
}

__all__ = ["NOT_UTF8", "SPECIALS", "Mismatch", "Special", "decode_text", "flat_fields"]
