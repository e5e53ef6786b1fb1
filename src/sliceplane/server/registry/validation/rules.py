"""Rules of objects as rows.

A rule is called with the path of an object and the object, and returns its complaints.  Most are a ``Field``: data
about one member, required, choices, bounds, form, immutable.  ``Rows`` runs rules in their order, which is that of
upstream's complaints (``pkg/apis/core/validation/validation.go``).  A rule that no row can express (one of several, one member
against another) is a function beside the rows.

``fill`` sets defaults by a pattern of the document that is filled.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Any, Final, TypeVar

import msgspec

from sliceplane.api.errors import (
    ERRORS_MAX,
    FieldError,
    duplicate,
    forbidden_field,
    invalid_value,
    not_supported,
    required,
    too_long,
    too_many,
    while_few,
)
from sliceplane.api.meta import Document
from sliceplane.server.registry.metadata import IMMUTABLE

T = TypeVar("T")
Rule = Callable[[str, Document], list[FieldError]]
#: the complaints about one value at one path
Check = Callable[[str, Any], list[FieldError]]
#: the problems of a text
Form = Callable[[str], Iterable[str]]
NOT_NEGATIVE: Final = "must be greater than or equal to 0"
POSITIVE: Final = "must be greater than 0"
_MODE_MAX: Final = 0o777
_MODE_DETAIL: Final = "must be a number between 0 and 0777 (octal), both inclusive"


class Field(msgspec.Struct, frozen=True):
    """The rules of the member at *path*.

    ``drivers[].name`` is the member of each element, and of ``csi?.driver`` nothing is required where ``csi`` is
    absent; any other member on the way counts as an empty object.
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

    def __call__(self, path: str, document: Document) -> list[FieldError]:
        if "." not in self.path:
            return self._check(f"{path}.{self.path}" if path else self.path, document.get(self.path))
        errors: list[FieldError] = []
        for where, parent, name in while_few(errors, _places(document, self.path, f"{path}." if path else "")):
            errors += self._check(where, parent.get(name))
        return errors

    @property
    def needed(self) -> str:
        """The member without which there is nothing to check; "" if its absence may be a fault."""
        return "" if self.required or self.always else self.path.partition(".")[0].rstrip("?[]")

    def _check(self, path: str, value: Any) -> list[FieldError]:
        if self.always:
            value = value or ""
        elif self.required and not value:
            return [required(path, self.required if isinstance(self.required, str) else "")]
        if value is None:
            return []
        errors: list[FieldError] = []
        if self.most is not None and len(value) > self.most:
            errors.append(too_many(path, len(value), self.most))
        if self.choices:
            values = value if isinstance(value, list) else (value,)
            bad = (text for text in values if text not in self.choices)
            errors += [not_supported(path, text, self.choices) for text in islice(bad, ERRORS_MAX)]
        is_below = self.minimum is not None and value < self.minimum
        if is_below or (self.maximum is not None and value > self.maximum):
            errors.append(invalid_value(path, value, self.detail or self._bounds))
        if self.bytes_max is not None and len(value.encode()) > self.bytes_max:
            errors.append(too_long(path, self.bytes_max))
        if self.form is not None and (value or self.empty or self.always):
            errors += [invalid_value(path, value, problem) for problem in self.form(value)]
        if self.whole is not None:
            errors += self.whole(path, value)
        if self.rows is not None:
            errors += each(path, value, self.rows) if isinstance(value, list) else self.rows(path, value)
        return errors

    @property
    def _bounds(self) -> str:
        if self.maximum is None:
            return f"must be greater than or equal to {self.minimum}"
        return f"must be between {self.minimum} and {self.maximum}, inclusive"


def _places(document: Document, path: str, shown: str) -> Iterator[tuple[str, Document, str]]:
    """The path as messages show it, the object that has the member or lacks it, and the member's name."""
    head, _, rest = path.partition(".")
    name = head.rstrip("?[]")
    if not rest:
        yield shown + name, document, name
    elif head.endswith("[]"):
        for index, item in enumerate(document.get(name) or ()):
            yield from _places(item, rest, f"{shown}{name}[{index}].")
    elif name in document or not head.endswith("?"):
        yield from _places(document.get(name, {}), rest, f"{shown}{name}.")


class Rows:
    """Rules of one object, in the order of their complaints."""

    def __init__(self, *rules: Rule) -> None:
        self._rules = [(rule.needed if isinstance(rule, Field) else "", rule) for rule in rules]

    def __call__(self, path: str, document: Document) -> list[FieldError]:
        errors: list[FieldError] = []
        for member, rule in self._rules:
            if not member or member in document:
                errors += rule(path, document)
        return errors

    def changed(self, new: Document, old: Document) -> list[FieldError]:
        """The complaints about immutable members that *new* changes."""
        fixed = [rule.path for _, rule in self._rules if isinstance(rule, Field) and rule.immutable]
        return [error for path in fixed for error in unchanged(path, new, old)]


def at(document: Document, path: str) -> Any:
    """The value at *path*, with dots."""
    value: Any = document
    for name in path.split("."):
        value = value.get(name) if isinstance(value, dict) else None
    return value


def unchanged(path: str, new: Document, old: Document, detail: str = IMMUTABLE) -> list[FieldError]:
    value = at(new, path)
    return [] if value == at(old, path) else [invalid_value(path, value, detail)]


def each(path: str, items: Iterable[T], test: Callable[[str, T], list[FieldError]]) -> list[FieldError]:
    """*test* of each element of a list."""
    errors: list[FieldError] = []
    for index, item in while_few(errors, enumerate(items)):
        errors += test(f"{path}[{index}]", item)
    return errors


def of_form(path: str, text: str, *forms: Form) -> list[FieldError]:
    """The problems of *text*, form by form."""
    return [invalid_value(path, text, problem) for form in forms for problem in form(text)]


def among(path: str, value: Any, choices: tuple[str, ...]) -> list[FieldError]:
    return [] if value in choices else [not_supported(path, value, choices)]


def absent(path: str, document: Document, members: Iterable[str], detail: str) -> list[FieldError]:
    """Members that must not be there, or be empty."""
    return [forbidden_field(f"{path}.{member}", detail) for member in members if document.get(member)]


def only_once(path: str, key: T, seen: set[T], shown: Any = None) -> list[FieldError]:
    """The complaint about a *key* that was *seen*, which it is from now on."""
    if key in seen:
        return [duplicate(path, key if shown is None else shown)]
    seen.add(key)
    return []


def needs(*members: str, detail: str = "") -> Rows:
    """Members that must be there and not be empty."""
    return Rows(*(Field(member, required=detail or True) for member in members))


def not_negative(*members: str) -> Rows:
    return Rows(*(Field(member, minimum=0) for member in members))


def file_mode(member: str) -> Field:
    return Field(member, minimum=0, maximum=_MODE_MAX, detail=_MODE_DETAIL)


def no_way_up(text: str) -> list[str]:
    return ["must not contain '..'"] if ".." in text.split("/") else []


def way_down(text: str) -> list[str]:
    """The problems of a relative path that leads nowhere else."""
    return [*(["must be a relative path"] if text.startswith("/") else []), *no_way_up(text)]


def way_of_user(text: str) -> list[str]:
    """``way_down``, and no name that kubelets reserve."""
    reserved = text.startswith("..") and not text.startswith("../")
    return [*way_down(text), *(["must not start with '..'"] if reserved else [])]


def fill(document: Document, pattern: Document) -> None:
    """Sets the defaults of *pattern* in *document*, whose shape it has.

    An object is filled where it is there, and so is each element of a list.  A name that begins with "+" is that of an
    object or a list which is made where it is missing; one that ends with "?" has its default where it is missing, any
    other also where it is empty or zero.
    """
    for name, default in pattern.items():
        member = name.strip("+?")
        value = document.get(member)
        if name[0] == "+" and value is None:
            document[member] = value = type(default)()
        if type(default) is list and default and type(default[0]) is dict:
            for item in value or ():
                fill(item, default[0])
        elif type(default) is dict and default:
            if value is not None:
                fill(value, default)
        elif value is None or not (value or name[-1] == "?"):
            document[member] = copy.copy(default)


def filled(pattern: Document) -> Callable[[Document], None]:
    return lambda document: fill(document, pattern)
