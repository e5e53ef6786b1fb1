"""Answers of upstreams, kept for as long as they say.

Two shelves, one for answers and one for denials (RFC 2308), so that a flood of names that are not
there takes no answer away; a question is on one of them at most. Each is bounded in entries and
bytes, and gives up what was not asked for longest; if the client of a new answer has more than half
of a shelf, it gives up one of that client's, so that no client empties the cache of all others. A
third remembers failures (RFC 9520): the first for a second, then for twice as long each time, at
most five.

With ``stale_s`` an answer is kept so much longer, to be used where no upstream gives a new one (RFC
8767).
"""

from __future__ import annotations

from typing import Final, NamedTuple

from sliceplane.dns.forwarding.counts import SHELVES, ForwardCounts, Shelf
from sliceplane.dns.forwarding.message import Content
from sliceplane.kit.delays import Backoff

#: of each shelf; as many as CoreDNS has
ENTRIES_MAX: Final = 9984
#: of each shelf: names, data and what an entry costs besides
BYTES_MAX: Final = 16 << 20
TTL_MAX_S: Final = 3600
DENIAL_TTL_MAX_S: Final = 1800
#: what stale answers are given out with (RFC 8767, 4)
STALE_TTL_S: Final = 30
_FAILURE: Final = Backoff(base_s=1.0, cap_s=5.0)

_ENTRY_BYTES: Final = 400
_RECORD_BYTES: Final = 200


class CacheKey(NamedTuple):
    """A question as upstreams are asked it: ``name`` in lower case, DO and CD, for they change the
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


class _Owned:
    """Entries of one client on one shelf, the longest unused first, and their size."""

    __slots__ = ("keys", "size")

    def __init__(self) -> None:
        self.keys: dict[CacheKey, None] = {}
        self.size = 0


class AnswerCache:
    """Owned by the forwarder.  All work is O(1)."""

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
        #: in the order of use, the longest unused first
        self._shelves: dict[Shelf, dict[CacheKey, _Entry]] = {shelf: {} for shelf in SHELVES}
        self._bytes = dict.fromkeys(SHELVES, 0)
        self._owned: dict[Shelf, dict[str, _Owned]] = {shelf: {} for shelf in SHELVES}
        #: until when, and how many in a row; the oldest first
        self._failures: dict[CacheKey, tuple[float, int]] = {}

    def get(self, key: CacheKey, now: float) -> CacheHit | None:
        """What may be answered now."""
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
        """What may be answered where no upstream answers."""
        for entries in self._shelves.values():
            entry = entries.get(key)
            if entry is not None and now < entry.stored_at + entry.content.ttl + self.stale_s:
                return entry.content
        return None

    def put(self, key: CacheKey, content: Content, now: float, account: str = "") -> None:
        """An upstream answered; what was known before is gone, and so is a failure. *account*: of
        the client that asked first.
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
        owned = self._owned[shelf].setdefault(account, _Owned())
        owned.keys[key] = None
        owned.size += size
        while len(self._shelves[shelf]) > self.entries_max or self._bytes[shelf] > self.bytes_max:
            self._remove(shelf, self._next_to_go(shelf, owned))
            self._counts.evictions[shelf].value += 1
        self._counts.entries[shelf].value = len(self._shelves[shelf])

    def _next_to_go(self, shelf: Shelf, owned: _Owned) -> CacheKey:
        entries = self._shelves[shelf]
        has_most = 2 * owned.size > self._bytes[shelf] or 2 * len(owned.keys) > len(entries)
        return next(iter(owned.keys if has_most else entries))

    def put_failure(self, key: CacheKey, now: float) -> None:
        """No upstream answered."""
        _, failures = self._failures.pop(key, (0.0, 0))
        self._failures[key] = (now + _FAILURE.delay_s(failures), failures + 1)
        if len(self._failures) > self.entries_max:
            del self._failures[next(iter(self._failures))]

    def has_failed(self, key: CacheKey, now: float) -> bool:
        """So lately that it is not tried again yet."""
        return now < self._failures.get(key, (now, 0))[0]

    def clear(self) -> None:
        """There are other upstreams now, which may know other names."""
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
