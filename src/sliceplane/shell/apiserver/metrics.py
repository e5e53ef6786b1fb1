"""What ``/metrics`` shows, counted in plain dictionaries so that nothing has to be imported to count.

Names are upstream's where upstream has the thing.  ``prometheus_client`` is loaded by the first scrape; it only
renders.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Callable, Iterator
from typing import Any

from sliceplane.kit.samples import Distribution, Family

_SECONDS_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)

#: the library wants every counter's name to end in _total; some of upstream's do not, and pass through as untyped
_BARE_COUNTER = re.compile(rb"(# TYPE \w+) untyped")

RequestKey = tuple[str, str, str]  # verb, resource, subresource


class Metrics:
    """Counters of one server.  Owned by the server; ``gauge`` callbacks are read at scrape time."""

    def __init__(self) -> None:
        self._requests: dict[tuple[str, str, str, int], int] = {}
        self._latencies: dict[RequestKey, tuple[list[int], list[float]]] = {}
        self._counters: dict[str, tuple[str, int]] = {}
        self._gauges: dict[str, tuple[str, Callable[[], float]]] = {}
        self._sources: list[Callable[[], tuple[Family, ...]]] = []

    def observe(self, key: RequestKey, code: int, seconds: float) -> None:
        """Count one answered request; long-running ones (watches) call it when they end."""
        counted = (*key, code)
        self._requests[counted] = self._requests.get(counted, 0) + 1
        if key[0] == "watch":
            return
        found = self._latencies.get(key)
        if found is None:
            found = self._latencies[key] = ([0] * (len(_SECONDS_BUCKETS) + 1), [0.0])
        buckets, total = found
        buckets[bisect_left(_SECONDS_BUCKETS, seconds)] += 1
        total[0] += seconds

    def count(self, name: str, help_text: str, amount: int = 1) -> None:
        self._counters[name] = (help_text, self._counters.get(name, ("", 0))[1] + amount)

    def gauge(self, name: str, help_text: str, read: Callable[[], float]) -> None:
        self._gauges[name] = (help_text, read)

    def source(self, read: Callable[[], tuple[Family, ...]]) -> None:
        """*read* gives figures that somebody else counts; their names must be nobody else's."""
        self._sources.append(read)

    def render(self) -> bytes:
        """The text exposition format."""
        from prometheus_client import CollectorRegistry, generate_latest

        registry = CollectorRegistry()
        registry.register(self)
        return _BARE_COUNTER.sub(rb"\1 counter", generate_latest(registry))

    def collect(self) -> Iterator[Any]:
        """``prometheus_client``'s collector protocol; sorted, so that equal states render equally."""
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily

        requests = CounterMetricFamily(
            "apiserver_request_total",
            "Requests by verb, resource, subresource and HTTP code.",
            labels=("verb", "resource", "subresource", "code"),
        )
        for (verb, resource, subresource, code), number in sorted(self._requests.items()):
            requests.add_metric((verb, resource, subresource, str(code)), number)
        yield requests
        latencies = HistogramMetricFamily(
            "apiserver_request_duration_seconds",
            "Time from the request's head to its answer; watches are left out.",
            labels=("verb", "resource", "subresource"),
        )
        for key, (buckets, total) in sorted(self._latencies.items()):
            rows, running = [], 0
            for bound, number in zip((*(str(b) for b in _SECONDS_BUCKETS), "+Inf"), buckets, strict=True):
                running += number
                rows.append((bound, running))
            latencies.add_metric(key, rows, total[0])
        yield latencies
        for name, (help_text, number) in sorted(self._counters.items()):
            yield CounterMetricFamily(name, help_text, value=number)
        for name, (help_text, read) in sorted(self._gauges.items()):
            yield GaugeMetricFamily(name, help_text, value=read())
        for source in self._sources:
            for family in source():
                yield _rendered(family)


def _rendered(family: Family) -> Any:
    """A family in the library's terms."""
    from prometheus_client.core import HistogramMetricFamily, Metric

    if family.kind != "histogram":
        whole = family.kind != "counter" or family.name.endswith("_total")
        metric = Metric(
            family.name.removesuffix("_total") if whole else family.name,
            family.help,
            family.kind if whole else "untyped",
        )
        for sample in family.samples:
            assert not isinstance(sample.value, Distribution), f"{family.name} is a {family.kind}"
            metric.add_sample(family.name, dict(zip(family.labels, sample.labels, strict=True)), sample.value)
        return metric
    histogram = HistogramMetricFamily(family.name, family.help, labels=family.labels)
    for sample in family.samples:
        assert isinstance(sample.value, Distribution), f"{family.name} is a histogram"
        rows, running = [], 0
        for bound, count in zip((*map(repr, sample.value.bounds), "+Inf"), sample.value.counts, strict=True):
            running += count
            rows.append((bound, running))
        histogram.add_metric(sample.labels, rows, sample.value.total)
    return histogram
