"""``tools/install.sh`` takes a Python that was built with optimisation before one that was not."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
#: what the script needs before it makes an environment; as root it would ask apt, which is none
#: here
PROGRAMS = ("bash", "dirname", "id", "rm")


def python_in(folder: Path, name: str, says: str) -> Path:
    """One that *says* how it was built, and makes no environment."""
    folder.mkdir(exist_ok=True)
    program = folder / name
    program.write_text(f'#!/bin/sh\n[ "$1" = tools/python_build.py ] && echo {says}\n')
    program.chmod(0o755)
    return program


def complaint(tmp_path: Path, *folders: Path, **environment: str) -> str:
    """In which Pythons stand in the order in which they were tried."""
    own = tmp_path / "programs"
    own.mkdir()
    for name in PROGRAMS:
        (own / name).symlink_to(shutil.which(name) or pytest.fail(f"there is no {name}"))
    path = os.pathsep.join(map(str, (*folders, own)))
    done = subprocess.run(
        [str(own / "bash"), str(ROOT / "tools" / "install.sh"), "runtime"],
        env={"PATH": path, "VENV": str(tmp_path / "venv"), **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1, done.stderr
    return done.stderr.splitlines()[-1]


def test_the_quick_one_of_the_oldest_version_is_tried_first(tmp_path: Path) -> None:
    slow = python_in(tmp_path / "pyenv", "python3.11", "slow")
    quick = python_in(tmp_path / "debian", "python3.11", "quick")
    python_in(tmp_path / "debian", "python3.13", "quick")
    said = complaint(tmp_path, slow.parent, quick.parent)
    assert f"cannot make a virtual environment with {quick} {slow};" in said


def test_a_python_that_is_named_is_taken_or_complained_of(tmp_path: Path) -> None:
    slow = python_in(tmp_path / "pyenv", "python3.12", "slow")
    quick = python_in(tmp_path / "debian", "python3.11", "quick")
    assert f"with {slow};" in complaint(tmp_path, quick.parent, PYTHON=str(slow))


def test_a_name_that_leads_nowhere_is_said(tmp_path: Path) -> None:
    quick = python_in(tmp_path / "debian", "python3.11", "quick")
    assert complaint(tmp_path, quick.parent, PYTHON="python2").endswith(
        "PYTHON=python2 is no Python 3.11 or newer"
    )


def test_without_any_python_it_says_what_to_do(tmp_path: Path) -> None:
    assert "no Python 3.11 or newer found; install one" in complaint(tmp_path)


def test_this_python_says_how_it_was_built() -> None:
    done = subprocess.run(
        [sys.executable, ROOT / "tools" / "python_build.py"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() in ("quick", "slow")


def test_a_release_needs_no_programs_of_the_tests(tmp_path: Path) -> None:
    """In an environment that is ready, and where neither Chromium nor apt is."""
    (tmp_path / "venv" / "bin").mkdir(parents=True)
    (tmp_path / "venv" / "bin" / "python").symlink_to("/bin/true")
    (tmp_path / "venv" / ".installed-dev").touch()
    programs = python_in(tmp_path / "programs", "python3.11", "quick").parent
    for name in PROGRAMS:
        (programs / name).symlink_to(shutil.which(name) or pytest.fail(f"there is no {name}"))

    def install(**environment: str) -> str:
        command = (str(programs / "bash"), str(ROOT / "tools" / "install.sh"), "dev")
        variables = {"PATH": str(programs), "VENV": str(tmp_path / "venv"), **environment}
        return subprocess.run(
            command, env=variables, capture_output=True, text=True, check=True
        ).stderr

    assert "chromium" in install()
    assert install(PROGRAMS="no") == ""
    assert (
        "PROGRAMS=no tools/install.sh dev"
        in (ROOT / "Makefile").read_text().partition("\nrelease:")[2]
    )
