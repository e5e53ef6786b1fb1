"""The cache against one that keeps a list of everything that ever happened."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from tests.effort import machine

from sliceplane.dns.forwarding.cache import AnswerCache, CacheKey
from sliceplane.dns.forwarding.counts import ForwardCounts
from sliceplane.dns.forwarding.message import Content, WholeRecord
from sliceplane.dns.wire import NXDOMAIN, SOA, A, name_of

KEYS = [
    CacheKey(name_of(f"n{number}.example."), A, do, cd=False)
    for number in range(6)
    for do in (False, True)
]


def an_answer(number: int, ttl: int) -> Content:
    return Content(0, (WholeRecord(name_of("n."), A, ttl, bytes((10, 0, 0, number))),), ttl=ttl)


def a_denial(number: int, ttl: int) -> Content:
    return Content(
        NXDOMAIN, (), (WholeRecord(name_of("n."), SOA, ttl, bytes(21) + bytes((number,))),), ttl=ttl
    )


@dataclass
class Happened:
    """All puts, and all uses of what was put: the newest put of a question counts, unless it had to
    give place.
    """

    entries_max: int
    puts: list[tuple[CacheKey, Content, float, list[int]]] = field(default_factory=list)
    clock: int = 0

    def tick(self) -> int:
        self.clock += 1
        return self.clock

    def put(self, key: CacheKey, content: Content, now: float) -> None:
        self.puts = [one for one in self.puts if one[0] != key]
        if content.ttl > 0:
            self.puts.append((key, content, now, [self.tick()]))
        alike = [one for one in self.puts if one[1].is_denial == content.is_denial]
        if len(alike) > self.entries_max:
            self.puts.remove(min(alike, key=lambda one: one[3][-1]))

    def get(self, key: CacheKey, now: float) -> tuple[Content, int] | None:
        for put_key, content, at, uses in self.puts:
            if put_key == key and now < at + content.ttl:
                uses.append(self.tick())
                return content, int(now - at)
        return None

    def stale(self, key: CacheKey, now: float, stale_s: float) -> Content | None:
        return next(
            (c for k, c, at, _ in self.puts if k == key and now < at + c.ttl + stale_s), None
        )


class CacheMachine(RuleBasedStateMachine):
    @initialize(entries_max=st.integers(1, 8), stale_s=st.sampled_from((0.0, 50.0)))
    def start(self, entries_max: int, stale_s: float) -> None:
        self.cache = AnswerCache(ForwardCounts("test"), entries_max=entries_max, stale_s=stale_s)
        self.oracle = Happened(entries_max)
        self.now = 100.0
        self.failures: dict[CacheKey, tuple[float, int]] = {}

    @rule(
        key=st.sampled_from(KEYS),
        number=st.integers(0, 99),
        ttl=st.integers(0, 60),
        denial=st.booleans(),
    )
    def put(self, key: CacheKey, number: int, ttl: int, denial: bool) -> None:
        content = (a_denial if denial else an_answer)(number, ttl)
        self.cache.put(key, content, self.now)
        self.oracle.put(key, content, self.now)
        self.failures.pop(key, None)

    @rule(key=st.sampled_from(KEYS))
    def get(self, key: CacheKey) -> None:
        hit = self.cache.get(key, self.now)
        assert (None if hit is None else tuple(hit)) == self.oracle.get(key, self.now)

    @rule(key=st.sampled_from(KEYS))
    def get_stale(self, key: CacheKey) -> None:
        assert self.cache.get_stale(key, self.now) == self.oracle.stale(
            key, self.now, self.cache.stale_s
        )

    @precondition(lambda self: len(self.failures) < self.cache.entries_max)
    @rule(key=st.sampled_from(KEYS))
    def fail(self, key: CacheKey) -> None:
        count = self.failures.get(key, (0.0, 0))[1]
        self.failures[key] = (self.now + min(2**count, 5), count + 1)
        self.cache.put_failure(key, self.now)

    @rule(key=st.sampled_from(KEYS))
    def ask_for_a_failure(self, key: CacheKey) -> None:
        assert self.cache.has_failed(key, self.now) == (
            key in self.failures and self.now < self.failures[key][0]
        )

    @rule(seconds=st.sampled_from((0.25, 1.0, 3.0, 30.0)))
    def wait(self, seconds: float) -> None:
        self.now += seconds

    @rule()
    def clear(self) -> None:
        self.cache.clear()
        self.oracle.puts.clear()
        self.failures.clear()

    @invariant()
    def holds(self) -> None:
        self.cache.check()


TestCache = CacheMachine.TestCase
TestCache.settings = machine(100)


@pytest.mark.parametrize("make", [an_answer, a_denial])
def test_bytes_are_bounded_and_what_was_not_used_longest_gives_place(make: object) -> None:
    counts = ForwardCounts("test")
    cache = AnswerCache(counts, bytes_max=20_000)
    for number in range(200):
        cache.put(CacheKey(name_of(f"n{number}."), A, do=False, cd=False), make(number, 60), 0.0)  # type: ignore[operator]
        assert cache.get(CacheKey(name_of("n0."), A, do=False, cd=False), 1.0) is not None
        cache.check()
    shelf = "denial" if make is a_denial else "success"
    assert 20 < counts.entries[shelf].value < 40  # type: ignore[index]
    assert counts.evictions[shelf].value == 200 - counts.entries[shelf].value  # type: ignore[index]


def test_a_flood_of_names_that_are_not_there_takes_no_answer_away() -> None:
    cache = AnswerCache(ForwardCounts("test"), entries_max=10)
    cache.put(KEYS[0], an_answer(1, 60), 0.0)
    for number in range(1000):
        key = CacheKey(name_of(f"x{number}."), A, do=False, cd=False)
        cache.put(key, a_denial(1, 60), 1.0)
        cache.put_failure(key, 1.0)
    assert cache.get(KEYS[0], 2.0) is not None
    cache.check()


@pytest.mark.parametrize("make", [an_answer, a_denial])
@pytest.mark.parametrize("bounds", [{"entries_max": 40}, {"bytes_max": 30_000}])
def test_a_client_that_asks_for_thousands_of_names_leaves_others_half_of_the_cache(
    make: object, bounds: dict[str, int]
) -> None:
    cache = AnswerCache(ForwardCounts("test"), **bounds)  # type: ignore[arg-type]
    for key in KEYS:
        cache.put(key, make(1, 60), 0.0, "modest")  # type: ignore[operator]
    for number in range(2000):
        key = CacheKey(name_of(f"x{number}."), A, do=False, cd=False)
        cache.put(key, make(1, 60), 1.0, "greedy")  # type: ignore[operator]
        assert cache.get(key, 1.0) is not None
        cache.check()
    assert all(cache.get(key, 2.0) is not None for key in KEYS)
    for number in range(10):
        cache.put(
            CacheKey(name_of(f"y{number}."), A, do=False, cd=False), make(1, 60), 3.0, "later"
        )  # type: ignore[operator]
        cache.check()
    assert cache.get(CacheKey(name_of("y0."), A, do=False, cd=False), 4.0) is not None


def test_what_is_larger_than_the_cache_is_not_kept() -> None:
    cache = AnswerCache(ForwardCounts("test"), bytes_max=1000)
    cache.put(KEYS[0], an_answer(1, 60), 0.0)
    cache.put(KEYS[0], Content(0, (WholeRecord(b"\0", 16, 60, bytes(5000)),), ttl=60), 0.0)
    assert cache.get(KEYS[0], 1.0) is None
    cache.check()
