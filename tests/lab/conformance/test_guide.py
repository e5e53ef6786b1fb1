"""The programs of the conformance kit's section in ``docs/testing.md`` are consumers."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest
from benchmarks.tools import peers
from tests.lab.conformance.test_stage import judged

from sliceplane.lab.conformance.cases import BY_NAME
from sliceplane.lab.conformance.consumers.program import ProgramConsumer

pytestmark = pytest.mark.timeout(600)

PAGE = (Path(__file__).parents[3] / "docs" / "testing.md").read_text()
GUIDE = PAGE.partition("\n## Conformance kit\n")[2]
GO = peers.PEERS / "goconsumers"
PATIENCE_S = 120.0


def shown(language: str) -> str:
    (program,) = re.findall(rf"```{language}\n(.*?)```", GUIDE, re.DOTALL)
    return program


async def passes(command: str, *names: str) -> None:
    consumer = ProgramConsumer(command, patience_s=PATIENCE_S)
    verdicts = await judged(consumer, *names, shrink=False)
    assert [(verdict.case.name, verdict.outcome, verdict.why) for verdict in verdicts] == [
        (name, "passed", "") for name in names
    ]


def test_the_histories_have_cases() -> None:
    table = GUIDE.partition("\n### The histories\n")[2].partition("\n### ")[0]
    rows = [line.split("|") for line in table.splitlines() if "`" in line and line.startswith("|")]
    named = [name for row in rows for name in re.findall(r"`([a-z0-9-]+)`", row[2])]
    assert len(rows) >= 17
    assert [name for name in named if name not in BY_NAME] == []


async def test_the_python_program_is_right(tmp_path: Path) -> None:
    program = tmp_path / "mine.py"
    program.write_text(shown("python"))
    await passes(f"{sys.executable} {program}", "slice-deleted-in-a-gap")


def test_the_go_program_is_the_one_that_is_judged() -> None:
    assert shown("go") == (GO / "clientgo" / "main.go").read_text()


@pytest.mark.peer
async def test_the_go_program_is_right() -> None:
    program = peers.build("clientgo", GO, "./clientgo")
    assert program is not None
    await passes(
        str(program),
        "slice-deleted-in-a-gap",
        "absent-ready-is-ready",
        "port-goes-away",
        "only-an-empty-slice",
    )
