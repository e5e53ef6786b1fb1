"""The endpoints that a location may use, as one list in the order in which they are sent.

There is one pool for each possible result of ``consume.usable`` (all ready endpoints, those that
hints name for a zone or a node, those on a node, those that terminate and still serve). All locations
with this result share it; it is built at the first request. A changed endpoint is one insertion; the
assignment is joined at a request. Its version derives from a sum of hashes of its pieces, so that its
cost does not depend on their number.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Final, Literal, NamedTuple

from sliceplane.consume.balancing.model import Endpoint
from sliceplane.consume.usable import is_still_serving
from sliceplane.xds.collections import Collections
from sliceplane.xds.endpoints import LocalityPieces, assignment, collected_assignment
from sliceplane.xds.names import ASSIGNMENT, PortKey
from sliceplane.xds.resource import DIGESTS, XdsResource, digest_of, version_of

PoolKind = Literal[
    "ready", "terminating", "zone", "node", "local", "local-terminating", "place unknown"
]


class PoolKey(NamedTuple):
    """The key of a pool.  ``value``: the zone or the node."""

    kind: PoolKind
    value: str = ""

    def __str__(self) -> str:
        return f"{self.kind}-{self.value}" if self.value else self.kind


READY: Final = PoolKey("ready")
TERMINATING: Final = PoolKey("terminating")
#: pool of Services whose traffic stays on the node, for clients at an unknown node: always empty
LOCATION_UNKNOWN: Final = PoolKey("place unknown")


class PoolEntry(NamedTuple):
    """An endpoint in pools; ``encoded``: its piece; ``draining``: its piece in pools where it is
    draining.
    """

    zone: str
    identity: str
    encoded: bytes
    draining: bytes = b""


class PoolChanges(NamedTuple):
    """The changes of an assignment, for clients without collections and for clients with them; and the
    changed members of collections that existed before.
    """

    plain: bool
    collected: bool
    members: Sequence[str]


def pools_of(endpoint: Endpoint, *, is_local: bool) -> tuple[PoolKey, ...]:
    """Returns the pools in which *endpoint* counts."""
    if is_local:
        if not endpoint.node:
            return ()
        if endpoint.ready:
            return (PoolKey("local", endpoint.node),)
        return (PoolKey("local-terminating", endpoint.node),) if is_still_serving(endpoint) else ()
    if endpoint.ready:
        return named_pools(endpoint)
    return (TERMINATING,) if is_still_serving(endpoint) else ()


def draining_pools_of(endpoint: Endpoint, *, is_local: bool) -> tuple[PoolKey, ...]:
    """Returns the pools in which *endpoint* is draining, if the Service requests that."""
    if endpoint.ready or not is_still_serving(endpoint):
        return ()
    if is_local:
        return (PoolKey("local", endpoint.node),) if endpoint.node else ()
    return named_pools(endpoint)


def named_pools(endpoint: Endpoint) -> tuple[PoolKey, ...]:
    if not endpoint.node_hints and not endpoint.zone_hints:
        return (READY,)
    nodes = dict.fromkeys(endpoint.node_hints)
    zones = dict.fromkeys(endpoint.zone_hints)
    return (
        READY,
        *[PoolKey("node", node) for node in nodes],
        *[PoolKey("zone", zone) for zone in zones],
    )


class _Zone:
    """Pieces of one zone, by identity.  ``digest``: of the pieces, in any order."""

    __slots__ = ("digest", "drains", "identities", "pieces", "size")

    def __init__(self) -> None:
        self.identities: list[str] = []
        self.pieces: list[bytes] = []
        self.drains: dict[str, None] = {}
        self.size = 0
        self.digest = 0

    def _count(self, encoded: bytes, by: int) -> None:
        self.size += by * len(encoded)
        self.digest = (self.digest + by * digest_of(encoded)) % DIGESTS

    def append(self, identity: str, encoded: bytes, *, draining: bool) -> None:
        """Adds the endpoint with the greatest identity so far."""
        self.identities.append(identity)
        self.pieces.append(encoded)
        self._count(encoded, 1)
        if draining:
            self.drains[identity] = None

    def put(self, identity: str, encoded: bytes, *, draining: bool) -> None:
        index = bisect_left(self.identities, identity)
        if index < len(self.identities) and self.identities[index] == identity:
            self._count(self.pieces[index], -1)
            self.pieces[index] = encoded
        else:
            self.identities.insert(index, identity)
            self.pieces.insert(index, encoded)
        self._count(encoded, 1)
        self.drains.pop(identity, None)
        if draining:
            self.drains[identity] = None

    def discard(self, identity: str) -> None:
        index = bisect_left(self.identities, identity)
        assert self.identities[index] == identity, f"{identity} is not in this zone"
        self._count(self.pieces[index], -1)
        del self.identities[index], self.pieces[index]
        self.drains.pop(identity, None)


class EndpointList:
    """One pool.  Owned by its ``model.PortEndpoints``."""

    def __init__(
        self,
        key: PortKey,
        pool: PoolKey,
        open_collections: Callable[[], Collections],
        *,
        collected_from: int,
        size_max: int,
    ) -> None:
        self._key = key
        self._pool = pool
        self._open_collections = open_collections
        #: number of endpoints from which on they are collected; below half of it no longer
        self._collected_from = collected_from
        #: maximum octets of all endpoints in an assignment; it omits further ones
        self._size_max = size_max
        self._zones: dict[str, _Zone] = {}
        self._size = 0
        self._assignment: XdsResource | None = None
        self._collected: XdsResource | None = None
        #: a client has requested collections
        self._uses_collections = False
        self._collections: Collections | None = None
        self._is_changed = False
        self._is_reassigned = False

    def __len__(self) -> int:
        return self._size

    def load(self, entries: Iterable[tuple[PoolEntry, bool]]) -> None:
        """Adds the first endpoints, each with True if it is draining, in the order of identities."""
        for entry, draining in entries:
            zone = self._zones.setdefault(entry.zone, _Zone())
            zone.append(
                entry.identity, entry.draining if draining else entry.encoded, draining=draining
            )
            self._size += 1

    def put(self, entry: PoolEntry, *, draining: bool, is_new: bool) -> None:
        zone = self._zones.get(entry.zone)
        if zone is None:
            zone = self._zones[entry.zone] = _Zone()
        encoded = entry.draining if draining else entry.encoded
        zone.put(entry.identity, encoded, draining=draining)
        self._size += is_new
        if self._collections is not None and self._collections.put(
            entry.zone, entry.identity, encoded
        ):
            self._is_reassigned = True
        self._note()

    def discard(self, entry: PoolEntry) -> None:
        zone = self._zones[entry.zone]
        zone.discard(entry.identity)
        if not zone.identities:
            del self._zones[entry.zone]
        self._size -= 1
        if self._collections is not None and self._collections.discard(entry.zone, entry.identity):
            self._is_reassigned = True
        self._note()

    def _note(self) -> None:
        self._is_changed = True
        self._assignment = None

    def on_regions(self) -> None:
        """Notes that the regions of zones changed."""
        self._note()
        self._is_reassigned = True

    def take_changes(self) -> PoolChanges:
        """Returns the changes since the last time."""
        changed = self._is_changed
        reassigned = self._is_reassigned
        self._is_changed = self._is_reassigned = False
        if not changed:
            return PoolChanges(plain=False, collected=False, members=())
        was_collected = self._collections is not None
        self._choose_form()
        reassigned = reassigned or was_collected != (self._collections is not None)
        if reassigned:
            self._collected = None
        if self._collections is None:
            return PoolChanges(plain=True, collected=True, members=())
        return PoolChanges(
            plain=True, collected=reassigned, members=self._collections.take_changed()
        )

    def assignment(self, regions: Mapping[str, str]) -> XdsResource:
        if self._assignment is None:
            zones = sorted(self._zones.items())
            localities = [
                LocalityPieces(
                    name,
                    regions.get(name, ""),
                    zone.pieces,
                    zone.size,
                    len(zone.pieces) - len(zone.drains),
                )
                for name, zone in zones
            ]
            version = ""
            if self.is_too_large:
                localities = [self._cut(locality) for locality in localities]
            elif zones:
                summary = [
                    (*locality, usable, len(pieces)) for *locality, pieces, _, usable in localities
                ]
                version = version_of(repr((summary, [zone.digest for _, zone in zones])).encode())
            body = assignment(self._key, localities)
            self._assignment = XdsResource(ASSIGNMENT, str(self._key), body, version)
        return self._assignment

    @property
    def is_too_large(self) -> bool:
        """Returns True if the assignment omits endpoints, since clients would refuse all of them."""
        return sum(zone.size for zone in self._zones.values()) > self._size_max

    def _cut(self, locality: LocalityPieces) -> LocalityPieces:
        """Returns the first endpoints of a zone, in proportion to its share."""
        total = sum(zone.size for zone in self._zones.values())
        pieces = locality.pieces[: max(1, len(locality.pieces) * self._size_max // total)]
        size = sum(map(len, pieces))
        return locality._replace(pieces=pieces, size=size, usable=min(locality.usable, len(pieces)))

    def collected_assignment(self, regions: Mapping[str, str]) -> XdsResource:
        """Returns the assignment for clients with collections; the plain one while there are few
        endpoints.
        """
        if not self._uses_collections:
            self._uses_collections = True
            self._choose_form()
        if self._collections is None:
            return self.assignment(regions)
        if self._collected is None:
            by_zone = self._collections.by_zone
            localities = [
                (zone, regions.get(zone, ""), by_zone[zone].glob) for zone in sorted(by_zone)
            ]
            self._collected = XdsResource(
                ASSIGNMENT, str(self._key), collected_assignment(self._key, localities)
            )
        return self._collected

    def close(self) -> None:
        if self._collections is not None:
            self._collections.close()
            self._collections = None

    def _choose_form(self) -> None:
        minimum = self._collected_from if self._collections is None else self._collected_from // 2
        if not self._uses_collections or self._size < max(1, minimum):
            self.close()
        elif self._collections is None:
            self._collections = self._open_collections()
            for name, identity, encoded in self._pieces():
                self._collections.put(name, identity, encoded)
            self._collections.take_changed()

    def _pieces(self) -> Iterator[tuple[str, str, bytes]]:
        for name in sorted(self._zones):
            zone = self._zones[name]
            for identity, encoded in zip(zone.identities, zone.pieces, strict=True):
                yield name, identity, encoded

    def check(self, expected: Mapping[str, tuple[str, bytes]]) -> None:
        """Asserts that the pool has the zone and the piece of each *expected* endpoint, by identity.
        O(endpoints).
        """
        actual = {identity: (zone, encoded) for zone, identity, encoded in self._pieces()}
        assert actual == expected, (
            f"{self._pool} of {self._key} holds {actual}, expected are {expected}"
        )
        assert self._size == len(actual), (
            f"{self._size} endpoints are counted, {len(actual)} are listed"
        )
        for zone in self._zones.values():
            assert zone.size == sum(map(len, zone.pieces)), "the size of pieces is off"
            assert zone.digest == sum(map(digest_of, zone.pieces)) % DIGESTS, (
                "the digest of pieces is off"
            )
            assert zone.identities == sorted(zone.identities), "the order is off"
        if self._collections is not None:
            self._collections.check(actual)
