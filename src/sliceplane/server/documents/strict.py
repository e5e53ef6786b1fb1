"""Request bodies to documents, strictly: what is wrong with a body is known, and said in Go's
words.

The way of a JSON body (``read_body``):

1. ``msgspec`` decodes it. What it refuses is a 400 that names the offending character
   (``schema.json_errors``).
2. Repeated members are found by counting. Encoding the document again gives a text with exactly one
   colon for each member that survived, plus the colons inside strings; the body has the same and
   one more for each member that a later one overwrote. So equal counts mean that nothing is there
   twice, and two calls into C replace a parse in Python (31 KB: 60 us instead of 370 us). Only a
   body with a repetition is parsed again, to name it.
3. The schema says which members are unknown and which have a wrong type: a quick yes in C, a walk
   after a no.
4. Nulls are dropped, as Go's decoding does.

A YAML body becomes a document first (``schema.yaml_documents``), is encoded as JSON and goes the
same way.

Limits, all answered with a 400: nesting of ``DEPTH_MAX``; finite numbers of at most some thousand
digits; UTF-8 without lone surrogates. A body can be refused, never crash what comes after: whatever
leaves this module can be encoded and walked.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, Final, Literal

import msgspec

from sliceplane.api.errors import StatusError, bad_request
from sliceplane.api.meta import Document
from sliceplane.api.scheme import Resource
from sliceplane.kit.yaml_documents import YamlError, parse_yaml
from sliceplane.server.documents.schema import (
    PROBLEMS_MAX,
    accepts,
    check_types,
    drop_nulls,
    lookup,
    lookup_kind,
    unknown_fields,
)
from sliceplane.server.documents.schema.check import (
    JsonMembers,
    duplicates_in,
    json_name,
    unknown_in,
)
from sliceplane.server.documents.schema.json_errors import describe_syntax_error, start_of
from sliceplane.server.documents.schema.walks import DEPTH_MAX, deeper_than

Validation = Literal["Ignore", "Warn", "Strict"]
Format = Literal["json", "yaml"]

_decoder = msgspec.json.Decoder()
_encoder = msgspec.json.Encoder()

# The type that Go reads kind and apiVersion with; its name shows in errors.
_TYPE_META: Final = (
    "struct "
    '{ APIVersion string "json:\\"apiVersion,omitempty\\""; Kind string "json:\\"kind,omitempty\\"" }'
)


class MalformedBody(Exception):
    """A body that is no document; the text is Go's complaint, without what went before it or
    after.
    """


class Decoded(msgspec.Struct, frozen=True, kw_only=True):
    """A document as sent, nulls included, and the repeated members of it, e.g. ``duplicate field
    "spec.type"``.
    """

    document: Document
    problems: tuple[str, ...] = ()
    #: what ``read_body`` was asked to ask says that nothing in it need be looked at
    is_good: bool = False


def decode_json(raw: bytes) -> Decoded:
    """The JSON object in *raw*; a repeated member has its last value. ``null`` is the empty object.

    Knows no kinds, so every repetition is reported; ``read_body`` leaves out those inside unknown
    members, as Go does. Raises ``MalformedBody``.
    """
    document, repeated = _parse_json(raw)
    _check_depth(raw, document)
    return Decoded(
        document=document, problems=duplicates_in(_parse_members(raw)) if repeated else ()
    )


def decode_value(raw: bytes) -> Any:
    """Any JSON value, within the limits of this module.  Raises ``MalformedBody``."""
    value = _parse(raw)
    _check_depth(raw, value)
    _encode(value)
    return value


def decode_yaml(raw: bytes) -> Decoded:
    """The first document of a YAML stream, as ``decode_json`` gives it. All repeated keys are one
    problem, with lines.

    Raises ``MalformedBody``.
    """
    converted, problems = _yaml_to_json(raw)
    return Decoded(document=_parse_json(converted)[0], problems=problems)


def read_body(
    resource: Resource,
    raw: bytes,
    *,
    body_format: Format = "json",
    validation: Validation = "Warn",
    is_good: Callable[[str, Document], bool] | None = None,
) -> Decoded:
    """The object of *resource* that a POST or PUT brings, without nulls, and what strict decoding
    says of it.

    With ``Ignore`` there are no problems. With ``Strict`` they are for ``strict_error``: this
    function does not raise them, so that they can be reported with what else is known by then.
    *is_good*: asked first, with the key of the schema; what it says yes to is of the right types,
    without nulls and unknown members. Raises ``StatusError`` 400.
    """
    problems: tuple[str, ...] = ()
    text = raw
    try:
        if body_format == "yaml":
            text, problems = _yaml_to_json(raw)
        document, repeated = _parse_json(text)
        good = is_good is not None and is_good(resource.schema_key, document)
        accepted = good or accepts(resource.schema_key, document)
        if not accepted:
            _check_depth(text, document)
    except MalformedBody as malformed:
        raise unrecognized(resource, str(malformed), raw, body_format) from None
    check_type_meta(resource, document, raw)
    if good and not repeated and not problems and b"null" not in text:
        return Decoded(document=document, is_good=True)
    if not accepted:
        check_types(resource.schema_key, document)
    if validation == "Ignore":
        problems = ()
    elif repeated:
        problems += unknown_in(lookup(resource.schema_key), _parse_members(text))
    elif not accepted:
        problems += unknown_fields(resource.schema_key, document)
    if b"null" in text:
        document = drop_nulls(document)
    return Decoded(document=document, problems=problems[:PROBLEMS_MAX])


def strict_error(kind: str, problems: tuple[str, ...], version: str = "v1") -> StatusError:
    """The 400 of ``fieldValidation=Strict`` on POST and PUT (KEP-2885); *kind* is the bare kind."""
    return bad_request(
        f'{kind} in version "{version}" cannot be handled as a {kind}: strict decoding error: '
        f"{', '.join(problems)}"
    )


def unrecognized(
    resource: Resource, detail: str, raw: bytes, body_format: Format = "json"
) -> StatusError:
    """The 400 for a body that does not parse."""
    cause = (
        f"couldn't get version/kind; json parse error: {detail}"
        if body_format == "json"
        else detail
    )
    return bad_request(
        f"the object provided is unrecognized (must be of type {resource.kind}): {cause} "
        f"({start_of(raw)})"
    )


def check_type_meta(resource: Resource, document: Document, raw: bytes = b"") -> None:
    """Kind and apiVersion may each be missing; raises a 400 if one says something else.

    *raw* is the body, for the error about a kind that is not even a string.
    """
    version = document.get("apiVersion") or ""
    kind = document.get("kind") or ""
    for name, value in document.items():
        if name in {"apiVersion", "kind"} and value is not None and not isinstance(value, str):
            detail = (
                f"json: cannot unmarshal {json_name(value)} into Go struct field .{name} of type "
                "string"
            )
            raise unrecognized(resource, detail, raw)
    if kind in {"", resource.kind} and version in {"", resource.api_version}:
        return
    kind = kind or resource.kind
    version = version or resource.api_version
    short_version = version.rpartition("/")[2]
    if lookup_kind(version, kind) is None:
        why = f'no kind "{kind}" is registered for version "{version}" in scheme "sliceplane"'
    elif kind == resource.kind:
        expected = resource.api_version
        raise bad_request(
            f"the API version in the data ({version}) does not match the expected API version "
            f"({expected})"
        )
    else:
        internal_package = (resource.group or "core").split(".", maxsplit=1)[0]
        why = f"converting (v1.{kind}) to ({internal_package}.{resource.kind}): unknown conversion"
    raise bad_request(
        f'{kind} in version "{short_version}" cannot be handled as a {resource.kind}: {why}'
    )


def _parse(raw: bytes) -> Any:
    """Any JSON value, of any depth."""
    try:
        return _decoder.decode(raw)
    except RecursionError:
        raise MalformedBody("exceeded max depth") from None
    except UnicodeDecodeError:
        raise MalformedBody("invalid UTF-8") from None
    except msgspec.DecodeError as error:
        raise MalformedBody(describe_syntax_error(raw) or _message_of(error)) from None


def _parse_json(raw: bytes) -> tuple[Document, bool]:
    """The document, of any depth, and whether a member of it is there more than once."""
    value = _parse(raw)
    document: Document = {} if value is None else value
    if not isinstance(document, dict):
        raise MalformedBody(
            f"json: cannot unmarshal {json_name(value)} into Go value of type {_TYPE_META}"
        )
    encoded = _encode(document)
    # A colon written as an escape is counted on one side only; rare enough to let the slow way find
    # out.
    escaped = b"\\u003a" in raw or b"\\u003A" in raw
    return document, escaped or raw.count(b":") != encoded.count(b":")


def _yaml_to_json(raw: bytes) -> tuple[bytes, tuple[str, ...]]:
    """The first document as JSON, in which nothing is shared or repeated, and the problems of the
    YAML.
    """
    try:
        parsed = parse_yaml(raw, depth_max=DEPTH_MAX)
    except YamlError as error:
        raise MalformedBody(str(error)) from None
    return _encode(parsed.value), parsed.problems


def _message_of(error: msgspec.DecodeError) -> str:
    """Good JSON by Go's rules that we refuse all the same: numbers out of range, lone
    surrogates.
    """
    text = str(error)
    return "number out of range" if "out of range" in text else "invalid surrogate pair in string"


def _encode(value: Any) -> bytes:
    try:
        return _encoder.encode(value)
    except RecursionError:
        raise MalformedBody("exceeded max depth") from None
    except UnicodeEncodeError:
        raise MalformedBody("invalid surrogate pair in string") from None


def _check_depth(raw: bytes, value: Any) -> None:
    if raw.count(b"{") + raw.count(b"[") > DEPTH_MAX and deeper_than(value, DEPTH_MAX):
        raise MalformedBody("exceeded max depth")


def _parse_members(raw: bytes) -> Any:
    """The body with every member it has.  *raw* is known to be good and shallow."""
    return json.loads(raw, object_pairs_hook=JsonMembers)
