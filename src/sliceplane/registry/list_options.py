"""Which combinations of list and watch parameters make sense, and the complaints about the others (B4, B5)."""

from __future__ import annotations

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
from sliceplane.registry.types import ListOptions, WatchOptions

EXACT = "Exact"
NOT_OLDER_THAN = "NotOlderThan"


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
