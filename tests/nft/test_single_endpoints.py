"""Destinations with one endpoint: an element of a map, and no packet lost on the way to a chain and
back.
"""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from tests.nft.machine import (
    DROPPED,
    NODE,
    REJECT,
    VIP,
    Machine,
    ep,
    evenly,
    make_slice,
    node,
    service,
)
from tests.nft.older_layout import in_the_older_layout
from tests.nft.test_table import DIRECT_NUMBER, REF, Bench, fresh, key, meaning, objects

from sliceplane.consume.model import ServiceKey
from sliceplane.node.nft.buckets import BUCKET_COUNTS, DIRECT, bucket_map, bucket_set
from sliceplane.node.nft.build import BalancedChain, ServiceObjects
from sliceplane.node.nft.elements import RETIRE_AFTER_S
from sliceplane.node.nft.layout import CLUSTER_IPS, SERVICE_IPS, SINGLE_ENDPOINTS
from sliceplane.node.nft.objects import (
    AddChain,
    AddElements,
    AddRule,
    BalancedTargets,
    ChainContents,
    DeleteElements,
    DnatTarget,
    FlushChain,
    NftRule,
    NftVerdict,
    TableContents,
    Transaction,
    goto,
    jump,
)
from sliceplane.node.nft.statements import (
    DESTINATION,
    DnatBucket,
    DnatMap,
    InSet,
    Jump,
    Statement,
    Vmap,
)
from sliceplane.node.nft.trace import Packet, PacketOutcome, trace

PORTS = [{"name": p.lower(), "port": 53, "protocol": p} for p in ("TCP", "UDP", "SCTP")]
STICKY = {"sessionAffinity": "ClientIP"}
OUTSIDE = "198.51.100.7"


def taken(machine: Machine) -> Transaction:
    transaction = machine.plane.take_transaction(machine.now)
    assert transaction is not None
    machine.kernel.run(transaction)
    machine.plane.on_success(machine.now)
    machine.plane.check()
    return transaction


def elements(machine: Machine, container: str) -> dict[Any, Any]:
    return machine.kernel.tables[machine.ref].containers[container].elements


def touches_no_chain(transaction: Transaction) -> bool:
    """Nothing that makes the kernel walk the chains of the table."""
    first, *commands = transaction.commands
    assert isinstance(first, FlushChain)
    assert first.name.startswith("writer-")
    items = [
        value
        for command in commands
        if isinstance(command, AddElements)
        for _, value in command.items
    ]
    return all(
        isinstance(command, AddElements | DeleteElements) for command in commands
    ) and not any(isinstance(value, NftVerdict) for value in items)


class TestNoRuleAndNoVerdict:
    @pytest.fixture
    def machine(self) -> Machine:
        machine = Machine()
        machine.put(service("other", 2), make_slice(["10.1.0.1", "10.1.0.2"], "other"))
        machine.sync()
        return machine

    def test_it_comes_with_its_endpoint_is_replaced_and_goes(self, machine: Machine) -> None:
        machine.put(make_slice(["10.0.0.1"]), service())
        assert touches_no_chain(taken(machine))
        machine.put(make_slice(["10.0.0.2"], version=2))
        assert touches_no_chain(taken(machine))
        assert machine.send() == evenly("10.0.0.2 8080")
        machine.drop(service())
        machine.drop(make_slice([]))
        assert touches_no_chain(taken(machine))

    def test_its_endpoint_comes_later(self, machine: Machine) -> None:
        machine.put(service())
        machine.sync()
        machine.put(make_slice(["10.0.0.1"]))
        assert touches_no_chain(taken(machine))

    def test_its_port_changes(self, machine: Machine) -> None:
        machine.put(make_slice(["10.0.0.1"]), service())
        machine.sync()
        machine.put(service(ports=[{"name": "http", "port": 81, "protocol": "TCP"}]))
        assert touches_no_chain(taken(machine))
        assert machine.send(dport=81) == evenly("10.0.0.1 8080")
        assert machine.send(dport=80) == REJECT

    def test_with_policy_local_too(self, machine: Machine) -> None:
        machine.put(
            service(internalTrafficPolicy="Local"),
            make_slice([ep("10.0.0.1", nodeName=NODE), "10.0.0.2"]),
        )
        assert touches_no_chain(taken(machine))
        assert machine.send() == evenly("10.0.0.1 8080")

    def test_the_way_from_two_to_one(self, machine: Machine) -> None:
        """Reachable from outside.  No rule comes, so nothing is walked; the chain is emptied, and
        goes later.
        """
        outside = {"externalIPs": ["192.0.2.4"], "internalTrafficPolicy": "Local"}
        here = [ep(f"10.0.0.{number}", nodeName=NODE) for number in (1, 2)]
        machine.put(make_slice(here), service(**outside))
        machine.sync()
        machine.put(make_slice(["10.0.0.1", here[1]], version=2))
        commands = taken(machine).commands
        assert not any(isinstance(command, AddRule | AddChain) for command in commands)
        added = [command for command in commands if isinstance(command, AddElements)]
        assert [command.container for command in added] == [SINGLE_ENDPOINTS.name]


@pytest.mark.parametrize("family", ["IPv4", "IPv6"])
@pytest.mark.parametrize("proto", ["tcp", "udp", "sctp"])
def test_every_protocol_and_family(family: Any, proto: str) -> None:
    machine = Machine(family)
    six = family == "IPv6"
    ports = [
        {"name": p, "port": number, "protocol": p.upper()}
        for p, number in (("tcp", 1), ("udp", 2), ("sctp", 3))
    ]
    machine.put(
        service(ports=PORTS),
        make_slice(["fd00::1" if six else "10.0.0.1"], kind=family, ports=ports),
    )
    vip = "fd30::1" if six else VIP
    number = {"tcp": 1, "udp": 2, "sctp": 3}[proto]
    assert machine.send(vip, 53, proto) == evenly(f"{'fd00::1' if six else '10.0.0.1'} {number}")
    assert len(elements(machine, SINGLE_ENDPOINTS.name)) == 3
    assert elements(machine, SERVICE_IPS.name) == {}


class TestOneTwoOne:
    def machine(self, **spec: Any) -> Machine:
        machine = Machine()
        machine.put(service(**spec), make_slice(["10.0.0.1"]))
        machine.sync()
        return machine

    def test_the_only_one_is_kept_for_a_while_and_hidden(self) -> None:
        """By a chain."""
        machine = self.machine(externalIPs=["192.0.2.4"])
        machine.put(make_slice(["10.0.0.2", "10.0.0.3"], version=2))
        assert machine.send() == evenly("10.0.0.2 8080", "10.0.0.3 8080")
        assert elements(machine, SINGLE_ENDPOINTS.name) == {
            (VIP, "tcp", 80): DnatTarget("10.0.0.1", 8080)
        }
        machine.now += RETIRE_AFTER_S - 0.01
        machine.sync()
        assert elements(machine, SINGLE_ENDPOINTS.name)
        machine.now += 0.01
        assert machine.plane.schedule.due(machine.now)
        taken(machine)
        assert elements(machine, SINGLE_ENDPOINTS.name) == {}
        assert machine.send() == evenly("10.0.0.2 8080", "10.0.0.3 8080")

    @pytest.mark.parametrize("back", ["10.0.0.1", "10.0.0.9"])
    def test_back_while_it_is_kept(self, back: str) -> None:
        machine = self.machine()
        machine.put(make_slice(["10.0.0.1", "10.0.0.3"], version=2))
        machine.sync()
        machine.put(make_slice([back], version=3))
        assert machine.send() == evenly(f"{back} 8080")
        machine.now += 2 * RETIRE_AFTER_S
        assert machine.send() == evenly(f"{back} 8080")

    def test_nobody_is_led_to_one_that_is_kept(self) -> None:
        machine = self.machine()
        machine.put(make_slice(["10.0.0.1", "10.0.0.3"], version=2))
        machine.sync()
        machine.put(make_slice([], version=3))
        assert machine.send() == REJECT
        assert elements(machine, SINGLE_ENDPOINTS.name) == {}

    def test_affinity_comes_and_goes(self) -> None:
        machine = self.machine()
        for spec in (STICKY, {}, STICKY):
            machine.put(service(**spec))
            assert machine.send() == evenly("10.0.0.1 8080")
            assert bool(elements(machine, SERVICE_IPS.name)) == bool(spec)
            machine.now += 0.3

    def test_a_node_port_comes_and_goes(self) -> None:
        machine = self.machine()
        outside = service(
            type="NodePort",
            ports=[{"name": "http", "port": 80, "protocol": "TCP", "nodePort": 30080}],
        )
        machine.put(node("", "192.168.0.1"))
        for subject, expected in (
            (outside, evenly("10.0.0.1 8080", masquerade=True)),
            (service(), evenly("192.168.0.1 30080")),
        ):
            machine.put(subject)
            assert machine.send() == evenly("10.0.0.1 8080"), "the cluster IP needs no chain"
            assert machine.send("192.168.0.1", 30080, saddr=OUTSIDE, path="forwarded") == expected
            assert (VIP, "tcp", 80) in elements(machine, SINGLE_ENDPOINTS.name)

    def test_nobody_here_with_policy_local(self) -> None:
        machine = self.machine(internalTrafficPolicy="Local")
        assert machine.send() == DROPPED
        machine.put(make_slice([ep("10.0.0.1", nodeName=NODE)], version=2))
        assert machine.send() == evenly("10.0.0.1 8080")


@pytest.mark.parametrize("order", [("a", "b"), ("b", "a")])
@pytest.mark.parametrize("single", ["a", "b"])
@pytest.mark.parametrize("direct", [False, True])
def test_two_services_with_one_address_agree_on_every_node(
    order: tuple[str, str], single: str, direct: bool
) -> None:
    """Though one wants a chain, or several targets, and the other one target."""

    def claim(name: str) -> ServiceObjects:
        destination = ("172.30.0.1", "tcp", 80)
        shared = (CLUSTER_IPS.name, destination[:1], None)
        if name == single:
            return ServiceObjects(
                (), (shared, (SERVICE_IPS.name, destination, DnatTarget("10.0.0.9", 80)))
            )
        targets = (DnatTarget("10.0.0.1", 80), DnatTarget("10.0.0.2", 80))
        if direct:
            return ServiceObjects(
                (), (shared, (SERVICE_IPS.name, destination, BalancedTargets(targets)))
            )
        chain = BalancedChain(f"service-{name}", "tcp", targets)
        return ServiceObjects((chain,), (shared, (SERVICE_IPS.name, destination, goto(chain.name))))

    bench = Bench()
    for name in order:
        bench.state.set_objects(ServiceKey("ns", name), claim(name))
        assert bench.sync()
    targets = {True: {"10.0.0.9 80"}, False: {"10.0.0.1 80", "10.0.0.2 80"}}
    assert reached(bench.kernel.tables[REF], "172.30.0.1") == targets[single == "a"]
    bench.state.set_objects(ServiceKey("ns", "a"), None)
    assert bench.sync()
    assert reached(bench.kernel.tables[REF], "172.30.0.1") == targets[single == "b"]
    bench.settle()
    assert reached(bench.kernel.tables[REF], "172.30.0.1") == targets[single == "b"]


def reached(table: TableContents, daddr: str) -> set[str]:
    """Where packets to port 80 go; "" if some are not translated."""
    return {
        found.to if found.to != f"{daddr} 80" else ""
        for found in trace(table, Packet("10.9.9.9", daddr, "tcp", 80))
    }


def in_flight(before: TableContents, after: TableContents, early: tuple[str, ...]) -> TableContents:
    """What a packet meets that entered before a transaction, and asked the containers *early*
    before it as well, each once: the rules that there were (none, in a new chain), but from then on
    the newest elements.
    """
    chains = {
        name: before.chains.get(name, ChainContents(chain.hook))
        for name, chain in after.chains.items()
    }
    met = TableContents(before.chains | chains, dict(before.containers) | after.containers)
    # The first jump leads to copies that ask the older elements.
    old: dict[str, str] = {}
    for name in early:
        if name in before.containers:
            old[name] = f"{name} before"
            met.containers[old[name]] = before.containers[name]
    copies = {
        f"{name} once": [_asking(rule, old) for rule in chain.rules]
        for name, chain in met.chains.items()
        if name == DIRECT or name.startswith("draw-")
    }
    met.chains |= {name: ChainContents(None, rules) for name, rules in copies.items()}
    services = list(met.chains["services"].rules)
    ways = [number for number, rule in enumerate(services) if rule.statements[-1] == Jump(DIRECT)]
    vmap = next(
        number for number, rule in enumerate(services) if rule.statements[-1] == TO_SERVICE_IPS
    )
    services[ways[0]] = NftRule((*services[ways[0]].statements[:-1], Jump(f"{DIRECT} once")))
    if SERVICE_IPS.name in old:
        services[vmap] = NftRule((replace(TO_SERVICE_IPS, container=old[SERVICE_IPS.name]),))
    met.chains["services"] = ChainContents(None, services)
    return met


TO_SERVICE_IPS = Vmap(DESTINATION, SERVICE_IPS.name)


def _asking(rule: NftRule, old: dict[str, str]) -> NftRule:
    parts: list[Statement] = []
    for part in rule.statements:
        if isinstance(part, Jump):
            parts.append(Jump(f"{part.chain} once"))
        elif isinstance(part, InSet | DnatMap | DnatBucket):
            parts.append(replace(part, container=old.get(part.container, part.container)))
        else:
            parts.append(part)
    return NftRule(tuple(parts))


def asked(table: TableContents) -> list[str]:
    """Containers in the order in which a packet for a cluster IP asks them for the first time."""
    order = [SERVICE_IPS.name, SINGLE_ENDPOINTS.name]
    rooms = [room for room in BUCKET_COUNTS if bucket_set(room).name in table.containers]
    return order + [
        name for room in rooms for name in (bucket_set(room).name, bucket_map(room).name)
    ]


wishes = st.lists(
    st.tuples(
        st.sampled_from([1, 3, DIRECT_NUMBER]),
        st.lists(st.integers(1, 6), unique=True, max_size=5).map(tuple),
    ),
    min_size=1,
    max_size=3,
)


@given(st.lists(st.tuples(wishes, st.sampled_from([0.0, 0.3, 0.6, 1.1])), max_size=15))
def test_no_packet_in_flight_falls_between_two_ways(
    history: list[tuple[list[tuple[int, Any]], float]],
) -> None:
    """Whatever the moment at which a change overtakes it, it arrives where it may have arrived in
    the last second.
    """
    bench = Bench()
    assert bench.sync()
    recent: dict[str, list[tuple[float, set[str]]]] = {
        f"172.30.0.{number}": [] for number in (1, 3, DIRECT_NUMBER)
    }
    for wanted, pause_s in history:
        for number, targets in wanted:
            bench.state.set_objects(key(number), objects(number, targets))
        bench.before = bench.kernel.tables[REF]
        assert bench.sync()
        before = bench.before
        after = bench.kernel.tables[REF]
        for ip, seen in recent.items():
            then, now = reached(before, ip), reached(after, ip)
            seen.append((bench.now, then | now))
            if "" in then | now:
                continue  # without endpoints, before or after
            may = set().union(*(found for at, found in seen if at >= bench.now - RETIRE_AFTER_S))
            order = asked(before)
            for count in range(len(order) + 1):
                assert reached(in_flight(before, after, tuple(order[:count])), ip) <= may - {""}, (
                    ip,
                    order[:count],
                )
        bench.now += pause_s


def test_a_table_of_an_older_layout_is_replaced_in_one_transaction() -> None:
    """Before there was a map of single endpoints each destination had a chain, and a goto to it."""
    bench = Bench()
    bench.state.set_objects(key(1), objects(1, (1,)))
    transaction = bench.state.take_transaction(0.0)
    assert transaction is not None
    bench.kernel.run(in_the_older_layout(transaction))
    assert reached(bench.kernel.tables[REF], "172.30.0.1") == {"10.0.0.1 80"}
    heir = Bench(kernel=bench.kernel)
    heir.state.set_objects(key(1), objects(1, (2,)))
    transactions = heir.kernel.transactions
    assert heir.sync()
    assert heir.kernel.transactions == transactions + 1
    assert meaning(heir.kernel) == fresh({1: (2,)})


def test_who_comes_back_from_a_chain_goes_on_behind_the_rule() -> None:
    """A jump, unlike a goto: an empty chain is as good as no element."""
    bench = Bench()
    for number, way in ((1, jump), (3, goto)):
        bench.state.set_objects(key(number), objects(number, (1,)))
        assert bench.sync()
        table = bench.kernel.tables[REF]
        table.chains["empty"] = ChainContents(None)
        ip = f"172.30.0.{number}"
        table.containers[SERVICE_IPS.name].elements[ip, "tcp", 80] = way("empty")
        found = trace(table, Packet("10.9.9.9", ip, "tcp", 80))
        assert set(found) == (
            {PacketOutcome("accept", "10.0.0.1 80")} if way is jump else {PacketOutcome("reject")}
        )
        del table.containers[SERVICE_IPS.name].elements[ip, "tcp", 80]
