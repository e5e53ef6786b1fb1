"""Map slots of chains: a few chains share a map, and each has a range of its keys for its targets.

The obvious rule, ``dnat to numgen random mod N map { 0 : ..., 1 : ... }``, creates one anonymous map
for each chain. The kernel walks the list of all sets of a table for every set that it creates or
looks up, and ``nft`` lists them before each change. One map for all chains is worse: the kernel
checks each element against each rule that uses its map. Maps shared by a few chains keep both
products small. Measured with 5,007 services of 42 endpoints (kernel 6.18, nft 1.0.6, 2 cores;
medians of 3 loads and 15 changes; the single map: 2 loads):

| chains per map | load, of which kernel | one endpoint replaced |
|---|---|---|
| anonymous maps | 5.40 s, 4.48 s | 36 ms |
| 4 | 1.37 s, 0.47 s | 24 ms |
| 8 | 1.27 s, 0.42 s | 24 ms |
| 16 | 1.30 s, 0.48 s | 24 ms |
| 32 | 1.53 s, 0.62 s | 21 ms |
| 128 | 2.26 s, 1.33 s | 24 ms |
| all | 16.3 s, 15.4 s | 40 to 50 ms |

Each protocol has separate maps, since nft refuses a rule that draws, for example, UDP targets from a
map of TCP ones.

A *slot* is a chain's number among those of its protocol. Slot ``s`` owns the keys ``offset(s)`` to
``offset(s) + 2**20 - 1`` of map ``s // 16``, and the chain's rule draws from them: ``numgen random
mod N offset ...``. So a change of an endpoint changes one element, whatever the number of endpoints.
"""

from __future__ import annotations

import heapq
from collections import Counter

from sliceplane.kit.containers import adjust_count
from sliceplane.node.nft.objects import NftContainer

CHAINS_PER_MAP = 16
#: number of keys of a slot, and maximum number of endpoints of a service port that are used (numgen
#: itself has 2**32 numbers)
TARGETS_PER_CHAIN_MAX = 2**20


def map_of(protocol: str, slot: int) -> NftContainer:
    """Returns the map of *slot* of *protocol*."""
    return NftContainer(
        f"endpoints-{protocol}-{slot // CHAINS_PER_MAP}", ("numgen",), "target", protocol
    )


def offset_of(slot: int) -> int:
    """Returns the key of the slot's first target."""
    return slot % CHAINS_PER_MAP * TARGETS_PER_CHAIN_MAX


class Slots:
    """Allocates the slots of one protocol, the lowest free one first, and counts the slots in use of
    each map. Owned by one ``NftRules``.
    """

    def __init__(self, protocol: str) -> None:
        self._protocol = protocol
        self._free: list[int] = []
        self._end = 0
        self._used_of_map: dict[str, int] = {}

    def allocate(self) -> tuple[int, bool]:
        """Returns a slot, and True if its map must be created first."""
        if self._free:
            slot = heapq.heappop(self._free)
        else:
            slot = self._end
            self._end += 1
        name = map_of(self._protocol, slot).name
        used = adjust_count(self._used_of_map, name, 1)
        assert used <= CHAINS_PER_MAP, f"map {name} has {used} chains"
        return slot, used == 1

    def release(self, slot: int) -> bool:
        """Frees a slot; returns True if its map is now unused and must be deleted."""
        name = map_of(self._protocol, slot).name
        heapq.heappush(self._free, slot)
        return not adjust_count(self._used_of_map, name, -1)

    def check(self, used: set[int]) -> None:
        """Asserts that the slots in use are *used*."""
        free = set(self._free)
        assert len(free) == len(self._free), f"a slot is free twice: {sorted(self._free)}"
        assert used == set(range(self._end)) - free, (
            f"used {sorted(used)}, free {sorted(free)}, end {self._end}"
        )
        counts = Counter(map_of(self._protocol, slot).name for slot in used)
        assert counts == self._used_of_map, f"maps {self._used_of_map} should be {counts}"
