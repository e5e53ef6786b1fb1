"""The slices that a node reads, and the merge of several readings into one (KEP-2030; KEP-0752,
"Kube-Proxy").

With the gate EndpointSliceSubsetting a node reads three selections: slices for all nodes, slices
for its zone, slices for its region. Each has an informer of its own, and they know nothing of each
other: a slice that is given to another zone leaves one selection and comes in another, in either
order, and when a node's zone changes two selections of zones are read for a moment. ``Union`` makes
one stream of differences of them: a slice is there while any selection has it, and is what its
newest version says.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from sliceplane.api.core import Node, Service
from sliceplane.api.discovery import (
    LABEL_FOR_REGION,
    LABEL_FOR_ZONE,
    LABEL_HEADLESS,
    LABEL_REGION,
    LABEL_SERVICE_PROXY_NAME,
    LABEL_ZONE,
    EndpointSlice,
)
from sliceplane.api.gates import (
    ENDPOINT_SLICE,
    ENDPOINT_SLICE_PROXYING,
    ENDPOINT_SLICE_SUBSETTING,
    WINDOWS_ENDPOINT_SLICE_PROXYING,
    Gates,
)
from sliceplane.api.scheme import EndpointSlices
from sliceplane.consume.progress import Place

_SUBSETS: Final = Gates(chosen={ENDPOINT_SLICE_SUBSETTING: True})


def reads_slices(gates: Gates, *, windows: bool = False) -> bool:
    """Returns True if a proxy reads EndpointSlices; else it reads Endpoints (KEP-0752, "Roll
    out").
    """
    proxying = WINDOWS_ENDPOINT_SLICE_PROXYING if windows else ENDPOINT_SLICE_PROXYING
    return gates.enabled(ENDPOINT_SLICE) and gates.enabled(proxying)


def common_selector(gates: Gates) -> str:
    """Returns the selector of the EndpointSlices that every node reads."""
    if not gates.enabled(ENDPOINT_SLICE_SUBSETTING):
        return f"!{LABEL_HEADLESS}"
    return f"!{LABEL_HEADLESS},!{LABEL_FOR_ZONE},!{LABEL_FOR_REGION}"


def own_selectors(gates: Gates, node: Node | None) -> tuple[str, ...]:
    """Returns the further selectors of *node*: slices for its zone, and for its region. A label
    that it has not selects nothing.
    """
    if node is None or not gates.enabled(ENDPOINT_SLICE_SUBSETTING):
        return ()
    labels = node.metadata.labels or {}
    wanted = (
        (LABEL_FOR_ZONE, labels.get(LABEL_ZONE)),
        (LABEL_FOR_REGION, labels.get(LABEL_REGION)),
    )
    return tuple(f"!{LABEL_HEADLESS},{label}={value}" for label, value in wanted if value)


def own_readings(node: Node) -> tuple[str, ...]:
    """The names of what a proxy on *node* reads besides ``SHARED``, where it reads that."""
    return tuple(reading_of(selector) for selector in own_selectors(_SUBSETS, node))


#: names of what is read: all slices, those for all zones and regions, a zone's, a region's; and of
#: Services, all that proxies serve
ALL: Final = "all"
SHARED: Final = "shared"
#: and then "namespace/name": the slices of one Service, which no node proxy reads alone
SERVICE_READING: Final = "service/"
#: all Services of a namespace; "*": of every one
NAMESPACE_READING: Final = "namespace/"
_ZONE: Final = "zone="
_REGION: Final = "region="


def reading_of(selector: str) -> str:
    """The name of what is read with *selector*, one of those of this module."""
    for label, name in ((LABEL_FOR_ZONE, _ZONE), (LABEL_FOR_REGION, _REGION)):
        before, found, value = selector.partition(f",{label}=")
        if found and before == f"!{LABEL_HEADLESS}":
            return f"{name}{value}"
    return SHARED if f",!{LABEL_FOR_ZONE}" in selector else ALL


def readings_of_slice(seen: EndpointSlice | None) -> tuple[str, ...]:
    """Every reading that shows *seen*: three at most, however many zones there are."""
    labels = seen.metadata.labels or {} if seen is not None else {LABEL_HEADLESS: ""}
    if LABEL_HEADLESS in labels:
        return ()
    zone, region = labels.get(LABEL_FOR_ZONE), labels.get(LABEL_FOR_REGION)
    if zone is None and region is None:
        return (ALL, SHARED)
    return (
        ALL,
        *([f"{_ZONE}{zone}"] if zone is not None else []),
        *([f"{_REGION}{region}"] if region is not None else []),
    )


def readings_of_service(seen: Service | None) -> tuple[str, ...]:
    """As ``readings_of_slice``."""
    if (
        seen is None
        or LABEL_SERVICE_PROXY_NAME in (seen.metadata.labels or {})
        or seen.spec.cluster_ip == "None"
    ):
        return ()
    return (ALL,)


class SliceChange(NamedTuple):
    """At least one of the two is there."""

    old: EndpointSlice | None
    new: EndpointSlice | None


class Union:
    """Selections by name.  Owned by one node proxy; O(1) per event."""

    def __init__(self) -> None:
        self._found: dict[
            str, dict[str, EndpointSlice]
        ] = {}  # slice -> selection -> as it was seen there

    def on_change(
        self, selection: str, old: EndpointSlice | None, new: EndpointSlice | None
    ) -> SliceChange | None:
        """Returns the change of the whole that an event in *selection* is; ``None``: no change."""
        subject = new if new is not None else old
        assert subject is not None, "an event has an old or a new object"
        key = subject.metadata.key
        seen = self._found.setdefault(key, {})
        before = _newest(seen)
        if new is not None:
            seen[selection] = new
        else:
            seen.pop(selection, None)
        after = _newest(seen)
        if not seen:
            del self._found[key]
        return None if before is after else SliceChange(before, after)

    def drop(self, selection: str) -> tuple[SliceChange, ...]:
        """*selection* is read no more.  O(slices)."""
        gone = [(key, seen[selection]) for key, seen in self._found.items() if selection in seen]
        seen = (
            self.on_change(selection, old, None)
            for _, old in sorted(gone, key=lambda pair: pair[0])
        )
        return tuple(difference for difference in seen if difference is not None)

    def check(self) -> None:
        """Nothing is kept of a slice that no selection has."""
        assert all(self._found.values()), "a slice is kept that no selection has"


def _newest(seen: dict[str, EndpointSlice]) -> EndpointSlice | None:
    return max(seen.values(), key=lambda item: item.metadata.revision, default=None)


#: every reading of EndpointSlices, except those of one Service
EVERY: Final[Place] = (EndpointSlices.plural, "*")


def place_of_service(service: str) -> Place:
    """The place of consumers that read the slices of *service* alone; with the name "*", of any
    Service in its namespace.
    """
    return (EndpointSlices.plural, f"{SERVICE_READING}{service}")


def needed(place: Place, goal: Mapping[Place, int]) -> int:
    """Returns the version that a reader of *place* must hold for *goal*; 0: any will do."""
    plural, reading = place
    if reading.startswith(NAMESPACE_READING):
        namespace = reading.removeprefix(NAMESPACE_READING)
        services = SERVICE_READING if namespace == "*" else f"{SERVICE_READING}{namespace}/"
        return max(
            (
                at
                for (kind, name), at in goal.items()
                if kind == plural and name.startswith(services)
            ),
            default=0,
        )
    of_all = EVERY
    if reading.startswith(SERVICE_READING):
        of_all = place_of_service(f"{reading.removeprefix(SERVICE_READING).partition('/')[0]}/*")
    floor = goal.get(of_all, 0) if plural == EVERY[0] else 0
    return max(goal.get(place, 0), floor)
