"""Endpoints in a list that adds, removes and finds in O(1).  The order is that of the operations,
never of hashes.
"""

from __future__ import annotations

from collections.abc import Set

from sliceplane.consume.balancing.model import Endpoint
from sliceplane.kit.rng import Rng

#: random samples before the endpoints are searched in order
_SAMPLES = 8


class EndpointPool:
    """At most one endpoint of each id."""

    __slots__ = ("_index", "_items")

    def __init__(self) -> None:
        self._items: list[Endpoint] = []
        self._index: dict[str, int] = {}

    def __len__(self) -> int:
        return len(self._items)

    def __contains__(self, identity: str) -> bool:
        return identity in self._index

    def __getitem__(self, index: int) -> Endpoint:
        return self._items[index]

    def get(self, identity: str) -> Endpoint | None:
        index = self._index.get(identity)
        return None if index is None else self._items[index]

    def endpoints(self) -> tuple[Endpoint, ...]:
        """In no order that means anything, but always the same after the same history.  O(n)."""
        return tuple(self._items)

    def sample(self, rng: Rng, out: Set[str]) -> Endpoint | None:
        """Any that is not *out*, with the same chance while few are; O(1), or O(out).  ``None``:
        all are.
        """
        items = self._items
        if not items:
            return None
        at = rng.below(len(items))
        if not out or items[at].id not in out:
            return items[at]
        for _ in range(_SAMPLES):
            drawn = items[rng.below(len(items))]
            if drawn.id not in out:
                return drawn
        # Nearly all are out: the next one that is not, and there is one within len(out) steps or
        # none at all.
        for offset in range(min(len(items), len(out) + 1)):
            drawn = items[(at + offset) % len(items)]
            if drawn.id not in out:
                return drawn
        return None

    def put(self, endpoint: Endpoint) -> None:
        """Add, or replace what is there under this id."""
        index = self._index.get(endpoint.id)
        if index is None:
            self._index[endpoint.id] = len(self._items)
            self._items.append(endpoint)
        else:
            self._items[index] = endpoint

    def discard(self, identity: str) -> None:
        """Removes an endpoint; the last one moves to its index."""
        index = self._index.pop(identity, None)
        if index is None:
            return
        last = self._items.pop()
        if index < len(self._items):
            self._items[index] = last
            self._index[last.id] = index

    def check(self) -> None:
        assert self._index == {endpoint.id: index for index, endpoint in enumerate(self._items)}, (
            "the index is off"
        )
