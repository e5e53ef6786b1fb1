"""The conformance tests in ``docs/guarantees.md``: the counts are those of the rows, and every row
has its tests or a reason (``test_docs`` checks that the tests exist).
"""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path
from typing import Final

DOCUMENT: Final = Path(__file__).parent.parent / "docs" / "guarantees.md"
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


def section() -> str:
    text = DOCUMENT.read_text(encoding="utf-8")
    return text.partition("\n## Conformance tests\n")[2].partition("\n## ")[0]


def verdict(here: str) -> str:
    if _TESTS.fullmatch(here):
        return "tested"
    reason = _REASON.fullmatch(here)
    assert reason is not None, f"neither tests nor a reason: {here}"
    return reason[1]


def test_the_counts_at_the_top_are_those_of_the_rows() -> None:
    text = section()
    upstream_part, beyond_part = text.split(_BEYOND)
    upstreams, beyond = rows(upstream_part, 2), rows(beyond_part, 3)
    told = [int(number) for number in re.findall(r"^\| (\d+) \| ", text, re.MULTILINE)]
    counts = Counter(verdict(here) for _, here in upstreams)
    assert told == [len(upstreams), counts["tested"], counts["in part"], counts["no"], len(beyond)]
    assert {verdict(here) for _, _, here in beyond} == {"tested"}


def test_no_test_of_upstream_is_listed_twice() -> None:
    upstreams = rows(section().split(_BEYOND)[0], 2)
    again = [name for name, count in Counter(name for name, _ in upstreams).items() if count > 1]
    assert not again
