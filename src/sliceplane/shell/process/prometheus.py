"""Metrics as Prometheus reads them: ``kit.metrics`` in the terms of ``prometheus_client``, which only renders.

It is loaded by the first scrape.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from sliceplane.kit.metrics import Distribution, Family

#: the library wants every counter's name to end in _total; some of upstream's do not, and pass through as untyped
_BARE_COUNTER = re.compile(rb"(# TYPE \w+) untyped")


def expose(families: Iterable[Family], accept: str = "") -> tuple[bytes, bytes]:
    """*families*, and figures of the process, in the form that *accept* asks for, text or OpenMetrics; and its content
    type."""
    from prometheus_client import CollectorRegistry
    from prometheus_client.exposition import choose_encoder
    from prometheus_client.process_collector import ProcessCollector

    registry = CollectorRegistry()
    registry.register(_Collected([_metric_of(family) for family in families]))
    ProcessCollector(registry=registry)
    generate, content_type = choose_encoder(accept)
    return _BARE_COUNTER.sub(rb"\1 counter", generate(registry)), content_type.encode()


class _Collected:
    """The library's protocol of a collector."""

    def __init__(self, metrics: list[Any]) -> None:
        self._metrics = metrics

    def collect(self) -> list[Any]:
        return self._metrics


def _metric_of(family: Family) -> Any:
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
        histogram.add_metric(sample.labels, _rows_of(sample.value), sample.value.total)
    return histogram


def _rows_of(distribution: Distribution) -> list[tuple[str, int]]:
    """Cumulative, by upper bound."""
    rows, running = [], 0
    for bound, count in zip((*map(repr, distribution.bounds), "+Inf"), distribution.counts, strict=True):
        running += count
        rows.append((bound, running))
    return rows
