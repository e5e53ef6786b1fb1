"""Query parameters and bodies of requests, converted to the registry's types with upstream's
complaints.

Which combinations of list and watch parameters make sense is the registry's business, as is what is
in a document; here each value is parsed by itself
(``staging/src/k8s.io/apimachinery/pkg/apis/meta/v1/types.go``, ``ListOptions`` and the others), and
a body by its Content-Type: JSON, YAML or protobuf.
"""

from __future__ import annotations

from typing import Any, NoReturn, get_args

from sliceplane.api.errors import (
    FieldError,
    StatusError,
    bad_request,
    forbidden_field,
    invalid_value,
    not_supported,
    required,
    show,
    too_long,
)
from sliceplane.api.meta import Document
from sliceplane.api.requests import body_kind
from sliceplane.api.scheme import Resource
from sliceplane.kit.integers import NotAnInteger, parse_int64
from sliceplane.kit.times import parse_duration
from sliceplane.server.io.requests.request import Query, Request
from sliceplane.server.io.requests.response import JSON, PROTOBUF, YAML
from sliceplane.server.registry.types import (
    Body,
    DeleteOptions,
    FieldValidation,
    ListOptions,
    PatchType,
    WatchOptions,
    WriteOptions,
)
from sliceplane.server.registry.verbs.options import (
    check_dry_run,
    delete_options_of_document,
    invalid_options,
)

FIELD_MANAGER_BYTES_MAX = 128
_VALIDATIONS = get_args(FieldValidation)
PATCH_TYPES: dict[str, PatchType] = {
    "application/json-patch+json": "json",
    "application/merge-patch+json": "merge",
    "application/strategic-merge-patch+json": "strategic",
    "application/apply-patch+yaml": "apply",
}
_DELETE_OPTIONS_VERSIONS = ("v1", "meta.k8s.io/v1")


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
    """Options of a create, update or patch; *kind* (``CreateOptions``, ...) is what complaints
    name.

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
    if manager:
        errors.extend(_check_manager(manager))
    dry_run = query.get("dryRun")
    if dry_run:
        errors.extend(check_dry_run(dry_run))
    validation = query.first("fieldValidation") or "Warn"
    if validation not in _VALIDATIONS:
        errors.append(not_supported("fieldValidation", validation, ("", *sorted(_VALIDATIONS))))
    if errors:
        raise invalid_options(kind, errors)
    if not manager:
        agent = request.header(b"user-agent").partition("/")[0]
        if not agent.isprintable():
            agent = "".join(character for character in agent if character.isprintable())
        manager = agent[:FIELD_MANAGER_BYTES_MAX] or "unknown"
    return WriteOptions(
        dry_run=bool(dry_run),
        field_manager=manager,
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
        raw["dryRun"] = query["dryRun"]
    preconditions = {
        name: query.first(name) for name in ("uid", "resourceVersion") if query.first(name)
    }
    if preconditions:
        raw["preconditions"] = preconditions
    return delete_options_of_document(raw)


def decode_object(media: str, raw: bytes, resource: Resource, subresource: str = "") -> Body:
    """The object that a create or update sends as *media*, with everything that a strict reader
    would complain of (what becomes of the complaints is decided by ``fieldValidation``, later).
    Raises ``StatusError`` 400 or 415.
    """
    foreign = body_kind(subresource) if subresource else None
    if foreign is not None:
        return Body(document=_decode_loosely(media, raw, foreign.api_version, foreign.kind))
    if media == PROTOBUF:
        return Body(document=_decode_loosely(media, raw, resource.api_version, resource.kind))
    if media not in ("", JSON, YAML):
        _refuse_media_type()
    from sliceplane.server.documents.strict import read_body
    from sliceplane.server.registry.decoding import read_json

    if media != YAML and subresource in ("", "status"):
        return read_json(resource, raw)
    decoded = read_body(resource, raw, body_format="yaml" if media == YAML else "json")
    return Body(document=decoded.document, problems=decoded.problems)


def decode_delete_options(request: Request, raw: bytes, resource: Resource) -> DeleteOptions:
    """Reads the options from the body if there is one, else from the query."""
    if not raw:
        return delete_options_of_query(request.query)
    return decode_delete_options_body(media_type(request), raw, resource)


def decode_delete_options_body(media: str, raw: bytes, resource: Resource) -> DeleteOptions:
    document = _decode_loosely(media, raw, "v1", "DeleteOptions")
    version = document.get("apiVersion") or "v1"
    kind = document.get("kind") or "DeleteOptions"
    if kind != "DeleteOptions":
        short = str(version).rpartition("/")[2]
        why = f"converting ({short}.{kind}) to (v1.DeleteOptions): unknown conversion"
        raise bad_request(
            f"{kind} in version {show(version)} cannot be handled as a DeleteOptions: {why}"
        )
    if version not in (*_DELETE_OPTIONS_VERSIONS, resource.api_version):
        why = f'no kind "DeleteOptions" is registered for version {show(version)} in scheme'
        raise bad_request(
            f"DeleteOptions in version {show(version)} cannot be handled as a DeleteOptions: "
            f'{why} "pkg/api/legacyscheme/scheme.go:30"'
        )
    return delete_options_of_document(document)


def _decode_loosely(media: str, raw: bytes, api_version: str, kind: str) -> Document:
    """A document of a kind that has no schema of its own here."""
    if media == PROTOBUF:
        from sliceplane.server.documents.protobuf import decode

        return decode(raw, api_version=api_version, kind=kind)
    if media not in ("", JSON, YAML):
        _refuse_media_type()
    from sliceplane.server.documents.strict import MalformedBody, decode_json, decode_yaml

    try:
        return (decode_yaml if media == YAML else decode_json)(raw).document
    except MalformedBody as error:
        why = f"couldn't get version/kind; json parse error: {error}"
        raise bad_request(
            f"the object provided is unrecognized (must be of type {kind}): {why}"
        ) from error


def media_type(request: Request) -> str:
    """The Content-Type without parameters."""
    return request.header(b"content-type").partition(";")[0].strip()


def _refuse_media_type() -> NoReturn:
    accepted = f"{JSON}, {YAML}, {PROTOBUF}"
    raise StatusError(
        415,
        "UnsupportedMediaType",
        "the body of the request was in an unknown format - accepted media types include: "
        f"{accepted}",
    )
