"""The contents of a cache as one number: the XOR of a 64-bit hash of every object's key and
version.

Two caches of one resource that stand for the same version hold the same objects exactly if their
digests are equal, but for a chance of one in 2^64. A change costs two hashes, whatever there is
besides, so both ends of a watch keep theirs, and a node that lost an event is found by comparing
sixteen digits (``consume.progress``, ``consume.node_caches``).

The hash is the same in every process and release: keys by BLAKE2b, once for each object; versions,
which are numbers on every server that we know of, mixed in by two rounds of multiplication and
folding. CRCs would not do: of two events that were lost together, one can undo what the other did
to the sum.
"""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import blake2b
from typing import Final

from sliceplane.api.meta import Object

_MASK: Final = 2**64 - 1
#: odd numbers without a pattern in their bits: 2^64 over the golden ratio, and one with about as
#: many ones as zeros
_FIRST: Final = 0x9E3779B97F4A7C15
_SECOND: Final = 0xD6E8FEB86659FD93


class Terms:
    """The contributions of objects to digests. Keeps two numbers for each object."""

    def __init__(self) -> None:
        #: by key: its hash, and what the object added last
        self._keys: dict[str, int] = {}
        self._terms: dict[str, int] = {}

    def __len__(self) -> int:
        return len(self._keys)

    def of(self, old: Object | None, new: Object | None) -> tuple[int, int]:
        """Returns the terms of a change (``watch.cache.Change``): of the old version and of the new
        one; 0 for none.
        """
        if new is None:
            assert old is not None, "a change has an old or a new object"
            key = old.metadata.key
            self._keys.pop(key, None)
            return self._terms.pop(key, 0), 0
        meta = new.metadata
        key, version = meta.key, meta.resource_version
        base = self._keys.get(key)
        if base is None:
            base = self._keys[key] = _hash(key)
        # Spelled out: this is done for every event, and a call would cost as much again.
        mixed = (
            (base ^ (int(version) if len(version) < 20 and version.isdecimal() else _hash(version)))
            * _FIRST
        ) & _MASK
        mixed = ((mixed ^ (mixed >> 32)) * _SECOND) & _MASK
        mixed ^= mixed >> 32
        goes = self._terms.get(key, 0)
        self._terms[key] = mixed
        return goes, mixed


class Digest:
    """The digest of all observed objects. O(1) a change."""

    def __init__(self) -> None:
        self._terms = Terms()
        self.value = 0

    def on_change(self, old: Object | None, new: Object | None) -> None:
        goes, comes = self._terms.of(old, new)
        self.value ^= goes ^ comes

    @property
    def text(self) -> str:
        return digest_text(self.value)

    def check(self) -> None:
        """Nothing is there only if nothing is summed up."""
        assert len(self._terms) or not self.value, f"{self.text} is the digest of nothing"


def digest_text(value: int) -> str:
    return f"{value:016x}"


def digest_of(objects: Iterable[Object]) -> str:
    """Returns the digest of a whole list."""
    digest = Digest()
    for listed in objects:
        digest.on_change(None, listed)
    return digest.text


def digest_of_versions(versions: Iterable[tuple[str, str]]) -> str:
    """The same of keys and versions."""
    value = 0
    for key, version in versions:
        number = int(version) if len(version) < 20 and version.isdecimal() else _hash(version)
        mixed = ((_hash(key) ^ number) * _FIRST) & _MASK
        mixed = ((mixed ^ (mixed >> 32)) * _SECOND) & _MASK
        value ^= mixed ^ (mixed >> 32)
    return digest_text(value)


def _hash(text: str) -> int:
    return int.from_bytes(blake2b(text.encode(), digest_size=8).digest(), "big")
