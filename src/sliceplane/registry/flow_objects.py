"""FlowSchema and PriorityLevelConfiguration objects: what ``flowcontrol`` goes by, for people to read.

They are made at every start out of ``flowcontrol.defaults``, which alone counts, so no client may write them.  What
another version of the server left there is brought up to date, or removed.
"""

from __future__ import annotations

from collections.abc import Iterator

from sliceplane.api.meta import Document
from sliceplane.api.scheme import FlowSchemas, PriorityLevelConfigurations, Resource
from sliceplane.flowcontrol.defaults import LEVELS, SCHEMAS
from sliceplane.flowcontrol.documents import spec_of_level, spec_of_schema, status_of_schema
from sliceplane.flowcontrol.types import uid_of
from sliceplane.kit.times import format_time
from sliceplane.registry.core import Core, key_of
from sliceplane.registry.documents import document_of
from sliceplane.registry.types import Context, Target

#: upstream's mark of objects that the server keeps as it wants them
_AUTOUPDATE = {"apf.kubernetes.io/autoupdate-spec": "true"}


def ensure_flow_objects(core: Core, ctx: Context) -> None:
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
