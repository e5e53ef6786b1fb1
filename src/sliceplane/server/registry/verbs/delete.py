"""DELETE: marks, waits for finalizers and grace, or removes (kubernetes.io, Garbage Collection;
Finalizers).

Propagation is expressed in finalizers (``orphan``, ``foregroundDeletion``) that the garbage
collector removes when it has finished. Further rules of a kind (grace, finalizers in spec) are in
``Kind.deletion``. The deletion of a collection deletes the objects of a list with the same
selectors one by one.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec.structs
from msgspec.structs import replace

from sliceplane.api.errors import StatusError, conflict
from sliceplane.api.meta import Document
from sliceplane.api.scheme import Resource
from sliceplane.server.registry import metadata
from sliceplane.server.registry.core import Core
from sliceplane.server.registry.documents import canonical, document_of, list_bytes
from sliceplane.server.registry.kinds import kind_of
from sliceplane.server.registry.types import Context, DeleteOptions, ListOptions, Outcome, Target
from sliceplane.server.registry.verbs import answers
from sliceplane.server.registry.verbs.read import list_records
from sliceplane.server.store.types import Record

FINALIZER_ORPHAN = "orphan"
FINALIZER_FOREGROUND = "foregroundDeletion"


def delete(core: Core, ctx: Context, target: Target, options: DeleteOptions) -> Outcome:
    """Raises StatusError: 403 (a protected namespace), 404, 409 (preconditions)."""
    resource = target.resource
    deletion = kind_of(resource).deletion
    deletion.admit(target.name)
    record = core.latest(target)
    check_preconditions(resource, record, options)
    document = document_of(record)
    if deletion.linger(document, ctx.now):
        return _marked(core, resource, record, document, options)
    head = document["metadata"]
    grace_s = deletion.grace(document, options.grace_period_s)
    if grace_s is not None and _is_already_announced(head, grace_s, options):
        return _deferred(options, answers.unchanged(core, record))
    graceful = grace_s is not None and _announce(head, grace_s, ctx.now, options)
    if not graceful:
        _set_finalizers(head, _finalizers_for(head, options))
        if head.get("finalizers"):
            metadata.mark_deleted(head, ctx.now, 0)
    if head.get("finalizers") or (graceful and head["deletionGracePeriodSeconds"] > 0):
        return _marked(core, resource, record, document, options)
    return _removed(core, resource, record, document if graceful else None, options)


def _is_already_announced(head: Document, grace_s: int, options: DeleteOptions) -> bool:
    """Returns True if the deletion was already announced and the request does not shorten its
    grace.
    """
    pending = head.get("deletionGracePeriodSeconds")
    if "deletionTimestamp" not in head or not pending:
        return False
    return options.grace_period_s is None or grace_s >= pending


def _announce(head: Document, grace_s: int, now: float, options: DeleteOptions) -> bool:
    """Announces the deletion in *grace_s* seconds.  Returns False if the grace is already over."""
    if "deletionTimestamp" not in head:
        _set_finalizers(head, _finalizers_for(head, options))
        metadata.mark_deleted(head, now, grace_s)
        return True
    if not head.get("deletionGracePeriodSeconds"):
        return False
    metadata.shorten_grace(head, grace_s)
    return True


def _marked(
    core: Core, resource: Resource, record: Record, document: Document, options: DeleteOptions
) -> Outcome:
    """Stores the announced deletion; the answer is the object."""
    if canonical(resource, document) == document_of(record):
        return _deferred(options, answers.unchanged(core, record))
    if options.dry_run:
        return _deferred(options, answers.unwritten(resource, document))
    record = core.put(resource, document)
    return _deferred(options, Outcome(code=200, body=record.body, revision=record.revision))


def _deferred(options: DeleteOptions, outcome: Outcome) -> Outcome:
    """Returns, as upstream, a 202 for clients that set the old ``orphanDependents: false``, else a
    200.
    """
    return replace(outcome, code=202) if options.forbids_orphans else outcome


def _removed(
    core: Core,
    resource: Resource,
    record: Record,
    announced: Document | None,
    options: DeleteOptions,
) -> Outcome:
    """Removes the object.  *announced*: the document of a graceful kind, whose watchers receive
    MODIFIED (grace 0) before DELETED.
    """
    if options.dry_run:
        body = answers.unwritten(resource, announced or document_of(record)).body
        revision = 0
    else:
        if announced is not None:
            record = core.put(resource, announced)
        last = core.remove(record)
        body = last.body
        revision = last.revision
    if resource.delete_reply == "status":
        body = answers.deleted_status(resource, record.key.name, record.uid)
    return Outcome(code=200, body=body, revision=revision)


def _finalizers_for(head: Document, options: DeleteOptions) -> list[str]:
    """Returns the object's finalizers with those of the requested propagation.

    A policy in the request overrides that of an earlier request.
    """
    current: list[str] = head.get("finalizers", [])
    if options.propagation is None:
        orphan = FINALIZER_ORPHAN in current
        foreground = not orphan and FINALIZER_FOREGROUND in current
    else:
        orphan = options.propagation == "Orphan"
        foreground = options.propagation == "Foreground"
    kept = [name for name in current if name not in (FINALIZER_ORPHAN, FINALIZER_FOREGROUND)]
    if orphan:
        kept.append(FINALIZER_ORPHAN)
    if foreground:
        kept.append(FINALIZER_FOREGROUND)
    return current if sorted(kept) == sorted(current) else kept


def _set_finalizers(head: Document, finalizers: list[str]) -> None:
    if finalizers:
        head["finalizers"] = finalizers
    else:
        head.pop("finalizers", None)


def check_preconditions(resource: Resource, record: Record, options: DeleteOptions) -> None:
    """Raises the 409 of a failed precondition.  As upstream, and unlike elsewhere, it names the
    kind, not the plural.
    """
    uid = options.precondition_uid
    version = options.precondition_resource_version
    why = ""
    if uid is not None and uid != record.uid:
        why = (
            f"the UID in the precondition ({uid}) does not match the UID in record ({record.uid}). "
            "The object might have been deleted and then recreated"
        )
    elif version is not None and version != str(record.revision):
        why = (
            f"the ResourceVersion in the precondition ({version}) does not match the "
            f"ResourceVersion in record ({record.revision}). The object might have been modified"
        )
    if why:
        raise conflict(resource.kind, resource.group, record.key.name, why)


def delete_collection(
    core: Core, ctx: Context, target: Target, selection: ListOptions, options: DeleteOptions
) -> Outcome:
    """Returns a 200 with the objects before their deletion, under the list's own version.

    Skips objects that no longer exist. Raises the errors of ``list_records``, and the first error
    of a single delete: earlier deletions are not undone.
    """
    listed = list_records(core, target, selection)
    if target.converted:
        listed = answers.convert_list(target, listed)
    revision = delete_some(core, ctx, target, listed.records, options)
    body = list_bytes(
        target.requested,
        listed.records,
        resource_version=listed.resource_version,
        continue_token=listed.continue_token,
        remaining=listed.remaining,
    )
    return Outcome(code=200, body=body, revision=revision)


def delete_some(
    core: Core, ctx: Context, target: Target, records: Iterable[Record], options: DeleteOptions
) -> int:
    """Deletes *records*, each in a step of its own.  Returns the newest revision."""
    revision = 0
    for record in records:
        item = msgspec.structs.replace(target, namespace=record.key.namespace, name=record.key.name)
        try:
            outcome = delete(core, ctx, item, options)
        except StatusError as error:
            if error.code == 404:
                continue
            raise
        core.store.end_step()
        revision = max(revision, outcome.revision)
    return revision
