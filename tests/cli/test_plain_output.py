"""Nothing that a command prints of a file, a server or a bug can steer a terminal."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner

from sliceplane.cli.answers import Form, Output
from sliceplane.cli.main import main
from sliceplane.kit.terminal_text import printable_lines

STEERING = "\x1b]0;owned\x07\x9b31m\u202e\r"
CLI = Path(__file__).parents[2] / "src" / "sliceplane" / "cli"
#: modules that print, each with the reason why it need not use ``answers``
PRINTERS = {
    "answers.py": "the mechanism itself",
    "main.py": "the version of this program",
    "agent.py": "the help of a command",
    "progress.py": "a line that is wiped out; its text is escaped",
    "process.py": "where a test runner replaced stdout; its line is escaped",
    "alive.py": "has no click; its line is escaped",
}


def test_errors_of_click_and_of_files_are_plain(tmp_path: Path) -> None:
    config = tmp_path / "kubeconfig"
    config.write_text(json.dumps({"current-context": STEERING, "contexts": [], "clusters": []}))
    objects = tmp_path / "objects"
    objects.write_text(json.dumps({"kind": STEERING}))
    cases: tuple[list[str], ...] = (
        ["status", "--kubeconfig", str(config)],
        ["proxy", "render", "-f", str(objects)],
        ["proxy", "--config", str(objects)],
        ["up", "--emulate", "--emulate-file", str(objects)],
        ["what-if", "web", "--snapshot", str(objects), "--set", STEERING],
        ["controllers", "--controllers", STEERING],
        [STEERING],
    )
    for arguments in cases:
        done = CliRunner().invoke(main, arguments)
        assert done.exit_code != 0
        printed = done.stdout + done.stderr
        assert "owned" in printed or arguments[0] in ("up", "what-if"), printed
        assert not set(STEERING) & set(printed) - set("]0;owned31m"), printed


def test_a_traceback_is_plain() -> None:
    code = (
        "import sys; from sliceplane.cli import entry, main\n"
        f"def fail(): raise AssertionError({STEERING!r})\n"
        "main.main = fail\n"
        "entry.main()\n"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert ran.returncode == 1
    assert "AssertionError: \\x1b]0;owned\\x07" in ran.stderr
    assert "\x1b" not in ran.stderr


@pytest.mark.parametrize("path", sorted(CLI.glob("*.py")), ids=lambda path: path.name)
def test_commands_print_through_one_mechanism(path: Path) -> None:
    calls = {
        ast.unparse(node.func)
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call)
    }
    found = calls & {
        "click.echo",
        "print",
        "click.secho",
        "sys.stdout.write",
        "sys.stderr.write",
        "echo",
    }
    if path.name == "entry.py":
        assert found == {"sys.stderr.write"}, "the traceback, escaped"
    else:
        assert bool(found) == (path.name in PRINTERS), (
            f"{path.name}: print with cli.answers: show, note, fail"
        )


def test_documents_keep_what_a_terminal_must_not_see() -> None:
    document = {"name": STEERING, "plain": "é – ✓"}
    forms: tuple[Form, ...] = ("json", "yaml")
    for form in forms:
        text = Output(form).rendered(lambda: document, str)
        assert printable_lines(text) == text
        assert yaml.safe_load(text) == document
