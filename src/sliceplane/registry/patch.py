"""PATCH: apply to the JSON form, decode what comes out, then go the way of an update.

There is one writer and a patch is applied in one step, so it needs no retries: a patch without a
resourceVersion always meets the newest version, and one with it states a precondition.
"""

from __future__ import annotations

from dataclasses import dataclass

from sliceplane.api import codec
from sliceplane.api.errors import StatusError, invalid, invalid_value
from sliceplane.api.meta import Document
from sliceplane.api.scheme import Resource
from sliceplane.documents import patch as patches
from sliceplane.documents import strict
from sliceplane.registry import apply as applying
from sliceplane.registry import metadata, versions
from sliceplane.registry.core import Core
from sliceplane.registry.decoding import UndecodableBody, decoded
from sliceplane.registry.documents import document_of
from sliceplane.registry.types import Context, Outcome, PatchType, Target, WriteOptions
from sliceplane.registry.update import check_version, replace


@dataclass(frozen=True, slots=True)
class Patched:
    """What a patch made.  ``strategic`` is the patch itself, where it was a strategic one: errors show it."""

    document: Document
    duplicates: tuple[str, ...] = ()
    strategic: Document | None = None


def patch(
    core: Core, ctx: Context, target: Target, patch_type: PatchType, body: bytes, *, options: WriteOptions
) -> Outcome:
    """Raises StatusError: 400, 403, 404, 409, 413, 415, 422, 500."""
    if patch_type == "apply":
        return applying.apply(core, ctx, target, body, options)
    resource = target.spoken
    record = core.latest(target)
    old = versions.shown_document(resource, document_of(record))
    if patch_type == "strategic" and b"managedFields" not in body:
        # What the patch does not speak of stays, and need not be copied and checked over and over.
        old["metadata"].pop("managedFields", None)
    patched = apply_patch(resource, patch_type, old, body)
    new, warnings = _decode(resource, old, patched, options)
    head = new["metadata"]
    metadata.match_name(target, head)
    metadata.match_namespace(target, head)
    check_version(target, head, record, conditional=False)
    return replace(core, ctx, target, new, record, options=options, warnings=warnings)


def apply_patch(resource: Resource, patch_type: PatchType, old: Document, body: bytes) -> Patched:
    """Raises StatusError: 400, 413, 415, 422, 500."""
    assert patch_type != "apply", "a configuration is no patch: see registry.apply"
    if patch_type == "json":
        return Patched(patches.apply_json(old, patches.decode_json_patch(body)))
    if patch_type == "merge":
        content, duplicates = patches.decode_merge_patch(body)
        return Patched(patches.apply_merge(old, content), duplicates)
    content, duplicates = patches.decode_strategic_patch(body)
    return Patched(patches.apply_strategic(old, content, resource.schema_key), duplicates, content)


def _decode(
    resource: Resource, old: Document, patched: Patched, options: WriteOptions
) -> tuple[Document, tuple[str, ...]]:
    """The object that the patch makes, and its warnings.  A result that does not decode is a 422."""
    try:
        strict.check_type_meta(resource, patched.document)
    except StatusError as error:
        raise _refused(patched, error.message) from error
    warnings = patches.check_patched(
        resource.schema_key,
        old,
        patched.document,
        strategic_patch=patched.strategic,
        patch_problems=patched.duplicates,
        validation=options.field_validation,
    )
    try:
        return decoded(resource, patched.document), warnings
    except UndecodableBody as error:
        raise _refused(patched, str(error)) from error


def _refused(patched: Patched, detail: str) -> StatusError:
    """422 with neither kind nor name; the bad value is the whole patched object, or the strategic patch, as text."""
    if patched.strategic is None:
        shown = codec.encode(patched.document).decode()
    else:
        shown = patches.go_text(patched.strategic)
    return invalid("", "", "", [invalid_value("patch", shown, detail)])
