"""The Services, slices and Nodes of the page, updated by differences: a changed slice costs O(its
endpoints).

Rows of endpoints are built once for each version of a slice. Changes of the last minutes are
counted in buckets of ten seconds for each Service, and described, newest first, in a bounded list.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any, Final, NamedTuple

from sliceplane.api.core import Node, Service
from sliceplane.api.discovery import LABEL_SERVICE_NAME, LABEL_ZONE, EndpointSlice, SliceEndpoint
from sliceplane.diagnose.page.tables import Row
from sliceplane.watch.cache import Change

ACTIVITY_MAX: Final = 60
#: seconds between changes of a Service that are one line of activity
ACTIVITY_GAP_S: Final = 5.0
BUCKET_S: Final = 10
BUCKETS: Final = 30
ENDPOINT_COLUMNS: Final = ("slice", "address", "state", "node", "zone", "pod", "hints")
STATES: Final = ("ready", "not ready", "terminating", "stopped")


class Happening(NamedTuple):
    """A line of activity: its begin, its end, its object, and the numbers of endpoints by new
    state.
    """

    at: float
    until: float
    kind: str
    name: str
    what: tuple[tuple[str, int], ...]


class ServiceSums(NamedTuple):
    """``states``: endpoints by state; ``zones``: ready ones by zone."""

    states: Mapping[str, int]
    zones: Mapping[str, int]
    slices: int


class SliceSums(NamedTuple):
    """The same for one slice."""

    states: Counter[str]
    zones: Counter[str]


_NONE: Final = ServiceSums({}, {}, 0)
_NOTHING: Final = SliceSums(Counter(), Counter())


class ClusterModel:
    """The model. Owned by one reader of informers. ``version`` grows with each change; ``on_*``
    take the informers' changes.
    """

    def __init__(self) -> None:
        self.version = 0
        self.services: dict[str, Service] = {}
        self.nodes: dict[str, Node] = {}
        #: activity by Service and begin, the newest last; and the begin of each Service's last one
        self._activity: dict[tuple[str, float], Happening] = {}
        self._began: dict[str, float] = {}
        self._slices: dict[str, dict[str, EndpointSlice]] = {}
        self._rows: dict[str, tuple[Row, ...]] = {}
        self._sums: dict[str, ServiceSums] = {}
        #: sums by slice
        self._parts: dict[str, SliceSums] = {}
        self._changes: dict[str, Counter[int]] = {}
        #: ``version`` at the last change of its slices, by Service
        self._touched: dict[str, int] = {}

    # Changes

    def on_services(self, changes: Iterable[Change[Service]]) -> None:
        for change in changes:
            key = change.object.metadata.key
            self.version += 1
            if change.new is None:
                del self.services[key]
            else:
                self.services[key] = change.new

    def on_nodes(self, changes: Iterable[Change[Node]]) -> None:
        for change in changes:
            self.version += 1
            if change.new is None:
                del self.nodes[change.object.metadata.name]
            else:
                self.nodes[change.object.metadata.name] = change.new

    def on_slices(
        self, changes: Iterable[Change[EndpointSlice]], now: float, *, is_news: bool
    ) -> None:
        """Takes changes of slices. *is_news*: they are not part of the first list."""
        news: dict[str, Counter[str]] = {}
        for change in changes:
            self.version += 1
            key = change.object.metadata.key
            before = service_of(change.old) if change.old is not None else ""
            after = service_of(change.new) if change.new is not None else ""
            removed = self._parts.pop(key, _NOTHING)
            added = _parts(change.new) if change.new is not None else _NOTHING
            if change.new is not None:
                self._parts[key] = added
            if is_news:
                for service in dict.fromkeys(filter(None, (before, after))):
                    brought = news.setdefault(service, Counter())
                    brought.update(added.states if service == after else {})
                    brought.subtract(removed.states if service == before else {})
            self._replace(key, before, after, change.new)
        for service, brought in news.items():
            self._changes.setdefault(service, Counter())[int(now // BUCKET_S)] += 1
            self._happened(now, service, brought)

    def _replace(self, key: str, before: str, after: str, new: EndpointSlice | None) -> None:
        if before:
            of_service = self._slices[before]
            del of_service[key]
            if not of_service:
                del self._slices[before]
            self._touched[before] = self.version
            self._sums.pop(before, None)
        self._rows.pop(key, None)
        if after and new is not None:
            self._slices.setdefault(after, {})[key] = new
            self._touched[after] = self.version
            self._sums.pop(after, None)

    def _happened(self, now: float, service: str, brought: Counter[str]) -> None:
        began = self._began.get(service, now)
        last = self._activity.get((service, began))
        if last is not None and now - last.until <= ACTIVITY_GAP_S:
            brought.update(dict(last.what))
            del self._activity[service, began]
        else:
            began = self._began[service] = now
        what = tuple((state, brought[state]) for state in STATES if brought[state])
        self._activity[service, began] = Happening(began, now, "Service", service, what)
        if len(self._activity) > ACTIVITY_MAX:
            oldest = next(iter(self._activity))
            del self._activity[oldest]
            if self._began[oldest[0]] == oldest[1]:
                del self._began[oldest[0]]

    # Queries of views

    @property
    def activity(self) -> tuple[Happening, ...]:
        """The lines of activity, the newest first."""
        return tuple(reversed(self._activity.values()))

    def touched(self, service: str) -> int:
        """Returns ``version`` at the last change of the Service's slices; 0: never."""
        return self._touched.get(service, 0)

    def slices(self, service: str) -> list[EndpointSlice]:
        """Returns the slices of the Service, sorted by name."""
        of_service = self._slices.get(service, {})
        return [of_service[key] for key in sorted(of_service)]

    def rows(self, item: EndpointSlice) -> tuple[Row, ...]:
        """Returns the endpoints of one slice, as ``ENDPOINT_COLUMNS``; the same tuple until the
        slice changes.
        """
        key = item.metadata.key
        if key not in self._rows:
            self._rows[key] = tuple(
                _row(item.metadata.name, endpoint) for endpoint in item.endpoints or ()
            )
        return self._rows[key]

    def sums(self, service: str) -> ServiceSums:
        sums = self._sums.get(service)
        if sums is None:
            sums = self._sums[service] = self._summed(service)
        return sums

    def part(self, item: EndpointSlice) -> SliceSums:
        return self._parts[item.metadata.key]

    def _summed(self, service: str) -> ServiceSums:
        of_service = self._slices.get(service)
        if not of_service:
            return _NONE
        states: Counter[str] = Counter()
        zones: Counter[str] = Counter()
        for key in of_service:
            states.update(self._parts[key].states)
            zones.update(self._parts[key].zones)
        return ServiceSums(states, {zone: zones[zone] for zone in sorted(zones)}, len(of_service))

    def changes(self, service: str, now: float) -> tuple[int, ...]:
        """Returns the number of changes of its slices in each of the last ``BUCKETS`` periods of
        ``BUCKET_S``, the newest last; (): none.
        """
        counted = self._changes.get(service)
        if counted is None:
            return ()
        last = int(now // BUCKET_S)
        for bucket in [bucket for bucket in counted if bucket <= last - BUCKETS]:
            del counted[bucket]
        if not counted:
            del self._changes[service]
            return ()
        return tuple(counted[last - BUCKETS + 1 + number] for number in range(BUCKETS))

    def is_lively(self, service: str) -> bool:
        """Returns True if the result of ``changes`` may differ in the next period."""
        return service in self._changes

    def zones(self) -> dict[str, int]:
        """Counts the Nodes by zone; "" for Nodes without one."""
        counts = Counter(
            (node.metadata.labels or {}).get(LABEL_ZONE, "") for node in self.nodes.values()
        )
        return {zone: counts[zone] for zone in sorted(counts)}

    def check(self) -> None:
        """Asserts the invariants."""
        assert all(self._slices.values()), "a Service without slices is not kept"
        keys = {key for of_service in self._slices.values() for key in of_service}
        assert self._rows.keys() <= keys <= self._parts.keys(), "rows of slices that are gone"
        for of_service in self._slices.values():
            for key, item in of_service.items():
                assert self._parts[key] == _parts(item), key
        for service, sums in self._sums.items():
            assert sums == self._summed(service), service


def service_of(item: EndpointSlice) -> str:
    """Returns the key of the slice's Service; "": none."""
    name = (item.metadata.labels or {}).get(LABEL_SERVICE_NAME, "")
    return f"{item.metadata.namespace}/{name}" if name else ""


def state_of(endpoint: SliceEndpoint) -> str:
    """Returns one of ``STATES``; absent conditions have the values of KEP-0752."""
    conditions = endpoint.conditions
    if conditions.terminating:
        return "terminating" if conditions.serving is not False else "stopped"
    return "ready" if conditions.ready is not False else "not ready"


def _parts(item: EndpointSlice) -> SliceSums:
    states: Counter[str] = Counter()
    zones: Counter[str] = Counter()
    for endpoint in item.endpoints or ():
        state = state_of(endpoint)
        states[state] += 1
        if state == "ready":
            zones[endpoint.zone or ""] += 1
    return SliceSums(states, zones)


def _row(slice_name: str, endpoint: SliceEndpoint) -> Row:
    target = endpoint.target_ref
    hints: Any = endpoint.hints
    named = [f"zone {zone.name}" for zone in hints.for_zones or ()] if hints is not None else []
    named += [f"node {node.name}" for node in hints.for_nodes or ()] if hints is not None else []
    return (
        slice_name,
        ", ".join(endpoint.addresses),
        state_of(endpoint),
        endpoint.node_name or "",
        endpoint.zone or "",
        target.name if target is not None else "",
        ", ".join(named),
    )
