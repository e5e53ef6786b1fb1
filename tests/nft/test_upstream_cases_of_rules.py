"""Cases that upstream's own tests of its nftables rules cover, where ours had none yet."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.nft.machine import (
    CLIENT,
    DROPPED,
    NODE,
    NODE_IP,
    REJECT,
    VIP,
    Machine,
    ep,
    evenly,
    make_slice,
    node,
    service,
)

from sliceplane.consume.model import ServiceKey, ServicePortName
from sliceplane.node.context import RulesConfig
from sliceplane.node.nft.buckets import bucket_commands
from sliceplane.node.nft.elements import RETIRE_AFTER_S
from sliceplane.node.nft.names import NAME_LENGTH_MAX, chain_name
from sliceplane.node.nft.objects import AddElements, DeleteElements, FlushChain

GOLDEN = Path(__file__).with_name("six_services.nft")
PODS = RulesConfig(cluster_cidrs=("10.0.0.0/8",))
HERE = ep("10.0.0.1", nodeName=NODE)
OUTSIDE = "198.51.100.7"
PORTS = [{"name": "http", "port": 80, "protocol": "TCP", "nodePort": 30080}]
LB, SECOND_LB = "203.0.113.5", "203.0.113.6"


def six_services() -> Machine:
    """Plain; LoadBalancer with policy Local and nobody here; NodePort; an external IP; LoadBalancer
    with ranges and affinity; without endpoints. The first and the fourth share an endpoint.
    """
    machine = Machine(rules=PODS)
    other = [{**PORTS[0], "nodePort": 30081}]
    balanced = {"type": "LoadBalancer", "ingress": [{"ip": LB}]}
    machine.put(
        node("", NODE_IP),
        service("s1"),
        make_slice([HERE], "s1"),
        service("s2", 2, **balanced, ports=PORTS, externalTrafficPolicy="Local"),
        make_slice(["10.0.0.2"], "s2"),
        service("s3", 3, type="NodePort", ports=other),
        make_slice(["10.0.0.3"], "s3"),
        service("s4", 4, externalIPs=["192.0.2.4"]),
        make_slice([HERE, "10.0.0.4"], "s4"),
        service(
            "s5",
            5,
            type="LoadBalancer",
            ingress=[{"ip": SECOND_LB}],
            loadBalancerSourceRanges=["198.51.100.0/24", "192.168.0.0/24"],
            sessionAffinity="ClientIP",
        ),
        make_slice(["10.0.0.5"], "s5"),
        service("s6", 6),
    )
    return machine


def test_six_services_are_written_so() -> None:
    machine = six_services()
    transaction = machine.plane.take_transaction(machine.now)
    assert transaction is not None
    assert transaction.render() == GOLDEN.read_text(encoding="utf-8")
    machine.kernel.run(transaction)
    hairpin = machine.kernel.tables[machine.ref].containers["hairpin-connections"].elements
    assert list(hairpin) == [("10.0.0.1", "10.0.0.1", "tcp", 8080)]


def test_ports_of_other_services_and_protocols_are_rejected() -> None:
    machine = Machine()
    machine.put(service(), make_slice(["10.0.0.1"]))
    other = [{"name": "web", "port": 90, "protocol": "TCP"}]
    machine.put(service("web", 2, ports=other), make_slice(["10.0.0.2"], "web", ports=other))
    assert machine.send(dport=90) == REJECT
    assert machine.send("172.30.0.2", 80) == REJECT
    assert machine.send(proto="udp") == REJECT
    assert machine.send("172.30.0.2", 90) == evenly("10.0.0.2 90")


def test_source_ranges_count_on_every_address_of_load_balancers() -> None:
    machine = Machine(rules=PODS)
    machine.put(
        node("", NODE_IP),
        service(
            type="LoadBalancer",
            ports=PORTS,
            ingress=[{"ip": LB}, {"ip": SECOND_LB}],
            loadBalancerSourceRanges=["198.51.100.0/24"],
        ),
        make_slice(["10.0.0.2"]),
    )
    served = evenly("10.0.0.2 8080", masquerade=True)
    for vip in (LB, SECOND_LB):
        assert machine.send(vip, saddr=OUTSIDE, path="forwarded") == served
        assert machine.send(vip, saddr=CLIENT, path="forwarded") == DROPPED
        assert machine.send(vip, saddr="203.0.113.77", path="forwarded") == DROPPED
        assert machine.send(vip, saddr=NODE_IP) == DROPPED, "nor is the node in the range"
    assert machine.send(NODE_IP, 30080, saddr="203.0.113.77", path="forwarded") == served, (
        "node ports bypass them"
    )


@pytest.mark.parametrize(
    ("wanted", "serving"),
    [
        (("fd99::/64",), {"fd99::1"}),
        (("fd99::/64", "fd98::/64"), {"fd99::1", "fd98::1"}),
        (("192.168.0.0/16",), {"fd99::1", "fd98::1"}),
        (("::/0",), {"fd99::1", "fd98::1"}),
    ],
)
def test_node_port_addresses_of_ipv6(wanted: tuple[str, ...], serving: set[str]) -> None:
    machine = Machine(
        "IPv6", rules=RulesConfig(node_port_addresses=wanted), own=("fd99::1", "fd98::1")
    )
    machine.plane.on_interfaces(("fd98::1", "fd99::1"), machine.now)
    machine.put(service(type="NodePort", ports=PORTS), make_slice(["fd00::1"], kind="IPv6"))
    served = evenly("fd00::1 8080", masquerade=True)
    for ip in ("fd99::1", "fd98::1"):
        found = machine.send(ip, 30080, saddr="fd77::7", path="forwarded")
        assert found == (served if ip in serving else evenly(f"{ip} 30080"))


class TestOperationCounts:
    """What each step sends: elements, and commands about chains and maps. Upstream sends whole
    chains; ours, elements of a map, and takes a chain away a second later.
    """

    def step(self, machine: Machine, *objects: Any) -> int:
        machine.put(*objects)
        return self.sent(machine)

    def sent(self, machine: Machine) -> int:
        transaction = machine.plane.take_transaction(machine.now)
        if transaction is None:
            return 0
        machine.kernel.run(transaction)
        machine.plane.on_success(machine.now)
        kinds = (AddElements, DeleteElements)
        # A change begins by looking whose table it is.
        own = isinstance(transaction.commands[0], FlushChain)
        return -own + sum(
            len(getattr(command, "items", getattr(command, "keys", ())))
            if isinstance(command, kinds)
            else 1
            for command in transaction.commands
        )

    def test_endpoints_come_change_and_go(self) -> None:
        machine = Machine()
        machine.sync()
        assert self.step(machine, service()) == 2, "cluster-ips, and rejected"
        assert self.step(machine, make_slice([HERE])) == 3
        assert self.step(machine, make_slice([ep("10.0.0.2", nodeName=NODE)], version=2)) == 4, (
            "replaced"
        )
        both = [ep("10.0.0.2", nodeName=NODE), "10.0.0.3"]
        made = len(bucket_commands(4))
        assert self.step(machine, make_slice(both, version=3)) == made + 4, (
            "added: the first room is made"
        )
        assert self.step(machine, make_slice([*both, "10.0.0.4"], version=4)) == 1, "another"
        assert self.step(machine, make_slice([*both, "10.0.0.5"], version=5)) == 2, (
            "replaced, on another node"
        )
        assert self.step(machine, make_slice(both, version=6)) == 1, "removed"
        assert self.step(machine, make_slice([], version=7)) == 5, "emptied, and rejected"
        assert self.step(machine, make_slice(both, version=8)) == 5, "and back"
        assert self.step(machine, make_slice(both, version=9)) == 0, "nothing"

    def test_the_counts_do_not_grow_with_other_services(self) -> None:
        machine = Machine()
        for number in range(10, 60):
            machine.put(
                service(f"s{number}", number), make_slice([f"10.1.0.{number}"], f"s{number}")
            )
        machine.sync()
        assert self.step(machine, service()) == 2
        assert self.step(machine, make_slice(["10.0.0.1"])) <= 8
        assert self.step(machine, make_slice(["10.0.0.2"], version=2)) == 2


class TestStaleChains:
    def machine(self) -> Machine:
        machine = Machine()
        machine.put(service(externalIPs=["192.0.2.4"]), make_slice([HERE, "10.0.0.2"]))
        machine.sync()
        return machine

    def chain(self, machine: Machine) -> Any:
        name = chain_name("service", ServicePortName(ServiceKey("ns", "svc"), "http", "TCP"))
        return machine.kernel.tables[machine.ref].chains.get(name)

    def test_empty_after_the_write_that_dropped_it_and_gone_after_a_later_one(self) -> None:
        machine = self.machine()
        machine.put(make_slice([], version=2))
        machine.sync()
        assert self.chain(machine).rules == []
        machine.now += RETIRE_AFTER_S
        machine.sync()
        assert self.chain(machine) is None

    def test_endpoints_that_return_at_once_have_the_same_chain(self) -> None:
        machine = self.machine()
        machine.put(make_slice([], version=2))
        machine.sync()
        machine.put(make_slice([HERE, "10.0.0.2"], version=3))
        machine.sync()
        assert self.chain(machine).rules
        machine.now += RETIRE_AFTER_S
        machine.sync()
        assert machine.send() == evenly("10.0.0.1 8080", "10.0.0.2 8080")

    def test_endpoints_that_return_late_have_it_made_again(self) -> None:
        machine = self.machine()
        machine.put(make_slice([], version=2))
        machine.sync()
        machine.now += RETIRE_AFTER_S + 1
        machine.put(make_slice([HERE, "10.0.0.2"], version=3))
        assert machine.send() == evenly("10.0.0.1 8080", "10.0.0.2 8080")
        machine.now += RETIRE_AFTER_S
        machine.sync()
        assert machine.send() == evenly("10.0.0.1 8080", "10.0.0.2 8080")


def test_a_start_over_a_table_that_is_there_takes_nothing_away_that_is_wanted() -> None:
    """Ours replaces the table in one transaction: no packet meets less than there was, whatever was
    in it.
    """
    machine = six_services()
    machine.sync()
    heir = six_services()
    heir.kernel = machine.kernel
    heir.kernel.tables[heir.ref].chains["foreign-chain"] = type(
        next(iter(heir.kernel.tables[heir.ref].chains.values()))
    )(None)
    transactions = heir.kernel.transactions
    heir.sync()
    assert heir.kernel.transactions == transactions + 1, (
        "there is no moment between the old table and the new one"
    )
    assert "foreign-chain" not in heir.kernel.tables[heir.ref].chains
    fresh = six_services()
    fresh.sync()
    assert heir.kernel.tables[heir.ref] == fresh.kernel.tables[fresh.ref]


# Names


def endpoint_name(
    ip: str, namespace: str = "ns1", name: str = "svc1", port: str = "p80", number: int = 80
) -> str:
    whose = ServicePortName(ServiceKey(namespace, name), port, "TCP")
    return chain_name("endpoint", whose, endpoint=f"{ip}/{number}")


def test_names_of_endpoint_chains_are_those_of_upstream() -> None:
    assert endpoint_name("10.180.0.1") == "endpoint-5OJB2KTY-ns1/svc1/tcp/p80__10.180.0.1/80"
    six = endpoint_name("fd80:abcd:12::a1b2:c3d4:e5f6:9999", "testing", "service", "http")
    assert six == "endpoint-U7E2ET36-testing/service/tcp/http__fd80.abcd.12..a1b2.c3d4.e5f6.9999/80"
    assert (
        len(
            {
                endpoint_name("10.0.0.1"),
                endpoint_name("10.0.0.2"),
                endpoint_name("10.0.0.1", number=81),
            }
        )
        == 3
    )


def test_an_over_long_name_of_an_ipv6_endpoint_is_cut_and_still_unique() -> None:
    long = ("n" * 63, "s" * 63, "p" * 63)
    cut = [
        endpoint_name(f"fd80:abcd:12:34:a1b2:c3d4:e5f6:999{number}", *long) for number in range(3)
    ]
    assert {len(each) for each in cut} == {NAME_LENGTH_MAX}
    assert all(each.endswith("...") for each in cut)
    assert len(set(cut)) == 3


def test_a_long_name_without_endpoints_is_no_comment_that_nft_refuses() -> None:
    """Upstream's comment of such an element may have 191 characters, nft takes 128, and every sync
    fails.
    """
    machine = Machine()
    ports = [{"name": "p" * 63, "port": 80, "protocol": "TCP"}]
    machine.put(service("s" * 63, ports=ports))
    transaction = machine.plane.take_transaction(machine.now)
    assert transaction is not None
    assert "comment" not in transaction.render()
    machine.kernel.run(transaction)
    machine.plane.on_success(machine.now)
    assert machine.send(VIP) == REJECT
