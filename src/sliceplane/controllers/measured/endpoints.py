"""Ready endpoints by zone of Services with measured shares, from the slices that our controllers
write. A change of a slice costs O(its endpoints).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from sliceplane.api.discovery import LABEL_MANAGED_BY, LABEL_SERVICE_NAME, EndpointSlice

#: number by zone, by address type
_Counts = dict[str, Counter[str]]


class EndpointCounts:
    """The counts. Owned by one controller. *manager*: the label value of the slices that count."""

    def __init__(self, manager: str) -> None:
        self._manager = manager
        #: slices of all Services, since any of them may be followed later
        self._slices: dict[str, dict[str, EndpointSlice]] = {}
        self._counts: dict[str, _Counts] = {}

    def on_slice(self, old: EndpointSlice | None, new: EndpointSlice | None) -> None:
        for observed, step in ((old, -1), (new, 1)):
            key = self._key_of(observed)
            if observed is None or not key:
                continue
            self._count(key, observed, step)
            slices = self._slices.setdefault(key, {})
            if step > 0:
                slices[observed.metadata.name] = observed
            else:
                del slices[observed.metadata.name]
            if not slices:
                del self._slices[key]

    def follow(self, key: str) -> None:
        """Counts the endpoints of the Service *key* from now on."""
        if key not in self._counts:
            self._counts[key] = {}
            for observed in self._slices.get(key, {}).values():
                self._count(key, observed, 1)

    def forget(self, key: str) -> None:
        self._counts.pop(key, None)

    def of(self, key: str) -> Mapping[str, int]:
        """Returns the number by zone, of the address type with most endpoints: the shares are the
        same for both IP families.
        """
        by_type = self._counts.get(key, {})
        most = max(sorted(by_type), key=lambda kind: by_type[kind].total(), default="")
        return {zone: by_type[most][zone] for zone in sorted(by_type[most])} if most else {}

    def _count(self, key: str, observed: EndpointSlice, step: int) -> None:
        by_type = self._counts.get(key)
        if by_type is None:
            return
        counts = by_type.setdefault(observed.address_type, Counter())
        for endpoint in observed.endpoints or ():
            if endpoint.conditions.ready is not False:
                zone = endpoint.zone or ""
                counts[zone] += step
                if not counts[zone]:
                    del counts[zone]
        if not counts:
            del by_type[observed.address_type]

    def _key_of(self, observed: EndpointSlice | None) -> str:
        labels = {} if observed is None else observed.metadata.labels or {}
        name = labels.get(LABEL_SERVICE_NAME, "")
        if observed is None or not name or labels.get(LABEL_MANAGED_BY) != self._manager:
            return ""
        return f"{observed.metadata.namespace}/{name}"

    def check(self) -> None:
        for key, by_type in self._counts.items():
            fresh = EndpointCounts(self._manager)
            fresh._slices = {key: self._slices.get(key, {})}
            fresh.follow(key)
            assert by_type == fresh._counts[key], f"{key}: counted {by_type}"
