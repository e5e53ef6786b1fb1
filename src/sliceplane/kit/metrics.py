"""Counters, gauges and histograms: declared where things happen, read when monitoring asks.

A part declares what it counts in one place, on a ``Metrics`` of its own::

    self.metrics = Metrics() self._faults = self.metrics.counter("sliceplane_hub_faults_total",
    "Events that could not be shown.")

and counts by an addition to a plain attribute (``self._faults.value += 1``). Figures that are state
anyway, such as a length or an age, are ``computed`` by a function at a scrape. A page exposes a
``Metrics`` that includes those of all parts, so a new metric is one declaration and the lines that
count. No core depends on a metrics library.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable
from typing import Final, Generic, Literal, NamedTuple, TypeVar

import msgspec

Kind = Literal["counter", "gauge", "histogram"]
#: the values of labels; the family has their names
Labels = tuple[str, ...]


def exponential_buckets(start: float, factor: float, count: int) -> tuple[float, ...]:
    """Upper bounds ``start``, ``start * factor``, ..., *count* of them."""
    return tuple(float(start * factor**power) for power in range(count))


#: upstream's, of apiserver_request_duration_seconds and etcd_request_duration_seconds
CALL_BUCKETS: Final = (
    *(0.005, 0.025, 0.05, 0.1, 0.2, 0.4, 0.6, 0.8, 1.0, 1.25, 1.5),
    *(2.0, 3.0, 4.0, 5.0, 6.0, 8.0, 10.0, 15.0, 20.0, 30.0, 45.0, 60.0),
)
#: the default buckets of Prometheus clients
DEFAULT_BUCKETS: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)


class Distribution(msgspec.Struct, frozen=True):
    """``counts[i]`` observations were at most ``bounds[i]`` and above the bound before; the last
    count has no bound.
    """

    bounds: tuple[float, ...]
    counts: tuple[int, ...]
    total: float


class Sample(NamedTuple):
    labels: Labels
    value: float | Distribution


class Family(msgspec.Struct, frozen=True):
    """One metric at one moment. ``name`` is the full name in monitoring."""

    name: str
    kind: Kind
    help: str
    labels: Labels = ()
    samples: tuple[Sample, ...] = ()


#: returns families at a scrape
Source = Callable[[], Iterable[Family]]


class Count:
    """One series of a counter, or of a gauge: add to ``value``, or set it."""

    __slots__ = ("value",)

    def __init__(self) -> None:
        self.value: float = 0

    def read(self) -> float:
        return self.value


class Histogram:
    """Observations by size."""

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


_Series = TypeVar("_Series", Count, Histogram)


class Labelled(Generic[_Series]):
    """The series of one metric by the values of its labels. The first ``of`` creates a series."""

    __slots__ = ("_make", "_series")

    def __init__(self, make: Callable[[], _Series]) -> None:
        self._make: Callable[[], _Series] = make
        self._series: dict[Labels, _Series] = {}

    def of(self, *labels: str) -> _Series:
        series = self._series.get(labels)
        if series is None:
            series = self._series[labels] = self._make()
        return series

    def read(self) -> Iterable[tuple[Labels, float | Distribution]]:
        """Returns the values sorted by labels."""
        return [
            (labels, series.read())
            for labels, series in sorted(self._series.items(), key=lambda item: item[0])
        ]


#: the one value of a metric without labels, or labels and value of each series
Read = Callable[[], "float | Distribution | Iterable[tuple[Labels, float | Distribution]]"]


class Metrics:
    """Declared metrics.  Owned by the part that counts; ``families`` may be called at any time in
    between.
    """

    def __init__(self) -> None:
        self._declared: list[tuple[Family, Read]] = []
        self._included: list[Source] = []

    def computed(self, kind: Kind, name: str, help_text: str, read: Read, *labels: str) -> None:
        """Declares a metric whose values *read* returns at a scrape."""
        self._declared.append((Family(name, kind, help_text, labels), read))

    def counter(self, name: str, help_text: str) -> Count:
        return self._unlabelled("counter", name, help_text, Count())

    def gauge(self, name: str, help_text: str) -> Count:
        return self._unlabelled("gauge", name, help_text, Count())

    def histogram(self, name: str, help_text: str, bounds: tuple[float, ...]) -> Histogram:
        return self._unlabelled("histogram", name, help_text, Histogram(bounds))

    def counters(self, name: str, help_text: str, *labels: str) -> Labelled[Count]:
        return self._labelled("counter", name, help_text, labels, Count)

    def gauges(self, name: str, help_text: str, *labels: str) -> Labelled[Count]:
        return self._labelled("gauge", name, help_text, labels, Count)

    def histograms(
        self, name: str, help_text: str, bounds: tuple[float, ...], *labels: str
    ) -> Labelled[Histogram]:
        return self._labelled("histogram", name, help_text, labels, lambda: Histogram(bounds))

    def _unlabelled(self, kind: Kind, name: str, help_text: str, series: _Series) -> _Series:
        self.computed(kind, name, help_text, series.read)
        return series

    def _labelled(
        self, kind: Kind, name: str, help_text: str, labels: Labels, make: Callable[[], _Series]
    ) -> Labelled[_Series]:
        series = Labelled(make)
        self.computed(kind, name, help_text, series.read, *labels)
        return series

    def include(self, source: Source) -> None:
        """Includes the metrics of *source*: ``families`` of another part."""
        self._included.append(source)

    def families(self) -> tuple[Family, ...]:
        """Returns all declared and included families: each name once, sorted."""
        own = (
            Family(family.name, family.kind, family.help, family.labels, _samples(read()))
            for family, read in self._declared
        )
        return merged(own, *(source() for source in self._included))


def _samples(
    values: float | Distribution | Iterable[tuple[Labels, float | Distribution]],
) -> tuple[Sample, ...]:
    if isinstance(values, int | float | Distribution):
        return (Sample((), values),)
    return tuple(Sample(labels, value) for labels, value in values)


def merged(*sources: Iterable[Family]) -> tuple[Family, ...]:
    """Returns the families of all *sources*, sorted by name; series of the same name are merged."""
    families: dict[str, Family] = {}
    for source in sources:
        for family in source:
            earlier = families.get(family.name)
            if earlier is not None:
                samples = (*earlier.samples, *family.samples)
                family = Family(family.name, family.kind, family.help, family.labels, samples)
            families[family.name] = family
    return tuple(families[name] for name in sorted(families))
