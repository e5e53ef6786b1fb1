"""Plain kinds: the rules of their fields and their columns are rows, read by one interpreter.

A ``FieldRule`` names a field by its path and says what holds of it: default, required, choices, bounds, form of a name,
immutable.  Complaints come in the order of the rows.  In a path ``drivers[].name`` is the member of each element, and
of ``csi?.driver`` nothing is asked where ``csi`` is absent; any other member on the way counts as an empty object.
What a row cannot say (one of several, one field against another) is a function of the kind's module.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

import msgspec
from msgspec.structs import replace

from sliceplane.api.errors import ERRORS_MAX, FieldError, invalid_value, not_supported, required, too_long, while_few
from sliceplane.api.meta import Document
from sliceplane.api.scheme import Resource
from sliceplane.server.documents.table.columns import AGE, NAME, Cell, Column, Printer, age, member, name_of
from sliceplane.server.registry.documents import document_of
from sliceplane.server.registry.kinds import kind
from sliceplane.server.registry.metadata import IMMUTABLE

if TYPE_CHECKING:
    from sliceplane.server.registry.core import Core

#: what stands for a field that was not set
_UNSET: Final[tuple[Any, ...]] = (None, "", [], {})

Source = str | Callable[[Document], Cell]
ShownColumn = tuple[Column, Source]


class FieldRule(msgspec.Struct, frozen=True):
    """The rules of the field at *path*."""

    path: str
    #: True, or what a message says besides
    required: bool | str = False
    #: filled in where the field is unset
    default: Any = None
    #: the values that a string, or each string of a list, may have
    choices: tuple[str, ...] = ()
    minimum: int | None = None
    too_small: str = "must be greater than or equal to {}"
    #: characters of a string
    length: int | None = None
    #: the problems of a string
    check: Callable[[str], Iterable[str]] | None = None
    #: an unset string is checked, as an empty one
    always: bool = False
    immutable: bool = False


def places(document: Document, path: str, shown: str = "") -> Iterator[tuple[str, Document, str]]:
    """The path as messages show it, the object that has the field or may get it, and the field's name."""
    head, _, rest = path.partition(".")
    name = head.rstrip("?[]")
    if not rest:
        yield shown + name, document, name
    elif head.endswith("[]"):
        for index, item in enumerate(document.get(name) or ()):
            yield from places(item, rest, f"{shown}{name}[{index}].")
    elif name in document or not head.endswith("?"):
        yield from places(document.get(name, {}), rest, f"{shown}{name}.")


def fill(rules: Iterable[FieldRule], document: Document) -> None:
    """Sets the defaults."""
    for rule in rules:
        if rule.default is None:
            continue
        first, _, rest = rule.path.partition(".")
        if rest and not first.endswith(("?", "[]")):
            document.setdefault(first, {})
        for _, parent, name in places(document, rule.path):
            if parent.get(name) in _UNSET:
                parent[name] = copy.copy(rule.default)


def check(rules: Iterable[FieldRule], document: Document, under: str = "") -> list[FieldError]:
    """The complaints about the fields of *document*, whose own path is *under*, with a dot at its end."""
    errors: list[FieldError] = []
    for rule in rules:
        for path, parent, name in while_few(errors, places(document, rule.path, under)):
            errors += _check_value(rule, path, parent.get(name))
    return errors


def _check_value(rule: FieldRule, path: str, value: Any) -> list[FieldError]:
    if rule.always:
        value = value or ""
    elif value in _UNSET:
        return [required(path, rule.required if isinstance(rule.required, str) else "")] if rule.required else []
    errors: list[FieldError] = []
    if rule.choices:
        values = value if isinstance(value, list) else [value]
        bad = (text for text in values if text not in rule.choices)
        errors += [not_supported(path, text, rule.choices) for text in islice(bad, ERRORS_MAX)]
    if rule.minimum is not None and value < rule.minimum:
        errors.append(invalid_value(path, value, rule.too_small.format(rule.minimum)))
    if rule.length is not None and len(value) > rule.length:
        errors.append(too_long(path, rule.length))
    if rule.check is not None:
        errors += [invalid_value(path, value, problem) for problem in rule.check(value)]
    return errors


def check_unchanged(rules: Iterable[FieldRule], new: Document, old: Document) -> list[FieldError]:
    """The complaints about immutable fields that *new* changes."""
    errors: list[FieldError] = []
    for rule in rules:
        if rule.immutable:
            names = rule.path.split(".")
            value = member(new, *names)
            if value != member(old, *names):
                errors.append(invalid_value(rule.path, value, IMMUTABLE))
    return errors


def printer(*columns: Column | ShownColumn) -> Printer:
    """Columns with the path of the text or number that each shows, or a function of the object."""
    shown = [column if isinstance(column, tuple) else (column, "") for column in columns]

    def cell(column: Column, source: Source, document: Document, now: float) -> Cell:
        if column is AGE:
            return age(document, now)
        if callable(source):
            return source(document)
        value = member(document, *source.split("."))
        return value if isinstance(value, str | int) else ""

    def cells(document: Document, now: float) -> tuple[Cell, ...]:
        return tuple(
            name_of(document) if column is NAME and not source else cell(column, source, document, now)
            for column, source in shown
        )

    return Printer(tuple(column for column, _ in shown), cells)


def marked_name(*annotations: str) -> ShownColumn:
    """The column of a class's name, which says so if one of *annotations* marks it as the default."""

    def shown(document: Document) -> str:
        is_default = any(member(document, "metadata", "annotations", name) == "true" for name in annotations)
        return f"{name_of(document)} (default)" if is_default else name_of(document)

    return NAME, shown


def plain_kind(
    resource: Resource,
    rules: tuple[FieldRule, ...],
    columns: Printer,
    *,
    validate: kind.Validate = kind.no_rules,
    validate_update: kind.ValidateUpdate = kind.no_update_rules,
    status: kind.Status = kind.NO_STATUS,
    quota: kind.Quota = kind.UNCOUNTED,
    granted: kind.Granted = kind.NOT_GRANTED,
    warnings: Callable[[Document, Document | None], Iterable[str]] = kind.no_warnings,
) -> kind.Kind:
    """A kind that is what clients wrote, by *rules*; *validate* and *validate_update* add what no row can say."""

    def validate_new(new: Document) -> list[FieldError]:
        return check(rules, new) + validate(new)

    def validate_change(new: Document, old: Document) -> list[FieldError]:
        return validate_new(new) + check_unchanged(rules, new, old) + validate_update(new, old)

    stored = kind.stored_as_sent(
        resource=resource,
        defaults=lambda document: fill(rules, document),
        validate=validate_new,
        validate_update=validate_change,
        warnings=warnings,
        quota=quota,
        granted=granted,
        columns=columns,
    )
    return replace(stored, status=status)


def default_object(core: Core, resource: Resource, *annotations: str) -> str | None:
    """The name of the object that one of *annotations* marks as default; of several the newest, then the first by
    name (``pkg/volume/util/storageclass.go``)."""
    heads = (document_of(record)["metadata"] for record in core.store.iter_latest(resource.storage_key))
    marked = sorted(
        (head for head in heads if any(head.get("annotations", {}).get(name) == "true" for name in annotations)),
        key=lambda head: str(head["name"]),
    )
    return str(max(marked, key=lambda head: str(head["creationTimestamp"]))["name"]) if marked else None
