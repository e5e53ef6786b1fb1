"""Partitions, deaths, sleeps, restarts, outages and drains in any order; what must hold whatever
happens.

- an agent that lives, reaches the server and passes is ready within a bound;
- one that is dead or cut off is not ready within 20 s, unless it is held, and then within the
  hold's bound;
- nothing is left of an agent that never returns;
- a slice has the endpoint that its one agent wants: no writer takes back what another wrote.
"""

from __future__ import annotations

import pytest
from tests.agent.farm import Agent, Farm

from sliceplane.agent.judge import RETAIN_S, STEP_S
from sliceplane.kit.rng import Rng

_READY_S = 40.0  # a foreign Lease is watched, and a write that got lost is tried again after 40 s
_LATE_S = 60.0


class _Story:
    def __init__(self, seed: int) -> None:
        self.rng = Rng(seed)
        self.farm = Farm()
        self.starts = 0
        self.agents: dict[str, Agent] = {}
        for number in range(2 + self.rng.below(7)):
            self.start(f"vm{number}")

    def start(self, name: str) -> None:
        self.starts += 1
        self.agents[name] = self.farm.agent(
            name, f"192.0.2.{10 + int(name[2:])}", start=str(self.starts), host=f"h-{name}"
        )

    def step(self) -> None:
        name = sorted(self.agents)[self.rng.below(len(self.agents))]
        agent = self.agents[name]
        deeds = (
            lambda: setattr(agent.link, "up", not agent.link.up),
            lambda: setattr(agent, "well", not agent.well),
            agent.kill if agent.alive else lambda: self.start(name),
            lambda: agent.pause(self.rng.uniform(1.0, 90.0)) if agent.alive else None,
            self.farm.new_judge,
            lambda: setattr(self.farm.judge_link, "up", not self.farm.judge_link.up),
            self.cut_many,
        )
        deeds[self.rng.below(len(deeds))]()
        self.farm.wait(self.rng.uniform(0.0, 40.0))

    def cut_many(self) -> None:
        for agent in self.agents.values():
            agent.link.up = self.rng.below(2) == 0

    def end(self) -> None:
        """Everything works again but for those that are dead."""
        self.farm.judge_link.up = True
        for agent in self.agents.values():
            agent.link.up = True
            agent.well = True
            if agent.alive:
                agent.wake()
                agent.tell(lambda core, now: core.on_resume(now))


@pytest.mark.parametrize(
    "seed", [0, 1, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(2, 8))]
)
def test_what_lives_serves_and_what_is_dead_goes(seed: int) -> None:
    story = _Story(seed)
    for _ in range(12):
        story.step()
    story.end()
    farm = story.farm
    alive = {f"192.0.2.{10 + int(name[2:])}" for name, agent in story.agents.items() if agent.alive}
    farm.wait_until(lambda: all(farm.is_ready(address) for address in alive), _READY_S + 300.0)
    # what is dead may be held
    farm.wait(20.0 + RETAIN_S + 10 * STEP_S + _LATE_S)
    ready = {
        address
        for stored in farm.slices()
        for endpoint in stored["endpoints"]
        for address in endpoint["addresses"]
        if endpoint["conditions"]["ready"]
    }
    assert ready == alive
    settled = _versions(farm, alive)
    farm.wait(120.0)
    assert _versions(farm, alive) == settled, "nothing writes what is as it must be"
    farm.wait(900.0)
    assert len(farm.leases()) == len(alive), "what never returns leaves nothing"
    assert len(farm.slices()) == len(alive)


def _versions(farm: Farm, addresses: set[str]) -> dict[str, str]:
    return {
        stored["metadata"]["name"]: stored["metadata"]["resourceVersion"]
        for stored in farm.slices()
        if stored["endpoints"][0]["addresses"][0] in addresses
    }


@pytest.mark.slow
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("seed", range(1000, 1200))
def test_many_histories(seed: int) -> None:
    test_what_lives_serves_and_what_is_dead_goes(seed)
