"""Subsets of a Service's slices (KEP-2030, with the approaches of KEP-2004): the zone whose nodes a
slice is for.

A slice with the label ``for-zone`` is for the nodes of that zone; a slice without it is for all
nodes. Every endpoint is in one slice, so the approaches differ only in packing::

    Original     no slice is labelled
    RequireZone  endpoints of a zone are in slices for that zone
    PreferZone   likewise, while the Service is large enough for each zone; else one shared group

An endpoint whose zone is unknown is in slices for all nodes. A switch of PreferZone rewrites
endpoints, so two distant thresholds prevent oscillation: with Z zones it begins at 3 * Z + 3
endpoints and ends at 3 * Z - 3. It also ends when a zone with nodes has no endpoint, since nodes
there would see none, and does not begin before each zone has two. Between the thresholds the labels
of the existing slices decide, so the state survives a restart.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from enum import Enum
from typing import Final

from sliceplane.api.discovery import LABEL_FOR_ZONE
from sliceplane.kit.containers import adjust_count
from sliceplane.kit.ip import Family
from sliceplane.slices.facts import NodeFacts

#: the approach that a Service requests; takes precedence over the flag
ANNOTATION_SUBSETTING: Final = "sliceplane.dev/subsetting"
REASON_INVALID: Final = "InvalidSubsetting"
REASON_DISABLED: Final = "SubsettingDisabled"

#: endpoints for each zone, and the distance of the thresholds of PreferZone from their mean
ENDPOINTS_PER_ZONE: Final = 3
PADDING_ENDPOINTS: Final = 3
#: endpoints that each zone must have before PreferZone begins
ZONE_STARTS_WITH: Final = 2


class Subsetting(Enum):
    """The approach to subsets. ``OFF``: the feature is disabled, and labels of subsets are ordinary
    labels.
    """

    OFF = ""
    ORIGINAL = "Original"
    PREFER_ZONE = "PreferZone"
    REQUIRE_ZONE = "RequireZone"

    @property
    def by_zone(self) -> bool:
        return self in (Subsetting.PREFER_ZONE, Subsetting.REQUIRE_ZONE)


APPROACHES: Final[dict[str, Subsetting]] = {
    approach.value: approach for approach in Subsetting if approach.value
}


def subset_of(labels: Mapping[str, str] | None) -> str:
    """Returns the zone that a slice with *labels* is for; "" for all nodes."""
    return "" if labels is None else labels.get(LABEL_FOR_ZONE, "")


def with_subset(labels: dict[str, str], subset: str) -> dict[str, str]:
    """Returns *labels* with the label of *subset* added."""
    return dict(sorted({**labels, LABEL_FOR_ZONE: subset}.items())) if subset else labels


class NodeZones:
    """The zones that have nodes. Owned by ``SliceEngine``. A change of a Node costs O(1)."""

    def __init__(self) -> None:
        self.nodes: dict[str, int] = {}

    def replace(self, old: NodeFacts | None, new: NodeFacts | None) -> bool:
        """Handles a Node that was added, changed or removed. Returns True if the set of zones
        changed.
        """
        before = "" if old is None else old.zone
        after = "" if new is None else new.zone
        if before == after:
            return False
        came = bool(after) and adjust_count(self.nodes, after, 1) == 1
        went = bool(before) and not adjust_count(self.nodes, before, -1)
        return came or went


def should_split(
    counts: Mapping[str, int], total: int, zones: Collection[str], *, was: bool
) -> bool:
    """Returns True if PreferZone has a group for each zone, given *counts* by zone of *total*
    endpoints and the *zones* of nodes. *was*: it has them now.
    """
    if len(zones) < 2:
        return False
    threshold = ENDPOINTS_PER_ZONE * len(zones)
    if was:
        return total > threshold - PADDING_ENDPOINTS and all(counts.get(zone) for zone in zones)
    enough = total >= threshold + PADDING_ENDPOINTS
    return enough and all(counts.get(zone, 0) >= ZONE_STARTS_WITH for zone in zones)


class ZoneSubsets:
    """The subsets of one Service and address type. Owned by ``SliceMembers``, which sets the zone
    of every endpoint.
    """

    def __init__(self, approach: Subsetting, zones: NodeZones) -> None:
        assert approach.by_zone, f"{approach} has no subsets"
        self._zones = zones
        self._prefers = approach is Subsetting.PREFER_ZONE
        self._zone_of: dict[str, str] = {}
        self._counts: dict[str, int] = {}
        #: ``None`` until the labels of the slices are read
        self._split: bool | None = None if self._prefers else True

    def set(self, pod: str, zone: str | None) -> str:
        """Sets the zone of the endpoint of *pod*: "" if unknown, ``None`` if there is no endpoint.
        Returns its subset.
        """
        if self._prefers:
            old = self._zone_of.get(pod)
            if old != zone:
                if old is not None:
                    adjust_count(self._counts, old, -1)
                    del self._zone_of[pod]
                if zone is not None:
                    adjust_count(self._counts, zone, 1)
                    self._zone_of[pod] = zone
        return zone or "" if self._split else ""

    @property
    def is_converged(self) -> bool:
        """True if the present split fits the endpoints. Costs O(zones)."""
        return not self._prefers or self._split is self._should_split(was=bool(self._split))

    def _should_split(self, *, was: bool) -> bool:
        return should_split(self._counts, len(self._zone_of), self._zones.nodes, was=was)

    def switch(self, *, labelled: bool) -> tuple[str, ...]:
        """Starts or stops splitting, before every plan. Returns the Pods whose subset changes.

        *labelled*: slices on the server are labelled. It decides at the first call.
        """
        if self.is_converged:
            return ()
        before = bool(self._split)
        self._split = self._should_split(was=labelled if self._split is None else before)
        return tuple(self._zone_of) if self._split is not before else ()

    def check(self) -> None:
        counts = Counter(self._zone_of.values())
        assert counts == self._counts, f"counted {self._counts}, there are {counts}"


def zone_subsets(
    approach: Subsetting, families: Iterable[Family], zones: NodeZones
) -> dict[Family, ZoneSubsets]:
    """Returns subsets by address type; empty if the approach has none."""
    return {family: ZoneSubsets(approach, zones) for family in families if approach.by_zone}
