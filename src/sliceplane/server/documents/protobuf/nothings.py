"""Members that say nothing, as Go leaves them out: an empty text, a 0, a false or an empty map
where the field has ``omitempty`` and is no pointer.

What is stored must not depend on how a client spelt "nothing": protobuf has no way to say it, so an
object written as JSON with ``namespace: ""`` would differ from itself once a client wrote it back
in protobuf, and where fields must not change the write would be refused.
"""

from __future__ import annotations

from functools import cache
from typing import Any, Final

from sliceplane.api import codec
from sliceplane.api.meta import Document
from sliceplane.server.documents.protobuf.schema import (
    SCALARS,
    ProtobufField,
    find_kind,
    message,
    message_names,
)
from sliceplane.server.documents.protobuf.special import SPECIALS

#: what the compact JSON of a nothing looks like, by type
#: (with the end of the member's name, so that the ":0" in a time is none)
_MARKS: Final = {
    "string": b'":""',
    "bytes": b'":""',
    "bool": b'":false',
    "int32": b'":0',
    "int64": b'":0',
}
_MAP_MARK: Final = b'":{}'


def drop_nothings(api_version: str, kind: str, document: Document) -> None:
    """Remove them from *document*, in place, at every depth. A kind without a protobuf form is left
    as it is.

    A document without any costs its encoding; one with some a walk.
    """
    message_type = find_kind(api_version, kind)
    if message_type is None:
        return
    raw = codec.encode(document)
    if any(mark in raw for mark in _marks(message_type.name)):
        _walker(message_type.name).walk(document)


@cache
def omitted_fields(name: str) -> frozenset[str] | None:
    """Names of the fields of the message *name* that are left out when they say nothing; ``None``:
    no such message.
    """
    if name not in message_names():
        return None
    names: set[str] = set()
    for field in message(name).fields:
        if not field.name and _is_part(field):
            names |= omitted_fields(field.type) or frozenset()
        elif _omits(field):
            names.add(field.name)
    return frozenset(names)


class _Walker:
    """The fields of one message that a walk inspects. Immutable once made."""

    __slots__ = ("_inlined", "_omitted", "_parts")

    def __init__(self, name: str) -> None:
        fields = message(name).fields
        #: fields that say nothing when they are empty
        self._omitted = tuple(field.name for field in fields if _omits(field))
        self._parts = tuple(
            (field.name, field.label, field.type)
            for field in fields
            if field.name and _is_part(field)
        )
        self._inlined = tuple(field.type for field in fields if not field.name and _is_part(field))

    def walk(self, document: Any) -> None:
        if type(document) is not dict:
            return
        for name in self._omitted:
            value = document.get(name, self)
            if value is not self and not value and value is not None and type(value) is not list:
                del document[name]
        for name in self._inlined:
            _walker(name).walk(document)
        for name, label, kind in self._parts:
            value = document.get(name)
            if not value:
                continue
            below = _walker(kind)
            if label == "one":
                below.walk(value)
            else:
                for item in value.values() if type(value) is dict else value:
                    below.walk(item)


@cache
def _walker(name: str) -> _Walker:
    return _Walker(name)


def _omits(field: ProtobufField) -> bool:
    return field.presence == "omit" and (
        field.label == "map" or (field.label == "one" and field.type in SCALARS)
    )


def _is_part(field: ProtobufField) -> bool:
    return field.type not in SCALARS and field.type not in SPECIALS


@cache
def _marks(name: str) -> tuple[bytes, ...]:
    """Returns the bytes that show, in an encoded message of that name, that a member says
    nothing.
    """
    marks: set[bytes] = set()
    seen: set[str] = set()
    waiting = [name]
    while waiting:
        current = waiting.pop()
        if current in seen:
            continue
        seen.add(current)
        for field in message(current).fields:
            if _omits(field):
                marks.add(_MAP_MARK if field.label == "map" else _MARKS[field.type])
            if _is_part(field):
                waiting.append(field.type)
    return tuple(sorted(marks))
