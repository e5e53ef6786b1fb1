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

from typing import Final

from sliceplane.api.errors import bad_request, internal, show
from sliceplane.api.meta import Document
from sliceplane.kit.protobuf import (
    BYTES,
    MalformedProtobuf,
    framed,
    varint,
)
from sliceplane.server.documents.protobuf.decoder import decoder
from sliceplane.server.documents.protobuf.encoder import encoder
from sliceplane.server.documents.protobuf.schema import META, Message, find_kind
from sliceplane.server.documents.protobuf.schema import message as schema_message
from sliceplane.server.documents.protobuf.special import Mismatch, decode_text, flat_fields
from sliceplane.server.documents.schema.json_errors import start_of

MAGIC: Final = b"k8s\x00"
#: contentEncoding and contentType, both empty, both written
_TAIL: Final = b"\x1a\x00\x22\x00"
_SCHEME: Final = "pkg/api/legacyscheme/scheme.go:30"
_LENGTH_BYTES: Final = 4


def supports(api_version: str, kind: str) -> bool:
    """Returns True if the kind (or list kind) has a protobuf form."""
    return find_kind(api_version, kind) is not None


def encode(document: Document) -> bytes:
    """*document*, which names its apiVersion and kind, with its envelope."""
    api_version = str(document.get("apiVersion", ""))
    kind = str(document.get("kind", ""))
    content = framed(b"\x12", _body(_message(api_version, kind), document))
    return b"".join((_start(api_version, kind), content, _TAIL))


def frame_item(api_version: str, kind: str, document: Document) -> bytes:
    """Returns *document* as it stands in a list: a bare message and its length."""
    return framed(b"\x12", _body(_message(api_version, kind), document))


def list_frame(
    api_version: str, list_kind: str, metadata: Document, size: int
) -> tuple[bytes, bytes]:
    """Returns what stands before and behind the items of a list, *size* bytes of ``frame_item``
    together.
    """
    assert _message(api_version, list_kind).fields[1].name == "items", f"{list_kind} is no list"
    head = framed(b"\x0a", _body(schema_message(f"{META}.ListMeta"), metadata))
    start = _start(api_version, list_kind)
    return start + b"\x12" + varint(len(head) + size) + head, _TAIL


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


def _start(api_version: str, kind: str) -> bytes:
    """The envelope up to its content."""
    type_meta = framed(b"\x0a", api_version.encode()) + framed(b"\x12", kind.encode())
    return MAGIC + framed(b"\x0a", type_meta)


def decode(raw: bytes, *, api_version: str = "", kind: str = "") -> Document:
    """The document in *raw*, with apiVersion and kind.

    *api_version* and *kind* are what the caller expects: they fill in for a type that the envelope
    leaves out and are named in errors. Whether the document is of the expected kind is for the
    caller to judge. Raises StatusError 400 and nothing else, whatever the bytes.
    """
    raw = bytes(raw)
    try:
        actual_version, actual_kind, body = _open(raw)
    except MalformedProtobuf as error:
        summary = start_of(raw)
        expected_type = f" (must be of type {kind})" if kind else ""
        raise bad_request(
            f"the object provided is unrecognized{expected_type}: {error} ({summary})"
        ) from None
    actual_version = actual_version or api_version
    actual_kind = actual_kind or kind
    for member, value in (("Kind", actual_kind), ("apiVersion", actual_version)):
        if not value:
            raise bad_request(f"Object '{member}' is missing in the protobuf envelope")
    prefix = f"{actual_kind} in version {show(actual_version.rpartition('/')[2])} cannot be handled as a "
    prefix += kind or actual_kind
    message = find_kind(actual_version, actual_kind)
    if message is None:
        unknown = (
            f"no kind {show(actual_kind)} is registered for version {show(actual_version)} in "
            f"scheme {show(_SCHEME)}"
        )
        raise bad_request(f"{prefix}: {unknown}")
    document: Document = {"apiVersion": actual_version, "kind": actual_kind}
    try:
        decoder(message.name).read(document, body, 0, len(body))
    except MalformedProtobuf as error:
        raise bad_request(f"{prefix}: {error}") from None
    if any(field.name == "items" for field in message.fields) and actual_kind.endswith("List"):
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
    for number, value in flat_fields(raw, "Unknown", (BYTES,) * 4, len(MAGIC)):
        if number == 1:
            type_metas.append(value)
        elif number == 2:
            body = value
    # A message that comes twice is merged, which is what joining does.
    type_meta = dict(flat_fields(b"".join(type_metas), "TypeMeta", (BYTES, BYTES)))
    return decode_text(type_meta.get(1, b"")), decode_text(type_meta.get(2, b"")), body


def encode_watch_event(event_type: str, envelope: bytes) -> bytes:
    """One frame.  *envelope* is what ``encode`` gave for the object, the bookmark or the Status."""
    event = framed(b"\x0a", event_type.encode()) + framed(b"\x12", framed(b"\x0a", envelope))
    return len(event).to_bytes(_LENGTH_BYTES, "big") + event
