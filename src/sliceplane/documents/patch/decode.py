"""Is a body a patch, and is what the patch made still an object of its kind?

The three readers of bodies raise ``StatusError`` 400 for a body that is no patch of their kind.
"""

from __future__ import annotations

from typing import Any, Final, Literal

import msgspec

from sliceplane.api.errors import StatusError, bad_request, invalid, invalid_value
from sliceplane.api.meta import Document
from sliceplane.documents.patch.merge_patch import go_text
from sliceplane.documents.schema import accepts, first_mismatch, lookup, unknown_fields
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
            form = json_name(operation)
            raise _not_decoded(f"json: cannot unmarshal {form} into Go value of type jsonpatch.Operation")
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


def check_patched(
    resource_key: str,
    before: Document,
    patched: Document,
    *,
    strategic_patch: Document | None = None,
    patch_problems: tuple[str, ...] = (),
    validation: Literal["Ignore", "Warn", "Strict"] = "Warn",
) -> tuple[str, ...]:
    """Warnings about *patched*: what the patch brought in that the kind does not have, after *patch_problems*.

    Unknown members that *before* had already are not the patch's fault and not reported.  Raises a 422
    for a result that does not decode, and with ``Strict`` for any warning.  It shows the patched object; of a
    strategic merge patch it shows the patch, which is then given.
    """
    if accepts(resource_key, patched) and not patch_problems:
        return ()
    mismatch = first_mismatch(lookup(resource_key), patched)
    if mismatch is not None:
        raise _undecodable(patched, strategic_patch, str(mismatch))
    if validation == "Ignore":
        return ()
    known = frozenset(unknown_fields(resource_key, before))
    added = tuple(problem for problem in unknown_fields(resource_key, patched) if problem not in known)
    problems = patch_problems + added
    if problems and validation == "Strict":
        raise _undecodable(patched, strategic_patch, f"strict decoding error: {', '.join(problems)}")
    return problems


def _undecodable(patched: Document, strategic_patch: Document | None, detail: str) -> StatusError:
    shown = msgspec.json.encode(patched).decode() if strategic_patch is None else go_text(strategic_patch)
    return invalid("", "", "", [invalid_value("patch", shown, detail)])
