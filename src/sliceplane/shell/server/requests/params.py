"""Query parameters to the registry's option types, with upstream's complaints.

Which combinations of list and watch parameters make sense is the registry's business; here each value is
parsed by itself (``staging/src/k8s.io/apimachinery/pkg/apis/meta/v1/types.go``, ``ListOptions`` and the others).
"""

from __future__ import annotations

from typing import Any, get_args

from sliceplane.api.errors import (
    FieldError,
    bad_request,
    forbidden_field,
    invalid_value,
    not_supported,
    required,
    show,
    too_long,
)
from sliceplane.kit.integers import NotAnInteger, parse_int64
from sliceplane.kit.times import parse_duration
from sliceplane.registry.options import check_dry_run, delete_options_of_document, invalid_options
from sliceplane.registry.types import (
    DeleteOptions,
    FieldValidation,
    ListOptions,
    PatchType,
    WatchOptions,
    WriteOptions,
)
from sliceplane.shell.server.requests.request import Query, Request

FIELD_MANAGER_BYTES_MAX = 128
_VALIDATIONS = get_args(FieldValidation)


def parse_integer(text: str) -> int:
    """A signed 64-bit integer as Go reads it.  Raises the 400 ``StatusError``."""
    try:
        return parse_int64(text)
    except NotAnInteger as error:
        raise bad_request(f"strconv.ParseInt: parsing {show(text)}: {error.why}") from error


def request_timeout_s(query: Query, default_s: float) -> float:
    """The ``timeout`` parameter, bounded by *default_s*.  Raises the 400 ``StatusError``."""
    text = query.first("timeout")
    if not text:
        return default_s
    seconds = parse_duration(text)
    if seconds is None:
        detail = f"time: invalid duration {show(text)}"
        raise bad_request(f"invalid timeout specified in the request URL - {detail}")
    return min(seconds, default_s) if seconds > 0 else default_s


def list_options(query: Query) -> ListOptions:
    limit = query.first("limit")
    return ListOptions(
        label_selector=query.first("labelSelector"),
        field_selector=query.first("fieldSelector"),
        shard_selector=query.first("shardSelector") or None,
        resource_version=query.optional("resourceVersion"),
        resource_version_match=query.optional("resourceVersionMatch"),
        limit=max(parse_integer(limit), 0) if limit else 0,
        continue_token=query.first("continue"),
        send_initial_events=_optional_flag(query, "sendInitialEvents"),
    )


def _optional_flag(query: Query, name: str) -> bool | None:
    return query.flag(name) if name in query else None


def watch_options(query: Query, *, name: str = "") -> WatchOptions:
    """*name* restricts the watch to one object (the legacy ``/watch/.../NAME`` paths)."""
    timeout = query.first("timeoutSeconds")
    fields = query.first("fieldSelector")
    if name:
        fields = _restricted(fields, name)
    return WatchOptions(
        label_selector=query.first("labelSelector"),
        field_selector=fields,
        shard_selector=query.first("shardSelector") or None,
        resource_version=query.optional("resourceVersion"),
        resource_version_match=query.optional("resourceVersionMatch"),
        allow_bookmarks=query.flag("allowWatchBookmarks"),
        send_initial_events=_optional_flag(query, "sendInitialEvents"),
        timeout_s=parse_integer(timeout) if timeout else None,
    )


def _restricted(fields: str, name: str) -> str:
    for requirement in fields.split(","):
        key, _, value = requirement.replace("==", "=").partition("=")
        if key == "metadata.name" and value != name:
            raise bad_request("fieldSelector metadata.name doesn't match requested name")
    return f"{fields},metadata.name={name}" if fields else f"metadata.name={name}"


def write_options(request: Request, kind: str, patch_type: PatchType | None = None) -> WriteOptions:
    """Options of a create, update or patch; *kind* (``CreateOptions``, ...) is what complaints name.

    Raises the 422 ``StatusError`` with every complaint, in upstream's order.
    """
    query = request.query
    errors: list[FieldError] = []
    manager = query.first("fieldManager")
    if patch_type == "apply":
        if not manager:
            errors.append(required("fieldManager", "is required for apply patch"))
    elif patch_type is not None and "force" in query:
        errors.append(forbidden_field("force", "may not be specified for non-apply patch"))
    errors.extend(_check_manager(manager))
    dry_run = query.all("dryRun")
    errors.extend(check_dry_run(dry_run))
    validation = query.first("fieldValidation") or "Warn"
    if validation not in _VALIDATIONS:
        errors.append(not_supported("fieldValidation", validation, ("", *sorted(_VALIDATIONS))))
    if errors:
        raise invalid_options(kind, errors)
    return WriteOptions(
        dry_run=bool(dry_run),
        field_manager=manager or _default_manager(request),
        field_validation=validation,  # type: ignore[arg-type]  # checked against the literal's members above
        force=query.flag("force"),
    )


def _check_manager(manager: str) -> list[FieldError]:
    if len(manager.encode()) > FIELD_MANAGER_BYTES_MAX:
        return [too_long("fieldManager", FIELD_MANAGER_BYTES_MAX)]
    for position, character in enumerate(manager):
        if not character.isprintable():
            why = f"invalid character U+{ord(character):04X} (at position {position})"
            return [invalid_value("fieldManager", manager, why)]
    return []


def _default_manager(request: Request) -> str:
    agent = request.header(b"user-agent").partition("/")[0]
    printable = "".join(character for character in agent if character.isprintable())
    return printable[:FIELD_MANAGER_BYTES_MAX] or "unknown"


def delete_options_of_query(query: Query) -> DeleteOptions:
    grace = query.first("gracePeriodSeconds")
    raw: dict[str, Any] = {}
    if grace:
        raw["gracePeriodSeconds"] = parse_integer(grace)
    if query.first("propagationPolicy"):
        raw["propagationPolicy"] = query.first("propagationPolicy")
    if "orphanDependents" in query:
        raw["orphanDependents"] = query.flag("orphanDependents")
    if "dryRun" in query:
        raw["dryRun"] = list(query.all("dryRun"))
    preconditions = {name: query.first(name) for name in ("uid", "resourceVersion") if query.first(name)}
    if preconditions:
        raw["preconditions"] = preconditions
    return delete_options_of_document(raw)
