"""An object as bytes; or, where it is large, as the difference to its version before: changed
members only.

Whole, an object is its MessagePack: made in half a microsecond, and since members have names, any
version reads it. A block of such objects deflates to what is new in each. Objects with templates or
data, which must not be kept as they are, and differences are *packed* values: numbers, texts,
lists, dictionaries.

- A structure is a list ``[position, value, position, value, ...]`` of the members that differ from
  those of the base; a negative position (``~position``) says that its value is again a difference.
  Without a base: from the defaults.
- A tuple is the list of its elements; its difference is a list like that of a structure if the
  lengths are equal, else ``[-1, kept at the front, kept at the end, [elements between them]]``
  under the position of a splice.
- Everything else is itself.

Positions are those of the version that records; a recording has the names that belong to them
(``schema``), so that another version finds what it knows (``Reading``).
"""

from __future__ import annotations

import types
import typing
from collections.abc import Callable, Sequence
from functools import cache
from itertools import compress, count
from operator import attrgetter, ne
from typing import Any, Final

import msgspec

from sliceplane.api.apps import ControllerRevision
from sliceplane.api.core import ConfigMap, Event
from sliceplane.api.discovery import LABEL_SERVICE_NAME, EndpointSlice, SliceEndpoint
from sliceplane.api.meta import Object, ObjectMeta
from sliceplane.api.scheme import RESOURCES
from sliceplane.watch.recorder.blocks import OBJECT_VALUES_MAX, check_values
from sliceplane.watch.recorder.redact import Redactor

Packed = Any
#: what marks the difference of two tuples of different lengths
_SPLICE: Final = "s"


class _Shape:
    """How the members of one structure are read."""

    __slots__ = ("default", "fields", "get", "long", "positions", "secret", "types")

    def __init__(self, kind: type[msgspec.Struct]) -> None:
        self.fields = kind.__struct_fields__
        self.default = kind()
        getter = attrgetter(*self.fields)
        self.get: Callable[[Any], tuple[Any, ...]] = (
            getter if len(self.fields) > 1 else lambda it: (getter(it),)
        )
        self.positions = range(len(self.fields))
        #: position of a member that has many elements; -1: there is none
        self.long = self.fields.index("endpoints") if kind is EndpointSlice else -1
        self.types = tuple(field.type for field in msgspec.structs.fields(kind))
        #: positions of members that are kept as tokens
        self.secret = frozenset(
            position
            for position, name in enumerate(self.fields)
            if name == "template"
            or (kind is ObjectMeta and name == "annotations")
            or (kind in (ConfigMap, ControllerRevision) and name == "data")
            or (kind is Event and name == "message")
        )


def _structures() -> dict[str, type[msgspec.Struct]]:
    """All that a projection may hold, by name."""
    kinds: dict[str, type[msgspec.Struct]] = {}

    def walk(kind: Any) -> None:
        if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
            if kind.__name__ not in kinds:
                kinds[kind.__name__] = kind
                for field in msgspec.structs.fields(kind):
                    walk(field.type)
        else:
            for member in typing.get_args(kind):
                walk(member)

    walk(Object)
    for resource in RESOURCES:
        walk(resource.projection)
    return kinds


_SHAPES: Final[dict[type, _Shape]] = {kind: _Shape(kind) for kind in _structures().values()}


def _is_plain(kind: Any) -> bool:
    """Whether nothing in it is a secret but annotations at its head."""
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        if kind is ObjectMeta:
            return True
        return not _SHAPES[kind].secret and all(map(_is_plain, _SHAPES[kind].types))
    return all(map(_is_plain, typing.get_args(kind)))


#: kinds that can be kept as they are encoded
_PLAIN: Final = frozenset(
    resource.projection for resource in RESOURCES if _is_plain(resource.projection)
)
_encode: Final = msgspec.msgpack.Encoder().encode
_moved_decoder: Final = msgspec.msgpack.Decoder(tuple[ObjectMeta, list[tuple[int, SliceEndpoint]]])


@cache
def _decoder(kind: type[Object]) -> msgspec.msgpack.Decoder[Object]:
    return msgspec.msgpack.Decoder(kind)


def service_of(value: Object | None) -> str:
    """Of a slice."""
    return (
        (value.metadata.labels or {}).get(LABEL_SERVICE_NAME, "")
        if isinstance(value, EndpointSlice)
        else ""
    )


class Packer:
    """Owned by one recorder."""

    def __init__(self, redactor: Redactor) -> None:
        self._redactor = redactor

    def whole(self, value: Object) -> bytes | list[Packed]:
        """*value* without a base."""
        if type(value) not in _PLAIN:
            return self._from_defaults(value)
        metadata = self._metadata(value.metadata)
        return _encode(
            value
            if metadata is value.metadata
            else msgspec.structs.replace(value, metadata=metadata)
        )

    def _metadata(self, metadata: ObjectMeta) -> ObjectMeta:
        annotations = metadata.annotations
        if annotations:
            kept = self._redactor.annotations(annotations)
            if kept is not annotations:
                return msgspec.structs.replace(metadata, annotations=kept)
        return metadata

    def moved(self, base: Object, value: Object, places: Sequence[int]) -> bytes | None:
        """What makes *value* of *base*, two slices that differ in metadata and in the endpoints at
        *places* alone; ``None``: in more than that.
        """
        assert isinstance(base, EndpointSlice), f"{base!r} has no endpoints"
        assert isinstance(value, EndpointSlice), f"{value!r} has no endpoints"
        endpoints = value.endpoints
        if (
            endpoints is None
            or base.ports != value.ports
            or base.address_type != value.address_type
        ):
            return None
        return _encode((self._metadata(value.metadata), [(at, endpoints[at]) for at in places]))

    def difference(self, base: Any, value: Any) -> list[Packed]:
        """What makes *value* of *base*, two structures of one type."""
        shape = _SHAPES[type(value)]
        olds, news = shape.get(base), shape.get(value)
        made: list[Packed] = []
        long = shape.long
        if long >= 0 and olds[long] and news[long]:
            # Compared once, element by element, and not as a whole before that.
            elements = self._elements(olds[long], news[long])
            if elements:
                made += (~long, elements)
            news = (*news[:long], olds[long], *news[long + 1 :])
        for position in compress(shape.positions, map(ne, olds, news)):
            old, new = olds[position], news[position]
            kind = type(new)
            if position in shape.secret:
                made += (position, self._secret(shape.fields[position], new))
            elif kind is type(old) and kind in _SHAPES:
                made += (~position, self.difference(old, new))
            elif kind is tuple and old:
                made += (~position, self._elements(old, new))
            else:
                made += (position, self._pack(new))
        return made

    def _from_defaults(self, value: Any, base: Any = None) -> list[Packed]:
        """As ``difference`` to the defaults; a text that was sent and equals the default is not
        left out, since it is not left out when the object is encoded again (msgspec omits what *is*
        the default).
        """
        shape = _SHAPES[type(value)]
        made: list[Packed] = []
        for position, (old, new) in enumerate(
            zip(shape.get(base or shape.default), shape.get(value), strict=True)
        ):
            if old is new:
                continue
            if position in shape.secret:
                made += (position, self._secret(shape.fields[position], new))
            elif type(old) is type(new) and type(new) in _SHAPES:
                members = self._from_defaults(new, old)
                if members:
                    made += (~position, members)
            elif old != new or type(new) is str:
                made += (position, self._pack(new))
        return made

    def _elements(self, old: tuple[Any, ...], new: tuple[Any, ...]) -> Packed:
        """Of two tuples, the first of them not empty."""
        if len(old) != len(new):
            shorter = min(len(old), len(new))
            # Each is ended by the shorter one, and compared in C.
            front = next(compress(count(), map(ne, old, new)), shorter)
            end = min(
                next(compress(count(), map(ne, reversed(old), reversed(new))), shorter),
                shorter - front,
            )
            return [
                _SPLICE,
                front,
                end,
                [self._pack(value) for value in new[front : len(new) - end]],
            ]
        made: list[Packed] = []
        for at in compress(count(), map(ne, old, new)):
            if type(new[at]) in _SHAPES:
                made += (~at, self.difference(old[at], new[at]))
            else:
                made += (at, new[at])
        return made

    def _pack(self, value: Any) -> Packed:
        if type(value) in _SHAPES:
            return self._from_defaults(value)
        if type(value) is tuple:
            return [self._pack(item) for item in value]
        return value

    def _secret(self, name: str, value: Any) -> Packed:
        if value is None:
            return None
        if name == "annotations":
            return self._redactor.annotations(value)
        if name == "template":
            return self._redactor.template(value)
        if name == "message":
            return self._redactor.token(value) if value else value
        if isinstance(value, dict):
            return self._redactor.revision(value)
        return [0, self._redactor.token(value.ca_crt)] if value.ca_crt else []


Members = dict[str, tuple[str, ...]]


class Reading:
    """Where the members of a recording are in this version's structures. *members*: ``schema`` of
    the version that recorded. What this version does not have is left out, what the recording does
    not have is as if it was not said.
    """

    def __init__(self, members: Members) -> None:
        own = schema()
        #: kind -> recorded position -> own position, -1 for none; kinds that are as they were are
        #: not in it
        self.places: dict[type, tuple[int, ...]] = {}
        for name, kind in _structures().items():
            recorded = tuple(members.get(name, own[name]))
            if recorded != own[name]:
                self.places[kind] = tuple(
                    own[name].index(field) if field in own[name] else -1 for field in recorded
                )

    @property
    def differing(self) -> tuple[str, ...]:
        """Names of structures that have other members now."""
        return tuple(sorted(kind.__name__ for kind in self.places))

    def unpack(self, base: Any, packed: list[Packed]) -> Any:
        """The structure that *packed* makes of *base*.  Raises ``ValueError`` for what no packer
        made.
        """
        shape = _SHAPES[type(base)]
        places = self.places.get(type(base))
        values = list(shape.get(base))
        try:
            for at in range(0, len(packed), 2):
                position, value = packed[at], packed[at + 1]
                nested = position < 0
                position = ~position if nested else position
                if places is not None:
                    position = places[position]
                    if position < 0:
                        continue
                if not nested:
                    values[position] = self._value(shape.types[position], value)
                elif type(values[position]) in _SHAPES:
                    values[position] = self.unpack(values[position], value)
                else:
                    values[position] = self._tuple(shape.types[position], values[position], value)
        except (IndexError, TypeError, KeyError, AttributeError) as error:
            raise ValueError(f"no difference of {type(base).__name__}: {error}") from error
        return type(base)(**dict(zip(shape.fields, values, strict=True)))

    def unpack_moved(self, base: Any, packed: bytes) -> Any:
        metadata, places = _moved_decoder.decode(check_values(packed, OBJECT_VALUES_MAX))
        endpoints = list(base.endpoints)
        for at, endpoint in places:
            endpoints[at] = endpoint
        return msgspec.structs.replace(base, metadata=metadata, endpoints=tuple(endpoints))

    def unpack_whole(self, kind: type[Object], packed: bytes | list[Packed]) -> Any:
        if isinstance(packed, bytes):
            return _decoder(kind).decode(check_values(packed, OBJECT_VALUES_MAX))
        return self.unpack(_SHAPES[kind].default, packed)

    def _tuple(self, kind: Any, base: tuple[Any, ...], packed: Packed) -> tuple[Any, ...]:
        element = _element(kind)
        if packed and packed[0] == _SPLICE:
            _, front, end, between = packed
            made = (self._value(element, value) for value in between)
            return (*base[:front], *made, *base[len(base) - end :])
        values = list(base)
        for at in range(0, len(packed), 2):
            position, value = packed[at], packed[at + 1]
            if position >= 0:
                values[position] = self._value(element, value)
            else:
                values[~position] = self.unpack(values[~position], value)
        return tuple(values)

    def _value(self, kind: Any, packed: Packed) -> Any:
        if packed is None:
            return None
        plain = _plain_type(kind)
        if isinstance(plain, type) and issubclass(plain, msgspec.Struct):
            return self.unpack(_SHAPES[plain].default, packed)
        if typing.get_origin(plain) is tuple:
            element = typing.get_args(plain)[0]
            return tuple(self._value(element, value) for value in packed)
        return packed


@cache
def _plain_type(kind: Any) -> Any:
    """*kind* without ``None``; of several others the first that is a structure or a tuple."""
    if typing.get_origin(kind) in (typing.Union, types.UnionType):
        members = [member for member in typing.get_args(kind) if member is not type(None)]
        return _plain_type(members[0]) if len(members) == 1 else object
    return kind


def _element(kind: Any) -> Any:
    return typing.get_args(_plain_type(kind))[0]


@cache
def schema() -> Members:
    """The members of all structures by their positions, which is what a recording names them by."""
    return {name: kind.__struct_fields__ for name, kind in _structures().items()}
