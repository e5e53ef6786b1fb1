"""The examples of consumers with tests of their own, in Python and in Go, run as their authors
would.
"""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

import pytest
from tests.peers.programs import QUICK, run, run_go
from tests.testing.places import EXAMPLES, environment, passed
from tests.testing.places import pytest as run_pytest

PYTHON = sorted(EXAMPLES.glob("test_*.py"))


@pytest.mark.timeout(300)
@pytest.mark.parametrize("example", PYTHON, ids=lambda path: path.name)
def test_python(example: Path, tmp_path: Path) -> None:
    shutil.copy(example, tmp_path)
    assert "2 passed" in passed(run_pytest(tmp_path, "-p", "no:asyncio", site=tmp_path))


@pytest.mark.peer
@pytest.mark.timeout(900)
def test_go(tmp_path: Path) -> None:
    """client-go against planes that ``python -m sliceplane.testing`` runs; ``python3`` is
    this one.
    """
    tmp_path.joinpath("python3").write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    tmp_path.joinpath("python3").chmod(0o755)
    path = f"{tmp_path}{os.pathsep}{os.environ['PATH']}"
    program = tmp_path / "example.test"
    run_go("test", "-c", *QUICK, "-o", str(program), folder=EXAMPLES / "go")
    run(str(program), folder=EXAMPLES / "go", environment={**environment(tmp_path), "PATH": path})


def test_the_manifest_is_the_one_of_the_python_example() -> None:
    text = (EXAMPLES / "test_endpoint_view.py").read_text()
    assert f'WEB = """\n{(EXAMPLES / "web.yaml").read_text()}"""' in text
