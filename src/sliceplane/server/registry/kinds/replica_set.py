"""ReplicaSet: so many Pods of one template."""

from __future__ import annotations

from typing import Final

from sliceplane.api.errors import FieldError
from sliceplane.api.meta import Document
from sliceplane.api.scheme import ReplicaSets
from sliceplane.server.documents.table.columns import Printer
from sliceplane.server.registry.kinds import kind
from sliceplane.server.registry.kinds.workload import (
    REPLICAS_COLUMNS,
    SCALED_WORKLOAD,
    check_counts,
    check_same_selector,
    check_selector_and_template,
    default_template,
    replicas_cells,
    template_cells,
)


def _default(document: Document) -> None:
    spec = document.setdefault("spec", {})
    spec.setdefault("replicas", 1)
    default_template(spec)


def _validate(document: Document, old: Document | None = None) -> list[FieldError]:
    spec: Document = document["spec"]
    return check_counts(spec, ("replicas", "minReadySeconds")) + check_selector_and_template(spec, old and old["spec"])


REPLICA_SET: Final = kind.Kind(
    resource=ReplicaSets,
    defaults=_default,
    prepare_create=kind.created_as_sent,
    prepare_update=kind.updated_as_sent,
    validate=_validate,
    validate_update=lambda new, old: _validate(new, old) + check_same_selector(new, old),
    warnings=kind.no_warnings,
    status=kind.beside_spec(lambda _document: {"replicas": 0}, kind.no_update_rules),
    parts=kind.NO_PARTS,
    admission=kind.ADMITTED,
    deletion=kind.AT_ONCE,
    quota=kind.COUNTED,
    granted=SCALED_WORKLOAD,
    columns=Printer(
        REPLICAS_COLUMNS, lambda replica_set, now: (*replicas_cells(replica_set, now), *template_cells(replica_set))
    ),
)
