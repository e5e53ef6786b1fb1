"""Requests of HTTP/1 whose framing is wrong or ambiguous (RFC 9112 2.2, 3.2, 5.1, 6, 7.1).

A server answers each with 400: else two readers of one connection could take different parts of it
for requests.
"""

from __future__ import annotations

import asyncio
import re
import ssl
from collections.abc import Mapping

_CHUNKED = b"Transfer-Encoding: chunked"
_IDENTITY = b"Transfer-Encoding: identity"
_CHUNKS = b"2\r\n{}\r\n0\r\n\r\n"


def request(
    *fields: bytes,
    body: bytes = b"",
    method: bytes = b"POST",
    version: bytes = b"HTTP/1.1",
    path: bytes = b"/livez",
) -> bytes:
    return b"\r\n".join((b" ".join((method, path, version)), b"Host: x", *fields, b"", b"")) + body


def _chunked(*fields: bytes, body: bytes = _CHUNKS, version: bytes = b"HTTP/1.1") -> bytes:
    return request(*fields, body=body, version=version)


#: fields that frame a body in two ways, or in one that readers do not share
_FIELDS: Mapping[str, tuple[bytes, ...]] = {
    "two encodings": (_CHUNKED, _CHUNKED),
    "two encodings, identity last": (_CHUNKED, _IDENTITY),
    "two encodings, identity first": (_IDENTITY, _CHUNKED),
    "two encodings, gzip first": (b"Transfer-Encoding: gzip", _CHUNKED),
    "two encodings, empty first": (b"Transfer-Encoding:", _CHUNKED),
    "two encodings, empty last": (_CHUNKED, b"Transfer-Encoding:"),
    "empty encoding": (b"Transfer-Encoding:",),
    "empty encoding and a length": (b"Transfer-Encoding:", b"Content-Length: 12"),
    "encoding and length": (_CHUNKED, b"Content-Length: 12"),
    "length and encoding": (b"Content-Length: 12", _CHUNKED),
    "gzip, chunked": (b"Transfer-Encoding: gzip, chunked",),
    "chunked twice": (b"Transfer-Encoding: chunked, chunked",),
    "chunked is not last": (b"Transfer-Encoding: chunked, gzip",),
    "identity": (_IDENTITY,),
    "identity, chunked": (b"Transfer-Encoding: identity, chunked",),
    "comma before": (b"Transfer-Encoding: ,chunked",),
    "comma behind": (b"Transfer-Encoding: chunked,",),
    "parameter": (b"Transfer-Encoding: chunked;q=1",),
    "unknown encoding": (b"Transfer-Encoding: xchunked",),
    "vertical tab": (b"Transfer-Encoding: \x0bchunked",),
    "quotes": (b'Transfer-Encoding: "chunked"',),
    "space before the colon": (b"Transfer-Encoding : chunked",),
    "folded encoding": (b"Transfer-Encoding:\r\n chunked",),
    "folded field": (b"X: a\r\n b", _CHUNKED),
    "NUL in a value": (b"X: a\0b", _CHUNKED),
    "NUL in a name": (b"X\0: a", _CHUNKED),
    "CR in a value": (b"X: a\rb", _CHUNKED),
    "CR as the end of a line": (b"X: a\rContent-Length: 2", _CHUNKED),
    "LF as the end of a line": (b"X: a\nContent-Length: 12",),
    "field without a name": (b": x", _CHUNKED),
    "field without a colon": (b"foo", _CHUNKED),
    "two equal lengths": (b"Content-Length: 12", b"Content-Length: 12"),
    "two lengths": (b"Content-Length: 2", b"Content-Length: 12"),
    "list of lengths": (b"Content-Length: 12, 12",),
    "length with a plus": (b"Content-Length: +12",),
    "negative length": (b"Content-Length: -12",),
    "hexadecimal length": (b"Content-Length: 0xc",),
    "empty length": (b"Content-Length:",),
    "length with a space": (b"Content-Length: 1 2",),
    "length with an underscore": (b"Content-Length: 1_2",),
    "length beyond 64 bits": (b"Content-Length: 18446744073709551630",),
    "space before the colon of a length": (b"Content-Length : 12",),
    "two hosts": (b"Host: y", _CHUNKED),
}

BODIES: Mapping[str, bytes] = {
    "chunks with bare LF": b"2\n{}\n0\n\n",
    "chunk size 0x": b"0x2\r\n{}\r\n0\r\n\r\n",
    "chunk size with a plus": b"+2\r\n{}\r\n0\r\n\r\n",
    "negative chunk size": b"-2\r\n{}\r\n0\r\n\r\n",
    "space behind a chunk size": b"2 \r\n{}\r\n0\r\n\r\n",
    "space before a chunk size": b" 2\r\n{}\r\n0\r\n\r\n",
    "no chunk size": b"\r\n{}\r\n0\r\n\r\n",
    "chunk size beyond 64 bits": b"10000000000000002\r\n{}\r\n0\r\n\r\n",
    "chunk without an end": b"2\r\n{}0\r\n\r\n",
    "chunk longer than its size": b"2\r\n{}x\r\n0\r\n\r\n",
    "LF in a chunk extension": b"2;a\n{}\r\n0\r\n\r\n",
    "CR in a chunk extension": b"2;a\rb\r\n{}\r\n0\r\n\r\n",
}

WRONG: Mapping[str, bytes] = {
    **{name: _chunked(*fields) for name, fields in _FIELDS.items()},
    **{name: _chunked(_CHUNKED, body=body) for name, body in BODIES.items()},
    "chunks in HTTP/1.0": _chunked(_CHUNKED, version=b"HTTP/1.0"),
    "HTTP/1.2": _chunked(_CHUNKED, version=b"HTTP/1.2"),
    "HTTP/0.9": b"GET /livez\r\n\r\n",
    "http in lower case": _chunked(_CHUNKED, version=b"http/1.1"),
    "space behind the version": _chunked(_CHUNKED, version=b"HTTP/1.1 "),
    "no host": _chunked(_CHUNKED).replace(b"Host: x\r\n", b""),
    "folded first field": _chunked(_CHUNKED).replace(b"Host", b" Host"),
    "bare LF everywhere": _chunked(_CHUNKED).replace(b"\r\n", b"\n"),
}

#: which must go on working; the answer is another than 400
RIGHT: Mapping[str, bytes] = {
    "chunks": _chunked(_CHUNKED),
    "chunks with an extension": _chunked(_CHUNKED, body=b"2;a=b\r\n{}\r\n0\r\n\r\n"),
    "chunked in other case": _chunked(b"transfer-encoding: Chunked"),
    "length": request(b"Content-Length: 2", body=b"{}"),
    "no body": request(method=b"GET"),
    "HTTP/1.0 without a host": b"GET /livez HTTP/1.0\r\n\r\n",
}


async def codes(port: int, sent: bytes, context: ssl.SSLContext | None = None) -> list[int]:
    """The codes of all answers on a connection of its own; -1 behind them: it was still open half a
    second later.

    A request follows that a reader which saw the end elsewhere would take for another one.
    """
    reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context)
    received = bytearray()
    writer.write(sent)
    still_open = []
    try:
        async with asyncio.timeout(0.5):
            while data := await reader.read(65536):
                received += data
    except TimeoutError:
        still_open = [-1]
    except ConnectionError:
        pass
    writer.transport.abort()
    return [int(code) for code in re.findall(rb"HTTP/[0-9.]+ (\d+)", received)] + still_open
