"""Rules of objects as rows.

A rule is called with the path of an object and the object, and returns its complaints. Most are a
``Field``: data about one member, required, choices, bounds, form, immutable. ``Rules`` runs them in
their order, which is that of upstream's complaints (``pkg/apis/core/validation/validation.go``). A
rule that no row can express (one of several, one member against another) is a function beside the
rows.

``Defaults`` sets defaults by a pattern of the document that is filled.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Any, Final, TypeVar

import msgspec

from sliceplane.api.errors import (
    ERRORS_MAX,
    FieldErrors,
    duplicate,
    forbidden_field,
    invalid_value,
    not_supported,
    required,
    too_long,
    too_many,
    until_error_limit,
)
from sliceplane.api.meta import Document

T = TypeVar("T")
Rule = Callable[[str, Document], FieldErrors]
#: the complaints about one value at one path
Check = Callable[[str, Any], FieldErrors]
#: the problems of a text
Form = Callable[[str], Iterable[str]]
IMMUTABLE: Final = "field is immutable"
NOT_NEGATIVE: Final = "must be greater than or equal to 0"
POSITIVE: Final = "must be greater than 0"
_MODE_MAX: Final = 0o777
_MODE_DETAIL: Final = "must be a number between 0 and 0777 (octal), both inclusive"


class Field(msgspec.Struct, frozen=True):
    """The rules of the member at *path*, as data.

    ``drivers[].name`` is the member of each element, and of ``csi?.driver`` nothing is required
    where ``csi`` is absent; any other member on the way counts as an empty object.
    """

    path: str
    #: True, or the detail of the message
    required: bool | str = False
    #: supported values of a text, or of each text of a list
    choices: tuple[str, ...] = ()
    minimum: int | None = None
    maximum: int | None = None
    #: the message of a number out of bounds
    detail: str = ""
    bytes_max: int | None = None
    #: elements of the list
    most: int | None = None
    #: of a text, or of each text of a list
    form: Form | None = None
    #: the form of an empty text is checked, too
    empty: bool = False
    #: as ``empty``, also of a member that is missing
    always: bool = False
    immutable: bool = False
    #: of the list as a whole
    whole: Check | None = None
    #: of the object, or of each element of the list
    rows: Check | None = None

    @property
    def needed(self) -> str:
        """The member without which there is nothing to check; "" if its absence may be a fault."""
        return "" if self.required or self.always else self.path.partition(".")[0].rstrip("?[]")

    def rule(self) -> Rule:
        """The rule that this row stands for."""
        checks = tuple(test for test, is_set in self._checks() if is_set)
        only = checks[0] if len(checks) == 1 else None

        def check_member(path: str, document: Document) -> FieldErrors:
            value = document.get(name)
            where = f"{path}.{name}" if path else name
            if not value:
                if self.always:
                    value = ""
                elif self.required:
                    return [
                        required(where, self.required if isinstance(self.required, str) else "")
                    ]
                elif value is None:
                    return []
            if only is not None:
                return only(where, value)
            return [error for test in checks for error in test(where, value)]

        def check_each_parent(path: str, document: Document) -> FieldErrors:
            errors: FieldErrors = []
            for where, parent in until_error_limit(errors, _parents(document, way, path)):
                errors += check_member(where, parent)
            return errors

        way, dot, name = self.path.rpartition(".")
        return check_each_parent if dot else check_member

    def _checks(self) -> Iterator[tuple[Check, bool]]:
        """Each check with whether this row makes it, in their order."""
        yield self._length, self.most is not None
        yield self._choice, bool(self.choices)
        yield self._bounds, self.minimum is not None or self.maximum is not None
        yield self._bytes, self.bytes_max is not None
        yield self._form, self.form is not None
        if self.whole is not None:
            yield self.whole, True
        if self.rows is not None:
            yield self._rows, True

    def _length(self, path: str, value: list[Any]) -> FieldErrors:
        assert self.most is not None
        return [too_many(path, len(value), self.most)] if len(value) > self.most else []

    def _choice(self, path: str, value: Any) -> FieldErrors:
        if not isinstance(value, list):
            return among(path, value, self.choices)
        bad = (text for text in value if text not in self.choices)
        return [not_supported(path, text, self.choices) for text in islice(bad, ERRORS_MAX)]

    def _bounds(self, path: str, value: int) -> FieldErrors:
        is_below = self.minimum is not None and value < self.minimum
        if not is_below and (self.maximum is None or value <= self.maximum):
            return []
        between = f"must be between {self.minimum} and {self.maximum}, inclusive"
        detail = (
            between
            if self.maximum is not None
            else f"must be greater than or equal to {self.minimum}"
        )
        return [invalid_value(path, value, self.detail or detail)]

    def _bytes(self, path: str, value: str) -> FieldErrors:
        assert self.bytes_max is not None
        return [too_long(path, self.bytes_max)] if len(value.encode()) > self.bytes_max else []

    def _form(self, path: str, value: Any) -> FieldErrors:
        assert self.form is not None
        if isinstance(value, list):
            return each_of_form(path, value, self.form)
        return of_form(path, value, self.form) if value or self.empty or self.always else []

    def _rows(self, path: str, value: Any) -> FieldErrors:
        assert self.rows is not None
        return each(path, value, self.rows) if isinstance(value, list) else self.rows(path, value)


def _parents(document: Document, way: str, path: str) -> Iterator[tuple[str, Document]]:
    """Yields the objects at the end of *way*, with their paths."""
    head, _, rest = way.partition(".")
    if not head:
        yield path, document
        return
    name = head.rstrip("?[]")
    where = f"{path}.{name}" if path else name
    if head.endswith("[]"):
        for index, item in enumerate(document.get(name) or ()):
            yield from _parents(item, rest, f"{where}[{index}]")
    elif name in document or not head.endswith("?"):
        yield from _parents(document.get(name, {}), rest, where)


class Rules:
    """Rules of one object, in the order of their complaints."""

    def __init__(self, *rules: Field | Rule) -> None:
        self._fields = [rule for rule in rules if isinstance(rule, Field)]
        self._rules = [
            (rule.needed, rule.rule()) if isinstance(rule, Field) else ("", rule) for rule in rules
        ]

    def __call__(self, path: str, document: Document) -> FieldErrors:
        errors: FieldErrors = []
        for member, rule in self._rules:
            if not member or member in document:
                errors += rule(path, document)
        return errors

    def changed(self, new: Document, old: Document) -> FieldErrors:
        """The complaints about immutable members that *new* changes."""
        fixed = (field.path for field in self._fields if field.immutable)
        return [error for path in fixed for error in unchanged(path, new, old)]


def at(document: Document, path: str) -> Any:
    """The value at *path*, with dots."""
    value: Any = document
    for name in path.split("."):
        value = value.get(name) if isinstance(value, dict) else None
    return value


def unchanged(path: str, new: Document, old: Document, detail: str = IMMUTABLE) -> FieldErrors:
    value = at(new, path)
    return [] if value == at(old, path) else [invalid_value(path, value, detail)]


def each(path: str, items: Iterable[T], test: Callable[[str, T], FieldErrors]) -> FieldErrors:
    """*test* of each element of a list."""
    errors: FieldErrors = []
    for index, item in enumerate(items):
        errors += test(f"{path}[{index}]", item)
        if len(errors) >= ERRORS_MAX:
            break
    return errors


def of_form(path: str, text: str, *forms: Form) -> FieldErrors:
    """The problems of *text*, form by form."""
    return [invalid_value(path, text, problem) for form in forms for problem in form(text)]


def each_of_form(path: str, texts: Iterable[str], form: Form) -> FieldErrors:
    return each(path, texts, lambda where, text: of_form(where, text, form))


def among(path: str, value: Any, choices: tuple[str, ...]) -> FieldErrors:
    return [] if value in choices else [not_supported(path, value, choices)]


def absent(path: str, document: Document, members: Iterable[str], detail: str) -> FieldErrors:
    """Members that must not be there, or be empty."""
    return [
        forbidden_field(f"{path}.{member}", detail) for member in members if document.get(member)
    ]


def check_unique(path: str, key: T, seen: set[T], value: Any = None) -> FieldErrors:
    """Returns the error for a *key* that was *seen* before, and adds it to *seen*."""
    if key in seen:
        return [duplicate(path, key if value is None else value)]
    seen.add(key)
    return []


def needs(*members: str, detail: str = "") -> Rules:
    """Members that must be there and not be empty."""
    return Rules(*(Field(member, required=detail or True) for member in members))


def not_negative(*members: str) -> Rules:
    return Rules(*(Field(member, minimum=0) for member in members))


def file_mode(member: str) -> Rules:
    return Rules(Field(member, minimum=0, maximum=_MODE_MAX, detail=_MODE_DETAIL))


def no_way_up(text: str) -> list[str]:
    return ["must not contain '..'"] if ".." in text.split("/") else []


def way_down(text: str) -> list[str]:
    """The problems of a relative path that leads nowhere else."""
    return [*(["must be a relative path"] if text.startswith("/") else []), *no_way_up(text)]


def way_of_user(text: str) -> list[str]:
    """``way_down``, and no name that kubelets reserve."""
    reserved = text.startswith("..") and not text.startswith("../")
    return [*way_down(text), *(["must not start with '..'"] if reserved else [])]


class Defaults:
    """Sets the defaults of a pattern in a document, whose shape the pattern has.

    An object is filled where it is there, and so is each element of a list. A name that begins with
    "+" is that of an object or a list which is made where it is missing; one that ends with "?" has
    its default where it is missing, any other also where it is empty or zero.
    """

    def __init__(self, pattern: Document) -> None:
        #: member, default, whether it is made, whether only a missing one is set, and the defaults
        #: of what is in it
        self._steps: list[tuple[str, Any, bool, bool, Defaults | None]] = []
        for name, default in pattern.items():
            inner = default[0] if isinstance(default, list) and default else default
            parts = Defaults(inner) if isinstance(inner, dict) and inner else None
            self._steps.append((name.strip("+?"), default, name[0] == "+", name[-1] == "?", parts))

    def __call__(self, document: Document) -> None:
        for member, default, is_created, only_missing, parts in self._steps:
            value = document.get(member)
            if value is None and is_created:
                document[member] = value = type(default)()
            if parts is None:
                if value is None or not (value or only_missing):
                    document[member] = copy.copy(default)
            elif value is not None:
                for part in value if isinstance(value, list) else (value,):
                    parts(part)


def fill(document: Document, pattern: Document) -> None:
    Defaults(pattern)(document)
