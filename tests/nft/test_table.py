"""The table against the fake kernel: any history, refused transactions included, means what a fresh
start means.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.nft.fake import FakeError, FakeKernel

from sliceplane.consume.model import ServiceKey
from sliceplane.node.nft import layout
from sliceplane.node.nft.buckets import BUCKET_COUNTS, DIRECT, bucket_map, bucket_set
from sliceplane.node.nft.build import BalancedChain, ServiceObjects
from sliceplane.node.nft.chains import order_targets
from sliceplane.node.nft.elements import RETIRE_AFTER_S
from sliceplane.node.nft.layout import CLUSTER_IPS, SERVICE_IPS
from sliceplane.node.nft.objects import (
    AddElements,
    BalancedTargets,
    DeleteChain,
    DnatTarget,
    NftRule,
    TableContents,
    TableRef,
    deletion,
    goto,
    jump,
)
from sliceplane.node.nft.slots import CHAINS_PER_MAP
from sliceplane.node.nft.statements import Balance
from sliceplane.node.nft.table import NftRules

REF = TableRef("ip", "sliceplane")
DIRECT_NUMBER = 200


def objects(number: int, targets: tuple[int, ...], ip: str = "") -> ServiceObjects:
    """Service *number* with a chain to the targets 10.0.0.x:80; an only one is led to without, if
    *number* is odd, and ``DIRECT_NUMBER`` has no chain ever.
    """
    ip = ip or f"172.30.0.{number}"
    elements: list[Any] = [(CLUSTER_IPS.name, (ip,), None)]
    found = tuple(DnatTarget(f"10.0.0.{target}", 80) for target in targets)
    chains: tuple[BalancedChain, ...] = ()
    if len(found) == 1 and (number % 2 or number == DIRECT_NUMBER):
        elements.append((SERVICE_IPS.name, (ip, "tcp", 80), found[0]))
    elif found and number == DIRECT_NUMBER:
        elements.append((SERVICE_IPS.name, (ip, "tcp", 80), BalancedTargets(found)))
    elif found:
        chains = (BalancedChain(f"service-{number}", "tcp", found),)
        elements.append((SERVICE_IPS.name, (ip, "tcp", 80), jump(chains[0].name)))
    return ServiceObjects(chains, tuple(elements))


def key(number: int) -> ServiceKey:
    return ServiceKey("ns", f"svc-{number:04}")


def meaning(kernel: FakeKernel, ref: TableRef = REF) -> dict[str, Any]:
    """The ruleset without the numbers and rooms that history chose: each balanced chain as its set
    of targets, each destination in a room with its own, and nothing left over.
    """
    table = kernel.tables[ref]
    used: set[tuple[str, tuple[int, ...]]] = set()
    result: dict[str, Any] = {}
    for name, chain in table.chains.items():
        if name.startswith("draw-") or name == DIRECT:
            continue
        shown: list[Any] = []
        for rule in chain.rules:
            (*_, last) = rule.statements
            if isinstance(last, Balance):
                keys = [(last.offset + number,) for number in range(last.count)]
                used.update((last.container, found) for found in keys)
                elements = table.containers[last.container].elements
                shown.append((last.protocol, sorted(elements[found] for found in keys)))  # type: ignore[type-var]  # all are Targets
            else:
                shown.append(rule)
        result[f"chain {name}"] = (chain.hook, shown)
    for room in BUCKET_COUNTS:
        if bucket_set(room).name in table.containers:
            result |= in_room(table, room)
    for name, container in table.containers.items():
        if name.startswith("room-") or (
            container.definition.key[-1] == "numgen" and not container.definition.by_number
        ):
            continue
        if container.definition.by_number:
            left = [found for found in container.elements if (name, found) not in used]
            assert not left, f"{name} has unused targets {left}"
            assert container.elements, f"{name} is empty"
        else:
            result[f"{container.definition.kind} {name}"] = dict(sorted(container.elements.items()))
    return result


def in_room(table: TableContents, room: int) -> dict[str, Any]:
    """Each destination there, with its targets."""
    here: dict[Any, list[Any]] = {
        found: [] for found in table.containers[bucket_set(room).name].elements
    }
    for (*destination, number), target in table.containers[bucket_map(room).name].elements.items():
        assert isinstance(number, int)
        assert number < room
        here[tuple(destination)].append(target)
    assert all(here.values()), f"{here}"
    return {f"several {destination}": sorted(targets) for destination, targets in here.items()}


@dataclass
class Bench:
    """A table and its kernel.  ``sync`` is what a shell does."""

    state: NftRules = field(default_factory=lambda: NftRules(REF))
    kernel: FakeKernel = field(default_factory=FakeKernel)
    now: float = 0.0
    commands: int = 0
    #: what was there before the last step
    before: TableContents | None = None

    def sync(self) -> bool:
        transaction = self.state.take_transaction(self.now)
        self.commands = 0 if transaction is None else len(transaction.commands)
        if transaction is not None:
            try:
                for step in (transaction,) if transaction.full else layout.steps(transaction):
                    self.before = self.kernel.tables.get(REF)
                    self.kernel.run(step)
            except FakeError:
                self.state.on_failure()
                return False
            self.state.on_success(self.now)
        self.state.check()
        return True

    def settle(self) -> None:
        for _ in range(4):
            assert self.sync()
            self.now += RETIRE_AFTER_S
        assert self.state.next_deadline() is None
        assert self.state.take_transaction(self.now) is None


def fresh(services: dict[int, tuple[int, ...]]) -> dict[str, Any]:
    bench = Bench()
    for number, targets in sorted(services.items(), reverse=True):
        bench.state.set_objects(key(number), objects(number, targets))
    assert bench.sync()
    return meaning(bench.kernel)


steps = st.lists(
    st.one_of(
        st.tuples(
            st.just("set"),
            st.sampled_from([1, 2, 3, DIRECT_NUMBER]),
            st.one_of(st.none(), st.lists(st.integers(1, 6), unique=True, max_size=6).map(tuple)),
        ),
        st.tuples(st.just("sync"), st.just(0), st.none()),
        st.tuples(st.just("wait"), st.just(0), st.none()),
        st.tuples(st.just("damage"), st.just(0), st.none()),
    ),
    max_size=40,
)


@given(steps)
def test_any_history_means_what_a_fresh_start_means(history: list[tuple[str, int, Any]]) -> None:
    bench = Bench()
    services: dict[int, tuple[int, ...]] = {}
    assert bench.sync()
    for kind, number, what in history:
        if kind == "set":
            bench.state.set_objects(key(number), None if what is None else objects(number, what))
            if what is None:
                services.pop(number, None)
            else:
                services[number] = what
        elif kind == "sync":
            bench.sync()
        elif kind == "wait":
            bench.now += RETIRE_AFTER_S / 2
        else:
            bench.kernel.run(deletion(REF))
    if not bench.sync():
        assert bench.sync()  # the second is full
    if REF not in bench.kernel.tables:  # damaged, and nothing to do since: nobody noticed yet
        bench.state.needs_full = True
    bench.settle()
    assert meaning(bench.kernel) == fresh(services)


@pytest.mark.parametrize("size", [1, CHAINS_PER_MAP, CHAINS_PER_MAP + 1, 3 * CHAINS_PER_MAP])
def test_maps_come_and_go_with_their_chains(size: int) -> None:
    bench = Bench()
    for number in range(size):
        bench.state.set_objects(key(number), objects(number, (1, 2)))
    assert bench.sync()
    maps = [name for name in bench.kernel.tables[REF].containers if name.startswith("endpoints-")]
    assert len(maps) == -(-size // CHAINS_PER_MAP)
    for number in range(size):
        bench.state.set_objects(key(number), None)
    bench.settle()
    assert meaning(bench.kernel) == fresh({})
    bench.state.set_objects(key(7), objects(7, (1,)))
    bench.settle()
    assert meaning(bench.kernel) == fresh({7: (1,)})


class TestSizeOfChanges:
    """Work in proportion to what changed: one endpoint of many is a handful of commands and
    elements.
    """

    def elements(self, bench: Bench, targets: tuple[int, ...]) -> int:
        bench.state.set_objects(key(1), objects(1, targets))
        transaction = bench.state.take_transaction(bench.now)
        assert transaction is not None
        bench.kernel.run(transaction)
        bench.state.on_success(bench.now)
        return sum(
            len(getattr(command, "items", getattr(command, "keys", ())))
            for command in transaction.commands
        )

    def bench(self) -> Bench:
        bench = Bench()
        bench.state.set_objects(key(1), objects(1, tuple(range(1, 101))))
        assert bench.sync()
        return bench

    def test_nothing(self) -> None:
        bench = self.bench()
        bench.state.set_objects(key(1), objects(1, tuple(range(1, 101))))
        assert bench.state.take_transaction(0.0) is None
        bench.state.set_objects(key(1), None)
        bench.state.set_objects(key(1), objects(1, tuple(range(1, 101))))
        assert bench.state.take_transaction(0.0) is None

    def test_another_order_is_nothing(self) -> None:
        bench = self.bench()
        bench.state.set_objects(key(1), objects(1, tuple(range(100, 0, -1))))
        assert bench.state.take_transaction(0.0) is None

    def test_one_replaced(self) -> None:
        assert self.elements(self.bench(), (101, *range(2, 101))) == 2

    def test_one_added(self) -> None:
        assert self.elements(self.bench(), tuple(range(101))) == 1

    def test_first_removed(self) -> None:
        bench = self.bench()
        assert self.elements(bench, tuple(range(2, 101))) == 2  # the last takes its place
        bench.now = RETIRE_AFTER_S
        assert bench.sync()
        assert (
            bench.commands == 2
        )  # and its old place goes later, after the look at whose table it is


class TestRetirement:
    def test_nothing_referenced_before_goes_at_once(self) -> None:
        bench = Bench()
        bench.state.set_objects(key(1), objects(1, (1, 2, 3)))
        bench.sync()
        bench.state.set_objects(key(1), objects(1, (1, 2)))
        bench.sync()
        table = bench.kernel.tables[REF]
        assert len(table.containers["endpoints-tcp-0"].elements) == 3
        bench.state.set_objects(key(1), objects(1, ()))
        bench.sync()
        assert table is not bench.kernel.tables[REF]
        assert bench.kernel.tables[REF].chains["service-1"].rules == []
        bench.now = RETIRE_AFTER_S - 0.01
        assert bench.state.take_transaction(bench.now) is None
        assert bench.state.next_deadline() == RETIRE_AFTER_S

    def test_a_chain_that_is_wanted_again_is_used_again(self) -> None:
        bench = Bench()
        bench.state.set_objects(key(1), objects(1, (1, 2, 3)))
        bench.sync()
        bench.state.set_objects(key(1), objects(1, ()))
        bench.sync()
        bench.now = 0.5
        bench.state.set_objects(key(1), objects(1, (1, 2)))
        transaction = bench.state.take_transaction(bench.now)
        assert transaction is not None
        touched = [
            command.container
            for command in transaction.commands
            if isinstance(command, AddElements)
        ]
        assert touched == [SERVICE_IPS.name]  # the targets were still there
        bench.kernel.run(transaction)
        bench.state.on_success(bench.now)
        bench.settle()
        assert meaning(bench.kernel) == fresh({1: (1, 2)})

    def test_goes_together_with_an_urgent_change(self) -> None:
        bench = Bench()
        bench.state.set_objects(key(1), objects(1, (1, 2)))
        bench.sync()
        bench.state.set_objects(key(1), None)
        bench.sync()
        bench.now = RETIRE_AFTER_S
        bench.state.set_objects(key(2), objects(2, (2,)))
        transaction = bench.state.take_transaction(bench.now)
        assert transaction is not None
        assert DeleteChain("service-1") in transaction.commands


class TestFailure:
    def test_a_refused_transaction_changes_nothing_and_the_next_is_full(self) -> None:
        bench = Bench()
        bench.state.set_objects(key(1), objects(1, (1,)))
        bench.sync()
        bench.kernel.tables[REF].containers.pop(SERVICE_IPS.name)
        before = bench.kernel.tables
        bench.state.set_objects(key(2), objects(2, (2,)))
        assert not bench.sync()
        assert bench.kernel.tables is before
        bench.state.set_objects(key(3), objects(3, (3,)))
        assert bench.sync()
        assert meaning(bench.kernel) == fresh({1: (1,), 2: (2,), 3: (3,)})

    def test_changes_during_a_transaction_are_not_lost(self) -> None:
        bench = Bench()
        bench.state.set_objects(key(1), objects(1, (1,)))
        transaction = bench.state.take_transaction(0.0)
        assert transaction is not None
        bench.state.set_objects(key(1), objects(1, (2,)))
        bench.state.set_objects(key(2), objects(2, (3,)))
        bench.kernel.run(transaction)
        bench.state.on_success(0.0)
        bench.settle()
        assert meaning(bench.kernel) == fresh({1: (2,), 2: (3,)})

    def test_the_first_replaces_whatever_was_there(self) -> None:
        bench = Bench()
        bench.state.set_objects(key(9), objects(9, (1, 2)))
        bench.sync()
        heir = Bench(kernel=bench.kernel)
        heir.state.set_objects(key(1), objects(1, (1,)))
        assert heir.sync()
        assert meaning(heir.kernel) == fresh({1: (1,)})


def test_two_services_with_one_address_agree_on_every_node() -> None:
    """No arbitration upstream: the last in map order wins there."""

    def claim(name: str) -> ServiceObjects:
        chain = BalancedChain(f"service-{name}", "tcp", (DnatTarget("10.0.0.1", 80),))
        return ServiceObjects(
            (chain,), ((SERVICE_IPS.name, ("172.30.0.1", "tcp", 80), goto(chain.name)),)
        )

    for order in (("a", "b"), ("b", "a")):
        bench = Bench()
        for name in order:
            bench.state.set_objects(ServiceKey("ns", name), claim(name))
            bench.sync()
        elements = bench.kernel.tables[REF].containers[SERVICE_IPS.name].elements
        assert elements == {("172.30.0.1", "tcp", 80): goto("service-a")}
        bench.state.set_objects(ServiceKey("ns", "a"), None)
        bench.settle()
        elements = bench.kernel.tables[REF].containers[SERVICE_IPS.name].elements
        assert elements == {("172.30.0.1", "tcp", 80): goto("service-b")}


targets = st.lists(st.integers(0, 12), unique=True).map(
    lambda found: tuple(DnatTarget("10.0.0.1", n) for n in found)
)


@given(targets, targets)
def test_place(applied: tuple[DnatTarget, ...], desired: tuple[DnatTarget, ...]) -> None:
    ordered = order_targets(applied, desired)
    count = len(desired)
    assert sorted(ordered[:count]) == sorted(desired)
    assert ordered[count:] == applied[count:]
    moved = sum(
        1 for number in range(min(count, len(applied))) if ordered[number] != applied[number]
    )
    assert moved == sum(1 for target in applied[:count] if target not in desired)


def test_rendering_is_what_nft_reads() -> None:
    bench = Bench()
    bench.state.set_objects(key(1), objects(1, (1, 2)))
    transaction = bench.state.take_transaction(0.0)
    assert transaction is not None
    text = transaction.render()
    assert text.startswith(
        "add table ip sliceplane\ndelete table ip sliceplane\nadd table ip sliceplane\n"
    )
    for line in (
        (
            "add map ip sliceplane endpoints-tcp-0 "
            "{ typeof numgen random mod 2 : ip daddr . tcp dport; }"
        ),
        "add element ip sliceplane endpoints-tcp-0 { 0 : 10.0.0.1 . 80, 1 : 10.0.0.2 . 80 }",
        (
            "add rule ip sliceplane service-1 meta l4proto tcp dnat ip "
            "to numgen random mod 2 offset 0 map @endpoints-tcp-0"
        ),
        "add element ip sliceplane service-ips { 172.30.0.1 . tcp . 80 : jump service-1 }",
        "add chain ip sliceplane nat-output { type nat hook output priority -100; }",
        "add rule ip sliceplane services ip daddr . meta l4proto . th dport vmap @service-ips",
    ):
        assert line in text.splitlines()
    assert NftRule((Balance("udp", 1, 2**28, "endpoints-3"),)).render("ip6") == (
        "meta l4proto udp dnat ip6 to numgen random mod 1 offset 268435456 map @endpoints-3"
    )
