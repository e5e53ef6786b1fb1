"""``msgspec.json``: text to values of a type, and back."""

from __future__ import annotations

import base64
import enum
import json as _json
import math
from typing import Any

from ._struct import Raw, Struct, fields_of
from ._types import DecodeError, reader

_quoted = _json.encoder.encode_basestring


def _no_constant(name: str) -> Any:
    raise DecodeError(f"JSON is malformed: {name} is no number")


_parser = _json.JSONDecoder(parse_constant=_no_constant)


def _parsed(data: Any) -> Any:
    """Raises ``DecodeError``, ``UnicodeDecodeError`` and, of a nesting that is too deep,
    ``RecursionError``.
    """
    text = data if isinstance(data, str) else bytes(data).decode()
    try:
        return _parser.decode(text)
    except _json.JSONDecodeError as error:
        if error.pos >= len(text.rstrip()) or error.msg.startswith("Unterminated"):
            raise DecodeError("Input data was truncated") from error
        raise DecodeError(f"JSON is malformed: {error.msg} (byte {error.pos})") from error


class Decoder:
    """Decodes texts of one type."""

    def __init__(self, type: Any = Any, *, strict: bool = True) -> None:
        self.type = type
        self._read: Any = None

    def __class_getitem__(cls, _parameters: Any) -> Any:
        return cls

    def decode(self, data: Any) -> Any:
        if self._read is None:  # annotations may name classes that are defined later
            self._read = reader(self.type)
        return self._read(_parsed(data))


def decode(data: Any, *, type: Any = Any, strict: bool = True) -> Any:
    return reader(type)(_parsed(data))


class Encoder:
    """Compact JSON, members in their order."""

    def encode(self, value: Any) -> bytes:
        return "".join(_pieces(value)).encode()


def encode(value: Any) -> bytes:
    return "".join(_pieces(value)).encode()


def _key(key: Any) -> str:
    if isinstance(key, enum.Enum):
        key = key.value
    if isinstance(key, str):
        return _quoted(key)
    if isinstance(key, (int, float)) and not isinstance(key, bool):
        return f'"{key!r}"'
    raise TypeError("Only dicts with str-like or number-like keys are supported")


def _float(value: float) -> str:
    return repr(value) if math.isfinite(value) else "null"


_SCALARS: dict[Any, Any] = {
    str: _quoted,
    int: repr,
    bool: lambda value: "true" if value else "false",
    type(None): lambda _value: "null",
    float: _float,
    Raw: lambda value: bytes(value).decode(),
    bytes: lambda value: f'"{base64.b64encode(value).decode()}"',
}


def _pieces(value: Any) -> list[str]:
    """The text of *value* in parts."""
    pieces: list[str] = []
    _add(value, pieces.append)
    return pieces


def _add(value: Any, add: Any) -> None:
    scalar = _SCALARS.get(type(value))
    if scalar is not None:
        add(scalar(value))
    elif isinstance(value, dict):
        _add_members(((_key(key), item) for key, item in value.items()), add)
    elif isinstance(value, Struct):
        if value.__struct_config__.array_like:
            _add_elements((getattr(value, name) for name in value.__struct_fields__), add)
        else:
            _add_members(((_quoted(wire), item) for wire, item in fields_of(value)), add)
    elif isinstance(value, (list, tuple, set, frozenset)):
        _add_elements(value, add)
    elif isinstance(value, enum.Enum):
        _add(value.value, add)
    else:
        for kind, spell in _SCALARS.items():
            if isinstance(value, kind):
                add(spell(value))
                return
        raise TypeError(f"Encoding objects of type {type(value).__name__} is unsupported")


def _add_members(members: Any, add: Any) -> None:
    before = "{"
    for key, item in members:
        add(f"{before}{key}:")
        _add(item, add)
        before = ","
    add("}" if before == "," else "{}")


def _add_elements(elements: Any, add: Any) -> None:
    before = "["
    for element in elements:
        add(before)
        _add(element, add)
        before = ","
    add("]" if before == "," else "[]")
