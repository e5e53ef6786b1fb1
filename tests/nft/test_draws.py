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

from sliceplane.node.nft.draws import (
    DRAWS,
    ROOMS,
    RoomPlaces,
    commands_of,
    endpoints_of,
    members_of,
    placed,
)
from sliceplane.node.nft.layout import steps
from sliceplane.node.nft.objects import AddElements, AddRule, DeleteElements, DnatTarget, FlushChain
from sliceplane.node.nft.slots import TARGETS_PER_CHAIN_MAX
from sliceplane.node.nft.statements import Draw, Jump

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
            room
            for room in ROOMS
            if members_of(room).name in found and found[members_of(room).name].elements
        ]


def test_one_endpoint_more_or_less_is_one_element() -> None:
    room = Room()
    for endpoints in (pods(6), pods(5), pods(4, 2), [*pods(4, 2), *pods(3, 20)][:5]):
        transaction = room.have(endpoints)
        assert touches_no_chain(transaction)
        changed = [
            len(command.items if isinstance(command, AddElements) else command.keys)
            for command in transaction.commands
            if isinstance(command, AddElements | DeleteElements)
        ]
        assert changed == [1]
        assert room.machine.send() == evenly(*(f"{ip} 8080" for ip in endpoints))


def test_a_larger_room_is_there_before_anybody_is_led_to_it() -> None:
    """In a step of its own, and each step sees whose table it is."""
    room = Room()
    transaction = room.have(pods(17))
    first, second = steps(transaction)
    assert not touches_no_chain(first)
    assert touches_no_chain(second)
    assert all(isinstance(step.commands[0], FlushChain) for step in (first, second))
    assert first.commands[1:] == commands_of(64)
    assert room.rooms == [64]
    assert touches_no_chain(room.have(pods(12))), "to a room that was made before"
    assert room.rooms == [16]
    assert len(steps(room.have(pods(20)))) == 1, "in one step, too"


def test_a_room_is_kept_while_it_is_not_too_large() -> None:
    room = Room()
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
        room.have(pods(count))
        assert room.rooms == ([expected] if expected else [])
        assert room.machine.send() == evenly(*(f"{ip} 8080" for ip in pods(count)))
    assert not any(elements(room.machine, endpoints_of(size).name) for size in (4, 16, 64)), (
        "nobody is left behind"
    )


def test_rooms_are_large_enough_and_draws_many_enough() -> None:
    assert ROOMS[-1] == TARGETS_PER_CHAIN_MAX
    assert Fraction(13, 16) ** DRAWS < Fraction(1, NUMGEN_VALUES**2)


@pytest.mark.parametrize("room", ROOMS[:3])
def test_the_rules_of_a_room_draw_so_often(room: int) -> None:
    rules: dict[str, list[Any]] = {}
    for command in commands_of(room):
        if isinstance(command, AddRule):
            rules.setdefault(command.chain, []).append(command.rule.statements[-1])

    def draws(chain: str) -> int:
        return sum(1 if isinstance(part, Draw) else draws(part.chain) for part in rules[chain])

    (begin,) = (part.chain for part in rules["cluster-ip-endpoints"] if isinstance(part, Jump))
    assert draws(begin) == DRAWS


numbers = st.lists(st.integers(1, 40), unique=True, min_size=2, max_size=30).map(tuple)


@given(numbers, numbers)
def test_who_stays_keeps_the_number(before: tuple[int, ...], after: tuple[int, ...]) -> None:
    held = placed(targets(*before))
    new = placed(targets(*after), held)
    assert new.holds(targets(*after))
    assert not new.holds(targets(*after, 99))
    assert new.targets[-1] is not None
    assert len(new.targets) <= new.room
    assert new.room * 3 < len(after) * 16 <= new.room * 16
    if new.room == held.room:
        for number, target in enumerate(held.targets):
            assert target not in targets(*after) or new.targets[number] == target


def test_a_hole_is_filled_first() -> None:
    held = RoomPlaces(16, (*targets(1, 2), None, *targets(3)))
    assert placed(targets(1, 2, 3, 4), held).targets == targets(1, 2, 4, 3)
    assert placed(targets(1, 2), held).targets == targets(1, 2)


def test_other_ports_and_addresses_draw_from_nothing() -> None:
    machine = Machine()
    ports = [{"name": p.lower(), "port": 80, "protocol": p} for p in ("TCP", "UDP")]
    machine.put(service(ports=ports), make_slice(["10.0.0.1", "10.0.0.2"], ports=ports))
    assert machine.send(VIP, 80, "udp") == evenly("10.0.0.1 80", "10.0.0.2 80")
    assert machine.send(VIP, 81) != machine.send(VIP, 80)
    assert machine.send("203.0.113.9", saddr=CLIENT) == evenly("203.0.113.9 80")
