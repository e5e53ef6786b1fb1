"""Server-side apply: PATCH with a configuration instead of a patch (KEP-555).

A configuration is checked as it was sent, before defaults: it has the kind and version of the URL,
all its members are declared in the schema, and no list has a key twice. The merged object is then
handled like an update, or like a create if there was no object.
"""

from __future__ import annotations

import re
from typing import Any, Final

from sliceplane.api import codec
from sliceplane.api.errors import (
    AND_MORE,
    ERRORS_CHARACTERS_MAX,
    ERRORS_MAX,
    Cause,
    StatusError,
    bad_request,
    conflict,
)
from sliceplane.api.meta import Document
from sliceplane.api.scheme import Resource
from sliceplane.server.documents import fields, strict
from sliceplane.server.documents.schema import Struct, drop_nulls, lookup
from sliceplane.server.registry import metadata
from sliceplane.server.registry.authorization.index import require
from sliceplane.server.registry.core import WriteCall, key_of, missing
from sliceplane.server.registry.decoding import UndecodableBody, decoded
from sliceplane.server.registry.documents import document_of
from sliceplane.server.registry.kinds import kind_of
from sliceplane.server.registry.metadata import ANNOTATIONS_MAX_BYTES
from sliceplane.server.registry.types import Outcome, WriteOptions, creation_of
from sliceplane.server.registry.verbs import answers, managed_fields
from sliceplane.server.registry.verbs.create import create_document
from sliceplane.server.registry.verbs.update import check_version, replace

LAST_APPLIED: Final = "kubectl.kubernetes.io/last-applied-configuration"
_YAML_ERRORS: Final = "yaml: unmarshal errors:\n"
_NO_OBJECT: Final = re.compile("json: cannot unmarshal [a-z]+ into Go value")
#: the only manager that maintains the annotation, and that may take over fields of its earlier
#: client-side apply
KUBECTL: Final = "kubectl"
_IDENTITY: Final = ("name", "namespace", "uid", "resourceVersion")


def apply(call: WriteCall, body: bytes) -> Outcome:
    """Raises StatusError: 400, 403, 404, 409, 422, 500."""
    core, ctx, target, options = call
    resource = target.requested
    config, warnings = decode_configuration(body, options)
    record = core.store.latest(key_of(target))
    if record is None and target.subresource:
        raise missing(target.resource, target.name)
    check_type(config, resource.api_version, resource.kind)
    check_configuration(lookup(resource.schema_key), config)
    live = {} if record is None else answers.convert_document(resource, document_of(record))
    part = kind_of(target.resource).parts.get(target.subresource)
    if part is not None:
        # The manager does not become owner of fields that the endpoint does not write.
        head = config.get("metadata", {})
        identity = {name: head[name] for name in _IDENTITY if name in head}
        config = {**config, "metadata": identity, "spec": part.cut(config.get("spec", {}))}
    merged = _merged(call, live, config)
    if record is None and merged["metadata"].get("uid"):
        uid = merged["metadata"]["uid"]
        why = (
            f"uid mismatch: the provided object specified uid {uid}, and no existing object was "
            "found"
        )
        raise conflict(target.resource.plural, target.resource.group, target.name, why)
    new = _decoded(resource, merged)
    head = new["metadata"]
    metadata.match_namespace(target, head)
    metadata.match_name(target, head)
    if record is None:
        require(core.policy, ctx.user, creation_of(target))
        head.pop("resourceVersion", None)
        return create_document(call, new, warnings=warnings, tracked=True)
    check_version(target, head, record, conditional=False)
    return replace(call, new, record, warnings=warnings, tracked=True)


def decode_configuration(body: bytes, options: WriteOptions) -> tuple[Document, tuple[str, ...]]:
    """Returns the first YAML document (JSON is YAML), without nulls, and its warnings.

    Raises the 400 ``StatusError`` for a body that cannot be decoded or, with ``Strict``, has a
    member twice.
    """
    try:
        if body.lstrip()[:1] == b"{":
            # kubectl sends JSON, which is parsed faster than YAML; a body with a duplicate member
            # is parsed as YAML.
            try:
                content = strict.decode_json(body)
            except strict.MalformedBody:
                content = strict.decode_yaml(body)
            if content.problems:
                content = strict.decode_yaml(body)
        else:
            content = strict.decode_yaml(body)
    except strict.MalformedBody as error:
        raise bad_request(f"error decoding YAML: {_complaint(str(error))}") from error
    if options.field_validation == "Ignore" or not content.problems:
        return drop_nulls(content.document), ()
    if options.field_validation == "Strict":
        raise bad_request(f"error strict decoding YAML: {_complaint(content.problems[0])}")
    lines = (
        line.strip()
        for problem in content.problems
        for line in problem.removeprefix(_YAML_ERRORS).split("\n")
    )
    return drop_nulls(content.document), tuple(lines)


def _complaint(text: str) -> str:
    """Returns a YAML error with Go's text for a place where only an object is allowed."""
    match = _NO_OBJECT.match(text)
    if match:
        return (
            f"error unmarshaling JSON: while decoding JSON: {match[0]} of type "
            f"map[string]interface {{}}"
        )
    return f"error converting YAML to JSON: {text}"


def check_type(config: Document, api_version: str, kind: str) -> None:
    """Raises the 400 for a configuration of another kind, or without one."""
    version = config.get("apiVersion")
    sent_kind = config.get("kind")
    if version != api_version or sent_kind != kind:
        raise bad_request(f"invalid object type: {_kind_text(version, sent_kind)}")
    head = config.get("metadata")
    if isinstance(head, dict) and managed_fields.MEMBER in head:
        raise bad_request("metadata.managedFields must be nil")


def _kind_text(version: Any, kind: Any) -> str:
    """Formats a kind as ``apps/v1, Kind=Deployment``; the core group is ""."""
    version = version if isinstance(version, str) else ""
    kind = kind if isinstance(kind, str) else ""
    if version.count("/") > 1:
        # As upstream, an invalid version makes the whole text empty.
        return "/, Kind="
    group, _, short = version.rpartition("/")
    return f"{group}/{short}, Kind={kind}"


def check_configuration(schema: Struct, config: Document) -> None:
    """Raises, as upstream, a 500 for a configuration that does not match the schema."""
    problem = fields.check(schema, config)
    if problem:
        head = config.get("metadata")
        head = head if isinstance(head, dict) else {}
        what = (
            f"{head.get('namespace', '')}/{head.get('name', '')}; "
            f"{_kind_text(config['apiVersion'], config['kind'])}"
        )
        raise StatusError(500, "", f"failed to create typed patch object ({what}): {problem}")


def _merged(call: WriteCall, live: Document, config: Document) -> Document:
    """Returns the live object with the configuration merged.  Raises the 409 ``StatusError``."""
    is_kubectl = call.options.field_manager == KUBECTL
    try:
        merged = managed_fields.on_apply(call, live, config, force=call.options.force)
    except fields.Conflicts as refused:
        remaining = (
            _filter_by_last_applied(call.target.requested, live, refused.conflicts)
            if is_kubectl
            else refused.conflicts
        )
        if remaining:
            raise conflict_error(remaining) from refused
        merged = managed_fields.on_apply(call, live, config, force=True)
    if is_kubectl:
        _renew_last_applied(merged, config)
    return merged


def _filter_by_last_applied(
    resource: Resource, live: Document, conflicts: tuple[fields.Conflict, ...]
) -> tuple[fields.Conflict, ...]:
    """Returns the conflicts over fields that kubectl did not set itself in a client-side apply."""
    text = live.get("metadata", {}).get("annotations", {}).get(LAST_APPLIED)
    if not text:
        return conflicts
    try:
        last = drop_nulls(strict.decode_json(text.encode()).document)
    except strict.MalformedBody:
        return conflicts
    if last.get("apiVersion") != resource.api_version or fields.check(
        lookup(resource.schema_key), last
    ):
        return conflicts
    own = fields.allowed_by_last_applied(fields.shape_of(resource.schema_key), last, live)
    return tuple(clash for clash in conflicts if not fields.has(own, clash.path))


def _renew_last_applied(merged: Document, config: Document) -> None:
    """Updates the annotation of an object that client-side ``kubectl apply`` manages, too; removes
    it if it would be too long.
    """
    annotations: dict[str, str] = merged["metadata"].get("annotations") or {}
    if not annotations.get(LAST_APPLIED):
        return
    head: Document = config.get("metadata", {})
    own = {
        name: value for name, value in head.get("annotations", {}).items() if name != LAST_APPLIED
    }
    bare: Document = {**config, "metadata": {**head, "annotations": own}}
    if not own:
        del bare["metadata"]["annotations"]
    annotations = {**annotations, LAST_APPLIED: codec.encode(_sorted(bare)).decode() + "\n"}
    if (
        sum(len(name.encode()) + len(value.encode()) for name, value in annotations.items())
        > ANNOTATIONS_MAX_BYTES
    ):
        del annotations[LAST_APPLIED]
    merged["metadata"]["annotations"] = annotations


def _sorted(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _sorted(value[name]) for name in sorted(value)}
    return [_sorted(item) for item in value] if isinstance(value, list) else value


def _decoded(resource: Resource, merged: Document) -> Document:
    try:
        return decoded(resource, merged)
    except UndecodableBody as error:
        head = merged["metadata"]
        what = (
            f"{head.get('namespace', '')}/{head.get('name', '')}; "
            f"{_kind_text(resource.api_version, resource.kind)}"
        )
        raise StatusError(
            500, "", f"failed to convert new typed object ({what}) to object: {error}"
        ) from error


def conflict_error(
    conflicts: tuple[fields.Conflict, ...], printed_version: str = ""
) -> StatusError:
    """Returns the 409 of a conflict (KEP-555): causes, and neither kind nor name.
    *printed_version* replaces every version.
    """

    def describe(owner: fields.Identity) -> str:
        return str(owner._replace(api_version=printed_version) if printed_version else owner)

    causes: list[Cause] = []
    remaining = ERRORS_CHARACTERS_MAX
    for clash in conflicts[:ERRORS_MAX]:
        cause = {
            "reason": "FieldManagerConflict",
            "message": f"conflict with {describe(clash.owner)}",
            "field": fields.show(clash.path),
        }
        causes.append(cause)
        remaining -= len(cause["field"])
        if remaining < 0:
            break
    if len(conflicts) == 1:
        text = f"Apply failed with 1 conflict: {causes[0]['message']}: {causes[0]['field']}"
    else:
        grouped: dict[str, list[str]] = {}
        for clash, cause in zip(conflicts, causes, strict=False):
            grouped.setdefault(describe(clash.owner), []).append(f"- {cause['field']}")
        lines = [
            line
            for owner, paths in grouped.items()
            for line in (f"conflicts with {owner}:", *paths)
        ]
        if len(causes) < len(conflicts):
            lines.append(AND_MORE)
        text = f"Apply failed with {len(conflicts)} conflicts: " + "\n".join(lines)
    return StatusError(409, "Conflict", text, {"causes": causes})
