"""One Service, updated by differences: the endpoints of each TCP port for each location of clients.

```
EndpointMerge (one a family)     decides which entry of a Pod counts if slices disagree
_merged:  id -> MergedEndpoint   each Pod once, with an address of each family
_counts:  pool -> endpoints      decides in O(1) which pool a location uses (``select``, the rule of
                                 ``consume.usable``)
_pools:   pool -> EndpointList   the pools that some client's location uses
```

A changed slice costs O(that slice), and for each changed endpoint one piece and one insertion in
each pool that has it. Ports that no client has requested are not merged.

Only clients of a zone or region read the slices with its label (subsetting). While a Service has such
slices, its endpoints are separate for each of these audiences.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from sliceplane.api.discovery import LABEL_FOR_REGION, LABEL_FOR_ZONE, EndpointSlice
from sliceplane.consume.balancing.merge import EndpointMerge, PortChoice
from sliceplane.consume.balancing.model import Endpoint
from sliceplane.consume.model import NodeEndpoint
from sliceplane.consume.usable import Choice, Locality, choose, choose_local, outcome_of
from sliceplane.kit.ip import Family
from sliceplane.xds.collections import Collections, XdsCollection
from sliceplane.xds.endpoints import MergedEndpoint, endpoint_message, is_servable, piece
from sliceplane.xds.pools import (
    LOCATION_UNKNOWN,
    READY,
    TERMINATING,
    EndpointList,
    PoolChanges,
    PoolEntry,
    PoolKey,
    draining_pools_of,
    pools_of,
)
from sliceplane.xds.settings import PortSettings


class XdsLocation(NamedTuple):
    """The location of a client; empty fields are unknown."""

    node: str = ""
    zone: str = ""
    region: str = ""


class Audience(NamedTuple):
    """The readers of the same slices; empty fields: only slices for all."""

    zone: str = ""
    region: str = ""

    def reads(self, subject: EndpointSlice) -> bool:
        labels = subject.metadata.labels or {}
        zone = labels.get(LABEL_FOR_ZONE)
        region = labels.get(LABEL_FOR_REGION)
        if zone is None and region is None:
            return True
        return (bool(self.zone) and zone == self.zone) or (
            bool(self.region) and region == self.region
        )


EVERYBODY: Final = Audience()


@dataclass(slots=True)
class XdsShared:
    """The state that all Services of a catalog share. ``regions``: by zone; the catalog
    changes it. ``measured``: the clusters whose clients report their requests, with the start of the
    Service's UID; Services change it.
    """

    next_epoch: Callable[[], str]
    collected_from: int
    assignment_max: int
    with_names: bool
    registry: dict[str, XdsCollection] = field(default_factory=dict)
    regions: dict[str, str] = field(default_factory=dict)
    measured: dict[str, str] = field(default_factory=dict)


class PortChanges(NamedTuple):
    """The changes since the last call. ``flipped``: pools that became empty, or are no longer
    empty.
    """

    everywhere: bool
    flipped: Mapping[PoolKey, None]
    pools: Mapping[PoolKey, PoolChanges]

    @property
    def is_empty(self) -> bool:
        return not (self.everywhere or self.flipped or self.pools)

    def reassigns(self, location: XdsLocation, used: PoolKey, *, collected: bool) -> bool:
        """Returns True if the assignment differs for a client at *location*, which uses *used* now."""
        if self.everywhere or (
            self.flipped and any(key in self.flipped for key in _may_use(location))
        ):
            return True
        pool = self.pools.get(used)
        return pool is not None and (pool.collected if collected else pool.plain)


class PortEndpoints:
    """The endpoints of one port for one audience.  Owned by its ``ServedService``."""

    def __init__(self, settings: PortSettings, shared: XdsShared) -> None:
        self._settings = settings
        self._shared = shared
        self._merges: dict[Family, EndpointMerge] = {
            family: EndpointMerge(PortChoice(settings.slice_port), family)
            for family in settings.families
        }
        self._merged: dict[str, MergedEndpoint] = {}
        self._entries: dict[str, PoolEntry] = {}
        self._counts: dict[PoolKey, int] = {}
        #: numbers of ready endpoints whose hints name nodes, and zones
        self._naming_nodes = 0
        self._naming_zones = 0
        self._pools: dict[PoolKey, EndpointList] = {}
        #: endpoints that no client could use: by id
        self._unusable: dict[str, None] = {}
        #: pools touched since the last ``take_changes``, and whether they had endpoints then
        self._touched: dict[PoolKey, bool] = {}
        self._state = self._decides()

    @property
    def unusable(self) -> int:
        """Returns the number of endpoints without an address of the same host for every client."""
        return len(self._unusable) + sum(merge.unusable_count for merge in self._merges.values())

    @property
    def is_too_large(self) -> bool:
        """Returns True if some assignment omits endpoints."""
        return any(pool.is_too_large for pool in self._pools.values())

    def endpoints(self) -> tuple[MergedEndpoint, ...]:
        """Returns all endpoints, by id.  O(n log n)."""
        return tuple([self._merged[identity] for identity in sorted(self._merged)])

    def slice_of(self, endpoint: Endpoint) -> str:
        """Returns the key of the slice of *endpoint*, one of ``endpoints``."""
        merges = [
            merge for merge in self._merges.values() if merge.visible.get(endpoint.id) == endpoint
        ]
        return merges[0].slice_of(endpoint.id)

    # -- changes

    def on_slice(self, key: str, new: EndpointSlice | None) -> None:
        touched: dict[str, None] = {}
        for merge in self._merges.values():
            merge.on_slice(key, new)
            touched |= dict.fromkeys(merge.take_touched())
        for identity in touched:
            after = self._merge_families(identity)
            before = self._merged.get(identity)
            if before != after:
                self._replace(identity, before, after)

    def on_regions(self) -> None:
        for key, pool in self._pools.items():
            pool.on_regions()
            self._touched.setdefault(key, key in self._counts)

    def take_changes(self) -> PortChanges:
        flipped = dict.fromkeys(
            key for key, was in self._touched.items() if was != (key in self._counts)
        )
        pools = {
            key: self._pools[key].take_changes() for key in self._touched if key in self._pools
        }
        before, self._state = self._state, self._decides()
        self._touched = {}
        return PortChanges(before != self._state, flipped, pools)

    def _merge_families(self, identity: str) -> MergedEndpoint | None:
        visible = [
            merge.visible[identity] for merge in self._merges.values() if identity in merge.visible
        ]
        servable = [endpoint for endpoint in visible if is_servable(endpoint)]
        if len(servable) == len(visible):
            self._unusable.pop(identity, None)
        else:
            self._unusable[identity] = None
        if len(servable) < 2:
            return MergedEndpoint(servable[0]) if servable else None
        first, other = servable
        # If the two families are not written at the same time, the Service's first one counts.
        agree = (first.ready, first.serving) == (other.ready, other.serving)
        return MergedEndpoint(first, other if agree else None)

    def _replace(
        self, identity: str, before: MergedEndpoint | None, after: MergedEndpoint | None
    ) -> None:
        was = self._pools_with(before)
        now = self._pools_with(after)
        old = self._entries.pop(identity, None)
        if after is None:
            del self._merged[identity]
        else:
            self._merged[identity] = after
        for key in was:
            if key not in now:
                self._touch(key, -(not was[key]))
                if key in self._pools:
                    assert old is not None, f"{identity} of {key} has no piece"
                    self._pools[key].discard(old)
        for key, draining in now.items():
            self._touch(key, (not draining) - (key in was and not was[key]))
            pool = self._pools.get(key)
            if pool is not None:
                entry = self._entry(identity)
                stays = key in was
                if stays and entry == old and was[key] == draining:
                    continue
                if stays and old is not None and old.zone != entry.zone:
                    pool.discard(old)
                    stays = False
                pool.put(entry, draining=draining, is_new=not stays)
        for merged, by in ((before, -1), (after, 1)):
            if merged is not None and merged.endpoint.ready:
                self._naming_nodes += by * bool(merged.endpoint.node_hints)
                self._naming_zones += by * bool(merged.endpoint.zone_hints)

    def _pools_with(self, merged: MergedEndpoint | None) -> dict[PoolKey, bool]:
        """Returns the pools that have the endpoint, each with True if it is draining there."""
        if merged is None:
            return {}
        is_local = self._settings.is_local
        draining_by_pool = dict.fromkeys(pools_of(merged.endpoint, is_local=is_local), False)
        if self._settings.reports_draining:
            for key in draining_pools_of(merged.endpoint, is_local=is_local):
                draining_by_pool[key] = True
        return draining_by_pool

    def _touch(self, key: PoolKey, by: int) -> None:
        count = self._counts.get(key, 0)
        self._touched.setdefault(key, count > 0)
        if count + by:
            self._counts[key] = count + by
        else:
            self._counts.pop(key, None)

    def _entry(self, identity: str) -> PoolEntry:
        entry = self._entries.get(identity)
        if entry is None:
            merged = self._merged[identity]
            encoded = piece(endpoint_message(merged, with_names=self._shared.with_names))
            draining = b""
            if self._settings.reports_draining and not merged.endpoint.ready:
                draining = piece(
                    endpoint_message(merged, draining=True, with_names=self._shared.with_names)
                )
            entry = self._entries[identity] = PoolEntry(
                merged.endpoint.zone, identity, encoded, draining
            )
        return entry

    # -- which pool a place uses

    def _decides(self) -> tuple[bool, bool, bool, bool]:
        """Returns the values that decide for every place."""
        ready = self._counts.get(READY, 0)
        return (
            ready > 0,
            TERMINATING in self._counts,
            self._naming_nodes == ready,
            self._naming_zones == ready,
        )

    def select(self, location: XdsLocation) -> PoolKey:
        """Returns the pool of the endpoints that ``consume.usable`` selects for *location*.  O(1)."""
        if self._settings.is_local:
            if not location.node:
                return LOCATION_UNKNOWN
            local = PoolKey("local", location.node)
            ending = PoolKey("local-terminating", location.node)
            return ending if local not in self._counts and ending in self._counts else local
        if READY not in self._counts:
            return TERMINATING if TERMINATING in self._counts else READY
        if not self._naming_nodes and not self._naming_zones:
            return READY
        for key, naming in (
            (PoolKey("node", location.node), self._naming_nodes),
            (PoolKey("zone", location.zone), self._naming_zones),
        ):
            every = naming == self._counts[READY]
            if (
                outcome_of(key.value, every_one_names=every, one_names_it=key in self._counts)
                == "honoured"
            ):
                return key
        return READY

    def pool(self, location: XdsLocation) -> EndpointList:
        """Returns the list of the endpoints for *location*.  O(1), except for the first location
        that uses it.
        """
        key = self.select(location)
        pool = self._pools.get(key)
        if pool is None:
            pool = self._pools[key] = EndpointList(
                self._settings.key,
                key,
                self._open_collections,
                collected_from=self._shared.collected_from,
                size_max=self._shared.assignment_max,
            )
            pool.load(self._members(key))
        return pool

    def drop_pools(self, is_used: Callable[[PoolKey], bool]) -> None:
        """Drops the pools that no location can use later."""
        for key in [key for key in self._pools if not is_used(key)]:
            self._pools.pop(key).close()

    def _members(self, key: PoolKey) -> Iterator[tuple[PoolEntry, bool]]:
        for identity in sorted(self._merged):
            draining = self._pools_with(self._merged[identity]).get(key)
            if draining is not None:
                yield self._entry(identity), draining

    def _open_collections(self) -> Collections:
        return Collections(self._settings.key, self._shared.registry, self._shared.next_epoch)

    def choice(self, location: XdsLocation) -> Choice[NodeEndpoint]:
        """Returns the endpoints that the rule itself selects for *location*, by id; ``check``
        compares with it. O(n).
        """
        rule = choose_local if self._settings.is_local else choose
        return rule(self.sources(location), Locality(node=location.node, zone=location.zone))

    def sources(self, location: XdsLocation) -> list[NodeEndpoint]:
        """Returns all endpoints, by id, as the rule reads them for *location*.  O(n log n)."""
        return [
            NodeEndpoint(
                ip=endpoint.address,
                port=endpoint.port,
                ready=endpoint.ready,
                serving=endpoint.serving,
                terminating=endpoint.terminating,
                is_local=endpoint.node == location.node and location.node != "",
                zone_hints=endpoint.zone_hints,
                node_hints=endpoint.node_hints,
            )
            for endpoint, _ in self.endpoints()
        ]

    def check(self, locations: Iterator[XdsLocation]) -> None:
        """Asserts that the state is that of the merges, and selects as the rule does.  O(endpoints)."""
        for merge in self._merges.values():
            merge.check()
        visible = dict.fromkeys(
            identity for merge in self._merges.values() for identity in merge.visible
        )
        expected = {identity: self._merge_families(identity) for identity in visible}
        assert self._merged == {
            identity: merged for identity, merged in expected.items() if merged is not None
        }
        counts: dict[PoolKey, int] = {}
        for merged in self._merged.values():
            for key, draining in self._pools_with(merged).items():
                if not draining:
                    counts[key] = counts.get(key, 0) + 1
        assert counts == self._counts, f"counted {self._counts}, there are {counts}"
        for key, pool in self._pools.items():
            pool.check(
                {
                    entry.identity: (entry.zone, entry.draining if draining else entry.encoded)
                    for entry, draining in self._members(key)
                }
            )
        for location in locations:
            key = self.select(location)
            usable = [
                merged.endpoint
                for merged in self.endpoints()
                if self._pools_with(merged).get(key) is False
            ]
            ruled = self.choice(location).endpoints
            assert [(endpoint.address, endpoint.port) for endpoint in usable] == [
                (endpoint.ip, endpoint.port) for endpoint in ruled
            ], f"{location} uses {usable}, the rule says {ruled}"


def _may_use(location: XdsLocation) -> tuple[PoolKey, ...]:
    return (
        PoolKey("zone", location.zone),
        PoolKey("node", location.node),
        PoolKey("local", location.node),
        PoolKey("local-terminating", location.node),
    )
