"""Queries of heuristics, such that a faulty one costs its own Services their hints and nothing
else.

A query returns the answer, checked and copied into plain values, or a sentence: the text of a
``HeuristicError``, the type of any other exception, or the fault of an invalid answer. Nothing
protects against a heuristic that does not return.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from sliceplane.slices.heuristics.types import (
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

#: maximum length of the sentence in characters; an Event and a condition have space for it
PROBLEM_MAX: Final = 512

#: number of endpoints by hinted zones, by the zone of the endpoints; no zeros
Portions = dict[str, dict[tuple[str, ...], int]]
#: returns the heuristic of a name (``domain/Name``), or a sentence with the reason why there is
#: none
Find = Callable[[str], Heuristic | str]


def query_local(
    heuristic: LocalHeuristic,
    service: ServiceView,
    endpoint: EndpointLocation,
    zones: tuple[ZoneView, ...],
) -> Hints | str:
    try:
        answer: object = heuristic.hints(service, endpoint, zones)
        if not isinstance(answer, Hints):
            return _invalid(f"the answer is a {type(answer).__name__}, not Hints")
        problem = problem_of_hints(answer)
        return _invalid(problem) if problem else Hints(tuple(answer.zones), tuple(answer.nodes))
    except Exception as error:
        return _failure_text(error)


def query_zonal(
    heuristic: ZonalHeuristic,
    service: ServiceView,
    endpoints: Mapping[str, int],
    zones: tuple[ZoneView, ...],
) -> Portions | str:
    """Queries a zonal heuristic. The order within ``Portions`` is the heuristic's."""
    try:
        answer = heuristic.allocate(service, dict(endpoints), zones)
        problem = problem_of_allocation(answer, endpoints)
        if problem:
            return _invalid(problem)
        portions: Portions = {}
        for zone in endpoints:
            by_zones = portions[zone] = {}
            for portion in answer[zone]:
                if portion.count:
                    zone_names = tuple(portion.zones)
                    by_zones[zone_names] = by_zones.get(zone_names, 0) + portion.count
        return portions
    except Exception as error:
        return _failure_text(error)


def problem_of_heuristic(candidate: object, name: str) -> str:
    """Returns the reason why *candidate* cannot be the heuristic *name*; "" if it can."""
    if getattr(candidate, "name", None) != name:
        return f"its name is {getattr(candidate, 'name', None)!r}"
    method = {"local": "hints", "zonal": "allocate"}.get(str(getattr(candidate, "kind", None)))
    if method is None:
        return f"its kind is {getattr(candidate, 'kind', None)!r}, not 'local' or 'zonal'"
    return "" if callable(getattr(candidate, method, None)) else f"it has no method {method}"


def _invalid(problem: str) -> str:
    return f"its answer cannot be used: {problem}"[:PROBLEM_MAX]


def _failure_text(error: Exception) -> str:
    text = " ".join(str(error).split())
    if not isinstance(error, HeuristicError):
        text = (
            f"it failed with {type(error).__name__}: {text}"
            if text
            else f"it failed with {type(error).__name__}"
        )
    return (text or "it cannot, and does not say why")[:PROBLEM_MAX]
