"""Where connections go: the closed formula of each rule of routing is the oracle of what the one
rule gives.
"""

from __future__ import annotations

from collections import Counter
from fractions import Fraction
from itertools import product
from math import ceil
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sliceplane.consume.balancing.shares import (
    OVERLOAD,
    AllowedLoad,
    ClientLocation,
    EndpointKind,
    at_zones,
    chance,
    cure,
    shares,
    without,
)
from sliceplane.consume.usable import Locality, choose

ZONES = ("zone-a", "zone-b", "zone-c", "zone-d")
weights = st.lists(st.integers(0, 9), min_size=2, max_size=4).filter(any)
counts = st.lists(st.integers(0, 6), min_size=2, max_size=4).filter(any)


def clients(numbers: list[int]) -> dict[str, Fraction]:
    return {
        zone: Fraction(number, sum(numbers)) for zone, number in zip(ZONES, numbers, strict=False)
    }


def places(numbers: list[int]) -> tuple[ClientLocation, ...]:
    return tuple(
        ClientLocation(Locality(f"node-{zone}", zone), share)
        for zone, share in clients(numbers).items()
    )


def kinds(numbers: list[int], *, hinted: bool, **more: Any) -> Counter[EndpointKind]:
    return Counter(
        {
            EndpointKind(zone=zone, zone_hints=(zone,) if hinted else (), **more): number
            for zone, number in zip(ZONES, numbers, strict=False)
            if number
        }
    )


@given(weights, counts)
def test_without_hints_every_endpoint_gets_the_same(
    numbers: list[int], endpoints: list[int]
) -> None:
    total = sum(endpoints)
    found = shares(kinds(endpoints, hinted=False), places(numbers))
    held = dict(zip(ZONES, endpoints, strict=False))
    assert all(found.of_zone(zone) == Fraction(number, total) for zone, number in held.items())
    assert found.leaving == sum(
        c * (1 - Fraction(held.get(zone, 0), total)) for zone, c in clients(numbers).items()
    )
    assert found.greatest[0] == 1


@given(weights, counts)
def test_same_zone_and_zones_without_endpoints_to_all(
    numbers: list[int], endpoints: list[int]
) -> None:
    held = Counter(dict(zip(ZONES, endpoints, strict=False)))
    stray = sum((c for zone, c in clients(numbers).items() if not held[zone]), Fraction(0))
    found = shares(kinds(endpoints, hinted=True), places(numbers))
    for zone, number in held.items():
        own = clients(numbers).get(zone, Fraction(0)) if number else Fraction(0)
        assert found.of_zone(zone) == own + stray * Fraction(number, held.total())
    assert found.leaving == stray
    assert found.dropped == 0


@given(weights, counts)
def test_one_unhinted_endpoint_is_as_no_hints(numbers: list[int], endpoints: list[int]) -> None:
    spoiled = kinds(endpoints, hinted=True) + Counter({EndpointKind(zone=ZONES[0]): 1})
    plain = kinds([endpoints[0] + 1, *endpoints[1:]], hinted=False)
    first, second = shares(spoiled, places(numbers)), shares(plain, places(numbers))
    assert first.flows == second.flows
    assert first.greatest[0] == second.greatest[0] == 1


@given(
    weights,
    st.dictionaries(
        st.tuples(st.sampled_from(ZONES), st.sampled_from(ZONES)), st.integers(1, 4), min_size=1
    ),
)
def test_auto_goes_where_the_hints_are(
    numbers: list[int], hinted: dict[tuple[str, str], int]
) -> None:
    made = Counter(
        {
            EndpointKind(zone=zone, zone_hints=(hint,)): number
            for (zone, hint), number in hinted.items()
        }
    )
    for_zone = Counter[str]()
    for (_, hint), number in hinted.items():
        for_zone[hint] += number
    c = clients(numbers)
    found = shares(made, places(numbers))
    stray = sum((share for zone, share in c.items() if not for_zone[zone]), Fraction(0))
    for (zone, hint), number in hinted.items():
        share = found.each.get(EndpointKind(zone=zone, zone_hints=(hint,)), Fraction(0))
        assert share == c.get(hint, Fraction(0)) / for_zone[hint] + stray / for_zone.total(), number
    if not stray:
        away = {
            zone: sum(n for (at, hint), n in hinted.items() if hint == zone != at) for zone in c
        }
        assert found.leaving == sum(
            c[zone] * Fraction(away[zone], for_zone[zone]) for zone in c if c[zone]
        )


@given(weights, counts)
def test_local_inside_drops_what_has_no_endpoint_of_its_own(
    numbers: list[int], endpoints: list[int]
) -> None:
    made = Counter(
        {
            EndpointKind(zone=zone, node=f"node-{zone}"): n
            for zone, n in zip(ZONES, endpoints, strict=False)
            if n
        }
    )
    found = shares(made, places(numbers), local=True)
    held = dict(zip(ZONES, endpoints, strict=False))
    assert found.dropped == sum(c for zone, c in clients(numbers).items() if not held.get(zone))
    assert found.leaving == 0


def test_local_outside_halves_a_nodes_share_among_its_endpoints() -> None:
    made = Counter(
        {EndpointKind(zone="zone-a", node="n1"): 3, EndpointKind(zone="zone-b", node="n2"): 1}
    )
    entries = [
        ClientLocation(Locality(node, zone), Fraction(1, 3))
        for node, zone in (("n1", "zone-a"), ("n2", "zone-b"), ("n3", ""))
    ]
    found = shares(made, entries, local=True, way="outside")
    assert set(found.each.values()) == {Fraction(1, 6), Fraction(1, 2)}
    assert found.dropped == 0


def test_same_node_then_zone_then_all() -> None:
    made = Counter(
        {
            EndpointKind(zone=zone, node=node, zone_hints=(zone,), node_hints=(node,)): 1
            for node, zone in (("n1", "zone-a"), ("n2", "zone-b"))
        }
    )
    entries = [
        ClientLocation(Locality(node, zone), Fraction(1, 4))
        for node, zone in (("n1", "zone-a"), ("n2", "zone-b"), ("n3", "zone-a"), ("n4", "zone-c"))
    ]
    found = shares(made, entries)
    assert list(found.each.values()) == [
        Fraction(1, 4) * 2 + Fraction(1, 8),
        Fraction(1, 4) + Fraction(1, 8),
    ]
    assert found.leaving == Fraction(1, 4)


@given(
    st.dictionaries(
        st.builds(
            EndpointKind,
            zone=st.sampled_from(ZONES[:2]),
            node=st.just(""),
            ready=st.sampled_from([True, True, False]),
            terminating=st.booleans(),
            subset=st.sampled_from(["", "", ZONES[0]]),
            zone_hints=st.sampled_from([(), (ZONES[0],), (ZONES[1],)]),
            node_hints=st.sampled_from([("n0",), ("n1",), ("n0", "n3"), ()]),
        ),
        st.integers(1, 3),
        min_size=1,
        max_size=4,
    )
)
def test_each_node_chooses_as_its_proxy_does(made: dict[EndpointKind, int]) -> None:
    entries = [
        ClientLocation(Locality(f"n{number}", ZONES[number % 2]), Fraction(1, 4))
        for number in range(4)
    ]
    each, dropped = Counter[EndpointKind](), 0
    for place in entries:
        used = choose(
            [kind for kind in made if kind.subset in ("", place.at.zone)], place.at
        ).endpoints
        dropped += not used
        for kind in used:
            each[kind] += place.share / sum(made[kind] for kind in used)
    found = shares(made, entries)
    assert (found.each, found.dropped) == (each, Fraction(dropped, 4))


def test_a_client_without_zone_is_counted_as_leaving_it() -> None:
    found = shares(kinds([1, 1], hinted=True), [ClientLocation(Locality("n", ""), Fraction(1))])
    assert found.leaving == 1
    assert found.greatest[0] == 1


@given(
    st.lists(st.integers(0, 4), min_size=3, max_size=3).filter(any),
    st.lists(st.integers(1, 4), min_size=3, max_size=3),
)
def test_the_cure_is_the_smallest(numbers: list[int], endpoints: list[int]) -> None:
    made = kinds(endpoints, hinted=True)
    added = cure(made, places(numbers))
    assert added is not None

    def is_well(extra: tuple[int, ...]) -> bool:
        grown = [number + more for number, more in zip(endpoints, extra, strict=True)]
        return shares(kinds(grown, hinted=True), places(numbers)).greatest[0] <= OVERLOAD

    assert is_well(tuple(added[zone] for zone in ZONES[:3]))
    most = min(added.total(), 7)
    smaller = (extra for extra in product(range(most), repeat=3) if sum(extra) < most)
    assert not any(is_well(extra) for extra in smaller)


@given(
    st.lists(st.integers(0, 4), min_size=3, max_size=3).filter(any),
    st.lists(st.integers(1, 3), min_size=3, max_size=3),
    st.integers(2, 12),
    st.booleans(),
)
def test_the_cure_of_too_little_capacity_is_the_smallest(
    numbers: list[int], endpoints: list[int], parts: int, hinted: bool
) -> None:
    """An endpoint can take one of so many parts of all."""
    allowed = AllowedLoad(Fraction(1, parts))
    added = cure(kinds(endpoints, hinted=hinted), places(numbers), allowed=allowed)
    assert added is not None
    total = Fraction(sum(numbers))
    if hinted:
        needed = [ceil(Fraction(number) / total * parts) for number in numbers]
        assert [added[zone] for zone in ZONES[:3]] == [
            max(0, need - have) for need, have in zip(needed, endpoints, strict=True)
        ]
    else:
        assert added.total() == max(0, parts - sum(endpoints))


def test_places_of_measured_traffic() -> None:
    nodes = [Locality("n1", "zone-a"), Locality("n2", "zone-a")]
    found = at_zones({"zone-a": Fraction(6), "zone-b": Fraction(2)}, nodes)
    assert [(place.at, place.share) for place in found] == [
        (nodes[0], Fraction(3, 8)),
        (nodes[1], Fraction(3, 8)),
        (Locality("", "zone-b"), Fraction(1, 4)),
    ]
    assert without(found, "zone-a") == (ClientLocation(Locality("", "zone-b"), Fraction(1)),)


@pytest.mark.parametrize(
    ("endpoints", "connections", "bound"), [(1, 5, 1.0), (10, 10_000, 1.068), (100, 100, None)]
)
def test_what_chance_does(endpoints: int, connections: int, bound: float | None) -> None:
    assert chance(endpoints, connections) == (
        None if bound is None else pytest.approx(bound, abs=0.001)
    )
