"""A reader of watch streams in protobuf, for tests that compare them with what was sent."""

from __future__ import annotations

from sliceplane.api.meta import Document
from sliceplane.kit.protobuf import BYTES, read_length, read_varint
from sliceplane.server.documents.protobuf import decode

_LENGTH_BYTES = 4


class FrameReader:
    """Cuts a stream into events, however it was chunked."""

    def __init__(self) -> None:
        self._buffer = b""

    @property
    def pending_bytes(self) -> int:
        """Bytes of a frame that is not complete; above 0 at its end, the stream was cut off."""
        return len(self._buffer)

    def feed(self, chunk: bytes) -> list[tuple[str, Document]]:
        """Returns the type and the object of every event that *chunk* completes."""
        self._buffer += chunk
        events = []
        while len(self._buffer) >= _LENGTH_BYTES:
            end = _LENGTH_BYTES + int.from_bytes(self._buffer[:_LENGTH_BYTES], "big")
            if len(self._buffer) < end:
                break
            fields = _fields(self._buffer[_LENGTH_BYTES:end])
            events.append((fields[1].decode(), decode(_fields(fields[2])[1])))
            self._buffer = self._buffer[end:]
        return events


def _fields(data: bytes) -> dict[int, bytes]:
    fields = {}
    position = 0
    while position < len(data):
        key, position = read_varint(data, position, len(data))
        assert key & 7 == BYTES, f"field {key >> 3} has wire type {key & 7}"
        start, position = read_length(data, position, len(data))
        fields[key >> 3] = data[start:position]
    return fields
