"""``sliceplane.dev/Measured``: its annotation, and how good its hints are: against brute force where
there are few endpoints, and against a linear programme where there are many.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from itertools import combinations, product
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.effort import effort
from tests.growth.measure import GROWTH_MAX, growth

from sliceplane.api.core import Service, ServiceSpec
from sliceplane.api.meta import ObjectMeta
from sliceplane.consume.demand import MEASURED, is_measured
from sliceplane.slices.heuristics.balanced import ANNOTATION_MAX_OVERLOAD, Balanced
from sliceplane.slices.heuristics.measured import (
    ANNOTATION_SHARES,
    PARTS,
    MeasuredZones,
    read_shares,
    write_shares,
)
from sliceplane.slices.heuristics.sharing import Cost, Placement, cost_of
from sliceplane.slices.heuristics.types import (
    Allocation,
    ServiceView,
    ZoneView,
    problem_of_allocation,
)
from sliceplane.testing import check_heuristic

ABC = tuple("abc")


def zones_of(*names: str, region: str = "r1") -> tuple[ZoneView, ...]:
    return tuple(ZoneView(name=name, region=region, share=1 / len(names)) for name in names)


def view(shares: Mapping[str, int] | str, overload: str = "20%") -> ServiceView:
    text = shares if isinstance(shares, str) else write_shares(shares)
    annotations = {ANNOTATION_SHARES: text, ANNOTATION_MAX_OVERLOAD: overload}
    return ServiceView(namespace="shop", name="web", annotations=annotations)


def placement_of(allocation: Allocation) -> Placement:
    return {
        zone: {portion.zones: portion.count for portion in portions if portion.count}
        for zone, portions in allocation.items()
    }


def placed(
    shares: Mapping[str, int],
    endpoints: Mapping[str, int],
    overload: str = "20%",
    zones: tuple[ZoneView, ...] = zones_of(*ABC),
) -> tuple[Placement, Cost]:
    """The hints, and their cost in parts of all traffic and in fair shares."""
    answer = MeasuredZones().allocate(view(shares, overload), endpoints, zones)
    assert problem_of_allocation(answer, endpoints) == ""
    placement = placement_of(answer)
    total = sum(endpoints.values())
    traffic = {zone.name: shares.get(zone.name, 0) / PARTS * total for zone in zones}
    found = cost_of(placement, traffic)
    return placement, found._replace(crossing=found.crossing / total)


SHARES = st.tuples(st.integers(0, PARTS), st.integers(0, PARTS)).map(
    lambda cuts: dict(zip(ABC, (min(cuts), max(cuts) - min(cuts), PARTS - max(cuts)), strict=True))
)


# The annotation


@given(shares=SHARES)
def test_shares_survive_the_annotation(shares: dict[str, int]) -> None:
    assert read_shares(write_shares(shares)) == shares


@pytest.mark.parametrize(
    "text",
    [
        *("", "a", "a=64", "a=64/63", "a=63/64", "a=32/64,a=32/64", "a=-1/64,b=65/64", "=64/64"),
        *("a=064/64", "a=６４/64", "a b=64/64", "a=64/64,", "a=1e1/64,b=54/64"),
        ",".join(f"zone-{number}=1/64" for number in range(2_000)),
        "a=64/64," + "x" * 1_000_000,
    ],
)
def test_what_is_no_annotation_counts_as_none(text: str) -> None:
    assert read_shares(text) == {}
    endpoints = {"a": 4, "b": 10}
    assert MeasuredZones().allocate(view(text), endpoints, zones_of(*ABC)) == Balanced().allocate(
        view(""), endpoints, zones_of(*ABC)
    )


def test_shares_of_zones_that_are_gone_count_as_none() -> None:
    endpoints = {"a": 4, "b": 10}
    assert MeasuredZones().allocate(
        view({"x": 64}), endpoints, zones_of("a", "b")
    ) == Balanced().allocate(view(""), endpoints, zones_of("a", "b"))


@effort(200)
@given(shares=SHARES, endpoints=st.fixed_dictionaries({zone: st.integers(1, 40) for zone in ABC}))
def test_it_is_balanced_with_other_shares(
    shares: dict[str, int], endpoints: dict[str, int]
) -> None:
    zones = tuple(ZoneView(name=zone, share=parts / PARTS) for zone, parts in shares.items())
    found = MeasuredZones().allocate(view(shares), endpoints, zones_of(*ABC, region=""))
    assert found == Balanced(lends_evenly=True).allocate(view(""), endpoints, zones)
    # As little traffic leaves its zone, and the bound holds where it does for Balanced.
    total = sum(endpoints.values())
    traffic = {zone: parts / PARTS * total for zone, parts in shares.items()}
    even, uneven = (
        cost_of(placement_of(each), traffic)
        for each in (found, Balanced().allocate(view(""), endpoints, zones))
    )
    assert even.crossing == pytest.approx(uneven.crossing, abs=1e-6)
    assert even.load <= max(1.2, uneven.load) + 1e-6


def test_it_passes_the_kit() -> None:
    check_heuristic(
        MeasuredZones(),
        annotations=(
            {},
            {ANNOTATION_SHARES: "zone-00=60/64,zone-01=4/64"},
            {ANNOTATION_SHARES: "rubbish", ANNOTATION_MAX_OVERLOAD: "5%"},
        ),
    )


@pytest.mark.parametrize(
    ("annotations", "field", "measured"),
    [
        ({}, MEASURED, True),
        ({"service.kubernetes.io/topology-mode": MEASURED}, None, True),
        ({"service.kubernetes.io/topology-aware-hints": MEASURED}, "PreferClose", True),
        ({"service.kubernetes.io/topology-mode": "Auto"}, MEASURED, False),
        ({"service.kubernetes.io/topology-aware-hints": "auto"}, MEASURED, False),
        ({"service.kubernetes.io/topology-mode": "Disabled"}, MEASURED, True),
        ({"service.kubernetes.io/topology-mode": "sliceplane.dev/Balanced"}, MEASURED, False),
    ],
)
def test_nodes_and_controllers_have_one_rule_of_the_services_that_ask(
    annotations: dict[str, str], field: str | None, *, measured: bool
) -> None:
    meta = ObjectMeta(name="web", annotations=annotations)
    service = Service(metadata=meta, spec=ServiceSpec(traffic_distribution=field))
    assert is_measured(service) is measured


# Zones without endpoints, without traffic, without either


def test_a_hot_zone_borrows_just_what_it_lacks() -> None:
    endpoints = dict.fromkeys(ABC, 12)
    placement, found = placed({"a": 51, "b": 10, "c": 3}, endpoints)
    assert placement["a"] == {("a",): 12}
    assert sum(by.get(("a",), 0) for by in placement.values()) == 24
    assert found.load <= 1.2
    spread = {zone: {(zone,): 12} for zone in ABC}
    assert cost_of(spread, {"a": 51 * 36 / 64, "b": 10 * 36 / 64, "c": 3 * 36 / 64}).load > 2.3


def test_clients_in_a_zone_without_endpoints_have_hints() -> None:
    placement, found = placed({"a": 20, "b": 20, "c": 24}, {"a": 10, "b": 10})
    hinted = sum(n for by in placement.values() for names, n in by.items() if "c" in names)
    assert hinted == 7, "ceil(24 / 64 * 20 / 1.2)"
    assert found.load <= 1.2


@pytest.mark.parametrize("endpoints", [{"a": 6, "b": 6, "c": 6}, {"a": 6, "b": 6}, {"c": 1}])
def test_a_zone_without_traffic_has_an_endpoint_all_the_same(endpoints: dict[str, int]) -> None:
    placement, _ = placed({"a": 64, "b": 0, "c": 0}, endpoints)
    for zone in ABC:
        assert any(not names or zone in names for by in placement.values() for names in by), (
            f"consumers in {zone} would ignore all hints: {placement}"
        )


def test_a_zone_without_traffic_and_endpoints_uses_those_of_its_region() -> None:
    zones = (
        ZoneView(name="a", region="far"),
        ZoneView(name="b", region="near"),
        ZoneView(name="c", region="near"),
    )
    placement, _ = placed({"a": 40, "b": 24, "c": 0}, {"a": 8, "b": 8}, zones=zones)
    assert all("c" in names for names in placement["b"])
    assert not any("c" in names for names in placement["a"])


def test_one_zone_needs_no_hints() -> None:
    answer = MeasuredZones().allocate(view({"a": 64}), {"a": 3}, zones_of("a"))
    assert [portion.zones for portion in answer["a"]] == [()]


# Against brute force

_SETS = tuple(
    names for size in range(1, 4) for names in combinations(ABC, size)
)  # the zones that an endpoint may serve


@cache
def _hints_of_zone(
    zone: str, count: int
) -> tuple[tuple[tuple[int, ...], int, frozenset[int]], ...]:
    """Every way to hint *count* endpoints: endpoints for each zone, own ones, sets that are used."""
    found = set()
    for parts in product(range(count + 1), repeat=len(_SETS)):
        if sum(parts) == count:
            hinted = tuple(
                sum(n for n, names in zip(parts, _SETS, strict=True) if z in names) for z in ABC
            )
            used = frozenset(index for index, n in enumerate(parts) if n)
            found.add((hinted, hinted[ABC.index(zone)], used))
    return tuple(sorted(found, key=lambda each: (each[0], sorted(each[2]))))


def least_crossing(shares: Mapping[str, int], counts: Mapping[str, int], bound: float) -> float:
    """Tries every hint of every endpoint."""
    part = [shares[zone] / PARTS for zone in ABC]
    total = sum(counts.values())
    best = 1.0
    for (a, own_a, used_a), (b, own_b, used_b), (c, own_c, used_c) in product(
        *(_hints_of_zone(zone, counts.get(zone, 0)) for zone in ABC)
    ):
        hinted = [a[i] + b[i] + c[i] for i in range(3)]
        if not all(hinted):
            continue
        load = [part[i] / hinted[i] for i in range(3)]
        crossing = 1 - load[0] * own_a - load[1] * own_b - load[2] * own_c
        if crossing < best - 1e-12 and all(
            sum(load[ABC.index(zone)] for zone in _SETS[index]) * total <= bound + 1e-9
            for index in used_a | used_b | used_c
        ):
            best = crossing
    return best


def worlds(number: int, seed: int) -> Iterator[tuple[dict[str, int], dict[str, int], str]]:
    rng = Random(seed)
    for _ in range(number):
        counts = {zone: count for zone in ABC if (count := rng.randint(0, 2))} or {"a": 2}
        cuts = sorted((rng.randint(0, PARTS), rng.randint(0, PARTS)))
        parts = (cuts[0], cuts[1] - cuts[0], PARTS - cuts[1])
        yield dict(zip(ABC, parts, strict=True)), counts, rng.choice(("5%", "20%", "20%", "1"))


def test_the_gap_to_the_best_hints_of_few_endpoints_is_as_documented() -> None:
    gaps = []
    for shares, counts, overload in worlds(60, seed=7):
        bound = {"5%": 1.05, "20%": 1.2, "1": 2.0}[overload]
        _, found = placed(shares, counts, overload)
        least = least_crossing(shares, counts, bound)
        assert found.load <= bound + 1e-6
        assert found.crossing >= least - 1e-6, "better than every way there is"
        gaps.append(found.crossing - least)
    assert sum(gaps) / len(gaps) <= 0.01
    assert sum(gap > 0.01 for gap in gaps) <= len(gaps) * 0.08


@effort(300)
@given(
    shares=SHARES,
    counts=st.fixed_dictionaries({zone: st.integers(8, 60) for zone in ABC}),
    overload=st.sampled_from((0.2, 0.5, 1.0)),
)
def test_many_endpoints_come_near_the_linear_programme(
    shares: dict[str, int], counts: dict[str, int], overload: float
) -> None:
    """The programme may hint parts of endpoints: what a zone sends beyond (1 + overload) fair
    shares for each of its endpoints leaves it, and nothing else. Whole endpoints add at most one
    for each zone that lacks some.
    """
    total = sum(counts.values())
    _, found = placed(shares, counts, str(overload))
    lacking = {
        zone: max(0.0, shares[zone] / PARTS - (1 + overload) * counts[zone] / total) for zone in ABC
    }
    rounding = sum((1 + overload) / total for zone, amount in lacking.items() if amount)
    assert found.load <= 1 + overload + 1e-6
    assert found.crossing <= sum(lacking.values()) + rounding + 1e-9


@pytest.mark.parametrize("parts", [(51, 10, 3), (40, 20, 4), (22, 21, 21), (62, 1, 1)])
def test_within_two_points_of_the_programme_at_36_endpoints(parts: tuple[int, ...]) -> None:
    shares = dict(zip(ABC, parts, strict=True))
    _, found = placed(shares, dict.fromkeys(ABC, 12))
    least = sum(max(0.0, each / PARTS - 0.4) for each in parts)
    assert found.crossing - least <= 0.02


def test_cost_is_that_of_zones_not_of_endpoints() -> None:
    names = tuple(f"zone-{number}" for number in range(8))
    shares = dict(zip(names, (40, 10, 4, 2, 2, 2, 2, 2), strict=True))

    def run(each: int) -> None:
        for _ in range(10):
            MeasuredZones().allocate(view(shares), dict.fromkeys(names, each), zones_of(*names))

    assert (
        growth(lambda: lambda: run(30), lambda: lambda: run(12_500), too_short_s=0.0) <= GROWTH_MAX
    )
