"""The node proxy's test plan in ``tests/upstream_tests.md`` is complete: every row names a test,
and every case is one of the table's.

(``tests/test_docs.py`` checks that the tests exist.)
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from tests.proxy.test_usable import CASES

DOCUMENT = Path(__file__).parents[1] / "upstream_tests.md"
PLAN = (
    DOCUMENT.read_text(encoding="utf-8")
    .partition("\n### The node proxy's test plan\n")[2]
    .partition("\n### ")[0]
)
ROWS = [
    line
    for line in PLAN.splitlines()
    if line.startswith("|")
    and not line.startswith("|---")
    and not line.endswith(("| test |", "| test | |"))
]


def test_what_counts_its_items_has_as_many_rows() -> None:
    """Of the other parts, one line of the source may be several rows."""
    sections = re.split(r"^#### ", PLAN, flags=re.MULTILINE)
    rows = {text.partition("\n")[0]: sum(row in text for row in ROWS) for text in sections}
    assert rows["What is not copied"] == 4
    assert rows["KEP-2030, unit tests"] == 5
    assert rows["KEP-4444, integration and end-to-end tests"] == 3
    assert rows["Reported bugs of proxies"] == 8


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.split("|")[1].strip()[:60])
def test_every_row_names_a_test_and_its_cases(row: str) -> None:
    tests = re.findall(r"`tests/[\w/]+\.py::\w+", row)
    assert tests, "held by nothing"
    cases = re.findall(r'case "([^"]+)"', row)
    assert set(cases) <= {case.name for case in CASES}
    assert bool(cases) == ("test_usable.py::test_table" in row)
