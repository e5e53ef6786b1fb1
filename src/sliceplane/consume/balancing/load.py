"""Requests in flight, by endpoint, and the endpoints ordered by them.

``Load`` is one per view, so that pickers of different kinds see each other's requests. It counts by
id and does not care whether the endpoint still belongs to the Service: a request that outlives its
endpoint is given back as any other. ``Ranked`` files endpoints under their count, so that the least
loaded one is found in O(1).
"""

from __future__ import annotations

from collections.abc import Callable, Set

from sliceplane.consume.balancing.model import Endpoint
from sliceplane.consume.balancing.pool import EndpointPool
from sliceplane.kit.rng import Rng


class Load:
    """Owned by one view; ``acquire`` and ``release`` come in pairs."""

    def __init__(self) -> None:
        self._counts: dict[str, int] = {}
        self.total = 0
        #: told of each new count
        self.watchers: list[Callable[[str, int], None]] = []

    def count(self, identity: str) -> int:
        return self._counts.get(identity, 0)

    def acquire(self, identity: str) -> None:
        self.total += 1
        self._set(identity, self.count(identity) + 1)

    def release(self, identity: str) -> None:
        count = self.count(identity)
        assert count > 0, f"{identity} was released more often than acquired"
        self.total -= 1
        self._set(identity, count - 1)

    def _set(self, identity: str, count: int) -> None:
        if count:
            self._counts[identity] = count
        else:
            del self._counts[identity]
        for watcher in self.watchers:
            watcher(identity, count)

    def check(self) -> None:
        assert all(count > 0 for count in self._counts.values()), (
            f"idle endpoints are kept: {self._counts}"
        )
        assert self.total == sum(self._counts.values()), (
            f"{self.total} in flight, counted {self._counts}"
        )


class Ranked:
    """Endpoints by requests in flight.  Fed by its picker; ``on_count`` is a watcher of the
    ``Load``.
    """

    def __init__(self, load: Load) -> None:
        self._load = load
        self._filed: dict[str, int] = {}
        self._buckets: dict[int, EndpointPool] = {}
        self._least = 0

    def __len__(self) -> int:
        return len(self._filed)

    def clear(self) -> None:
        self._filed = {}
        self._buckets = {}

    def put(self, endpoint: Endpoint) -> None:
        count = self._load.count(endpoint.id)
        self._filed[endpoint.id] = count
        self._bucket(count).put(endpoint)

    def discard(self, identity: str) -> None:
        count = self._filed.pop(identity, None)
        if count is not None:
            self._take_out(identity, count)

    def on_count(self, identity: str, count: int) -> None:
        filed = self._filed.get(identity)
        if filed is None or filed == count:
            return
        endpoint = self._buckets[filed].get(identity)
        assert endpoint is not None, f"{identity} is not filed under {filed}"
        self._take_out(identity, filed)
        self._filed[identity] = count
        self._bucket(count).put(endpoint)

    def least(self, rng: Rng, out: Set[str]) -> tuple[Endpoint, int] | None:
        """One of those with the fewest requests that are not *out*, and how many these are.  O(1),
        or O(out).
        """
        if not self._filed:
            return None
        if self._least not in self._buckets:
            self._least = min(self._buckets)
        drawn = self._buckets[self._least].sample(rng, out)
        if drawn is not None:
            return drawn, self._least
        for count in sorted(self._buckets):
            drawn = self._buckets[count].sample(rng, out)
            if drawn is not None:
                return drawn, count
        return None

    def _bucket(self, count: int) -> EndpointPool:
        self._least = min(self._least, count)
        bucket = self._buckets.get(count)
        if bucket is None:
            bucket = self._buckets[count] = EndpointPool()
        return bucket

    def _take_out(self, identity: str, count: int) -> None:
        bucket = self._buckets[count]
        bucket.discard(identity)
        if not len(bucket):
            del self._buckets[count]

    def check(self) -> None:
        filed = {
            endpoint.id: count
            for count, pool in self._buckets.items()
            for endpoint in pool.endpoints()
        }
        assert filed == self._filed, f"filed under {filed}, known as {self._filed}"
        assert all(count == self._load.count(identity) for identity, count in filed.items()), (
            "counts are old"
        )
        assert all(len(pool) for pool in self._buckets.values()), "an empty bucket is kept"
        assert not filed or self._least <= min(filed.values()), f"least is {self._least} of {filed}"
