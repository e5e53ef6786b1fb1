"""Each pitfall of docs/xds.md names a test; that this is there, ``tests/test_docs.py`` holds."""

from __future__ import annotations

import re
from pathlib import Path

ROW = re.compile(r"^\| (\d+) \|.*\| `tests/[\w/]+\.py::test_\w+` \|$", re.MULTILINE)


def test_each_pitfall_is_held_by_a_test_that_is_named() -> None:
    text = (Path(__file__).parents[2] / "docs" / "xds.md").read_text()
    assert [int(number) for number in ROW.findall(text)] == list(range(1, 33))
