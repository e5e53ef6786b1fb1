"""POST: a new object, from its body to a staged record
(staging/src/k8s.io/apiserver/pkg/registry/rest/create.go).

Required order: identity; owners of fields; the namespace accepts content; no privilege escalation;
the kind prepares, validates and admits; the name is free; addresses and ports are chosen; quotas
allow it; stage. Nothing is allocated before the last check passed, so an error has no effect.
"""

from __future__ import annotations

from sliceplane.api.errors import StatusError, already_exists
from sliceplane.api.meta import Document
from sliceplane.api.scheme import RBAC_GROUP, Resource
from sliceplane.server.registry import metadata
from sliceplane.server.registry.admission.agents import check_agent_write
from sliceplane.server.registry.authorization.escalation import check_write
from sliceplane.server.registry.core import Core, WriteCall
from sliceplane.server.registry.decoding import decode_body, must_be_unset_on_create
from sliceplane.server.registry.documents import document_of
from sliceplane.server.registry.kinds import kind_of
from sliceplane.server.registry.kinds.namespace import admit_content
from sliceplane.server.registry.types import Body, Outcome
from sliceplane.server.registry.verbs import answers, managed_fields
from sliceplane.server.registry.verbs.answers import check
from sliceplane.server.store.types import Key

GENERATE_NAME_TRIES = 8


def create(call: WriteCall, body: Body) -> Outcome:
    """Raises StatusError: 400, 403, 404 (namespace), 409, 422, 500."""
    document, warnings = decode_body(call.target.requested, body, call.options)
    return create_document(call, document, warnings=warnings)


def create_document(
    call: WriteCall, document: Document, *, warnings: tuple[str, ...], tracked: bool = False
) -> Outcome:
    """Creates an object from a decoded document, which is changed. Also serves PUT to a missing
    name, and apply, whose document already has the managedFields to store (*tracked*).
    """
    core, ctx, target, options = call
    resource = target.resource
    kind = kind_of(resource)
    head = document["metadata"]
    metadata.match_namespace(target, head)
    sent_version = metadata.parse_resource_version(head.get("resourceVersion"))
    metadata.prepare_create(resource, head, core.rng, ctx.now)
    if not tracked:
        managed_fields.on_create(call, document)
    admit_content(core.store, resource, head)
    if resource.group == RBAC_GROUP:
        check_write(core.policy, ctx.user, target, document, None)
    generated = _assign_name(core, resource, head)
    kind.prepare_create(core, target, document)
    status = kind.status.first(document)
    if status is not None:
        document["status"] = status
    check(core.config.gates, target, document, None)
    check_agent_write(core, ctx.user, target, document, None)
    kind.admission.admit(core, document, None)
    if sent_version:
        raise must_be_unset_on_create()
    _check_name_is_free(core, resource, head, generated=generated)
    head.pop("resourceVersion", None)
    warnings = (*warnings, *kind.warnings(document, None))
    kind.admission.allocate(core, document, None, dry_run=options.dry_run)
    document = answers.to_store(core.config, target, document)
    return answers.stage(call, kind, document, None, code=201, warnings=warnings)


def _namespace(head: Document) -> str:
    return str(head.get("namespace", ""))


def _assign_name(core: Core, resource: Resource, head: Document) -> bool:
    """Turns ``generateName`` into a name, which is free unless a few tries fail; an explicit name
    wins.

    Returns True if the name was generated.
    """
    prefix = head.get("generateName")
    if head.get("name") or not prefix:
        return False
    for _ in range(GENERATE_NAME_TRIES):
        head["name"] = metadata.generated_name(prefix, core.rng)
        if core.store.latest(Key(resource.storage_key, _namespace(head), head["name"])) is None:
            break
    return True


def _check_name_is_free(core: Core, resource: Resource, head: Document, *, generated: bool) -> None:
    """Raises the 409 ``StatusError`` if an object of that name exists."""
    existing = core.store.latest(Key(resource.storage_key, _namespace(head), head["name"]))
    if existing is None:
        return
    is_deleting = "deletionTimestamp" in document_of(existing)["metadata"]
    error = already_exists(resource.plural, resource.group, head["name"], being_deleted=is_deleting)
    if not generated:
        raise error
    raise StatusError(
        409,
        "AlreadyExists",
        f"{error.message}, the server was not able to generate a unique name for the object",
        {**(error.details or {}), "retryAfterSeconds": 1},
        retry_after_s=1,
    )
