"""Deployment: replicas, strategy, deadline."""

from __future__ import annotations

import re
from typing import Any, Final

from sliceplane.api.errors import FieldError, forbidden_field, invalid_value, not_supported
from sliceplane.api.meta import Document
from sliceplane.api.scheme import Deployments
from sliceplane.documents import fields
from sliceplane.documents.table.ages import age
from sliceplane.documents.table.columns import AGE, NAME, Cell, Column, Printer, name_of, number
from sliceplane.registry.kinds.kind import (
    ADMITTED,
    AT_ONCE,
    COUNTED,
    Kind,
    Status,
    created_as_sent,
    empty_status,
    no_update_rules,
    no_warnings,
    updated_as_sent,
)
from sliceplane.registry.kinds.workload import (
    NOT_NEGATIVE,
    SCALED_WORKLOAD,
    TEMPLATE_COLUMNS,
    check_counts,
    check_same_selector,
    check_selector_and_template,
    default_template,
    template_cells,
)

STRATEGIES = ("Recreate", "RollingUpdate")
_PERCENT = re.compile("[0-9]+%")
_PERCENT_SHAPE = (
    "a valid percent string must be a numeric string followed by an ending '%' (e.g. '1%',  or '93%', regex used for "
    "validation is '[0-9]+%')"
)


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


def _validate(document: Document) -> list[FieldError]:
    spec: Document = document["spec"]
    errors = check_counts(spec, ("replicas",))
    errors += check_selector_and_template(spec)
    errors += _strategy(spec.get("strategy", {}))
    errors += check_counts(spec, ("minReadySeconds", "revisionHistoryLimit", "progressDeadlineSeconds"))
    deadline = spec.get("progressDeadlineSeconds")
    ready = spec.get("minReadySeconds", 0)
    if deadline is not None and deadline <= ready:
        errors.append(invalid_value("spec.progressDeadlineSeconds", deadline, "must be greater than minReadySeconds"))
    return errors


def _validate_update(new: Document, old: Document) -> list[FieldError]:
    return _validate(new) + check_same_selector(new, old)


def _strategy(strategy: Document) -> list[FieldError]:
    kind = strategy.get("type", "")
    rolling = strategy.get("rollingUpdate")
    if kind not in STRATEGIES:
        return [not_supported("spec.strategy.type", kind, STRATEGIES)]
    path = "spec.strategy.rollingUpdate"
    if kind == "Recreate":
        detail = "may not be specified when strategy `type` is 'Recreate'"
        return [forbidden_field(path, detail)] if rolling is not None else []
    rolling = rolling or {}
    unavailable = rolling.get("maxUnavailable", 0)
    surge = rolling.get("maxSurge", 0)
    errors = _int_or_percent(f"{path}.maxUnavailable", unavailable) + _int_or_percent(f"{path}.maxSurge", surge)
    if not errors and _is_zero(unavailable) and _is_zero(surge):
        errors.append(invalid_value(f"{path}.maxUnavailable", unavailable, "may not be 0 when `maxSurge` is 0"))
    if (
        isinstance(unavailable, str)
        and not errors
        and len(unavailable.lstrip("0")) > 3
        and unavailable.lstrip("0") != "100%"
    ):
        errors.append(invalid_value(f"{path}.maxUnavailable", unavailable, "must not be greater than 100%"))
    return errors


def _int_or_percent(path: str, value: Any) -> list[FieldError]:
    if isinstance(value, str):
        return [] if _PERCENT.fullmatch(value) else [invalid_value(path, value, _PERCENT_SHAPE)]
    return [] if value >= 0 else [invalid_value(path, value, NOT_NEGATIVE)]


def _is_zero(value: Any) -> bool:
    return value in (0, "0%")


def _cells(deployment: Document, now: float) -> tuple[Cell, ...]:
    return (
        name_of(deployment),
        f"{number(deployment, 'status', 'readyReplicas')}/{number(deployment, 'spec', 'replicas')}",
        number(deployment, "status", "updatedReplicas"),
        number(deployment, "status", "availableReplicas"),
        age(deployment, now),
        *template_cells(deployment),
    )


DEPLOYMENT: Final = Kind(
    resource=Deployments,
    defaults=_default,
    prepare_create=created_as_sent,
    prepare_update=updated_as_sent,
    validate=_validate,
    validate_update=_validate_update,
    warnings=no_warnings,
    status=Status(
        first=empty_status,
        validate=no_update_rules,
        not_written=fields.of_paths([("f:spec",), ("f:metadata", "f:labels")]),
        kept=("labels",),
    ),
    admission=ADMITTED,
    deletion=AT_ONCE,
    quota=COUNTED,
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
