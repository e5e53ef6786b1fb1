"""Measured zones: from nodes' reports to rates by zone."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.effort import effort

from sliceplane.consume.demand import COUNT_MAX
from sliceplane.controllers.measured.meter import (
    CAP,
    FOLLOWED_S,
    HALF_LIFE_S,
    STEP,
    STEP_ERRORS,
    STEP_HALF_LIFE_S,
    DemandMeter,
)

NODES = ("n0", "n1", "n2", "n3")


def meter_of(zones: dict[str, str]) -> DemandMeter:
    meter = DemandMeter()
    meter.follow("uid00000", "shop")
    for node, zone in zones.items():
        meter.on_node(node, zone, is_expected=True)
    return meter


def rates_after(
    meter: DemandMeter, per_s: dict[str, float], seconds: int = 900
) -> dict[str, float] | None:
    for now in range(0, seconds + 1, 10):
        for node, rate in per_s.items():
            meter.on_report(node, f"uid00000:{round(rate * now)}", float(now))
    return meter.rates("uid00000", float(seconds))


def test_rates_are_those_of_the_zones_whenever_nodes_report() -> None:
    meter = meter_of({"n0": "a", "n1": "a", "n2": "b"})
    for now in range(1801):
        for node, rate, period, shift in (("n0", 4, 30, 0), ("n1", 2, 10, 7), ("n2", 6, 17, 3)):
            if now % period == shift:
                meter.on_report(node, f"uid00000:{rate * now}", float(now))
        if now >= 1200:  # at any moment, not only after a report
            rates = meter.rates("uid00000", float(now))
            assert rates["a"] == pytest.approx(6, rel=1e-3)
            assert rates["b"] == pytest.approx(6, rel=1e-3)


def test_a_change_is_seen_by_half_after_a_half_life_and_a_step_sooner() -> None:
    for after, seconds in ((130, HALF_LIFE_S), (400, STEP_HALF_LIFE_S)):
        meter = meter_of({"n0": "a"})
        rates_after(meter, {"n0": 100}, 1800)
        steps = int(seconds / 5)
        for step in range(1, steps + 1):
            now = 1800 + step * seconds / steps
            total = 180_000 + after * step * seconds / steps
            meter.on_report("n0", f"uid00000:{round(total)}", now)
        assert meter.rates("uid00000", now) == {"a": pytest.approx((100 + after) / 2, rel=0.01)}


TOTALS = st.lists(st.integers(0, 10**6) | st.sampled_from((0, COUNT_MAX)), min_size=1, max_size=12)


@effort(300)
@given(totals=TOTALS, spans=st.lists(st.floats(1.01, 85), min_size=12, max_size=12))
def test_totals_become_differences_that_are_never_negative(
    totals: list[int], spans: list[float]
) -> None:
    """Against a plain sum over the reports."""
    meter = meter_of({"n0": "a"})
    now = 0.0
    averages = {HALF_LIFE_S: 0.0, STEP_HALF_LIFE_S: 0.0}
    before = totals[0]
    followed_until = 0.0
    for total, span in zip(totals, spans, strict=False):
        now += span
        meter.on_report("n0", f"uid00000:{total}", now)
        connections = total - before if total >= before else total
        for half_life_s, average in averages.items():
            kept = 0.5 ** (span / half_life_s)
            present = connections / span if now > span else 0.0
            averages[half_life_s] = average * kept + present * (1 - kept)
        slow, quick = averages.values()
        error = math.sqrt(max(slow, quick) * math.log(2) / (2 * STEP_HALF_LIFE_S))
        if abs(quick - slow) > max(STEP * max(slow, quick), STEP_ERRORS * error):
            followed_until = now + FOLLOWED_S
        if now < followed_until:
            averages[HALF_LIFE_S] = quick
        before = total
    found = meter.rates("uid00000", now).get("a", 0.0)
    assert found >= 0
    assert found == pytest.approx(averages[HALF_LIFE_S], rel=1e-6, abs=1e-4)


def test_a_new_lease_begins_anew() -> None:
    meter = meter_of({"n0": "a"})
    rates_after(meter, {"n0": 5})
    meter.on_report("n0", None, 901.0)
    assert meter.rates("uid00000", 901.0) is None
    assert meter.coverage(901.0) is None
    meter.on_report("n0", "uid00000:1000000", 910.0)
    assert meter.rates("uid00000", 910.0) == {}, "these connections may be old"


def test_a_lying_node_counts_three_times_the_median_of_its_zone() -> None:
    meter = meter_of(dict.fromkeys(NODES, "a"))
    rates = rates_after(meter, {"n0": 10, "n1": 10, "n2": 10, "n3": 10**9})
    assert meter.capped == {"n3"}
    assert rates["a"] == pytest.approx(30 + CAP * 10, rel=0.05)


@pytest.mark.parametrize("others", [0, 1])
def test_one_gateway_is_no_lie(others: int) -> None:
    meter = meter_of(dict.fromkeys(NODES, "a"))
    rates = rates_after(meter, {"n0": 500, **dict.fromkeys(NODES[1 : 1 + others], 1)})
    assert rates["a"] == pytest.approx(500 + others, rel=0.01)
    assert not meter.capped


@pytest.mark.parametrize(
    "text", ["x", "uid00000", "uid00000:-5", "uid00000:9" + "9" * 400, "uid00000:1," * 100_000, ","]
)
def test_a_malformed_report_counts_nothing(text: str) -> None:
    meter = meter_of({"n0": "a"})
    rates_after(meter, {"n0": 5}, 100)
    meter.on_report("n0", text, 110.0)
    assert meter.invalid >= 1
    assert all(math.isfinite(rate) for rate in meter.rates("uid00000", 110.0).values())


def test_services_that_do_not_ask_cost_no_memory() -> None:
    meter = meter_of({"n0": "a"})
    meter.on_report("n0", "other000:1,uid00000:1", 1.0)
    meter.on_report("n0", "other000:9,uid00000:9", 2.0)
    assert meter.rates("other000", 2.0) == {}
    meter.forget("uid00000", "shop")
    meter.on_report("n0", "other000:9,uid00000:19", 3.0)
    assert meter.rates("uid00000", 3.0) == {}
    assert meter.coverage(3.0) == 1.0


def test_zones_that_a_server_reports_no_longer_cost_no_memory() -> None:
    meter = meter_of({f"n{number}": f"zone-{number}" for number in range(20)} | {"n": "zone-a"})
    for now in range(0, 4000, 10):
        zone = f"zone-{now // 10}" if now < 200 else "zone-a"
        meter.on_requests("s", f"{zone}/uid00000:{now}", float(now))
    assert meter.request_rates("uid00000", 3990.0) == {"zone-a": pytest.approx(1.0)}
    assert list(meter._requests._averages[""]) == ["zone-a/uid00000"]


def test_a_view_reports_for_services_of_its_namespace_and_zones_with_nodes_alone() -> None:
    meter = meter_of({"n0": "zone-a", "n1": "zone-b"})
    meter.follow("bank0000", "bank")
    for now in range(0, 4000, 10):
        report = f"zone-a/uid00000:{now},zone-a/bank0000:{now},zone-x/uid00000:{now}"
        meter.on_requests("shop/v", report, float(now), "shop")
        meter.on_requests("bank/v", f"zone-b/bank0000:{2 * now}", float(now), "bank")
    assert meter.request_rates("uid00000", 3990.0) == {"zone-a": pytest.approx(1.0)}
    assert meter.request_rates("bank0000", 3990.0) == {"zone-b": pytest.approx(2.0)}
    meter.on_node("n1", "", is_expected=False)
    meter.on_requests("bank/v", "zone-b/bank0000:9999", 4000.0, "bank")
    assert meter.request_rates("bank0000", 4600.0) is None
    assert not any("zone-x" in key for key in meter._requests._averages[""])


def test_the_steps_of_many_nodes_with_few_connections_show_in_their_sum() -> None:
    nodes = {f"n{number}": "ab"[number % 2] for number in range(200)}
    meter = meter_of(nodes)
    per_s = dict.fromkeys(nodes, 0.3)
    totals = dict.fromkeys(nodes, 0.0)
    for now in range(0, 1231, 10):
        if now > 1200:
            per_s = {node: 1.2 if zone == "a" else 0.3 for node, zone in nodes.items()}
        for number, (node, rate) in enumerate(per_s.items()):
            totals[node] += 10 * rate
            meter.on_report(node, f"uid00000:{round(totals[node])}", now + number / 20)
    rates = meter.rates("uid00000", 1240.0)
    assert rates is not None
    # 30 s later, of 120: with the half-life of 60 s it would be 56
    assert rates["a"] == pytest.approx(97.5, rel=0.05)
    assert rates["b"] == pytest.approx(30.0, rel=0.05)


def test_a_node_that_changes_its_zone_takes_its_connections_along() -> None:
    meter = meter_of({"n0": "a", "n1": "b"})
    rates_after(meter, {"n0": 5, "n1": 7})
    meter.on_node("n0", "b", is_expected=True)
    for now in range(910, 4000, 10):
        for node, rate in (("n0", 5), ("n1", 7)):
            meter.on_report(node, f"uid00000:{rate * now}", float(now))
    assert meter.rates("uid00000", 3990.0) == {"b": pytest.approx(12.0)}
