"""Flags that contradict each other, or files that cannot be used: usage errors before anything is
started.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from sliceplane.cli.main import COMMANDS, main


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        (["--zones", "zone-a"], "--zones says how to emulate; add --emulate"),
        (["--emulate-nodes", "5"], "--emulate-nodes says how to emulate; add --emulate"),
        (
            ["--emulate-readiness", "external"],
            "--emulate-readiness says how to emulate; add --emulate",
        ),
        (
            ["--emulate", "--emulate-file", "{file}", "--zones", "a"],
            "--zones makes Nodes, and --emulate-file lists",
        ),
        (["--etcd-cafile", "{file}"], "--etcd-cafile says how to use etcd; add --etcd"),
        (["--etcd-prefix", "/mine"], "--etcd-prefix says how to use etcd; add --etcd"),
        (["--netns", "x"], "--hostname-override and --netns say where to write rules; add --proxy"),
        (["--emulate", "--emulate-nodes", "0"], "0 is not in the range 1<=x<=250"),
        (
            ["--emulate", "--zones", "a,b,,c"],
            "--zones: 'a,b,,c' has an empty name between its commas",
        ),
        (
            ["--emulate", "--zones", "Bad Zone!"],
            "a valid label must be an empty string or consist of",
        ),
        (
            ["--emulate", "--emulate-ready-delay", "fast"],
            "'fast' is not a duration (1s, 500ms, 1m30s, 0)",
        ),
        (["--max-endpoints-per-slice", "1001"], "1001 is not in the range 1<=x<=1000"),
        (["--endpointslice-updates-batch-period", "-1s"], "is not a duration"),
        (
            ["--controllers", "*,-typo"],
            "there is no controller 'typo', only endpoints-controller, endpointslice-",
        ),
        (["--controllers", "-endpoints"], "no controller is selected"),
        (
            ["--controllers", "*,deployment-controller"],
            "there is no controller 'deployment-controller'",
        ),
    ],
)
def test_usage_errors(flags: list[str], sentence: str) -> None:
    done = CliRunner().invoke(
        main, ["up", "--data-dir", "memory:", *(flag.format(file=__file__) for flag in flags)]
    )
    assert done.exit_code == 64
    assert sentence in " ".join(done.output.split())


def test_a_node_file_that_is_no_text(tmp_path: Path) -> None:
    path = tmp_path / "nodes.yaml"
    path.write_bytes(b"- {name: \xff}")
    done = CliRunner().invoke(main, ["up", "--emulate", "--emulate-file", str(path)])
    assert done.exit_code == 64
    assert "is no text: line 1, column 10 is not UTF-8" in " ".join(done.output.split())


@pytest.mark.parametrize("command", COMMANDS)
def test_every_option_has_a_help_text(command: str) -> None:
    """``--help`` shows a flag without one as a name and a type, which tells nobody what it does."""

    def commands(found: click.Command) -> Iterator[click.Command]:
        yield found
        if isinstance(found, click.Group):
            for command_below in found.commands.values():
                yield from commands(command_below)

    made = main.get_command(click.Context(main), command)
    assert made is not None
    silent = [
        f"{below.name} {option.opts[0]}"
        for below in commands(made)
        for option in below.params
        if isinstance(option, click.Option) and not option.help
    ]
    assert silent == []


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("- {name: a", "not YAML"),
        ("name: a", "expected a list of nodes"),
        ("- {name: a, colour: red}", "node a: unknown member 'colour'"),
        ("", "expected a list of nodes"),
    ],
)
def test_bad_node_files(tmp_path: Path, text: str, sentence: str) -> None:
    path = tmp_path / "nodes.yaml"
    path.write_text(text)
    done = CliRunner().invoke(main, ["up", "--emulate", "--emulate-file", str(path)])
    assert done.exit_code == 64
    assert sentence in done.output
    assert str(path) in done.output.replace("\n", "")
