"""What the shadow controller tells monitoring."""

from __future__ import annotations

from typing import Final

from sliceplane.kit.samples import Family, Sample
from sliceplane.shadow.ledger import Ledger

#: so many services have series of their own; the rest share those with an empty name
SERVICES_WITH_SERIES_MAX: Final = 100


def shadow_families(ledger: Ledger, services: int) -> tuple[Family, ...]:
    confirmations = tuple(Sample((what,), count) for what, count in sorted(ledger.confirmations.items()))
    return (
        _one("sliceplane_shadow_comparisons_total", "counter", "Comparisons of a Service.", ledger.compared),
        Family(
            "sliceplane_shadow_confirmations_total",
            "counter",
            "Reads of the server that were to confirm differences, by what came of them.",
            ("result",),
            confirmations,
        ),
        _differences(ledger),
        _one(
            "sliceplane_shadow_differences_beyond_limit",
            "gauge",
            "Differences of Services with so many that these are only counted.",
            ledger.beyond,
        ),
        _one("sliceplane_shadow_pending_differences", "gauge", "Differences within the grace period.", ledger.pending),
        _one("sliceplane_shadow_services", "gauge", "Services that are compared.", services),
    )


def _differences(ledger: Ledger) -> Family:
    series: dict[tuple[str, str, str], int] = {}
    for number, (key, kinds) in enumerate(ledger.kinds().items()):
        namespace, _, name = key.partition("/") if number < SERVICES_WITH_SERIES_MAX else ("", "", "")
        for kind, count in kinds.items():
            labels = (namespace, name, kind.value)
            series[labels] = series.get(labels, 0) + count
    return Family(
        "sliceplane_shadow_differences",
        "gauge",
        "Differences that stand; of Services beyond the first hundred without their names.",
        ("namespace", "service", "kind"),
        tuple(Sample(labels, count) for labels, count in sorted(series.items())),
    )


def _one(name: str, kind: str, help_text: str, value: float) -> Family:
    return Family(name, "counter" if kind == "counter" else "gauge", help_text, (), (Sample((), value),))
