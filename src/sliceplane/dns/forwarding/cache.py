"""Cache of upstreams' answers until their TTL ends.

It has two shelves, one for answers and one for denials (RFC 2308), so that a flood of absent names
evicts no answer; a question is on one shelf at most. Each shelf is bounded in entries and bytes,
and evicts the least recently used entry. If the client of a new answer owns more than half of the
shelf, one of its own entries is evicted, so that no client can empty the cache. Failures are cached
separately (RFC 9520): first for a second, then twice as long each time, up to five seconds.

With ``stale_s``, an answer is retained for that time after its TTL, and used if no upstream answers
(RFC 8767).
"""

from __future__ import annotations

from typing import Final, NamedTuple

from sliceplane.dns.forwarding.counts import SHELVES, ForwardCounts, Shelf
from sliceplane.dns.forwarding.message import Content
from sliceplane.kit.delays import Backoff

#: entries of each shelf; the same as in CoreDNS
ENTRIES_MAX: Final = 9984
#: bytes of each shelf: names, data and overhead of entries
BYTES_MAX: Final = 16 << 20
TTL_MAX_S: Final = 3600
DENIAL_TTL_MAX_S: Final = 1800
#: TTL of stale answers (RFC 8767, 4)
STALE_TTL_S: Final = 30
_FAILURE: Final = Backoff(base_s=1.0, cap_s=5.0)

_ENTRY_BYTES: Final = 400
_RECORD_BYTES: Final = 200


class CacheKey(NamedTuple):
    """A question to upstreams: ``name`` in lower case, and the flags DO and CD, which change the
    answer.
    """

    name: bytes
    kind: int
    do: bool
    cd: bool


class CacheHit(NamedTuple):
    content: Content
    age_s: int


class _Entry(NamedTuple):
    content: Content
    stored_at: float
    size: int
    account: str


class _ClientEntries:
    """Entries of one client on one shelf, the least recently used first, and their size."""

    __slots__ = ("keys", "size")

    def __init__(self) -> None:
        self.keys: dict[CacheKey, None] = {}
        self.size = 0


class AnswerCache:
    """The cache.  Owned by the forwarder.  All operations are O(1)."""

    def __init__(
        self,
        counts: ForwardCounts,
        *,
        entries_max: int = ENTRIES_MAX,
        bytes_max: int = BYTES_MAX,
        stale_s: float = 0.0,
    ) -> None:
        self.entries_max = entries_max
        self.bytes_max = bytes_max
        self.stale_s = stale_s
        self._counts = counts
        #: entries in the order of use, the least recently used first
        self._shelves: dict[Shelf, dict[CacheKey, _Entry]] = {shelf: {} for shelf in SHELVES}
        self._bytes = dict.fromkeys(SHELVES, 0)
        self._owned: dict[Shelf, dict[str, _ClientEntries]] = {shelf: {} for shelf in SHELVES}
        #: end and number of consecutive failures, the oldest first
        self._failures: dict[CacheKey, tuple[float, int]] = {}

    def get(self, key: CacheKey, now: float) -> CacheHit | None:
        """Returns the cached answer to *key* whose TTL has not ended, if any."""
        self._counts.requests.value += 1
        for shelf, entries in self._shelves.items():
            entry = entries.get(key)
            if entry is not None and now < entry.stored_at + entry.content.ttl:
                entries[key] = entries.pop(key)
                owned = self._owned[shelf][entry.account].keys
                owned[key] = owned.pop(key)
                self._counts.hits[shelf].value += 1
                return CacheHit(entry.content, int(now - entry.stored_at))
        self._counts.misses.value += 1
        return None

    def get_stale(self, key: CacheKey, now: float) -> Content | None:
        """Returns the cached answer to *key*, even a stale one, for use when no upstream answers."""
        for entries in self._shelves.values():
            entry = entries.get(key)
            if entry is not None and now < entry.stored_at + entry.content.ttl + self.stale_s:
                return entry.content
        return None

    def put(self, key: CacheKey, content: Content, now: float, account: str = "") -> None:
        """Caches the answer of an upstream in place of an earlier answer or failure.  *account*:
        that of the client that asked first.
        """
        self._failures.pop(key, None)
        for shelf in SHELVES:
            self._remove(shelf, key)
        size = _size(key, content)
        if content.ttl <= 0 or size > self.bytes_max:
            return
        shelf = "denial" if content.is_denial else "success"
        self._shelves[shelf][key] = _Entry(content, now, size, account)
        self._bytes[shelf] += size
        owned = self._owned[shelf].setdefault(account, _ClientEntries())
        owned.keys[key] = None
        owned.size += size
        while len(self._shelves[shelf]) > self.entries_max or self._bytes[shelf] > self.bytes_max:
            self._remove(shelf, self._select_evicted(shelf, owned))
            self._counts.evictions[shelf].value += 1
        self._counts.entries[shelf].value = len(self._shelves[shelf])

    def _select_evicted(self, shelf: Shelf, owned: _ClientEntries) -> CacheKey:
        entries = self._shelves[shelf]
        owns_most = 2 * owned.size > self._bytes[shelf] or 2 * len(owned.keys) > len(entries)
        return next(iter(owned.keys if owns_most else entries))

    def put_failure(self, key: CacheKey, now: float) -> None:
        """Caches that no upstream answered."""
        _, failures = self._failures.pop(key, (0.0, 0))
        self._failures[key] = (now + _FAILURE.delay_s(failures), failures + 1)
        if len(self._failures) > self.entries_max:
            del self._failures[next(iter(self._failures))]

    def has_failed(self, key: CacheKey, now: float) -> bool:
        """Returns True if *key* failed recently and must not be retried yet."""
        return now < self._failures.get(key, (now, 0))[0]

    def clear(self) -> None:
        """Clears the cache: new upstreams may answer differently."""
        self._failures.clear()
        for shelf in SHELVES:
            self._shelves[shelf].clear()
            self._owned[shelf].clear()
            self._bytes[shelf] = 0
            self._counts.entries[shelf].value = 0

    def _remove(self, shelf: Shelf, key: CacheKey) -> None:
        entry = self._shelves[shelf].pop(key, None)
        if entry is not None:
            self._bytes[shelf] -= entry.size
            owned = self._owned[shelf][entry.account]
            del owned.keys[key]
            owned.size -= entry.size
            if not owned.keys:
                del self._owned[shelf][entry.account]
            self._counts.entries[shelf].value = len(self._shelves[shelf])

    def check(self) -> None:
        assert not self._shelves["denial"].keys() & self._shelves["success"].keys(), (
            "a question is on two shelves"
        )
        assert len(self._failures) <= self.entries_max
        for shelf, entries in self._shelves.items():
            assert len(entries) <= self.entries_max, (shelf, len(entries))
            assert (
                self._bytes[shelf]
                == sum(entry.size for entry in entries.values())
                <= self.bytes_max
            ), shelf
            assert self._counts.entries[shelf].value == len(entries), shelf
            owned = self._owned[shelf]
            assert sum(of.size for of in owned.values()) == self._bytes[shelf], shelf
            assert {key for of in owned.values() for key in of.keys} == entries.keys(), shelf
            for key, entry in entries.items():
                assert entry.content.ttl > 0, key
                assert entry.content.is_denial == (shelf == "denial"), key


def _size(key: CacheKey, content: Content) -> int:
    records = (*content.answer, *content.authority)
    return (
        _ENTRY_BYTES
        + len(key.name)
        + sum(_RECORD_BYTES + len(r.owner) + len(r.data) for r in records)
    )
