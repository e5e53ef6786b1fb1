"""What users hold against a model that counts anew; and what one of them can take from the
others.
"""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from tests.effort import effort

from sliceplane.kit.shares import Shares
from sliceplane.server.fairness.defaults import LEVELS
from sliceplane.server.fairness.types import Level

BY_NAME = {level.name: level for level in LEVELS}
LOW, NODES, EXEMPT = BY_NAME["workload-low"], BY_NAME["node-high"], BY_NAME["exempt"]


def take_all(shares: Shares, user: str, level: Level = LOW) -> int:
    count = 0
    while shares.take(user, standing=level.standing):
        count += 1
    return count


def test_one_user_gets_half_and_whoever_comes_later_finds_room() -> None:
    shares = Shares(1000)
    assert take_all(shares, "hog") == 450
    assert take_all(shares, "second") == 225
    assert shares.take("third")


def test_workloads_together_leave_the_last_tenth_to_nodes_and_leaders() -> None:
    shares = Shares(1000)
    for number in range(2000):
        take_all(shares, f"robot-{number}")
    assert shares.total == 900
    assert take_all(shares, "system:node:n1", NODES) == 50
    assert take_all(shares, "admin", EXEMPT) == 50


def test_no_user_gets_more_than_most_each() -> None:
    assert take_all(Shares(1000, most_each=32), "hog") == 32


def test_a_user_alone_gets_the_only_one() -> None:
    assert take_all(Shares(1), "jane") == 1
    assert Shares(1).take("jane", 5), "one that is larger than all there is would never get in"


@given(
    st.lists(
        st.tuples(st.sampled_from("abc"), st.sampled_from(["take", "give"]), st.integers(1, 40))
    )
)
@effort(100)
def test_against_a_list(steps: list[tuple[str, str, int]]) -> None:
    levels = {"a": LOW, "b": NODES, "c": EXEMPT}
    shares, held, refused = Shares(100), [], 0
    for user, what, amount in steps:
        if what == "give":
            if (user, amount) in held:
                held.remove((user, amount))
                shares.release(user, amount)
            continue
        total = sum(size for _, size in held)
        mine = sum(size for name, size in held if name == user)
        left = (90 if user == "a" else 100) - total
        may = not held or (amount if user == "c" else mine + amount) <= left
        assert shares.take(user, amount, levels[user].standing) == may
        held += [(user, amount)] if may else []
        refused += not may
        shares.check()
        assert (shares.total, shares.refused) == (sum(size for _, size in held), refused)
        assert shares.used_by(user) == sum(size for name, size in held if name == user)
