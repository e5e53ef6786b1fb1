"""The content of a terminating namespace, and its conditions.

While there are Pods, nothing else is deleted, and the conditions cover only Pods (KEP-5080, Ordered
Namespace Deletion): objects that they need until their end, such as a NetworkPolicy, stay until
then.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, NamedTuple, TypeVar

from sliceplane.api.core import Namespace, Pod
from sliceplane.api.meta import Object
from sliceplane.api.scheme import Pods, Resource


class _ConditionRow(NamedTuple):
    """Reason and message of a condition that is False, and the reason of one that is True."""

    type: str
    reason: str
    message: str
    true_reason: str = ""


_CONTENT: Final = "NamespaceDeletionContentFailure"
_REMAINING: Final = "NamespaceContentRemaining"
_FINALIZERS: Final = "NamespaceFinalizersRemaining"
#: conditions in their order
_ROWS: Final = (
    _ConditionRow(
        "NamespaceDeletionDiscoveryFailure",
        "ResourcesDiscovered",
        "All resources successfully discovered",
    ),
    _ConditionRow(
        "NamespaceDeletionGroupVersionParsingFailure",
        "ParsedGroupVersions",
        "All legacy kube types successfully parsed",
    ),
    _ConditionRow(
        _CONTENT,
        "ContentDeleted",
        "All content successfully deleted, may be waiting on finalization",
        "ContentDeletionFailed",
    ),
    _ConditionRow(
        _REMAINING, "ContentRemoved", "All content successfully removed", "SomeResourcesRemain"
    ),
    _ConditionRow(
        _FINALIZERS,
        "ContentHasNoFinalizers",
        "All content-preserving finalizers finished",
        "SomeFinalizersRemain",
    ),
)
CONDITIONS: Final = tuple(row.type for row in _ROWS)
#: maximum number of distinct errors in the condition
FAILURES_MAX: Final = 10


@dataclass(slots=True)
class NamespaceContent:
    """The objects of one namespace in the caches. A change costs O(1), whatever the size of the
    namespace.
    """

    #: objects by resource key and name
    objects: dict[str, dict[str, Object]] = field(default_factory=dict)
    #: names whose deletion was neither requested nor observed, by resource key
    remaining: dict[str, dict[str, None]] = field(default_factory=dict)
    #: failed deletions, by resource key and name: number of failures, and the server's message
    failed: dict[tuple[str, str], tuple[int, str]] = field(default_factory=dict)
    #: number of objects by resource key and finalizer; no zeros, nothing empty
    finalizers: dict[str, dict[str, int]] = field(default_factory=dict)
    #: number of Pods by grace period in seconds; no zeros
    graces: dict[int, int] = field(default_factory=dict)
    changed: float = 0.0

    def empty(self) -> bool:
        return not self.objects

    def put(self, key: str, item: Object) -> None:
        meta = item.metadata
        old = self.objects.get(key, {}).get(meta.name)
        if old is not None:
            self._count(key, old, -1)
        if meta.deletion_timestamp is not None:
            self.on_deletion_requested(key, meta.name)
            self.failed.pop((key, meta.name), None)
        elif old is None or old.metadata.uid != meta.uid:
            self.remaining.setdefault(key, {})[meta.name] = None
        self.objects.setdefault(key, {})[meta.name] = item
        self._count(key, item, 1)

    def remove(self, key: str, name: str) -> None:
        named = self.objects.get(key, {})
        old = named.pop(name, None)
        if old is not None:
            self._count(key, old, -1)
            if not named:
                del self.objects[key]
        self.on_deletion_requested(key, name)
        self.failed.pop((key, name), None)

    def on_deletion_requested(self, key: str, name: str) -> None:
        names = self.remaining.get(key)
        if names is not None and names.pop(name, 0) is None and not names:
            del self.remaining[key]

    @property
    def due_resources(self) -> frozenset[str] | None:
        """The resource keys whose objects are deleted now; ``None``: all."""
        return frozenset((Pods.key,)) if Pods.key in self.objects else None

    def pods_grace_s(self) -> int | None:
        """Returns the seconds after the namespace's own deletion for which its Pods may remain;
        ``None`` if finalizers keep some.
        """
        return None if self.finalizers.get(Pods.key) else max(self.graces, default=0)

    def _count(self, key: str, item: Object, step: int) -> None:
        if isinstance(item, Pod):
            _add(self.graces, _grace_s(item), step)
        objects_by_finalizer = self.finalizers.setdefault(key, {})
        for finalizer in item.metadata.finalizers or ():
            _add(objects_by_finalizer, finalizer, step)
        if not objects_by_finalizer:
            del self.finalizers[key]

    def check(self, name: str) -> None:
        assert all(self.objects.values()), f"{name} keeps an empty kind"
        assert all(self.remaining.values()), f"{name} keeps an empty kind without deletion"
        for key, names in self.remaining.items():
            assert names.keys() <= self.objects.get(key, {}).keys(), (
                f"{name}: {names} of {key} remain to be deleted and do not exist"
            )
        for key, object_name in self.failed:
            assert object_name in self.remaining.get(key, {}), (
                f"{name}: {key} {object_name} failed and does not remain"
            )
        counted: dict[str, dict[str, int]] = {}
        for key, named in self.objects.items():
            for item in named.values():
                for finalizer in item.metadata.finalizers or ():
                    _add(counted.setdefault(key, {}), finalizer, 1)
        assert counted == self.finalizers, f"{name}: {counted} finalizers, not {self.finalizers}"
        assert sum(self.graces.values()) == len(self.objects.get(Pods.key, ())), (
            f"{name}: {self.graces}"
        )


T = TypeVar("T")


def _add(counts: dict[T, int], name: T, step: int) -> None:
    count = counts.get(name, 0) + step
    if count:
        counts[name] = count
    else:
        del counts[name]


def _grace_s(pod: Pod) -> int:
    """Returns the grace period of a Pod; an update may change a negative one to one second."""
    return max(1, pod.spec.termination_grace_period_seconds or 0)


def read_conditions(namespace: Namespace) -> dict[str, dict[str, str]]:
    """Returns the conditions that an earlier run of this controller wrote, by type."""
    return {
        condition.type: {
            "type": condition.type,
            "status": condition.status,
            "reason": condition.reason,
            "message": condition.message,
            "lastTransitionTime": condition.last_transition_time or "",
        }
        for condition in namespace.status.conditions or ()
        if condition.type in CONDITIONS
    }


def conditions(
    resources: dict[str, Resource], content: NamespaceContent, stuck: str
) -> list[dict[str, str]]:
    """Returns the five conditions in their order. ``resources.group`` in texts ends with a dot for
    the core group.

    *stuck*: the name of the namespace if its Pods outlast their grace period, else "".
    """
    due = resources.keys() if content.due_resources is None else content.due_resources
    counts = {
        f"{r.plural}.{r.group}": len(content.objects.get(key, {}))
        for key, r in resources.items()
        if key in due
    }
    remaining = ", ".join(
        f"{name} has {count} resource instances" for name, count in sorted(counts.items()) if count
    )
    counts_by_finalizer: dict[str, int] = {}
    for key in due & content.finalizers.keys():
        for finalizer, count in content.finalizers[key].items():
            counts_by_finalizer[finalizer] = counts_by_finalizer.get(finalizer, 0) + count
    finalizers_text = ", ".join(
        f"{name} in {count} resource instances"
        for name, count in sorted(counts_by_finalizer.items())
    )
    failed = [message for (key, _), (_, message) in content.failed.items() if key in due]
    if stuck:
        failed.append(
            f"unexpected items still remain in namespace: {stuck} for gvr: /v1, Resource=pods"
        )
    failures = ", ".join(sorted(set(failed))[:FAILURES_MAX])
    problems = {
        _CONTENT: failures
        and f"Failed to delete all resource types, {len(failed)} remaining: {failures}",
        _REMAINING: remaining and f"Some resources are remaining: {remaining}",
        _FINALIZERS: finalizers_text
        and f"Some content in the namespace has finalizers remaining: {finalizers_text}",
    }
    return [
        {"type": row.type, "status": "True", "reason": row.true_reason, "message": problem}
        if (problem := problems.get(row.type))
        else {"type": row.type, "status": "False", "reason": row.reason, "message": row.message}
        for row in _ROWS
    ]
