"""A decoded DeleteOptions body as the registry's own type, with upstream's complaints."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, get_args

from sliceplane.api.errors import FieldError, StatusError, bad_request, invalid, invalid_value, not_supported
from sliceplane.registry.types import DeleteOptions, Propagation

META_GROUP = "meta.k8s.io"
_PROPAGATIONS = get_args(Propagation)
_JSON_TYPES = {bool: "bool", int: "number", float: "number", str: "string", list: "array"}


def delete_options_of_document(document: dict[str, Any]) -> DeleteOptions:
    """Raises the 400 or 422 ``StatusError``."""
    grace = _member(document, "gracePeriodSeconds", int)
    policy = _member(document, "propagationPolicy", str)
    orphan = _member(document, "orphanDependents", bool)
    dry_run = tuple(_member(document, "dryRun", list) or ())
    preconditions = _member(document, "preconditions", dict) or {}
    errors: list[FieldError] = []
    if orphan is not None and policy is not None:
        why = "orphanDependents and deletionPropagation cannot be both set"
        errors.append(invalid_value("propagationPolicy", policy, why))
    if policy is not None and policy not in _PROPAGATIONS:
        errors.append(not_supported("propagationPolicy", policy, ("Foreground", "Background", "Orphan", "nil")))
    errors.extend(check_dry_run(dry_run))
    if errors:
        raise invalid_options("DeleteOptions", errors)
    if orphan is not None:
        policy = "Orphan" if orphan else "Background"
    return DeleteOptions(
        dry_run=bool(dry_run),
        grace_period_s=grace,
        propagation=policy,
        precondition_uid=_member(preconditions, "uid", str),
        precondition_resource_version=_member(preconditions, "resourceVersion", str),
        forbids_orphans=orphan is False,
    )


def check_dry_run(values: Sequence[str]) -> list[FieldError]:
    if all(value == "All" for value in values):
        return []
    return [not_supported("dryRun", list(values), ("All",))]


def invalid_options(kind: str, errors: list[FieldError]) -> StatusError:
    return invalid(kind, META_GROUP, "", errors)


def _member(document: dict[str, Any], name: str, kind: type) -> Any:
    value = document.get(name)
    if value is None:
        return None
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        actual = _JSON_TYPES.get(type(value), "object")
        detail = f"json: cannot unmarshal {actual} into Go struct field DeleteOptions.{name}"
        raise bad_request(f'DeleteOptions in version "v1" cannot be handled as a DeleteOptions: {detail}')
    return value
