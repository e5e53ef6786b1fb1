"""Who holds which number of a range: the addresses of an IP family, the node ports.

The ledger is derived from the newest Services and never stored, so it cannot disagree with them after a
crash, and a write that fails has held nothing.  Choosing is by chance with a few tries, then by a walk: about
one look while the range is mostly free.
"""

from __future__ import annotations

from collections.abc import Collection

from sliceplane.kit.rng import Rng
from sliceplane.store.types import Key

_RANDOM_TRIES = 16


class Ledger:
    """Numbers ``first..last`` and their holders.  ``reserved`` ones are never chosen.  Owned by ``ServiceLedgers``."""

    def __init__(self, first: int, last: int, reserved: Collection[int] = ()) -> None:
        assert first <= last, f"range {first}..{last} is empty"
        self.first = first
        self.last = last
        self._reserved = frozenset(reserved)
        self._holder: dict[int, Key] = {}
        self._held: dict[Key, tuple[int, ...]] = {}

    def __contains__(self, number: int) -> bool:
        """Whether the number is in the range at all."""
        return self.first <= number <= self.last

    def holder(self, number: int) -> Key | None:
        return self._holder.get(number)

    def held(self, key: Key) -> tuple[int, ...]:
        return self._held.get(key, ())

    def keys(self) -> frozenset[Key]:
        """Everyone who holds something."""
        return frozenset(self._held)

    def assign(self, key: Key, numbers: Collection[int]) -> None:
        """From now on *key* holds exactly those of *numbers* that are in the range and free of others."""
        for number in self._held.pop(key, ()):
            del self._holder[number]
        kept = tuple(sorted({n for n in numbers if n in self and n not in self._holder}))
        for number in kept:
            self._holder[number] = key
        if kept:
            self._held[key] = kept

    def clear(self) -> None:
        self._holder.clear()
        self._held.clear()

    def choose(self, rng: Rng, also_taken: Collection[int] = ()) -> int | None:
        """A free number, or ``None``.  It is not held by this."""
        size = self.last - self.first + 1
        for _ in range(_RANDOM_TRIES):
            number = self.first + rng.below(size)
            if self._is_free(number, also_taken):
                return number
        # More numbers than are taken suffice: among them is a free one, if there is any at all.
        reach = min(size, len(self._holder) + len(self._reserved) + len(also_taken) + 1)
        start = rng.below(size)
        for step in range(reach):
            number = self.first + (start + step) % size
            if self._is_free(number, also_taken):
                return number
        return None

    def _is_free(self, number: int, also_taken: Collection[int]) -> bool:
        return number not in self._holder and number not in self._reserved and number not in also_taken

    def check(self) -> None:
        """Both directions agree."""
        forward = {number: key for key, numbers in self._held.items() for number in numbers}
        assert forward == self._holder, f"holdings {forward} and holders {self._holder} differ"
        assert all(number in self for number in self._holder), f"a number outside {self.first}..{self.last} is held"
