"""Bytes of all objects: bounded in all, and shared by namespaces (``kit.shares``), so that a user who may write in one
namespace leaves room for all others.  A namespace that has its share gets no more bytes; deletes, and updates that add
none, go on.

Only durable bytes count, so writes under way may exceed the bound; their bodies have a bound of their own.
"""

from __future__ import annotations

from collections.abc import Callable

from sliceplane.api.errors import StatusError, forbidden
from sliceplane.api.scheme import Resource
from sliceplane.registry.types import User, standing_of
from sliceplane.store.mvcc import Store
from sliceplane.store.types import Key


def admit_bytes(store: Store, user: User, resource: Resource, key: Key, size: Callable[[], int]) -> None:
    """*size*: bytes of the object as it will be stored; called only if there is no room for more.

    Raises the 403 ``StatusError`` of a namespace that has its share, and etcd's 500 if nothing is left for anybody.
    """
    counted = store.object_bytes
    if counted.has_room(key.namespace, standing_of(user)):
        return
    before = store.latest(key)
    if before is not None and size() <= len(before.body):
        return
    if counted.total >= counted.most:
        raise StatusError(500, "", "etcdserver: mvcc: database space exceeded")
    where = f"namespace {key.namespace}" if key.namespace else "the cluster scope"
    raise forbidden(
        resource.plural,
        resource.group,
        key.name,
        f"the objects of {where} have {counted.held_by(key.namespace):,} bytes, which is its share of the "
        f"{counted.most:,} bytes of --quota-backend-bytes; delete objects, or raise the flag",
    )
