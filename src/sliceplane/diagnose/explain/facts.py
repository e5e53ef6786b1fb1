"""Objects that were read from a cluster, by resource, and refused reads, which are never the same
as "there is none".

A check calls ``was_read`` before it reports a missing object. Lists are of different moments: a
finding can be a change under way, and the reader checks again if that matters.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

import msgspec

from sliceplane.api.findings.finding import Finding
from sliceplane.api.meta import Object
from sliceplane.api.requests import PortProbe, ProbeOutcome, Selection
from sliceplane.diagnose.explain.kernel import KernelFacts
from sliceplane.diagnose.explain.objects import (
    EVENTS,
    PODS,
    SLICES,
    FullEvent,
    FullPod,
    FullSlice,
    Readable,
    warnings_in,
)

T = TypeVar("T", bound=Object)
Derived = TypeVar("Derived")


class Unread(msgspec.Struct, frozen=True):
    """A selection that was not read. ``reason``: the server's, or why it was not requested."""

    selection: Selection
    verb: str
    reason: str

    def __str__(self) -> str:
        resource = self.selection.resource.key
        where = f" in namespace {self.selection.namespace}" if self.selection.namespace else ""
        reason = f"{self.reason} {self.verb}" if self.reason.endswith(" to") else self.reason
        return f"{resource}{where} ({reason})"

    @property
    def right(self) -> str:
        """``list pods in namespace shop``"""
        selection = self.selection
        where = f"namespace {selection.namespace}" if selection.namespace else "all namespaces"
        return f"{self.verb} {selection.resource.key}" + (
            f" in {where}" if selection.resource.namespaced else ""
        )


class Facts:
    """Owned by one ``investigation.Investigation``; checks read it.  ``now``: seconds since the
    epoch.
    """

    def __init__(
        self, now: float, kernel: KernelFacts | None = None, shadow: Iterable[Finding] = ()
    ) -> None:
        self.now = now
        #: findings of shadow mode, by key of the Service
        self.shadow: dict[str, list[Finding]] = defaultdict(list)
        for finding in shadow:
            self.shadow[f"{finding.subject.namespace}/{finding.subject.name}"].append(finding)
        #: the kernel of this machine, which then is a node; ``None``: not requested
        self.kernel = kernel
        #: outcomes of connections from here; ``None``: none were tried
        self.tried: dict[PortProbe, ProbeOutcome] | None = None
        #: resource -> namespace -> name
        self._objects: dict[str, dict[str, dict[str, Object]]] = defaultdict(dict)
        self._read: set[Selection] = set()
        self._unread: dict[Selection, Unread] = {}
        self._sorted: dict[str, dict[str, tuple[Object, ...]]] = {}
        self._derived: dict[Callable[[Facts], Any], Any] = {}

    # Input

    def take(self, selection: Selection, objects: Iterable[Object]) -> None:
        self._read.add(selection)
        by_namespace = self._objects[selection.resource.key]
        for item in objects:
            by_namespace.setdefault(item.metadata.namespace, {})[item.metadata.name] = item
        self._sorted.pop(selection.resource.key, None)
        self._derived.clear()

    def refuse(self, unread: Unread) -> None:
        self._unread[unread.selection] = unread

    # Queries

    @property
    def refusals(self) -> Mapping[Selection, Unread]:
        return self._unread

    @property
    def unread(self) -> tuple[Unread, ...]:
        return tuple(self._unread.values())

    def is_answered(self, selection: Selection) -> bool:
        """Returns True if *selection* was read, alone or in a wider one, or refused."""
        return selection in self._unread or self.was_read(selection)

    def was_read(self, selection: Selection) -> bool:
        resource, namespace = selection.resource, selection.namespace
        wider = [selection, Selection(resource, namespace), Selection(resource)]
        if resource is EVENTS.resource:
            wider += [warnings_in(namespace), warnings_in("")]
        return any(candidate in self._read for candidate in wider)

    def of(self, readable: Readable[T], namespace: str = "") -> tuple[T, ...]:
        """Returns the objects of *namespace* ("": of all), sorted by key."""
        key = readable.resource.key
        tuples = self._sorted.setdefault(key, {})
        if namespace not in tuples:
            tuples[namespace] = _sorted(self._objects.get(key, {}), namespace)
        return tuples[namespace]  # type: ignore[return-value]  # one type a resource: ``Readable``

    def get(self, readable: Readable[T], namespace: str, name: str) -> T | None:
        return self._objects.get(readable.resource.key, {}).get(namespace, {}).get(name)  # type: ignore[return-value]

    def derived(self, make: Callable[[Facts], Derived]) -> Derived:
        """Returns the result of *make*, a function of a module, for these facts; computed once for
        all cases.
        """
        if make not in self._derived:
            self._derived[make] = make(self)
        return self._derived[make]  # type: ignore[no-any-return]  # it is what *make* returned

    def pods_with(self, namespace: str, labels: Mapping[str, str]) -> tuple[FullPod, ...]:
        """Returns the Pods that have every pair of *labels*, sorted by name; none for no labels.
        O(Pods with the rarest pair).
        """
        index = self.derived(_pods_by_label)
        lists = [index.get((namespace, label, value), []) for label, value in labels.items()]
        if not lists:
            return ()
        rarest = min(lists, key=len)
        return tuple(pod for pod in rarest if labels.items() <= pod.labels.items())

    def pods_at(self, address: str) -> tuple[FullPod, ...]:
        """Returns the Pods of any namespace that have *address* and have not ended, sorted by
        key.
        """
        firsts, others = self.derived(_pods_by_address)
        return (firsts[address], *others[address]) if address in firsts else ()

    def slices_of(self, namespace: str, service: str) -> tuple[FullSlice, ...]:
        """Returns the slices labelled for the Service, of any writer, sorted by name."""
        return tuple(self.derived(_slices_by_service).get(f"{namespace}/{service}", ()))

    def events_of(self, namespace: str, kind: str, name: str) -> tuple[FullEvent, ...]:
        """Returns the Events about the object, the last first."""
        return tuple(self.derived(_events_by_object).get((namespace, kind, name), ()))


def _sorted(by_namespace: Mapping[str, Mapping[str, Object]], namespace: str) -> tuple[Object, ...]:
    # Namespaces in the order of their objects' keys: ``a-b/x`` is before ``a/x``.
    namespaces = [namespace] if namespace else sorted(by_namespace, key=lambda name: f"{name}/")
    return tuple(
        item for name in namespaces for _, item in sorted(by_namespace.get(name, {}).items())
    )


def _pods_by_label(facts: Facts) -> dict[tuple[str, str, str], list[FullPod]]:
    index: dict[tuple[str, str, str], list[FullPod]] = defaultdict(list)
    for pod in facts.of(PODS):
        for label, value in pod.labels.items():
            index[pod.metadata.namespace, label, value].append(pod)
    return dict(index)


def _pods_by_address(facts: Facts) -> tuple[dict[str, FullPod], dict[str, list[FullPod]]]:
    """Returns the first Pod at each address, and the others, which few addresses have."""
    firsts: dict[str, FullPod] = {}
    others: dict[str, list[FullPod]] = defaultdict(list)
    for pod in facts.of(PODS):
        for address in pod.status.ips if not pod.has_ended else ():
            if firsts.setdefault(address, pod) is not pod:
                others[address].append(pod)
    return firsts, others


def _slices_by_service(facts: Facts) -> dict[str, list[FullSlice]]:
    grouped: dict[str, list[FullSlice]] = defaultdict(list)
    for endpoint_slice in facts.of(SLICES):
        name = endpoint_slice.service
        grouped[f"{endpoint_slice.metadata.namespace}/{name}"].append(endpoint_slice)
    return dict(grouped)


def _events_by_object(facts: Facts) -> dict[tuple[str, str, str], list[FullEvent]]:
    grouped: dict[tuple[str, str, str], list[FullEvent]] = defaultdict(list)
    for event in sorted(facts.of(EVENTS), key=lambda event: event.last_observed, reverse=True):
        about = event.involved_object
        grouped[event.metadata.namespace, about.kind, about.name].append(event)
    return dict(grouped)
