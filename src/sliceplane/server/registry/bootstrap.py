"""The objects of a new cluster: namespaces, roles, flow schemas, and the API server's own Service.

Existing objects are not changed, with three exceptions. The endpoints of ``default/kubernetes``
follow the servers (``api_service``). Roles and bindings of ``authorization.policy`` keep all
additions of an administrator. Missing rules and subjects are restored if the annotation
``rbac.authorization.kubernetes.io/autoupdate`` is "true". FlowSchemas and
PriorityLevelConfigurations show the settings of ``server.fairness.defaults``: they are written at
every start, and no client may write them. Objects of another version of the server are updated, or
removed.
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

#: upstream's mark of objects whose spec the server maintains
_AUTOUPDATE = {"apf.kubernetes.io/autoupdate-spec": "true"}
SYSTEM_USER = User(name="system:apiserver", groups=("system:masters",))


def bootstrap(core: Core, now: float) -> int:
    """Creates the missing objects.  Returns the newest staged revision, to wait for."""
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
    for resource, desired in _objects(format_time(ctx.now)):
        core.store.end_step()
        record = core.store.latest(
            key_of(Target(resource=resource, name=desired["metadata"]["name"]))
        )
        if record is None:
            core.put(resource, desired)
            continue
        document = document_of(record)
        if document["spec"] != desired["spec"]:
            generation = document["metadata"].get("generation", 0) + 1
            head = {**document["metadata"], "generation": generation}
            core.put(resource, {**desired, "metadata": head})
    names = {
        (resource.storage_key, desired["metadata"]["name"]) for resource, desired in _objects("")
    }
    for resource in (FlowSchemas, PriorityLevelConfigurations):
        for record in tuple(core.store.iter_latest(resource.storage_key)):
            if (resource.storage_key, record.key.name) not in names:
                core.store.end_step()
                core.remove(record)
    core.store.end_step()


def _objects(now: str) -> Iterator[tuple[Resource, Document]]:
    """Yields the levels before the schemas that name them."""
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
    for resource, desired in objects():
        core.store.end_step()
        namespace = desired["metadata"].get("namespace", "")
        target = Target(resource=resource, namespace=namespace, name=desired["metadata"]["name"])
        record = core.store.latest(key_of(target))
        if record is None:
            _keep_additions(core, desired)
            _create(core, ctx, Target(resource=resource, namespace=namespace), desired)
            continue
        document = document_of(record)
        if document["metadata"].get("annotations", {}).get(AUTOUPDATE) == "true" and _add_missing(
            resource, document, desired
        ):
            update(WriteCall(core, ctx, target, BY_THE_SERVER), Body(document=document))
    core.store.end_step()
    # A crash may have happened between the write of a role and that of its aggregating roles.
    core.gather(core.aggregation.all())


def _create(core: Core, ctx: Context, target: Target, desired: Document) -> None:
    try:
        create(WriteCall(core, ctx, target, BY_THE_SERVER), Body(document=desired))
    except StatusError as error:
        # The namespace was deleted: its objects are created at the next start, with the namespace.
        if not is_namespace_terminating(error):
            raise


def _keep_additions(core: Core, desired: Document) -> None:
    """Keeps the rules that an administrator added to a role from before aggregation, such as
    ``edit``: adds them to the new ``system:aggregate-to-edit``, which ``edit`` will gather.
    """
    gathering = SOURCES.get(desired["metadata"]["name"])
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
        desired["rules"] = [*desired["rules"], *(document_of_rule(rule) for rule in lacking)]


def _convert_to_aggregated(document: Document, desired: Document) -> bool:
    """Turns a role from before aggregation into an aggregated one.  A label that an administrator
    removed later is not restored.
    """
    if "aggregationRule" in document:
        return False
    document["aggregationRule"] = desired["aggregationRule"]
    document["metadata"]["labels"] = {
        **document["metadata"].get("labels", {}),
        **desired["metadata"]["labels"],
    }
    return True


def _add_missing(resource: Resource, document: Document, desired: Document) -> bool:
    """Adds the missing parts of *desired* to *document*; returns True if there were any."""
    if resource in (ClusterRoles, Roles):
        if "aggregationRule" in desired:
            return _convert_to_aggregated(document, desired)
        lacking = [
            document_of_rule(rule) for rule in missing(rules_of(document), rules_of(desired))
        ]
        document["rules"] = [*document.get("rules", ()), *lacking]
        return bool(lacking)
    absent = [
        subject for subject in desired["subjects"] if subject not in document.get("subjects", ())
    ]
    document["subjects"] = [*document.get("subjects", ()), *absent]
    # A binding to another role was a user's decision, too.
    return bool(absent) and document["roleRef"] == desired["roleRef"]
