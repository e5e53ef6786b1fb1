"""Help for whoever empties a namespace that is being deleted (reference B14).

The flow: ``remaining`` says what is left; each of those collections is deleted; when nothing is left a PUT
to ``finalize`` with empty spec.finalizers removes the Namespace in the same call.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from sliceplane.api import codec
from sliceplane.api.meta import Object
from sliceplane.api.scheme import RESOURCES, Resource
from sliceplane.store.mvcc import Store


@dataclass(frozen=True, slots=True)
class Remaining:
    """What one resource still has in a namespace.  ``finalizers`` counts the objects that each one holds."""

    resource: Resource
    count: int
    finalizers: tuple[tuple[str, int], ...]


def remaining(store: Store, namespace: str) -> tuple[Remaining, ...]:
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
            left.append(Remaining(resource, count, tuple(sorted(holders.items()))))
    return tuple(left)


def describe_content(left: tuple[Remaining, ...]) -> str:
    """The message of the condition NamespaceContentRemaining."""
    if not left:
        return "All content successfully removed"
    parts = (f"{item.resource.plural}.{item.resource.group} has {item.count} resource instances" for item in left)
    return f"Some resources are remaining: {', '.join(parts)}"


def describe_finalizers(left: tuple[Remaining, ...]) -> str:
    """The message of the condition NamespaceFinalizersRemaining."""
    totals: Counter[str] = Counter()
    for item in left:
        totals.update(dict(item.finalizers))
    if not totals:
        return "All content-preserving finalizers finished"
    parts = (f"{name} in {count} resource instances" for name, count in sorted(totals.items()))
    return f"Some content in the namespace has finalizers remaining: {', '.join(parts)}"
