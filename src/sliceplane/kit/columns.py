"""Tables of text: one printer for whatever shows rows to people.

Columns are as wide as their widest cell.  Where that is wider than the screen, each row becomes a block with a line for
each cell: a line that a terminal wraps by itself can be read by nobody.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence

GAP = "  "
#: a block's lines are wrapped to no less than this
_CELL_WIDTH_MIN = 20

Row = Sequence[str]


def table(heads: Row, rows: Sequence[Row], *, indent: str = "", width: int | None = None) -> Iterator[str]:
    """Lines without an end.  *heads* may be empty; *width* ``None``: as wide as they come.

    Every row has as many cells as there are heads, or as the first row has.
    """
    shown = [heads, *rows] if heads else list(rows)
    if not shown:
        return
    widths = [max(len(row[column]) for row in shown) for column in range(len(shown[0]))]
    whole = len(indent) + sum(widths) + len(GAP) * (len(widths) - 1)
    if width is None or whole <= width:
        for row in shown:
            yield (indent + GAP.join(cell.ljust(wide) for cell, wide in zip(row, widths, strict=True))).rstrip()
        return
    yield from _blocks(heads, rows, indent, width)


def _blocks(heads: Row, rows: Sequence[Row], indent: str, width: int) -> Iterator[str]:
    names = [f"{head}:" if head else "" for head in heads] or [""] * len(rows[0])
    wide = max(len(name) for name in names)
    for number, row in enumerate(rows):
        if number:
            yield ""
        for name, cell in zip(names, row, strict=True):
            if not cell.strip():
                continue
            start = f"{indent}{name.ljust(wide)}{GAP if wide else ''}"
            room = max(width - len(start), _CELL_WIDTH_MIN)
            lines = textwrap.wrap(cell, room, break_long_words=False, break_on_hyphens=False) or [""]
            yield f"{start}{lines[0]}".rstrip()
            yield from (f"{'':{len(start)}}{line}" for line in lines[1:])
