"""The envelope: four magic bytes, then ``runtime.Unknown`` {1 typeMeta {1 apiVersion, 2 kind}, 2
raw, 3 contentEncoding, 4 contentType} (kubernetes.io, API concepts, "Kubernetes Protobuf
encoding").

``decode`` is for peers' bytes and raises only ``StatusError`` 400, in upstream's words; ``encode``
is for documents of ours and raises ``StatusError`` 500 if one has a value of a type that its kind
does not allow.

In watch streams each frame is a big-endian length of four bytes and a WatchEvent {1 type, 2 object
RawExtension {1 raw}} without the magic; the raw bytes inside are a complete envelope with it
(``staging/src/k8s.io/apimachinery/pkg/runtime/serializer/protobuf/protobuf.go``).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from sliceplane.api.errors import bad_request, internal, show
from sliceplane.api.meta import Document
from sliceplane.kit.protobuf import (
    BYTES,
    MalformedProtobuf,
    field_number,
    framed,
    read_length,
    read_varint,
    skip,
    varint,
)
from sliceplane.server.documents.protobuf.decoder import decoder
from sliceplane.server.documents.protobuf.encoder import encoder
from sliceplane.server.documents.protobuf.schema import META, Message, find_kind
from sliceplane.server.documents.protobuf.schema import message as schema_message
from sliceplane.server.documents.protobuf.special import Mismatch, decode_text
from sliceplane.server.documents.schema.json_errors import start_of

MAGIC: Final = b"k8s\x00"
#: contentEncoding and contentType, both empty, both written
_TAIL: Final = b"\x1a\x00\x22\x00"
_SCHEME: Final = "pkg/api/legacyscheme/scheme.go:30"
_LENGTH_BYTES: Final = 4


def supports(api_version: str, kind: str) -> bool:
    """Whether the kind (or list kind) has a protobuf form."""
    return find_kind(api_version, kind) is not None


def encode(document: Document) -> bytes:
    """*document*, which names its apiVersion and kind, with its envelope."""
    api_version = str(document.get("apiVersion", ""))
    kind = str(document.get("kind", ""))
    return _enveloped(api_version, kind, _body(_message(api_version, kind), document))


def encode_item(api_version: str, kind: str, document: Document) -> bytes:
    """*document* as a bare message, which is what lists are made of (see ``assemble_list``)."""
    return _body(_message(api_version, kind), document)


def assemble_list(
    api_version: str, list_kind: str, metadata: Document, items: Iterable[bytes]
) -> bytes:
    """A list, with its envelope, from list metadata and items that ``encode_item`` made."""
    fields = _message(api_version, list_kind).fields
    assert fields[1].name == "items", f"{list_kind} is not a list"
    head = framed(b"\x0a", _body(schema_message(f"{META}.ListMeta"), metadata))
    return _enveloped(
        api_version, list_kind, head + b"".join(framed(b"\x12", item) for item in items)
    )


def frame_item(item: bytes) -> bytes:
    """What ``encode_item`` made, as it stands in a list."""
    return framed(b"\x12", item)


def list_frame(
    api_version: str, list_kind: str, metadata: Document, size: int
) -> tuple[bytes, bytes]:
    """What stands before and behind the items of a list, *size* bytes of ``frame_item``
    together.
    """
    empty = assemble_list(api_version, list_kind, metadata, ())
    body = framed(b"\x0a", _body(schema_message(f"{META}.ListMeta"), metadata))
    start = len(empty) - len(_TAIL) - len(framed(b"\x12", body))
    return empty[:start] + b"\x12" + varint(len(body) + size) + body, _TAIL


def _message(api_version: str, kind: str) -> Message:
    message = find_kind(api_version, kind)
    if message is None:
        raise internal(f"{kind} in version {show(api_version)} has no protobuf form")
    return message


def _body(message: Message, document: Document) -> bytes:
    try:
        return encoder(message.name).encode(document)
    except (Mismatch, UnicodeEncodeError) as error:  # the latter: half a surrogate pair
        raise internal(f"cannot encode {message.short_name} as protobuf: {error}") from error


def _enveloped(api_version: str, kind: str, raw: bytes) -> bytes:
    type_meta = framed(b"\x0a", api_version.encode()) + framed(b"\x12", kind.encode())
    return b"".join((MAGIC, framed(b"\x0a", type_meta), framed(b"\x12", raw), _TAIL))


def decode(raw: bytes, *, api_version: str = "", kind: str = "") -> Document:
    """The document in *raw*, with apiVersion and kind.

    *api_version* and *kind* are what the caller expects: they fill in for a type that the envelope
    leaves out and are named in errors. Whether the document is of the expected kind is for the
    caller to judge. Raises StatusError 400 and nothing else, whatever the bytes.
    """
    raw = bytes(raw)
    try:
        found_version, found_kind, body = _open(raw)
    except MalformedProtobuf as error:
        summary = start_of(raw)
        wanted = f" (must be of type {kind})" if kind else ""
        raise bad_request(
            f"the object provided is unrecognized{wanted}: {error} ({summary})"
        ) from None
    found_version = found_version or api_version
    found_kind = found_kind or kind
    for member, value in (("Kind", found_kind), ("apiVersion", found_version)):
        if not value:
            raise bad_request(f"Object '{member}' is missing in the protobuf envelope")
    prefix = (
        f"{found_kind} in version {show(found_version.rpartition('/')[2])} cannot be handled as a "
    )
    prefix += kind or found_kind
    message = find_kind(found_version, found_kind)
    if message is None:
        unknown = (
            f"no kind {show(found_kind)} is registered for version {show(found_version)} in "
            f"scheme {show(_SCHEME)}"
        )
        raise bad_request(f"{prefix}: {unknown}")
    document: Document = {"apiVersion": found_version, "kind": found_kind}
    try:
        decoder(message.name).read(document, body, 0, len(body))
    except MalformedProtobuf as error:
        raise bad_request(f"{prefix}: {error}") from None
    if any(field.name == "items" for field in message.fields) and found_kind.endswith("List"):
        document.setdefault("items", [])
    return document


def _open(raw: bytes) -> tuple[str, str, bytes]:
    if not raw:
        raise MalformedProtobuf("empty data")
    if not raw.startswith(MAGIC):
        numbers = " ".join(str(byte) for byte in MAGIC)
        raise MalformedProtobuf(
            f"provided data does not appear to be a protobuf message, expected prefix [{numbers}]"
        )
    if len(raw) == len(MAGIC):
        raise MalformedProtobuf("empty body")
    type_metas: list[bytes] = []
    body = b""
    for number, start, stop in _fields(raw, len(MAGIC), len(raw), "Unknown", 4):
        if number == 1:
            type_metas.append(raw[start:stop])
        elif number == 2:
            body = raw[start:stop]
    api_version = kind = ""
    type_meta = b"".join(
        type_metas
    )  # a message that comes twice is merged, which is what joining does
    for number, start, stop in _fields(type_meta, 0, len(type_meta), "TypeMeta", 2):
        if number == 1:
            api_version = decode_text(type_meta[start:stop])
        else:
            kind = decode_text(type_meta[start:stop])
    return api_version, kind, body


def _fields(
    data: bytes, position: int, end: int, name: str, last: int
) -> list[tuple[int, int, int]]:
    """(number, start, stop) of the fields 1..*last*, all length-delimited; others are skipped."""
    spans: list[tuple[int, int, int]] = []
    while position < end:
        key, position = read_varint(data, position, end)
        number = field_number(key, name)
        if number > last:
            position = skip(data, position, end, key & 7)
            continue
        if key & 7 != BYTES:
            raise MalformedProtobuf(
                f"proto: wrong wireType = {key & 7} for field {number} of {name}"
            )
        start, position = read_length(data, position, end)
        spans.append((number, start, position))
    return spans


def encode_watch_event(event_type: str, envelope: bytes) -> bytes:
    """One frame.  *envelope* is what ``encode`` gave for the object, the bookmark or the Status."""
    event = framed(b"\x0a", event_type.encode()) + framed(b"\x12", framed(b"\x0a", envelope))
    return len(event).to_bytes(_LENGTH_BYTES, "big") + event
