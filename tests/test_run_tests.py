"""The second look at tests that failed: what it forgives, what it does not, and what it says."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import pytest
from tools.run_tests import SECOND_LOOKS, main

_FAILS_ONCE: Final = """
from pathlib import Path

def test_chance():
    seen = Path(__file__).with_name("seen")
    again = seen.exists()
    seen.touch()
    assert again

def test_well():
    pass
"""
_FAILS: Final = "def test_fault(): assert False\n"


def _run(folder: Path, text: str, *arguments: str) -> int:
    (folder / "test_it.py").write_text(text, encoding="utf-8")
    (folder / "pytest.ini").write_text("[pytest]\n", encoding="utf-8")
    return main(
        [*arguments, "-q", "-p", "no:cov", f"--rootdir={folder}", "-c", str(folder / "pytest.ini"), str(folder)]
    )


def test_what_passes_alone_passes_and_is_named(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert _run(tmp_path, _FAILS_ONCE) == 0
    assert capfd.readouterr().out.rstrip().endswith("test_it.py::test_chance")


@pytest.mark.parametrize(
    ("text", "arguments", "code"),
    [
        (_FAILS, (), 1),
        (_FAILS_ONCE, ("--once",), 1),
        ("".join(_FAILS_ONCE.replace("seen", f"seen{n}").replace("chance", f"chance{n}") for n in range(9)), (), 1),
        ("import nothing_of_this_name\n", (), 2),
    ],
    ids=["fails again", "no second look", "more than chance explains", "cannot be read"],
)
def test_what_is_no_chance_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, arguments: tuple[str, ...], code: int
) -> None:
    monkeypatch.chdir(tmp_path)
    assert SECOND_LOOKS < 9
    assert _run(tmp_path, text, *arguments) == code
