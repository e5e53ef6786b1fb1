"""When to write."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sliceplane.kit.delays import Backoff
from sliceplane.node.schedule import Schedule


def test_at_once_when_nothing_runs() -> None:
    schedule = Schedule()
    assert schedule.next_deadline() is None
    schedule.on_change(10.0)
    assert schedule.due(10.0)


def test_changes_during_a_write_go_together_into_the_next() -> None:
    schedule = Schedule()
    schedule.on_change(10.0)
    schedule.on_start()
    for moment in (10.1, 10.2, 10.3):
        schedule.on_change(moment)
    assert schedule.next_deadline() is None
    assert schedule.freshness.pending_since == 10.0
    schedule.on_success(11.0)
    assert schedule.freshness.pending_since == 10.1
    assert schedule.due(11.0)
    schedule.on_start()
    schedule.on_success(12.0)
    assert schedule.next_deadline() is None
    assert schedule.freshness.staleness_s(99.0) == 0.0


def test_the_pause_counts_from_the_end_of_a_write() -> None:
    schedule = Schedule(min_period_s=5.0)
    schedule.on_change(10.0)
    assert schedule.due(10.0)
    schedule.on_start()
    schedule.on_success(12.0)
    schedule.on_change(13.0)
    assert schedule.next_deadline() == 17.0
    assert not schedule.due(16.9)


def test_retries_back_off_and_a_success_forgets() -> None:
    schedule = Schedule(retry=Backoff(base_s=1.0, cap_s=4.0))
    schedule.on_change(0.0)
    now, waits = 0.0, []
    for _ in range(4):
        schedule.on_start()
        schedule.on_failure(now)
        deadline = schedule.next_deadline()
        assert deadline is not None
        waits.append(deadline - now)
        now = deadline
    assert waits == [1.0, 2.0, 4.0, 4.0]
    assert schedule.freshness.pending_since == 0.0
    assert schedule.freshness.staleness_s(now) == now
    assert schedule.freshness.failures == 4
    schedule.on_start()
    schedule.on_success(now)
    assert schedule.next_deadline() is None
    assert schedule.freshness.failures == 0


def test_an_event_is_sooner_than_a_retry_but_not_than_the_pause() -> None:
    schedule = Schedule(min_period_s=2.0, retry=Backoff(base_s=30.0, cap_s=30.0))
    schedule.on_change(0.0)
    schedule.on_start()
    schedule.on_failure(1.0)
    assert schedule.next_deadline() == 31.0
    schedule.on_change(1.5)
    assert schedule.next_deadline() == 3.0


def test_work_that_nobody_waits_for_is_no_staleness() -> None:
    schedule = Schedule()
    schedule.request_write(5.0)
    assert schedule.next_deadline() == 5.0
    assert schedule.freshness.pending_since is None


def test_two_writes_at_once_are_a_mistake() -> None:
    schedule = Schedule()
    schedule.on_start()
    with pytest.raises(AssertionError):
        schedule.on_start()


@given(
    st.sampled_from([0.0, 5.0]),
    st.lists(
        st.tuples(st.sampled_from(["change", "start", "good", "bad"]), st.floats(-1e6, 1e6)),
        max_size=40,
    ),
)
def test_whatever_the_clock_does_a_change_is_written_soon(
    pause_s: float, history: list[tuple[str, float]]
) -> None:
    """A clock set back by an hour held every change for an hour: the pause ended by the old
    clock.
    """
    schedule, now = Schedule(min_period_s=pause_s), 0.0
    for what, jump_s in history:
        now += jump_s
        if what == "change":
            schedule.on_change(now)
            deadline = schedule.next_deadline()
            assert schedule.running or (deadline is not None and deadline <= now + pause_s)
        elif what == "start" and not schedule.running:
            schedule.on_start()
        elif what == "good" and schedule.running:
            schedule.on_success(now)
        elif what == "bad" and schedule.running:
            schedule.on_failure(now)
        assert schedule.freshness.staleness_s(now) >= 0.0
