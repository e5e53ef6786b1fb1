"""Consistent hashing with bounded loads: a key stays with its endpoint while others come and go.

Each endpoint has one point on a ring of 64 bits, at the hash of its id (the Pod's uid). A key has
several *probes*; the probe with the shortest way to the next point decides (multi-probe consistent
hashing, Appleton and O'Reilly, 2015). With 21 probes the most loaded endpoint gets about 1.05 to
1.1 times its share of the keys, for one point an endpoint where a classic ring needs hundreds;
100,000 endpoints are a list of 100,000 numbers. An endpoint that comes takes keys from others and
moves none between them; one that goes gives up its own keys and no others.

**Bounded loads** (Mirrokni, Thorup and Zadimoghaddam, 2017): no endpoint gets a request that would
be more than ``load_factor`` times the mean of requests in flight; the next endpoint on the ring
that has room takes it. So a hot key spreads to as many endpoints as it needs, always the same ones
in the same order. Only leases count as load.
"""

from __future__ import annotations

import hashlib
import math
from bisect import bisect_left, insort
from collections.abc import Iterator, Mapping, Set

from sliceplane.consume.balancing.load import Load
from sliceplane.consume.balancing.model import Endpoint
from sliceplane.consume.balancing.pool import EndpointPool
from sliceplane.consume.balancing.usable import Usable

PROBES = 21
LOAD_FACTOR = 1.25
_MASK = (1 << 64) - 1


def point_of(identity: str) -> int:
    """Where an endpoint is on the ring; the same in every process and version."""
    return int.from_bytes(
        hashlib.blake2b(identity.encode(), digest_size=8, person=b"endpoint").digest()
    )


def probes_of(key: bytes, count: int) -> Iterator[int]:
    digest = hashlib.blake2b(key, digest_size=16, person=b"request").digest()
    start = int.from_bytes(digest[:8])
    step = int.from_bytes(digest[8:]) | 1
    return ((start + number * step) & _MASK for number in range(count))


class ConsistentHash:
    """A picker.  *load_factor* is more than 1, or ``math.inf`` for no bound."""

    def __init__(self, *, load_factor: float = LOAD_FACTOR, probes: int = PROBES) -> None:
        if not load_factor > 1:
            raise ValueError(f"load_factor is {load_factor}, it must be more than 1")
        if probes < 1:
            raise ValueError(f"probes is {probes}, it must be at least 1")
        self._factor = load_factor
        self._probes = probes
        self._points: list[int] = []
        #: who is at each point; two ids that hash alike share it, in their order
        self._at: dict[int, tuple[str, ...]] = {}
        self._members: set[str] = set()

    def attach(self, usable: Usable, load: Load) -> None:
        self._usable = usable
        self._load = load
        self.on_change({}, rescoped=True)

    def detach(self, load: Load) -> None:
        pass

    def on_change(self, touched: Mapping[str, Endpoint | None], *, rescoped: bool) -> None:
        pool = self._usable.pool
        if rescoped:
            self._rebuild(pool)
            return
        for identity in touched:
            if identity in pool and identity not in self._members:
                self._join(identity)
            elif identity not in pool and identity in self._members:
                self._leave(identity)

    def _rebuild(self, pool: EndpointPool) -> None:
        self._at = {}
        self._members = {endpoint.id for endpoint in pool.endpoints()}
        for identity in sorted(self._members):
            point = point_of(identity)
            self._at[point] = (*self._at.get(point, ()), identity)
        self._points = sorted(self._at)

    def _join(self, identity: str) -> None:
        point = point_of(identity)
        others = self._at.get(point, ())
        if not others:
            insort(self._points, point)
        self._at[point] = tuple(sorted((*others, identity)))
        self._members.add(identity)

    def _leave(self, identity: str) -> None:
        point = point_of(identity)
        others = tuple(other for other in self._at[point] if other != identity)
        if others:
            self._at[point] = others
        else:
            del self._at[point]
            del self._points[bisect_left(self._points, point)]
        self._members.discard(identity)

    def pick(self, key: bytes, out: Set[str]) -> Endpoint | None:
        pool = self._usable.pool
        load = self._load
        count = len(pool) - sum(identity in pool for identity in out)
        if not count:
            return None
        room = self._room(count)
        for identity in self._walk(self._first(key)):
            if load.count(identity) < room and identity not in out:
                return pool.get(identity)
        raise AssertionError(
            f"no endpoint has fewer than {room} of {load.total} requests in flight"
        )

    def _room(self, count: int) -> float:
        """How many requests each may have, the next one included; so much that one of them always
        has room.
        """
        return (
            math.inf
            if self._factor == math.inf
            else math.ceil(self._factor * (self._load.total + 1) / count)
        )

    def _first(self, key: bytes) -> int:
        """The index of the point that the best probe meets."""
        points = self._points
        best = 0
        shortest = _MASK + 1
        for probe in probes_of(key, self._probes):
            index = bisect_left(points, probe)
            if index == len(points):
                index = 0
            way = (points[index] - probe) & _MASK
            if way < shortest:
                best = index
                shortest = way
        return best

    def _walk(self, first: int) -> Iterator[str]:
        for offset in range(len(self._points)):
            yield from self._at[self._points[(first + offset) % len(self._points)]]

    def check(self) -> None:
        assert self._members == {endpoint.id for endpoint in self._usable.pool.endpoints()}, (
            "the ring is not the pool"
        )
        at: dict[int, list[str]] = {}
        for identity in sorted(self._members):
            at.setdefault(point_of(identity), []).append(identity)
        assert {point: list(ids) for point, ids in self._at.items()} == at, (
            "an endpoint is at a wrong point"
        )
        assert self._points == sorted(at), "points are in order"
