"""Columns, printers, and reading from documents that may lack anything or have it in a wrong
type.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import islice
from typing import Any, Final, Literal

import msgspec

from sliceplane.api.meta import Document
from sliceplane.kit.times import parse_time

Cell = str | int | bool | None
#: document and time to the cells, one for each column
Cells = Callable[[Document, float], tuple[Cell, ...]]

NONE: Final = "<none>"
UNKNOWN: Final = "<unknown>"
UNSET: Final = "<unset>"
_MINUTE_S: Final = 60
_HOUR_S: Final = 3600
_DAY_S: Final = 86400
_YEAR_S: Final = 365 * _DAY_S


class Column(msgspec.Struct, frozen=True):
    """One column.  ``priority`` above 0: shown by ``-o wide`` only."""

    name: str
    description: str
    #: the path of the text or number that is shown, with dots, or a function of the document
    source: str | Callable[[Document], Cell] = ""
    type: Literal["string", "integer", "boolean", "date"] = "string"
    format: Literal["", "name"] = ""
    priority: int = 0

    def definition(self) -> Document:
        return {
            "name": self.name,
            "type": self.type,
            "format": self.format,
            "description": self.description,
            "priority": self.priority,
        }

    def cell(self, document: Document, now: float) -> Cell:
        if self is AGE:
            return age(document, now)
        return (
            self.source(document)
            if callable(self.source)
            else text(document, *self.source.split("."))
        )


class Printer(msgspec.Struct, frozen=True):
    """The columns of one kind."""

    columns: tuple[Column, ...]
    #: all cells of a row, where they cannot be computed one by one
    row: Cells | None = None
    #: the conditions of a row
    conditions: Callable[[Document], list[Document]] | None = None
    #: the key that a list is sorted by; ``None``: lists stay in the order of their keys
    order: Callable[[Document], tuple[int, str]] | None = None

    def cells(self, document: Document, now: float) -> tuple[Cell, ...]:
        if self.row is not None:
            return self.row(document, now)
        return tuple([column.cell(document, now) for column in self.columns])


NAME: Final = Column(
    "Name", "Name of the object, unique for its kind and namespace.", "metadata.name", format="name"
)
AGE: Final = Column("Age", "Time since the object was created.")


def member(document: Any, *path: str) -> Any:
    """The value at *path*, or ``None`` where there is nothing on the way."""
    for name in path:
        if not isinstance(document, dict):
            return None
        document = document.get(name)
    return document


def text(document: Any, *path: str) -> str:
    value = member(document, *path)
    return value if isinstance(value, str) else ""


def number(document: Any, *path: str) -> int:
    value = member(document, *path)
    return value if isinstance(value, int) and not isinstance(value, bool) else 0


def flag(document: Any, *path: str) -> bool:
    return member(document, *path) is True


def objects(document: Any, *path: str) -> list[Document]:
    """The objects of the list at *path*."""
    value = member(document, *path)
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def texts(document: Any, *path: str) -> list[str]:
    """The strings of the list at *path*."""
    value = member(document, *path)
    return [item for item in value if isinstance(item, str)] if isinstance(value, list) else []


def mapping(document: Any, *path: str) -> Document:
    value = member(document, *path)
    return value if isinstance(value, dict) else {}


def number_at(path: str) -> Callable[[Document], int]:
    """The source of a column of numbers."""
    names = path.split(".")
    return lambda document: number(document, *names)


def flag_at(path: str) -> Callable[[Document], bool]:
    """The source of a column of truth values."""
    names = path.split(".")
    return lambda document: flag(document, *names)


def text_or(absent: str, path: str) -> Callable[[Document], str]:
    """The source of a column of texts that shows *absent* where there is none."""
    names = path.split(".")
    return lambda document: text(document, *names) or absent


def name_of(document: Document) -> str:
    return text(document, "metadata", "name")


def labels_text(labels: Document) -> str:
    """``a=b,c=d``, sorted by key."""
    return ",".join(f"{key}={value}" for key, value in sorted(labels.items())) or NONE


def true_conditions(document: Document) -> frozenset[str]:
    """The types of the conditions that are true; of several with one type, the first counts, as in
    ``condition``.
    """
    first = {
        text(entry, "type"): entry
        for entry in reversed(objects(document, "status", "conditions"))
        if "type" in entry
    }
    return frozenset(kind for kind, entry in first.items() if entry.get("status") == "True")


def condition(document: Document, kind: str) -> Document:
    """The condition of that type among ``status.conditions``; empty if there is none."""
    return next((c for c in objects(document, "status", "conditions") if c.get("type") == kind), {})


def join_first(items: Iterable[str], empty: str, *, count: int, most: int = 3) -> str:
    """The first *most* of *count* items, and how many more there are.  No more of them are made."""
    joined = ",".join(islice(items, most))
    return f"{joined} + {count - most} more..." if count > most else joined or empty


# Durations, in two units at most, coarser as they grow


def duration(seconds: float) -> str:
    """Up to a second in the future counts as now (clocks differ); more is ``<invalid>``."""
    whole = int(seconds)
    if whole < -1:
        return "<invalid>"
    if whole < 0:
        return "0s"
    if whole < 2 * _MINUTE_S:
        return f"{whole}s"
    if whole < 10 * _MINUTE_S:
        return _two(whole, _MINUTE_S, "m", 1, "s")
    if whole < 3 * _HOUR_S:
        return f"{whole // _MINUTE_S}m"
    if whole < 8 * _HOUR_S:
        return _two(whole, _HOUR_S, "h", _MINUTE_S, "m")
    if whole < 2 * _DAY_S:
        return f"{whole // _HOUR_S}h"
    if whole < 8 * _DAY_S:
        return _two(whole, _DAY_S, "d", _HOUR_S, "h")
    if whole < 2 * _YEAR_S:
        return f"{whole // _DAY_S}d"
    if whole < 8 * _YEAR_S:
        return _two(whole, _YEAR_S, "y", _DAY_S, "d")
    return f"{whole // _YEAR_S}y"


def _two(whole: int, unit_s: int, unit: str, small_s: int, small: str) -> str:
    rest = whole % unit_s // small_s
    return f"{whole // unit_s}{unit}{rest}{small}" if rest else f"{whole // unit_s}{unit}"


def since(time: str, now: float) -> str:
    """Returns the age of an RFC 3339 time."""
    if not time:
        return UNKNOWN
    try:
        return duration(now - parse_time(time))
    except ValueError:
        return UNKNOWN


def age(document: Any, now: float) -> str:
    return since(text(document, "metadata", "creationTimestamp"), now)


def class_column(*annotations: str) -> Column:
    """The column of a class's name, which says so if one of *annotations* marks it as the
    default.
    """

    def render(document: Document) -> str:
        is_default = any(
            member(document, "metadata", "annotations", name) == "true" for name in annotations
        )
        return f"{name_of(document)} (default)" if is_default else name_of(document)

    return Column(NAME.name, NAME.description, render, format="name")


#: for kinds without columns of their own
PLAIN: Final = Printer(
    (
        NAME,
        Column(
            "Created At", "When the object was created.", "metadata.creationTimestamp", type="date"
        ),
    )
)
