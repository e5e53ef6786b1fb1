"""The objects of a new cluster: namespaces, roles, flow schemas, and the API server's own Service.

What exists is left as it is, with three exceptions. The endpoints of ``default/kubernetes`` follow
the servers (``api_service``). Roles and bindings of ``authorization.policy`` keep all that an
administrator added, and get back rules and subjects that they lack if their annotation
``rbac.authorization.kubernetes.io/autoupdate`` says "true". And FlowSchemas and
PriorityLevelConfigurations show what ``flowcontrol`` goes by: they are made at every start out of
``server.fairness.defaults``, which alone counts, so no client may write them. What another version
of the server left there is brought up to date, or removed.
"""

from __future__ import annotations

from collections.abc import Iterator

from sliceplane.api.errors import StatusError, is_namespace_terminating
from sliceplane.api.meta import Document
from sliceplane.api.scheme import (
    ClusterRoles,
    FlowSchemas,
    Namespaces,
    PriorityLevelConfigurations,
    Resource,
    Roles,
)
from sliceplane.api.users import User
from sliceplane.kit.times import format_time
from sliceplane.server.fairness.defaults import (
    LEVELS,
    SCHEMAS,
    spec_of_level,
    spec_of_schema,
    status_of_schema,
)
from sliceplane.server.fairness.types import uid_of
from sliceplane.server.registry import api_service, service_addresses
from sliceplane.server.registry.authorization.coverage import missing
from sliceplane.server.registry.authorization.policy import (
    AUTOUPDATE,
    SOURCES,
    gathered_rules,
    objects,
)
from sliceplane.server.registry.authorization.rules import document_of_rule, rules_of
from sliceplane.server.registry.core import Core, WriteCall, key_of
from sliceplane.server.registry.documents import document_of
from sliceplane.server.registry.kinds.namespace import BOOTSTRAP_NAMESPACES
from sliceplane.server.registry.types import BY_THE_SERVER, Body, Context, Target
from sliceplane.server.registry.verbs.create import create
from sliceplane.server.registry.verbs.update import update

#: upstream's mark of objects that the server keeps as it wants them
_AUTOUPDATE = {"apf.kubernetes.io/autoupdate-spec": "true"}
SYSTEM_USER = User(name="system:apiserver", groups=("system:masters",))


def bootstrap(core: Core, now: float) -> int:
    """Create what is missing.  Returns the newest staged revision, to wait for."""
    ctx = Context(now=now, user=SYSTEM_USER)
    for name in BOOTSTRAP_NAMESPACES:
        if core.store.latest(key_of(Target(resource=Namespaces, name=name))) is None:
            namespace = Body(document={"metadata": {"name": name}})
            create(WriteCall(core, ctx, Target(resource=Namespaces), BY_THE_SERVER), namespace)
        core.store.end_step()
    ensure_policy(core, ctx)
    _ensure_flow_objects(core, ctx)
    service_addresses.tend(core, ctx, quiet=True)
    api_service.reconcile(core, ctx)
    return core.store.staged_revision


def _ensure_flow_objects(core: Core, ctx: Context) -> None:
    for resource, wanted in _objects(format_time(ctx.now)):
        core.store.end_step()
        record = core.store.latest(
            key_of(Target(resource=resource, name=wanted["metadata"]["name"]))
        )
        if record is None:
            core.put(resource, wanted)
            continue
        document = document_of(record)
        if document["spec"] != wanted["spec"]:
            generation = document["metadata"].get("generation", 0) + 1
            head = {**document["metadata"], "generation": generation}
            core.put(resource, {**wanted, "metadata": head})
    names = {
        (resource.storage_key, wanted["metadata"]["name"]) for resource, wanted in _objects("")
    }
    for resource in (FlowSchemas, PriorityLevelConfigurations):
        for record in tuple(core.store.iter_latest(resource.storage_key)):
            if (resource.storage_key, record.key.name) not in names:
                core.store.end_step()
                core.remove(record)
    core.store.end_step()


def _objects(now: str) -> Iterator[tuple[Resource, Document]]:
    """Levels before the schemas that name them."""
    for level in LEVELS:
        head = _head(level.name, uid_of("prioritylevel", level.name), now)
        yield (
            PriorityLevelConfigurations,
            {"metadata": head, "spec": spec_of_level(level), "status": {}},
        )
    for schema in SCHEMAS:
        head = _head(schema.name, uid_of("flowschema", schema.name), now)
        status = status_of_schema(schema, now)
        yield FlowSchemas, {"metadata": head, "spec": spec_of_schema(schema), "status": status}


def _head(name: str, uid: str, now: str) -> Document:
    return {
        "name": name,
        "uid": uid,
        "generation": 1,
        "creationTimestamp": now,
        "annotations": dict(_AUTOUPDATE),
    }


def ensure_policy(core: Core, ctx: Context) -> None:
    for resource, wanted in objects():
        core.store.end_step()
        namespace = wanted["metadata"].get("namespace", "")
        target = Target(resource=resource, namespace=namespace, name=wanted["metadata"]["name"])
        record = core.store.latest(key_of(target))
        if record is None:
            _keep_additions(core, wanted)
            _create(core, ctx, Target(resource=resource, namespace=namespace), wanted)
            continue
        document = document_of(record)
        if document["metadata"].get("annotations", {}).get(AUTOUPDATE) == "true" and _complete(
            resource, document, wanted
        ):
            update(WriteCall(core, ctx, target, BY_THE_SERVER), Body(document=document))
    core.store.end_step()
    # A crash may have come between a role and those that gather it.
    core.gather(core.aggregation.all())


def _create(core: Core, ctx: Context, target: Target, wanted: Document) -> None:
    try:
        create(WriteCall(core, ctx, target, BY_THE_SERVER), Body(document=wanted))
    except StatusError as error:
        # The namespace was deleted: what it holds is made at the next start, with the namespace.
        if not is_namespace_terminating(error):
            raise


def _keep_additions(core: Core, wanted: Document) -> None:
    """``system:aggregate-to-edit`` is about to be made, and there is an ``edit`` that does not
    gather: rules that an administrator gave to that one stay, in what it is going to gather.
    """
    gathering = SOURCES.get(wanted["metadata"]["name"])
    record = (
        core.store.latest(key_of(Target(resource=ClusterRoles, name=gathering)))
        if gathering
        else None
    )
    if record is None:
        return
    before = document_of(record)
    if "aggregationRule" not in before:
        assert gathering is not None, "there is a role"
        lacking = missing(gathered_rules(gathering), rules_of(before))
        wanted["rules"] = [*wanted["rules"], *(document_of_rule(rule) for rule in lacking)]


def _made_aggregated(document: Document, wanted: Document) -> bool:
    """A role of the time before aggregation gathers from now on; who removed a label since has
    decided so.
    """
    if "aggregationRule" in document:
        return False
    document["aggregationRule"] = wanted["aggregationRule"]
    document["metadata"]["labels"] = {
        **document["metadata"].get("labels", {}),
        **wanted["metadata"]["labels"],
    }
    return True


def _complete(resource: Resource, document: Document, wanted: Document) -> bool:
    """Add what *document* lacks of *wanted*; returns whether that was anything."""
    if resource in (ClusterRoles, Roles):
        if "aggregationRule" in wanted:
            return _made_aggregated(document, wanted)
        lacking = [document_of_rule(rule) for rule in missing(rules_of(document), rules_of(wanted))]
        document["rules"] = [*document.get("rules", ()), *lacking]
        return bool(lacking)
    absent = [
        subject for subject in wanted["subjects"] if subject not in document.get("subjects", ())
    ]
    document["subjects"] = [*document.get("subjects", ()), *absent]
    # To exchange a binding's role was a user's decision, too.
    return bool(absent) and document["roleRef"] == wanted["roleRef"]
