"""ReplicationController: so many Pods of one template, selected by labels alone.  Older than ReplicaSets."""

from __future__ import annotations

from typing import Final

from sliceplane.api.errors import FieldError, required
from sliceplane.api.meta import Document
from sliceplane.api.scheme import ReplicationControllers
from sliceplane.kit.names import check_dns_label
from sliceplane.server.documents.table.columns import Cell, Printer, labels_text, mapping
from sliceplane.server.registry.kinds import kind
from sliceplane.server.registry.kinds.workload import (
    REPLICAS_COLUMNS,
    SCALED_WORKLOAD,
    check_counts,
    check_status_counts,
    check_template,
    default_template,
    labels_fit,
    replicas_cells,
    template_cells,
)

_COUNTS: Final = ("replicas", "fullyLabeledReplicas", "readyReplicas", "availableReplicas")
_NOT_A_LABEL: Final = (
    "metadata.name: this is used in Pod names and hostnames, which can result in surprising behavior; a DNS label is "
    "recommended: "
)


def _default(document: Document) -> None:
    spec = document.setdefault("spec", {})
    spec.setdefault("replicas", 1)
    if "template" not in spec:
        return
    default_template(spec)
    labels = spec["template"]["metadata"].get("labels")
    if labels:
        for parent, member in ((spec, "selector"), (document.setdefault("metadata", {}), "labels")):
            parent[member] = parent.get(member) or dict(labels)


def _validate(document: Document, old: Document | None = None) -> list[FieldError]:
    spec: Document = document["spec"]
    errors = check_counts(spec, ("minReadySeconds",))
    if not spec.get("selector"):
        errors.append(required("spec.selector"))
    errors += check_counts(spec, ("replicas",))
    if "template" not in spec:
        return [*errors, required("spec.template")]
    if spec.get("selector"):
        errors += labels_fit({"matchLabels": spec["selector"]}, spec["template"])
    return errors + check_template(
        "spec.template", spec["template"], "ReplicationController", old and old["spec"].get("template")
    )


def _warnings(new: Document, old: Document | None) -> tuple[str, ...]:
    problems = check_dns_label(new["metadata"].get("name", "")) if old is None else ()
    return (f"{_NOT_A_LABEL}[{' '.join(problems)}]",) if problems else ()


def _cells(controller: Document, now: float) -> tuple[Cell, ...]:
    return (
        *replicas_cells(controller, now),
        *template_cells(controller)[:2],
        labels_text(mapping(controller, "spec", "selector")),
    )


REPLICATION_CONTROLLER: Final = kind.Kind(
    resource=ReplicationControllers,
    defaults=_default,
    prepare_create=kind.created_as_sent,
    prepare_update=kind.updated_as_sent,
    validate=_validate,
    validate_update=_validate,
    warnings=_warnings,
    status=kind.beside_spec(
        lambda _document: {"replicas": 0},
        lambda new, _old: check_status_counts(new, (*_COUNTS, "observedGeneration"), _COUNTS[1:]),
    ),
    parts=kind.NO_PARTS,
    admission=kind.ADMITTED,
    deletion=kind.AT_ONCE,
    quota=kind.counted_as(ReplicationControllers.plural),
    granted=SCALED_WORKLOAD,
    columns=Printer(REPLICAS_COLUMNS, _cells),
)
