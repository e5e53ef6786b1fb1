"""PodTemplate: a Pod to be, kept for later use."""

from __future__ import annotations

from typing import Final

from sliceplane.api.errors import FieldError
from sliceplane.api.meta import Document
from sliceplane.api.scheme import PodTemplates
from sliceplane.server.documents.table.columns import NAME, Cell, Column, Printer, labels_text, mapping, name_of
from sliceplane.server.registry.kinds import kind
from sliceplane.server.registry.kinds.pod_spec import validate_template
from sliceplane.server.registry.kinds.workload import default_template, template_cells


def _validate(document: Document) -> list[FieldError]:
    return validate_template(document["template"], "template")


def _cells(pod_template: Document, _now: float) -> tuple[Cell, ...]:
    names, images, _ = template_cells({"spec": pod_template})
    return name_of(pod_template), names, images, labels_text(mapping(pod_template, "template", "metadata", "labels"))


POD_TEMPLATE: Final = kind.stored_as_sent(
    resource=PodTemplates,
    defaults=default_template,
    validate=_validate,
    validate_update=lambda new, old: [] if new["template"] == old["template"] else _validate(new),
    warnings=kind.no_warnings,
    quota=kind.COUNTED,
    granted=kind.NOT_GRANTED,
    columns=Printer(
        (
            NAME,
            Column(name="Containers", description="Names of the template's containers."),
            Column(name="Images", description="Images of the template's containers."),
            Column(name="Pod Labels", description="Labels of a Pod that is made of it."),
        ),
        _cells,
    ),
)
