"""How the tests of this folder run pytest and programs as a user's project would."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples" / "testing"


def environment(site: Path) -> dict[str, str]:
    """Of a process in which the plug-in is installed: *site* says so, with the entry point of
    pyproject.toml.
    """
    points = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["entry-points"][
        "pytest11"
    ]
    told = site / "sliceplane_as_installed-1.dist-info"
    told.mkdir(exist_ok=True)
    told.joinpath("METADATA").write_text(
        "Metadata-Version: 2.1\nName: sliceplane-as-installed\nVersion: 1\n"
    )
    lines = "".join(f"{name} = {module}\n" for name, module in points.items())
    told.joinpath("entry_points.txt").write_text(f"[pytest11]\n{lines}")
    return {**os.environ, "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{site}"}


def pytest(folder: Path, *arguments: str | Path, site: Path) -> subprocess.Popen[str]:
    """pytest in *folder*, which is its root: nothing of our own settings counts."""
    folder.joinpath("pytest.ini").write_text("[pytest]\n")
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        f"--rootdir={folder}",
    ]
    # Plug-ins of our own tests: one that cannot do without pytest-asyncio, and two that take long
    # to load.
    for name in ("looptime_plugin", "hypothesispytest", "xdist"):
        command += ["-p", f"no:{name}"]
    return subprocess.Popen(
        [*command, "-c", str(folder / "pytest.ini"), *map(str, arguments)],
        cwd=folder,
        env=environment(site),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def passed(process: subprocess.Popen[str]) -> str:
    """What it printed; every test must have passed."""
    output, _ = process.communicate(timeout=240)
    assert process.returncode == 0, output
    return output
