"""Long runs are kept as they were, and none of the slow tests is forgotten."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from tools.soak import RUNS, SoakRun

from tools import soak

_TELLS = "from tests.figures import tell; print('first'); tell('7 steps, nothing found')"


@pytest.fixture
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(soak, "FIGURES", tmp_path / "figures.jsonl")
    page = tmp_path / "page"
    page.write_text(
        f"a\n{soak.RUNS_MARK}\n{soak.END_MARK}\nb\n{soak.FIGURES_MARK}\nold\n{soak.END_MARK}\nc\n"
    )
    monkeypatch.setattr(soak, "PAGE", page)
    return page


def play(monkeypatch: pytest.MonkeyPatch, *names: str, **programs: str) -> None:
    runs = {
        name: SoakRun(name, ("-c", program), "once", "a fault")
        for name, program in programs.items()
    }
    monkeypatch.setattr(soak, "RUNS", runs)
    monkeypatch.setattr("sys.argv", ["soak.py", *names])
    soak.main()


def test_a_run_leaves_its_figures_and_a_row(kept: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    play(monkeypatch, good=_TELLS, other="print('not asked')")
    play(monkeypatch, "good", good=_TELLS.replace("7", "8"), other="print('not asked')")
    rows = [json.loads(line) for line in soak.FIGURES.read_text().splitlines()]
    assert [(row["run"], row["passed"], row["said"]) for row in rows] == [
        ("good", True, ["7 steps, nothing found"]),
        ("other", True, ["not asked"]),
        ("good", True, ["8 steps, nothing found"]),
    ]
    assert all(re.match(r"[0-9a-f]{8}|unknown", row["commit"]) for row in rows)
    text = kept.read_text()
    assert "8 steps, nothing found |" in text
    assert "7 steps" not in text, "the newest"
    assert "old" not in text
    assert text.endswith(f"{soak.END_MARK}\nc\n")


def test_a_run_that_fails_is_told_and_the_others_are_run(
    kept: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(SystemExit, match="failed: bad"):
        play(monkeypatch, bad="print('seed 5'); raise SystemExit(3)", good=_TELLS)
    text = kept.read_text()
    assert "**FAILED** seed 5 |" in text
    assert "7 steps, nothing found |" in text


def test_a_name_that_is_none_is_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        play(monkeypatch, "kils", kills=_TELLS)
    assert "no run is named kils" in capsys.readouterr().err


def test_rows_of_a_benchmark_are_figures() -> None:
    row = {
        "name": "  writes",
        "size": "64",
        "value": 3.5,
        "unit": "ms",
        "peer": "",
        "budget": None,
        "met": None,
    }
    missed = {**row, "name": "reads", "budget": 2.0, "met": False}
    said = soak._said(
        ["--json"], f"hello\n{json.dumps(row)}\n{json.dumps(missed)}\n", Path("/nowhere")
    )
    assert said == ("writes 64 3.5 ms", "reads 64 3.5 ms (missed: 2)")


def test_places_of_runs_are_there() -> None:
    for name, run in RUNS.items():
        places = [place for place in run.arguments if place.startswith("tests/")]
        assert all((soak.ROOT / place).exists() for place in places), name
        modules = (
            [run.arguments[1]]
            if run.arguments[:1] == ("-m",) and run.arguments[1] != "pytest"
            else []
        )
        for module in modules:
            path = soak.ROOT / module.replace(".", "/")
            assert path.with_suffix(".py").exists() or (path / "__main__.py").exists(), name


def test_the_page_is_as_the_figures_are() -> None:
    assert soak.page() == soak.PAGE.read_text(encoding="utf-8"), "python tools/soak.py --table"
