"""The two heuristics that come with us, the rules for all of them, and the kit that checks those
rules.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from itertools import product
from typing import Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.effort import effort
from tests.growth.measure import GROWTH_MAX, growth

from sliceplane.slices.heuristics.balanced import ANNOTATION_MAX_OVERLOAD, Balanced, overload_of
from sliceplane.slices.heuristics.spread_constraints import (
    KEY_HOSTNAME,
    KEY_REGION,
    KEY_ZONE,
    SpreadConstraints,
)
from sliceplane.slices.heuristics.types import (
    Allocation,
    EndpointLocation,
    HeuristicError,
    Hints,
    Portion,
    ServiceView,
    ZoneView,
    problem_of_allocation,
)
from sliceplane.testing import check_heuristic

WEB = ServiceView(namespace="default", name="web")
ZONES = tuple(ZoneView(name=name, region="r1", share=1 / 3) for name in ("a", "b", "c"))


def zones_of(**shares: float) -> tuple[ZoneView, ...]:
    return tuple(
        ZoneView(name=name, region="r1", share=share) for name, share in sorted(shares.items())
    )


# SpreadConstraints


@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        ((), Hints()),
        (("rack",), Hints()),
        ((KEY_ZONE,), Hints(("a",))),
        ((KEY_HOSTNAME,), Hints(("a",), ("n1",))),
        ((KEY_ZONE, KEY_HOSTNAME), Hints(("a",), ("n1",))),
        ((KEY_REGION,), Hints(("a", "b", "c"))),
        ((KEY_REGION, KEY_ZONE), Hints(("a",))),
    ],
)
def test_an_endpoint_serves_the_domain_over_which_its_pod_was_spread(
    keys: tuple[str, ...], expected: Hints
) -> None:
    endpoint = EndpointLocation(zone="a", region="r1", node="n1", topology_keys=keys)
    assert (
        SpreadConstraints().hints(WEB, endpoint, (*ZONES, ZoneView(name="z", region="r2")))
        == expected
    )


def test_a_node_without_labels_gives_no_hint() -> None:
    endpoint = EndpointLocation(node="n1", topology_keys=(KEY_ZONE, KEY_REGION))
    assert SpreadConstraints().hints(WEB, endpoint, ZONES) == Hints()


def test_a_region_of_more_zones_than_an_endpoint_can_name_is_told() -> None:
    endpoint = EndpointLocation(zone="z0", region="r1", topology_keys=(KEY_REGION,))
    many = tuple(ZoneView(name=f"z{number}", region="r1") for number in range(9))
    with pytest.raises(HeuristicError, match="has 9 zones"):
        SpreadConstraints().hints(WEB, endpoint, many)


# Balanced


def test_balanced_zones_keep_their_traffic() -> None:
    found = Balanced().allocate(WEB, {"a": 10, "b": 10, "c": 10}, ZONES)
    assert found == {zone: (Portion(10, (zone,)),) for zone in "abc"}


def test_unequal_zones_within_the_bound_keep_their_traffic() -> None:
    found = Balanced().allocate(WEB, {"a": 9, "b": 10, "c": 11}, ZONES)  # a carries 10/9 = 1.11
    assert found == {
        zone: (Portion(count, (zone,)),) for zone, count in {"a": 9, "b": 10, "c": 11}.items()
    }


def test_an_overloaded_zone_borrows_just_what_it_lacks() -> None:
    found = Balanced().allocate(WEB, {"a": 2, "b": 10, "c": 18}, ZONES)
    # a needs ceil(10 / 1.2) = 9 and has 2; c lends 7 and is left with 11
    assert found == {
        "a": (Portion(2, ("a",)),),
        "b": (Portion(10, ("b",)),),
        "c": (Portion(11, ("c",)), Portion(7, ("a",))),
    }


def test_a_zone_without_endpoints_borrows_all_that_it_needs() -> None:
    found = Balanced().allocate(WEB, {"b": 15, "c": 15}, ZONES)
    assert (
        sum(
            portion.count
            for portions in found.values()
            for portion in portions
            if portion.zones == ("a",)
        )
        == 9
    )


def test_the_bound_is_the_services() -> None:
    tight = ServiceView(
        namespace="default", name="web", annotations={ANNOTATION_MAX_OVERLOAD: "0%"}
    )
    loose = ServiceView(namespace="default", name="web", annotations={ANNOTATION_MAX_OVERLOAD: "4"})
    counts = {"a": 2, "b": 10, "c": 18}
    assert Balanced().allocate(tight, counts, ZONES)["c"] == (
        Portion(10, ("c",)),
        Portion(8, ("a",)),
    )
    assert Balanced().allocate(loose, counts, ZONES)["c"] == (Portion(18, ("c",)),)


def test_few_endpoints_are_shared_instead_of_given_up() -> None:
    found = Balanced().allocate(WEB, {"a": 1, "b": 1}, ZONES)
    zones = {portion.zones for portions in found.values() for portion in portions}
    assert zones == {()} or all(len(each) > 1 for each in zones) or len(zones) == 2
    assert worst_load(found, ZONES) <= 1.2 + 1e-6 or zones == {()}


def test_endpoints_of_a_zone_without_nodes_serve_who_needs_them() -> None:
    found = Balanced().allocate(WEB, {"a": 5, "b": 10, "c": 10, "lost": 5}, ZONES)
    assert found["lost"] == (Portion(5, ("a",)),)
    assert all(portion.zones for portions in found.values() for portion in portions)


@pytest.mark.parametrize("zones", [(), zones_of(a=0.0, b=0.0)])
def test_without_known_zones_there_are_no_hints(zones: tuple[ZoneView, ...]) -> None:
    assert Balanced().allocate(WEB, {"a": 3, "b": 2}, zones) == {
        "a": (Portion(3, ()),),
        "b": (Portion(2, ()),),
    }


@pytest.mark.parametrize("text", ["", "much", "-1", "-5%", "nan", "1e9", "%"])
def test_a_bound_that_is_none_is_told(text: str) -> None:
    with pytest.raises(HeuristicError, match="not a part such as 20%"):
        overload_of({ANNOTATION_MAX_OVERLOAD: text})


def worst_load(found: Allocation, zones: tuple[ZoneView, ...]) -> float:
    """The highest expected load of an endpoint, from what a proxy does: even choice among endpoints
    for its zone.
    """
    total = sum(portion.count for portions in found.values() for portion in portions)
    whole = sum(zone.share for zone in zones)
    everyone = any(not portion.zones for portions in found.values() for portion in portions)
    hinted = {
        zone.name: total
        if everyone
        else sum(
            portion.count
            for portions in found.values()
            for portion in portions
            if zone.name in portion.zones
        )
        for zone in zones
    }
    loads = [0.0]
    for portions in found.values():
        for portion in portions:
            served = [zone for zone in zones if everyone or zone.name in portion.zones]
            load = sum(zone.share / whole * total / hinted[zone.name] for zone in served)
            loads.append(load if portion.count else 0.0)
    assert everyone or all(hinted[zone.name] for zone in zones if zone.share > 0), (
        f"a zone with clients has nobody: {found}"
    )
    return max(loads)


COUNTS = st.dictionaries(st.sampled_from("abcd"), st.integers(1, 60), min_size=1)
SHARES = st.tuples(*[st.sampled_from((0.0, 0.1, 1.0, 1.0, 2.0, 30.0))] * 3)


@effort(500)
@given(counts=COUNTS, shares=SHARES, overload=st.sampled_from(("0%", "20%", "1", "10")))
def test_no_endpoint_is_expected_to_carry_more_than_the_bound(
    counts: dict[str, int], shares: tuple[float, float, float], overload: str
) -> None:
    zones = zones_of(a=shares[0], b=shares[1], c=shares[2])
    service = ServiceView(
        namespace="default", name="web", annotations={ANNOTATION_MAX_OVERLOAD: overload}
    )
    found = Balanced().allocate(service, counts, zones)
    assert problem_of_allocation(found, counts) == ""
    if sum(shares):
        assert worst_load(found, zones) <= 1 + overload_of(service.annotations) + 1e-6


def crossing(found: Allocation) -> int:
    """Endpoints that serve a zone that is not theirs, alone."""
    return sum(
        portion.count
        for zone, portions in found.items()
        for portion in portions
        if len(portion.zones) == 1 and portion.zones != (zone,)
    )


@effort(200)
@given(counts=st.fixed_dictionaries({zone: st.integers(1, 7) for zone in "abc"}), shares=SHARES)
def test_spill_is_the_least_that_keeps_the_bound(
    counts: dict[str, int], shares: tuple[float, float, float]
) -> None:
    """Against every way of giving whole endpoints to zones."""
    if not sum(shares):
        return
    zones, total = zones_of(a=shares[0], b=shares[1], c=shares[2]), sum(counts.values())
    traffic = {zone.name: zone.share / sum(shares) * total for zone in zones}
    found = Balanced().allocate(WEB, counts, zones)
    if any(len(portion.zones) != 1 for portions in found.values() for portion in portions):
        return
    least = min(
        sum(max(0, serving - counts[zone]) for zone, serving in zip("abc", split, strict=True))
        for split in product(range(total + 1), repeat=3)
        if sum(split) == total
        and all(
            serving * 1.2 + 1e-9 >= traffic[zone]
            for zone, serving in zip("abc", split, strict=True)
        )
    )
    assert crossing(found) == least


def test_cost_is_that_of_zones_not_of_endpoints() -> None:
    small, large = {"a": 20, "b": 90, "c": 190}, {"a": 20_000, "b": 90_000, "c": 190_000}

    def run(counts: dict[str, int]) -> None:
        for _ in range(200):
            Balanced().allocate(WEB, counts, ZONES)

    assert (
        growth(lambda: partial(run, small), lambda: partial(run, large), too_short_s=0.0)
        <= GROWTH_MAX
    )


# The kit


@pytest.mark.parametrize("heuristic", [Balanced(), SpreadConstraints()])
def test_ours_pass_the_kit(heuristic: Balanced | SpreadConstraints) -> None:
    check_heuristic(
        heuristic,
        annotations=({}, {ANNOTATION_MAX_OVERLOAD: "0.5"}, {ANNOTATION_MAX_OVERLOAD: "rubbish"}),
    )


class Forgetful:
    """Wrong in the way that *fault* says."""

    kind: Literal["zonal"] = "zonal"

    def __init__(self, fault: str) -> None:
        self.name = "nodomain" if fault == "name" else "example.com/Forgetful"
        self._fault, self._calls = fault, 0

    def allocate(
        self, service: ServiceView, endpoints: Mapping[str, int], zones: tuple[ZoneView, ...]
    ) -> Allocation:
        self._calls += 1
        found = {zone: (Portion(count, (zone,)),) for zone, count in endpoints.items()}
        if self._fault == "zone":
            found.popitem()
        elif self._fault == "count":
            found = {zone: (Portion(count - 1, (zone,)),) for zone, count in endpoints.items()}
        elif self._fault == "state" and self._calls % 2:
            found = {zone: (Portion(count, ()),) for zone, count in endpoints.items()}
        elif self._fault == "hints":
            found = {zone: (Portion(count, (zone, zone)),) for zone, count in endpoints.items()}
        elif self._fault == "text":
            raise HeuristicError
        return found


@pytest.mark.parametrize(
    ("fault", "text"),
    [
        ("name", "domain/Name"),
        ("zone", "the endpoints are in"),
        ("count", "add up to"),
        ("state", "then"),
        ("hints", "repeated name"),
        ("text", "without a text"),
    ],
)
def test_the_kit_finds_what_is_wrong(fault: str, text: str) -> None:
    with pytest.raises(AssertionError, match=text):
        check_heuristic(Forgetful(fault))
    check_heuristic(Forgetful("none"))
