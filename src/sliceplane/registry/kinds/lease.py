"""Lease (coordination.k8s.io): who holds it, and for how long."""

from __future__ import annotations

from typing import Final

from sliceplane.api.errors import FieldError, invalid_value
from sliceplane.api.meta import Document
from sliceplane.api.scheme import Leases
from sliceplane.documents.table.columns import AGE, NAME, Cell, Column, Printer, age, name_of, text
from sliceplane.registry.kinds import kind


def _default(document: Document) -> None:
    document.setdefault("spec", {})


def _validate(document: Document) -> list[FieldError]:
    spec: Document = document.get("spec", {})
    errors: list[FieldError] = []
    duration = spec.get("leaseDurationSeconds")
    transitions = spec.get("leaseTransitions")
    if duration is not None and duration <= 0:
        errors.append(invalid_value("spec.leaseDurationSeconds", duration, "must be greater than 0"))
    if transitions is not None and transitions < 0:
        errors.append(invalid_value("spec.leaseTransitions", transitions, "must be greater than or equal to 0"))
    return errors


def _cells(lease: Document, now: float) -> tuple[Cell, ...]:
    return name_of(lease), text(lease, "spec", "holderIdentity"), age(lease, now)


LEASE: Final = kind.stored_as_sent(
    resource=Leases,
    defaults=_default,
    validate=_validate,
    validate_update=kind.as_new(_validate),
    warnings=kind.no_warnings,
    quota=kind.COUNTED,
    granted=kind.EDITED_UNSEEN,
    columns=Printer((NAME, Column(name="Holder", description="Who holds the lease."), AGE), _cells),
)
