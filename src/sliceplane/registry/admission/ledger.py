"""Who holds which number: the addresses of an IP family, the node ports.

The ledger is derived from the newest Services and never stored, so it cannot disagree with them after a
crash, and a write that fails has held nothing.  Numbers are given out of *ranges*, of which there may be several, and
which may come and go; a holder keeps its number when the range goes.

The lowest numbers of a range are left to those who ask for a certain one: they are given out only when all others are
taken (KEP-3070 for addresses, KEP-3668 for node ports).  Choosing is by chance with a few tries, then by a walk: about
one look while the range is mostly free.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

from sliceplane.kit.rng import Rng
from sliceplane.store.types import Key

_RANDOM_TRIES = 16
_BAND_MIN = 16


class Range(NamedTuple):
    """Numbers ``first..last``, of which the ``band`` lowest are given out last."""

    first: int
    last: int
    band: int

    def __contains__(self, number: object) -> bool:
        return isinstance(number, int) and self.first <= number <= self.last


def static_band(size: int, *, share: int, most: int) -> int:
    """How many of *size* numbers are given out last: one in *share*, at least 16 and at most *most*."""
    return 0 if size <= _BAND_MIN else min(max(_BAND_MIN, size // share), most)


class NumberLedger:
    """Numbers and their holders.  ``reserved`` ones are never chosen.  Owned by ``ServiceLedgers``."""

    def __init__(self, ranges: tuple[Range, ...], reserved: Collection[int] = ()) -> None:
        self._reserved = frozenset(reserved)
        self._holder: dict[int, Key] = {}
        self._held: dict[Key, tuple[int, ...]] = {}
        self.ranges: tuple[Range, ...]
        self.set_ranges(ranges)

    def set_ranges(self, ranges: tuple[Range, ...]) -> None:
        """Numbers are given out of *ranges* from now on, in this order."""
        for first, last, band in ranges:
            assert first <= last, f"range {first}..{last} is empty"
            assert 0 <= band <= last - first + 1, f"{band} numbers of {first}..{last} are given out last"
        self.ranges = ranges

    def __contains__(self, number: int) -> bool:
        """Whether the number is in a range at all."""
        return any(number in span for span in self.ranges)

    def holder(self, number: int) -> Key | None:
        return self._holder.get(number)

    def held(self, key: Key) -> tuple[int, ...]:
        return self._held.get(key, ())

    def others(self, key: Key) -> tuple[int, ...]:
        """What all others than *key* hold."""
        return tuple(number for number, holder in self._holder.items() if holder != key)

    def keys(self) -> frozenset[Key]:
        """All holders."""
        return frozenset(self._held)

    def assign(self, key: Key, numbers: Collection[int]) -> None:
        """From now on *key* holds exactly those of *numbers* that are free of others."""
        for number in self._held.pop(key, ()):
            del self._holder[number]
        kept = tuple(sorted({n for n in numbers if n not in self._holder}))
        for number in kept:
            self._holder[number] = key
        if kept:
            self._held[key] = kept

    def clear(self) -> None:
        self._holder.clear()
        self._held.clear()

    def choose(self, rng: Rng, also_taken: Collection[int] = ()) -> int | None:
        """A free number, or ``None``.  It is not held by this."""
        for first, last, band in self.ranges:
            for low, high in ((first + band, last), (first, first + band - 1)):
                number = self._choose_between(low, high, rng, also_taken) if low <= high else None
                if number is not None:
                    return number
        return None

    def _choose_between(self, low: int, high: int, rng: Rng, also_taken: Collection[int]) -> int | None:
        size = high - low + 1
        for _ in range(_RANDOM_TRIES):
            number = low + rng.below(size)
            if self._is_free(number, also_taken):
                return number
        # More numbers than are taken suffice: among them is a free one, if there is any at all.
        reach = min(size, len(self._holder) + len(self._reserved) + len(also_taken) + 1)
        start = rng.below(size)
        for step in range(reach):
            number = low + (start + step) % size
            if self._is_free(number, also_taken):
                return number
        return None

    def _is_free(self, number: int, also_taken: Collection[int]) -> bool:
        return number not in self._holder and number not in self._reserved and number not in also_taken

    def check(self) -> None:
        """Both directions agree."""
        forward = {number: key for key, numbers in self._held.items() for number in numbers}
        assert forward == self._holder, f"holdings {forward} and holders {self._holder} differ"
