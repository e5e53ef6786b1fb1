"""What is in a terminating namespace, and what its conditions say of that."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from sliceplane.api.core import Namespace
from sliceplane.api.meta import Object
from sliceplane.api.scheme import Resource

CONDITIONS: Final = (
    "NamespaceDeletionDiscoveryFailure",
    "NamespaceDeletionGroupVersionParsingFailure",
    "NamespaceDeletionContentFailure",
    "NamespaceContentRemaining",
    "NamespaceFinalizersRemaining",
)
#: different errors that the condition repeats
FAILURES_MAX: Final = 10


@dataclass(slots=True)
class NamespaceContent:
    """What the caches show of one namespace.  Following a change costs the same however much there is."""

    #: resource key -> name -> object
    objects: dict[str, dict[str, Object]] = field(default_factory=dict)
    #: resource key -> names whose deletion was not asked for, nor seen
    left: dict[str, dict[str, None]] = field(default_factory=dict)
    #: objects (by resource key and name) that the server would not delete -> how often, and what it said
    failed: dict[tuple[str, str], tuple[int, str]] = field(default_factory=dict)
    #: finalizer -> objects that have it; no zeros
    finalizers: dict[str, int] = field(default_factory=dict)
    changed: float = 0.0

    def empty(self) -> bool:
        return not self.objects

    def put(self, key: str, item: Object) -> None:
        meta = item.metadata
        old = self.objects.get(key, {}).get(meta.name)
        if old is not None:
            self._count(old, -1)
        if meta.deletion_timestamp is not None:
            self.not_left(key, meta.name)
            self.failed.pop((key, meta.name), None)
        elif old is None or old.metadata.uid != meta.uid:
            self.left.setdefault(key, {})[meta.name] = None
        self.objects.setdefault(key, {})[meta.name] = item
        self._count(item, 1)

    def remove(self, key: str, name: str) -> None:
        named = self.objects.get(key, {})
        old = named.pop(name, None)
        if old is not None:
            self._count(old, -1)
            if not named:
                del self.objects[key]
        self.not_left(key, name)
        self.failed.pop((key, name), None)

    def not_left(self, key: str, name: str) -> None:
        names = self.left.get(key)
        if names is not None and names.pop(name, 0) is None and not names:
            del self.left[key]

    def _count(self, item: Object, step: int) -> None:
        for finalizer in item.metadata.finalizers or ():
            count = self.finalizers.get(finalizer, 0) + step
            if count:
                self.finalizers[finalizer] = count
            else:
                del self.finalizers[finalizer]

    def check(self, name: str) -> None:
        assert all(self.objects.values()), f"{name} keeps an empty kind"
        assert all(self.left.values()), f"{name} keeps an empty kind of what is left"
        for key, names in self.left.items():
            assert names.keys() <= self.objects.get(key, {}).keys(), f"{name}: {names} of {key} are left and not there"
        for key, object_name in self.failed:
            assert object_name in self.left.get(key, {}), f"{name}: {key} {object_name} failed and is not left"
        counted: dict[str, int] = {}
        for named in self.objects.values():
            for item in named.values():
                for finalizer in item.metadata.finalizers or ():
                    counted[finalizer] = counted.get(finalizer, 0) + 1
        assert counted == self.finalizers, f"{name}: {counted} finalizers, not {self.finalizers}"


def said(namespace: Namespace) -> dict[str, dict[str, str]]:
    """The conditions that an earlier life of this controller wrote, by type."""
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


def conditions(resources: dict[str, Resource], content: NamespaceContent) -> list[dict[str, str]]:
    """The five conditions in their order.  ``resources.group`` in texts ends with a dot for the core group."""
    counts = {f"{r.plural}.{r.group}": len(content.objects.get(key, {})) for key, r in resources.items()}
    remaining = ", ".join(f"{name} has {count} resource instances" for name, count in sorted(counts.items()) if count)
    held = ", ".join(f"{name} in {count} resource instances" for name, count in sorted(content.finalizers.items()))
    failures = ", ".join(sorted({said for _, said in content.failed.values()})[:FAILURES_MAX])
    return [
        _condition("NamespaceDeletionDiscoveryFailure", "ResourcesDiscovered", "All resources successfully discovered"),
        _condition(
            "NamespaceDeletionGroupVersionParsingFailure",
            "ParsedGroupVersions",
            "All legacy kube types successfully parsed",
        ),
        _condition(
            "NamespaceDeletionContentFailure",
            "ContentDeleted",
            "All content successfully deleted, may be waiting on finalization",
        )
        if not failures
        else _condition(
            "NamespaceDeletionContentFailure",
            "ContentDeletionFailed",
            f"Failed to delete all resource types, {len(content.failed)} remaining: {failures}",
            "True",
        ),
        _condition("NamespaceContentRemaining", "ContentRemoved", "All content successfully removed")
        if not remaining
        else _condition(
            "NamespaceContentRemaining", "SomeResourcesRemain", f"Some resources are remaining: {remaining}", "True"
        ),
        _condition(
            "NamespaceFinalizersRemaining", "ContentHasNoFinalizers", "All content-preserving finalizers finished"
        )
        if not held
        else _condition(
            "NamespaceFinalizersRemaining",
            "SomeFinalizersRemain",
            f"Some content in the namespace has finalizers remaining: {held}",
            "True",
        ),
    ]


def _condition(kind: str, reason: str, message: str, status: str = "False") -> dict[str, str]:
    return {"type": kind, "status": status, "reason": reason, "message": message}
