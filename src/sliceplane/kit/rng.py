"""A small seeded generator (SplitMix64), so that cores draw the same numbers from the same seed on
every interpreter, version and PYTHONHASHSEED.

Not for secrets: shells draw those from the operating system.
"""

from __future__ import annotations

_MASK = (1 << 64) - 1


class Rng:
    """Deterministic numbers from one integer seed.  Owned by its maker; not shared between
    tasks.
    """

    __slots__ = ("_state",)

    def __init__(self, seed: int) -> None:
        self._state = seed & _MASK

    def bits64(self) -> int:
        self._state = (self._state + 0x9E3779B97F4A7C15) & _MASK
        z = self._state
        z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & _MASK
        return z ^ (z >> 31)

    def below(self, bound: int) -> int:
        """An integer in ``[0, bound)``."""
        assert bound > 0, f"bound {bound} must be positive"
        return self.bits64() % bound

    def uniform(self, low: float, high: float) -> float:
        return low + (high - low) * (self.bits64() >> 11) / (1 << 53)

    def text(self, length: int, alphabet: str) -> str:
        return "".join(alphabet[self.below(len(alphabet))] for _ in range(length))

    def uuid(self) -> str:
        """A version 4 UUID in its usual spelling."""
        value = (self.bits64() << 64) | self.bits64()
        value = (value & ~(0xF << 76)) | (4 << 76)
        value = (value & ~(0x3 << 62)) | (2 << 62)
        digits = f"{value:032x}"
        return f"{digits[:8]}-{digits[8:12]}-{digits[12:16]}-{digits[16:20]}-{digits[20:]}"

    def fork(self) -> Rng:
        """An independent generator; the parent moves on by one draw."""
        return Rng(self.bits64())
