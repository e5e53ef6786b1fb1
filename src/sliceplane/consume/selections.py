"""The selections of slices that a node reads, and their merge (KEP-2030; KEP-0752, "Kube-Proxy").

With the gate EndpointSliceSubsetting a node reads three selections: slices for all nodes, slices
for its zone, slices for its region. Each has its own informer, and the informers are not
synchronized: a slice that moves to another zone is removed from one selection and added to another,
in either order. When a node's zone changes, two selections of zones are read for a moment.
``Union`` merges them into one stream of changes: a slice exists while any selection has it, and its
newest version counts.
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
from sliceplane.consume.progress import Scope

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
    that the node lacks selects nothing.
    """
    if node is None or not gates.enabled(ENDPOINT_SLICE_SUBSETTING):
        return ()
    labels = node.metadata.labels or {}
    label_values = (
        (LABEL_FOR_ZONE, labels.get(LABEL_ZONE)),
        (LABEL_FOR_REGION, labels.get(LABEL_REGION)),
    )
    return tuple(f"!{LABEL_HEADLESS},{label}={value}" for label, value in label_values if value)


def list_selections_of_node(node: Node) -> tuple[str, ...]:
    """Returns the selections that a proxy on *node* reads besides ``SHARED``, if it reads that."""
    return tuple(name_selection(selector) for selector in own_selectors(_SUBSETS, node))


#: selection of all slices, and of all Services that proxies serve
ALL: Final = "all"
#: selection of the slices for all zones and regions
SHARED: Final = "shared"
#: followed by "namespace/name": the slices of one Service, which no node proxy reads alone
SERVICE_SELECTION_PREFIX: Final = "service/"
#: followed by a namespace: all its Services; "*": those of every namespace
NAMESPACE_SELECTION_PREFIX: Final = "namespace/"
_ZONE: Final = "zone="
_REGION: Final = "region="


def name_selection(selector: str) -> str:
    """Returns the name of the selection of *selector*, a selector of this module."""
    for label, name in ((LABEL_FOR_ZONE, _ZONE), (LABEL_FOR_REGION, _REGION)):
        before, separator, value = selector.partition(f",{label}=")
        if separator and before == f"!{LABEL_HEADLESS}":
            return f"{name}{value}"
    return SHARED if f",!{LABEL_FOR_ZONE}" in selector else ALL


def list_selections_of_slice(endpoint_slice: EndpointSlice | None) -> tuple[str, ...]:
    """Returns every selection that contains the slice: at most three, for any number of zones."""
    labels = (
        endpoint_slice.metadata.labels or {} if endpoint_slice is not None else {LABEL_HEADLESS: ""}
    )
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


def list_selections_of_service(service: Service | None) -> tuple[str, ...]:
    """Returns every selection that contains *service*: one at most."""
    if (
        service is None
        or LABEL_SERVICE_PROXY_NAME in (service.metadata.labels or {})
        or service.spec.cluster_ip == "None"
    ):
        return ()
    return (ALL,)


class SliceChange(NamedTuple):
    """A change of a slice: at least one of the two versions exists."""

    old: EndpointSlice | None
    new: EndpointSlice | None


class Union:
    """Selections by name.  Owned by one node proxy; O(1) per event."""

    def __init__(self) -> None:
        #: observed version by key of the slice and selection
        self._versions: dict[str, dict[str, EndpointSlice]] = {}

    def on_change(
        self, selection: str, old: EndpointSlice | None, new: EndpointSlice | None
    ) -> SliceChange | None:
        """Returns the change of the union that an event in *selection* causes; ``None``: none."""
        subject = new if new is not None else old
        assert subject is not None, "an event has an old or a new object"
        key = subject.metadata.key
        versions = self._versions.setdefault(key, {})
        before = _newest(versions)
        if new is not None:
            versions[selection] = new
        else:
            versions.pop(selection, None)
        after = _newest(versions)
        if not versions:
            del self._versions[key]
        return None if before is after else SliceChange(before, after)

    def drop(self, selection: str) -> tuple[SliceChange, ...]:
        """Removes *selection* and returns the changes of the union.  O(slices)."""
        removed = [
            (key, versions[selection])
            for key, versions in self._versions.items()
            if selection in versions
        ]
        changes = (
            self.on_change(selection, old, None)
            for _, old in sorted(removed, key=lambda pair: pair[0])
        )
        return tuple(change for change in changes if change is not None)

    def check(self) -> None:
        """Asserts that no slice is retained that no selection has."""
        assert all(self._versions.values()), "a slice is retained that no selection has"


def _newest(versions: dict[str, EndpointSlice]) -> EndpointSlice | None:
    return max(versions.values(), key=lambda item: item.metadata.revision, default=None)


#: every selection of EndpointSlices, except those of one Service
EVERY: Final[Scope] = (EndpointSlices.plural, "*")


def service_scope(service: str) -> Scope:
    """Returns the scope of consumers that read the slices of *service* alone; with the name "*",
    those of any Service in its namespace.
    """
    return (EndpointSlices.plural, f"{SERVICE_SELECTION_PREFIX}{service}")


def required_revision(scope: Scope, goal: Mapping[Scope, int]) -> int:
    """Returns the revision that a reader of *scope* must have applied for *goal*; 0: any."""
    plural, selection = scope
    if selection.startswith(NAMESPACE_SELECTION_PREFIX):
        namespace = selection.removeprefix(NAMESPACE_SELECTION_PREFIX)
        services = (
            SERVICE_SELECTION_PREFIX
            if namespace == "*"
            else f"{SERVICE_SELECTION_PREFIX}{namespace}/"
        )
        return max(
            (
                at
                for (kind, name), at in goal.items()
                if kind == plural and name.startswith(services)
            ),
            default=0,
        )
    of_all = EVERY
    if selection.startswith(SERVICE_SELECTION_PREFIX):
        of_all = service_scope(
            f"{selection.removeprefix(SERVICE_SELECTION_PREFIX).partition('/')[0]}/*"
        )
    floor = goal.get(of_all, 0) if plural == EVERY[0] else 0
    return max(goal.get(scope, 0), floor)
