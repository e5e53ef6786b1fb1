"""The oracle at scale: tens of thousands of random steps, each compared; millions of them in ``make
soak``.

``HISTORY_STEPS`` says how many the soak makes (10,000,000 by default), ``HISTORY_SEED`` where its
seeds begin. A failure names its seed and step: ``History(SEED).run(STEP)`` is the replay.
"""

from __future__ import annotations

import os

import pytest
from tests.effort import scaled
from tests.figures import over_seeds, tell
from tests.slices.engine_history import History

STEPS_EACH = 10_000
#: over a long history choices among equals (which slice of two) can cost a write that they save
#: elsewhere
LUCK = 1.01


def run(seed: int, steps: int) -> History:
    history = History(seed)
    history.run(steps)
    theirs = sum(each.writes for each in history.upstream.values())
    their_bytes = sum(each.sent_bytes for each in history.upstream.values())
    assert history.writes > steps / 4, "the history is about something"
    assert history.base_writes <= LUCK * theirs, (
        f"seed {seed}: {history.base_writes} writes, upstream's are {theirs}"
    )
    ours = history.base_bytes
    assert ours <= LUCK * their_bytes, (
        f"seed {seed}: {ours} bytes, upstream's packing sends {their_bytes}"
    )
    return history


@pytest.mark.parametrize("seed", range(1, 6))
def test_any_history_shows_what_the_oracle_says_with_no_more_writes_than_upstream(
    seed: int,
) -> None:
    run(seed, min(STEPS_EACH, scaled(STEPS_EACH)))


@pytest.mark.slow
@pytest.mark.timeout(0)
def test_millions_of_steps() -> None:
    first = int(os.environ.get("HISTORY_SEED", "1000"))
    steps = int(os.environ.get("HISTORY_STEPS", "10000000"))
    histories = -(-steps // STEPS_EACH)
    seeds = range(first, first + histories)
    writes = sum(over_seeds(seeds, lambda seed: run(seed, STEPS_EACH).writes))
    tell(
        f"{histories * STEPS_EACH:,} steps in {histories:,} histories, {writes:,} writes, each "
        "endpoint as specified"
    )
