"""Endpoints that are alive stay, whatever an API says that lost its Pods; what is told goes all the same."""

from __future__ import annotations

import asyncio
import os
from typing import Any

import pytest
from tests.sim.guard_story import STORIES, GuardStory

from sliceplane.api.requests import ListPage, Selection, Write
from sliceplane.controllers.base import Measured
from sliceplane.shell.tools.guarding import read_held, release_holds
from sliceplane.sim.process import Process
from sliceplane.sim.server import Server
from sliceplane.slices.guard import REASON_HELD, REASON_RELEASED


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


class SimulatedClient:
    """What ``sliceplane guard`` uses of a client, over the server of a story."""

    def __init__(self, server: Server) -> None:
        self._server = server

    async def list(self, selection: Selection, **_: object) -> ListPage:
        outcome = self._server.page(selection, 0, "")
        return ListPage(tuple(record.body for record in outcome.records), str(outcome.resource_version))

    async def perform(self, write: Write) -> bytes:
        return self._server.perform(write)


def figures(story: GuardStory) -> dict[str, float]:
    process = story.sim.processes["endpointslice"]
    assert isinstance(process, Process)
    assert isinstance(process.controller, Measured)
    return {
        "/".join((family.name, *sample.labels)): sample.value
        for family in process.controller.samples(story.sim.agenda.now)
        if family.name.startswith("sliceplane_mass_removal")
        for sample in family.samples
    }


def test_a_hold_is_told_and_released() -> None:
    story = GuardStory(1)
    story.begin()
    agenda = story.sim.agenda
    client: Any = SimulatedClient(story.sim.server)
    assert asyncio.run(read_held(client, "")) == ()
    story.silence()
    agenda.run_until(agenda.now + 5.0)
    (held,) = asyncio.run(read_held(client, ""))
    count = len(story.alive)
    assert held.service == "default/web"
    assert held.message.startswith(f"the removal of {count} of {count} endpoints is held until ")
    assert figures(story) == {
        "sliceplane_mass_removal_held_endpoints": count,
        "sliceplane_mass_removals_total/held": 1,
    }
    assert any("event" in line and REASON_HELD in line for line in story.lines)
    assert story.published() == story.alive.keys()
    asyncio.run(release_holds(client, "default", ["web"], agenda.now))
    agenda.run_until(agenda.now + 1.0)
    assert story.published() == set()
    assert asyncio.run(read_held(client, "default")) == ()
    assert figures(story)["sliceplane_mass_removals_total/released"] == 1
    assert any("event" in line and REASON_RELEASED in line for line in story.lines)


def test_who_starts_during_a_hold_says_that_it_holds_nothing() -> None:
    """It knows of no earlier number; a condition must not say for ever what nobody does."""
    story = GuardStory(1)
    story.begin()
    agenda = story.sim.agenda
    client: Any = SimulatedClient(story.sim.server)
    story.silence()
    agenda.run_until(agenda.now + 5.0)
    story.sim.crash("endpointslice")
    agenda.run_until(agenda.now + 30.0)
    assert asyncio.run(read_held(client, "")) == ()
    assert story.published() == set()


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
