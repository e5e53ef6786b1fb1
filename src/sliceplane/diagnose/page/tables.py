"""Rows encoded by column: 20,000 endpoints are a third of a megabyte as columns, five as objects.

A table consists of *chunks*, tuples of rows that belong together (those of one slice, say). A chunk
that is the same object as before has the same rows, so that the cost of a change does not depend on
the size of the table. The first ``keys`` columns identify a row; a key is in one chunk at a time.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

import msgspec

#: a cell is a text, a number, or a short list of numbers
Cell = Any
Row = tuple[Cell, ...]
#: a column is sent as words and indexes up to this ratio of distinct texts to rows
_REPEATED: Final = 0.5


class PageTable(msgspec.Struct, frozen=True):
    """``chunks``: by name, in the order of the rows."""

    columns: tuple[str, ...]
    keys: int
    chunks: Mapping[str, tuple[Row, ...]]

    @property
    def rows(self) -> list[Row]:
        return [row for chunk in self.chunks.values() for row in chunk]

    def as_document(self) -> dict[str, Any]:
        """Returns the whole table, column by column."""
        rows = self.rows
        columns = zip(*rows, strict=True) if rows else ((),) * len(self.columns)
        return {
            "keys": self.keys,
            "count": len(rows),
            "columns": [
                {"name": name, **_column(values)}
                for name, values in zip(self.columns, columns, strict=True)
            ],
        }


def table_of(columns: Iterable[str], keys: int, rows: Iterable[Row]) -> PageTable:
    """Builds a table of few rows: each is a chunk."""
    return PageTable(
        tuple(columns), keys, {"\n".join(map(str, row[:keys])): (row,) for row in rows}
    )


def difference(before: PageTable, after: PageTable) -> dict[str, Any] | None:
    """Returns the change from *before* to *after*: new or changed rows, and keys of removed ones;
    ``None`` if there is none.

    Both have the same columns.
    """
    assert before.columns == after.columns, "a table of other columns is another table"
    old: dict[Row, Row] = {}
    new: dict[Row, Row] = {}
    for name, chunk in before.chunks.items():
        if after.chunks.get(name) is not chunk:
            old.update((row[: before.keys], row) for row in chunk)
    for name, chunk in after.chunks.items():
        if before.chunks.get(name) is not chunk:
            new.update((row[: after.keys], row) for row in chunk)
    changed = [row for key, row in new.items() if old.get(key) != row]
    removed = [key for key in old if key not in new]
    if not changed and not removed:
        return None
    return {"set": changed, "gone": removed}


def _column(values: tuple[Cell, ...]) -> dict[str, Any]:
    if values and isinstance(values[0], str):
        indexes = {text: number for number, text in enumerate(dict.fromkeys(values))}
        if len(indexes) <= _REPEATED * len(values):
            return {"words": list(indexes), "index": [indexes[value] for value in values]}
    return {"values": list(values)}
