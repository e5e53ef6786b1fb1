"""A table that replaces another: no packet that is under way meanwhile is refused."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from tests.effort import scaled
from tests.nft.fake import FakeKernel
from tests.nft.machine import DROPPED, NODE, REJECT, VIP, Machine, evenly, make_slice, service
from tests.nft.random_world import FAMILIES, RULES, World, tell

from sliceplane.kit.rng import Rng
from sliceplane.node.nft.buckets import bucket_set
from sliceplane.node.nft.layout import SERVICE_IPS, SINGLE_ENDPOINTS, steps
from sliceplane.node.nft.objects import FlushChain, TableContents, Transaction
from sliceplane.node.nft.table import nft_plane
from sliceplane.node.nft.trace import Packet, trace
from sliceplane.node.plane import NodePlaneConfig


def overtaken(by: TableContents) -> TableContents:
    """What a packet meets that the table *by* overtakes in the chain ``services`` of the one
    before: maps without elements, and then the checks of *by*.
    """
    met = copy.deepcopy(by)
    for name in (SERVICE_IPS.name, SINGLE_ENDPOINTS.name, bucket_set(4).name):
        if name in met.containers:
            met.containers[name].elements.clear()
    return met


def first_write(*objects: Any) -> tuple[Machine, Transaction]:
    machine = Machine()
    machine.put(*objects)
    transaction = machine.plane.take_transaction(0.0)
    assert transaction is not None
    assert transaction.full
    return machine, transaction


@pytest.mark.parametrize("endpoints", [["10.0.0.1"], ["10.0.0.1", "10.0.0.2"]])
def test_who_is_overtaken_is_dropped_not_refused(endpoints: list[str]) -> None:
    machine, transaction = first_write(service(), make_slice(endpoints))
    first, second = steps(transaction)
    machine.kernel.run(first)
    table = machine.kernel.tables[machine.ref]
    packet = Packet("10.0.9.9", VIP, "tcp", 80)
    assert trace(overtaken(table), packet) == DROPPED
    assert trace(table, packet) == evenly(*(f"{ip} 8080" for ip in endpoints)), "all others arrive"
    machine.kernel.run(second)
    table = machine.kernel.tables[machine.ref]
    assert trace(overtaken(table), packet) == REJECT
    assert trace(table, packet) == evenly(*(f"{ip} 8080" for ip in endpoints))


def test_the_second_step_sees_whose_table_it_is() -> None:
    _, transaction = first_write(service())
    _, second = steps(transaction)
    guard = second.commands[0]
    assert isinstance(guard, FlushChain)
    assert guard.name.startswith("writer-")
    assert not second.full


def test_a_change_is_one_step() -> None:
    machine, transaction = first_write(service(), make_slice(["10.0.0.1"]))
    machine.kernel.run(transaction)
    machine.plane.on_success(0.0)
    machine.put(make_slice(["10.0.0.2"], version=2))
    change = machine.plane.take_transaction(10.0)
    assert change is not None
    assert steps(change) == (change,)


def test_both_steps_make_what_one_would() -> None:
    for seed in range(scaled(40)):
        world = World(Rng(seed), 4)
        planes = [
            nft_plane(family, NodePlaneConfig(node_name=NODE, rules=RULES)) for family in FAMILIES
        ]
        for _ in range(30):
            old, new = world.event()
            for plane in planes:
                tell(plane, old, new, 0.0)
        at_once, by_steps = FakeKernel(), FakeKernel()
        for plane in planes:
            plane.on_synced(0.0)
            transaction = plane.take_transaction(0.0)
            assert transaction is not None
            at_once.run(transaction)
            for step in steps(transaction):
                by_steps.run(step)
        assert by_steps.tables == at_once.tables
