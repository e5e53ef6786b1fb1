"""Tables of text: aligned where they fit, wrapped or in blocks where they do not, and never a torn
word.
"""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sliceplane.kit.columns import notes, table

_CELL = st.text(alphabet="abc de", max_size=40).map(str.strip)


def test_aligned_where_it_fits() -> None:
    rows = [("web", "10.0.0.1", "ready"), ("a-longer-name", "10.0.0.2", "")]
    assert list(table(("NAME", "ADDRESS", "WHY"), rows, indent="  ", width=80)) == [
        "  NAME           ADDRESS   WHY",
        "  web            10.0.0.1  ready",
        "  a-longer-name  10.0.0.2",
    ]


def test_the_last_column_is_wrapped_where_it_is_too_wide() -> None:
    rows = [("web", "its port has no name that the Service knows"), ("api", "")]
    assert list(table(("NAME", "WHY"), rows, width=36)) == [
        "NAME  WHY",
        "web   its port has no name that the",
        "      Service knows",
        "api",
    ]


def test_a_block_for_each_row_where_that_does_not_suffice() -> None:
    rows = [("web", "its port has no name that the Service knows"), ("api", "")]
    assert list(table(("NAME", "WHY"), rows, width=32)) == [
        "NAME:  web",
        "WHY:   its port has no name that",
        "       the Service knows",
        "",
        "NAME:  api",
    ]


@pytest.mark.parametrize(
    ("elsewhere", "last"), [("", "  and 1,998 more"), ("-o json", "  and 1,998 more (-o json)")]
)
def test_rows_beyond_the_limit_are_counted(elsewhere: str, last: str) -> None:
    rows = [(str(number), "x" * number) for number in range(2000)]
    lines = list(table((), rows, indent="  ", width=20, rows_max=2, elsewhere=elsewhere))
    assert lines == ["  0", "  1  x", last]
    assert list(table((), rows[:2], indent="  ", rows_max=2)) == lines[:2]


def test_notes_stand_below_a_table_as_paragraphs() -> None:
    assert list(notes((), 20)) == []
    assert list(notes(("it is refused",), None)) == ["", "it is refused"]
    assert list(notes(("a: it is refused", "b: lost"), 12)) == [
        "",
        "a: it is",
        "  refused",
        "b: lost",
    ]


def test_nothing_of_nothing() -> None:
    assert list(table((), [])) == []
    assert list(table(("NAME",), [])) == ["NAME"]


@given(st.lists(st.tuples(_CELL, _CELL, _CELL), max_size=6), st.integers(20, 120))
def test_every_word_is_there_and_no_line_is_longer_than_it_must_be(
    rows: list[tuple[str, ...]], width: int
) -> None:
    heads = ("ONE", "TWO", "THREE")
    lines = list(table(heads, rows, width=width))
    words = " ".join(lines).split()
    assert all(word in words for row in rows for cell in row for word in cell.split())
    longest = max((len(word) for row in rows for cell in row for word in cell.split()), default=0)
    assert all(len(line) <= max(width, len("THREE:  ") + max(longest, 20)) for line in lines)
