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
_TESTS: Final = re.compile(r"`tests/[\w/]+\.py(?:::\w+)*`(?:, `tests/[\w/]+\.py(?:::\w+)*`)*")
_REASON: Final = re.compile(r"(no|in part): \S.+")


def rows(text: str) -> list[list[str]]:
    """The cells of each row of the tables with three columns."""
    lines = [line.strip("|").split(" | ") for line in text.splitlines() if line.startswith("| ")]
    cells = [[cell.strip() for cell in line] for line in lines]
    return [row for row in cells if len(row) == 3 and row[0] != "promise"]


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
    upstreams, beyond = (rows(part) for part in text.split(_BEYOND))
    told = [int(number) for number in re.findall(r"^\| (\d+) \| ", text, re.MULTILINE)]
    counts = Counter(verdict(here) for _, _, here in upstreams)
    assert told == [len(upstreams), counts["tested"], counts["in part"], counts["no"], len(beyond)]
    assert {verdict(here) for _, _, here in beyond} == {"tested"}


def test_no_test_of_upstream_is_listed_twice() -> None:
    upstreams = rows(section().split(_BEYOND)[0])
    again = [name for name, count in Counter(name for _, name, _ in upstreams).items() if count > 1]
    assert not again
