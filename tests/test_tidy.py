"""The repository keeps its own rules: file and function sizes, package docstrings, nothing left over."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
SOURCES = sorted((ROOT / "src").rglob("*.py"))
TESTS = sorted((ROOT / "tests").rglob("*.py"))
FILE_LINES_MAX = 500
FUNCTION_LINES_MAX = 90


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT / "src")))
def test_module_tells_its_story_and_stays_small(path: Path) -> None:
    text = path.read_text()
    tree = ast.parse(text)
    assert ast.get_docstring(tree), f"{path}: a module docstring tells the theory of operation"
    assert text.count("\n") <= FILE_LINES_MAX, f"{path}: over {FILE_LINES_MAX} lines; which two stories does it tell?"
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            length = (node.end_lineno or node.lineno) - node.lineno + 1
            assert length <= FUNCTION_LINES_MAX, f"{path}:{node.lineno} {node.name} has {length} lines"


@pytest.mark.parametrize("path", TESTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_test_module_tells_one_story(path: Path) -> None:
    text = path.read_text()
    assert ast.get_docstring(ast.parse(text)), f"{path}: a module docstring says what the tests are about"
    assert text.count("\n") <= FILE_LINES_MAX, f"{path}: over {FILE_LINES_MAX} lines; split it by story"


def test_nothing_left_over() -> None:
    marks = ("FIX" + "ME", "XX" + "X:", "TO" + "DO")
    for path in [*SOURCES, *TESTS]:
        for number, line in enumerate(path.read_text().splitlines(), 1):
            assert not any(mark in line for mark in marks), f"{path}:{number}: {line.strip()}"
