"""What the engines may cost: the oldest answer is renewed first, and all of them within a part of a
core.
"""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from sliceplane.diagnose.page.io import questions
from sliceplane.diagnose.page.io.questions import (
    BUSY_MS,
    REQUESTED_S,
    SAVED_MS,
    Question,
    Questions,
)
from sliceplane.diagnose.page.views import Answered

#: so much of what may be saved up
COST_S = SAVED_MS / 1000


async def test_questions_share_a_part_of_a_core_and_take_turns(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = SimpleNamespace(monotonic=lambda: now)
    monkeypatch.setattr(questions, "time", clock)
    no_connection: Any = None
    made = Questions(no_connection, lambda: now, "", no_connection)
    asked: list[Question] = []

    async def timed(question: Question) -> tuple[Answered, float, int]:
        asked.append(question)
        return Answered(now), COST_S, 100

    monkeypatch.setattr(made, "_timed", timed)
    names: list[Question] = [("lint",), ("drift",), ("explain", "n", "web")]
    now = began = 1000.0
    for name in names:
        assert made.latest(name, 1) is None
        await asyncio.sleep(0)
        assert made.latest(name, 1) is not None, "what is asked for the first time does not wait"
        now += 0.1
    asked.clear()
    seconds = 60 * len(names) * COST_S * 1000 / BUSY_MS
    for look in range(int(seconds / REQUESTED_S)):
        now += REQUESTED_S * 0.9
        for name in names:
            made.latest(name, look + 2)
        await asyncio.sleep(0)
    counts = [asked.count(name) for name in names]
    assert max(counts) - min(counts) <= 1, counts
    assert len(names) < sum(counts) * COST_S * 1000 <= (now - began) * BUSY_MS + 2 * SAVED_MS, (
        "the last one may overdraw"
    )


async def test_answers_that_are_kept_are_bounded_in_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    """A tab chooses what it asks about, and an answer may be as large as a Service."""
    monkeypatch.setattr(questions, "CACHED_BYTES_MAX", 1000)
    no_connection: Any = None
    made = Questions(no_connection, lambda: 1.0, "", no_connection)

    async def timed(question: Question) -> tuple[Answered, float, int]:
        return Answered(1.0), 0.0, 400

    monkeypatch.setattr(made, "_timed", timed)
    for number in range(20):
        made.latest(("trace", str(number)), 1)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
    assert len(made._cached) == 3, "two, and the one that was asked last"
