"""The end of every write: what an object must be to be stored, what is staged, and what the client
is told.

Inside the registry there is one version of each resource, the hub, which a ``Target`` addresses
from the start. What leaves is turned into the version that was asked for (``shown``,
``shown_record``, ``shown_list``) where that is another one (``Target.converted``); bodies become
the hub's when they are decoded. In between, ``Target.via`` is all that tells an older version from
the hub: it may write what the hub keeps for it alone.

A resource that is a view of another one (``server.documents.conversion``) keeps its own target,
since its rules and errors are its own; its bodies go the same way.
"""

from __future__ import annotations

from msgspec.structs import replace

from sliceplane.api import codec
from sliceplane.api.errors import FieldErrors, invalid
from sliceplane.api.gates import Gates
from sliceplane.api.meta import Document
from sliceplane.api.scheme import Resource, ResourceQuotas, stored_form
from sliceplane.server.documents import conversion
from sliceplane.server.registry import metadata
from sliceplane.server.registry.admission.quotas import admit_bytes
from sliceplane.server.registry.config import RegistryConfig
from sliceplane.server.registry.core import Core
from sliceplane.server.registry.documents import canonical, starts_as
from sliceplane.server.registry.kinds import kind_of
from sliceplane.server.registry.kinds.kind import Kind
from sliceplane.server.registry.types import Context, ListOutcome, Outcome, Target, WriteOptions
from sliceplane.server.store.types import Key, Record


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
    charged: bool = True,
) -> Outcome:
    """The end of every write of an object: quotas allow it (*charged*: it may cost more than
    before); it is staged with what must be there together with it.
    """
    charges: tuple[Document, ...] = ()
    if kind.quota.counted and charged:
        charges = core.quotas.admit(kind.resource, document, old)
    head = document["metadata"]
    key = Key(kind.resource.storage_key, head.get("namespace", ""), head["name"])
    admit_bytes(core.store, ctx.user, kind.resource, key, lambda: len(codec.encode(document)))
    if options.dry_run:
        return unwritten(kind.resource, document, code, warnings)
    for quota in charges:
        core.put(ResourceQuotas, quota)
    kind.admission.claim(core, document, ctx.now)
    record = core.put(kind.resource, document)
    return Outcome(code=code, body=record.body, revision=record.revision, warnings=warnings)


def unchanged(core: Core, record: Record, warnings: tuple[str, ...] = ()) -> Outcome:
    """Nothing was written, but what the client sees may not be durable yet: it must wait for
    that.
    """
    pending = record.revision if record.revision > core.store.revision else 0
    return Outcome(code=200, body=record.body, revision=pending, warnings=warnings)


def unwritten(
    resource: Resource, document: Document, code: int = 200, warnings: tuple[str, ...] = ()
) -> Outcome:
    """An object that is only shown: dryRun, or the last form of an object that goes in this
    call.
    """
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


def validate_create(resource: Resource, document: Document) -> FieldErrors:
    """Complaints about a new object."""
    return [
        *metadata.validate(resource, document["metadata"]),
        *kind_of(resource).validate(document),
    ]


def validate_update(
    resource: Resource, new: Document, old: Document, subresource: str = ""
) -> FieldErrors:
    """Complaints about *new* as the successor of *old*; on ``status`` the status rules alone."""
    kind = kind_of(resource)
    part = kind.parts.get(subresource)
    rules = (
        part.validate
        if part
        else kind.status.validate
        if subresource == "status"
        else kind.validate_update
    )
    return [*metadata.validate_update(new["metadata"], old["metadata"]), *rules(new, old)]


def check(gates: Gates, target: Target, new: Document, old: Document | None) -> None:
    """The rules above and those of feature gates.  Raises the 422 ``StatusError``."""
    resource = target.resource
    if old is None:
        errors = validate_create(resource, new)
    else:
        errors = validate_update(resource, new, old, target.subresource)
    if target.subresource != "status":
        errors = kind_of(resource).admission.narrow(gates, errors, new, old)
    if errors:
        refuse(resource, new["metadata"], errors)


def refuse(resource: Resource, head: Document, errors: FieldErrors) -> None:
    """Raises the 422 ``StatusError`` of *errors*, if there are any."""
    if errors:
        # A view is checked and complained of in its stored form.
        resource = stored_form(resource)
        raise invalid(resource.kind, resource.group, head.get("name", ""), errors)


def to_store(config: RegistryConfig, target: Target, document: Document) -> Document:
    """The hub document that an older version was turned into, in the form that the operator wants
    stored.
    """
    return (
        conversion.stow(document)
        if target.via and config.topology_storage == "annotation"
        else document
    )


def shown_document(resource: Resource, document: Document) -> Document:
    """A hub document in the version of *resource*."""
    if resource.hub is None:
        return conversion.from_stored(resource, document) if resource.is_view else document
    return canonical(resource, conversion.from_hub(conversion.lift(document)))


def shown_body(resource: Resource, body: bytes) -> bytes:
    """A stored body in the version of *resource*; the hub's own is handed through untouched."""
    if resource.hub is None:
        return conversion.shown(resource, body) if resource.is_view else body
    return codec.encode(shown_document(resource, codec.decode_document(body)))


def shown_record(target: Target, record: Record) -> Record:
    return replace(record, body=shown_body(target.spoken, record.body))


def shown_list(target: Target, outcome: ListOutcome) -> ListOutcome:
    return replace(
        outcome, records=tuple(shown_record(target, record) for record in outcome.records)
    )


def shown(target: Target, outcome: Outcome) -> Outcome:
    """The outcome with its object, if it has one and not a Status, in the version that was asked
    for.
    """
    if not starts_as(stored_form(target.resource), outcome.body):
        return outcome
    return replace(outcome, body=shown_body(target.spoken, outcome.body))
