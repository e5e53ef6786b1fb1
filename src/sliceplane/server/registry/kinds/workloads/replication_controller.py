"""ReplicationController: so many Pods of one template, selected by labels alone.  Older than
ReplicaSets.
"""

from __future__ import annotations

from typing import Final

from sliceplane.api.errors import FieldErrors, required
from sliceplane.api.meta import Document
from sliceplane.api.scheme import ReplicationControllers
from sliceplane.kit.names import check_dns_label
from sliceplane.server.documents.table.columns import Column, Printer, labels_text, mapping
from sliceplane.server.registry.kinds import kind
from sliceplane.server.registry.kinds.workloads.workload import (
    REPLICAS_COLUMNS,
    SCALED_WORKLOAD,
    SELECTOR_COLUMN,
    TEMPLATE_COLUMNS,
    check_status_counts,
    check_template,
    default_template,
    labels_fit,
)
from sliceplane.server.registry.validation.rules import Field, Rules, fill

_COUNTS: Final = ("replicas", "fullyLabeledReplicas", "readyReplicas", "availableReplicas")
_NOT_A_LABEL: Final = (
    "metadata.name: this is used in Pod names and hostnames, which can result in surprising "
    "behavior; a DNS label is "
    "recommended: "
)
_ROWS: Final = Rules(
    Field("minReadySeconds", minimum=0),
    Field("selector", required=True),
    Field("replicas", minimum=0),
)


def _default(document: Document) -> None:
    fill(document, {"+spec": {"replicas?": 1}})
    spec = document["spec"]
    if "template" not in spec:
        return
    default_template(spec)
    labels = spec["template"]["metadata"].get("labels")
    if labels:
        for parent, member in ((spec, "selector"), (document.setdefault("metadata", {}), "labels")):
            parent[member] = parent.get(member) or dict(labels)


def _validate(document: Document, old: Document | None = None) -> FieldErrors:
    spec: Document = document["spec"]
    errors = _ROWS("spec", spec)
    if "template" not in spec:
        return [*errors, required("spec.template")]
    if spec.get("selector"):
        errors += labels_fit({"matchLabels": spec["selector"]}, spec["template"])
    return errors + check_template(
        "spec.template",
        spec["template"],
        "ReplicationController",
        old and old["spec"].get("template"),
    )


def _warnings(new: Document, old: Document | None) -> tuple[str, ...]:
    problems = check_dns_label(new["metadata"].get("name", "")) if old is None else ()
    return (f"{_NOT_A_LABEL}[{' '.join(problems)}]",) if problems else ()


REPLICATION_CONTROLLER: Final = kind.Kind(
    resource=ReplicationControllers,
    defaults=_default,
    rules=Rules(lambda _path, document: _validate(document)),
    update_rules=_validate,
    warnings=_warnings,
    status=kind.Status(
        first=lambda _document: {"replicas": 0},
        validate=lambda new, _old: check_status_counts(
            new, (*_COUNTS, "observedGeneration"), _COUNTS[1:]
        ),
    ),
    quota=kind.counted_as(ReplicationControllers.plural),
    granted=SCALED_WORKLOAD,
    columns=Printer(
        (
            *REPLICAS_COLUMNS,
            *TEMPLATE_COLUMNS[:2],
            Column(
                SELECTOR_COLUMN.name,
                SELECTOR_COLUMN.description,
                lambda controller: labels_text(mapping(controller, "spec", "selector")),
                priority=1,
            ),
        )
    ),
)
