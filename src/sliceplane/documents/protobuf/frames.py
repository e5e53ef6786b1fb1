"""Watch streams: each frame is a big-endian length of four bytes and a WatchEvent {1 type, 2 object
RawExtension {1 raw}} without the magic; the raw bytes inside are a complete envelope with it
(``staging/src/k8s.io/apimachinery/pkg/runtime/serializer/protobuf/protobuf.go``).
"""

from __future__ import annotations

from typing import Final

from sliceplane.api.errors import bad_request
from sliceplane.api.meta import Document
from sliceplane.documents.protobuf.envelope import decode
from sliceplane.documents.protobuf.special import decode_text
from sliceplane.documents.protobuf.wire import (
    BYTES,
    MalformedProtobuf,
    field_number,
    framed,
    read_length,
    read_varint,
    skip,
)

#: what a reader accepts; a writer's frames are bounded by the size of objects (3 MiB bodies)
FRAME_BYTES_MAX: Final = 16 * 1024 * 1024
_LENGTH_BYTES: Final = 4


def encode_watch_event(event_type: str, envelope: bytes) -> bytes:
    """One frame.  *envelope* is what ``encode`` gave for the object, the bookmark or the Status."""
    event = framed(b"\x0a", event_type.encode()) + framed(b"\x12", framed(b"\x0a", envelope))
    return len(event).to_bytes(_LENGTH_BYTES, "big") + event


class FrameReader:
    """Cuts a stream into events, however it was chunked.  Owned by one reader of one stream."""

    def __init__(self, max_bytes: int = FRAME_BYTES_MAX) -> None:
        self._max_bytes = max_bytes
        self._buffer = bytearray()

    @property
    def pending_bytes(self) -> int:
        """Bytes of a frame that is not complete; more than 0 at the end of a stream means it was cut off."""
        return len(self._buffer)

    def feed(self, chunk: bytes) -> tuple[tuple[str, Document], ...]:
        """(type, object) of every event that *chunk* completes, in order.

        Raises StatusError 400 for a frame that is too long or no event; the stream is useless then.
        """
        self._buffer += chunk
        events: list[tuple[str, Document]] = []
        position = 0
        while len(self._buffer) - position >= _LENGTH_BYTES:
            start = position + _LENGTH_BYTES
            size = int.from_bytes(self._buffer[position:start], "big")
            if size > self._max_bytes:
                raise bad_request(f"watch frame of {size} bytes: limit is {self._max_bytes}")
            if len(self._buffer) - start < size:
                break
            events.append(_decode_event(bytes(self._buffer[start : start + size])))
            position = start + size
        del self._buffer[:position]
        return tuple(events)


def _decode_event(data: bytes) -> tuple[str, Document]:
    try:
        parts = _delimited_fields(data, "WatchEvent", 2)
        event_type = decode_text(parts.get(1, b""))
        envelope = _delimited_fields(parts.get(2, b""), "RawExtension", 1).get(1, b"")
    except MalformedProtobuf as error:
        raise bad_request(f"unable to decode watch event: {error}") from None
    return event_type, decode(envelope)


def _delimited_fields(data: bytes, name: str, last: int) -> dict[int, bytes]:
    """The last occurrence of each of the fields 1..*last*, all length-delimited."""
    contents: dict[int, bytes] = {}
    position = 0
    end = len(data)
    while position < end:
        key, position = read_varint(data, position, end)
        number = field_number(key, name)
        if number > last:
            position = skip(data, position, end, key & 7)
        elif key & 7 != BYTES:
            raise MalformedProtobuf(f"proto: wrong wireType = {key & 7} for field {number} of {name}")
        else:
            start, position = read_length(data, position, end)
            contents[number] = data[start:position]
    return contents
