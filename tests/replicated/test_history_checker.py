"""The checker finds what it is there for: a good history passes, and each planted fault is
named.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest
from tests.replicated.history import Operation, Segment, Truth, Version, check

V1, V2, V3, V4 = (
    Version(2, "ADDED", "a", "v1"),
    Version(3, "MODIFIED", "a", "v2"),
    Version(4, "ADDED", "b", "w1"),
    Version(5, "DELETED", "a", ""),
)
V5 = Version(6, "ADDED", "a", "v5")


def truth() -> Truth:
    return Truth([[V1], [V2, V3], [V4], [V5]])


def operations() -> list[Operation]:
    return [
        Operation("c", "create", "a", 0, 1, "ok", "v1", 2),
        Operation("c", "update", "a", 2, 4, "ok", "v2", 3, condition=2),
        Operation("d", "create", "b", 2, 9, "unknown", "w1"),
        Operation("d", "read", "a", 3, 3.5, "ok", "v1", 2),
        Operation("d", "read", "a", 4.5, 5, "ok", "v2", 3),
        Operation("c", "delete", "a", 6, 7, "ok", condition=3),
        Operation("d", "read", "a", 8, 8.5, "refused", code=404, reason="NotFound"),
        Operation("c", "create", "a", 9, 10, "ok", "v5", 6),
        Operation("d", "create", "a", 11, 12, "refused", "v6", code=409, reason="AlreadyExists"),
        Operation(
            "d", "update", "a", 11, 12, "refused", "v7", condition=3, code=409, reason="Conflict"
        ),
    ]


def segments() -> list[Segment]:
    bookmark = Version(5, "BOOKMARK", "", "")
    return [
        Segment("w", 1, {}, [V1, V2, V3, V4, bookmark, V5]),
        Segment("x", 4, {"a": (3, "v2"), "b": (4, "w1")}, [V4]),
    ]


def test_a_good_history_passes() -> None:
    assert check(truth(), operations(), segments()) == []


def change(index: int, **members: Any) -> Callable[[list[Operation]], list[Operation]]:
    def changed(given: list[Operation]) -> list[Operation]:
        given[index] = dataclasses.replace(given[index], **members)
        return given

    return changed


@pytest.mark.parametrize(
    ("plant", "named"),
    [
        (change(0, revision=7), "acknowledged and lost"),
        (change(0, value="other"), "acknowledged and lost"),
        (change(2, outcome="refused"), "refused and written"),
        (change(4, value="v1", revision=2), "cannot be the effect"),
        (change(4, value="nonsense"), "never written"),
        (change(3, start=1.2, end=1.5, value="v2", revision=3), "cannot be the effect"),
        (change(1, condition=9), "condition did not hold"),
        (change(6, start=4.5, end=5), "explains"),
        (change(8, start=8, end=8.5), "explains"),
        (change(9, condition=6), "explains"),
        (change(7, start=0, end=0.1), "cannot be the effect"),
        (change(5, revision=0, condition=5), "acknowledged and lost"),
    ],
)
def test_a_planted_fault_of_an_operation_is_named(plant: Any, named: str) -> None:
    assert any(named in line for line in check(truth(), plant(operations()), segments()))


def test_a_value_that_is_there_twice_is_named() -> None:
    again = Truth([[V1], [V2, V3], [V4], [V5], [Version(7, "MODIFIED", "b", "w1")]])
    assert any("written twice" in line for line in check(again, operations(), []))


@pytest.mark.parametrize(
    ("events", "state", "named"),
    [
        ([V1, V3, V2], {}, "Ordered"),
        ([V1, V2, V2, V3], {}, "Unique"),
        ([V1, V3], {}, "Reliable"),
        ([V1, V2._replace(value="x"), V3], {}, "Reliable"),
        ([V1, Version(3, "BOOKMARK", "", ""), V2, V3], {}, "Bookmarkable"),
        ([V1, V2, Version(3, "BOOKMARK", "", ""), V3], {}, "Atomic"),
        ([V1, V2, V3, Version(5, "BOOKMARK", "", "")], {}, "Reliable"),
        ([V1], {"a": (2, "v1")}, "Atomic"),
    ],
)
def test_a_planted_fault_of_a_watch_is_named(events: list[Version], state: Any, named: str) -> None:
    assert any(named in line for line in check(truth(), [], [Segment("w", 1, state, events)]))


def test_a_list_of_the_midst_of_a_batch_is_named() -> None:
    segment = Segment("w", 3, {"a": (3, "v2")}, [])
    assert any("midst of a batch" in line for line in check(truth(), [], [segment]))
