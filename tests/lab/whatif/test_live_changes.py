"""What was foreseen of changes that are made at random on an emulated plane."""

from __future__ import annotations

import asyncio

import pytest
from tests.lab.whatif.live_changes import Outcome, run

WRITES = ("slices made", "slices updated", "slices deleted", "slices in the end")


def report(outcomes: list[Outcome]) -> str:
    return "\n".join(outcome.line() for outcome in outcomes)


def test_writes_lie_within_the_range_that_was_foreseen() -> None:
    outcomes = asyncio.run(run(3, seed=4))
    missed = [figure for outcome in outcomes for figure in outcome.missed if figure.what in WRITES]
    assert not missed, report(outcomes)
    written = {
        figure.what: figure
        for outcome in outcomes
        for figure in outcome.figures
        if figure.what in WRITES
    }
    assert any(figure.actual for figure in written.values()), "nothing was changed"


@pytest.mark.slow
def test_of_fifty_changes_95_in_100_lie_within_every_range() -> None:
    outcomes = asyncio.run(run(50, seed=1))
    within = sum(not outcome.missed for outcome in outcomes)
    assert within >= 0.95 * len(outcomes), report(outcomes)
