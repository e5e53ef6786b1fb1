"""Request bodies that are patches.  All of them raise ``StatusError`` 400 for a body that is no patch of their kind."""

from __future__ import annotations

from typing import Any, Final

from sliceplane.api.errors import StatusError, bad_request
from sliceplane.api.meta import Document
from sliceplane.documents.schema.check import json_name
from sliceplane.documents.strict import MalformedBody, decode_json, decode_value

_GO_MAP: Final = "map[string]interface {}"


def decode_json_patch(raw: bytes) -> list[Any]:
    """A list of operations; what they are is for ``apply_json`` to say."""
    try:
        operations = decode_value(raw)
    except MalformedBody as malformed:
        raise _not_decoded(str(malformed)) from None
    if operations is None:
        return []
    if not isinstance(operations, list):
        raise _not_decoded(f"json: cannot unmarshal {json_name(operations)} into Go value of type jsonpatch.Patch")
    for operation in operations:
        if not isinstance(operation, dict):
            found = json_name(operation)
            raise _not_decoded(f"json: cannot unmarshal {found} into Go value of type jsonpatch.Operation")
    return operations


def decode_merge_patch(raw: bytes) -> tuple[Document, tuple[str, ...]]:
    """The patch and its repeated members, as problems of strict decoding."""
    try:
        if decode_value(raw) is None:
            raise bad_request("Invalid JSON Patch")
        decoded = decode_json(raw)
    except MalformedBody as malformed:
        raise _not_decoded(_as_map(str(malformed))) from None
    return decoded.document, decoded.problems


def decode_strategic_patch(raw: bytes) -> tuple[Document, tuple[str, ...]]:
    """The patch and its repeated members, as problems of strict decoding.  ``null`` is the empty patch."""
    try:
        decoded = decode_json(raw)
    except MalformedBody as malformed:
        raise bad_request(_as_map(str(malformed))) from None
    return decoded.document, decoded.problems


def _as_map(complaint: str) -> str:
    """Patches are decoded into a map, not into an object's kind and version."""
    head, mark, _ = complaint.partition(" of type struct {")
    return f"{head} of type {_GO_MAP}" if mark else complaint


def _not_decoded(detail: str) -> StatusError:
    return bad_request(f"error decoding patch: {detail}")
