"""The end of every write: validation, staging, and the answer to the client.

Inside the registry each resource has one version, the hub, and a ``Target`` always addresses it.
Answers are converted to the requested version (``convert_outcome``, ``convert_record``,
``convert_list``) if it is another one (``Target.converted``); bodies are converted to the hub when
they are decoded. In between, only ``Target.via`` distinguishes an older version from the hub: it
may write members that the hub keeps only for it.

A resource that is a view of another one (``server.documents.conversion``) has its own target, as
its rules and errors are its own; its bodies are converted in the same way.
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
from sliceplane.server.registry.core import Core, WriteCall
from sliceplane.server.registry.documents import canonical, starts_as
from sliceplane.server.registry.kinds import kind_of
from sliceplane.server.registry.kinds.kind import Kind
from sliceplane.server.registry.types import ListOutcome, Outcome, Target
from sliceplane.server.store.types import Key, Record


def stage(
    call: WriteCall,
    kind: Kind,
    document: Document,
    old: Document | None,
    *,
    code: int,
    warnings: tuple[str, ...],
    charged: bool = True,
) -> Outcome:
    """Ends every write of an object: checks quotas (*charged*: it may cost more than before), and
    stages it with its dependent objects.
    """
    core = call.core
    charges: tuple[Document, ...] = ()
    if kind.quota.counted and charged:
        charges = core.quotas.admit(kind.resource, document, old)
    head = document["metadata"]
    key = Key(kind.resource.storage_key, head.get("namespace", ""), head["name"])
    admit_bytes(core.store, call.ctx.user, kind.resource, key, lambda: len(codec.encode(document)))
    if call.options.dry_run:
        return unwritten(kind.resource, document, code, warnings)
    for quota in charges:
        core.put(ResourceQuotas, quota)
    kind.admission.claim(core, document, call.ctx.now)
    record = core.put(kind.resource, document)
    return Outcome(code=code, body=record.body, revision=record.revision, warnings=warnings)


def unchanged(core: Core, record: Record, warnings: tuple[str, ...] = ()) -> Outcome:
    """Returns the outcome of a write without changes.  The client must wait until the record is
    durable.
    """
    pending = record.revision if record.revision > core.store.revision else 0
    return Outcome(code=200, body=record.body, revision=pending, warnings=warnings)


def unwritten(
    resource: Resource, document: Document, code: int = 200, warnings: tuple[str, ...] = ()
) -> Outcome:
    """Returns an object that is not stored: for a dry run, or the last form of an object that this
    call removes.
    """
    return Outcome(code=code, body=codec.encode(canonical(resource, document)), warnings=warnings)


def deleted_status(resource: Resource, name: str, uid: str) -> bytes:
    """Returns the Success Status of a DELETE for most kinds, without a code, unlike a failure."""
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
    """Returns the errors of a new object."""
    return [
        *metadata.validate(resource, document["metadata"]),
        *kind_of(resource).validate(document),
    ]


def validate_update(
    resource: Resource, new: Document, old: Document, subresource: str = ""
) -> FieldErrors:
    """Returns the errors of *new* as the successor of *old*; for ``status`` only those of the
    status.
    """
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
    """Checks the rules above and those of feature gates.  Raises the 422 ``StatusError``."""
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
        # A view is checked in its stored form, which its errors name.
        resource = stored_form(resource)
        raise invalid(resource.kind, resource.group, head.get("name", ""), errors)


def to_store(config: RegistryConfig, target: Target, document: Document) -> Document:
    """Returns a hub document, converted from an older version, in the configured stored form."""
    return (
        conversion.stow(document)
        if target.via and config.topology_storage == "annotation"
        else document
    )


def convert_document(resource: Resource, document: Document) -> Document:
    """Returns a hub document in the version of *resource*."""
    if resource.hub is None:
        return conversion.from_stored(resource, document) if resource.is_view else document
    return canonical(resource, conversion.from_hub(conversion.lift(document)))


def convert_body(resource: Resource, body: bytes) -> bytes:
    """Returns a stored body in the version of *resource*; that of the hub is unchanged."""
    if resource.hub is None:
        return conversion.body_from_stored(resource, body) if resource.is_view else body
    return codec.encode(convert_document(resource, codec.decode_document(body)))


def convert_record(target: Target, record: Record) -> Record:
    return replace(record, body=convert_body(target.requested, record.body))


def convert_list(target: Target, outcome: ListOutcome) -> ListOutcome:
    return replace(
        outcome, records=tuple(convert_record(target, record) for record in outcome.records)
    )


def convert_outcome(target: Target, outcome: Outcome) -> Outcome:
    """Returns the outcome with its object in the requested version; a Status is unchanged."""
    if not starts_as(stored_form(target.resource), outcome.body):
        return outcome
    return replace(outcome, body=convert_body(target.requested, outcome.body))
