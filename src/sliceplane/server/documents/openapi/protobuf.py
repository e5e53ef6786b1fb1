"""A v3 document as protobuf: the message ``openapi.v3.Document`` of the gnostic project.

client-go's ``openapi3`` package reads no other form. The encoder is a table of fields (numbers from
the published OpenAPIv3.proto) and four shapes that the project has for what JSON does with objects:

- a *named* list is an object: one field, repeated, of {1 name, 2 value};
- ``X?`` is a choice: {1: an X, 2: a Reference {1 its ``$ref``}};
- members that begin with ``x-`` go into a field of their own, as {1 name, 2 {2 the value as YAML}};
  JSON is YAML;
- a value of an enumeration is {2 the value as YAML};
- a default is a choice of number, boolean and string: of one that is an object or a list only its
  presence is told.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Iterator
from typing import Any, Final

from sliceplane.kit.protobuf import BYTES, FIXED64, VARINT, framed, tag, varint

#: message, then member, then number and type: a scalar, a message, ``[]T``, ``named T`` or ``T?``
_MESSAGES: Final[dict[str, dict[str, tuple[int, str]]]] = {
    "Document": {
        "openapi": (1, "text"),
        "info": (2, "Info"),
        "paths": (4, "named PathItem"),
        "components": (5, "Components"),
    },
    "Info": {"title": (1, "text"), "description": (2, "text"), "version": (6, "text")},
    "Components": {
        "schemas": (1, "named Schema?"),
        "securitySchemes": (7, "named SecurityScheme?"),
    },
    "SecurityScheme": {
        "type": (1, "text"),
        "description": (2, "text"),
        "name": (3, "text"),
        "in": (4, "text"),
    },
    "PathItem": {
        "get": (4, "Operation"),
        "put": (5, "Operation"),
        "post": (6, "Operation"),
        "delete": (7, "Operation"),
        "patch": (10, "Operation"),
        "parameters": (13, "[]Parameter?"),
    },
    "Operation": {
        "tags": (1, "[]text"),
        "description": (3, "text"),
        "operationId": (5, "text"),
        "parameters": (6, "[]Parameter?"),
        "requestBody": (7, "RequestBody?"),
        "responses": (8, "Responses"),
    },
    "Parameter": {
        "name": (1, "text"),
        "in": (2, "text"),
        "description": (3, "text"),
        "required": (4, "bool"),
        "schema": (10, "Schema?"),
    },
    "RequestBody": {
        "description": (1, "text"),
        "content": (2, "named MediaType"),
        "required": (3, "bool"),
    },
    "Response": {"description": (1, "text"), "content": (3, "named MediaType")},
    "MediaType": {"schema": (1, "Schema?")},
    "Schema": {
        "uniqueItems": (20, "bool"),
        "required": (23, "[]text"),
        "enum": (24, "[]Any"),
        "type": (25, "text"),
        "allOf": (26, "[]Schema?"),
        "oneOf": (27, "[]Schema?"),
        "items": (30, "Items"),
        "properties": (31, "named Schema?"),
        "additionalProperties": (32, "Additional"),
        "default": (33, "Default"),
        "description": (34, "text"),
        "format": (35, "text"),
    },
}
#: where the members go that begin with ``x-``
_EXTENSIONS: Final = {"Document": 9, "PathItem": 14, "Operation": 13, "Parameter": 14, "Schema": 36}


def encode(document: dict[str, Any]) -> bytes:
    """The bytes of a document that was decoded from JSON.  A member that the table lacks is an
    error of ours.
    """
    return _message("Document", document)


def _message(name: str, document: dict[str, Any]) -> bytes:
    fields = _MESSAGES[name]
    contents: list[tuple[int, bytes]] = []
    for member, value in document.items():
        if member.startswith("x-"):
            contents.append((_EXTENSIONS[name], _entry(member, framed(b"\x12", _yaml(value)))))
            continue
        assert member in fields, f"{name} has no {member}"
        number, kind = fields[member]
        contents.extend((number, content) for content in _contents(kind, value))
    # In the order of field numbers, as every encoder writes; equal numbers in the order of the
    # document.
    contents.sort(key=lambda field: field[0])
    return b"".join(
        tag(number, VARINT) + content
        if content is _TRUE or content is _FALSE
        else framed(tag(number, BYTES), content)
        for number, content in contents
    )


_TRUE: Final = b"\x01"
_FALSE: Final = b"\x00"


def _contents(kind: str, value: Any) -> Iterator[bytes]:
    """Yields the bytes behind the tag, once for each time that the field is there."""
    if kind == "bool":
        if value:
            yield _TRUE
    elif kind.startswith("[]"):
        write = _writer(kind[2:])
        yield from (write(item) for item in value)
    else:
        yield _writer(kind)(value)


def _writer(kind: str) -> Callable[[Any], bytes]:
    if kind.startswith("named "):
        write = _writer(kind.removeprefix("named "))
        return lambda value: b"".join(
            framed(b"\x0a", _entry(name, write(item))) for name, item in value.items()
        )
    if kind.endswith("?"):
        return lambda value: _choice(kind[:-1], value)
    special = _SPECIAL.get(kind)
    return special or (lambda value: _message(kind, value))


def _text(value: str) -> bytes:
    return value.encode()


def _yaml(value: Any) -> bytes:
    return _text(json.dumps(value, separators=(",", ":"), ensure_ascii=False))


def _entry(name: str, value: bytes) -> bytes:
    return framed(b"\x0a", _text(name)) + framed(b"\x12", value)


def _choice(kind: str, value: dict[str, Any]) -> bytes:
    if "$ref" in value:
        return framed(b"\x12", framed(b"\x0a", _text(value["$ref"])))
    return framed(b"\x0a", _message(kind, value))


def _responses(value: dict[str, Any]) -> bytes:
    return b"".join(
        framed(b"\x12", _entry(code, _choice("Response", item))) for code, item in value.items()
    )


def _items(value: dict[str, Any]) -> bytes:
    return framed(b"\x0a", _choice("Schema", value))


def _default(value: Any) -> bytes:
    if isinstance(value, bool):
        return tag(2, VARINT) + varint(value)
    if isinstance(value, int | float):
        return tag(1, FIXED64) + struct.pack("<d", value)
    return framed(tag(3, BYTES), _text(value)) if isinstance(value, str) else b""


_SPECIAL: Final[dict[str, Callable[[Any], bytes]]] = {
    "text": _text,
    "Any": lambda value: framed(b"\x12", _yaml(value)),
    "Default": _default,
    "Responses": _responses,
    "Items": _items,
    # "true" and "false" do not occur: every map says of what.
    "Additional": _items,
}
