"""Request bodies to documents: JSON, YAML or protobuf, of the kind that the URL names (reference B3).

Kinds are checked by the registry (a body may leave out kind and apiVersion); here bytes become a document, and
what a strict reader would complain of is written down beside it.
"""

from __future__ import annotations

from typing import Any

from sliceplane.api.errors import StatusError, bad_request, show, unsupported_media_type
from sliceplane.api.meta import Document
from sliceplane.api.scheme import Resource
from sliceplane.registry.types import Body, DeleteOptions, PatchType
from sliceplane.shell.apiserver.negotiate import JSON, PROTOBUF, YAML
from sliceplane.shell.apiserver.params import delete_options_of_document, delete_options_of_query
from sliceplane.shell.apiserver.request import Request
from sliceplane.shell.apiserver.yaml_form import YamlError, load

_PATCH_TYPES: dict[str, PatchType] = {
    "application/json-patch+json": "json",
    "application/merge-patch+json": "merge",
    "application/strategic-merge-patch+json": "strategic",
    "application/apply-patch+yaml": "apply",
}
_SUMMARY_BYTES_MAX = 30
_SCHEME = "pkg/api/legacyscheme/scheme.go:30"
#: objects of subresources that are not the resource's own kind, by their schema key
_SUBRESOURCE_KINDS = {"scale": ("Scale", "")}
_DELETE_OPTIONS_VERSIONS = ("v1", "meta.k8s.io/v1")


def media_type(request: Request) -> str:
    """The Content-Type without parameters."""
    return request.header(b"content-type").partition(";")[0].strip()


def patch_type(request: Request) -> PatchType:
    """Raises the 415 ``StatusError``."""
    found = _PATCH_TYPES.get(media_type(request))
    if found is None:
        raise StatusError(415, "UnsupportedMediaType", "415: Unsupported Media Type", {})
    return found


def decode_object(request: Request, raw: bytes, resource: Resource, subresource: str = "") -> Body:
    """The object that a create or update sends.  Raises ``StatusError`` 400 or 415."""
    kind, schema = _SUBRESOURCE_KINDS.get(subresource, (resource.kind, resource.key))
    media = media_type(request)
    document, problems = _decode(media, raw, kind)
    if schema and media != PROTOBUF:
        from sliceplane.api.schema import unknown_fields

        problems = (*unknown_fields(schema, document), *problems)
    return Body(document=document, problems=problems)


def decode_delete_options(request: Request, raw: bytes, resource: Resource) -> DeleteOptions:
    """From the body if there is one, else from the query (reference B9)."""
    if not raw:
        return delete_options_of_query(request.query)
    document, _ = _decode(media_type(request), raw, "DeleteOptions")
    version, kind = document.get("apiVersion"), document.get("kind")
    if kind not in (None, "", "DeleteOptions"):
        group_version = version or "v1"
        raise bad_request(
            f"{kind} in version {show(group_version)} cannot be handled as a DeleteOptions: "
            f"converting ({_go_version(group_version)}.{kind}) to (v1.DeleteOptions): unknown conversion"
        )
    if version not in (None, "", *_DELETE_OPTIONS_VERSIONS, resource.api_version):
        raise _unregistered("DeleteOptions", str(version), "DeleteOptions")
    return delete_options_of_document(document)


def _decode(media: str, raw: bytes, kind: str) -> tuple[Document, tuple[str, ...]]:
    if media in ("", JSON):
        return _decode_json(raw, kind)
    if media == YAML:
        return _decode_yaml(raw, kind)
    if media == PROTOBUF:
        return _decode_protobuf(raw, kind), ()
    accepted = f"{JSON}, {YAML}, {PROTOBUF}"
    raise unsupported_media_type(
        f"the body of the request was in an unknown format - accepted media types include: {accepted}"
    )


def _decode_json(raw: bytes, kind: str) -> tuple[Document, tuple[str, ...]]:
    from sliceplane.api.strict import decode_json

    try:
        value, problems = decode_json(raw)
    except ValueError as error:
        raise _unrecognized(kind, f"json parse error: {error}", raw) from error
    return _object_of(value, kind, raw), problems


def _decode_yaml(raw: bytes, kind: str) -> tuple[Document, tuple[str, ...]]:
    try:
        value, problems = load(raw)
    except YamlError as error:
        raise _unrecognized(kind, f"yaml parse error: {error}", raw) from error
    return _object_of(value, kind, raw), problems


def _decode_protobuf(raw: bytes, kind: str) -> Document:
    from sliceplane.api.protobuf import MAGIC, decode

    if not raw.startswith(MAGIC):
        prefix = " ".join(str(byte) for byte in MAGIC)
        why = f"provided data does not appear to be a protobuf message, expected prefix [{prefix}]"
        raise bad_request(f"the object provided is unrecognized (must be of type {kind}): {why} ({_summary(raw)})")
    try:
        return decode(raw)
    except ValueError as error:
        raise bad_request(f'{kind} in version "v1" cannot be handled as a {kind}: {error}') from error


def _object_of(value: Any, kind: str, raw: bytes) -> Document:
    if value is None:
        return {}
    if isinstance(value, dict):
        return value
    found = {bool: "bool", int: "number", float: "number", str: "string", list: "array"}[type(value)]
    detail = f"json: cannot unmarshal {found} into Go value of type struct"
    raise _unrecognized(kind, f"json parse error: {detail}", raw)


def _unrecognized(kind: str, why: str, raw: bytes) -> StatusError:
    text = f"the object provided is unrecognized (must be of type {kind}): couldn't get version/kind; {why}"
    return bad_request(f"{text} ({_summary(raw)})")


def _summary(raw: bytes) -> str:
    """The start of a body for a message: as text if it looks like JSON, else in hexadecimal digits."""
    if not raw:
        return "<empty>"
    head, dots = raw[:_SUMMARY_BYTES_MAX], " ..." if len(raw) > _SUMMARY_BYTES_MAX else ""
    return (head.decode("utf-8", "replace") if raw.startswith(b"{") else head.hex()) + dots


def _unregistered(found_kind: str, found_version: str, kind: str) -> StatusError:
    return bad_request(
        f"{found_kind} in version {show(_go_version(found_version))} cannot be handled as a {kind}: "
        f"no kind {show(found_kind)} is registered for version {show(found_version)} in scheme {show(_SCHEME)}"
    )


def _go_version(api_version: str) -> str:
    return api_version.rpartition("/")[2]


def go_package(api_version: str) -> str:
    """The package that upstream's messages name an internal type by: ``core``, ``discovery``, ``apps``."""
    return api_version.rpartition("/")[0].partition(".")[0] or "core"
