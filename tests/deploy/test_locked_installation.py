"""``make install`` and the image fetch nothing without a hash, what builds the package included."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
LOCKS = (
    "requirements.lock",
    "requirements-dev.lock",
    "requirements-build.lock",
    "requirements-dist.lock",
    "requirements-floors.lock",
    "requirements-install.lock",
)
#: what takes all that it needs from the machine
OFFLINE = {"--no-index", "--no-deps"}


def pinned(lock: str) -> dict[str, str]:
    """Name to version; each must have a hash."""
    pinned = {}
    for entry in re.split(r"\n(?=[a-zA-Z0-9])", (ROOT / lock).read_text()):
        found = re.match(r"([A-Za-z0-9._-]+)(?:\[[^\]]*\])?==(\S+)", entry)
        if found is not None:
            assert "--hash=sha256:" in entry, f"{lock}: {found[0]} has no hash"
            pinned[found[1].lower()] = found[2]
    return pinned


@pytest.mark.parametrize("lock", LOCKS)
def test_every_pin_has_a_hash(lock: str) -> None:
    assert pinned(lock)


def test_what_builds_the_package_ispinned() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    wanted = {re.split(r"[<>=!~ ]", each)[0] for each in project["build-system"]["requires"]}
    assert wanted == {"hatchling", "hatch-fancy-pypi-readme"}
    # An editable installation asks for editables; hatchling for the rest.
    assert wanted | {"editables", "packaging", "pathspec", "pluggy"} <= set(
        pinned("requirements-build.lock")
    )


@pytest.mark.parametrize("place", ["tools/install.sh", "Dockerfile"])
def test_every_use_of_pip_wants_hashes_or_fetches_nothing(place: str) -> None:
    text = (ROOT / place).read_text().replace("\\\n", " ")
    uses = re.findall(r"pip (?:install|wheel) [^&\n]*", text)
    assert len(uses) >= 3
    for use in uses:
        words = set(use.split())
        assert "--require-hashes" in words or words >= OFFLINE, use
        if words & {".", "-e"}:
            assert "--no-build-isolation" in words, f"pip would fetch a builder: {use}"


def test_the_package_builds_without_an_index(tmp_path: Path) -> None:
    command = (sys.executable, "-m", "pip", "--disable-pip-version-check", "wheel", "-q")
    flags = (
        "--no-index",
        "--no-deps",
        "--no-build-isolation",
        "--wheel-dir",
        str(tmp_path),
        str(ROOT),
    )
    subprocess.run(
        (*command, *flags), check=True, timeout=150, cwd=tmp_path, env={"PATH": "/usr/bin:/bin"}
    )
    (wheel,) = tmp_path.glob("sliceplane-*.whl")
    assert "sliceplane/kit/io/log.py" in zipfile.ZipFile(wheel).namelist()
