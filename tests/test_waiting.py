"""What waits in tests comes back at once when it may, and says what it saw when it may not."""

from __future__ import annotations

import asyncio
import itertools
import time

import pytest
from tests.waiting import eventually, until


def test_until_gives_what_holds() -> None:
    numbers = itertools.count()
    assert until(lambda: next(numbers), lambda number: number > 3) == 4


def test_until_tells_what_it_saw_last() -> None:
    with pytest.raises(AssertionError, match=r"not so within 0.05 s; last seen: \[\]"):
        until(list, within_s=0.05)


def test_looking_takes_at_most_half_of_the_time() -> None:
    looks = 0

    def look() -> None:
        nonlocal looks
        looks += 1
        time.sleep(0.02)

    with pytest.raises(AssertionError, match="not so within"):
        until(look, within_s=0.3)
    assert looks <= 9


def test_only_errors_that_it_is_told_of_are_ignored() -> None:
    answers = iter([KeyError("a"), 7])

    def look() -> int:
        answer = next(answers)
        if isinstance(answer, Exception):
            raise answer
        return answer

    assert until(look, ignoring=(LookupError,)) == 7
    with pytest.raises(StopIteration):
        until(look, ignoring=(LookupError,))


@pytest.mark.looptime
async def test_eventually_awaits_and_gives_up_what_does_not_come_back() -> None:
    numbers = itertools.count()

    async def look() -> int:
        return next(numbers)

    assert await eventually(look, lambda number: number == 3) == 3
    with pytest.raises(AssertionError, match="not so within 120 s; last seen: 0"):
        await eventually(lambda: 0)
    with pytest.raises(AssertionError, match="not so within 5 s; last seen: 'nothing'"):
        await eventually(asyncio.Event().wait, within_s=5)


@pytest.mark.looptime
async def test_a_timeout_of_what_it_looks_at_is_not_its_own() -> None:
    async def look() -> None:
        raise TimeoutError

    with pytest.raises(TimeoutError):
        await eventually(look)
