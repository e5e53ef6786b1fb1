"""Endpoints that are alive stay, whatever an API says that lost its Pods; what is told goes all the
same.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from typing import Any, NoReturn

import pytest
from msgspec.structs import replace
from tests.figures import tell
from tests.lab.sim.guard_story import LASTING, STORIES, GuardStory

from sliceplane.api.errors import internal
from sliceplane.api.requests import ListPage, Selection, Write
from sliceplane.consume.removal_hold import RemovalRetention
from sliceplane.controllers.mass_removal import PROBE_PERIOD_S
from sliceplane.diagnose.io.guarding import read_retained, release_retained
from sliceplane.lab.sim.checks.removals import RETAINED_MAX_S
from sliceplane.lab.sim.checks.steady import Broken
from sliceplane.lab.sim.process import Process
from sliceplane.lab.sim.server import Server
from sliceplane.slices.facts import PodFacts
from sliceplane.slices.removing import losses, review
from sliceplane.slices.removing.guard import REASON_RELEASED, REASON_RETAINED
from sliceplane.slices.removing.losses import CONFIRM_BOUND_S
from sliceplane.watch.controller.base import Measured


def told(seed: int, *, hold: bool | None = None) -> GuardStory:
    """A story that went well; raises ``Broken``. Who does not say *retention* holds where a second
    look would not help, and in every other seed elsewhere.
    """
    needed = seed % len(STORIES) < LASTING or seed // len(STORIES) % 2 == 0
    story = GuardStory(seed, hold=needed if hold is None else hold)
    story.run()
    return story


@pytest.mark.parametrize("seed", range(2 * len(STORIES)))
def test_what_is_alive_stays_and_what_is_told_goes(seed: int) -> None:
    told(seed)


@pytest.mark.parametrize("seed", range(LASTING))
def test_without_a_hold_what_is_alive_is_lost_where_the_server_insists(seed: int) -> None:
    """The stories are no empty ones."""
    with pytest.raises(Broken, match="no-lost-endpoint"):
        told(seed, hold=False)


@pytest.mark.parametrize("seed", [3, 4, 5])
def test_a_bug_that_confirms_nothing_is_found(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(review, "confirms_removal", lambda *_: True)
    with pytest.raises(Broken, match="no-lost-endpoint"):
        told(seed, hold=False)


def test_a_bug_that_holds_what_is_told_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        PodFacts,
        "is_unready_by_node",
        property(lambda facts: not facts.serving and not facts.terminating),
    )
    with pytest.raises(Broken, match="told-is-never-held"):
        told(1)


def test_a_bug_that_holds_for_ever_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(RemovalRetention, "keeps", lambda hold, _: hold.count)
    story = GuardStory(1)
    story.begin()
    story.silence()
    with pytest.raises(Broken, match="held-within-bound"):
        story.wait(1.1 * RETAINED_MAX_S)


@pytest.mark.parametrize(("bound_s", "is_bug"), [(CONFIRM_BOUND_S, False), (1e9, True)])
def test_a_bug_that_doubts_for_ever_is_found(
    bound_s: float, is_bug: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What no list can confirm stays for half a minute, and then goes."""
    monkeypatch.setattr(losses, "CONFIRM_BOUND_S", bound_s)
    story = GuardStory(1, hold=False)
    story.begin()
    monkeypatch.setattr(story.sim.server, "page", refuse)
    story.silence()
    story.wait(CONFIRM_BOUND_S - 2.0)
    assert story.published() == story.alive.keys()
    with pytest.raises(Broken, match="held-within-bound") if is_bug else contextlib.nullcontext():
        story.wait(60.0)
        assert story.published() == set()


def refuse(*_: object) -> NoReturn:
    raise internal("no list can be had")


class SimulatedClient:
    """What ``sliceplane guard`` uses of a client, over the server of a story."""

    def __init__(self, server: Server) -> None:
        self._server = server

    async def list(self, selection: Selection, **_: object) -> ListPage:
        outcome = self._server.page(selection, 0, "")
        return ListPage(
            tuple(record.body for record in outcome.records), str(outcome.resource_version)
        )

    async def perform(self, write: Write) -> bytes:
        return self._server.execute(write)


def figures(story: GuardStory) -> dict[str, float]:
    process = story.sim.processes["endpointslice"]
    assert isinstance(process, Process)
    assert isinstance(process.controller, Measured)
    return {
        "/".join((family.name, *sample.labels)): sample.value
        for family in process.controller.samples(story.sim.scheduler.now)
        if family.name.startswith("sliceplane_mass_removal")
        for sample in family.samples
    }


def test_a_hold_is_told_and_released() -> None:
    story = GuardStory(1)
    story.begin()
    scheduler = story.sim.scheduler
    client: Any = SimulatedClient(story.sim.server)
    assert asyncio.run(read_retained(client, "")) == ()
    story.silence()
    scheduler.run_until(scheduler.now + 5.0)
    (held,) = asyncio.run(read_retained(client, ""))
    count = len(story.alive)
    assert held.service == "default/web"
    assert held.message.startswith(f"the removal of {count} of {count} endpoints is held until ")
    assert figures(story) == {
        "sliceplane_mass_removal_confirmations_total/confirmed": 1,
        "sliceplane_mass_removal_held_endpoints": count,
        "sliceplane_mass_removal_refused_probes_total": 0,
        "sliceplane_mass_removals_total/held": 1,
    }
    assert any("event" in line and REASON_RETAINED in line for line in story.lines)
    assert story.published() == story.alive.keys()
    asyncio.run(
        release_retained(client, "default", ["web"], scheduler.now - 300.0)
    )  # by a clock that is behind
    scheduler.run_until(scheduler.now + 1.0)
    assert story.published() == set()
    assert asyncio.run(read_retained(client, "default")) == ()
    assert figures(story)["sliceplane_mass_removals_total/released"] == 1
    assert any("event" in line and REASON_RELEASED in line for line in story.lines)


def test_who_starts_during_a_hold_says_that_it_holds_nothing() -> None:
    """It knows of no earlier number; a condition must not say for ever what nobody does."""
    story = GuardStory(1)
    story.begin()
    scheduler = story.sim.scheduler
    client: Any = SimulatedClient(story.sim.server)
    story.silence()
    scheduler.run_until(scheduler.now + 5.0)
    story.sim.crash("endpointslice")
    scheduler.run_until(scheduler.now + 30.0)
    assert asyncio.run(read_retained(client, "")) == ()
    assert story.published() == set()


def test_what_refuses_a_connection_is_held_no_longer() -> None:
    story = GuardStory(1)
    story.sim.setup = replace(story.sim.setup, probe=True)
    story.begin()
    names = sorted(story.alive)
    refusing = story.sim.server.refusing
    refusing.add(story.alive[names[0]])
    story.silence()
    story.wait(5.0)
    assert story.published() == set(names[1:])
    refusing.update(story.alive[name] for name in names[1:3])
    story.wait(PROBE_PERIOD_S + 5.0)
    assert story.published() == set(names[3:])
    assert figures(story)["sliceplane_mass_removal_refused_probes_total"] == 3
    story.wait(RETAINED_MAX_S)


@pytest.mark.slow
@pytest.mark.timeout(0)
def test_many_mass_removals(capsys: pytest.CaptureFixture[str]) -> None:
    """``GUARD_SEEDS`` of them (10,000 by default), from ``GUARD_SEED`` on."""
    first = int(os.environ.get("GUARD_SEED", "0"))
    count = int(os.environ.get("GUARD_SEEDS", "10000"))
    stories = dict.fromkeys(STORIES, 0)
    for seed in range(first, first + count):
        stories[told(seed).story] += 1
        if (seed + 1 - first) % 250 == 0:
            with capsys.disabled():
                print(
                    f"{seed + 1 - first} of {count} at {time.process_time():.0f} s of CPU",
                    flush=True,
                )
    tell(f"{count:,} mass removals, 0 endpoints lost that were alive: {stories}")
