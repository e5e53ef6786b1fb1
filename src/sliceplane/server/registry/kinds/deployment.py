"""Deployment: replicas, strategy, deadline."""

from __future__ import annotations

from typing import Final

from sliceplane.api.errors import FieldError, forbidden_field, invalid_value, not_supported
from sliceplane.api.meta import Document
from sliceplane.api.scheme import Deployments
from sliceplane.server.documents import fields
from sliceplane.server.documents.table.columns import AGE, NAME, Cell, Column, Printer, age, name_of, number
from sliceplane.server.registry.kinds import kind
from sliceplane.server.registry.kinds.workload import (
    SCALED_WORKLOAD,
    TEMPLATE_COLUMNS,
    check_at_most_100_percent,
    check_counts,
    check_int_or_percent,
    check_same_selector,
    check_selector_and_template,
    default_template,
    int_or_percent,
    shown_rolling,
    template_cells,
)

STRATEGIES = ("Recreate", "RollingUpdate")


def _default(document: Document) -> None:
    spec = document.setdefault("spec", {})
    spec.setdefault("replicas", 1)
    strategy = spec.setdefault("strategy", {})
    strategy["type"] = strategy.get("type") or "RollingUpdate"
    if strategy["type"] == "RollingUpdate":
        rolling = strategy.setdefault("rollingUpdate", {})
        rolling.setdefault("maxUnavailable", "25%")
        rolling.setdefault("maxSurge", "25%")
    spec.setdefault("revisionHistoryLimit", 10)
    spec.setdefault("progressDeadlineSeconds", 600)
    default_template(spec)


def _validate(document: Document, old: Document | None = None) -> list[FieldError]:
    spec: Document = document["spec"]
    errors = check_counts(spec, ("replicas",))
    errors += check_selector_and_template(spec, old and old["spec"])
    errors += _strategy(spec.get("strategy", {}))
    errors += check_counts(spec, ("minReadySeconds", "revisionHistoryLimit", "progressDeadlineSeconds"))
    deadline = spec.get("progressDeadlineSeconds")
    ready = spec.get("minReadySeconds", 0)
    if deadline is not None and deadline <= ready:
        errors.append(invalid_value("spec.progressDeadlineSeconds", deadline, "must be greater than minReadySeconds"))
    return errors


def _strategy(strategy: Document) -> list[FieldError]:
    kind = strategy.get("type", "")
    rolling = strategy.get("rollingUpdate")
    if kind not in STRATEGIES:
        shown = {"Type": kind, "RollingUpdate": shown_rolling(rolling)}
        return [not_supported("spec.strategy", shown, STRATEGIES)]
    path = "spec.strategy.rollingUpdate"
    if kind == "Recreate":
        detail = "may not be specified when strategy `type` is 'Recreate'"
        return [forbidden_field(path, detail)] if rolling is not None else []
    rolling = rolling or {}
    unavailable = rolling.get("maxUnavailable", 0)
    surge = rolling.get("maxSurge", 0)
    errors = check_int_or_percent(f"{path}.maxUnavailable", unavailable)
    errors += check_int_or_percent(f"{path}.maxSurge", surge)
    if not int_or_percent(unavailable) and not int_or_percent(surge):
        errors.append(invalid_value(f"{path}.maxUnavailable", unavailable, "may not be 0 when `maxSurge` is 0"))
    return errors + check_at_most_100_percent(f"{path}.maxUnavailable", unavailable)


def _cells(deployment: Document, now: float) -> tuple[Cell, ...]:
    return (
        name_of(deployment),
        f"{number(deployment, 'status', 'readyReplicas')}/{number(deployment, 'spec', 'replicas')}",
        number(deployment, "status", "updatedReplicas"),
        number(deployment, "status", "availableReplicas"),
        age(deployment, now),
        *template_cells(deployment),
    )


DEPLOYMENT: Final = kind.Kind(
    resource=Deployments,
    defaults=_default,
    prepare_create=kind.created_as_sent,
    prepare_update=kind.updated_as_sent,
    validate=_validate,
    validate_update=lambda new, old: _validate(new, old) + check_same_selector(new, old),
    warnings=kind.no_warnings,
    status=kind.Status(
        first=kind.empty_status,
        validate=kind.no_update_rules,
        not_written=fields.of_paths([("f:spec",), ("f:metadata", "f:labels")]),
        kept=("labels",),
    ),
    parts=kind.NO_PARTS,
    admission=kind.ADMITTED,
    deletion=kind.AT_ONCE,
    quota=kind.COUNTED,
    granted=SCALED_WORKLOAD,
    columns=Printer(
        (
            NAME,
            Column(name="Ready", description="Pods that are ready, of those that are wanted."),
            Column(name="Up-to-date", description="Pods made from the newest template."),
            Column(name="Available", description="Pods that have been ready for long enough."),
            AGE,
            *TEMPLATE_COLUMNS,
        ),
        _cells,
    ),
)
