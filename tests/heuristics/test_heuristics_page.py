"""The plug-in of docs/hints.md is one: it passes its own test and gives hints in a cluster."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
from tests.slices.test_plugin_hints import Plane

from sliceplane.lab.testing.heuristics import QUESTIONS
from sliceplane.slices.heuristics.queries import problem_of_heuristic
from sliceplane.slices.heuristics.shipped import SHIPPED
from sliceplane.slices.heuristics.types import HINTS_MAX

PAGE = (Path(__file__).parents[2] / "docs" / "hints.md").read_text(encoding="utf-8")
_EXAMPLE = re.compile(r"<!-- example (\w+) -->\n```python\n(.*?)^```$", re.DOTALL | re.MULTILINE)


@pytest.fixture(scope="module")
def examples() -> dict[str, Any]:
    """The names that the page's examples define, one after the other."""
    names: dict[str, Any] = {}
    found = _EXAMPLE.findall(PAGE)
    assert [name for name, _ in found] == ["plugin", "test"]
    for _, code in found:
        exec(code, names)
    return names


def test_it_passes_its_own_test(examples: dict[str, Any]) -> None:
    examples["test_cheapest_too"]()


def test_it_gives_hints(examples: dict[str, Any]) -> None:
    made = examples["CheapestToo"]()
    plane = Plane(made.name, made, annotations={"example.com/cheapest-zone": "b"})
    plane.pods("n0", "n1", "n0")
    assert plane.settle() == []
    assert plane.hints() == {"p-0": "a", "p-1": "a+b", "p-2": "a"}
    without = Plane(made.name, made)
    without.pods("n0")
    ((_, _, note),) = without.settle()
    assert "the annotation example.com/cheapest-zone is missing" in note


def test_its_entry_point_is_its_name(examples: dict[str, Any]) -> None:
    (text,) = re.findall(r"```toml\n(.*?)```", PAGE, re.DOTALL)
    (point,) = tomllib.loads(text)["project"]["entry-points"][
        "sliceplane.slices.heuristics"
    ].items()
    assert point == ("example.com/CheapestToo", "cheapest_too:CheapestToo")
    assert problem_of_heuristic(examples["CheapestToo"](), point[0]) == ""


def test_figures_and_names() -> None:
    assert set(re.findall(r"^\| `(sliceplane\.dev/\w+)` \|", PAGE, re.MULTILINE)) == set(SHIPPED)
    assert f"asks {QUESTIONS} questions" in PAGE
    assert f"At most {HINTS_MAX} zones, and {HINTS_MAX} nodes" in PAGE
