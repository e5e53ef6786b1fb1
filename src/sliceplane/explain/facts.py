"""What was read of a cluster, by resource; and what could not be, which is never the same as "there is none".

A check asks ``was_read`` before it says that something is missing.  Lists are of different moments: what a check finds
can be a change on its way, and the reader looks a second time where that matters.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TypeVar

from sliceplane.api.discovery import LABEL_SERVICE_NAME, EndpointSlice
from sliceplane.api.meta import Object
from sliceplane.api.requests import Selection
from sliceplane.explain.objects import PODS, SLICES, FullPod, Readable

T = TypeVar("T", bound=Object)


@dataclass(frozen=True, slots=True)
class Unread:
    """A selection that the server did not give.  ``reason``: its words, or why it was not asked."""

    selection: Selection
    verb: str
    reason: str

    def __str__(self) -> str:
        resource = self.selection.resource.key
        where = f" in namespace {self.selection.namespace}" if self.selection.namespace else ""
        return f"{resource}{where} ({self.reason})"


class Facts:
    """Owned by one ``investigation.Investigation``; checks read it.  ``now``: seconds since the epoch."""

    def __init__(self, now: float) -> None:
        self.now = now
        self._objects: dict[str, dict[str, Object]] = defaultdict(dict)
        self._read: set[Selection] = set()
        self._unread: dict[Selection, Unread] = {}
        self._sorted: dict[tuple[str, str], tuple[Object, ...]] = {}
        self._pods_by_label: dict[tuple[str, str, str], list[FullPod]] | None = None
        self._slices_by_service: dict[str, tuple[EndpointSlice, ...]] | None = None

    # Taking

    def take(self, selection: Selection, objects: Iterable[Object]) -> None:
        self._read.add(selection)
        by_key = self._objects[selection.resource.key]
        for item in objects:
            by_key[item.metadata.key] = item
        self._sorted.clear()
        self._pods_by_label = None
        self._slices_by_service = None

    def refuse(self, unread: Unread) -> None:
        self._unread[unread.selection] = unread

    # Asking

    @property
    def unread(self) -> tuple[Unread, ...]:
        return tuple(self._unread.values())

    def knows(self, selection: Selection) -> bool:
        """It was read, alone or with more, or it was refused."""
        return selection in self._unread or self.was_read(selection)

    def was_read(self, selection: Selection) -> bool:
        resource = selection.resource
        wider = (selection, Selection(resource, selection.namespace), Selection(resource))
        return any(candidate in self._read for candidate in wider)

    def of(self, readable: Readable[T], namespace: str = "") -> tuple[T, ...]:
        """Sorted by key; *namespace* "": of all."""
        place = (readable.resource.key, namespace)
        if place not in self._sorted:
            by_key = self._objects.get(readable.resource.key, {})
            prefix = f"{namespace}/" if namespace else ""
            self._sorted[place] = tuple(by_key[key] for key in sorted(by_key) if key.startswith(prefix))
        return self._sorted[place]  # type: ignore[return-value]  # one type for each resource: ``Readable``

    def get(self, readable: Readable[T], namespace: str, name: str) -> T | None:
        key = f"{namespace}/{name}" if namespace else name
        return self._objects.get(readable.resource.key, {}).get(key)  # type: ignore[return-value]

    def pods_with(self, namespace: str, labels: Mapping[str, str]) -> tuple[FullPod, ...]:
        """Those that have every pair of *labels*, sorted by name; none for no labels.  O(Pods with the rarest pair)."""
        index = self._pods_index()
        lists = [index.get((namespace, label, value), []) for label, value in labels.items()]
        if not lists:
            return ()
        rarest = min(lists, key=len)
        return tuple(pod for pod in rarest if labels.items() <= pod.labels.items())

    def slices_of(self, namespace: str, service: str) -> tuple[EndpointSlice, ...]:
        """Those labelled for the Service, whoever made them, sorted by name."""
        if self._slices_by_service is None:
            grouped: dict[str, list[EndpointSlice]] = defaultdict(list)
            for endpoint_slice in self.of(SLICES):
                name = (endpoint_slice.metadata.labels or {}).get(LABEL_SERVICE_NAME, "")
                grouped[f"{endpoint_slice.metadata.namespace}/{name}"].append(endpoint_slice)
            self._slices_by_service = {key: tuple(several) for key, several in grouped.items()}
        return self._slices_by_service.get(f"{namespace}/{service}", ())

    def _pods_index(self) -> dict[tuple[str, str, str], list[FullPod]]:
        if self._pods_by_label is None:
            index: dict[tuple[str, str, str], list[FullPod]] = defaultdict(list)
            for pod in self.of(PODS):
                for label, value in pod.labels.items():
                    index[pod.metadata.namespace, label, value].append(pod)
            self._pods_by_label = dict(index)
        return self._pods_by_label
