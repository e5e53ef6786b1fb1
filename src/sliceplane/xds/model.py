"""One Service, kept by differences: for each TCP port its endpoints as each place sees them.

```
EndpointMerge (one a family)   which entry of a Pod counts, where slices disagree
_seen:    id -> SeenEndpoint   a Pod once, with an address of each family
_counts:  pool -> how many     enough to say in O(1) which pool a place uses (``select``, the rule of
``consume.usable``) _pools:   pool -> EndpointList those that some client's place uses ```

A changed slice costs O(that slice), and for each changed endpoint one piece and one insertion in
each pool that has it. Nothing is merged of a port for which no client has asked.

Slices with a label for a zone or a region (subsetting) are there only for clients of that zone or
region; only while a Service has such slices, its endpoints are kept apart for each of those
audiences.
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
from sliceplane.xds.endpoints import SeenEndpoint, endpoint_message, is_servable, piece
from sliceplane.xds.pools import (
    PLACE_UNKNOWN,
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


class XdsPlace(NamedTuple):
    """Where a client is; empty: not known."""

    node: str = ""
    zone: str = ""
    region: str = ""


class Audience(NamedTuple):
    """The readers of the same slices; empty: those for all."""

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
    changes it.
    """

    next_epoch: Callable[[], str]
    collected_from: int
    assignment_max: int
    with_names: bool
    registry: dict[str, XdsCollection] = field(default_factory=dict)
    regions: dict[str, str] = field(default_factory=dict)


class PortChanges(NamedTuple):
    """The differences since the last time. ``flipped``: pools that are empty now and were not, or
    the other way round.
    """

    everywhere: bool
    flipped: Mapping[PoolKey, None]
    pools: Mapping[PoolKey, PoolChanges]

    @property
    def is_empty(self) -> bool:
        return not (self.everywhere or self.flipped or self.pools)

    def reassigns(self, place: XdsPlace, used: PoolKey, *, collected: bool) -> bool:
        """Returns True if the assignment differs for a client at *place*, which uses *used* now."""
        if self.everywhere or (
            self.flipped and any(key in self.flipped for key in _may_use(place))
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
        self._seen: dict[str, SeenEndpoint] = {}
        self._entries: dict[str, PoolEntry] = {}
        self._counts: dict[PoolKey, int] = {}
        #: ready endpoints whose hints name nodes, and zones
        self._naming_nodes = 0
        self._naming_zones = 0
        self._pools: dict[PoolKey, EndpointList] = {}
        #: endpoints that no client could use: by id
        self._left_out: dict[str, None] = {}
        #: pools touched since the last ``settle``, and whether they had endpoints then
        self._touched: dict[PoolKey, bool] = {}
        self._state = self._decides()

    @property
    def left_out(self) -> int:
        """Endpoints without an address that means the same host for every client."""
        return len(self._left_out) + sum(merge.left_out for merge in self._merges.values())

    @property
    def is_too_large(self) -> bool:
        """Some clients are told a part of the endpoints."""
        return any(pool.is_too_large for pool in self._pools.values())

    def endpoints(self) -> tuple[SeenEndpoint, ...]:
        """All of them, by id.  O(n log n)."""
        return tuple([self._seen[identity] for identity in sorted(self._seen)])

    def slice_of(self, endpoint: Endpoint) -> str:
        """The key of the slice that says it, of one of ``endpoints``."""
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
            after = self._look(identity)
            before = self._seen.get(identity)
            if before != after:
                self._replace(identity, before, after)

    def on_regions(self) -> None:
        for key, pool in self._pools.items():
            pool.on_regions()
            self._touched.setdefault(key, key in self._counts)

    def settle(self) -> PortChanges:
        flipped = dict.fromkeys(
            key for key, was in self._touched.items() if was != (key in self._counts)
        )
        settled = {key: self._pools[key].settle() for key in self._touched if key in self._pools}
        before, self._state = self._state, self._decides()
        self._touched = {}
        return PortChanges(before != self._state, flipped, settled)

    def _look(self, identity: str) -> SeenEndpoint | None:
        shown = [
            merge.visible[identity] for merge in self._merges.values() if identity in merge.visible
        ]
        servable = [endpoint for endpoint in shown if is_servable(endpoint)]
        if len(servable) == len(shown):
            self._left_out.pop(identity, None)
        else:
            self._left_out[identity] = None
        if len(servable) < 2:
            return SeenEndpoint(servable[0]) if servable else None
        first, other = servable
        # Where the two families are not written at once, the Service's first one counts.
        agree = (first.ready, first.serving) == (other.ready, other.serving)
        return SeenEndpoint(first, other if agree else None)

    def _replace(
        self, identity: str, before: SeenEndpoint | None, after: SeenEndpoint | None
    ) -> None:
        was = self._placed(before)
        now = self._placed(after)
        old = self._entries.pop(identity, None)
        if after is None:
            del self._seen[identity]
        else:
            self._seen[identity] = after
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
        for seen, by in ((before, -1), (after, 1)):
            if seen is not None and seen.endpoint.ready:
                self._naming_nodes += by * bool(seen.endpoint.node_hints)
                self._naming_zones += by * bool(seen.endpoint.zone_hints)

    def _placed(self, seen: SeenEndpoint | None) -> dict[PoolKey, bool]:
        """The pools that have it, and whether it drains in them."""
        if seen is None:
            return {}
        is_local = self._settings.is_local
        placed = dict.fromkeys(pools_of(seen.endpoint, is_local=is_local), False)
        if self._settings.tells_draining:
            for key in draining_pools_of(seen.endpoint, is_local=is_local):
                placed[key] = True
        return placed

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
            seen = self._seen[identity]
            encoded = piece(endpoint_message(seen, with_names=self._shared.with_names))
            draining = b""
            if self._settings.tells_draining and not seen.endpoint.ready:
                draining = piece(
                    endpoint_message(seen, draining=True, with_names=self._shared.with_names)
                )
            entry = self._entries[identity] = PoolEntry(
                seen.endpoint.zone, identity, encoded, draining
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

    def select(self, place: XdsPlace) -> PoolKey:
        """The pool of the endpoints that ``consume.usable`` leaves for *place*.  O(1)."""
        if self._settings.is_local:
            if not place.node:
                return PLACE_UNKNOWN
            here = PoolKey("local", place.node)
            ending = PoolKey("local-terminating", place.node)
            return ending if here not in self._counts and ending in self._counts else here
        if READY not in self._counts:
            return TERMINATING if TERMINATING in self._counts else READY
        if not self._naming_nodes and not self._naming_zones:
            return READY
        for key, naming in (
            (PoolKey("node", place.node), self._naming_nodes),
            (PoolKey("zone", place.zone), self._naming_zones),
        ):
            every = naming == self._counts[READY]
            if (
                outcome_of(key.value, every_one_names=every, one_names_it=key in self._counts)
                == "honoured"
            ):
                return key
        return READY

    def pool(self, place: XdsPlace) -> EndpointList:
        """O(1) but for the first place that uses it."""
        key = self.select(place)
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
        """Drops the pools that no place can come to use."""
        for key in [key for key in self._pools if not is_used(key)]:
            self._pools.pop(key).close()

    def _members(self, key: PoolKey) -> Iterator[tuple[PoolEntry, bool]]:
        for identity in sorted(self._seen):
            draining = self._placed(self._seen[identity]).get(key)
            if draining is not None:
                yield self._entry(identity), draining

    def _open_collections(self) -> Collections:
        return Collections(self._settings.key, self._shared.registry, self._shared.next_epoch)

    def choice(self, place: XdsPlace) -> Choice[NodeEndpoint]:
        """Returns the endpoints that the rule itself leaves for *place*, by id; the second opinion
        of ``check``. O(n).
        """
        rule = choose_local if self._settings.is_local else choose
        return rule(self.sources(place), Locality(node=place.node, zone=place.zone))

    def sources(self, place: XdsPlace) -> list[NodeEndpoint]:
        """All of them, by id, as the rule looks at them from *place*.  O(n log n)."""
        return [
            NodeEndpoint(
                ip=endpoint.address,
                port=endpoint.port,
                ready=endpoint.ready,
                serving=endpoint.serving,
                terminating=endpoint.terminating,
                is_local=endpoint.node == place.node and place.node != "",
                zone_hints=endpoint.zone_hints,
                node_hints=endpoint.node_hints,
            )
            for endpoint, _ in self.endpoints()
        ]

    def check(self, places: Iterator[XdsPlace]) -> None:
        """Everything kept is what the merges show, and what the rule makes of it.  O(endpoints)."""
        for merge in self._merges.values():
            merge.check()
        shown = dict.fromkeys(
            identity for merge in self._merges.values() for identity in merge.visible
        )
        seen = {identity: self._look(identity) for identity in shown}
        assert self._seen == {
            identity: known for identity, known in seen.items() if known is not None
        }
        counts: dict[PoolKey, int] = {}
        for known in self._seen.values():
            for key, draining in self._placed(known).items():
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
        for place in places:
            key = self.select(place)
            usable = [
                known.endpoint
                for known in self.endpoints()
                if self._placed(known).get(key) is False
            ]
            ruled = self.choice(place).endpoints
            assert [(endpoint.address, endpoint.port) for endpoint in usable] == [
                (endpoint.ip, endpoint.port) for endpoint in ruled
            ], f"{place} uses {usable}, the rule says {ruled}"


def _may_use(place: XdsPlace) -> tuple[PoolKey, ...]:
    return (
        PoolKey("zone", place.zone),
        PoolKey("node", place.node),
        PoolKey("local", place.node),
        PoolKey("local-terminating", place.node),
    )
