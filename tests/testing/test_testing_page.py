"""docs/testing.md: every snippet runs as it is printed, and tables name what there is.

``tests/lab/conformance/test_guide.py`` runs those of its section on the conformance kit.
"""

from __future__ import annotations

import inspect
import re
import subprocess
import sys
from pathlib import Path

import pytest
from tests.testing.places import EXAMPLES, ROOT, environment, passed
from tests.testing.places import pytest as run_pytest

from sliceplane import pytest_plugin
from sliceplane.testing import Faults, Plane

TEXT = (ROOT / "docs" / "testing.md").read_text(encoding="utf-8")
PAGE = TEXT.partition("\n## Conformance kit\n")[0]
PYTHON = re.findall(r"^```python\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)
TESTS = [code for code in PYTHON if "def test_" in code]
PROGRAMS = [code for code in PYTHON if "def test_" not in code]

pytestmark = pytest.mark.timeout(300)


def test_tests_of_the_page_pass(tmp_path: Path) -> None:
    assert len(TESTS) == 2
    for number, code in enumerate(TESTS):
        tmp_path.joinpath(f"test_page_{number}.py").write_text(code)
    assert "2 passed" in passed(run_pytest(tmp_path, site=tmp_path))


def test_the_program_prints_what_the_page_says(tmp_path: Path) -> None:
    (program,) = PROGRAMS
    printed = PAGE.split(program)[1].split("```")[2].strip()
    done = subprocess.run(
        [sys.executable, "-c", program],
        env=environment(tmp_path),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout.strip() == printed, done.stderr


def test_the_go_function_is_the_one_that_runs() -> None:
    (code,) = re.findall(r"^```go\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)
    assert code in (EXAMPLES / "go" / "plane_test.go").read_text()


def test_the_command_of_the_page_starts() -> None:
    (line,) = re.findall(r"^python3 (-m sliceplane\.testing .*)$", PAGE, re.MULTILINE)
    with subprocess.Popen(
        [sys.executable, *line.split()],
        cwd=EXAMPLES,
        env={"PYTHONPATH": str(ROOT / "src")},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline().startswith("ready https://127.0.0.1:")
        assert process.stdin is not None
        process.stdin.close()
        assert process.wait(120) == 0


def test_every_public_name_is_on_the_page_and_no_other() -> None:
    rows = "\n".join(line.split("|")[1] for line in PAGE.splitlines() if line.startswith("| `"))
    told = set(re.findall(r"`(\w+)", rows))
    public = {
        name
        for kind in (Plane, Faults)
        for name in vars(kind)
        if not name.startswith("_") and name not in INTERNAL
    }
    options = set(inspect.signature(Plane).parameters)
    fixtures = {name for name in vars(pytest_plugin) if name.startswith("sliceplane")}
    assert told == (public | options | fixtures | {"faults"}) - {"watches"} - UNTOLD
    assert "`plane.faults.watches`" in PAGE
    signature = re.search(r"^`Plane\((.*)\)`$", PAGE, re.MULTILINE)
    assert signature is not None
    shown = [
        f"{name}={each.default!r}".replace("'", '"')
        for name, each in inspect.signature(Plane).parameters.items()
    ]
    assert signature[1] == ", ".join(shown)


#: of ours, not for tests of others
INTERNAL = {"around", "attach", "clock", "start", "stop"}
#: told in the sentence of their neighbour
UNTOLD = {"ready_delay", "termination"}
