"""Which parameters of lists, watches and deletions make sense, and upstream's complaints about the others."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, get_args

from sliceplane.api.errors import (
    FieldError,
    StatusError,
    bad_request,
    forbidden_field,
    invalid,
    invalid_value,
    not_supported,
    show,
)
from sliceplane.kit.integers import NotAnInteger, parse_uint64
from sliceplane.registry.types import DeleteOptions, ListOptions, Propagation, WatchOptions

EXACT = "Exact"
NOT_OLDER_THAN = "NotOlderThan"
META_GROUP = "meta.k8s.io"
_PROPAGATIONS = get_args(Propagation)
_JSON_TYPES = {bool: "bool", int: "number", float: "number", str: "string", list: "array"}


def check_list(options: ListOptions) -> None:
    """Raises a 422 StatusError with every complaint."""
    errors: list[FieldError] = []
    if options.send_initial_events is not None:
        errors.append(forbidden_field("sendInitialEvents", "sendInitialEvents is forbidden for list"))
    match = options.resource_version_match
    if match:
        path = "resourceVersionMatch"
        if not options.resource_version:
            errors.append(forbidden_field(path, "resourceVersionMatch is forbidden unless resourceVersion is provided"))
        if options.continue_token:
            errors.append(forbidden_field(path, "resourceVersionMatch is forbidden when continue is provided"))
        if match not in (EXACT, NOT_OLDER_THAN):
            errors.append(not_supported(path, match, (EXACT, NOT_OLDER_THAN, "")))
        if match == EXACT and options.resource_version == "0":
            errors.append(forbidden_field(path, 'resourceVersionMatch "exact" is forbidden for resourceVersion "0"'))
    _refuse(errors)


def check_watch(options: WatchOptions) -> None:
    """Raises a 422 StatusError with every complaint."""
    errors: list[FieldError] = []
    match = options.resource_version_match or ""
    path = "resourceVersionMatch"
    if options.send_initial_events is not None:
        if match != NOT_OLDER_THAN:
            errors.append(
                forbidden_field(path, "sendInitialEvents requires setting resourceVersionMatch to NotOlderThan")
            )
    elif match:
        errors.append(
            forbidden_field(path, "resourceVersionMatch is forbidden for watch unless sendInitialEvents is provided")
        )
    if match and match != NOT_OLDER_THAN:
        errors.append(not_supported(path, match, (NOT_OLDER_THAN,)))
    _refuse(errors)


def _refuse(errors: list[FieldError]) -> None:
    if errors:
        raise invalid("ListOptions", "meta.k8s.io", "", errors)


def list_version(text: str | None) -> int | None:
    """The number asked for; ``None`` for "most recent".  Raises a 400 StatusError."""
    if not text:
        return None
    try:
        return parse_uint64(text)
    except NotAnInteger as error:
        raise bad_request(f"invalid resource version: {_not_a_number(text, error)}") from error


def read_version(text: str | None) -> int | None:
    """The same for get and watch.  As upstream: they answer a 500 without reason."""
    if not text:
        return None
    try:
        return parse_uint64(text)
    except NotAnInteger as error:
        raise StatusError(500, "", str(_not_a_number(text, error))) from error


def _not_a_number(text: str, error: NotAnInteger) -> FieldError:
    return invalid_value("resourceVersion", text, f"strconv.ParseUint: parsing {show(text)}: {error.why}")


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
