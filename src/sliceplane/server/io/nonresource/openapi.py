"""The OpenAPI documents over HTTP: negotiation, hashes, redirects and conditional requests
(KEP-2896).

Making the documents takes a while the first time, so it is done in a thread; they never change
afterwards.
"""

from __future__ import annotations

import asyncio
import hashlib
from email.utils import formatdate, parsedate_to_datetime
from functools import cache

from sliceplane.api.codec import encode
from sliceplane.api.scheme import Resource
from sliceplane.server.io.requests.request import Request
from sliceplane.server.io.requests.response import (
    JSON,
    NO_CACHE,
    Header,
    Response,
    conditional,
    parse_accept,
)

_IMMUTABLE_S = 365 * 86_400
_IMMUTABLE = (b"cache-control", b"public, immutable")
_VARY = (b"vary", b"Accept")
_VARY_BOTH = (b"vary", b"Accept-Encoding, Accept")
_V2_PROTOBUF = "application/com.github.proto-openapi.spec.v2.v1.0+protobuf"
_V2_PROTOBUF_OLD = "application/com.github.proto-openapi.spec.v2@v1.0+protobuf"
_V3_PROTOBUF = "application/com.github.proto-openapi.spec.v3.v1.0+protobuf"
_V3_PROTOBUF_OLD = "application/com.github.proto-openapi.spec.v3@v1.0+protobuf"
_JSON_TYPES = (JSON, "application/*", "*/*")


async def respond(
    request: Request, served: tuple[Resource, ...], *, now: float, started: float
) -> Response | None:
    """The answer to a GET below ``/openapi``; ``None`` if there is no such page.

    *served* is what the server offers; *started* (seconds since the epoch) is when the documents
    came to be, for ``Last-Modified``.
    """
    path = request.path
    if path == "/openapi/v2":
        return _v2(request)
    if path == "/openapi/v3":
        return await _index(request, served, started)
    if path.startswith("/openapi/v3/"):
        return await _document(request, path.removeprefix("/openapi/v3/"), served, now)
    return None


async def _index(request: Request, served: tuple[Resource, ...], started: float) -> Response:
    modified = formatdate(started, usegmt=True)
    headers = (NO_CACHE, (b"last-modified", modified.encode()))
    if _unmodified_since(request.header(b"if-modified-since"), started):
        return Response(304, b"", headers=headers)
    from sliceplane.server.documents.openapi import index

    body = encode(await asyncio.to_thread(index, served))
    return Response(200, body, b"text/plain; charset=utf-8", headers)


def _unmodified_since(text: str, started: float) -> bool:
    if not text:
        return False
    try:
        return int(started) <= parsedate_to_datetime(text).timestamp()
    except ValueError:
        return False


async def _document(
    request: Request, name: str, served: tuple[Resource, ...], now: float
) -> Response:
    from sliceplane.server.documents.openapi import (
        document,
        document_names,
        document_protobuf,
        hash_of,
    )

    if name not in document_names(served):
        return _empty(404)
    offered = dict.fromkeys(_JSON_TYPES, JSON)
    offered[_V3_PROTOBUF] = offered[_V3_PROTOBUF_OLD] = _V3_PROTOBUF
    chosen = _choose(request, offered)
    if chosen is None:
        return _empty(406)
    body = await asyncio.to_thread(document if chosen == JSON else document_protobuf, name)
    assert body is not None, f"{name} is a document"
    digest = hash_of(name)
    requested_hash = request.query.first("hash")
    if requested_hash and requested_hash != digest:
        location = f"/openapi/v3/{name}?hash={digest}".encode()
        return Response(301, b"", b"", (NO_CACHE, (b"location", location)))
    caching: tuple[Header, ...] = (NO_CACHE,)
    if requested_hash:
        expires = formatdate(now + _IMMUTABLE_S, usegmt=True).encode()
        caching = (_IMMUTABLE, (b"expires", expires))
    etag = f'"{digest}"'.encode()
    return conditional(request, body, chosen.encode(), etag, _VARY, *caching)


def _v2(request: Request) -> Response:
    offered = dict.fromkeys(_JSON_TYPES, JSON)
    offered[_V2_PROTOBUF] = offered[_V2_PROTOBUF_OLD] = _V2_PROTOBUF
    chosen = _choose(request, offered)
    if chosen is None:
        return _empty(406)
    body, etag = _v2_body(chosen)
    return conditional(request, body, chosen.encode(), etag, NO_CACHE, _VARY_BOTH)


@cache
def _v2_body(media: str) -> tuple[bytes, bytes]:
    from sliceplane.server.documents.openapi import v2_json, v2_protobuf

    body = v2_json() if media == JSON else v2_protobuf()
    return body, f'"{hashlib.sha512(body).hexdigest().upper()}"'.encode()


def _choose(request: Request, offered: dict[str, str]) -> str | None:
    """The type to answer in, or ``None``; no Accept header at all means JSON."""
    accept = request.header(b"accept")
    if not accept.strip():
        return JSON
    return next(
        (offered[clause.type] for clause in parse_accept(accept) if clause.type in offered), None
    )


def _empty(code: int) -> Response:
    return Response(code, b"", b"")
