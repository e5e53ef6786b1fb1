"""ReplicaSet: so many Pods of one template."""

from __future__ import annotations

from typing import Final

from sliceplane.api.errors import FieldErrors
from sliceplane.api.meta import Document
from sliceplane.api.scheme import ReplicaSets
from sliceplane.server.documents.table.columns import Printer
from sliceplane.server.registry.kinds import kind
from sliceplane.server.registry.kinds.workloads.workload import (
    REPLICAS_COLUMNS,
    SCALED_WORKLOAD,
    TEMPLATE_COLUMNS,
    check_same_selector,
    check_selector_and_template,
    default_template,
)
from sliceplane.server.registry.validation.rules import Rules, fill, not_negative

_COUNTS: Final = not_negative("replicas", "minReadySeconds")


def _default(document: Document) -> None:
    fill(document, {"+spec": {"replicas?": 1}})
    default_template(document["spec"])


def _validate(document: Document, old: Document | None = None) -> FieldErrors:
    spec: Document = document["spec"]
    return _COUNTS("spec", spec) + check_selector_and_template(spec, old and old["spec"])


REPLICA_SET: Final = kind.Kind(
    resource=ReplicaSets,
    defaults=_default,
    rules=Rules(lambda _path, document: _validate(document)),
    update_rules=lambda new, old: _validate(new, old) + check_same_selector(new, old),
    status=kind.Status(first=lambda _document: {"replicas": 0}),
    quota=kind.Quota(),
    granted=SCALED_WORKLOAD,
    columns=Printer((*REPLICAS_COLUMNS, *TEMPLATE_COLUMNS)),
)
