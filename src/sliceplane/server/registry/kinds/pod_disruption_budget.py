"""PodDisruptionBudget: how many of some Pods must stay, or may go, when Pods are removed on purpose.

How many may go now is in its status: ``emulation.disruption`` works it out, ``server.registry.eviction`` asks it.
"""

from __future__ import annotations

from typing import Final

from sliceplane.api.errors import FieldError, invalid_value, not_supported
from sliceplane.api.meta import Document
from sliceplane.api.scheme import PodDisruptionBudgets
from sliceplane.server.documents.table.columns import AGE, NAME, Cell, Column, Printer, age, member, name_of, number
from sliceplane.server.registry.kinds import kind
from sliceplane.server.registry.kinds.workload import (
    check_at_most_100_percent,
    check_int_or_percent,
    check_status_counts,
    shown_selector,
)
from sliceplane.server.registry.metadata import check_label_selector, in_go

_COUNTS: Final = ("disruptionsAllowed", "currentHealthy", "desiredHealthy", "expectedPods")
_POLICIES: Final = ("AlwaysAllow", "IfHealthyBudget")


def _default(document: Document) -> None:
    document.setdefault("spec", {})


def _validate(document: Document) -> list[FieldError]:
    spec: Document = document["spec"]
    errors: list[FieldError] = []
    if "minAvailable" in spec and "maxUnavailable" in spec:
        told = {**spec, "selector": shown_selector(spec.get("selector"))}
        shown = in_go(told, "minAvailable", "selector", "maxUnavailable", "unhealthyPodEvictionPolicy")
        errors.append(invalid_value("spec", shown, "minAvailable and maxUnavailable cannot be both set"))
    for name in ("minAvailable", "maxUnavailable"):
        if name in spec:
            errors += check_int_or_percent(f"spec.{name}", spec[name])
            errors += check_at_most_100_percent(f"spec.{name}", spec[name])
    errors += check_label_selector("spec.selector", spec.get("selector"))
    policy = spec.get("unhealthyPodEvictionPolicy")
    if policy is not None and policy not in _POLICIES:
        errors.append(not_supported("spec.unhealthyPodEvictionPolicy", policy, _POLICIES))
    return errors


def _cells(budget: Document, now: float) -> tuple[Cell, ...]:
    bounds = (member(budget, "spec", name) for name in ("minAvailable", "maxUnavailable"))
    return (
        name_of(budget),
        *("N/A" if bound is None else str(bound) for bound in bounds),
        number(budget, "status", "disruptionsAllowed"),
        age(budget, now),
    )


POD_DISRUPTION_BUDGET: Final = kind.Kind(
    resource=PodDisruptionBudgets,
    defaults=_default,
    prepare_create=kind.created_as_sent,
    prepare_update=kind.updated_as_sent,
    validate=_validate,
    validate_update=kind.as_new(_validate),
    warnings=kind.no_warnings,
    status=kind.beside_spec(
        lambda _document: dict.fromkeys(_COUNTS, 0), lambda new, _old: check_status_counts(new, _COUNTS)
    ),
    parts=kind.NO_PARTS,
    admission=kind.ADMITTED,
    deletion=kind.AT_ONCE,
    quota=kind.COUNTED,
    granted=kind.edited("status"),
    columns=Printer(
        (
            NAME,
            Column(name="Min Available", description="How many Pods must stay."),
            Column(name="Max Unavailable", description="How many Pods may be gone."),
            Column(name="Allowed Disruptions", type="integer", description="How many Pods may go now."),
            AGE,
        ),
        _cells,
    ),
)
