"""Complaints of Go's decoders about a document, found by a walk along its schema.

Two walks, for two kinds of decoding (KEP-2885, Server Side Field Validation, for the second):

- ``first_mismatch``: plain decoding. A value of a wrong JSON type is remembered and decoding goes
  on; a text that a type with a decoder of its own (times, quantities, int-or-string) refuses ends
  decoding at once, and its complaint comes out even if something else was remembered before.
- ``unknown_in``: strict decoding. Members that the kind does not have and, given a tree of
  ``JsonMembers``, members that are there twice, in the order of the text.

Both speak of a field by Go's path: of the struct that has it and the names from the root, without
indices, in the first; with indices and map keys in the second.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import Any, Final

from sliceplane.api.errors import StatusError, bad_request
from sliceplane.api.schema import SchemaField, Struct, Type, struct
from sliceplane.kit.times import since_epoch
from sliceplane.server.documents.schema.scalars import (
    check_base64,
    check_micro_time,
    check_quantity,
    check_time,
    go_type,
)
from sliceplane.server.documents.schema.walks import ROOT, Complaints, Location, spelled

#: strict decoding reports no more
PROBLEMS_MAX: Final = 100

_INT_BITS: Final = {"int32": 31, "int64": 63, "intOrString": 31}
#: what Go prints as null, and protobuf does not write
_ZERO_TIME: Final = datetime(1, 1, 1)  # noqa: DTZ001  # UTC
_CHECK_TEXT: Final = {"microTime": check_micro_time, "time": check_time}


class TypeMismatch(Exception):
    """Go's complaint about the first value that cannot be decoded."""


def type_error(schema: Struct, detail: str) -> StatusError:
    """400 for a document of the right kind that does not decode."""
    kind = schema.go_name
    return bad_request(f'{kind} in version "v1" cannot be handled as a {kind}: {detail}')


def json_name(value: object) -> str:
    """Returns Go's name of the JSON type of *value*."""
    match value:
        case bool():
            return "bool"
        case str():
            return "string"
        case int() | float():
            return "number"
        case list():
            return "array"
        case _:
            return "object"


class JsonMembers:
    """A JSON object with every member that its text has, repeated ones too."""

    __slots__ = ("pairs",)

    def __init__(self, pairs: list[tuple[str, Any]]) -> None:
        self.pairs = pairs


def first_mismatch(schema: Struct, document: object) -> TypeMismatch | None:
    """Returns the complaint of plain decoding of *document* into *schema*, or ``None``. Unknown
    members are passed over.
    """
    walk = _TypeWalk()
    try:
        walk.value(document, Type("struct", name=schema.name))
    except TypeMismatch as refused:
        return refused
    return walk.remembered


class _TypeWalk:
    """State of one walk: where it is, in Go's terms, and the first wrong type met."""

    def __init__(self) -> None:
        self.remembered: TypeMismatch | None = None
        self.owner: Struct | None = None
        self.field: SchemaField | None = None
        self.path: list[str] = []

    def mismatch(self, actual: str, expected: Type) -> TypeMismatch:
        where = "value"
        if self.owner is not None:
            where = f"struct field {self.owner.go_name}.{'.'.join(self.path)}"
        expected_name = go_type(expected, self.owner, self.field)
        return TypeMismatch(
            f"json: cannot unmarshal {actual} into Go {where} of type {expected_name}"
        )

    def remember(self, value: object, expected: Type) -> None:
        if self.remembered is None:
            self.remembered = self.mismatch(json_name(value), expected)

    def value(self, value: Any, expected: Type) -> None:
        if value is None or expected.kind == "any":
            return
        match expected.kind:
            case "struct":
                self._struct(value, expected)
            case "list":
                if isinstance(value, list):
                    for item in value:
                        self.value(item, expected.element)
                else:
                    self.remember(value, expected)
            case "map":
                if isinstance(value, dict):
                    for item in value.values():
                        self.value(item, expected.element)
                else:
                    self.remember(value, expected)
            case _:
                self._scalar(value, expected)

    def _struct(self, value: Any, expected: Type) -> None:
        if not isinstance(value, dict):
            self.remember(value, expected)
            return
        schema = struct(expected.name)
        owner = self.owner
        field = self.field
        for name, member in value.items():
            member_field = schema.fields.get(name)
            if member_field is None:
                continue
            self.owner = schema
            self.field = member_field
            self.path.append(name)
            self.value(member, member_field.type)
            self.path.pop()
        self.owner = owner
        self.field = field

    def _scalar(self, value: Any, expected: Type) -> None:
        kind = expected.kind
        match kind:
            case "bool":
                good = isinstance(value, bool)
            case "string":
                good = isinstance(value, str)
            case "int32" | "int64":
                good = self._integer(value, expected)
            case "intOrString":
                # A type with a decoder of its own: whatever is wrong ends decoding.
                if not isinstance(value, str) and not self._integer(value, expected):
                    raise self.mismatch(json_name(value), expected)
                good = True
            case "quantity":
                text = (
                    value
                    if isinstance(value, str)
                    else ""
                    if isinstance(value, bool)
                    else _number_text(value)
                )
                _refuse(check_quantity(text))
                good = True
            case "bytes":
                good = isinstance(value, str)
                problem = check_base64(value) if good else ""
                if problem and self.remembered is None:
                    self.remembered = TypeMismatch(problem)
            case _:
                if not isinstance(value, str):
                    raise self.mismatch(json_name(value), expected)
                _refuse(_CHECK_TEXT[kind](value))
                good = True
        if not good:
            self.remember(value, expected)

    def _integer(self, value: object, expected: Type) -> bool:
        """False if *value* is not a number; a number that does not fit is reported here, with its
        digits.
        """
        if isinstance(value, bool) or not isinstance(value, int | float):
            return False
        bound = 1 << _INT_BITS[expected.kind]
        if isinstance(value, int) and -bound <= value < bound:
            return True
        problem = self.mismatch(f"number {_number_text(value)}", expected)
        if expected.kind == "intOrString":
            raise problem
        if self.remembered is None:
            self.remembered = problem
        return True


def _refuse(problem: str) -> None:
    if problem:
        raise TypeMismatch(problem)


def _number_text(value: object) -> str:
    return repr(value) if isinstance(value, int | float) else ""


def fit_in(schema: Struct, document: object) -> None:
    """Change *document* in place, at every depth, to what Go's decoding would keep of it: members
    that *schema* does not have go, quantities that are numbers become text, and times are spelt as
    Go writes them.
    """
    if not isinstance(document, dict):
        return
    fields = schema.fields
    for name in [name for name in document if name not in fields]:
        del document[name]
    for name, member in tuple(document.items()):
        fitting = _fitting(fields[name].type, member)
        if fitting is None:
            del document[name]
        else:
            document[name] = fitting


def _fitting(expected: Type, value: Any) -> Any:
    match expected.kind:
        case "struct":
            fit_in(struct(expected.name), value)
        case "map" if isinstance(value, dict):
            for name, item in value.items():
                value[name] = _fitting(expected.element, item)
        case "list" if isinstance(value, list):
            value[:] = [_fitting(expected.element, item) for item in value]
        case "quantity" if isinstance(value, int | float):
            return _number_text(value)
        case "bytes" if isinstance(value, str):
            return value.replace("\n", "").replace("\r", "")  # Go's reader passes over these
        case "time" | "microTime" if isinstance(value, str):
            return _respelt(value, micro=expected.kind == "microTime")
    return value


def _respelt(text: str, *, micro: bool) -> str | None:
    """A time in UTC with its field's precision; ``None`` for Go's zero time.  Years that Python
    lacks stay.
    """
    try:
        moment = datetime(1970, 1, 1) + since_epoch(text)  # noqa: DTZ001  # UTC by the pattern below
    except (ValueError, OverflowError):
        return text
    if moment == _ZERO_TIME:
        return None
    return (
        f"{moment:%Y-%m-%dT%H:%M:%S.%fZ}".rjust(27, "0")
        if micro
        else f"{moment:%Y-%m-%dT%H:%M:%SZ}".rjust(20, "0")
    )


def unknown_in(schema: Struct, document: object) -> tuple[str, ...]:
    """Complaints of strict decoding, each once, at most ``PROBLEMS_MAX``.

    *document* is of dictionaries, or of ``JsonMembers`` to have repeated members found as well.
    """
    walk = _StrictWalk()
    walk.value(document, Type("struct", name=schema.name), ROOT)
    return tuple(walk.problems)


def duplicates_in(tree: Any) -> tuple[str, ...]:
    """Members of a tree of ``JsonMembers`` that are there twice, at any depth and whatever they
    mean, reported alike.
    """
    walk = _StrictWalk()
    walk.anything(tree, ROOT)
    return tuple(walk.problems)


class _StrictWalk:
    """State of one walk: the complaints."""

    def __init__(self) -> None:
        self.problems = Complaints(PROBLEMS_MAX, unique=True)

    def report(self, what: str, location: Location) -> None:
        if not self.problems.full:
            self.problems.add(f'{what} field "{spelled(location).removeprefix(".")}"')

    def value(self, value: Any, expected: Type, location: Location) -> None:
        """Parts of a wrong type are passed over: plain decoding complains of those."""
        match expected.kind:
            case "struct":
                if isinstance(value, dict | JsonMembers):
                    self._struct(value, struct(expected.name), location)
            case "map":
                if isinstance(value, dict | JsonMembers):
                    self._map(value, expected.element, location)
            case "list":
                if isinstance(value, list):
                    for index, item in enumerate(value):
                        self.value(item, expected.element, (location, index))

    def _struct(
        self, value: dict[str, Any] | JsonMembers, schema: Struct, location: Location
    ) -> None:
        seen: set[str] = set()
        for name, member in _members(value):
            where: Location = (location, f".{name}")
            field = schema.fields.get(name)
            if field is None:
                self.report("unknown", where)
                continue
            if name in seen:
                self.report("duplicate", where)
            seen.add(name)
            self.value(member, field.type, where)

    def _map(
        self, value: dict[str, Any] | JsonMembers, expected: Type | None, location: Location
    ) -> None:
        seen: set[str] = set()
        for name, member in _members(value):
            where: Location = (location, f".{name}")
            if name in seen:
                self.report("duplicate", where)
            seen.add(name)
            if expected is None:
                self.anything(member, where)
            else:
                self.value(member, expected, where)

    def anything(self, value: Any, location: Location) -> None:
        """Walks a value that has no schema."""
        if isinstance(value, JsonMembers):
            self._map(value, None, location)
        elif isinstance(value, list):
            for index, item in enumerate(value):
                self.anything(item, (location, index))


def _members(value: dict[str, Any] | JsonMembers) -> Iterable[tuple[str, Any]]:
    return value.items() if isinstance(value, dict) else value.pairs
