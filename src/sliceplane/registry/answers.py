"""The end of every write: what is staged, and what the client is told."""

from __future__ import annotations

from sliceplane.api import codec
from sliceplane.api.meta import Document
from sliceplane.api.scheme import Resource
from sliceplane.registry.core import Core
from sliceplane.registry.documents import canonical
from sliceplane.registry.kinds.kind import Kind
from sliceplane.registry.types import Context, Outcome, WriteOptions
from sliceplane.store.types import Record


def stage(
    core: Core,
    ctx: Context,
    kind: Kind,
    document: Document,
    old: Document | None,
    *,
    code: int,
    options: WriteOptions,
    warnings: tuple[str, ...],
) -> Outcome:
    """The end of every write of an object: quotas allow it; it is staged with what must be there together with it."""
    charged = core.quotas.admit(kind.resource, document, old)
    if options.dry_run:
        return unwritten(kind.resource, document, code, warnings)
    core.charge(charged)
    kind.admission.claim(core, document, ctx.now)
    return stored(core.put(kind.resource, document), code, warnings)


def stored(record: Record, code: int = 200, warnings: tuple[str, ...] = ()) -> Outcome:
    """The object just staged."""
    return Outcome(code=code, body=record.body, revision=record.revision, warnings=warnings)


def unchanged(core: Core, record: Record, warnings: tuple[str, ...] = ()) -> Outcome:
    """Nothing was written, but what the client sees may not be durable yet: it must wait for that."""
    pending = record.revision if record.revision > core.store.revision else 0
    return Outcome(code=200, body=record.body, revision=pending, warnings=warnings)


def unwritten(resource: Resource, document: Document, code: int = 200, warnings: tuple[str, ...] = ()) -> Outcome:
    """An object that is only shown: dryRun, or the last form of an object that goes in this call."""
    return Outcome(code=code, body=codec.encode(canonical(resource, document)), warnings=warnings)


def deleted_status(resource: Resource, name: str, uid: str) -> bytes:
    """The Success Status that most kinds answer to a DELETE: no code, unlike a failure."""
    details = {"name": name, "group": resource.group, "kind": resource.plural, "uid": uid}
    return codec.encode(
        {
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": {},
            "status": "Success",
            "details": {member: value for member, value in details.items() if value},
        }
    )
