"""PATCH: apply to the JSON form, decode what comes out, then go the way of an update (reference B7).

There is one writer and a patch is applied in one step, so it needs no retries: a patch without a
resourceVersion always meets the newest version, and one with it states a precondition.
"""

from __future__ import annotations

from typing import Any

from sliceplane.api import codec, schema, strict
from sliceplane.api import patch as patches
from sliceplane.api.errors import StatusError, invalid, invalid_value, unsupported_media_type
from sliceplane.api.meta import Document
from sliceplane.registry import metadata
from sliceplane.registry.core import Core
from sliceplane.registry.decoding import PROBLEMS_MAX, Undecodable, decoded, kind_mismatch
from sliceplane.registry.documents import document_of
from sliceplane.registry.types import Context, Outcome, PatchType, Target, WriteOptions
from sliceplane.registry.update import check_version, replace

APPLY_NOT_SERVED = (
    "the body of the request was in an unknown format - accepted media types include: application/json-patch+json, "
    "application/merge-patch+json, application/strategic-merge-patch+json"
)


def patch(
    core: Core, ctx: Context, target: Target, patch_type: PatchType, body: bytes, options: WriteOptions
) -> Outcome:
    """Raises StatusError: 400, 404, 409, 413, 415, 422, 500."""
    if patch_type == "apply":
        raise unsupported_media_type(APPLY_NOT_SERVED)
    record = core.latest(target)
    old = document_of(record)
    patched, duplicates = apply_patch(target, patch_type, old, body)
    new, warnings = decode_patched(target, patched, duplicates, options)
    head = new["metadata"]
    metadata.match_name(target, head)
    metadata.match_namespace(target, head)
    check_version(target, head, record, conditional=False)
    return replace(core, target, new, record, options, warnings)


def apply_patch(target: Target, patch_type: PatchType, old: Document, body: bytes) -> tuple[Document, tuple[str, ...]]:
    """The patched document and the patch's duplicate fields.  Raises StatusError 400, 413, 422, 500."""
    parsed = strict.decode_json(body)
    duplicates: tuple[str, ...] = parsed.problems
    content: Any = parsed.document
    if patch_type == "json":
        return patches.apply_json(old, content), duplicates
    if patch_type == "merge":
        return patches.apply_merge(old, content), duplicates
    return patches.apply_strategic(old, content, target.resource.key), duplicates


def decode_patched(
    target: Target, patched: Document, duplicates: tuple[str, ...], options: WriteOptions
) -> tuple[Document, tuple[str, ...]]:
    """The decoded result of a patch and its warnings.  A result that does not decode is a 422 (reference B7)."""
    resource = target.resource
    mismatch = kind_mismatch(resource, patched)
    if mismatch is not None:
        raise _refused(patched, mismatch)
    problems = (*duplicates, *schema.unknown_fields(resource.key, patched))[:PROBLEMS_MAX]
    if problems and options.field_validation == "Strict":
        raise _refused(patched, f"strict decoding error: {', '.join(problems)}")
    try:
        new = decoded(resource, patched, problems)
    except Undecodable as error:
        raise _refused(patched, str(error)) from error
    return new, problems if options.field_validation == "Warn" else ()


def _refused(patched: Document, detail: str) -> StatusError:
    """422 with neither kind nor name; the bad value is the whole patched object, as text."""
    return invalid("", "", "", [invalid_value("patch", codec.encode(patched).decode(), detail)])
