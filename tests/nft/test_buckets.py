"""Destinations with several endpoints: one element an endpoint, equal shares, and a room that
fits.
"""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.nft.machine import CLIENT, VIP, Machine, evenly, make_slice, service
from tests.nft.test_single_endpoints import elements, taken, touches_no_chain

from sliceplane.node.nft.buckets import (
    BUCKET_COUNTS,
    NUMGEN_ATTEMPTS,
    Buckets,
    bucket_commands,
    bucket_map,
    bucket_set,
    fill_buckets,
)
from sliceplane.node.nft.layout import steps
from sliceplane.node.nft.objects import AddElements, AddRule, DeleteElements, DnatTarget, FlushChain
from sliceplane.node.nft.slots import TARGETS_PER_CHAIN_MAX
from sliceplane.node.nft.statements import DnatBucket, Jump

NUMGEN_VALUES = 2**32


def pods(count: int, first: int = 1) -> list[str]:
    return [f"10.0.{number >> 8}.{number & 255}" for number in range(first, first + count)]


def targets(*numbers: int) -> tuple[DnatTarget, ...]:
    return tuple(DnatTarget(f"10.0.0.{number}", 80) for number in numbers)


class Room:
    """A Service whose number of endpoints changes."""

    def __init__(self) -> None:
        self.machine = Machine()
        self.version = 1
        self.machine.put(service(), make_slice(pods(5)))
        self.machine.sync()

    def have(self, endpoints: list[str]) -> Any:
        self.version += 1
        self.machine.put(make_slice(endpoints, version=self.version))
        return taken(self.machine)

    @property
    def rooms(self) -> list[int]:
        found = self.machine.kernel.tables[self.machine.ref].containers
        return [
            size
            for size in BUCKET_COUNTS
            if bucket_set(size).name in found and found[bucket_set(size).name].elements
        ]


def test_one_endpoint_more_or_less_is_one_element() -> None:
    bench = Room()
    for endpoints in (pods(6), pods(5), pods(4, 2), [*pods(4, 2), *pods(3, 20)][:5]):
        transaction = bench.have(endpoints)
        assert touches_no_chain(transaction)
        changed = [
            len(command.items if isinstance(command, AddElements) else command.keys)
            for command in transaction.commands
            if isinstance(command, AddElements | DeleteElements)
        ]
        assert changed == [1]
        assert bench.machine.send() == evenly(*(f"{ip} 8080" for ip in endpoints))


def test_a_larger_room_is_there_before_anybody_is_led_to_it() -> None:
    """In a step of its own, and each step sees whose table it is."""
    bench = Room()
    transaction = bench.have(pods(17))
    first, second = steps(transaction)
    assert not touches_no_chain(first)
    assert touches_no_chain(second)
    assert all(isinstance(step.commands[0], FlushChain) for step in (first, second))
    assert first.commands[1:] == bucket_commands(64)
    assert bench.rooms == [64]
    assert touches_no_chain(bench.have(pods(12))), "to a room that was made before"
    assert bench.rooms == [16]
    assert len(steps(bench.have(pods(20)))) == 1, "in one step, too"


def test_a_room_is_kept_while_it_is_not_too_large() -> None:
    bench = Room()
    for count, expected in (
        (16, 16),
        (17, 64),
        (16, 64),
        (13, 64),
        (12, 16),
        (4, 16),
        (3, 4),
        (4, 4),
        (5, 16),
        (1, 0),
    ):
        bench.have(pods(count))
        assert bench.rooms == ([expected] if expected else [])
        assert bench.machine.send() == evenly(*(f"{ip} 8080" for ip in pods(count)))
    assert not any(elements(bench.machine, bucket_map(size).name) for size in (4, 16, 64)), (
        "nobody is left behind"
    )


def test_rooms_are_large_enough_and_draws_many_enough() -> None:
    assert BUCKET_COUNTS[-1] == TARGETS_PER_CHAIN_MAX
    assert Fraction(13, 16) ** NUMGEN_ATTEMPTS < Fraction(1, NUMGEN_VALUES**2)


@pytest.mark.parametrize("size", BUCKET_COUNTS[:3])
def test_the_rules_of_a_room_draw_so_often(size: int) -> None:
    rules: dict[str, list[Any]] = {}
    for command in bucket_commands(size):
        if isinstance(command, AddRule):
            rules.setdefault(command.chain, []).append(command.rule.statements[-1])

    def draws(chain: str) -> int:
        return sum(
            1 if isinstance(part, DnatBucket) else draws(part.chain) for part in rules[chain]
        )

    (begin,) = (part.chain for part in rules["cluster-ip-endpoints"] if isinstance(part, Jump))
    assert draws(begin) == NUMGEN_ATTEMPTS


numbers = st.lists(st.integers(1, 40), unique=True, min_size=2, max_size=30).map(tuple)


@given(numbers, numbers)
def test_who_stays_keeps_the_number(before: tuple[int, ...], after: tuple[int, ...]) -> None:
    held = fill_buckets(targets(*before))
    new = fill_buckets(targets(*after), held)
    assert new.has_only(targets(*after))
    assert not new.has_only(targets(*after, 99))
    assert new.targets[-1] is not None
    assert len(new.targets) <= new.size
    assert new.size * 3 < len(after) * 16 <= new.size * 16
    if new.size == held.size:
        for number, target in enumerate(held.targets):
            assert target not in targets(*after) or new.targets[number] == target


def test_a_hole_is_filled_first() -> None:
    held = Buckets(16, (*targets(1, 2), None, *targets(3)))
    assert fill_buckets(targets(1, 2, 3, 4), held).targets == targets(1, 2, 4, 3)
    assert fill_buckets(targets(1, 2), held).targets == targets(1, 2)


def test_other_ports_and_addresses_draw_from_nothing() -> None:
    machine = Machine()
    ports = [{"name": p.lower(), "port": 80, "protocol": p} for p in ("TCP", "UDP")]
    machine.put(service(ports=ports), make_slice(["10.0.0.1", "10.0.0.2"], ports=ports))
    assert machine.send(VIP, 80, "udp") == evenly("10.0.0.1 80", "10.0.0.2 80")
    assert machine.send(VIP, 81) != machine.send(VIP, 80)
    assert machine.send("203.0.113.9", saddr=CLIENT) == evenly("203.0.113.9 80")
