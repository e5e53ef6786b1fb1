"""The registry for clients without sockets: the in-process client and the simulator.

A ``Write`` becomes a step, a watch plan becomes an interest at the hub; both share the stored
bodies, without copies.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache, partial

from msgspec.structs import replace

from sliceplane.api.codec import encode
from sliceplane.api.meta import Document
from sliceplane.api.requests import Write
from sliceplane.api.scheme import Resource
from sliceplane.server.registry.decoding import body_of_json, document_of_json
from sliceplane.server.registry.registry import Registry
from sliceplane.server.registry.types import (
    Context,
    DeleteOptions,
    Outcome,
    Target,
    WatchPlan,
    WriteOptions,
)
from sliceplane.server.registry.verbs.answers import convert_body
from sliceplane.server.registry.verbs.options import delete_options_of_document
from sliceplane.server.store.types import EventType, Record
from sliceplane.server.store.watcher import Interest


def step_of(
    registry: Registry, context: Context, write: Write, options: WriteOptions
) -> Callable[[], Outcome]:
    """Returns a function that executes *write*. The body is decoded only once, now; the step may
    run repeatedly.

    Raises the 400 ``StatusError`` for a body that is not JSON. The step raises the errors of its
    verb.
    """
    target = Target(
        resource=write.resource,
        namespace=write.namespace,
        name=write.name,
        subresource=write.subresource,
    )
    match write.verb:
        case "create":
            body = body_of_json(write.resource, write.subresource, write.body)
            return partial(registry.create, context, target, body, options)
        case "update":
            body = body_of_json(write.resource, write.subresource, write.body)
            return partial(registry.update, context, target, body, options)
        case "patch":
            forced = replace(options, force=True) if write.force else options
            return partial(registry.patch, context, target, write.patch_type, write.body, forced)
        case "delete":
            deletion = (
                delete_options_of_document(document_of_json(write.body))
                if write.body
                else DeleteOptions()
            )
            return partial(registry.delete, context, target, deletion)
    raise AssertionError(f"{write.verb} is no write")


class StoredBodies:
    """The representation of watches without sockets: the stored body, shared by all of them."""

    def __init__(self, resource: Resource) -> None:
        self._resource = resource
        self._head = {"kind": resource.kind, "apiVersion": resource.api_version}

    def event(self, kind: EventType, record: Record) -> bytes:
        return convert_body(self._resource, record.body)

    def bookmark(self, revision: int, initial_events_end: bool) -> bytes:
        metadata: Document = {"resourceVersion": str(revision)}
        if initial_events_end:
            metadata["annotations"] = {"k8s.io/initial-events-end": "true"}
        return encode({**self._head, "metadata": metadata})


@lru_cache
def _stored_bodies(resource: Resource) -> StoredBodies:
    # The hub groups watchers by encoder, so there is one for each resource.
    return StoredBodies(resource)


def interest_of(plan: WatchPlan) -> Interest:
    """Returns the interest for ``Hub.subscribe``."""
    return Interest(
        resource=plan.resource.storage_key,
        encoder=_stored_bodies(plan.resource),
        namespace=plan.namespace,
        name=plan.name,
        matches=plan.matches,
        selector=plan.selector,
        local=True,
    )
