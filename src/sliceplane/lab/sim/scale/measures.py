"""The freshness of nodes: the time from the change of a Pod to the slice, to 99 % of the nodes, and
into the kernels of sampled nodes.

A slice contains the changes of its Service's Pods before the controller planned the write; later
changes belong to the next write. Its age is that of the oldest change that it contains.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from sliceplane.api.discovery import LABEL_SERVICE_NAME
from sliceplane.api.scheme import EndpointSlices, Pods
from sliceplane.server.store.types import EventType, StoreEvent
from sliceplane.server.store.watcher import Item


def quantile(values: Sequence[float], share: float) -> float:
    """Returns the smallest of *values* that at least *share* of them do not exceed; 0 for no
    values.
    """
    ordered = sorted(values)
    return ordered[max(0, math.ceil(len(ordered) * share) - 1)] if ordered else 0.0


@dataclass(slots=True)
class Ages:
    """Seconds, one for each slice that was written for a change of Pods."""

    committed: list[float] = field(default_factory=list)
    reported: list[float] = field(default_factory=list)
    kernel: list[float] = field(default_factory=list)


class ScaleMeasures:
    """Owned by one run. ``begin`` resets the measurements for a part of the scenario."""

    def __init__(self) -> None:
        self.ages = Ages()
        #: number of nodes that read
        self.readers = 0
        self.slice_writes = 0
        self.writes = 0
        #: when a change first exceeded the budget when nodes received it; the budget
        self.late_at: float | None = None
        self.late_s = math.inf
        self._changed: dict[str, list[float]] = {}
        self._planned: dict[str, float] = {}
        #: time of the oldest change that a revision contains, by revision
        self._since: dict[int, float] = {}
        #: number of nodes that must still receive a revision until 99 % have it, by revision
        self._missing: dict[int, int] = {}

    def begin(self) -> None:
        self.ages = Ages()
        self.slice_writes = self.writes = 0

    def on_commit(self, event: StoreEvent, now: float) -> None:
        record = event.record
        self.writes += 1
        if record.key.resource == Pods.storage_key:
            if event.type is EventType.ADDED:
                return  # a Pod without an address is no endpoint
            self._changed.setdefault(
                f"{record.key.namespace}/{record.labels.get('app', '')}", []
            ).append(now)
        elif record.key.resource == EndpointSlices.storage_key:
            self.slice_writes += 1
            key = f"{record.key.namespace}/{record.labels.get(LABEL_SERVICE_NAME, '')}"
            planned = self._planned.get(key, now)
            changed = self._changed.get(key, ())
            carried = [moment for moment in changed if moment <= planned]
            if not carried:
                return
            self._changed[key] = [moment for moment in changed if moment > planned]
            self._since[event.revision] = carried[0]
            self._missing[event.revision] = max(1, math.ceil(0.99 * self.readers))
            self.ages.committed.append(now - carried[0])

    def on_plan(self, service: str, now: float) -> None:
        """Notes that the controller plans a write for *service* from its cache."""
        self._planned[service] = now

    def arrived(self, items: Sequence[Item], nodes: int, at: float) -> None:
        for item in items:
            if item.revision in self._missing:
                self._on_reported(item.revision, nodes, at)

    def listed(self, newest: int, nodes: int, at: float) -> None:
        """Notes that nodes which had everything up to *newest* received the rest by a list."""
        for revision in [revision for revision in self._missing if revision > newest]:
            self._on_reported(revision, nodes, at)

    def _on_reported(self, revision: int, nodes: int, at: float) -> None:
        missing = self._missing[revision]
        if missing > nodes:
            self._missing[revision] = missing - nodes
            return
        del self._missing[revision]
        age = at - self._since[revision]
        self.ages.reported.append(age)
        if age > self.late_s and self.late_at is None:
            self.late_at = at

    def on_kernel(self, revisions: Sequence[int], now: float) -> None:
        since = self._since
        self.ages.kernel.extend(
            now - since[revision] for revision in revisions if revision in since
        )
