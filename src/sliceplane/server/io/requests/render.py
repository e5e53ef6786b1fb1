"""Stored bytes to answers in whatever form was negotiated.

The common case, JSON as it is, never decodes: list items and watch events are slices of stored
bodies. Every other form (Table, PartialObjectMetadata, YAML, protobuf, indentation) starts from the
document.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

import msgspec

from sliceplane.api.codec import decode_document, encode
from sliceplane.api.errors import StatusError
from sliceplane.api.meta import Document
from sliceplane.api.scheme import Resource
from sliceplane.server.io.requests.auth import ANONYMOUS
from sliceplane.server.io.requests.request import Request, parse
from sliceplane.server.io.requests.response import (
    CONTENT_TYPES,
    DEPRECATIONS,
    NO_CACHE,
    NOSNIFF,
    PLAIN_JSON,
    Representation,
    Response,
    negotiate,
    warning_headers,
)
from sliceplane.server.registry.documents import item_bytes, list_metadata
from sliceplane.server.registry.types import ListOutcome

if TYPE_CHECKING:
    from sliceplane.server.documents.table import IncludeObject

_ASCII_ESCAPES = ((b"<", b"\\u003c"), (b">", b"\\u003e"), (b"&", b"\\u0026"))
_ESCAPES = (*_ASCII_ESCAPES, ("\u2028".encode(), b"\\u2028"), ("\u2029".encode(), b"\\u2029"))
_STATUS_PREFIX = b'{"kind":"Status","apiVersion":"v1"'


class _Head(msgspec.Struct):
    """The metadata of a body, left undecoded."""

    metadata: msgspec.Raw = msgspec.Raw(b"{}")


_head_decoder = msgspec.json.Decoder(_Head)


def escape(body: bytes) -> bytes:
    """JSON with the characters that Go's encoder escapes for the sake of HTML; they occur in
    strings only.
    """
    # Nearly every body is ASCII, and to see that is much cheaper than to look for three bytes in a
    # row.
    for plain, escaped in _ASCII_ESCAPES if body.isascii() else _ESCAPES:
        if plain in body:
            body = body.replace(plain, escaped)
    return body


def render_bytes(body: bytes, representation: Representation) -> bytes:
    """A compact JSON document in the representation's media type; the form is done already."""
    if representation.media == "json":
        if representation.pretty:
            return escape(msgspec.json.format(body, indent=2)) + b"\n"
        return escape(body) + b"\n"
    return render_document(decode_document(body), representation)


def render_document(document: Document, representation: Representation) -> bytes:
    """Raises the 406 ``StatusError`` for what has no protobuf form."""
    if representation.media == "yaml":
        return _yaml(document)
    if representation.media == "protobuf":
        if document.get("kind") == "Table":
            raise no_binary_table()
        from sliceplane.server.documents.protobuf import encode as encode_protobuf

        return encode_protobuf(document)
    return render_bytes(encode(document), representation)


def no_binary_table() -> StatusError:
    """The 406 ``StatusError`` for a Table as protobuf."""
    return StatusError(
        406,
        "NotAcceptable",
        "object *v1.Table does not implement the protobuf marshalling interface and cannot be "
        "encoded to a protobuf message",
    )


class RenderedError(StatusError):
    """An error whose Status was rendered where there was time: it has a cause for each of thousands
    of mistakes, which are left out of its members.
    """

    rendered: bytes

    @classmethod
    def of(cls, error: StatusError, representation: Representation) -> RenderedError:
        result = cls(error.code, error.reason, error.message)
        result.retry_after_s = error.retry_after_s
        result.allowed_methods = error.allowed_methods
        result.rendered = render_status(error, representation)
        return result


def render_status(error: StatusError, representation: Representation) -> bytes:
    """A Status in the negotiated media type; errors are never turned into Tables."""
    if isinstance(error, RenderedError):
        return error.rendered
    return render_document(error.status(), representation)


def render_object(
    body: bytes,
    resource: Resource,
    representation: Representation,
    *,
    now: float,
    include_object: IncludeObject = "Metadata",
) -> bytes:
    """One object.  Raises the 406 ``StatusError`` if the form is one of lists."""
    form = representation.form
    if not form or body.startswith(_STATUS_PREFIX):
        return render_bytes(body, representation)
    if form == "Table":
        from sliceplane.server.documents.table import build
        from sliceplane.server.registry.kinds import kind_of

        documents = [decode_document(body)]
        version = representation.form_version
        table = build(
            resource,
            kind_of(resource).columns,
            documents,
            now,
            include_object=include_object,
            version=version,
        )
        return render_document(table, representation)
    if form == "PartialObjectMetadataList":
        why = "you requested PartialObjectMetadataList, but the requested object is not a list"
        raise StatusError(406, "NotAcceptable", f"{why} (*{_go_type(resource.kind, resource)})")
    return render_bytes(partial_metadata(body, representation.form_version), representation)


def render_list(
    outcome: ListOutcome,
    resource: Resource,
    representation: Representation,
    *,
    now: float,
    include_object: IncludeObject = "Metadata",
) -> bytes:
    """A list.  Raises the 406 ``StatusError`` if the form is one of single objects."""
    check_list_form(resource, representation)
    bodies = [record.body for record in outcome.records]
    items = render_items(bodies, resource, representation, now=now, include_object=include_object)
    head, tail = list_frame(outcome, resource, representation, len(items))
    whole = head + items + tail
    return whole if representation.is_binary_list else render_bytes(whole, representation)


def check_list_form(resource: Resource, representation: Representation) -> None:
    """Raises the 406 ``StatusError`` if lists do not have the form."""
    if representation.form == "PartialObjectMetadata":
        why = "you requested PartialObjectMetadata, but the requested object is a list"
        kind = _go_type(resource.list_kind, resource)
        raise StatusError(406, "NotAcceptable", f"{why} (*{kind})")
    if representation.form == "Table" and representation.media == "protobuf":
        raise no_binary_table()


def list_frame(
    outcome: ListOutcome, resource: Resource, representation: Representation, size: int
) -> tuple[bytes, bytes]:
    """Returns what stands before and behind the items of a list, *size* bytes of
    ``render_items`` together: protobuf, or JSON.
    """
    metadata = list_metadata(
        resource_version=outcome.resource_version,
        continue_token=outcome.continue_token,
        remaining=outcome.remaining,
        shard=outcome.shard,
    )
    if representation.is_binary_list:
        from sliceplane.server.documents.protobuf import list_frame as binary_frame

        return binary_frame(resource.api_version, resource.list_kind, metadata, size)
    form = representation.form
    kind = form or resource.list_kind
    version = f"meta.k8s.io/{representation.form_version}" if form else resource.api_version
    document: Document = {"kind": kind, "apiVersion": version, "metadata": metadata}
    if form != "Table":
        return encode(document)[:-1] + b',"items":[', b"]}"
    from sliceplane.server.documents.table import columns_of
    from sliceplane.server.registry.kinds import kind_of

    document["columnDefinitions"] = columns_of(kind_of(resource).columns)
    return encode(document)[:-1] + b',"rows":[', b"]}"


def render_items(
    bodies: Sequence[bytes],
    resource: Resource,
    representation: Representation,
    *,
    now: float,
    include_object: IncludeObject = "Metadata",
) -> bytes:
    """A part of a list: JSON separated by commas, or protobuf messages as they stand in a list."""
    if representation.is_binary_list:
        from sliceplane.server.documents.protobuf import frame_item

        version = resource.api_version
        kind = resource.kind
        return b"".join(frame_item(version, kind, decode_document(body)) for body in bodies)
    if representation.form != "Table":
        version = representation.form_version
        return b",".join(
            partial_metadata(body, version) if representation.form else item_bytes(resource, body)
            for body in bodies
        )
    from sliceplane.server.documents.table import build
    from sliceplane.server.registry.kinds import kind_of

    table = build(
        resource,
        kind_of(resource).columns,
        map(decode_document, bodies),
        now,
        include_object=include_object,
        list_meta={},
        version=representation.form_version,
    )
    return encode(table["rows"])[1:-1]


def partial_metadata(body: bytes, version: str) -> bytes:
    """The PartialObjectMetadata of a stored body."""
    metadata = bytes(_head_decoder.decode(body).metadata)
    head = f'{{"kind":"PartialObjectMetadata","apiVersion":"meta.k8s.io/{version}","metadata":'.encode()
    return head + metadata + b"}"


def _yaml(document: Document) -> bytes:
    """YAML with sorted keys and unbroken lines, as upstream's encoder writes it."""
    import yaml

    text: str = yaml.dump(
        document, Dumper=_yaml_dumper(), allow_unicode=True, width=1 << 30, default_flow_style=False
    )
    return text.encode()


@cache
def _yaml_dumper() -> Any:
    """PyYAML's dumper; but text that Go's reader would take for something else is in quotes too."""
    import yaml

    from sliceplane.kit.yaml_documents import reads_as_text

    base: Any = getattr(yaml, "CSafeDumper", yaml.SafeDumper)

    class Dumper(base):  # type: ignore[misc]  # which base depends on how PyYAML was built
        # An alias for what is there twice would be understood, but no client expects one.
        def ignore_aliases(self, data: object) -> bool:
            return True

    def represent_text(dumper: Any, text: str) -> Any:
        style = None if reads_as_text(text) else '"'
        return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)

    Dumper.add_representer(str, represent_text)
    return Dumper


def _go_type(kind: str, resource: Resource) -> str:
    """An internal type as upstream's messages name it: ``core.PodList``,
    ``discovery.EndpointSlice``.
    """
    return f"{resource.group.partition('.')[0] or 'core'}.{kind}"


def error_representation(accept: str, *, pretty: bool) -> Representation:
    """Returns the representation of an error: the negotiated media type, JSON where negotiation
    itself fails.
    """
    try:
        negotiated = negotiate(accept, pretty=pretty)
    except StatusError:
        return PLAIN_JSON
    return Representation(media=negotiated.media, pretty=negotiated.pretty)


def timeout_response() -> Response:
    """Returns upstream's 504 (``staging/src/k8s.io/apiserver/pkg/server/filters/timeout.go``): no
    kind and no version, as text.
    """
    body = {
        "metadata": {},
        "status": "Failure",
        "message": "Timeout: request did not complete within the allotted timeout",
        "reason": "Timeout",
        "details": {},
        "code": 504,
    }
    return Response(504, encode(body), b"text/plain; charset=utf-8")


def status_response(request: Request, error: StatusError) -> Response:
    """Returns *error* as a Status, with the headers that go with it."""
    # What could not be negotiated is told in JSON.
    accept = "" if error.code == 406 else request.header(b"accept")
    representation = error_representation(accept, pretty=request.pretty)
    headers = [NO_CACHE]
    if error.code == 403:
        headers.append(NOSNIFF)
    if error.code == 401 and request.certificate is not None:
        # A client may have a newer certificate by now, and can show it in another handshake only.
        headers.append((b"connection", b"close"))
    if error.allowed_methods:
        headers.append((b"allow", ", ".join(error.allowed_methods).encode()))
    if error.retry_after_s is not None:
        headers.append((b"retry-after", str(error.retry_after_s).encode()))
    path = parse(request.path)
    if path is not None and request.user not in (None, ANONYMOUS):
        deprecations = DEPRECATIONS.get((path.group, path.version, path.plural), ())
        headers.extend(warning_headers((*deprecations, *error.warnings)))
    body = render_status(error, representation)
    return Response(error.code, body, CONTENT_TYPES[representation.media], tuple(headers))
