"""Answers: in what they are given, as values (a code, bytes and headers), and to the wire, so that
every reply has what every reply must have.

``negotiate`` is a pure function of the Accept header and of what an endpoint can do; clients send
the same few headers over and over, so its results are cached. Upstream:
``staging/src/k8s.io/apiserver/pkg/endpoints/handlers/negotiation/negotiate.go``.

``Date`` and ``Audit-Id`` are added by ``send_response``, gzip is done there, and HEAD, 304 and
Content-Length are right by construction. A large body is handed to the connection as its client
takes it; what waits is counted, and there is an end to how much; how long a client may take nothing
is the connection's business.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from email.utils import formatdate
from functools import lru_cache, partial
from typing import Any, Literal

import msgspec

from sliceplane.api.errors import StatusError
from sliceplane.kit.containers import remembered
from sliceplane.server.fairness.types import uid_of
from sliceplane.server.io.requests.limits import OverCapacity, RequestCharges
from sliceplane.server.io.requests.request import Request, Send

Media = Literal["json", "yaml", "protobuf"]
Form = Literal["", "Table", "PartialObjectMetadata", "PartialObjectMetadataList"]

JSON = "application/json"
YAML = "application/yaml"
PROTOBUF = "application/vnd.kubernetes.protobuf"

MEDIA: dict[str, Media] = {JSON: "json", YAML: "yaml", PROTOBUF: "protobuf"}
CONTENT_TYPES: dict[Media, bytes] = {media: name.encode() for name, media in MEDIA.items()}
_FORMS = ("Table", "PartialObjectMetadata", "PartialObjectMetadataList")
_OBJECT_TYPES = f"{JSON}, {YAML}, {PROTOBUF}"
_WATCH_TYPES = f"{JSON};stream=watch, {PROTOBUF};stream=watch"
_TRUTHS = ("1", "t", "T", "true", "TRUE", "True")


class Clause(msgspec.Struct, frozen=True):
    """One element of an Accept header; ``parameters`` without ``q``."""

    type: str
    parameters: tuple[tuple[str, str], ...]
    quality: float

    def parameter(self, name: str) -> str:
        return next((value for key, value in self.parameters if key == name), "")


class Representation(msgspec.Struct, frozen=True):
    """The form of an answer: the media type, and the form the object is converted to ("" = as it
    is).
    """

    media: Media = "json"
    form: Form = ""
    #: version of meta.k8s.io for Table and PartialObjectMetadata
    form_version: str = "v1"
    pretty: bool = False

    @property
    def is_binary_list(self) -> bool:
        """Returns True if a list is protobuf: it is put together of messages, not of JSON."""
        return self.media == "protobuf" and not self.form

    @property
    def watch_content_type(self) -> bytes:
        return f"{PROTOBUF};stream=watch".encode() if self.media == "protobuf" else JSON.encode()


PLAIN_JSON = Representation()


@remembered(1024)
def parse_accept(header: str) -> tuple[Clause, ...]:
    """The clauses that are acceptable, best first; equals in the order in which they were sent."""
    clauses = []
    for part in header.split(","):
        name, *pieces = (piece.strip() for piece in part.split(";"))
        if not name:
            continue
        quality = 1.0
        parameters = []
        for piece in pieces:
            key, _, value = piece.partition("=")
            value = value.strip().strip('"')
            if key.strip() == "q":
                try:
                    quality = float(value)
                except ValueError:
                    quality = 1.0
            else:
                parameters.append((key.strip(), value))
        clauses.append(Clause(name, tuple(parameters), quality))
    clauses.sort(
        key=lambda clause: (-clause.quality, clause.type == "*/*", clause.type.endswith("/*"))
    )
    return tuple(clause for clause in clauses if clause.quality > 0)


@remembered(1024)
def negotiate(
    accept: str, *, watch: bool = False, pretty: bool = False, tables: bool = True
) -> Representation:
    """The representation for the first clause that can be met.

    *pretty* says that the request asks for it elsewhere (query, user agent); *tables*, that what is
    asked for has columns. Raises the 406 ``StatusError`` with one of upstream's two messages.
    """
    clauses = parse_accept(accept)
    if not clauses and not accept.strip():
        return Representation(pretty=pretty and not watch)
    is_supported_type = False
    for clause in clauses:
        media: Media | None = "json" if clause.type == "*/*" else MEDIA.get(clause.type)
        if media is None:
            continue
        is_supported_type = True
        form = _form_of(clause, watch=watch)
        if form is None or (form == "Table" and not tables) or (watch and media == "yaml"):
            continue
        indent = pretty or clause.parameter("pretty") in _TRUTHS
        version = clause.parameter("v") if form else "v1"
        return Representation(media, form, version, indent and not watch)
    raise not_acceptable(is_supported_type=is_supported_type, watch=watch)


def _form_of(clause: Clause, *, watch: bool) -> Form | None:
    """The form that a clause asks for; ``None`` if we do not offer it."""
    stream = clause.parameter("stream")
    if stream and (stream != "watch" or not watch):
        return None
    requested_form = clause.parameter("as")
    if not requested_form:
        # A bare group or version makes no sense of its own and is refused, as upstream does.
        return None if clause.parameter("g") or clause.parameter("v") else ""
    if clause.parameter("g") != "meta.k8s.io" or clause.parameter("v") not in ("v1", "v1beta1"):
        return None
    for form in _FORMS:
        if requested_form == form:
            return form  # type: ignore[return-value]  # a member of the literal by construction
    return None


def not_acceptable(*, is_supported_type: bool, watch: bool = False) -> StatusError:
    """Returns the 406; *is_supported_type*: a media type is supported, but not the requested form."""
    if is_supported_type:
        types = _WATCH_TYPES if watch else _OBJECT_TYPES
        return StatusError(
            406, "NotAcceptable", f"only the following media types are accepted: {types}"
        )
    message = f"406: Not Acceptable\n\nAvailable representations: {_OBJECT_TYPES}"
    return StatusError(406, "NotAcceptable", message, {})


NO_CACHE = (b"cache-control", b"no-cache, private")
NOSNIFF = (b"x-content-type-options", b"nosniff")
TEXT = b"text/plain; charset=utf-8"
RETRY_AFTER_S = 1

Header = tuple[bytes, bytes]
TOTAL_CHARACTERS_MAX = 4096
SHORTENED_CHARACTERS = 256
#: Python's HTTP client gives up at 100 response headers in all
WARNINGS_MAX = 80
#: by group, version and plural: what every request for a deprecated resource is told, also if it
#: fails
DEPRECATIONS: dict[tuple[str, str, str], tuple[str, ...]] = {
    ("", "v1", "endpoints"): (
        "v1 Endpoints is deprecated in v1.33+; use discovery.k8s.io/v1 EndpointSlice",
    ),
    ("discovery.k8s.io", "v1beta1", "endpointslices"): (
        (
            "discovery.k8s.io/v1beta1 EndpointSlice is deprecated in v1.21+, unavailable in "
            "v1.25+; "
            "use discovery.k8s.io/v1 EndpointSlice"
        ),
    ),
}
#: the ``Date`` header, formatted once a second
_date = lru_cache(maxsize=2)(partial(formatdate, usegmt=True))
GZIP_BYTES_MIN = 128 * 1024
#: larger bodies go out in portions of this size, each when the client has taken the one before, and
#: are counted
PORTION_BYTES = 256 * 1024
_GZIP_LEVEL = 4


class Response(msgspec.Struct, frozen=True):
    """A complete answer.  ``headers`` are beyond Content-Type and Content-Length."""

    code: int
    body: bytes
    content_type: bytes = b"application/json"
    headers: tuple[Header, ...] = (NO_CACHE,)


def text_response(
    code: int, body: str, headers: tuple[Header, ...] = (NO_CACHE, NOSNIFF)
) -> Response:
    return Response(code, body.encode(), TEXT, headers)


def conditional(
    request: Request, body: bytes, content_type: bytes, etag: bytes, *headers: Header
) -> Response:
    """Returns *body*, or 304 if the client has the version of that *etag*."""
    headers = (*headers, (b"etag", etag))
    if request.headers.get(b"if-none-match") == etag:
        return Response(304, b"", headers=headers)
    return Response(200, body, content_type, headers)


def too_many_requests() -> Response:
    retry = (b"retry-after", str(RETRY_AFTER_S).encode())
    return text_response(429, "Too many requests, please try again later.", (retry,))


def head_of(
    request: Request, code: int, headers: Iterable[Header], *, now: float, audit_id: str
) -> dict[str, Any]:
    """Returns the ASGI message that begins an answer, with the headers of every answer."""
    every = [(b"audit-id", audit_id.encode()), (b"date", _date(int(now)).encode())]
    if request.flow is not None:
        every.extend(flow_headers(request.flow.schema.name, request.flow.level.name))
    return {"type": "http.response.start", "status": code, "headers": [*every, *headers]}


@lru_cache(maxsize=64)
def flow_headers(schema: str, level: str) -> tuple[Header, ...]:
    """The headers that name the flow schema and the priority level of a request, by uid."""
    return (
        (b"x-kubernetes-pf-flowschema-uid", uid_of("flowschema", schema).encode()),
        (b"x-kubernetes-pf-prioritylevel-uid", uid_of("prioritylevel", level).encode()),
    )


def warning_headers(texts: tuple[str, ...]) -> tuple[Header, ...]:
    """One header for each text; together they stay within what clients can take."""
    unique = list(dict.fromkeys(texts))
    if sum(map(len, unique)) > TOTAL_CHARACTERS_MAX:
        unique = [text[:SHORTENED_CHARACTERS] for text in unique]
    headers: list[Header] = []
    remaining = TOTAL_CHARACTERS_MAX
    for text in unique[:WARNINGS_MAX]:
        remaining -= len(text)
        if remaining < 0:
            break
        headers.append((b"warning", f'299 - "{_quoted(text)}"'.encode()))
    return tuple(headers)


def _quoted(text: str) -> str:
    """The inside of an RFC 7230 quoted-string; control characters cannot be in a header."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return "".join(character if character.isprintable() else " " for character in escaped)


async def send_response(
    request: Request,
    send: Send,
    response: Response,
    charges: RequestCharges | None,
    *,
    now: float,
    audit_id: str,
) -> int:
    """Send *response* whole; a client that went away is no error here, one that takes nothing is
    cut off.

    The code that was sent: 429 instead of a large response, if there are too many of them waiting
    to be taken.
    """
    if charges is not None and len(response.body) > PORTION_BYTES:
        try:
            charges.raise_to("unsent-bytes", len(response.body))
        except OverCapacity:
            response = too_many_requests()
    try:
        await _send(request, send, response, now, audit_id)
    finally:
        if charges is not None:
            charges.close()
    return response.code


async def _send(
    request: Request, send: Send, response: Response, now: float, audit_id: str
) -> None:
    body = response.body
    headers = list(response.headers)
    if response.content_type and response.code != 304:
        headers.append((b"content-type", response.content_type))
    if len(body) > GZIP_BYTES_MIN and request.accepts_gzip:
        import gzip

        # zlib lets other threads run meanwhile, so other requests go on.
        body = await asyncio.to_thread(gzip.compress, body, _GZIP_LEVEL, mtime=0)
        headers.append((b"content-encoding", b"gzip"))
        headers.append((b"vary", b"Accept-Encoding"))
    if response.code != 304:
        headers.append((b"content-length", str(len(body)).encode()))
    await send(head_of(request, response.code, headers, now=now, audit_id=audit_id))
    portions = memoryview(b"" if response.code == 304 else body)
    while len(portions) > PORTION_BYTES:
        await send(
            {"type": "http.response.body", "body": portions[:PORTION_BYTES], "more_body": True}
        )
        portions = portions[PORTION_BYTES:]
    await send({"type": "http.response.body", "body": portions})
