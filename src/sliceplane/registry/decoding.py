"""From a request's document to one that the rest may rely on: right kind, right types, nothing unknown.

This is what Go gets from decoding into structs (reference B3, B10): members of the wrong type are refused,
null means absent, and unknown members are dropped after being warned of or refused.
"""

from __future__ import annotations

import re
from typing import Any

import msgspec

from sliceplane.api import codec, defaults, schema
from sliceplane.api.errors import StatusError, bad_request
from sliceplane.api.meta import Document
from sliceplane.api.scheme import Resource, by_kind
from sliceplane.registry.documents import normalised
from sliceplane.registry.types import Body, WriteOptions

#: a server reports at most this many strict-decoding problems (reference B10)
PROBLEMS_MAX = 100
_UNKNOWN = re.compile(r'unknown field "(?P<path>.*)"')
_STEP = re.compile(r"(?P<name>[^.\[\]]+)|\[(?P<index>\d+)\]")


class Undecodable(Exception):
    """The document does not decode as its kind; the text is Go's, without "KIND in version ..."."""


def decode_body(resource: Resource, body: Body, options: WriteOptions) -> tuple[Document, tuple[str, ...]]:
    """The document that a POST or PUT stands for, and the warnings that it earns.

    The result is a fresh copy with defaults.  Raises a 400 StatusError for another kind, a wrong type, or
    (``Strict``) a problem in the body.
    """
    mismatch = kind_mismatch(resource, body.document)
    if mismatch is not None:
        kind = body.document.get("kind") or resource.kind
        _, _, version = str(body.document.get("apiVersion") or resource.api_version).rpartition("/")
        raise bad_request(f'{kind} in version "{version}" cannot be handled as a {resource.kind}: {mismatch}')
    problems = body.problems[:PROBLEMS_MAX]
    cannot = _cannot(resource)
    if problems and options.field_validation == "Strict":
        raise bad_request(f"{cannot}strict decoding error: {', '.join(problems)}")
    try:
        document = decoded(resource, body.document, problems)
    except Undecodable as error:
        raise bad_request(f"{cannot}{error}") from error
    return document, problems if options.field_validation == "Warn" else ()


def decoded(resource: Resource, document: Document, problems: tuple[str, ...] = ()) -> Document:
    """A normalised, type-checked, defaulted copy without unknown members.  Raises ``Undecodable``."""
    try:
        document = normalised(document)
    except ValueError as error:
        raise Undecodable(str(error)) from error
    for problem in problems:
        _drop_unknown(document, problem)
    metadata = document.setdefault("metadata", {})
    if type(metadata) is dict:
        # Dropped, not checked: field ownership is not tracked, and a wrong type there must not fail a write.
        metadata.pop("managedFields", None)
        metadata.pop("selfLink", None)
    try:
        schema.check_types(resource.key, document)
        # Nulls in lists pass the schema, but not those who read the object.
        msgspec.convert(document, codec.projection_of(resource.key))
    except StatusError as error:
        raise Undecodable(error.message.removeprefix(_cannot(resource))) from error
    except msgspec.ValidationError as error:
        raise Undecodable(f"json: {error}") from error
    defaults.apply(resource, document)
    return document


def kind_mismatch(resource: Resource, document: Document) -> str | None:
    """Why the document's kind or apiVersion is not the resource's; both may be missing."""
    kind = document.get("kind") or resource.kind
    api_version = document.get("apiVersion") or resource.api_version
    if (api_version, kind) == (resource.api_version, resource.kind):
        return None
    if by_kind(str(api_version), str(kind)) is None:
        return f'no kind "{kind}" is registered for version "{api_version}" in scheme "pkg/api/legacyscheme/scheme.go:30"'
    _, _, version = str(api_version).rpartition("/")
    wanted = resource.group.partition(".")[0] or "core"
    return f"converting ({version}.{kind}) to ({wanted}.{resource.kind}): unknown conversion"


def _cannot(resource: Resource) -> str:
    return f'{resource.kind} in version "{resource.version}" cannot be handled as a {resource.kind}: '


def _drop_unknown(document: Document, problem: str) -> None:
    """Remove the member that *problem* names; what it cannot find stays."""
    match = _UNKNOWN.fullmatch(problem)
    if match is None:
        return
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
