"""ControllerRevision: what the template of a StatefulSet or DaemonSet was.  Its number alone ever changes."""

from __future__ import annotations

from typing import Final

from sliceplane.api.errors import FieldError, invalid_value, required
from sliceplane.api.meta import Document
from sliceplane.api.scheme import ControllerRevisions
from sliceplane.server.documents.table.columns import (
    AGE,
    NAME,
    NONE,
    Cell,
    Column,
    Printer,
    age,
    name_of,
    number,
    objects,
)
from sliceplane.server.registry.kinds import kind
from sliceplane.server.registry.kinds.workload import NOT_NEGATIVE
from sliceplane.server.registry.metadata import IMMUTABLE


def _validate(document: Document) -> list[FieldError]:
    errors: list[FieldError] = []
    if document.get("data") is None:
        errors.append(required("data", "data is mandatory"))
    if document.get("revision", 0) < 0:
        errors.append(invalid_value("revision", document["revision"], NOT_NEGATIVE))
    return errors


def _validate_update(new: Document, old: Document) -> list[FieldError]:
    errors = _validate(new)
    if new.get("data") != old.get("data"):
        errors.append(invalid_value("data", new.get("data"), IMMUTABLE))
    return errors


def _owner(revision: Document) -> str:
    for reference in objects(revision, "metadata", "ownerReferences"):
        if reference.get("controller"):
            group = reference["apiVersion"].rpartition("/")[0]
            return f"{reference['kind'].lower()}{'.' if group else ''}{group}/{reference['name']}"
    return NONE


def _cells(revision: Document, now: float) -> tuple[Cell, ...]:
    return (name_of(revision), _owner(revision), number(revision, "revision"), age(revision, now))


CONTROLLER_REVISION: Final = kind.stored_as_sent(
    resource=ControllerRevisions,
    defaults=kind.no_defaults,
    validate=_validate,
    validate_update=_validate_update,
    warnings=kind.no_warnings,
    quota=kind.COUNTED,
    granted=kind.viewed(),
    columns=Printer(
        (
            NAME,
            Column(name="Controller", description="Whose template it was."),
            Column(name="Revision", description="Its number: the highest is the newest."),
            AGE,
        ),
        _cells,
    ),
)
