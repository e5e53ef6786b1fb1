"""Subsets of a service's slices (KEP-2030, with the approaches of KEP-2004): for which zone's nodes
a slice is.

A slice with the label ``for-zone`` is for the nodes of that zone; a slice without is for all.  Every endpoint is in
one slice, so the approaches differ in packing alone::

    Original     no slice is labelled
    RequireZone  endpoints of a zone are in slices for that zone
    PreferZone   likewise, while the service is large enough that each zone has what it needs; else one shared group

An endpoint whose zone is not known is in slices for all. Where PreferZone changes its mind,
endpoints are written anew, so there are two thresholds with room between them: with Z zones it
begins at 3 * Z + 3 endpoints and ceases at 3 * Z - 3. It also ceases when a zone that has nodes has
no endpoint (nodes there would see none), and does not begin before each has two. Which side a
service is on between the thresholds is told by the labels of its slices, and so survives a restart.
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

#: the approach that a Service asks for; stronger than the flag
ANNOTATION_SUBSETTING: Final = "sliceplane.dev/subsetting"
REASON_INVALID: Final = "InvalidSubsetting"
REASON_DISABLED: Final = "SubsettingDisabled"

#: endpoints for each zone, and how far around that PreferZone keeps to what it has
ENDPOINTS_PER_ZONE: Final = 3
PADDING_ENDPOINTS: Final = 3
#: endpoints that each zone must have before PreferZone begins
ZONE_STARTS_WITH: Final = 2


class Subsetting(Enum):
    """``OFF``: the feature is; labels of subsets are then as foreign as any other."""

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
    """The zone that a slice with *labels* is for; "" for all."""
    return "" if labels is None else labels.get(LABEL_FOR_ZONE, "")


def with_subset(labels: dict[str, str], subset: str) -> dict[str, str]:
    """*labels* of a slice that is for *subset*."""
    return dict(sorted({**labels, LABEL_FOR_ZONE: subset}.items())) if subset else labels


class NodeZones:
    """The zones that have nodes.  Owned by ``SliceEngine``; a node that changes costs O(1)."""

    def __init__(self) -> None:
        self.nodes: dict[str, int] = {}

    def replace(self, old: NodeFacts | None, new: NodeFacts | None) -> bool:
        """A node came, changed or went.  False: the zones are the same."""
        before = "" if old is None else old.zone
        after = "" if new is None else new.zone
        if before == after:
            return False
        came = bool(after) and adjust_count(self.nodes, after, 1) == 1
        went = bool(before) and not adjust_count(self.nodes, before, -1)
        return came or went


def splits(counts: Mapping[str, int], total: int, zones: Collection[str], *, was: bool) -> bool:
    """Whether PreferZone has a group for each zone: *counts* by zone of *total* endpoints, and the
    *zones* of nodes.
    """
    if len(zones) < 2:
        return False
    threshold = ENDPOINTS_PER_ZONE * len(zones)
    if was:
        return total > threshold - PADDING_ENDPOINTS and all(counts.get(zone) for zone in zones)
    enough = total >= threshold + PADDING_ENDPOINTS
    return enough and all(counts.get(zone, 0) >= ZONE_STARTS_WITH for zone in zones)


class ZoneSubsets:
    """Subsets of one service and address type.  Owned by ``Members``, which tells it the zone of
    every endpoint.
    """

    def __init__(self, approach: Subsetting, zones: NodeZones) -> None:
        assert approach.by_zone, f"{approach} has no subsets"
        self._zones = zones
        self._prefers = approach is Subsetting.PREFER_ZONE
        self._zone_of: dict[str, str] = {}
        self._counts: dict[str, int] = {}
        #: ``None``: slices have not been asked yet
        self._split: bool | None = None if self._prefers else True

    def set(self, pod: str, zone: str | None) -> str:
        """The endpoint of *pod* is in *zone* ("": not known); ``None``: there is none.  Gives its
        subset.
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
    def settled(self) -> bool:
        """Costs O(zones)."""
        return not self._prefers or self._split is self._should(was=bool(self._split))

    def _should(self, *, was: bool) -> bool:
        return splits(self._counts, len(self._zone_of), self._zones.nodes, was=was)

    def switch(self, *, shown: bool) -> tuple[str, ...]:
        """Before every plan: begin or cease to split; gives the pods whose subset changes.

        *shown*: slices on the server are labelled.  Counts where nothing else is known yet.
        """
        if self.settled:
            return ()
        before = bool(self._split)
        self._split = self._should(was=shown if self._split is None else before)
        return tuple(self._zone_of) if self._split is not before else ()

    def check(self) -> None:
        counts = Counter(self._zone_of.values())
        assert counts == self._counts, f"counted {self._counts}, there are {counts}"


def zone_subsets(
    approach: Subsetting, families: Iterable[Family], zones: NodeZones
) -> dict[Family, ZoneSubsets]:
    """Returns subsets by address type; none if the approach has none."""
    return {family: ZoneSubsets(approach, zones) for family in families if approach.by_zone}
