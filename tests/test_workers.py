"""Several processes for one run: each test once, each report told, and what a worker that dies
leaves behind fails.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Final

from tests.workers import QUICK_S_MAX, cost_by_file, takes_long

ROOT: Final = Path(__file__).parents[1]
_A: Final = """
import os, time
from pathlib import Path
import pytest

@pytest.fixture(scope="module")
def seen(tmp_path_factory):
    folder = tmp_path_factory.mktemp("seen")
    yield folder
    Path("ended").write_text(" ".join(sorted(path.name for path in folder.iterdir())))

@pytest.mark.parametrize("number", range(3))
def test_well(seen, number, tmp_path):
    (seen / str(number)).touch()
    assert Path(os.environ["XTABLES_LOCKFILE"]).parent == tmp_path.parent, "no other worker has this lock of iptables"
    Path(f"a-{os.environ['PYTEST_XDIST_WORKER']}-{number}").write_text(str(tmp_path))
    print("said", number)
    while not list(Path.cwd().glob("b-*")):  # the other worker is not done before
        time.sleep(0.01)
    assert number < 2
"""
_B: Final = """
import os
from pathlib import Path

def test_other(tmp_path):
    Path(f"b-{os.environ['PYTEST_XDIST_WORKER']}").write_text(str(tmp_path))
"""
_DIES: Final = """
import os

def test_before(): pass
def test_dies(): os._exit(3)
def test_after(): pass
"""


def _run(folder: Path, *arguments: str, **files: str) -> subprocess.CompletedProcess[str]:
    for name, text in files.items():
        (folder / f"test_{name}.py").write_text(text, encoding="utf-8")
    (folder / "pytest.ini").write_text(f"[pytest]\npythonpath = {ROOT}\n", encoding="utf-8")
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-p",
        "tests.workers",
        "-q",
        "-rA",
        f"--basetemp={folder}/base",
    ]
    return subprocess.run(
        [*command, *arguments],
        cwd=folder,
        env={"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )


def test_each_test_runs_once_in_one_of_two_processes_and_tells_its_report(tmp_path: Path) -> None:
    done = _run(tmp_path, "--workers=2", a=_A, b=_B)
    assert done.returncode == 1, done.stderr
    assert "1 failed, 3 passed" in done.stdout
    assert "said 2" in done.stdout, "what a failing test printed"
    assert (tmp_path / "ended").read_text(encoding="utf-8") == "0 1 2", (
        "a module's fixture lived once"
    )
    (other,) = tmp_path.glob("b-*")
    first = sorted(tmp_path.glob("a-*"))
    assert [path.name for path in first] == [
        f"a-gw{1 - int(other.name[-1])}-{number}" for number in range(3)
    ]
    folders = {path.read_text(encoding="utf-8") for path in (*first, other)}
    assert len(folders) == 4


_COMPUTES: Final = """
from pathlib import Path

def test_computes():
    Path("begun").touch()
"""
_WAITS: Final = """
from pathlib import Path
from tests.waiting import until

def test_waits():
    until(Path("begun").exists, within_s=60)
"""


def test_a_file_that_computes_begins_although_longer_ones_wait(tmp_path: Path) -> None:
    workers = (os.cpu_count() or 1) + 2
    costs = cost_by_file()
    waiting = [path for path, cost in costs.items() if cost.waits][:workers]
    computing = [path for path, cost in costs.items() if not cost.waits][-1]
    for path in (*waiting, computing):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(_COMPUTES if path == computing else _WAITS, encoding="utf-8")
    assert costs[computing].seconds < min(costs[path].seconds for path in waiting)
    done = _run(tmp_path, f"--workers={workers}", "--import-mode=importlib")
    assert f"{workers + 1} passed" in done.stdout, done.stdout


def test_what_a_worker_that_died_had_taken_fails(tmp_path: Path) -> None:
    done = _run(tmp_path, "--workers=1", dies=_DIES)
    assert done.returncode == 1, done.stderr
    assert re.findall(r"^(PASSED|FAILED) test_dies.py::(\w+)", done.stdout, re.MULTILINE) == [
        ("PASSED", "test_before"),
        ("FAILED", "test_dies"),
        ("FAILED", "test_after"),
    ]


def test_the_first_failure_ends_the_run_when_it_shall(tmp_path: Path) -> None:
    text = "def test_a(): assert False\ndef test_b(): pass\n"
    done = _run(tmp_path, "--workers=1", "-x", first=text)
    assert (done.returncode, "1 failed in" in done.stdout) == (1, True), done.stdout


def test_a_quick_run_leaves_out_the_files_that_take_long_unless_they_are_named(
    tmp_path: Path,
) -> None:
    slow = next(iter(cost_by_file()))
    (tmp_path / slow).parent.mkdir(parents=True)
    (tmp_path / slow).write_text("def test_slow(): pass\n", encoding="utf-8")
    assert "1 passed" in _run(tmp_path, "--quick", ".", quick="def test_quick(): pass\n").stdout
    assert "2 passed" in _run(tmp_path, "--quick", "test_quick.py", slow).stdout


def test_a_quick_run_has_a_file_of_every_room() -> None:
    """But of rooms in which the shortest takes longer than a quick run has time for."""
    folders = {path.parent for path in (ROOT / "tests").rglob("test_*.py")}
    skipped = {
        folder
        for folder in folders
        if all(takes_long(path, ROOT) for path in folder.glob("test_*.py"))
    }
    assert {folder.name for folder in skipped} == {"benchmarks", "growth"}
    for folder in skipped:
        costs = [cost_by_file()[str(path.relative_to(ROOT))] for path in folder.glob("test_*.py")]
        assert min(costs).seconds > QUICK_S_MAX


def test_files_that_take_long_exist() -> None:
    assert [path for path in cost_by_file() if not (ROOT / path).is_file()] == []
