"""Reading values by type: for each annotation a function that takes plain data, checks it, and
returns the value.

A function is made once for each type. It raises ``ValidationError`` with msgspec's text; containers
add the place at which it happened while the error passes them.
"""

from __future__ import annotations

import base64
import collections.abc
import enum
import re
import types
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from typing import Annotated, Any, Literal, NamedTuple, TypeVar, Union

from . import structs
from ._struct import Raw, Struct

Read = Callable[[Any], Any]


class MsgspecError(ValueError):
    """Base of all errors."""


class DecodeError(MsgspecError):
    """Data that cannot be decoded."""


class ValidationError(DecodeError):
    """Data of another type than expected.  ``place`` is where, from the inside out."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.text = text
        self.place = ""

    def __str__(self) -> str:
        if self.place == " `key` in":
            return f"{self.text} - at `key` in `$`"
        return f"{self.text} - at `${self.place}`" if self.place else self.text


class Meta(NamedTuple):
    """Constraints of an annotation."""

    ge: float | None = None
    le: float | None = None
    pattern: str | None = None
    description: str | None = None


def convert(value: Any, type: Any, *, strict: bool = True) -> Any:
    """*value*, plain data, as *type*."""
    return reader(type)(value)


_WORDS: tuple[tuple[Any, str], ...] = (
    (type(None), "null"),
    (bool, "bool"),
    (int, "int"),
    (float, "float"),
    (str, "str"),
    (bytes, "bytes"),
    ((list, tuple, set, frozenset), "array"),
    ((dict, Struct), "object"),
)


def _word(value: Any) -> str:
    return next((word for kind, word in _WORDS if isinstance(value, kind)), type(value).__name__)


def _wrong(expected: str, value: Any) -> ValidationError:
    return ValidationError(f"Expected `{expected}`, got `{_word(value)}`")


def _at(error: ValidationError, place: str) -> ValidationError:
    error.place = place + error.place
    return error


@cache
def reader(kind: Any) -> Read:
    """The function for *kind*.  Raises ``TypeError`` for one that is not supported."""
    if kind is Any or isinstance(kind, TypeVar):
        return _as_it_is
    if kind is None:
        kind = type(None)
    if kind in _SCALARS:
        return _SCALARS[kind]
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin is Annotated:
        return _constrained(
            reader(arguments[0]), [meta for meta in arguments[1:] if isinstance(meta, Meta)], kind
        )
    if origin in (Union, types.UnionType):
        return _union(arguments)
    if origin is Literal:
        return _literal(arguments)
    if origin is not None and isinstance(origin, type) and issubclass(origin, Struct):
        return reader(origin)
    if isinstance(kind, type) and issubclass(kind, Struct):
        return _struct(kind)
    if isinstance(kind, type) and issubclass(kind, enum.Enum):
        return _enum(kind)
    if isinstance(kind, type) and issubclass(kind, tuple) and hasattr(kind, "_fields"):
        return _named_tuple(kind)
    kind = origin or kind
    if kind in (dict, Mapping, collections.abc.MutableMapping):
        return _dictionary(*(map(reader, arguments) if arguments else (_as_it_is, _as_it_is)))
    if kind is tuple and arguments and arguments[-1] is not Ellipsis:
        return _fixed(tuple(map(reader, arguments)))
    if kind in (tuple, list, set, frozenset, collections.abc.Sequence):
        return _array(
            list if kind is collections.abc.Sequence else kind,
            reader(arguments[0]) if arguments else _as_it_is,
        )
    raise TypeError(f"Type {kind!r} is not supported")


def _as_it_is(value: Any) -> Any:
    return value


def _scalar(kind: type, word: str) -> Read:
    def read(value: Any) -> Any:
        if isinstance(value, kind) and not (kind is int and isinstance(value, bool)):
            return value
        raise _wrong(word, value)

    return read


def _float(value: Any) -> float:
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return float(value)
    raise _wrong("float", value)


def _bytes(value: Any) -> bytes:
    if isinstance(value, bytes):
        return value
    if not isinstance(value, str):
        raise _wrong("bytes", value)
    try:
        return base64.b64decode(value, validate=True)
    except ValueError as error:
        raise ValidationError("Invalid base64 encoded string") from error


def _raw(value: Any) -> Raw:
    from .json import encode

    return value if isinstance(value, Raw) else Raw(encode(value))


_SCALARS: dict[Any, Read] = {
    str: _scalar(str, "str"),
    int: _scalar(int, "int"),
    bool: _scalar(bool, "bool"),
    type(None): _scalar(type(None), "null"),
    object: _as_it_is,
    float: _float,
    bytes: _bytes,
    Raw: _raw,
}


def _constrained(read: Read, metas: list[Meta], kind: Any) -> Read:
    word = _words_of(kind)

    def constrained(value: Any) -> Any:
        value = read(value)
        for meta in metas:
            if meta.ge is not None and value < meta.ge:
                raise ValidationError(f"Expected `{word}` >= {meta.ge}")
            if meta.le is not None and value > meta.le:
                raise ValidationError(f"Expected `{word}` <= {meta.le}")
            if meta.pattern is not None and not re.search(meta.pattern, value):
                raise ValidationError(f"Expected `{word}` matching regex {meta.pattern!r}")
        return value

    return constrained


def _words_of(kind: Any) -> str:
    """As msgspec names a type in a text."""
    origin = typing.get_origin(kind)
    if origin is Annotated:
        return _words_of(typing.get_args(kind)[0])
    if origin is Literal or (isinstance(kind, type) and issubclass(kind, enum.Enum)):
        return "str"
    if origin in (Union, types.UnionType):
        return " | ".join(_ordered({_words_of(member) for member in _flat(kind)}))
    kind = origin or kind
    if not isinstance(kind, type):
        return "any"
    if kind is Raw:
        return "raw"
    return next((word for base, word in _WORDS if issubclass(kind, base)), kind.__name__)


_ORDER = ("bool", "int", "float", "str", "bytes", "array", "object", "null")


def _ordered(words: set[str]) -> list[str]:
    return sorted(words, key=lambda word: _ORDER.index(word) if word in _ORDER else len(_ORDER))


def _flat(kind: Any) -> Iterator[Any]:
    """The members of a union within a union, which may be annotated."""
    inner = typing.get_args(kind)[0] if typing.get_origin(kind) is Annotated else kind
    if typing.get_origin(inner) in (Union, types.UnionType):
        for member in typing.get_args(inner):
            yield from _flat(member)
    else:
        yield kind


def _union(arguments: tuple[Any, ...]) -> Read:
    """Members of a union differ in the kind of JSON that they are, so the first that fits is the
    one.
    """
    by_word = {
        _words_of(member): reader(member) for argument in arguments for member in _flat(argument)
    }
    if "any" in by_word:
        return _as_it_is
    expected = " | ".join(_ordered(set(by_word)))

    def read(value: Any) -> Any:
        word = _word(value)
        chosen = by_word.get(word) or (by_word.get("float") if word == "int" else None)
        if chosen is None:
            raise _wrong(expected, value)
        return chosen(value)

    return read


def _literal(choices: tuple[Any, ...]) -> Read:
    words = " | ".join(_ordered({_word(choice) for choice in choices}))

    def read(value: Any) -> Any:
        for choice in choices:
            if type(value) is type(choice) and value == choice:
                return choice
        if _word(value) not in words:
            raise _wrong(words, value)
        raise ValidationError(f"Invalid enum value {value!r}")

    return read


def _enum(kind: Any) -> Read:
    def read(value: Any) -> Any:
        if isinstance(value, kind):
            return value
        try:
            return kind(value)
        except ValueError:
            raise ValidationError(f"Invalid enum value {value!r}") from None

    return read


def _dictionary(read_key: Read, read_value: Read) -> Read:
    def read(value: Any) -> Any:
        if not isinstance(value, dict):
            raise _wrong("object", value)
        result = {}
        for key, item in value.items():
            try:
                at_key = read_key(key)
            except ValidationError as error:
                raise _at(error, " `key` in") from None
            try:
                result[at_key] = read_value(item)
            except ValidationError as error:
                raise _at(error, "[...]") from None
        return result

    return read


def _elements(value: Any, read: Read) -> list[Any]:
    if not isinstance(value, (list, tuple, set, frozenset)):
        raise _wrong("array", value)
    result = []
    for number, item in enumerate(value):
        try:
            result.append(read(item))
        except ValidationError as error:
            raise _at(error, f"[{number}]") from None
    return result


def _array(kind: Any, read_element: Read) -> Read:
    if kind is list:
        return lambda value: _elements(value, read_element)
    return lambda value: kind(_elements(value, read_element))


def _fixed(readers: tuple[Read, ...]) -> Read:
    def read(value: Any) -> Any:
        if not isinstance(value, (list, tuple)):
            raise _wrong("array", value)
        return tuple(_placed(readers, value, len(readers), f"length {len(readers)}"))

    return read


def _named_tuple(kind: Any) -> Read:
    """An array; members with a default may be absent."""
    hints = typing.get_type_hints(kind, include_extras=True)
    readers = [reader(hints[name]) for name in kind._fields]
    required = len(readers) - len(kind._field_defaults)

    def read(value: Any) -> Any:
        if isinstance(value, kind):
            return value
        if not isinstance(value, (list, tuple)):
            raise _wrong("array", value)
        bound = (
            f"length {required}"
            if required == len(readers)
            else f"length {required} to {len(readers)}"
        )
        return kind(*_placed(readers, value, required, bound))

    return read


def _placed(readers: Sequence[Read], value: Sequence[Any], required: int, bound: str) -> list[Any]:
    """Elements of different types.  *bound*: how many there may be, for the text of an error."""
    if len(value) < required:
        raise ValidationError(f"Expected `array` of {bound}, got {len(value)}")
    result = []
    for number, item in enumerate(value[: len(readers)]):
        try:
            result.append(readers[number](item))
        except ValidationError as error:
            raise _at(error, f"[{number}]") from None
    if len(value) > len(readers) and not bound.startswith("at least"):
        raise ValidationError(f"Expected `array` of {bound}")
    return result


def _struct(kind: Any) -> Read:
    """Its members' functions are made when the first value is read: classes may name each other."""
    known: dict[str, tuple[structs.FieldInfo, Read]] = {}

    def read(value: Any) -> Any:
        if isinstance(value, kind):
            return value
        if not known:
            known.update(
                {field.encode_name: (field, reader(field.type)) for field in structs.fields(kind)}
            )
        if kind.__struct_config__.array_like:
            return _made(kind, _listed(value, known))
        if not isinstance(value, dict):
            raise _wrong("object", value)
        arguments = {}
        for name, item in value.items():
            member = known.get(name)
            if member is None:
                if kind.__struct_config__.forbid_unknown_fields:
                    raise ValidationError(f"Object contains unknown field `{name}`")
                continue
            try:
                arguments[member[0].name] = member[1](item)
            except ValidationError as error:
                raise _at(error, f".{name}") from None
        for name, (field, _) in known.items():
            if field.required and field.name not in arguments:
                raise ValidationError(f"Object missing required field `{name}`")
        return _made(kind, arguments)

    return read


def _made(kind: Any, arguments: dict[str, Any]) -> Any:
    try:
        return kind(**arguments)
    except (ValueError, TypeError) as error:  # of its __post_init__
        raise ValidationError(str(error)) from error


def _listed(value: Any, known: Mapping[str, tuple[structs.FieldInfo, Read]]) -> dict[str, Any]:
    """The members of a class that is encoded as an array; what comes behind them is passed over."""
    if not isinstance(value, (list, tuple)):
        raise _wrong("array", value)
    required = sum(field.required for field, _ in known.values())
    readers = [read for _, read in known.values()]
    placed = _placed(readers, value, required, f"at least length {required}")
    return dict(zip((field.name for field, _ in known.values()), placed, strict=False))
