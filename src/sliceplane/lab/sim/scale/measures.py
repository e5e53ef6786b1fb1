"""The freshness of nodes: the time from the change of a Pod to the slice, to relays, to 99 % of the
nodes and to all of them, and into the kernels of sampled nodes.

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
    """Seconds, one for each slice that was written for a change of Pods. ``relays``: for each relay
    of a level (the first is 1), from the commit on.
    """

    committed: list[float] = field(default_factory=list)
    relays: dict[int, list[float]] = field(default_factory=dict)
    reported: list[float] = field(default_factory=list)
    everywhere: list[float] = field(default_factory=list)
    kernel: list[float] = field(default_factory=list)


@dataclass(slots=True)
class FrontFigures:
    """The figures of one process; bytes, lists and events are those of its clients."""

    busy_s: float = 0.0
    events: int = 0
    sent_bytes: int = 0
    lists: int = 0
    listed_bytes: int = 0
    lost_watches: int = 0
    #: of relays: fetched stretches of events from before their history
    catch_ups: int = 0
    #: bytes by second of virtual time
    by_second: dict[int, int] = field(default_factory=dict)
    #: when the link was first full, and when a watch was first lost
    link_full_at: float | None = None
    lost_at: float | None = None


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
        self._committed: dict[int, float] = {}
        #: number of nodes that must still receive a revision, by revision
        self._missing: dict[int, int] = {}

    def begin(self) -> None:
        self.ages = Ages()
        self.slice_writes = self.writes = 0
        self._committed.clear()

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
            if self.readers:
                self._missing[event.revision] = self.readers
            self._committed[event.revision] = now
            self.ages.committed.append(now - carried[0])

    @property
    def all_told(self) -> bool:
        """Returns True if every node has every slice that was written for a change of Pods."""
        return not self._missing

    def on_plan(self, service: str, now: float) -> None:
        """Notes that the controller plans a write for *service* from its cache."""
        self._planned[service] = now

    def arrived(self, items: Sequence[Item], nodes: int, at: float) -> None:
        for item in items:
            if item.revision in self._missing:
                self._on_reported(item.revision, nodes, at)

    def listed(self, since: int, until: int, nodes: int, at: float) -> None:
        """Notes that nodes which had everything up to *since* received the rest by a list."""
        for revision in [one for one in self._missing if since < one <= until]:
            self._on_reported(revision, nodes, at)

    def _on_reported(self, revision: int, nodes: int, at: float) -> None:
        before = self._missing[revision]
        left = self._missing[revision] = before - nodes
        rest = self.readers // 100
        age = at - self._since[revision]
        if before > rest >= left:
            self.ages.reported.append(age)
            if age > self.late_s and self.late_at is None:
                self.late_at = at
        if left <= 0:
            del self._missing[revision]
            self.ages.everywhere.append(age)

    def on_relay(self, level: int, revision: int, now: float) -> None:
        """Notes that a relay of *level* has *revision*."""
        if revision in self._committed:
            self.ages.relays.setdefault(level, []).append(now - self._committed[revision])

    def on_kernel(self, revisions: Sequence[int], now: float) -> None:
        since = self._since
        self.ages.kernel.extend(
            now - since[revision] for revision in revisions if revision in since
        )
