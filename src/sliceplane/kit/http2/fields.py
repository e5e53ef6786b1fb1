"""Header lists: requests are checked as RFC 9113 section 8 requires, answers are written without a
table.

The dynamic table of HPACK saves bytes if many streams of a connection have the same headers. An xDS
connection has one or two streams, so we use none: an answer's headers are the same bytes on every
connection.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

from hpack import Decoder, HPACKError, OversizedHeaderListError

from sliceplane.kit.http2.frames import ConnectionFault, ErrorCode, StreamFault
from sliceplane.kit.http2.limits import DECODED_BYTES_MAX, LIST_BYTES_MAX

#: bytes that RFC 7541 section 4.1 adds for each field
FIELD_BYTES: Final = 32

_REQUIRED: Final = (b":method", b":scheme", b":path")
_PSEUDO: Final = (*_REQUIRED, b":authority")
#: connection-specific headers of HTTP/1.1, which HTTP/2 forbids (section 8.2.2)
_FORBIDDEN: Final = (
    b"connection",
    b"keep-alive",
    b"proxy-connection",
    b"transfer-encoding",
    b"upgrade",
)
_NAME: Final = re.compile(rb"[!#$%&'*+.^_`|~0-9a-z-]+")
_VALUE: Final = re.compile(rb"(?:[^\0\r\n \t](?:[^\0\r\n]*[^\0\r\n \t])?)?")

Fields = dict[bytes, bytes]


class FieldReader:
    """The decoder of one connection: every block must go through it, or the next ones cannot be
    read.
    """

    def __init__(self) -> None:
        self._decoder = Decoder(DECODED_BYTES_MAX)

    def read(self, block: bytes) -> list[tuple[bytes, bytes]]:
        """Decodes a block. Raises ``ConnectionFault``; ``StreamFault`` if the block was decoded and
        is too large for a request.
        """
        try:
            fields = [
                (bytes(field[0]), bytes(field[1]))
                for field in self._decoder.decode(block, raw=True)
            ]
        except OversizedHeaderListError:
            text = f"a header list of more than {DECODED_BYTES_MAX} bytes"
            raise ConnectionFault(ErrorCode.ENHANCE_YOUR_CALM, text, "header-list") from None
        except HPACKError:  # its text contains memory addresses
            raise ConnectionFault(
                ErrorCode.COMPRESSION_ERROR, "HPACK cannot read a header block"
            ) from None
        size = sum(len(name) + len(value) + FIELD_BYTES for name, value in fields)
        if size > LIST_BYTES_MAX:
            text = f"a header list of {size} bytes; {LIST_BYTES_MAX} are taken"
            raise StreamFault(ErrorCode.ENHANCE_YOUR_CALM, text, "header-list")
        return fields


def request_fields(listed: Iterable[tuple[bytes, bytes]]) -> Fields:
    """Returns a request's headers by name; repeated values are joined by a comma. Raises
    ``StreamFault``.
    """
    fields: Fields = {}
    is_regular = False
    for name, value in listed:
        is_pseudo = name.startswith(b":")
        if is_pseudo and (is_regular or name in fields or name not in _PSEUDO):
            raise _malformed(name, "a pseudo-header that is unknown, late or there twice")
        is_regular = not is_pseudo
        _check_field(name, value)
        fields[name] = fields[name] + b"," + value if name in fields else value
    for name in _REQUIRED:
        if not fields.get(name):
            raise _malformed(name, "is missing")
    return fields


def check_trailers(listed: Iterable[tuple[bytes, bytes]]) -> None:
    """Checks the trailers behind a body and drops them. Raises ``StreamFault``."""
    for name, value in listed:
        if name.startswith(b":"):
            raise _malformed(name, "a pseudo-header in trailers")
        _check_field(name, value)


def _check_field(name: bytes, value: bytes) -> None:
    if not _NAME.fullmatch(name.removeprefix(b":")):
        raise _malformed(name, "is no name of a header in HTTP/2")
    if not _VALUE.fullmatch(value):
        raise _malformed(name, "has a value with a control character, or with space around it")
    if name in _FORBIDDEN or (name == b"te" and value != b"trailers"):
        raise _malformed(name, "is a header of HTTP/1.1's connections")


def _malformed(name: bytes, what: str) -> StreamFault:
    return StreamFault(ErrorCode.PROTOCOL_ERROR, f"{name[:40].decode('latin-1')!r}: {what}")


def literals(fields: Iterable[tuple[bytes, bytes]]) -> bytes:
    """Encodes *fields* without any table (RFC 7541 section 6.2.2)."""
    return b"".join(b"\0" + _text(name) + _text(value) for name, value in fields)


def _text(text: bytes) -> bytes:
    """Encodes a string literal without compression (section 5.2)."""
    length = len(text)
    if length < 127:
        return bytes((length,)) + text
    length -= 127
    octets = bytearray((127,))
    while length >= 128:
        octets.append(length & 127 | 128)
        length >>= 7
    octets.append(length)
    return bytes(octets) + text
