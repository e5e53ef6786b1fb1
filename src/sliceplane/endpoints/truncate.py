"""How many addresses one Endpoints object may hold, and which share of them each subset gets.

Addresses count once in every subset that they are in.  Ready ones come first: those that are not ready get what the
ready ones leave over.  Shares are in proportion, rounded up, so the last subsets may get less.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from typing import Final

from sliceplane.api.gates import Release

ADDRESSES_MAX: Final = 1000
_WARNS_SINCE: Final[Release] = (1, 21)
_TRUNCATES_SINCE: Final[Release] = (1, 22)


class Capacity(Enum):
    """What becomes of an object with more than ``ADDRESSES_MAX`` addresses.  The value is what its annotation says."""

    UNLIMITED = ""
    WARN = "warning"
    TRUNCATE = "truncated"


def capacity_at(release: Release) -> Capacity:
    """KEP-0752, "Endpoints Controller (classic)"."""
    if release >= _TRUNCATES_SINCE:
        return Capacity.TRUNCATE
    return Capacity.WARN if release >= _WARNS_SINCE else Capacity.UNLIMITED


def shares(sizes: Sequence[tuple[int, int]], limit: int = ADDRESSES_MAX) -> list[tuple[int, int]]:
    """How many (ready, not ready) addresses each subset of *sizes* keeps, so that together they are at most *limit*."""
    ready = sum(size[0] for size in sizes)
    waiting = sum(size[1] for size in sizes)
    if ready + waiting <= limit:
        return list(sizes)
    if ready > limit:
        return [(kept, 0) for kept in _proportional([size[0] for size in sizes], ready, limit)]
    kept = _proportional([size[1] for size in sizes], waiting, limit - ready)
    return [(size[0], count) for size, count in zip(sizes, kept, strict=True)]


def _proportional(counts: list[int], total: int, limit: int) -> list[int]:
    left = limit
    kept = []
    for count in counts:
        share = min(-(-count * limit // total), left)
        kept.append(share)
        left -= share
    return kept
