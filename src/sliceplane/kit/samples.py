"""Figures for monitoring, counted where things happen and read when somebody asks.

Cores count in plain integers and ``Histogram``; ``families`` of a core are frozen values made at the moment of a
scrape.  So counting costs an addition, and no core knows a metrics library.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass
from typing import Final, Literal

Labels = tuple[str, ...]


def exponential_buckets(start: float, factor: float, count: int) -> tuple[float, ...]:
    """Upper bounds ``start``, ``start * factor``, ..., *count* of them."""
    return tuple(float(start * factor**power) for power in range(count))


#: what Prometheus clients take where nobody says otherwise
DEFAULT_BUCKETS: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)


@dataclass(frozen=True, slots=True)
class Distribution:
    """``counts[i]`` observations were at most ``bounds[i]`` and above the bound before; the last count has no bound."""

    bounds: tuple[float, ...]
    counts: tuple[int, ...]
    total: float


@dataclass(frozen=True, slots=True)
class Sample:
    labels: Labels
    value: float | Distribution


@dataclass(frozen=True, slots=True)
class Family:
    """One metric.  ``name`` is the whole name, as monitoring knows it; ``labels`` name what samples have values of."""

    name: str
    kind: Literal["counter", "gauge", "histogram"]
    help: str
    labels: Labels = ()
    samples: tuple[Sample, ...] = ()


class Histogram:
    """Observations by size.  Owned by whoever observes."""

    __slots__ = ("_bounds", "_counts", "_total")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self._total = 0.0

    def observe(self, value: float) -> None:
        self._counts[bisect_left(self._bounds, value)] += 1
        self._total += value

    def read(self) -> Distribution:
        return Distribution(self._bounds, tuple(self._counts), self._total)
