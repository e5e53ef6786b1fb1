"""POST: a new object, from its body to a staged record
(staging/src/k8s.io/apiserver/pkg/registry/rest/create.go).

Required order: identity; who owns which field; the namespace takes content; the user grants no more
than they have; the kind prepares, validates and admits; the name is free; addresses and ports are
given; quotas allow it; stage. Nothing is held before the last check passed, so an error leaves no
trace.
"""

from __future__ import annotations

from sliceplane.api.errors import StatusError, already_exists
from sliceplane.api.meta import Document
from sliceplane.api.scheme import RBAC_GROUP, Resource
from sliceplane.server.registry import metadata
from sliceplane.server.registry.admission.agents import check_agent_write
from sliceplane.server.registry.authorization.escalation import check_write
from sliceplane.server.registry.core import Core
from sliceplane.server.registry.decoding import decode_body, must_be_unset_on_create
from sliceplane.server.registry.documents import document_of
from sliceplane.server.registry.kinds import kind_of
from sliceplane.server.registry.kinds.namespace import admit_content
from sliceplane.server.registry.types import Body, Context, Outcome, Target, WriteOptions
from sliceplane.server.registry.verbs import answers, managed_fields
from sliceplane.server.registry.verbs.answers import check
from sliceplane.server.store.types import Key

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
    """Create from a decoded document, which is changed. Also serves PUT to a name that is missing,
    and apply, whose managedFields are *tracked*: those to store.
    """
    resource = target.resource
    kind = kind_of(resource)
    head = document["metadata"]
    metadata.match_namespace(target, head)
    given_version = metadata.parse_resource_version(head.get("resourceVersion"))
    metadata.prepare_create(resource, head, core.rng, ctx.now)
    if not tracked:
        managed_fields.on_create(ctx, target, document, options)
    admit_content(core.store, resource, head)
    if resource.group == RBAC_GROUP:
        check_write(core.policy, ctx.user, target, document, None)
    generated = _settle_name(core, resource, head)
    kind.prepare_create(core, target, document)
    status = kind.status.first(document)
    if status is not None:
        document["status"] = status
    check(core.config.gates, target, document, None)
    check_agent_write(core, ctx.user, target, document, None)
    kind.admission.admit(core, document, None)
    if given_version:
        raise must_be_unset_on_create()
    _refuse_taken(core, resource, head, generated=generated)
    head.pop("resourceVersion", None)
    warnings = (*warnings, *kind.warnings(document, None))
    kind.admission.allocate(core, document, None, dry_run=options.dry_run)
    document = answers.to_store(core.config, target, document)
    return answers.stage(
        core, ctx, kind, document, None, code=201, options=options, warnings=warnings
    )


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


def _refuse_taken(core: Core, resource: Resource, head: Document, *, generated: bool) -> None:
    """Raises the 409 ``StatusError`` if there is an object of that name."""
    existing = core.store.latest(Key(resource.storage_key, _namespace(head), head["name"]))
    if existing is None:
        return
    is_going = "deletionTimestamp" in document_of(existing)["metadata"]
    error = already_exists(resource.plural, resource.group, head["name"], being_deleted=is_going)
    if not generated:
        raise error
    raise StatusError(
        409,
        "AlreadyExists",
        f"{error.message}, the server was not able to generate a unique name for the object",
        {**(error.details or {}), "retryAfterSeconds": 1},
        retry_after_s=1,
    )
