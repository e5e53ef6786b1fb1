"""Flags that contradict each other, or files that cannot be used: usage errors before anything is started."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from sliceplane.cli.main import main


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        (["--zones", "zone-a"], "--emulate-file and --zones say how to emulate; add --emulate"),
        (["--netns", "x"], "--hostname-override and --netns say where to write rules; add --proxy"),
        (["--emulate", "--emulate-nodes", "0"], "0 is not in the range 1<=x<=250"),
        (["--emulate", "--zones", "Bad Zone!"], "a valid label must be an empty string or consist of"),
        (["--emulate", "--emulate-ready-delay", "fast"], "'fast' is not a duration (1s, 500ms, 1m30s, 0)"),
        (["--max-endpoints-per-slice", "1001"], "1001 is not in the range 1<=x<=1000"),
        (["--endpointslice-updates-batch-period", "-1s"], "is not a duration"),
        (["--controllers", "*,-typo"], "there is no controller 'typo', only endpoints-controller, endpointslice-"),
        (["--controllers", "-endpoints"], "none is left to run"),
        (["--controllers", "*,deployment-controller"], "there is no controller 'deployment-controller'"),
    ],
)
def test_usage_errors(flags: list[str], sentence: str) -> None:
    done = CliRunner().invoke(main, ["up", *flags])
    assert done.exit_code == 2
    assert sentence in " ".join(done.output.split())


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
    assert done.exit_code == 2
    assert sentence in done.output
    assert str(path) in done.output.replace("\n", "")
