"""DaemonSet: one Pod on every node that fits."""

from __future__ import annotations

from typing import Final

from sliceplane.api.errors import FieldError, invalid_value, not_supported, required
from sliceplane.api.meta import Document
from sliceplane.api.scheme import DaemonSets
from sliceplane.server.documents.table.columns import (
    AGE,
    NAME,
    Cell,
    Column,
    Printer,
    age,
    labels_text,
    mapping,
    name_of,
    number,
)
from sliceplane.server.registry.kinds import kind
from sliceplane.server.registry.kinds.workload import (
    TEMPLATE_COLUMNS,
    check_at_most_100_percent,
    check_counts,
    check_int_or_percent,
    check_not_empty,
    check_same_selector,
    check_status_counts,
    check_template,
    default_template,
    int_or_percent,
    labels_fit,
    shown_rolling,
    template_cells,
)
from sliceplane.server.registry.metadata import check_label_selector

#: counts of the status that are shown even if they are zero, and those that are not
_COUNTS: Final = ("currentNumberScheduled", "numberMisscheduled", "desiredNumberScheduled", "numberReady")
_FURTHER: Final = ("observedGeneration", "updatedNumberScheduled", "numberAvailable", "numberUnavailable")
STRATEGIES: Final = ("RollingUpdate", "OnDelete")


def _default(document: Document) -> None:
    spec = document.setdefault("spec", {})
    strategy = spec.setdefault("updateStrategy", {})
    strategy["type"] = strategy.get("type") or "RollingUpdate"
    if strategy["type"] == "RollingUpdate":
        rolling = strategy.setdefault("rollingUpdate", {})
        rolling.setdefault("maxUnavailable", 1)
        rolling.setdefault("maxSurge", 0)
    spec.setdefault("revisionHistoryLimit", 10)
    default_template(spec)


def _validate(document: Document, old: Document | None = None) -> list[FieldError]:
    spec: Document = document["spec"]
    selector = spec.get("selector")
    errors = check_label_selector("spec.selector", selector)
    if not errors:
        errors += labels_fit(selector, spec["template"])
    if selector is not None:
        errors += check_not_empty(selector, "daemonset")
    errors += check_template("spec.template", spec["template"], "DaemonSet", old and old["spec"]["template"])
    errors += check_counts(spec, ("minReadySeconds",))
    errors += _strategy(spec["updateStrategy"])
    return errors + check_counts(spec, ("revisionHistoryLimit",))


def _strategy(strategy: Document) -> list[FieldError]:
    path = "spec.updateStrategy"
    rolling = strategy.get("rollingUpdate")
    if strategy["type"] not in STRATEGIES:
        shown = {"Type": strategy["type"], "RollingUpdate": shown_rolling(rolling)}
        return [not_supported(path, shown, STRATEGIES)]
    if strategy["type"] == "OnDelete" or rolling is None:
        return []
    unavailable = rolling["maxUnavailable"]
    surge = rolling["maxSurge"]
    errors: list[FieldError] = []
    for check in (check_int_or_percent, check_at_most_100_percent):
        errors += check(f"{path}.rollingUpdate.maxUnavailable", unavailable)
        errors += check(f"{path}.rollingUpdate.maxSurge", surge)
    if int_or_percent(unavailable) and int_or_percent(surge):
        detail = "may not be set when maxUnavailable is non-zero"
        errors.append(invalid_value(f"{path}.rollingUpdate.maxSurge", surge, detail))
    elif not int_or_percent(unavailable) and not int_or_percent(surge):
        errors.append(required(f"{path}.rollingUpdate.maxUnavailable", "cannot be 0 when maxSurge is 0"))
    return errors


def _cells(daemon_set: Document, now: float) -> tuple[Cell, ...]:
    shown = ("desiredNumberScheduled", "currentNumberScheduled", "numberReady", "updatedNumberScheduled")
    return (
        name_of(daemon_set),
        *(number(daemon_set, "status", name) for name in (*shown, "numberAvailable")),
        labels_text(mapping(daemon_set, "spec", "template", "spec", "nodeSelector")),
        age(daemon_set, now),
        *template_cells(daemon_set),
    )


DAEMON_SET: Final = kind.Kind(
    resource=DaemonSets,
    defaults=_default,
    prepare_create=kind.created_as_sent,
    prepare_update=kind.updated_as_sent,
    validate=_validate,
    validate_update=lambda new, old: check_same_selector(new, old) + _validate(new, old),
    warnings=kind.no_warnings,
    status=kind.beside_spec(
        lambda _document: dict.fromkeys(_COUNTS, 0), lambda new, _old: check_status_counts(new, (*_COUNTS, *_FURTHER))
    ),
    parts=kind.NO_PARTS,
    admission=kind.ADMITTED,
    deletion=kind.AT_ONCE,
    quota=kind.COUNTED,
    granted=kind.edited("status"),
    columns=Printer(
        (
            NAME,
            Column(name="Desired", type="integer", description="Nodes that should have a Pod."),
            Column(name="Current", type="integer", description="Nodes of these that have one."),
            Column(name="Ready", type="integer", description="Nodes whose Pod is ready."),
            Column(name="Up-to-date", type="integer", description="Nodes whose Pod is of the newest template."),
            Column(name="Available", type="integer", description="Nodes whose Pod has been ready for long enough."),
            Column(name="Node Selector", description="Labels of the nodes that are meant."),
            AGE,
            *TEMPLATE_COLUMNS,
        ),
        _cells,
    ),
)
