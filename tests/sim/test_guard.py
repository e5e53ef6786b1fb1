"""Endpoints that are alive stay, whatever an API says that lost its Pods; what is told goes all the same."""

from __future__ import annotations

import os

import pytest
from tests.sim.guard_story import STORIES, GuardStory


def told(seed: int, *, hold: bool = True) -> GuardStory:
    story = GuardStory(seed, hold=hold)
    story.run()
    return story


def assert_guarded(story: GuardStory, seed: int) -> None:
    where = f"seed {seed}, {story.story}"
    assert story.lost == 0, f"{where}: {story.lost} endpoints were lost that were alive"
    assert story.slow == [], f"{where}: held although it was told"
    assert story.overdue == [], f"{where}: held beyond the bound"


@pytest.mark.parametrize("seed", range(6))
def test_what_is_alive_stays_and_what_is_told_goes(seed: int) -> None:
    assert_guarded(told(seed), seed)


@pytest.mark.parametrize("seed", [0, 1])
def test_without_a_hold_what_is_alive_is_lost(seed: int) -> None:
    """The stories are no empty ones."""
    assert told(seed, hold=False).lost > 0


@pytest.mark.slow
@pytest.mark.timeout(0)
def test_many_mass_removals(capsys: pytest.CaptureFixture[str]) -> None:
    """``GUARD_SEEDS`` of them (10,000 by default), from ``GUARD_SEED`` on."""
    first = int(os.environ.get("GUARD_SEED", "0"))
    count = int(os.environ.get("GUARD_SEEDS", "10000"))
    stories = dict.fromkeys(STORIES, 0)
    for seed in range(first, first + count):
        story = told(seed)
        assert_guarded(story, seed)
        stories[story.story] += 1
    with capsys.disabled():
        print(f"\n{count} mass removals, 0 endpoints lost that were alive: {stories}")
