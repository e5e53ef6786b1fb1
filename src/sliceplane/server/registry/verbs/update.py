"""PUT and PATCH: from a requested document to a staged record.

An update without changes writes nothing. An update that removes the last finalizer of an object
that is being deleted removes the object in the same commit.

A patch is applied to the JSON form; the result is decoded and handled like an update. There is one
writer and a patch is applied in one step, so it needs no retries: without a resourceVersion it
always applies to the newest version, and a resourceVersion is a precondition.
"""

from __future__ import annotations

import msgspec
from msgspec.structs import replace as replace_fields

from sliceplane.api import codec
from sliceplane.api.errors import STALE_WRITE, StatusError, conflict, invalid, invalid_value
from sliceplane.api.meta import Document
from sliceplane.api.scheme import RBAC_GROUP, Resource
from sliceplane.server.documents import conversion, strict
from sliceplane.server.documents import patch as patches
from sliceplane.server.registry import metadata
from sliceplane.server.registry.admission.agents import check_agent_write
from sliceplane.server.registry.authorization.escalation import check_write
from sliceplane.server.registry.authorization.index import require
from sliceplane.server.registry.core import WriteCall, key_of, missing
from sliceplane.server.registry.decoding import UndecodableBody, decode_body, decoded
from sliceplane.server.registry.documents import canonical, document_of
from sliceplane.server.registry.kinds import kind_of
from sliceplane.server.registry.kinds.kind import Kind, SpecPart, keep
from sliceplane.server.registry.types import Body, Outcome, PatchType, Target, creation_of
from sliceplane.server.registry.verbs import answers, managed_fields
from sliceplane.server.registry.verbs.answers import check
from sliceplane.server.registry.verbs.create import create_document
from sliceplane.server.store.types import Record


def update(call: WriteCall, body: Body) -> Outcome:
    """Raises StatusError: 400, 403, 404, 409, 422, 500."""
    core, ctx, target, options = call
    resource = target.resource
    document, warnings = decode_body(target.requested, body, options)
    head = document["metadata"]
    metadata.match_name(target, head)
    metadata.match_namespace(target, head)
    record = core.store.latest(key_of(target))
    if record is None:
        if not resource.create_on_update or target.subresource:
            raise missing(resource, target.name)
        if head.get("uid"):
            raise _uid_conflict(target, head["uid"], "")
        head.pop("resourceVersion", None)
        require(core.policy, ctx.user, creation_of(target))
        return create_document(call, document, warnings=warnings)
    if head.get("uid") and head["uid"] != record.uid:
        raise _uid_conflict(target, head["uid"], record.uid)
    check_version(target, head, record, conditional=not resource.unconditional_update)
    return replace(call, document, record, warnings=warnings)


def check_version(target: Target, head: Document, record: Record, *, conditional: bool) -> None:
    """Checks optimistic concurrency: a resourceVersion, if sent, must be that of the object."""
    resource = target.resource
    if head.get("resourceVersion") == str(record.revision):
        return
    version = metadata.parse_resource_version(head.get("resourceVersion"))
    if version == 0 and conditional:
        # As upstream, and unlike elsewhere: the plural in place of the kind.
        path = "metadata.resourceVersion"
        error = invalid_value(path, 0, "must be specified for an update")
        raise invalid(resource.plural, resource.group, target.name, [error])
    if version not in (0, record.revision):
        raise conflict(resource.plural, resource.group, target.name, STALE_WRITE)


def replace(
    call: WriteCall,
    new: Document,
    record: Record,
    *,
    warnings: tuple[str, ...] = (),
    tracked: bool = False,
) -> Outcome:
    """Makes *new* (decoded and defaulted; changed here) the next version of *record*.

    *tracked*: *new* has the managedFields to store.
    """
    core, ctx, target, options = call
    resource = target.resource
    kind = kind_of(resource)
    stored = document_of(record)
    # As the requested version would have written it: with topology in its field.
    old = conversion.lift(stored) if target.via else stored
    part = kind.parts.get(target.subresource)
    if part is not None:
        # First, so that the writer does not own fields that the endpoint does not write.
        new = _restricted(part, new, old)
    derived = not tracked and managed_fields.on_update(call, new, old)
    if part is None:
        _restore_unwritten(call, kind, new, old)
    metadata.prepare_update(resource, new, old)
    if resource.group == RBAC_GROUP:
        check_write(core.policy, ctx.user, target, new, old)
    check(core.config.gates, target, new, old)
    check_agent_write(core, ctx.user, target, new, old)
    if part is not None:
        part.admit(core, new, old)
    elif not target.subresource:
        kind.admission.admit(core, new, old)
        warnings = (*warnings, *kind.warnings(new, old))
        kind.admission.allocate(core, new, old, dry_run=options.dry_run)
    new = canonical(resource, answers.to_store(core.config, target, new) if target.via else new)
    if managed_fields.changes_nothing(new, stored, derived=derived):
        return answers.unchanged(core, record, warnings)
    if _is_removable(kind, new):
        # No finalizer remains. Watchers receive only DELETED; the answer is the object after this
        # request, with its former version.
        outcome = answers.unwritten(resource, new, 200, warnings)
        if options.dry_run:
            return outcome
        return replace_fields(outcome, revision=core.remove(record).revision)
    charged = part.charged if part is not None else kind.quota.rises
    return answers.stage(call, kind, new, old, code=200, warnings=warnings, charged=charged)


def _restore_unwritten(call: WriteCall, kind: Kind, new: Document, old: Document) -> None:
    """Undoes changes in *new* that the endpoint does not allow: ``status`` changes only the status,
    and the main endpoint everything else.
    """
    if call.target.subresource == "status":
        written = {"kind", "apiVersion", "metadata", "status"}
        for member in sorted((new.keys() | old.keys()) - written):
            keep(new, old, member)
        for member in kind.status.kept:
            keep(new["metadata"], old["metadata"], member)
        return
    if kind.resource.has_status:
        keep(new, old, "status")
    kind.prepare_update(call.core, call.target, new, old)


def _is_removable(kind: Kind, new: Document) -> bool:
    """Returns True if *new* is being deleted, and nothing defers its removal."""
    head = new["metadata"]
    if "deletionTimestamp" not in head or head.get("finalizers"):
        return False
    return not kind.deletion.is_blocked(new)


def _restricted(part: SpecPart, new: Document, old: Document) -> Document:
    """Returns *old* with the members that *part* writes, and with the managedFields, of *new*."""
    head = dict(old["metadata"])
    keep(head, new["metadata"], managed_fields.MEMBER)
    return {**old, "metadata": head, "spec": part.merge(part.cut(new.get("spec", {})), old["spec"])}


def _uid_conflict(target: Target, expected: str, actual: str) -> StatusError:
    resource = target.resource
    path = "/".join(
        part for part in ("/registry", resource.plural, target.namespace, target.name) if part
    )
    why = (
        f"StorageError: invalid object, Code: 4, Key: {path}, ResourceVersion: 0, "
        "AdditionalErrorMsg: "
        f"Precondition failed: UID in precondition: {expected}, UID in object meta: {actual}"
    )
    return conflict(resource.plural, resource.group, target.name, why)


class Patched(msgspec.Struct, frozen=True):
    """The result of a patch.  ``strategic`` is the patch itself if it is a strategic one: errors
    print it.
    """

    document: Document
    duplicates: tuple[str, ...] = ()
    strategic: Document | None = None


def patch(call: WriteCall, patch_type: PatchType, body: bytes) -> Outcome:
    """Raises StatusError: 400, 403, 404, 409, 413, 415, 422, 500."""
    target = call.target
    resource = target.requested
    record = call.core.latest(target)
    old = document_of(record)
    if target.converted:
        old = answers.convert_document(resource, old)
    if patch_type == "strategic" and b"managedFields" not in body:
        # A patch without managedFields does not change them; they need not be copied and checked.
        old["metadata"].pop("managedFields", None)
    patched = apply_patch(resource, patch_type, old, body)
    # A result that does not decode is a 422.
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
        validation=call.options.field_validation,
    )
    try:
        new = decoded(resource, patched.document)
    except UndecodableBody as error:
        raise _refused(patched, str(error)) from error
    head = new["metadata"]
    metadata.match_name(target, head)
    metadata.match_namespace(target, head)
    check_version(target, head, record, conditional=False)
    return replace(call, new, record, warnings=warnings)


def apply_patch(resource: Resource, patch_type: PatchType, old: Document, body: bytes) -> Patched:
    """Raises StatusError: 400, 413, 415, 422, 500."""
    assert patch_type != "apply", "a configuration is no patch: see verbs.apply"
    if patch_type == "json":
        return Patched(patches.apply_json(old, patches.decode_json_patch(body)))
    if patch_type == "merge":
        content, duplicates = patches.decode_merge_patch(body)
        return Patched(patches.apply_merge(old, content), duplicates)
    content, duplicates = patches.decode_strategic_patch(body)
    return Patched(patches.apply_strategic(old, content, resource.schema_key), duplicates, content)


def _refused(patched: Patched, detail: str) -> StatusError:
    """Returns a 422 with neither kind nor name; the bad value is the whole patched object, or the
    strategic patch, as text.
    """
    if patched.strategic is None:
        value = codec.encode(patched.document).decode()
    else:
        value = patches.go_text(patched.strategic)
    return invalid("", "", "", [invalid_value("patch", value, detail)])
