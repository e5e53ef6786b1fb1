"""PodDisruptionBudget: how many of some Pods must stay, or may go, when Pods are removed on
purpose.

How many may go now is in its status: ``emulation.disruption`` works it out,
``server.registry.verbs.eviction`` asks it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from sliceplane.api.errors import FieldErrors, invalid_value
from sliceplane.api.meta import Document
from sliceplane.api.scheme import PodDisruptionBudgets
from sliceplane.server.documents.table.columns import AGE, NAME, Column, Printer, member, number_at
from sliceplane.server.registry.kinds import kind
from sliceplane.server.registry.kinds.workloads.workload import (
    check_at_most_100_percent,
    check_int_or_percent,
    check_status_counts,
    render_selector,
)
from sliceplane.server.registry.metadata import check_label_selector, in_go
from sliceplane.server.registry.validation.rules import Field, Rules

_COUNTS: Final = ("disruptionsAllowed", "currentHealthy", "desiredHealthy", "expectedPods")
_BOUNDS: Final = ("minAvailable", "maxUnavailable")


def _one_bound(path: str, spec: Document) -> FieldErrors:
    if any(name not in spec for name in _BOUNDS):
        return []
    rendered_spec = {**spec, "selector": render_selector(spec.get("selector"))}
    rendered = in_go(
        rendered_spec, "minAvailable", "selector", "maxUnavailable", "unhealthyPodEvictionPolicy"
    )
    return [invalid_value(path, rendered, "minAvailable and maxUnavailable cannot be both set")]


def _bound(path: str, value: int | str) -> FieldErrors:
    return check_int_or_percent(path, value) + check_at_most_100_percent(path, value)


def _format_bound(name: str) -> Callable[[Document], str]:
    def render(budget: Document) -> str:
        bound = member(budget, "spec", name)
        return "N/A" if bound is None else str(bound)

    return render


POD_DISRUPTION_BUDGET: Final = kind.Kind(
    resource=PodDisruptionBudgets,
    defaults=lambda document: document.setdefault("spec", {}),
    rules=Rules(
        Field(
            "spec",
            rows=Rules(
                _one_bound,
                *(Field(name, rows=_bound) for name in _BOUNDS),
                Field("selector", rows=check_label_selector),
                Field("unhealthyPodEvictionPolicy", choices=("AlwaysAllow", "IfHealthyBudget")),
            ),
        )
    ),
    status=kind.Status(
        first=lambda _document: dict.fromkeys(_COUNTS, 0),
        validate=lambda new, _old: check_status_counts(new, _COUNTS),
    ),
    quota=kind.Quota(),
    granted=kind.edited("status"),
    columns=Printer(
        (
            NAME,
            Column("Min Available", "How many Pods must stay.", _format_bound("minAvailable")),
            Column(
                "Max Unavailable", "How many Pods may be gone.", _format_bound("maxUnavailable")
            ),
            Column(
                "Allowed Disruptions",
                "How many Pods may go now.",
                number_at("status.disruptionsAllowed"),
                type="integer",
            ),
            AGE,
        )
    ),
)
