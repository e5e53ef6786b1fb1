"""Tables of text: aligned where they fit, a block for each row where they do not, and never a torn word."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from sliceplane.kit.columns import table

_CELL = st.text(alphabet="abc de", max_size=40).map(str.strip)


def test_aligned_where_it_fits() -> None:
    rows = [("web", "10.0.0.1", "ready"), ("a-longer-name", "10.0.0.2", "")]
    assert list(table(("NAME", "ADDRESS", "WHY"), rows, indent="  ", width=80)) == [
        "  NAME           ADDRESS   WHY",
        "  web            10.0.0.1  ready",
        "  a-longer-name  10.0.0.2",
    ]


def test_a_block_for_each_row_where_it_does_not() -> None:
    rows = [("web", "its port has no name that the Service knows"), ("api", "")]
    assert list(table(("NAME", "WHY"), rows, width=32)) == [
        "NAME:  web",
        "WHY:   its port has no name that",
        "       the Service knows",
        "",
        "NAME:  api",
    ]


def test_nothing_of_nothing() -> None:
    assert list(table((), [])) == []
    assert list(table(("NAME",), [])) == ["NAME"]


@given(st.lists(st.tuples(_CELL, _CELL, _CELL), max_size=6), st.integers(20, 120))
def test_every_word_is_there_and_no_line_is_longer_than_it_must_be(rows: list[tuple[str, ...]], width: int) -> None:
    heads = ("ONE", "TWO", "THREE")
    lines = list(table(heads, rows, width=width))
    told = " ".join(lines).split()
    assert all(word in told for row in rows for cell in row for word in cell.split())
    longest = max((len(word) for row in rows for cell in row for word in cell.split()), default=0)
    assert all(len(line) <= max(width, len("THREE:  ") + max(longest, 20)) for line in lines)
