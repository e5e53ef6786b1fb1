"""The watchers of slices in a what-if: which of them gets a commit, as which event, how large."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Final

import msgspec

from sliceplane.api.codec import decode
from sliceplane.api.core import Node
from sliceplane.api.discovery import LABEL_SERVICE_NAME, LABEL_ZONE, EndpointSlice
from sliceplane.api.scheme import EndpointSlices, Nodes
from sliceplane.consume.selections import ALL, SHARED, list_selections_of_slice
from sliceplane.diagnose.explain.checks.zones import is_working
from sliceplane.lab.wire import event_bytes
from sliceplane.server.store.types import EventType, Record, StoreEvent

#: name of the selection of clients that read all slices, including those of headless Services
_EVERY: Final = "every"
_VERBS: Final = {
    EventType.ADDED: "create",
    EventType.MODIFIED: "update",
    EventType.DELETED: "delete",
}


class SliceEvent(msgspec.Struct, frozen=True):
    """One commit of a slice. ``json`` and ``protobuf``: total bytes to all ``watchers``."""

    at: float
    service: str
    verb: str
    watchers: int
    json: int
    protobuf: int


class SliceAudience:
    """The watchers of slices: the proxies of working Nodes, and *others* that read all slices."""

    def __init__(self, others: int) -> None:
        self.events: list[SliceEvent] = []
        #: True if proxies read only the slices for their zone and the shared ones
        self.by_zone = False
        self._others = others
        self._readers: dict[str, tuple[str, ...]] = {}
        #: proxies by selection, counted when they change and not for each event
        self._watching: Counter[str] = Counter()

    @property
    def proxies(self) -> int:
        return len(self._readers)

    def restart(self, nodes: Iterable[Node]) -> None:
        """Restarts with the proxies of *nodes*."""
        self._readers.clear()
        self._watching.clear()
        for node in nodes:
            self._count_proxy(node, is_present=True)

    def on_commit(self, event: StoreEvent, now: float) -> None:
        if event.record.key.resource == Nodes.storage_key:
            node = decode(event.record.body, Node)
            self._count_proxy(node, is_present=event.type is not EventType.DELETED)
        elif event.record.key.resource == EndpointSlices.storage_key:
            self._count(event, now)

    def _count_proxy(self, node: Node, *, is_present: bool) -> None:
        self._watching.subtract(self._readers.pop(node.metadata.name, ()))
        if is_present and is_working(node):
            selections = self._list_selections(node)
            self._readers[node.metadata.name] = selections
            self._watching.update(selections)

    def _count(self, event: StoreEvent, now: float) -> None:
        watching = Counter({**self._watching, _EVERY: self._others})
        before = set(_list_readers(event.previous)) if event.type is EventType.MODIFIED else set()
        after = set() if event.type is EventType.DELETED else set(_list_readers(event.record))
        removed = (
            set(_list_readers(event.record)) if event.type is EventType.DELETED else before - after
        )
        last = (
            event.record
            if event.type is EventType.DELETED or event.previous is None
            else event.previous
        )
        groups = (
            (EventType.ADDED, event.record.body, after - before),
            (EventType.MODIFIED, event.record.body, after & before),
            (EventType.DELETED, last.body, removed),
        )
        watchers = json = protobuf = 0
        for kind, body, selections in groups:
            number = sum(watching[selection] for selection in sorted(selections))
            if number:
                watchers += number
                json += number * event_bytes(body, "json", kind.value)
                protobuf += number * event_bytes(body, "protobuf", kind.value)
        labels = event.record.labels
        name = f"{event.record.key.namespace}/{labels.get(LABEL_SERVICE_NAME, '')}"
        verb = _VERBS[event.type]
        self.events.append(SliceEvent(now, name, verb, watchers, json, protobuf))

    def count_watchers(self, record: Record) -> int:
        """Returns the number of watchers that would get a change of this slice."""
        matching = set(_list_readers(record))
        return sum(self._watching[selection] for selection in matching) + self._others

    def _list_selections(self, node: Node) -> tuple[str, ...]:
        """Returns the selections that the node's proxy watches."""
        if not self.by_zone:
            return (ALL,)
        zone = (node.metadata.labels or {}).get(LABEL_ZONE, "")
        return (SHARED, f"zone={zone}") if zone else (SHARED,)


def _list_readers(record: Record | None) -> tuple[str, ...]:
    return (
        ()
        if record is None
        else (*list_selections_of_slice(decode(record.body, EndpointSlice)), _EVERY)
    )
