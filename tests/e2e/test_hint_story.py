"""Hint failures and conditions, as ``kubectl get events``, ``describe`` and ``get -o yaml`` tell
them.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.e2e.hint_story import DOCUMENTED, FLAGS, STORY, Chapter, missing_in, run
from tests.e2e.running import Plane, running_plane

PAGE = Path(__file__).parents[2] / "docs" / "hints.md"


@pytest.fixture(scope="module")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Plane]:
    with running_plane(tmp_path_factory.mktemp("story"), *FLAGS) as plane:
        yield plane


@pytest.mark.kubectl
@pytest.mark.timeout(150)
@pytest.mark.parametrize("chapter", STORY, ids=lambda chapter: chapter.title)
def test_chapter(plane: Plane, chapter: Chapter) -> None:
    for step in chapter.steps:
        run(plane, step)


@pytest.mark.parametrize("title", DOCUMENTED)
def test_the_page_shows_it(title: str) -> None:
    (chapter,) = (chapter for chapter in STORY if chapter.title == title)
    _, _, rest = PAGE.read_text(encoding="utf-8").partition(f"\n### {chapter.title}\n")
    shown = rest.partition("\n### ")[0]
    for step in chapter.steps:
        if not step.hidden:
            _, there, shown = shown.partition(f"$ {step.command}\n")
            assert there, f"$ {step.command}: run tools/make_transcripts.py"
            output = shown.partition("```")[0]
            assert not missing_in(output, step), f"{step.command}: {output}"
