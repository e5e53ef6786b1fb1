"""The choice of endpoints whose hints change: as many as are counted, from as few slices as
possible.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Hashable, Mapping
from typing import Generic, NamedTuple, TypeVar

K = TypeVar("K", bound=Hashable)


class Movable(NamedTuple, Generic[K]):
    """An endpoint that could have other hints than *hinted*; *own* are its preferred hints."""

    pod: str
    own: K
    hinted: K


def pick(
    movable: Mapping[str, list[Movable[K]]],
    giving: Mapping[K, int],
    getting: Mapping[K, int],
    free: frozenset[str],
) -> list[Movable[K]]:
    """Returns as many endpoints with each present hint as *giving* requires.

    *movable* is by slice ("": not in a slice yet); slices in *free* are written anyway. Others are
    used in the order of how many endpoints they can contribute: the fewest slices for one kind of
    hint, and nearly the fewest for several. Within a slice, endpoints that return to their own
    hints come first, then those that are away already.
    """
    required = dict(giving)
    chosen: list[Movable[K]] = []

    def take(name: str) -> None:
        for candidate in sorted(
            movable[name], key=lambda c: (getting.get(c.own, 0) == 0, c.own == c.hinted, c.pod)
        ):
            if required.get(candidate.hinted, 0):
                required[candidate.hinted] -= 1
                chosen.append(candidate)

    def usable(name: str) -> int:
        counts = Counter(candidate.hinted for candidate in movable[name])
        return sum(min(count, required.get(hint, 0)) for hint, count in counts.items())

    for name in sorted(movable):
        if not name or name in free:
            take(name)
    heap = [(-usable(name), name) for name in sorted(movable) if name and name not in free]
    heapq.heapify(heap)
    while heap and any(required.values()):
        _, name = heapq.heappop(heap)
        now = usable(name)
        if heap and -now > heap[0][0]:
            heapq.heappush(heap, (-now, name))  # earlier slices contributed the same hints
        else:
            take(name)
    assert not any(required.values()), f"no endpoint can give {required}"
    return chosen


def choose_moves(
    movable: Mapping[str, list[Movable[str]]],
    giving: Mapping[str, int],
    getting: Mapping[str, int],
    free: frozenset[str],
) -> dict[str, str]:
    """Returns the new zone of each Pod whose hints change, in the numbers of *giving* and *getting*
    (``pick``).
    """
    return _assign(pick(movable, giving, getting, free), dict(getting))


def _assign(chosen: list[Movable[str]], get: dict[str, int]) -> dict[str, str]:
    """Returns the new zone of each Pod: its own if that needs endpoints, otherwise the one that
    needs most.
    """
    zone_by_pod: dict[str, str] = {}
    for candidate in chosen:
        if get.get(candidate.own, 0):
            get[candidate.own] -= 1
            zone_by_pod[candidate.pod] = candidate.own
    for candidate in chosen:
        if candidate.pod not in zone_by_pod:
            zone = max(sorted(get), key=lambda zone: get[zone])
            get[zone] -= 1
            zone_by_pod[candidate.pod] = zone
    return zone_by_pod
