"""The conformance tests in ``docs/guarantees.md`` and ``tests/upstream_tests.md``: the counts are
those of the rows, and every row has its tests or a reason (``test_docs`` checks that the tests
exist).
"""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path
from typing import Final

TESTS: Final = Path(__file__).parent
#: tests that hold, and with a reason those that do not
TESTED: Final = TESTS / "upstream_tests.md"
GUARANTEES: Final = TESTS.parent / "docs" / "guarantees.md"
_BEYOND: Final = "### Beyond the conformance tests"
_TEST: Final = r"`(?:tests/[\w/]+\.py)?(?:::\w+)*`"
_TESTS: Final = re.compile(f"`tests/[\\w/]+\\.py(?:::\\w+)*`(?:, {_TEST})*")
_REASON: Final = re.compile(r"(no|in part): \S.+")


def rows(text: str, columns: int) -> list[list[str]]:
    """Returns the cells of each row of the tables with *columns*, without titles and counts."""
    lines = [line.strip("|").split(" | ") for line in text.splitlines() if line.startswith("| ")]
    cells = [[cell.strip() for cell in line] for line in lines]
    return [
        row
        for row in cells
        if len(row) == columns and row[-1] not in ("here", "") and not row[0].isdecimal()
    ]


def section(path: Path) -> str:
    text = path.read_text(encoding="utf-8")
    return text.partition("\n## Conformance tests\n")[2].partition("\n## ")[0]


def upstream_rows() -> list[list[str]]:
    return [*rows(section(TESTED).split(_BEYOND)[0], 2), *rows(section(GUARANTEES), 2)]


def verdict(here: str) -> str:
    if _TESTS.fullmatch(here):
        return "tested"
    reason = _REASON.fullmatch(here)
    assert reason is not None, f"neither tests nor a reason: {here}"
    return reason[1]


def test_the_counts_at_the_top_are_those_of_the_rows() -> None:
    upstreams, beyond = upstream_rows(), rows(section(TESTED).split(_BEYOND)[1], 3)
    numbers = re.findall(r"^\| (\d+) \| ", section(GUARANTEES), re.MULTILINE)
    counts = Counter(verdict(here) for _, here in upstreams)
    assert [int(number) for number in numbers] == [
        len(upstreams),
        counts["tested"],
        counts["in part"],
        counts["no"],
        len(beyond),
    ]
    assert {verdict(here) for _, _, here in beyond} == {"tested"}


def test_no_test_of_upstream_is_listed_twice() -> None:
    counts = Counter(name for name, _ in upstream_rows())
    assert not [name for name, count in counts.items() if count > 1]
