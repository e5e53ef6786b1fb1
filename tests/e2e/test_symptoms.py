"""The problems in ``docs/troubleshooting.md`` are real: each is caused again, and prints what the
document shows.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.e2e.symptoms import ROOT, STORY, Player
from tests.ports import free_port
from tools.make_symptoms import pages

DOCUMENT = ROOT / "docs" / "troubleshooting.md"

pytestmark = [pytest.mark.kubectl, pytest.mark.timeout(900)]


@pytest.fixture
def player(tmp_path: Path) -> Iterator[Player]:
    player = Player(tmp_path, free_port(), SLICEPLANE_CONTROLLERS_SHADOW_GRACE="1s")
    player.begin()
    yield player
    player.end()


def test_what_one_sees_is_what_is_written(player: Player) -> None:
    assert len(STORY) == 15
    text = DOCUMENT.read_text(encoding="utf-8")
    for symptom in STORY:
        written = text.partition(f"### {symptom.title}\n")[2].partition("\n### ")[0]
        assert written, symptom.title
        for step in symptom.steps:
            player.play(step)
            shown = written.partition(f"$ {player.shown(step)}\n")[2].partition("```")[0]
            assert re.search(step.says, shown, re.MULTILINE), (
                f"{symptom.title}: not written: {step.line}"
            )


def test_every_symptom_leads_to_the_pages_of_its_findings() -> None:
    text = DOCUMENT.read_text(encoding="utf-8")
    for symptom in STORY:
        written = text.partition(f"### {symptom.title}\n")[2].partition("\n### ")[0]
        assert pages(symptom.codes) in f"{written}\n", symptom.title
