"""ResourceQuota: a write that costs more than what is left is refused; any other is charged (kubernetes.io,
Resource Quotas).

What holds is ``status``, which the quota controller keeps: a quota that it has not seen yet limits nothing.  The
charge is staged just before the object that it is for, in the same step, so no other write comes between the two.
What is freed is given back by the controller.  Objects that use more than a quota allows stay as they are.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from sliceplane.api.codec import decode
from sliceplane.api.core import ResourceQuota
from sliceplane.api.errors import forbidden
from sliceplane.api.meta import Document
from sliceplane.api.quantity import amount
from sliceplane.api.scheme import Resource, ResourceQuotas
from sliceplane.registry.documents import document_of
from sliceplane.registry.kinds import usage
from sliceplane.store.mvcc import Store
from sliceplane.store.types import Key


class QuotaIndex:
    """Which quotas a namespace has; nearly always none.  A ``registry.core.Follower``."""

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

    def admit(self, resource: Resource, new: Document, old: Document | None) -> tuple[Document, ...]:
        """The quotas as they are after a charge for *new*, of a kind that counts, in the place of *old*.

        Raises the 403 ``StatusError`` of the first quota, by name, that would be exceeded.
        """
        names = self._names.get(new["metadata"].get("namespace", ""))
        if not names:
            return ()
        cost = _cost(resource, new)
        before = {} if old is None else _cost(resource, old)
        rise = {name: number - before.get(name, 0) for name, number in cost.items() if number > before.get(name, 0)}
        if not rise:
            return ()
        charged = []
        for name in sorted(names):
            record = self._store.latest(Key(ResourceQuotas.storage_key, new["metadata"]["namespace"], name))
            assert record is not None, f"quota {name} is indexed and does not exist"
            status = decode(record.body, ResourceQuota).status
            hard = status.hard or {}
            used = status.used or {}
            costs = {counted: rise[counted] for counted in sorted(rise) if counted in hard}
            if not costs:
                continue
            why = _complaint(name, costs, hard, used)
            if why:
                raise forbidden(resource.plural, resource.group, new["metadata"].get("name", ""), why)
            document = document_of(record)
            sums = {counted: str(int(amount(used[counted])) + number) for counted, number in costs.items()}
            document["status"] = {**document["status"], "used": {**used, **sums}}
            charged.append(document)
        return tuple(charged)

    def check(self, objects: list[tuple[Key, Document]]) -> None:
        known = sorted((namespace, name) for namespace, names in self._names.items() for name in names)
        stored = sorted((key.namespace, key.name) for key, _ in objects)
        assert known == stored, f"{known} are indexed, there are {stored}"
        assert all(self._names.values()), "a namespace without quotas is remembered"


def _cost(resource: Resource, document: Document) -> dict[str, int]:
    return usage(resource, msgspec.convert(document, resource.projection))


def _complaint(quota: str, costs: dict[str, int], hard: dict[str, str | int], used: dict[str, str | int]) -> str:
    unknown = [name for name in costs if name not in used]
    if unknown:
        return f"status unknown for quota: {quota}, resources: {','.join(unknown)}"
    over = [name for name, cost in costs.items() if amount(used[name]) + cost > amount(hard[name])]
    if not over:
        return ""
    requested, spent, limited = (
        ",".join(f"{name}={amounts[name]}" for name in over) for amounts in (costs, used, hard)
    )
    return f"exceeded quota: {quota}, requested: {requested}, used: {spent}, limited: {limited}"
