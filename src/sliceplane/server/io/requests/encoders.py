"""Watch events as bytes, one encoder for each resource and representation.

What comes out are HTTP/1.1 chunks, ready to be written: one event, one chunk.

The hub groups watchers by encoder identity and encodes an event once for all of them, so
``encoder_for`` hands out the same object for equal arguments. What differs between connections
(only the first event of a Table watch carries column definitions) is left to the stream: see
``TableEncoder.with_columns``.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from sliceplane.api.codec import decode_document, encode
from sliceplane.api.errors import StatusError
from sliceplane.api.meta import Document
from sliceplane.api.scheme import Resource
from sliceplane.server.io.requests.render import escape, no_binary_table, partial_metadata
from sliceplane.server.io.requests.response import Representation
from sliceplane.server.registry.verbs.answers import convert_body
from sliceplane.server.store.types import EventType, Record

if TYPE_CHECKING:
    from sliceplane.server.documents.table import IncludeObject

INITIAL_EVENTS_END = "k8s.io/initial-events-end"
_NO_COLUMNS = b'"columnDefinitions":null'

_EVENT_HEADS = {kind: f'{{"type":"{kind.value}","object":'.encode() for kind in EventType}


def chunk(data: bytes) -> bytes:
    """*data* as a chunk of a chunked response (RFC 9112 section 7.1)."""
    return b"%x\r\n%b\r\n" % (len(data), data)


class JsonEncoder:
    """Plain JSON lines; the base of the other text forms."""

    def __init__(self, resource: Resource) -> None:
        self.resource = resource

    def event(self, kind: EventType, record: Record) -> bytes:
        return chunk(_EVENT_HEADS[kind] + escape(self.shape(record)) + b"}\n")

    def bookmark(self, revision: int, initial_events_end: bool) -> bytes:
        document = self.bookmark_document(revision, initial_events_end)
        return chunk(b'{"type":"BOOKMARK","object":' + encode(document) + b"}\n")

    def error(self, error: StatusError) -> bytes:
        return chunk(b'{"type":"ERROR","object":' + escape(encode(error.status())) + b"}\n")

    def shape(self, record: Record) -> bytes:
        return convert_body(self.resource, record.body)

    def bookmark_document(self, revision: int, initial_events_end: bool) -> Document:
        """An object of the watched kind with nothing but its version."""
        return {
            "kind": self.resource.kind,
            "apiVersion": self.resource.api_version,
            "metadata": _bookmark_metadata(revision, initial_events_end),
        }


class PartialEncoder(JsonEncoder):
    """PartialObjectMetadata lines."""

    def __init__(self, resource: Resource, version: str) -> None:
        super().__init__(resource)
        self.version = version

    def shape(self, record: Record) -> bytes:
        return partial_metadata(convert_body(self.resource, record.body), self.version)

    def bookmark_document(self, revision: int, initial_events_end: bool) -> Document:
        return {
            "kind": "PartialObjectMetadata",
            "apiVersion": f"meta.k8s.io/{self.version}",
            "metadata": _bookmark_metadata(revision, initial_events_end),
        }


class TableEncoder(JsonEncoder):
    """One-row Tables.  Ages are as of the time of encoding."""

    def __init__(
        self, resource: Resource, version: str, include: IncludeObject, clock: Callable[[], float]
    ) -> None:
        super().__init__(resource)
        self.version = version
        self.include = include
        self._clock = clock
        self._columns = b""

    def shape(self, record: Record) -> bytes:
        return self._row(decode_document(convert_body(self.resource, record.body)))

    def bookmark(self, revision: int, initial_events_end: bool) -> bytes:
        # Upstream sends a row of nothing whose object carries the version.
        row = self._row(self.bookmark_document(revision, initial_events_end))
        return chunk(b'{"type":"BOOKMARK","object":' + row + b"}\n")

    def with_columns(self, event: bytes) -> bytes:
        """An event of this encoder with its column definitions, for the first one of a
        connection.
        """
        if not self._columns:
            from sliceplane.server.documents.table import columns_of
            from sliceplane.server.registry.kinds import kind_of

            self._columns = b'"columnDefinitions":' + encode(
                columns_of(kind_of(self.resource).columns)
            )
        head, _, rest = event.partition(b"\r\n")
        assert int(head, 16) == len(rest) - 2, f"a chunk of {len(rest) - 2} bytes says {head!r}"
        return chunk(rest[:-2].replace(_NO_COLUMNS, self._columns, 1))

    def _row(self, document: Document) -> bytes:
        from sliceplane.server.documents.table import build_watch_row
        from sliceplane.server.registry.kinds import kind_of

        return encode(
            build_watch_row(
                self.resource,
                kind_of(self.resource).columns,
                document,
                self._clock(),
                include_object=self.include,
                with_columns=False,
                version=self.version,
            )
        )


class ProtobufEncoder:
    """Length-prefixed frames of WatchEvent messages around enveloped objects."""

    def __init__(self, text: JsonEncoder) -> None:
        self._text = text

    def event(self, kind: EventType, record: Record) -> bytes:
        return _frame(kind.value, decode_document(self._text.shape(record)))

    def bookmark(self, revision: int, initial_events_end: bool) -> bytes:
        return _frame("BOOKMARK", self._text.bookmark_document(revision, initial_events_end))

    def error(self, error: StatusError) -> bytes:
        return _frame("ERROR", error.status())


AnyEncoder = JsonEncoder | ProtobufEncoder


@lru_cache(maxsize=512)
def encoder_for(
    resource: Resource,
    representation: Representation,
    include: IncludeObject,
    clock: Callable[[], float],
) -> AnyEncoder:
    """The one encoder of these arguments.  Raises the 406 ``StatusError`` for a form that watches
    do not have.
    """
    binary = representation.media == "protobuf"
    if representation.form == "Table":
        if binary:
            raise no_binary_table()
        return TableEncoder(resource, representation.form_version, include, clock)
    text = (
        PartialEncoder(resource, representation.form_version)
        if representation.form
        else JsonEncoder(resource)
    )
    return ProtobufEncoder(text) if binary else text


def _bookmark_metadata(revision: int, initial_events_end: bool) -> dict[str, Any]:
    metadata: dict[str, Any] = {"resourceVersion": str(revision)}
    if initial_events_end:
        metadata["annotations"] = {INITIAL_EVENTS_END: "true"}
    return metadata


def _frame(kind: str, document: Document) -> bytes:
    from sliceplane.server.documents.protobuf import encode as encode_protobuf
    from sliceplane.server.documents.protobuf import encode_watch_event

    return chunk(encode_watch_event(kind, encode_protobuf(document)))
