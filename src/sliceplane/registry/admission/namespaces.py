"""Namespace life cycle: content only into namespaces that exist and stay (reference B14)."""

from __future__ import annotations

from sliceplane.api import codec
from sliceplane.api.core import Namespace
from sliceplane.api.errors import StatusError, forbidden, not_found
from sliceplane.api.meta import Document
from sliceplane.api.scheme import Namespaces, Resource
from sliceplane.store.mvcc import Store
from sliceplane.store.types import Key

#: made at start; the first three can never be deleted
BOOTSTRAP_NAMESPACES = ("default", "kube-system", "kube-public", "kube-node-lease")
IMMORTAL_NAMESPACES = BOOTSTRAP_NAMESPACES[:3]


def admit_create(store: Store, resource: Resource, head: Document) -> None:
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


def admit_delete(name: str) -> None:
    """Raises a 403 StatusError for a namespace that the cluster cannot be without."""
    if name in IMMORTAL_NAMESPACES:
        raise _immortal(name)


def _immortal(name: str) -> StatusError:
    return forbidden(Namespaces.plural, Namespaces.group, name, "this namespace may not be deleted")
