"""The size of a stored object as a watch event, for all estimates of bytes on the wire."""

from __future__ import annotations

from typing import Final, Literal

from sliceplane.api.codec import decode_document
from sliceplane.server.documents import protobuf

Encoding = Literal["json", "protobuf"]
_JSON_FRAME: Final = len(b'{"type":"","object":}\n')
_UNITS: Final = ("bytes", "KB", "MB", "GB", "TB", "PB")


def object_bytes(stored: bytes, encoding: Encoding) -> int:
    """Returns the encoded size. *stored*: the JSON of an object as a server stores it."""
    return len(stored) if encoding == "json" else len(protobuf.encode(decode_document(stored)))


def event_bytes(stored: bytes, encoding: Encoding, kind: str = "MODIFIED") -> int:
    """Returns the size as a watch event, framing included; HTTP chunks and TLS are extra."""
    if encoding == "json":
        return len(stored) + _JSON_FRAME + len(kind)
    return len(protobuf.encode_watch_event(kind, protobuf.encode(decode_document(stored))))


def human_bytes(count: float) -> str:
    """Formats *count* in decimal units, as KEP-0752 does, with three digits."""
    unit = 0
    while count >= 999.5 and unit < len(_UNITS) - 1:
        count /= 1000
        unit += 1
    return (
        f"{count:.0f} {_UNITS[unit]}"
        if unit == 0 or count >= 99.95
        else f"{count:.3g} {_UNITS[unit]}"
    )
