"""POST: a new object, from its body to a staged record (reference B6).

Required order: decode and default; the namespace exists and takes content; nobody grants more than they have; identity;
validation; the name is free; Services get their addresses; quotas allow it; stage.  Nothing is held before the
last check passed, so an error leaves no trace.
"""

from __future__ import annotations

from sliceplane.api.errors import StatusError, already_exists
from sliceplane.api.meta import Document
from sliceplane.api.scheme import Resource
from sliceplane.registry import answers, managed_fields, metadata, versions
from sliceplane.registry.authorization.escalation import check_write
from sliceplane.registry.checks import refuse, validate_create
from sliceplane.registry.core import Core, key_of
from sliceplane.registry.decoding import decode_body, must_be_unset_on_create
from sliceplane.registry.documents import document_of
from sliceplane.registry.kinds import kind_of
from sliceplane.registry.namespaces import admit_content
from sliceplane.registry.types import Body, Context, Outcome, Target, WriteOptions
from sliceplane.store.types import Key

GENERATE_NAME_TRIES = 8


def create(core: Core, ctx: Context, target: Target, body: Body, options: WriteOptions) -> Outcome:
    """Raises StatusError: 400, 403, 404 (namespace), 409, 422, 500."""
    document, warnings = decode_body(target.spoken, body, options)
    return create_document(core, ctx, target, document, options=options, warnings=warnings)


def create_document(
    core: Core,
    ctx: Context,
    target: Target,
    document: Document,
    *,
    options: WriteOptions,
    warnings: tuple[str, ...],
    tracked: bool = False,
) -> Outcome:
    """Create from a decoded document, which is changed.  Also serves PUT to a name that is missing, and apply, whose
    managedFields are *tracked*: those to store."""
    resource = target.resource
    kind = kind_of(resource)
    head = document["metadata"]
    metadata.match_namespace(target, head)
    given_version = metadata.parse_resource_version(head.get("resourceVersion"))
    metadata.prepare_create(resource, head, core.rng, ctx.now)
    if not tracked:
        managed_fields.on_create(ctx, target, document, options)
    admit_content(core.store, resource, head)
    check_write(core.policy, ctx.user, target, document, None)
    generated = _settle_name(core, resource, head)
    kind.prepare_create(core, target, document)
    first_status = kind.status.first(document)
    if first_status is not None:
        document["status"] = first_status
    errors = validate_create(resource, document)
    refuse(resource, head, kind.admission.narrow(core.config.gates, errors, document, None))
    kind.admission.admit(core, document, None)
    if given_version:
        raise must_be_unset_on_create()
    existing = core.store.latest(key_of(Target(resource=resource, namespace=_namespace(head), name=head["name"])))
    if existing is not None:
        raise _taken(resource, head, generated, document_of(existing))
    head.pop("resourceVersion", None)
    warnings = (*warnings, *kind.warnings(document, None))
    kind.admission.allocate(core, document, None, dry_run=options.dry_run)
    charged = core.quotas.admit(resource, document, None)
    document = versions.to_store(core.config, target, document)
    if options.dry_run:
        return answers.unwritten(resource, document, 201, warnings)
    core.charge(charged)
    kind.admission.claim(core, document, ctx.now)
    return answers.stored(core.put(resource, document), 201, warnings)


def _namespace(head: Document) -> str:
    return str(head.get("namespace", ""))


def _settle_name(core: Core, resource: Resource, head: Document) -> bool:
    """Turn ``generateName`` into a name that is free, if a few tries find one; a given name wins.

    Returns whether the name was generated.
    """
    prefix = head.get("generateName")
    if head.get("name") or not prefix:
        return False
    for _ in range(GENERATE_NAME_TRIES):
        head["name"] = metadata.generated_name(prefix, core.rng)
        if core.store.latest(Key(resource.storage_key, _namespace(head), head["name"])) is None:
            break
    return True


def _taken(resource: Resource, head: Document, generated: bool, existing: Document) -> StatusError:
    error = already_exists(
        resource.plural, resource.group, head["name"], being_deleted="deletionTimestamp" in existing["metadata"]
    )
    if not generated:
        return error
    return StatusError(
        409,
        "AlreadyExists",
        f"{error.message}, the server was not able to generate a unique name for the object",
        {**(error.details or {}), "retryAfterSeconds": 1},
        retry_after_s=1,
    )
