"""Endpoints that failed: out for a while, never more than half, and back at once when a request
goes well.
"""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from sliceplane.consume.balancing.ejection import FAILED_MAX, FIRST_S, LONGEST_S, Ejections
from sliceplane.consume.balancing.model import Endpoint
from sliceplane.consume.balancing.pool import EndpointPool


def pool_of(*names: str) -> EndpointPool:
    pool = EndpointPool()
    for name in names:
        pool.put(Endpoint(id=name, address="10.0.0.1"))
    return pool


def test_longer_with_each_failure_and_forgotten_with_a_success() -> None:
    ejections, pool = Ejections(), pool_of("a", "b", "c", "d")
    now = 0.0
    for expected in (FIRST_S, 2.0, 4.0, 8.0, 16.0, LONGEST_S, LONGEST_S):
        ejections.on_failure("a", now)
        assert ejections.out(pool, now + expected - 0.01) == {"a"}
        now += expected
        assert ejections.out(pool, now) == frozenset()
    ejections.on_success("a")
    ejections.on_failure("a", now)
    assert ejections.out(pool, now + FIRST_S) == frozenset()


def test_one_of_one_is_never_out() -> None:
    ejections = Ejections()
    ejections.on_failure("a", 0.0)
    assert ejections.out(pool_of("a"), 0.0) == frozenset()
    assert ejections.out(pool_of("a", "b"), 0.0) == {"a"}
    assert ejections.out(pool_of("a"), 0.0) == frozenset(), "the other one has gone meanwhile"


def test_what_is_remembered_is_bounded() -> None:
    ejections = Ejections()
    for number in range(3 * FAILED_MAX):
        ejections.on_failure(f"e{number}", float(number))
        ejections.check()
    assert ejections.failures(f"e{3 * FAILED_MAX - 1}") == 1
    assert ejections.failures("e0") == 0


_NAMES = "abcdef"
_DEEDS = st.lists(
    st.tuples(
        st.sampled_from(["fail", "succeed", "remove", "wait"]),
        st.sampled_from(_NAMES),
        st.floats(0, 20),
    ),
    max_size=60,
)


@given(_DEEDS, st.integers(0, 6))
def test_as_a_plain_account_of_failures(deeds: list[tuple[str, str, float]], size: int) -> None:
    ejections, now = Ejections(), 0.0
    #: by name: failures in a row, and out until; in the order of the last failure
    account: dict[str, tuple[int, float]] = {}
    for deed, name, seconds in deeds:
        match deed:
            case "fail":
                count = account.pop(name, (0, 0.0))[0] + 1
                account[name] = count, now + min(FIRST_S * 2 ** (count - 1), LONGEST_S)
                ejections.on_failure(name, now)
            case "succeed":
                account.pop(name, None)
                ejections.on_success(name)
            case "remove":
                account.pop(name, None)
                ejections.on_removed(name)
            case "wait":
                now += seconds
        members = _NAMES[:size]
        failing = [each for each, (_, until) in account.items() if until > now and each in members]
        allowed = len(members) // 2
        expected = set(failing[-allowed:]) if allowed else set()
        assert ejections.out(pool_of(*members), now) == expected
        ejections.check()
