"""PodTemplate: a Pod to be, kept for later use."""

from __future__ import annotations

from typing import Final

from msgspec.structs import replace

from sliceplane.api.errors import FieldErrors
from sliceplane.api.meta import Document
from sliceplane.api.scheme import PodTemplates
from sliceplane.server.documents.table.columns import NAME, Column, Printer, labels_text, mapping
from sliceplane.server.registry.kinds import kind
from sliceplane.server.registry.kinds.pods.pod_spec import validate_template
from sliceplane.server.registry.kinds.workloads.workload import TEMPLATE_COLUMNS, default_template
from sliceplane.server.registry.validation.rules import Rules


def _validate(_path: str, document: Document) -> FieldErrors:
    return validate_template(document["template"], "template")


def _of_template(column: Column) -> Column:
    """A column of workloads, of what has the template in the place of a spec."""
    source = column.source
    assert callable(source), f"{column.name} has no function as its source"
    return replace(column, source=lambda pod_template: source({"spec": pod_template}), priority=0)


POD_TEMPLATE: Final = kind.Kind(
    resource=PodTemplates,
    defaults=default_template,
    rules=Rules(_validate),
    update_rules=lambda new, old: [] if new["template"] == old["template"] else _validate("", new),
    quota=kind.Quota(),
    columns=Printer(
        (
            NAME,
            *map(_of_template, TEMPLATE_COLUMNS[:2]),
            Column(
                "Pod Labels",
                "Labels of a Pod that is made of it.",
                lambda pod_template: labels_text(
                    mapping(pod_template, "template", "metadata", "labels")
                ),
            ),
        )
    ),
)
