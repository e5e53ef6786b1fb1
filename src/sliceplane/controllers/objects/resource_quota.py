"""Keeps ``status`` of ResourceQuotas: the limits, and the amounts in use.

Counts follow the watches: an event changes a few numbers of its namespace and requires no scan. A
quota is written if its status is wrong.

**Charges.**  The API server itself raises ``used`` just before it stores an object, so a quota may
be ahead of the caches. Lowering it then would admit one object too many. So a number that another
writer raised is lowered only after the resource that it counts was observed at a later version than
the quota's. This proves that the charged object was observed, too, since its version is later than
the quota's and a watch is ordered. If it never appears (the write failed after its charge), the
wait ends after ``CHARGE_PATIENCE_S``. Raising needs no such care, and a write on a quota that has
changed meanwhile fails by its resourceVersion.
"""

from __future__ import annotations

from fractions import Fraction
from typing import Final

from sliceplane.api.codec import decode, encode
from sliceplane.api.core import Pod, ResourceQuota
from sliceplane.api.meta import Object
from sliceplane.api.quantity import amount
from sliceplane.api.scheme import Pods, Resource, ResourceQuotas, Services, by_key
from sliceplane.server.registry.kinds import COUNTED, counted_kind, kind_of, quota_text, usage
from sliceplane.server.registry.kinds.pods.pod_quota import DONE, PodTraits, is_in_scopes
from sliceplane.watch.cache import Change
from sliceplane.watch.controller.base import ControllerInfo, Done, Selection, Write
from sliceplane.watch.controller.keyed import KeyedController

CHARGE_PATIENCE_S: Final = 5.0
#: resources whose objects change their cost
_VARIABLE: Final = frozenset((Pods.key, Services.key))


class ResourceQuotaController(KeyedController):
    """The controller. Jobs are keyed by ``namespace/name`` of the quota."""

    def __init__(self) -> None:
        super().__init__(
            ControllerInfo(
                name="resourcequota-controller",
                queue="resourcequota_primary",
                aliases=("resourcequota",),
                watches=tuple(Selection(resource) for resource in COUNTED),
            )
        )
        self._quotas: dict[str, ResourceQuota] = {}
        #: keys of quotas by namespace
        self._quotas_by_namespace: dict[str, set[str]] = {}
        #: amounts by namespace, by traits of Pods that scopes select on (``None``: other kinds), by
        #: name; no zeros, nothing empty
        self._counts: dict[str, dict[PodTraits | None, dict[str, Fraction | int]]] = {}
        #: newest observed version by resource key
        self._newest: dict[str, int] = {}
        #: version of the charged quota and end of the wait for the object, by quota and name
        self._charged: dict[str, dict[str, tuple[int, float]]] = {}
        #: version of our last write, by quota
        self._own: dict[str, int] = {}

    # -- events

    def on_change(self, change: Change[Object], now: float) -> None:
        version = change.object.metadata.revision
        self._newest[change.resource] = max(version, self._newest.get(change.resource, 0))
        if change.resource == ResourceQuotas.key:
            self._expectations.observe(change)
            self._on_quota(change, version, now)
        resource = by_key(change.resource)
        assert resource is not None, f"{change.resource} is watched and not served"
        namespace = change.object.metadata.namespace
        affected = sorted(self._quotas_by_namespace.get(namespace, ()))
        if _costs_the_same(change):
            affected = [key for key in affected if key in self._charged]
        else:
            for item, step in ((change.new, 1), (change.old, -1)):
                if item is not None:
                    self._count(resource, item, step)
        for key in affected:
            self.enqueue(key, now)

    def _count(self, resource: Resource, item: Object, step: int) -> None:
        namespace = item.metadata.namespace
        by_traits = self._counts.setdefault(namespace, {})
        traits = kind_of(resource).quota.traits(item)
        counts = by_traits.setdefault(traits, {})
        for name, number in usage(resource, item).items():
            counts[name] = counts.get(name, 0) + step * number
            if not counts[name]:
                del counts[name]
        if not counts:
            del by_traits[traits]
        if not by_traits:
            del self._counts[namespace]

    def _on_quota(self, change: Change[Object], version: int, now: float) -> None:
        quota = change.object
        key = quota.metadata.key
        assert isinstance(quota, ResourceQuota), f"{key} came as {type(quota).__name__}"
        if change.new is None:
            self._forget(key, quota.metadata.namespace)
            return
        before = self._quotas.get(key)
        if before is not None and before.metadata.uid != quota.metadata.uid:
            self._forget(key, quota.metadata.namespace)
            before = None
        used_before = (before.status.used or {}) if before is not None else {}
        for name, used in (quota.status.used or {}).items():
            if name not in used_before or amount(used) > amount(used_before[name]):
                self._charged.setdefault(key, {})[name] = (version, now + CHARGE_PATIENCE_S)
        self._quotas[key] = quota
        self._quotas_by_namespace.setdefault(quota.metadata.namespace, set()).add(key)
        self.enqueue(key, now)

    def _forget(self, key: str, namespace: str) -> None:
        self._quotas.pop(key, None)
        self._charged.pop(key, None)
        self._own.pop(key, None)
        self._expectations.forget(key)
        keys = self._quotas_by_namespace.get(namespace, set())
        keys.discard(key)
        if not keys:
            self._quotas_by_namespace.pop(namespace, None)

    # -- work

    def plan(self, key: str, now: float) -> tuple[Write, ...]:
        quota = self._quotas.get(key)
        if quota is None:
            return ()
        if self.waits_for_cache(key, now):
            return ()
        hard = quota.spec.hard or {}
        used, wait_until = self._used(key, quota, now)
        if wait_until is not None:
            self.enqueue_after(key, wait_until - now, now)
        hard_before = quota.status.hard or {}
        used_before = quota.status.used or {}
        if hard == hard_before and used == used_before:
            return ()
        body = {
            "metadata": {
                "uid": quota.metadata.uid,
                "resourceVersion": quota.metadata.resource_version,
            },
            "status": {
                "hard": _difference(hard_before, hard),
                "used": _difference(used_before, used),
            },
        }
        meta = quota.metadata
        write = Write(
            verb="patch",
            resource=ResourceQuotas,
            namespace=meta.namespace,
            name=meta.name,
            subresource="status",
            body=encode(body),
            tolerate=("NotFound",),
        )
        return (write,)

    def _used(
        self, key: str, quota: ResourceQuota, now: float
    ) -> tuple[dict[str, str | int], float | None]:
        """Returns the correct ``status.used``, and the time to check again the amounts that are not
        lowered yet.
        """
        by_traits = self._counts.get(quota.metadata.namespace, {})
        counts = [
            counts for traits, counts in by_traits.items() if is_in_scopes(quota.spec, traits)
        ]
        before = quota.status.used or {}
        used: dict[str, str | int] = {}
        deadlines: list[float] = []
        for name in sorted(quota.spec.hard or {}):
            if counted_kind(name) is None:
                continue
            count = sum((amounts.get(name, 0) for amounts in counts), Fraction())
            used[name] = quota_text(name, count)
            if name in before and count < amount(before[name]):
                until = self._ahead_until(key, name, now)
                if until is not None:
                    used[name] = before[name]
                    deadlines.append(until)
        return used, min(deadlines, default=None)

    def _ahead_until(self, key: str, name: str, now: float) -> float | None:
        """Returns the time at which the wait for a charged object ends; ``None`` if there is no
        wait.
        """
        charges = self._charged.get(key, {})
        if name not in charges:
            return None
        version, until = charges[name]
        if (
            version != self._own.get(key)
            and self._newest.get(counted_kind(name) or "", 0) <= version
            and now < until
        ):
            return until
        del charges[name]
        if not charges:
            del self._charged[key]
        return None

    def finished(self, done: Done, now: float) -> None:
        key = done.job.key
        for result in done.results:
            if result and key in self._quotas:
                self._own[key] = decode(result, Object).metadata.revision
        self._expectations.expect(done, now)

    def check(self) -> None:
        super().check()
        by_namespace = {(quota.metadata.namespace, key) for key, quota in self._quotas.items()}
        assert by_namespace == {
            (namespace, key)
            for namespace, keys in self._quotas_by_namespace.items()
            for key in keys
        }
        assert self._charged.keys() <= self._quotas.keys(), "charges of a quota that is gone"
        assert self._own.keys() <= self._quotas.keys(), "a version of a quota that is gone"
        for namespace, by_traits in self._counts.items():
            assert by_traits, f"{namespace} counts nothing"
            for traits, counts in by_traits.items():
                assert min(counts.values(), default=0) > 0, f"{namespace}, {traits}: {counts}"


def _costs_the_same(change: Change[Object]) -> bool:
    """Returns True if the change cannot affect a quota, as nearly all changes of Pods: neither spec
    nor completion changed.
    """
    if change.old is None or change.new is None:
        return False
    if isinstance(change.old, Pod) and isinstance(change.new, Pod):
        same_end = (change.old.status.phase in DONE) == (change.new.status.phase in DONE)
        return same_end and change.old.spec == change.new.spec
    return change.resource not in _VARIABLE


def _difference(
    before: dict[str, str | int], after: dict[str, str | int]
) -> dict[str, str | int | None]:
    """Returns the merge patch from *before* to *after*."""
    return {**{name: None for name in before if name not in after}, **after}
