"""When a guard holds, for how long, and on which number it rests."""

from __future__ import annotations

from math import ceil

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sliceplane.consume.removal_hold import RETAIN_S, STEP_S
from sliceplane.slices.removing.guard import (
    BURST_S,
    GATHER_S,
    REASON_EXPIRED,
    REASON_OVER,
    REASON_RELEASED,
    REASON_RETAINED,
    Losses,
    Peak,
    RemovalBurst,
    ServiceGuard,
)

START = 6000.0


def losses(
    ready: int,
    missed: int,
    *,
    retention_requested: bool = True,
    released_at: float = 0.0,
    burst: bool = False,
) -> Losses:
    return Losses(
        ready=ready,
        missed=missed,
        retention_requested=retention_requested,
        released_at=released_at,
        burst=burst,
    )


def stood(count: int) -> ServiceGuard:
    """A guard of a Service with *count* endpoints for the three minutes before ``START``."""
    guard = ServiceGuard()
    guard.update_retention(losses(count, 0), START - 180.0)
    return guard


def reasons(guard: ServiceGuard) -> list[str]:
    news, guard.pending_notices = guard.pending_notices, []
    return [reason for reason, _ in news]


def test_a_peak_is_what_stood_through_a_minute() -> None:
    peak = Peak()
    peak.note(10, 0.0)
    peak.note(50, 70.0)
    peak.note(10, 100.0)
    assert peak.standing(120.0) == 10
    assert peak.standing(250.0) == 10
    peak.note(20, 250.0)
    assert peak.standing(400.0) == 20
    assert peak.standing(400.0 + 700.0) == 20
    peak.note(5, 1100.0)
    assert peak.standing(1150.0) == 20
    assert peak.standing(1800.0) == 5


def test_a_peak_forgets_after_ten_minutes() -> None:
    peak = Peak()
    peak.note(9, 0.0)
    peak.note(3, 130.0)
    assert peak.standing(240.0) == 9
    assert peak.standing(600.0) == 9
    assert peak.standing(900.0) == 3


@pytest.mark.parametrize(
    ("ready", "missed", "held"), [(4, 6, True), (5, 5, False), (0, 10, True), (9, 1, False)]
)
def test_more_than_half_must_be_missed(ready: int, missed: int, held: bool) -> None:
    guard = stood(10)
    assert guard.update_retention(losses(ready, missed), START) == missed, (
        "it waits for others at least"
    )
    assert (guard.retention is not None) == held
    assert guard.update_retention(losses(ready, missed), START + GATHER_S) == (
        missed if held else 0
    )
    assert reasons(guard) == ([REASON_RETAINED] if held else [])


def test_who_does_not_ask_and_who_is_small_waits_for_nothing() -> None:
    assert stood(10).update_retention(losses(0, 10, retention_requested=False), START) == 0
    assert stood(3).update_retention(losses(0, 3), START) == 0
    assert ServiceGuard().update_retention(losses(0, 10), START) == 0


def test_losses_that_come_one_by_one_are_counted_together() -> None:
    guard = stood(10)
    for missed in range(1, 6):
        assert guard.update_retention(losses(10 - missed, missed), START + missed) == missed
    assert guard.retention is None
    assert guard.update_retention(losses(4, 6), START + 6.0) == 6
    assert guard.retention is not None
    assert guard.retention.since == START + 6.0


def test_a_storm_holds_what_is_few_for_one_service() -> None:
    guard = stood(10)
    assert guard.update_retention(losses(8, 2, burst=True), START) == 2
    assert reasons(guard) == [REASON_RETAINED]


def test_a_storm_is_three_tenths_of_all_within_its_time() -> None:
    burst = RemovalBurst()
    burst.ready = 100
    for _ in range(30):
        burst.ready -= 1
        burst.lost()
    assert not burst.is_active(START)
    burst.ready -= 1
    burst.lost()
    assert burst.is_active(START + BURST_S)
    assert not burst.is_active(START + BURST_S + 1.0)


def test_a_release_ends_holds_that_began_before() -> None:
    guard = stood(10)
    assert guard.update_retention(losses(0, 10, released_at=START - 1.0), START) == 10
    assert guard.update_retention(losses(0, 10, released_at=START - 1.0), START + 1.0) == 10
    assert guard.update_retention(losses(0, 10, released_at=START + 2.0), START + 3.0) == 0
    assert reasons(guard) == [REASON_RETAINED, REASON_RELEASED]


def test_what_comes_back_ends_a_hold() -> None:
    guard = stood(10)
    guard.update_retention(losses(0, 10), START)
    assert guard.update_retention(losses(6, 4), START + 10.0) == 4
    assert guard.update_retention(losses(10, 0), START + 20.0) == 0
    assert reasons(guard) == [REASON_RETAINED, REASON_OVER]


def test_the_guard_rests_on_what_is_there_and_not_on_what_it_holds() -> None:
    guard = stood(10)
    guard.update_retention(losses(0, 10), START)
    for minute in range(1, 20):
        guard.update_retention(losses(0, 10), START + 60.0 * minute)
    assert guard.retention is None
    assert guard.update_retention(losses(0, 10), START + 1300.0) == 0, (
        "ten minutes without endpoints: there is no peak"
    )


@given(st.integers(4, 500), st.integers(0, 40))
def test_nothing_is_held_beyond_its_bound(peak: int, late: int) -> None:
    guard = stood(peak)
    kept = guard.update_retention(losses(0, peak), START)
    assert kept == peak
    now = START
    while kept:
        due = guard.deadline(now)
        assert due is not None
        assert due > now
        now = due + late
        left = guard.update_retention(losses(0, kept), now)
        steps = 0 if now < START + RETAIN_S else 1 + int((now - START - RETAIN_S) // STEP_S)
        assert left <= max(0, peak - steps * ceil(peak / 10))
        kept = left
    assert now <= START + RETAIN_S + 10 * STEP_S + late
    assert reasons(guard) == [REASON_RETAINED, REASON_EXPIRED]
    assert guard.deadline(now) is None


@given(st.lists(st.tuples(st.integers(0, 40), st.integers(0, 90)), max_size=20), st.integers(0, 40))
def test_a_guard_that_rested_holds_what_one_that_was_asked_holds(
    quiet: list[tuple[int, int]], left: int
) -> None:
    asked, rested = ServiceGuard(), ServiceGuard()
    now = START
    for ready, pause_s in quiet:
        now += pause_s
        assert not asked.needs_confirmation(0, ready, now, burst=False, unknown=False)
        assert asked.update_retention(losses(ready, 0), now) == 0
        assert asked.deadline(now) is None
        assert not asked.pending_notices
        rested.on_no_losses(ready, now)
    now += 61.0
    missed = losses(left, 40 - left)
    assert asked.update_retention(missed, now) == rested.update_retention(missed, now)
    assert reasons(asked) == reasons(rested)
