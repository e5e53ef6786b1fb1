"""What a new cluster has before anyone asks for it: namespaces, roles, flow schemas, and the API server's own Service.

What exists is left as it is, with two exceptions.  The endpoints of ``default/kubernetes`` follow the servers
(``api_service``).  And FlowSchemas and PriorityLevelConfigurations show what ``flowcontrol`` goes by: they are made at
every start out of ``flowcontrol.defaults``, which alone counts, so no client may write them.  What another version of
the server left there is brought up to date, or removed.
"""

from __future__ import annotations

from collections.abc import Iterator

from sliceplane.api.meta import Document
from sliceplane.api.scheme import FlowSchemas, Namespaces, PriorityLevelConfigurations, Resource
from sliceplane.flowcontrol.defaults import LEVELS, SCHEMAS
from sliceplane.flowcontrol.documents import spec_of_level, spec_of_schema, status_of_schema
from sliceplane.flowcontrol.types import uid_of
from sliceplane.kit.times import format_time
from sliceplane.registry import api_service, service_addresses
from sliceplane.registry.authorization.bootstrap import ensure_policy
from sliceplane.registry.core import Core, key_of
from sliceplane.registry.create import create
from sliceplane.registry.documents import document_of
from sliceplane.registry.kinds.namespace import BOOTSTRAP_NAMESPACES
from sliceplane.registry.types import BY_THE_SERVER, Body, Context, Target, User

#: upstream's mark of objects that the server keeps as it wants them
_AUTOUPDATE = {"apf.kubernetes.io/autoupdate-spec": "true"}
SYSTEM_USER = User(name="system:apiserver", groups=("system:masters",))


def bootstrap(core: Core, now: float) -> int:
    """Create what is missing.  Returns the newest staged revision, to wait for."""
    ctx = Context(now=now, user=SYSTEM_USER)
    for name in BOOTSTRAP_NAMESPACES:
        if core.store.latest(key_of(Target(resource=Namespaces, name=name))) is None:
            namespace = Body(document={"metadata": {"name": name}})
            create(core, ctx, Target(resource=Namespaces), namespace, BY_THE_SERVER)
        core.store.end_step()
    ensure_policy(core, ctx)
    _ensure_flow_objects(core, ctx)
    service_addresses.tend(core, ctx, quiet=True)
    api_service.reconcile(core, ctx)
    return core.store.staged_revision


def _ensure_flow_objects(core: Core, ctx: Context) -> None:
    for resource, wanted in _objects(format_time(ctx.now)):
        core.store.end_step()
        record = core.store.latest(key_of(Target(resource=resource, name=wanted["metadata"]["name"])))
        if record is None:
            core.put(resource, wanted)
            continue
        document = document_of(record)
        if document["spec"] != wanted["spec"]:
            generation = document["metadata"].get("generation", 0) + 1
            head = {**document["metadata"], "generation": generation}
            core.put(resource, {**wanted, "metadata": head})
    names = {(resource.storage_key, wanted["metadata"]["name"]) for resource, wanted in _objects("")}
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
        yield PriorityLevelConfigurations, {"metadata": head, "spec": spec_of_level(level), "status": {}}
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
