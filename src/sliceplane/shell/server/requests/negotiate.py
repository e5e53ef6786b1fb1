"""Content negotiation: what a client accepts and what we answer in.

Upstream: ``staging/src/k8s.io/apiserver/pkg/endpoints/handlers/negotiation/negotiate.go``.

``negotiate`` is a pure function of the Accept header and of what an endpoint can do; clients send the same
few headers over and over, so its results are cached.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from sliceplane.api.errors import StatusError
from sliceplane.kit.containers import remembered

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


@dataclass(frozen=True, slots=True)
class Clause:
    """One element of an Accept header; ``parameters`` without ``q``."""

    type: str
    parameters: tuple[tuple[str, str], ...]
    quality: float

    def parameter(self, name: str) -> str:
        return next((value for key, value in self.parameters if key == name), "")


@dataclass(frozen=True, slots=True)
class Representation:
    """What to answer in: the media type, and the form the object is converted to ("" = as it is)."""

    media: Media = "json"
    form: Form = ""
    #: version of meta.k8s.io for Table and PartialObjectMetadata
    form_version: str = "v1"
    pretty: bool = False

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
    clauses.sort(key=lambda clause: (-clause.quality, clause.type == "*/*", clause.type.endswith("/*")))
    return tuple(clause for clause in clauses if clause.quality > 0)


@remembered(1024)
def negotiate(accept: str, *, watch: bool = False, pretty: bool = False, tables: bool = True) -> Representation:
    """The representation for the first clause that can be met.

    *pretty* says that the request asks for it elsewhere (query, user agent); *tables*, that what is asked for has
    columns.  Raises the 406 ``StatusError`` with one of upstream's two messages.
    """
    clauses = parse_accept(accept)
    if not clauses and not accept.strip():
        return Representation(pretty=pretty and not watch)
    known_type = False
    for clause in clauses:
        media: Media | None = "json" if clause.type == "*/*" else MEDIA.get(clause.type)
        if media is None:
            continue
        known_type = True
        form = _form_of(clause, watch=watch)
        if form is None or (form == "Table" and not tables) or (watch and media == "yaml"):
            continue
        indent = pretty or clause.parameter("pretty") in _TRUTHS
        version = clause.parameter("v") if form else "v1"
        return Representation(media, form, version, indent and not watch)
    raise not_acceptable(known_type=known_type, watch=watch)


def _form_of(clause: Clause, *, watch: bool) -> Form | None:
    """The form that a clause asks for; ``None`` if we do not offer it."""
    stream = clause.parameter("stream")
    if stream and (stream != "watch" or not watch):
        return None
    wanted = clause.parameter("as")
    if not wanted:
        # A bare group or version makes no sense of its own and is refused, as upstream does.
        return None if clause.parameter("g") or clause.parameter("v") else ""
    if clause.parameter("g") != "meta.k8s.io" or clause.parameter("v") not in ("v1", "v1beta1"):
        return None
    for form in _FORMS:
        if wanted == form:
            return form  # type: ignore[return-value]  # a member of the literal by construction
    return None


def not_acceptable(*, known_type: bool, watch: bool = False) -> StatusError:
    """The 406: *known_type* says that a media type was known, but not what was asked of it."""
    if known_type:
        types = _WATCH_TYPES if watch else _OBJECT_TYPES
        return StatusError(406, "NotAcceptable", f"only the following media types are accepted: {types}")
    message = f"406: Not Acceptable\n\nAvailable representations: {_OBJECT_TYPES}"
    return StatusError(406, "NotAcceptable", message, {})
