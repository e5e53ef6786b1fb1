"""A reader of slices that merges them as a node proxy does, and notes what it ever missed."""

from __future__ import annotations

from collections import Counter

from sliceplane.api.discovery import EndpointSlice
from sliceplane.consume.model import ServiceKey
from sliceplane.consume.slicecache import SliceCache


class MergingReader:
    """Follows the slices of one Service. *expected*: addresses that must be ready from the first
    time when all of them are.
    """

    def __init__(self, namespace: str, name: str, expected: set[str]) -> None:
        self._service = ServiceKey(namespace, name)
        self._cache = SliceCache("IPv4", "")
        self._slices: dict[str, EndpointSlice] = {}
        self.expected = expected
        self.complete = False
        #: what was missing, after each event after which something was
        self.missed: list[set[str]] = []
        #: managers of slices, after each event
        self.seen_managers: list[set[str]] = []
        self.events: Counter[str] = Counter()

    def on_event(self, kind: str, observed: EndpointSlice) -> None:
        self.events[f"{kind} {observed.manager}"] += 1
        gone = kind == "DELETED"
        key = observed.metadata.key
        self._cache.on_slice(key, None if gone else observed)
        if gone:
            self._slices.pop(key, None)
        else:
            self._slices[key] = observed
        self.seen_managers.append(set(self.managers()))
        missing = self.expected - self.ready()
        self.complete = self.complete or not missing
        if self.complete and missing:
            self.missed.append(missing)

    def ready(self) -> set[str]:
        """Addresses that are ready at every port."""
        ports = self._cache.endpoints(self._service).values()
        sets = [{endpoint.ip for endpoint in endpoints if endpoint.ready} for endpoints in ports]
        return set.intersection(*sets) if sets else set()

    def managers(self) -> Counter[str]:
        return Counter(observed.manager for observed in self._slices.values())

    def conditions(self) -> dict[str, set[tuple[bool | None, ...]]]:
        """By address: what all slices say."""
        found: dict[str, set[tuple[bool | None, ...]]] = {}
        for observed in self._slices.values():
            for endpoint in observed.endpoints or ():
                said = endpoint.conditions
                for address in endpoint.addresses:
                    found.setdefault(address, set()).add(
                        (said.ready, said.serving, said.terminating)
                    )
        return found
