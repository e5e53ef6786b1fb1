"""Checks: when a process is believed to be well."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sliceplane.consume.agents.checks import BACKOFF_BASE_S, BACKOFF_MAX_S, CheckSpec, Health


def _look(health: Health, passed: bool, now: float) -> None:
    for probe in health.take_probes(now):
        health.on_result(probe, passed, "", now)


def test_nothing_is_known_before_the_first_answer_and_without_checks_all_is_well() -> None:
    assert Health("ns/web", (CheckSpec(kind="tcp"),), 0.0).is_healthy(100.0) is None
    assert Health("ns/web", (), 0.0).is_healthy(0.0) is True


def test_rise_and_fall_count_in_a_row() -> None:
    health = Health("ns/web", (CheckSpec(kind="tcp", period_s=1.0, rise=2, fall=2),), 0.0)
    expected = [
        (True, None),
        (True, True),
        (False, True),
        (True, True),
        (False, True),
        (False, False),
        (True, False),
    ]
    for second, (passed, well) in enumerate(expected):
        _look(health, passed, float(second))
        assert health.is_healthy(float(second)) is well


def test_a_check_that_has_not_turned_yet_looks_each_second() -> None:
    """A process that was just started does not answer the first look, and is not to wait for a
    whole period.
    """
    health = Health("ns/web", (CheckSpec(kind="tcp", period_s=5.0, rise=1, fall=3),), 0.0)
    _look(health, False, 0.0)
    assert health.next_deadline() == 1.0
    _look(health, True, 1.0)
    assert health.is_healthy(1.0) is True
    assert health.next_deadline() == 6.0


def test_a_process_that_has_never_passed_is_looked_at_each_second_for_half_a_minute() -> None:
    """Three refusals make it failing; that it listens a moment later is not to be seen a whole
    period later.
    """
    health = Health("ns/web", (CheckSpec(kind="tcp", period_s=5.0, rise=1, fall=3),), 0.0)
    for second in range(31):
        assert health.next_deadline() == float(second)
        _look(health, False, float(second))
    assert health.is_healthy(30.0) is False
    assert health.next_deadline() == 35.0
    _look(health, True, 35.0)
    assert health.next_deadline() == 40.0
    for second in (40.0, 45.0, 50.0):
        _look(health, False, second)
    assert health.next_deadline() == 55.0, "one that has passed once is looked at each period"


def test_all_must_pass() -> None:
    health = Health("ns/web", (CheckSpec(kind="tcp"), CheckSpec(kind="process")), 0.0)
    _look(health, True, 0.0)
    assert health.is_healthy(0.0) is None
    assert health.on_status("process", True, "", 1.0)
    assert health.is_healthy(1.0) is True
    health.on_status("process", False, "", 2.0)
    assert health.is_healthy(2.0) is False
    assert not health.on_status("ttl", True, "", 3.0)


def test_a_pass_lasts_as_long_as_it_says() -> None:
    health = Health("ns/web", (CheckSpec(kind="ttl", period_s=30.0),), 0.0)
    assert health.next_deadline() == 30.0, "one that is never told runs out, too"
    health.on_status("ttl", True, "", 10.0)
    assert health.next_deadline() == 40.0
    assert health.is_healthy(39.0) is True
    assert health.is_healthy(40.0) is False
    assert health.views()[0].text == "said nothing for 30 s"


def test_a_result_of_an_earlier_process_is_passed_over() -> None:
    health = Health("ns/web", (CheckSpec(kind="tcp"),), 0.0)
    (probe,) = health.take_probes(0.0)
    health.renew(1.0)
    health.on_result(probe, True, "", 2.0)
    assert health.is_healthy(2.0) is None
    assert len(health.take_probes(2.0)) == 1


def test_a_child_is_the_one_that_it_was_after_the_machine_slept() -> None:
    """It is told once that it lives, and looked at never."""
    health = Health("ns/web", (CheckSpec(kind="tcp"), CheckSpec(kind="process")), 0.0)
    health.on_status("process", True, "", 0.0)
    _look(health, True, 0.0)
    health.renew(10.0)
    assert health.is_healthy(10.0) is None
    _look(health, True, 10.0)
    assert health.is_healthy(10.0) is True


def test_the_third_failure_in_five_minutes_is_held_against_it_twice_as_long_each_time() -> None:
    health = Health("ns/web", (CheckSpec(kind="process"),), 0.0)
    now = 0.0
    for turn in range(8):
        health.on_status("process", True, "", now)
        now += health.get_backoff_s(now)
        assert health.is_healthy(now) is True
        health.on_status("process", False, "", now + 0.1)
        now += 0.2
        expected = 0.0 if turn < 2 else min(BACKOFF_BASE_S * 2 ** (turn - 2), BACKOFF_MAX_S)
        assert health.get_backoff_s(now - 0.1) == pytest.approx(expected, abs=0.2)


@given(st.lists(st.tuples(st.booleans(), st.floats(0.0, 20.0)), max_size=60))
def test_it_is_never_well_while_its_check_fails_nor_held_for_ever(
    story: list[tuple[bool, float]],
) -> None:
    health = Health("ns/web", (CheckSpec(kind="tcp", period_s=1.0, fall=1),), 0.0)
    now = 0.0
    for passed, pause in story:
        now += pause
        looked = health.take_probes(now)
        for probe in looked:
            health.on_result(probe, passed, "", now)
        health.check()
        if looked and not passed:
            assert health.is_healthy(now) is False
        assert health.get_backoff_s(now) <= BACKOFF_MAX_S


@pytest.mark.parametrize(
    "wrong", [{"period_s": 0.0}, {"timeout_s": -1.0}, {"rise": 0}, {"fall": 0}]
)
def test_a_check_that_cannot_be_is_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="must be"):
        CheckSpec(kind="tcp", **wrong)  # type: ignore[arg-type]
