"""Heuristics of others are found by their entry point, imported when a Service asks, and cannot do
harm.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from sliceplane.controllers.io.heuristics import InstalledHeuristics
from sliceplane.slices.heuristics.shipped import SHIPPED

ROOT = Path(__file__).parents[2]
GOOD = """
from sliceplane.slices.heuristics.types import Hints
class Nearest:
    name = "example.com/Nearest"
    kind = "local"
    def hints(self, service, endpoint, zones):
        return Hints((endpoint.zone,) if endpoint.zone else ())
ready_made = Nearest()
"""


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> InstalledHeuristics:
    """As pip leaves packages: modules, and folders that name entry points."""
    (tmp_path / "plug_nearest.py").write_text(GOOD)
    (tmp_path / "plug_broken.py").write_text("import nothing_of_that_name")
    package(
        tmp_path,
        "nearest",
        "example.com/Nearest = plug_nearest:Nearest",
        "example.com/Other = plug_nearest:ready_made",
        "example.com/Broken = plug_broken:Broken",
        "example.com/Text = plug_nearest:__name__",
        "example.com/Twice = plug_nearest:Nearest",
    )
    package(tmp_path, "twin", "example.com/Twice = plug_nearest:Nearest")
    monkeypatch.syspath_prepend(str(tmp_path))
    for name in ("plug_nearest", "plug_broken"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    return InstalledHeuristics()


def package(folder: Path, name: str, *points: str) -> None:
    info = folder / f"{name}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(
        "[sliceplane.slices.heuristics]\n" + "\n".join(points) + "\n"
    )


def test_one_is_found_and_made_once(installed: InstalledHeuristics) -> None:
    found = installed.find("example.com/Nearest")
    assert not isinstance(found, str), found
    assert (found.name, found.kind) == ("example.com/Nearest", "local")
    assert installed.find("example.com/Nearest") is found


def test_only_what_is_asked_for_is_imported(installed: InstalledHeuristics) -> None:
    assert installed.find("example.com/None") == "no heuristic example.com/None is installed"
    assert "plug_nearest" not in sys.modules
    installed.find("example.com/Nearest")
    assert "plug_nearest" in sys.modules
    assert "plug_broken" not in sys.modules


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        (
            "example.com/Other",
            (
                "heuristic example.com/Other of package nearest cannot be used: its name is "
                "'example.com/Nearest'"
            ),
        ),
        (
            "example.com/Broken",
            (
                "heuristic example.com/Broken of package nearest cannot be used: "
                "ModuleNotFoundError: No module named 'nothing_of_that_name'"
            ),
        ),
        (
            "example.com/Text",
            "heuristic example.com/Text of package nearest cannot be used: its name is None",
        ),
        ("example.com/Twice", "heuristic example.com/Twice is in several packages: nearest, twin"),
    ],
)
def test_what_cannot_be_used(installed: InstalledHeuristics, name: str, problem: str) -> None:
    assert installed.find(name) == problem
    assert not isinstance(installed.find("example.com/Nearest"), str), "the others are not hurt"


def test_ours_need_no_package_and_cannot_be_replaced(
    installed: InstalledHeuristics, tmp_path: Path
) -> None:
    package(tmp_path, "thief", "sliceplane.dev/Balanced = plug_nearest:Nearest")
    for name, ours in SHIPPED.items():
        assert installed.find(name) is ours


def test_a_start_reads_no_packages() -> None:
    """The scan costs milliseconds for each hundred packages: it is left until somebody asks."""
    script = (
        "import sys; from sliceplane.controllers.io.heuristics import InstalledHeuristics as I; i "
        "= I();"
        "i.find('sliceplane.dev/Balanced'); print(i._points)"
    )
    environment = {"PYTHONPATH": str(ROOT / "src")}
    done = subprocess.run(
        [sys.executable, "-c", script],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    assert done.stdout == "None\n"
