"""DELETE: marks, waits for finalizers and grace, or removes (kubernetes.io, Garbage Collection;
Finalizers).

Propagation is expressed in finalizers (``orphan``, ``foregroundDeletion``) that the garbage
collector takes away when it has done its part. What a kind has to say besides (grace, finalizers in
spec) is ``Kind.deletion``. On a collection, what a list with the same selectors finds is deleted
one by one.
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
    """Raises StatusError: 403 (a namespace that stays), 404, 409 (preconditions)."""
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
    if grace_s is not None and _is_settled(head, grace_s, options):
        return _staying(options, answers.unchanged(core, record))
    graceful = grace_s is not None and _announce(head, grace_s, ctx.now, options)
    if not graceful:
        _set_finalizers(head, _finalizers_for(head, options))
        if head.get("finalizers"):
            metadata.mark_deleted(head, ctx.now, 0)
    if head.get("finalizers") or (graceful and head["deletionGracePeriodSeconds"] > 0):
        return _marked(core, resource, record, document, options)
    return _removed(core, resource, record, document if graceful else None, options)


def _is_settled(head: Document, grace_s: int, options: DeleteOptions) -> bool:
    """Deletion was announced: a shorter grace counts, everything else was settled then."""
    pending = head.get("deletionGracePeriodSeconds")
    if "deletionTimestamp" not in head or not pending:
        return False
    return options.grace_period_s is None or grace_s >= pending


def _announce(head: Document, grace_s: int, now: float, options: DeleteOptions) -> bool:
    """The object ends in *grace_s* seconds; ``False`` if its time is over already."""
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
    """The object stays for now: the answer is the object."""
    if canonical(resource, document) == document_of(record):
        return _staying(options, answers.unchanged(core, record))
    if options.dry_run:
        return _staying(options, answers.unwritten(resource, document))
    record = core.put(resource, document)
    return _staying(options, Outcome(code=200, body=record.body, revision=record.revision))


def _staying(options: DeleteOptions, outcome: Outcome) -> Outcome:
    """As upstream: a 202 for clients that forbid orphans in the old way (``orphanDependents``),
    else a 200.
    """
    return replace(outcome, code=202) if options.forbids_orphans else outcome


def _removed(
    core: Core,
    resource: Resource,
    record: Record,
    announced: Document | None,
    options: DeleteOptions,
) -> Outcome:
    """The object goes.  *announced*: a graceful kind, whose watchers see MODIFIED (grace 0) before
    DELETED.
    """
    if options.dry_run:
        shown = answers.unwritten(resource, announced or document_of(record)).body
        revision = 0
    else:
        if announced is not None:
            record = core.put(resource, announced)
        last = core.remove(record)
        shown = last.body
        revision = last.revision
    if resource.delete_reply == "status":
        shown = answers.deleted_status(resource, record.key.name, record.uid)
    return Outcome(code=200, body=shown, revision=revision)


def _finalizers_for(head: Document, options: DeleteOptions) -> list[str]:
    """The object's finalizers with those that express the wanted propagation.

    A policy in the request overrides what an earlier request left on the object.
    """
    given: list[str] = head.get("finalizers", [])
    if options.propagation is None:
        orphan = FINALIZER_ORPHAN in given
        foreground = not orphan and FINALIZER_FOREGROUND in given
    else:
        orphan = options.propagation == "Orphan"
        foreground = options.propagation == "Foreground"
    kept = [name for name in given if name not in (FINALIZER_ORPHAN, FINALIZER_FOREGROUND)]
    if orphan:
        kept.append(FINALIZER_ORPHAN)
    if foreground:
        kept.append(FINALIZER_FOREGROUND)
    return given if sorted(kept) == sorted(given) else kept


def _set_finalizers(head: Document, finalizers: list[str]) -> None:
    if finalizers:
        head["finalizers"] = finalizers
    else:
        head.pop("finalizers", None)


def check_preconditions(resource: Resource, record: Record, options: DeleteOptions) -> None:
    """As upstream, and unlike elsewhere: the conflict names the kind, not the plural."""
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
            "ResourceVersion in record "
            f"({record.revision}). The object might have been modified"
        )
    if why:
        raise conflict(resource.kind, resource.group, record.key.name, why)


def delete_collection(
    core: Core, ctx: Context, target: Target, selection: ListOptions, options: DeleteOptions
) -> Outcome:
    """200 with the objects as they were before, under the list's own version.

    An object that is gone meanwhile is passed over. Raises what ``list_records`` raises, and the
    first error of a single delete: what was deleted before it stays deleted.
    """
    listed = list_records(core, target, selection)
    if target.converted:
        listed = answers.shown_list(target, listed)
    revision = delete_some(core, ctx, target, listed.records, options)
    body = list_bytes(
        target.spoken,
        listed.records,
        resource_version=listed.resource_version,
        continue_token=listed.continue_token,
        remaining=listed.remaining,
    )
    return Outcome(code=200, body=body, revision=revision)


def delete_some(
    core: Core, ctx: Context, target: Target, records: Iterable[Record], options: DeleteOptions
) -> int:
    """Delete *records*, each as a step of its own; returns the newest revision that this made."""
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
