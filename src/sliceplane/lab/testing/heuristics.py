"""The contract of every heuristic, as one call for its author's tests.

    def test_mine() -> None:
        check_heuristic(MyHeuristic())

The queries are drawn from a seed: Services with and without *annotations*, zones of equal and of
very unequal shares, no zones, endpoints in zones without Nodes, one endpoint and a hundred
thousand.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from sliceplane.kit.rng import Rng
from sliceplane.slices.heuristics.types import (
    Allocation,
    EndpointLocation,
    Heuristic,
    HeuristicError,
    Hints,
    LocalHeuristic,
    ServiceView,
    ZonalHeuristic,
    ZoneView,
    problem_of_allocation,
    problem_of_hints,
)

QUESTIONS: Final = 500
_KEYS: Final = (
    "topology.kubernetes.io/zone",
    "kubernetes.io/hostname",
    "topology.kubernetes.io/region",
    "rack",
)
_COUNTS: Final = (1, 2, 3, 5, 10, 97, 1_000, 100_000)


def check_heuristic(
    heuristic: Heuristic,
    *,
    seed: int = 1,
    questions: int = QUESTIONS,
    annotations: Sequence[Mapping[str, str]] = ({},),
) -> None:
    """Raises ``AssertionError`` naming the question and the answer.

    - Its name is ``domain/Name``.
    - It answers every question, or raises ``HeuristicError`` with a text, and does not change what
      it was given.
    - The same question gets the same answer.
    - Zonal: an allocation is for each zone that has endpoints, and its portions add up.
    - Hints have no empty and no repeated name, and at most eight of a sort.
    """
    domain, _, name = heuristic.name.partition("/")
    well_named = bool(name) and "." in domain
    assert well_named, f"a heuristic's name is domain/Name, not {heuristic.name!r}"
    rng = Rng(seed)
    for number in range(questions):
        service = ServiceView(
            namespace="default",
            name="web",
            annotations=dict(annotations[number % len(annotations)]),
        )
        zones = random_zones(rng)
        if heuristic.kind == "local":
            _check_local(heuristic, service, random_endpoint(rng, zones), zones)
        else:
            _check_zonal(heuristic, service, random_counts(rng, zones), zones)


def _check_local(
    heuristic: LocalHeuristic,
    service: ServiceView,
    endpoint: EndpointLocation,
    zones: tuple[ZoneView, ...],
) -> None:
    answers: list[Hints | str] = []
    for _ in range(2):
        try:
            answers.append(heuristic.hints(service, endpoint, zones))
        except HeuristicError as error:
            answers.append(_text_of(error))
    first, second = answers
    assert first == second, f"{endpoint} among {zones} got {first}, then {second}"
    if isinstance(first, Hints):
        problem = problem_of_hints(first)
        assert not problem, f"{endpoint} among {zones}: {problem}"


def _check_zonal(
    heuristic: ZonalHeuristic,
    service: ServiceView,
    counts: dict[str, int],
    zones: tuple[ZoneView, ...],
) -> None:
    answers: list[Allocation | str] = []
    for _ in range(2):
        copy = dict(counts)
        try:
            answers.append(heuristic.allocate(service, copy, zones))
        except HeuristicError as error:
            answers.append(_text_of(error))
        assert copy == counts, f"the question was changed from {counts} to {copy}"
    first, second = answers
    assert first == second, f"{counts} among {zones} got {first}, then {second}"
    if not isinstance(first, str):
        problem = problem_of_allocation(first, counts)
        assert not problem, f"{counts} among {zones}: {problem}"


def _text_of(error: HeuristicError) -> str:
    assert str(error), "an error without a text says nothing of what is wrong"
    return str(error)


def random_zones(rng: Rng) -> tuple[ZoneView, ...]:
    """Returns no zone, one, or up to twelve, in one region or in three."""
    count = (0, 1, 2, 3, 3, 3, 5, 12)[rng.below(8)]
    weights = [(1, 1, 1, 2, 10, 1000, 0)[rng.below(7)] for _ in range(count)]
    whole = sum(weights) or 1
    return tuple(
        ZoneView(name=f"zone-{number:02d}", region=f"region-{number % 3}", share=weight / whole)
        for number, weight in enumerate(weights)
    )


def random_counts(rng: Rng, zones: tuple[ZoneView, ...]) -> dict[str, int]:
    """Returns endpoints by zone: at least one zone has some, sometimes a zone without Nodes."""
    names = [zone.name for zone in zones if rng.below(5)]
    if not names or not rng.below(6):
        names.append("zone-zz")
    return {name: _COUNTS[rng.below(len(_COUNTS))] for name in names}


def random_endpoint(rng: Rng, zones: tuple[ZoneView, ...]) -> EndpointLocation:
    zone = zones[rng.below(len(zones))] if zones and rng.below(8) else ZoneView(name="")
    keys = tuple(key for key in _KEYS if not rng.below(3))
    return EndpointLocation(
        zone=zone.name,
        region=zone.region,
        node=f"node-{rng.below(50)}" if rng.below(10) else "",
        topology_keys=keys,
    )
