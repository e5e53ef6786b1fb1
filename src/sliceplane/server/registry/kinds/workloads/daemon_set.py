"""DaemonSet: one Pod on every node that fits."""

from __future__ import annotations

from typing import Final

from sliceplane.api.errors import FieldErrors, invalid_value, not_supported, required
from sliceplane.api.meta import Document
from sliceplane.api.scheme import DaemonSets
from sliceplane.server.documents.table.columns import (
    AGE,
    NAME,
    Column,
    Printer,
    labels_text,
    mapping,
    number_at,
)
from sliceplane.server.registry.kinds import kind
from sliceplane.server.registry.kinds.workloads.workload import (
    TEMPLATE_COLUMNS,
    check_at_most_100_percent,
    check_int_or_percent,
    check_not_empty,
    check_same_selector,
    check_status_counts,
    check_template,
    default_template,
    int_or_percent,
    labels_fit,
    render_rolling_update,
)
from sliceplane.server.registry.metadata import check_label_selector
from sliceplane.server.registry.validation.rules import Rules, fill, not_negative

#: counts of the status that are shown even if they are zero, and those that are not
_COUNTS: Final = (
    "currentNumberScheduled",
    "numberMisscheduled",
    "desiredNumberScheduled",
    "numberReady",
)
_FURTHER: Final = (
    "observedGeneration",
    "updatedNumberScheduled",
    "numberAvailable",
    "numberUnavailable",
)
STRATEGIES: Final = ("RollingUpdate", "OnDelete")


def _default(document: Document) -> None:
    fill(
        document,
        {"+spec": {"+updateStrategy": {"type": "RollingUpdate"}, "revisionHistoryLimit?": 10}},
    )
    spec = document["spec"]
    if spec["updateStrategy"]["type"] == "RollingUpdate":
        fill(spec["updateStrategy"], {"+rollingUpdate": {"maxUnavailable?": 1, "maxSurge?": 0}})
    default_template(spec)


def _validate(document: Document, old: Document | None = None) -> FieldErrors:
    spec: Document = document["spec"]
    selector = spec.get("selector")
    errors = check_label_selector("spec.selector", selector)
    if not errors:
        errors += labels_fit(selector, spec["template"])
    if selector is not None:
        errors += check_not_empty(selector, "daemonset")
    errors += check_template(
        "spec.template", spec["template"], "DaemonSet", old and old["spec"]["template"]
    )
    errors += not_negative("minReadySeconds")("spec", spec)
    errors += _strategy(spec["updateStrategy"])
    return errors + not_negative("revisionHistoryLimit")("spec", spec)


def _strategy(strategy: Document) -> FieldErrors:
    path = "spec.updateStrategy"
    rolling = strategy.get("rollingUpdate")
    if strategy["type"] not in STRATEGIES:
        rendered = {"Type": strategy["type"], "RollingUpdate": render_rolling_update(rolling)}
        return [not_supported(path, rendered, STRATEGIES)]
    if strategy["type"] == "OnDelete" or rolling is None:
        return []
    unavailable = rolling["maxUnavailable"]
    surge = rolling["maxSurge"]
    errors: FieldErrors = []
    for check in (check_int_or_percent, check_at_most_100_percent):
        errors += check(f"{path}.rollingUpdate.maxUnavailable", unavailable)
        errors += check(f"{path}.rollingUpdate.maxSurge", surge)
    if int_or_percent(unavailable) and int_or_percent(surge):
        detail = "may not be set when maxUnavailable is non-zero"
        errors.append(invalid_value(f"{path}.rollingUpdate.maxSurge", surge, detail))
    elif not int_or_percent(unavailable) and not int_or_percent(surge):
        errors.append(
            required(f"{path}.rollingUpdate.maxUnavailable", "cannot be 0 when maxSurge is 0")
        )
    return errors


def _count(name: str, description: str, member: str) -> Column:
    return Column(name, description, number_at(f"status.{member}"), type="integer")


DAEMON_SET: Final = kind.Kind(
    resource=DaemonSets,
    defaults=_default,
    rules=Rules(lambda _path, document: _validate(document)),
    update_rules=lambda new, old: check_same_selector(new, old) + _validate(new, old),
    status=kind.Status(
        first=lambda _document: dict.fromkeys(_COUNTS, 0),
        validate=lambda new, _old: check_status_counts(new, (*_COUNTS, *_FURTHER)),
    ),
    quota=kind.Quota(),
    granted=kind.edited("status"),
    columns=Printer(
        (
            NAME,
            _count("Desired", "Nodes that should have a Pod.", "desiredNumberScheduled"),
            _count("Current", "Nodes of these that have one.", "currentNumberScheduled"),
            _count("Ready", "Nodes whose Pod is ready.", "numberReady"),
            _count(
                "Up-to-date", "Nodes whose Pod is of the newest template.", "updatedNumberScheduled"
            ),
            _count(
                "Available", "Nodes whose Pod has been ready for long enough.", "numberAvailable"
            ),
            Column(
                "Node Selector",
                "Labels of the nodes that are meant.",
                lambda daemon_set: labels_text(
                    mapping(daemon_set, "spec", "template", "spec", "nodeSelector")
                ),
            ),
            AGE,
            *TEMPLATE_COLUMNS,
        )
    ),
)
