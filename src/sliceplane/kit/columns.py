"""Tables of text: the only printer of rows for users.

Columns are as wide as their widest cell. If the table is wider than the screen, the last column is
wrapped; if that does not suffice, each row becomes a block with a line for each cell. A line that
the terminal wraps is unreadable.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence

from sliceplane.kit.terminal_text import printable

GAP = "  "
#: minimum widths to which cells of a block and of a last column are wrapped
_CELL_WIDTH_MIN = 20
_LAST_WIDTH_MIN = 30

Row = Sequence[str]


def table(
    heads: Row,
    rows: Sequence[Row],
    *,
    indent: str = "",
    width: int | None = None,
    rows_max: int | None = None,
    elsewhere: str = "",
) -> Iterator[str]:
    """Yields lines without a newline. *heads* may be empty; *width* ``None``: unlimited.

    Every row has as many cells as *heads*, or as the first row. Rows beyond *rows_max* are counted
    in a last line; *elsewhere* says where to find them. A cell is always one line.
    """
    visible = [[printable(cell) for cell in row] for row in rows[:rows_max]]
    lines = [heads, *visible] if heads else visible
    widths = [max(map(len, cells)) for cells in zip(*lines, strict=True)]
    last_column = len(indent) + sum(wide + len(GAP) for wide in widths[:-1])
    if width is None or not widths or last_column + widths[-1] <= width:
        for line in lines:
            yield (indent + GAP.join(map(str.ljust, line, widths))).rstrip()
    elif (
        len(widths) > 1
        and max(_LAST_WIDTH_MIN, *(_longest_word(line[-1]) for line in lines))
        <= width - last_column
    ):
        for line in lines:
            start = indent + "".join(
                cell.ljust(wide) + GAP for cell, wide in zip(line, widths[:-1], strict=False)
            )
            yield from _wrapped(start, line[-1], width)
    else:
        yield from _blocks(heads, visible, indent, width)
    if len(rows) > len(visible):
        yield f"{indent}and {len(rows) - len(visible):,} more{elsewhere and f' ({elsewhere})'}"


def notes(sentences: Sequence[str], width: int | None) -> Iterator[str]:
    """Returns the lines below a table: an empty line, and a paragraph for each sentence."""
    if sentences:
        yield ""
    for sentence in map(printable, sentences):
        if width is None:
            yield sentence
        else:
            yield from textwrap.wrap(
                sentence,
                width,
                subsequent_indent="  ",
                break_long_words=False,
                break_on_hyphens=False,
            )


def _longest_word(text: str) -> int:
    return max(map(len, text.split()), default=0)


def _wrapped(start: str, cell: str, width: int) -> Iterator[str]:
    """Yields *cell* behind *start*, wrapped below its own beginning."""
    room = max(width - len(start), _CELL_WIDTH_MIN)
    first, *others = textwrap.wrap(cell, room, break_long_words=False, break_on_hyphens=False) or [
        ""
    ]
    yield f"{start}{first}".rstrip()
    yield from (f"{'':{len(start)}}{line}" for line in others)


def _blocks(heads: Row, rows: Sequence[Row], indent: str, width: int) -> Iterator[str]:
    names = [f"{head}:" if head else "" for head in heads] or [""] * len(rows[0])
    wide = max(len(name) for name in names)
    for number, row in enumerate(rows):
        if number:
            yield ""
        for name, cell in zip(names, row, strict=True):
            if cell.strip():
                yield from _wrapped(f"{indent}{name.ljust(wide)}{GAP if wide else ''}", cell, width)
