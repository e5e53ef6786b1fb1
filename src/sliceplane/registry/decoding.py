"""From a request's document to one that the rest may rely on: right kind, right types, nothing unknown.

This is what Go gets from decoding into structs (reference B3, B10): members of the wrong type are refused,
null means absent, and unknown members are dropped after being warned of or refused.
"""

from __future__ import annotations

import re
from typing import Any

import msgspec

from sliceplane.api import codec, conversion, defaults, schema, strict, views
from sliceplane.api.errors import StatusError, bad_request
from sliceplane.api.meta import Document
from sliceplane.api.scheme import Resource, stored_form
from sliceplane.kit.times import format_time, parse_time
from sliceplane.registry.documents import normalised
from sliceplane.registry.types import Body, WriteOptions

_UNKNOWN = re.compile(r'unknown field "(?P<path>.*)"')
_STEP = re.compile(r"(?P<name>[^.\[\]]+)|\[(?P<index>\d+)\]")


class Undecodable(Exception):
    """The document does not decode as its kind; the text is Go's, without "KIND in version ..."."""


def decode_body(resource: Resource, body: Body, options: WriteOptions) -> tuple[Document, tuple[str, ...]]:
    """The document that a POST or PUT stands for, and the warnings that it earns.

    The result is a fresh copy with defaults, in the hub version.  Raises a 400 StatusError for another kind, a
    wrong type, or (``Strict``) a problem in the body.
    """
    strict.check_type_meta(resource, body.document)
    problems = body.problems[: schema.PROBLEMS_MAX]
    if problems and options.field_validation == "Strict":
        raise strict.strict_error(resource.kind, problems, resource.version)
    try:
        document = decoded(resource, body.document)
    except Undecodable as error:
        cannot = f'{resource.kind} in version "{resource.version}" cannot be handled as a {resource.kind}'
        raise bad_request(f"{cannot}: {error}") from error
    return document, problems if options.field_validation == "Warn" else ()


def decoded(resource: Resource, document: Document) -> Document:
    """A normalised, type-checked, defaulted copy in stored form (the hub version), without unknown members.

    Raises ``Undecodable``.
    """
    unknown: tuple[str, ...] = ()
    # Before nulls and empty lists go: those of the wrong type must not go unnoticed.
    if not schema.accepts(resource.schema_key, document):
        mismatch = schema.first_mismatch(schema.lookup(resource.schema_key), document)
        if mismatch is not None:
            raise Undecodable(str(mismatch))
        unknown = schema.unknown_fields(resource.schema_key, document)
    document, managed = _set_aside(document)
    try:
        document = normalised(document)
    except ValueError as error:
        raise Undecodable(str(error)) from error
    for problem in unknown:
        _drop_unknown(document, problem)
    metadata = document.setdefault("metadata", {})
    # History.
    metadata.pop("selfLink", None)
    for name in ("creationTimestamp", "deletionTimestamp"):
        if name in metadata:
            # One moment has many spellings, and clients write back what they read in their own.
            metadata[name] = format_time(parse_time(metadata[name]))
    try:
        # What cannot become a projection would be lost to every reader.
        msgspec.convert(document, codec.projection_of(resource.key))
    except msgspec.ValidationError as error:
        raise Undecodable(f"json: {error}") from error
    if managed is not None:
        metadata["managedFields"] = managed
    document = views.to_stored(resource, document)
    defaults.apply(stored_form(resource), document)
    return document if resource.hub is None else conversion.to_hub(document)


def _set_aside(document: Document) -> tuple[Document, Any]:
    """The document without metadata.managedFields, and those, as sent: there, an empty list is not nothing."""
    metadata = document.get("metadata")
    if not metadata or "managedFields" not in metadata:
        return document, None
    bare = {name: value for name, value in metadata.items() if name != "managedFields"}
    return {**document, "metadata": bare}, metadata["managedFields"]


def _drop_unknown(document: Document, problem: str) -> None:
    """Remove the member that *problem* names; what it cannot find stays."""
    match = _UNKNOWN.fullmatch(problem)
    assert match is not None, f"not a complaint about an unknown field: {problem!r}"
    steps: list[str | int] = [
        int(step["index"]) if step["index"] else step["name"] for step in _STEP.finditer(match["path"])
    ]
    parent: Any = document
    for step in steps[:-1]:
        if isinstance(step, int):
            parent = parent[step] if type(parent) is list and step < len(parent) else None
        else:
            parent = parent.get(step) if type(parent) is dict else None
    if steps and type(parent) is dict:
        parent.pop(steps[-1], None)


def must_be_unset_on_create() -> StatusError:
    """POST with a resourceVersion: a 500 without reason (reference B6)."""
    return StatusError(500, "", "resourceVersion should not be set on objects to be created")
