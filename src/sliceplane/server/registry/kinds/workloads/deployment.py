"""Deployment: replicas, strategy, deadline."""

from __future__ import annotations

from typing import Final

from sliceplane.api.errors import FieldErrors, forbidden_field, invalid_value, not_supported
from sliceplane.api.meta import Document
from sliceplane.api.scheme import Deployments
from sliceplane.server.documents import fields
from sliceplane.server.documents.table.columns import AGE, NAME, Column, Printer, number_at
from sliceplane.server.registry.kinds import kind
from sliceplane.server.registry.kinds.workloads.workload import (
    READY_COLUMN,
    SCALED_WORKLOAD,
    TEMPLATE_COLUMNS,
    check_at_most_100_percent,
    check_int_or_percent,
    check_same_selector,
    check_selector_and_template,
    default_template,
    int_or_percent,
    render_rolling_update,
)
from sliceplane.server.registry.validation.rules import Defaults, Rules, fill, not_negative

STRATEGIES = ("Recreate", "RollingUpdate")
_DEFAULTS: Final = Defaults(
    {
        "+spec": {
            "replicas?": 1,
            "+strategy": {"type": "RollingUpdate"},
            "revisionHistoryLimit?": 10,
            "progressDeadlineSeconds?": 600,
        }
    }
)
_COUNTS: Final = not_negative("minReadySeconds", "revisionHistoryLimit", "progressDeadlineSeconds")


def _default(document: Document) -> None:
    _DEFAULTS(document)
    spec = document["spec"]
    if spec["strategy"]["type"] == "RollingUpdate":
        fill(spec["strategy"], {"+rollingUpdate": {"maxUnavailable?": "25%", "maxSurge?": "25%"}})
    default_template(spec)


def _validate(document: Document, old: Document | None = None) -> FieldErrors:
    spec: Document = document["spec"]
    errors = not_negative("replicas")("spec", spec)
    errors += check_selector_and_template(spec, old and old["spec"])
    errors += _strategy(spec.get("strategy", {})) + _COUNTS("spec", spec)
    deadline = spec.get("progressDeadlineSeconds")
    if deadline is not None and deadline <= spec.get("minReadySeconds", 0):
        errors.append(
            invalid_value(
                "spec.progressDeadlineSeconds", deadline, "must be greater than minReadySeconds"
            )
        )
    return errors


def _strategy(strategy: Document) -> FieldErrors:
    kind = strategy.get("type", "")
    rolling = strategy.get("rollingUpdate")
    if kind not in STRATEGIES:
        rendered = {"Type": kind, "RollingUpdate": render_rolling_update(rolling)}
        return [not_supported("spec.strategy", rendered, STRATEGIES)]
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
        errors.append(
            invalid_value(
                f"{path}.maxUnavailable", unavailable, "may not be 0 when `maxSurge` is 0"
            )
        )
    return errors + check_at_most_100_percent(f"{path}.maxUnavailable", unavailable)


DEPLOYMENT: Final = kind.Kind(
    resource=Deployments,
    defaults=_default,
    rules=Rules(lambda _path, document: _validate(document)),
    update_rules=lambda new, old: _validate(new, old) + check_same_selector(new, old),
    status=kind.Status(
        first=kind.empty_status,
        not_written=fields.of_paths([("f:spec",), ("f:metadata", "f:labels")]),
        kept=("labels",),
    ),
    quota=kind.Quota(),
    granted=SCALED_WORKLOAD,
    columns=Printer(
        (
            NAME,
            READY_COLUMN,
            Column(
                "Up-to-date",
                "Pods made from the newest template.",
                number_at("status.updatedReplicas"),
            ),
            Column(
                "Available",
                "Pods that have been ready for long enough.",
                number_at("status.availableReplicas"),
            ),
            AGE,
            *TEMPLATE_COLUMNS,
        )
    ),
)
