"""Measured zones: from rates to shares, and when hints change."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.controllers.measured_world import EVEN, PLAIN, SKEWED, TWELVE
from tests.effort import effort

from sliceplane.controllers.measured.decision import (
    PRIOR,
    HintInputs,
    decide,
    estimate,
    moves_between,
    overloaded_zone,
    round_shares,
)
from sliceplane.controllers.measured.meter import WINDOW_S
from sliceplane.slices.heuristics.measured import (
    ANNOTATION_SHARES,
    PARTS,
    MeasuredZones,
    read_shares,
)
from sliceplane.slices.heuristics.types import ServiceView, ZoneView

# -- from rates to shares

RATES = st.dictionaries(st.sampled_from("abcdefgh"), st.floats(0, 1e6), max_size=8)


def views(names: str = "abcdefgh") -> tuple[ZoneView, ...]:
    return tuple(ZoneView(name=name, share=1 / len(names)) for name in names)


@given(rates=RATES)
def test_shares_are_a_whole(rates: dict[str, float]) -> None:
    measured = estimate(rates, views())
    assert sum(measured.shares.values()) == pytest.approx(1)
    parts = round_shares(measured.shares)
    assert sum(parts.values()) == PARTS
    assert all(each >= 1 for each in parts.values()), "each zone with Nodes keeps an endpoint"
    worst = max(share * PARTS / parts[zone] for zone, share in measured.shares.items())
    assert worst <= PARTS / (PARTS - len(parts)) + 1e-9, "the bound of the docstring"


@effort(100)
@given(cuts=st.tuples(st.floats(0.01, 1), st.floats(0.01, 1), st.floats(0.01, 1)))
def test_rounding_adds_the_least_load_possible(cuts: tuple[float, float, float]) -> None:
    shares = {zone: cut / sum(cuts) for zone, cut in zip("abc", cuts, strict=True)}
    parts = round_shares(shares)
    best = min(
        max(shares["a"] / a, shares["b"] / b, shares["c"] / (PARTS - a - b))
        for a in range(1, PARTS - 1)
        for b in range(1, PARTS - a)
    )
    assert max(shares[zone] / parts[zone] for zone in "abc") == pytest.approx(best)


def test_few_connections_change_little_and_none_change_nothing() -> None:
    assert estimate({}, views("ab")).shares == {"a": 0.5, "b": 0.5}
    few = estimate({"a": PRIOR / WINDOW_S}, views("ab")).shares
    assert few["a"] == pytest.approx(0.75), "as many as the prior counts"
    many = estimate({"a": 1e5}, views("ab")).shares
    assert many["a"] > 0.999


def test_more_zones_than_parts_have_shares() -> None:
    shares = {f"zone-{number:03}": 1 / 200 for number in range(200)}
    assert sum(round_shares(shares).values()) == PARTS
    assert round_shares({}) == {}


# -- when hints change


def inputs(endpoints: dict[str, int] | None = None) -> HintInputs:
    return HintInputs(PLAIN, endpoints or TWELVE, views("abc"))


def test_hints_that_are_good_enough_stay() -> None:
    even = decide(inputs(), "", estimate(EVEN, views("abc")))
    assert sum(read_shares(even).values()) == PARTS
    slightly = estimate({"a": 38.0, "b": 33.0, "c": 29.0}, views("abc"))
    assert decide(inputs(), even, slightly) == even, "1.13 fair shares are below 1.2"
    much = estimate(SKEWED, views("abc"))
    changed = decide(inputs(), even, much)
    assert changed != even
    before, after = (inputs().cost(text, much.shares) for text in (even, changed))
    assert before.load > 2.2
    assert after.load <= 1.2
    assert 10 <= moves_between(inputs().placement(even), inputs().placement(changed)) <= 12


def test_hints_change_if_that_keeps_traffic_in_its_zone() -> None:
    skewed = decide(inputs(), "", estimate(SKEWED, views("abc")))
    even = estimate({"a": 36.0, "b": 33.0, "c": 31.0}, views("abc"))
    changed = decide(inputs(), skewed, even)
    assert inputs().cost(skewed, even.shares).crossing > 0.05
    assert inputs().cost(changed, even.shares).crossing == 0


def test_a_zone_that_comes_or_goes_is_a_reason() -> None:
    text = decide(inputs(), "", estimate(EVEN, views("abc")))
    assert set(read_shares(text)) == set("abc")
    two = HintInputs(PLAIN, TWELVE, views("ab"))
    fewer = decide(two, text, estimate(EVEN, views("ab")))
    assert set(read_shares(fewer)) == set("ab")


def test_without_endpoints_nothing_is_decided() -> None:
    assert decide(HintInputs(PLAIN, {}, views("abc")), "", estimate(EVEN, views("abc"))) == ""


def test_a_decision_finds_the_hints_of_an_annotation_once(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    allocate = MeasuredZones.allocate

    def counted(self: MeasuredZones, service: ServiceView, *rest: Any) -> Any:
        asked.append(service.annotations[ANNOTATION_SHARES])
        return allocate(self, service, *rest)

    monkeypatch.setattr(MeasuredZones, "allocate", counted)
    world, skewed = inputs(), estimate(SKEWED, views("abc"))
    current = "a=22/64,b=21/64,c=21/64"
    overloaded_zone(world, current, skewed)
    text = decide(world, current, skewed)
    before, after = (world.cost(each, skewed.shares) for each in (current, text))
    assert before.load > after.load
    assert moves_between(world.placement(current), world.placement(text))
    assert sorted(asked) == sorted({current, text})
