"""Namespaces and what is in them: content goes only into one that exists and stays, and what is left in one that ends.

The end of one: ``remaining`` says what is left; each of those collections is deleted; when nothing is left a PUT
to ``finalize`` with empty spec.finalizers removes the Namespace in the same call.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from sliceplane.api import codec
from sliceplane.api.core import Namespace
from sliceplane.api.errors import forbidden, not_found
from sliceplane.api.meta import Document, Object
from sliceplane.api.scheme import RESOURCES, Namespaces, Resource
from sliceplane.store.mvcc import Store
from sliceplane.store.types import Key


@dataclass(frozen=True, slots=True)
class RemainingObjects:
    """What one resource still has in a namespace.  ``finalizers`` counts the objects that each one holds."""

    resource: Resource
    count: int
    finalizers: tuple[tuple[str, int], ...]


def admit_content(store: Store, resource: Resource, head: Document) -> None:
    """Raises a 404 StatusError for a missing namespace, a 403 for one that is going."""
    if not resource.namespaced:
        return
    namespace = head.get("namespace", "")
    record = store.latest(Key(Namespaces.storage_key, "", namespace))
    if record is None:
        raise not_found(Namespaces.plural, Namespaces.group, namespace)
    if codec.decode(record.body, Namespace).metadata.deletion_timestamp is None:
        return
    cause = {
        "reason": "NamespaceTerminating",
        "message": f"namespace {namespace} is being terminated",
        "field": "metadata.namespace",
    }
    why = f"unable to create new content in namespace {namespace} because it is being terminated"
    raise forbidden(resource.plural, resource.group, head.get("name", ""), why, [cause])


def remaining(store: Store, namespace: str) -> tuple[RemainingObjects, ...]:
    """Everything left in *namespace*, in the order of the scheme; empty when it may be finalized."""
    left = []
    for resource in RESOURCES:
        if not resource.namespaced or resource.is_view:
            continue
        count = 0
        holders: Counter[str] = Counter()
        for record in store.iter_latest(resource.storage_key, namespace):
            count += 1
            holders.update(codec.decode(record.body, Object).metadata.finalizers or ())
        if count:
            left.append(RemainingObjects(resource, count, tuple(sorted(holders.items()))))
    return tuple(left)


def describe_content(left: tuple[RemainingObjects, ...]) -> str:
    """The message of the condition NamespaceContentRemaining."""
    if not left:
        return "All content successfully removed"
    parts = (f"{item.resource.plural}.{item.resource.group} has {item.count} resource instances" for item in left)
    return f"Some resources are remaining: {', '.join(parts)}"


def describe_finalizers(left: tuple[RemainingObjects, ...]) -> str:
    """The message of the condition NamespaceFinalizersRemaining."""
    totals: Counter[str] = Counter()
    for item in left:
        totals.update(dict(item.finalizers))
    if not totals:
        return "All content-preserving finalizers finished"
    parts = (f"{name} in {count} resource instances" for name, count in sorted(totals.items()))
    return f"Some content in the namespace has finalizers remaining: {', '.join(parts)}"
