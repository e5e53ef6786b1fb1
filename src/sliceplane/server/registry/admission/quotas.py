"""ResourceQuota: a write that exceeds a quota is refused; any other is charged (kubernetes.io,
Resource Quotas). A quota with scopes counts only the Pods in them.

The quota's ``status``, which the quota controller maintains, is decisive: a quota that the
controller has not observed limits nothing. The charge is staged just before its object, in the same
step, so no other write comes between the two. The controller returns released amounts. Existing
objects that exceed a quota are kept.

The bytes of all objects are limited also without a quota, and shared by namespaces
(``kit.shares``), so that a user with access to one namespace cannot use the space of all others. A
namespace that has used its share gets no more bytes; deletes, and updates that add none, are
allowed. Only durable bytes count, so writes in flight may exceed the limit; their bodies have a
limit of their own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from fractions import Fraction
from typing import Final

import msgspec

from sliceplane.api.codec import decode
from sliceplane.api.core import Amounts, ResourceQuota
from sliceplane.api.errors import StatusError, forbidden
from sliceplane.api.meta import Document, Object
from sliceplane.api.quantity import exact
from sliceplane.api.scheme import Resource, ResourceQuotas
from sliceplane.api.users import User, standing_of
from sliceplane.server.registry.documents import document_of, refused
from sliceplane.server.registry.kinds import counted_kind, kind_of, quota_text, usage
from sliceplane.server.registry.kinds.pods.pod_quota import is_in_scopes
from sliceplane.server.store.mvcc import Store
from sliceplane.server.store.types import Key, Record

#: maximum size of one object as JSON, with its defaults; upstream's etcd accepts 1.5 MiB of
#: protobuf, which is about as much
STORED_BYTES_MAX: Final = 3 * 1024 * 1024


class QuotaIndex:
    """The quotas of each namespace, usually none.  A ``server.registry.core.Follower``."""

    follows = frozenset((ResourceQuotas.storage_key,))

    def __init__(self, store: Store) -> None:
        self._store = store
        self._names: dict[str, set[str]] = {}

    def rebuild(self, objects: Iterable[tuple[Key, Document]]) -> None:
        self._names.clear()
        for key, document in objects:
            self.on_stored(key, document)

    def on_stored(self, key: Key, document: Document) -> None:
        self._names.setdefault(key.namespace, set()).add(key.name)

    def on_removed(self, key: Key) -> None:
        names = self._names.get(key.namespace, set())
        names.discard(key.name)
        if not names:
            self._names.pop(key.namespace, None)

    def admit(
        self, resource: Resource, new: Document, old: Document | None
    ) -> tuple[Document, ...]:
        """Returns the quotas after a charge for *new*, of a counted kind, in place of *old*.

        Raises the 403 ``StatusError`` of the first quota, by name, that would be exceeded.
        """
        names = self._names.get(new["metadata"].get("namespace", ""))
        if not names:
            return ()
        projection = msgspec.convert(new, resource.projection)
        cost = usage(resource, projection)
        before = {} if old is None else usage(resource, msgspec.convert(old, resource.projection))
        rise = {
            name: number - before.get(name, 0)
            for name, number in cost.items()
            if number > before.get(name, 0)
        }
        if not rise:
            return ()
        charged = []
        for record, quota in tuple(self._matching(resource, new, projection, sorted(names))):
            name = quota.metadata.name
            hard = quota.status.hard or {}
            used = quota.status.used or {}
            costs = {counted: rise[counted] for counted in sorted(rise) if counted in hard}
            if not costs:
                continue
            why = _excess(name, costs, hard, used)
            if why:
                raise refused(resource, new, why)
            document = document_of(record)
            sums = {
                counted: quota_text(counted, exact(used[counted]) + number)
                for counted, number in costs.items()
            }
            document["status"] = {**document["status"], "used": {**used, **sums}}
            charged.append(document)
        return tuple(charged)

    def _matching(
        self, resource: Resource, new: Document, projection: Object, names: list[str]
    ) -> Iterator[tuple[Record, ResourceQuota]]:
        """Yields the quotas whose scopes contain the object and that limit its kind. The required
        members of the object are checked before amounts are added.
        """
        rules = kind_of(resource).quota
        traits = rules.traits(projection)
        for name in names:
            record = self._store.latest(
                Key(ResourceQuotas.storage_key, new["metadata"]["namespace"], name)
            )
            assert record is not None, f"quota {name} is indexed and does not exist"
            quota = decode(record.body, ResourceQuota)
            counted = sorted(
                limited
                for limited in quota.status.hard or {}
                if counted_kind(limited) == resource.key
            )
            if not counted or not is_in_scopes(quota.spec, traits):
                continue
            missing = rules.missing(projection, counted)
            if missing:
                raise refused(resource, new, f"failed quota: {name}: {missing}")
            unknown = [limited for limited in counted if limited not in (quota.status.used or {})]
            if unknown:
                raise refused(
                    resource,
                    new,
                    f"status unknown for quota: {name}, resources: {','.join(unknown)}",
                )
            yield record, quota

    def check(self, objects: list[tuple[Key, Document]]) -> None:
        indexed = sorted(
            (namespace, name) for namespace, names in self._names.items() for name in names
        )
        stored = sorted((key.namespace, key.name) for key, _ in objects)
        assert indexed == stored, f"{indexed} are indexed, there are {stored}"
        assert all(self._names.values()), "a namespace without quotas is indexed"


def _excess(quota: str, costs: dict[str, Fraction | int], hard: Amounts, used: Amounts) -> str:
    """Returns the reason why *costs* exceed the quota; "" if they do not."""
    over = [name for name, cost in costs.items() if exact(used[name]) + cost > exact(hard[name])]
    if not over:
        return ""
    requested = ",".join(f"{name}={quota_text(name, costs[name])}" for name in over)
    spent, limited = (
        ",".join(f"{name}={quota_text(name, exact(amounts[name]))}" for name in over)
        for amounts in (used, hard)
    )
    return f"exceeded quota: {quota}, requested: {requested}, used: {spent}, limited: {limited}"


def admit_size(size_bytes: int) -> None:
    """Raises the 500 ``StatusError`` of kube-apiserver for an object that etcd does not accept.

    *size_bytes*: size of the JSON to store, after defaulting. Writes of small bodies to small
    objects cannot reach the limit and need no check.
    """
    if size_bytes > STORED_BYTES_MAX:
        raise StatusError(500, "", "etcdserver: request is too large")


def admit_bytes(
    store: Store, user: User, resource: Resource, key: Key, size: Callable[[], int]
) -> None:
    """Checks the byte limits.  *size*: returns the bytes of the stored object; called only if the
    share is used up.

    Raises the 403 ``StatusError`` of a namespace that has used its share, and etcd's 500 if no
    space remains at all.
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
        f"the objects of {where} have {counted.used_by(key.namespace):,} bytes, which is its "
        "share of the "
        f"{counted.most:,} bytes of --quota-backend-bytes; delete objects, or raise the flag",
    )
