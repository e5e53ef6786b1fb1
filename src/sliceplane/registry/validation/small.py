"""Kinds with few rules: Lease and Namespace (reference B10, B14, B16)."""

from __future__ import annotations

from sliceplane.api.errors import FieldError, invalid_value, while_few
from sliceplane.api.meta import Document
from sliceplane.registry.validation.metadata import validate_finalizer

NOT_NEGATIVE = "must be greater than or equal to 0"


def validate_lease(document: Document) -> list[FieldError]:
    spec: Document = document.get("spec", {})
    errors: list[FieldError] = []
    duration, transitions = spec.get("leaseDurationSeconds"), spec.get("leaseTransitions")
    if duration is not None and duration <= 0:
        errors.append(invalid_value("spec.leaseDurationSeconds", duration, "must be greater than 0"))
    if transitions is not None and transitions < 0:
        errors.append(invalid_value("spec.leaseTransitions", transitions, NOT_NEGATIVE))
    return errors


def validate_lease_update(new: Document, old: Document) -> list[FieldError]:  # noqa: ARG001
    return validate_lease(new)


def validate_namespace(document: Document) -> list[FieldError]:
    errors: list[FieldError] = []
    for name in while_few(errors, document.get("spec", {}).get("finalizers", ())):
        errors += validate_finalizer("spec.finalizers", name)
    return errors


def validate_namespace_update(new: Document, old: Document) -> list[FieldError]:  # noqa: ARG001
    return validate_namespace(new)


def validate_namespace_status(new: Document, old: Document) -> list[FieldError]:  # noqa: ARG001
    phase = new.get("status", {}).get("phase", "")
    if "deletionTimestamp" in new["metadata"]:
        if phase != "Terminating":
            detail = "may only be 'Terminating' if `deletionTimestamp` is not empty"
            return [invalid_value("status.Phase", phase, detail)]
    elif phase != "Active":
        return [invalid_value("status.Phase", phase, "may only be 'Active' if `deletionTimestamp` is empty")]
    return []
