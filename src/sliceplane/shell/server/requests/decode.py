"""Request bodies to documents: JSON, YAML or protobuf, whatever the Content-Type says.

Reading JSON and YAML strictly is ``documents.strict``'s business and kinds are checked by the registry; here is what
HTTP adds: media types, DeleteOptions in the body or in the query, and the objects of subresources.
"""

from __future__ import annotations

from typing import NoReturn

from sliceplane.api.errors import StatusError, bad_request, show, unsupported_media_type
from sliceplane.api.meta import Document
from sliceplane.api.requests import body_kind
from sliceplane.api.scheme import Resource
from sliceplane.registry.options import delete_options_of_document
from sliceplane.registry.types import Body, DeleteOptions, PatchType
from sliceplane.shell.server.requests.negotiate import JSON, PROTOBUF, YAML
from sliceplane.shell.server.requests.params import delete_options_of_query
from sliceplane.shell.server.requests.request import Request

_PATCH_TYPES: dict[str, PatchType] = {
    "application/json-patch+json": "json",
    "application/merge-patch+json": "merge",
    "application/strategic-merge-patch+json": "strategic",
    "application/apply-patch+yaml": "apply",
}
_DELETE_OPTIONS_VERSIONS = ("v1", "meta.k8s.io/v1")


def patch_type(request: Request) -> PatchType:
    """Raises the 415 ``StatusError``."""
    kind = _PATCH_TYPES.get(media_type(request))
    if kind is None:
        raise StatusError(415, "UnsupportedMediaType", "415: Unsupported Media Type", {})
    return kind


def decode_object(media: str, raw: bytes, resource: Resource, subresource: str = "") -> Body:
    """The object that a create or update sends as *media*, with everything that a strict reader would complain of (what
    becomes of the complaints is decided by ``fieldValidation``, later).  Raises ``StatusError`` 400 or 415."""
    foreign = body_kind(subresource)
    if foreign is not None:
        return Body(document=_decode_loosely(media, raw, foreign.api_version, foreign.kind))
    if media == PROTOBUF:
        return Body(document=_decode_loosely(media, raw, resource.api_version, resource.kind))
    if media not in ("", JSON, YAML):
        _refuse_media_type()
    from sliceplane.documents.strict import read_body

    decoded = read_body(resource, raw, body_format="yaml" if media == YAML else "json")
    return Body(document=decoded.document, problems=decoded.problems)


def decode_delete_options(request: Request, raw: bytes, resource: Resource) -> DeleteOptions:
    """From the body if there is one, else from the query."""
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
        raise bad_request(f"{kind} in version {show(version)} cannot be handled as a DeleteOptions: {why}")
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
        from sliceplane.documents.protobuf import decode

        return decode(raw, api_version=api_version, kind=kind)
    if media not in ("", JSON, YAML):
        _refuse_media_type()
    from sliceplane.documents.strict import MalformedBody, decode_json, decode_yaml

    try:
        return (decode_yaml if media == YAML else decode_json)(raw).document
    except MalformedBody as error:
        why = f"couldn't get version/kind; json parse error: {error}"
        raise bad_request(f"the object provided is unrecognized (must be of type {kind}): {why}") from error


def media_type(request: Request) -> str:
    """The Content-Type without parameters."""
    return request.header(b"content-type").partition(";")[0].strip()


def _refuse_media_type() -> NoReturn:
    accepted = f"{JSON}, {YAML}, {PROTOBUF}"
    raise unsupported_media_type(
        f"the body of the request was in an unknown format - accepted media types include: {accepted}"
    )
