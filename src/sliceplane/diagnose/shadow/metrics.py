"""Metrics of the shadow controller."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from sliceplane.diagnose.shadow.ledger import DifferenceLedger
from sliceplane.kit.metrics import Labels, Metrics

#: services with series of their own; the rest share the series with an empty name
SERVICES_WITH_SERIES_MAX: Final = 100


def shadow_metrics(ledger: DifferenceLedger, services: Callable[[], int]) -> Metrics:
    """*services* are those that are compared."""
    metrics = Metrics()
    add = metrics.computed
    add(
        "counter",
        "sliceplane_shadow_comparisons_total",
        "Comparisons of a Service.",
        lambda: ledger.compared,
    )
    add(
        "counter",
        "sliceplane_shadow_confirmations_total",
        "Reads of the server that were to confirm differences, by what came of them.",
        lambda: [((result,), count) for result, count in sorted(ledger.confirmations.items())],
        "result",
    )
    add(
        "gauge",
        "sliceplane_shadow_differences",
        "Differences that stand; of Services beyond the first hundred without their names.",
        lambda: _differences(ledger),
        *("namespace", "service", "kind"),
    )
    add(
        "gauge",
        "sliceplane_shadow_differences_beyond_limit",
        "Differences of Services with so many that these are only counted.",
        lambda: ledger.beyond,
    )
    add(
        "gauge",
        "sliceplane_shadow_pending_differences",
        "Differences within the grace period.",
        lambda: ledger.pending,
    )
    add("gauge", "sliceplane_shadow_services", "Services that are compared.", services)
    return metrics


def _differences(ledger: DifferenceLedger) -> list[tuple[Labels, float]]:
    series: dict[Labels, float] = {}
    for number, (key, kinds) in enumerate(ledger.kinds().items()):
        namespace, _, name = (
            key.partition("/") if number < SERVICES_WITH_SERIES_MAX else ("", "", "")
        )
        for kind, count in kinds.items():
            labels = (namespace, name, kind.value)
            series[labels] = series.get(labels, 0) + count
    return sorted(series.items())
