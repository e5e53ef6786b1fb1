"""Every kind of Service through the tracer: cases of upstream's tests, and a plain second reading
of its rules for the rest.
"""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.nft.machine import (
    DROPPED,
    DYING,
    GONE,
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

from sliceplane.api import codec
from sliceplane.api.core import ServiceCIDR
from sliceplane.consume.model import Categories, NodeEndpoint, ServedPort, categorize
from sliceplane.consume.servicemap import service_ports
from sliceplane.consume.usable import Locality
from sliceplane.node.context import (
    Detector,
    NodeNetwork,
    RulesConfig,
    build_context,
    node_port_addresses,
)
from sliceplane.node.nft.buckets import bucket_commands
from sliceplane.node.nft.layout import HAIRPIN, NODE_PORT_IPS, match_local
from sliceplane.node.nft.objects import AddElements, DeleteElements, deletion
from sliceplane.node.nft.table import needs_set_contents
from sliceplane.node.nft.trace import PacketOutcome, Path

LB, EXTERNAL, NODE_PORT = "203.0.113.5", "203.0.113.6", 30080
POD, OUTSIDE = "10.0.9.9", "198.51.100.7"
PODS = RulesConfig(cluster_cidrs=("10.0.0.0/8",))
HERE = ep("10.0.0.1", nodeName=NODE)
THERE = ep("10.0.0.2")

#: who sends: source, and whether from a process of the node
SENDERS: dict[str, tuple[str, Path]] = {
    "pod": (POD, "forwarded"),
    "node": (NODE_IP, "local"),
    "outside": (OUTSIDE, "forwarded"),
    "endpoint": ("10.0.0.1", "forwarded"),
}
DESTINATIONS = {
    "cluster": (VIP, 80),
    "external": (EXTERNAL, 80),
    "vip": (LB, 80),
    "node port": (NODE_IP, NODE_PORT),
}


def everything(**spec: Any) -> Any:
    ports = [{"name": "http", "port": 80, "protocol": "TCP", "nodePort": NODE_PORT}]
    base = {
        "type": "LoadBalancer",
        "ports": ports,
        "externalIPs": [EXTERNAL],
        "ingress": [{"ip": LB}],
    }
    return service(**{**base, **spec})


def machine_with(*objects: Any, rules: RulesConfig = PODS) -> Machine:
    machine = Machine(rules=rules)
    machine.put(node("", NODE_IP), *objects)
    return machine


def send(machine: Machine, sender: str, to: str) -> dict[PacketOutcome, Fraction]:
    saddr, path = SENDERS[sender]
    daddr, port = DESTINATIONS[to]
    return machine.send(daddr, port, saddr=saddr, path=path)


FROM_OUTSIDE = ("external", "vip", "node port")


@pytest.mark.parametrize("sender", ["pod", "node", "outside"])
@pytest.mark.parametrize("to", DESTINATIONS)
def test_without_endpoints_all_is_rejected(sender: str, to: str) -> None:
    assert send(machine_with(everything()), sender, to) == REJECT


@pytest.mark.parametrize("to", FROM_OUTSIDE)
def test_external_cluster_goes_everywhere_and_is_masqueraded(to: str) -> None:
    machine = machine_with(everything(), make_slice([HERE, THERE]))
    for sender in ("pod", "node", "outside"):
        assert send(machine, sender, to) == evenly(
            "10.0.0.1 8080", "10.0.0.2 8080", masquerade=True
        )


@pytest.mark.parametrize("to", FROM_OUTSIDE)
def test_external_local(to: str) -> None:
    machine = machine_with(everything(externalTrafficPolicy="Local"), make_slice([HERE, THERE]))
    both = ("10.0.0.1 8080", "10.0.0.2 8080")
    assert send(machine, "outside", to) == evenly(both[0])
    assert send(machine, "pod", to) == evenly(*both)
    assert send(machine, "node", to) == evenly(*both, masquerade=True)
    assert send(machine, "outside", "cluster") == evenly(*both, masquerade=True)
    machine.put(make_slice([THERE], version=2))
    assert send(machine, "outside", to) == DROPPED
    assert send(machine, "pod", to) == evenly(both[1])
    assert send(machine, "node", to) == evenly(both[1], masquerade=True)


def test_internal_local_is_about_the_cluster_ip_alone() -> None:
    machine = machine_with(everything(internalTrafficPolicy="Local"), make_slice([HERE, THERE]))
    assert send(machine, "pod", "cluster") == evenly("10.0.0.1 8080")
    for to in FROM_OUTSIDE:
        assert send(machine, "outside", to) == evenly(
            "10.0.0.1 8080", "10.0.0.2 8080", masquerade=True
        )
    machine.put(make_slice([THERE], version=2))
    assert send(machine, "pod", "cluster") == DROPPED
    machine.drop(make_slice([]))
    assert send(machine, "pod", "cluster") == REJECT


def test_terminating_for_each_policy_by_itself() -> None:
    machine = machine_with(
        everything(externalTrafficPolicy="Local"),
        make_slice([ep("10.0.0.1", nodeName=NODE, **DYING), THERE]),
    )
    assert send(machine, "outside", "vip") == evenly("10.0.0.1 8080")
    assert send(machine, "pod", "vip") == evenly("10.0.0.2 8080")
    machine.put(make_slice([ep("10.0.0.2", **DYING)], version=2))
    assert send(machine, "pod", "cluster") == evenly("10.0.0.2 8080")
    assert send(machine, "outside", "vip") == DROPPED
    machine.put(make_slice([ep("10.0.0.2", **GONE)], version=3))
    assert send(machine, "outside", "vip") == REJECT


def test_source_ranges() -> None:
    machine = machine_with(
        everything(
            loadBalancerSourceRanges=["198.51.100.0/25", "198.51.100.128/25", " 192.168.0.0/24"]
        ),
        make_slice([THERE]),
    )
    served = evenly("10.0.0.2 8080", masquerade=True)
    assert send(machine, "outside", "vip") == served
    assert send(machine, "node", "vip") == served
    assert machine.send(LB, saddr=LB) == served, "the node may take the address for its own"
    assert send(machine, "pod", "vip") == DROPPED
    assert send(machine, "pod", "node port") == served
    assert send(machine, "pod", "external") == served
    machine.put(node("", "192.168.7.7"))
    assert machine.send(LB, saddr=LB) == DROPPED, "the node is in no range any more"
    machine.put(everything(loadBalancerSourceRanges=["198.51.100.0/24", "0.0.0.0/0"]))
    assert send(machine, "pod", "vip") == served
    machine.put(everything(loadBalancerSourceRanges=["198.51.100.0/24"]), make_slice([], version=2))
    assert send(machine, "pod", "vip") == DROPPED
    assert send(machine, "outside", "vip") == REJECT


@pytest.mark.parametrize(("mode", "served"), [(None, True), ("VIP", True), ("Proxy", False)])
def test_ip_mode(mode: str | None, served: bool) -> None:
    machine = machine_with(everything(ingress=[{"ip": LB, "ipMode": mode}]), make_slice([THERE]))
    expected = evenly("10.0.0.2 8080", masquerade=True) if served else evenly(f"{LB} 80")
    assert send(machine, "outside", "vip") == expected


def test_masquerading_of_cluster_ips() -> None:
    plain, masqueraded = evenly("10.0.0.2 8080"), evenly("10.0.0.2 8080", masquerade=True)
    for rules, expected in (
        (PODS, (plain, masqueraded, masqueraded)),
        (RulesConfig(), (plain, plain, plain)),
        (RulesConfig(masquerade_all=True), (masqueraded, masqueraded, masqueraded)),
    ):
        machine = machine_with(service(), make_slice([THERE]), rules=rules)
        assert (
            tuple(send(machine, sender, "cluster") for sender in ("pod", "node", "outside"))
            == expected
        )
    without = machine_with(
        everything(externalTrafficPolicy="Local"), make_slice([THERE]), rules=RulesConfig()
    )
    assert send(without, "pod", "vip") == DROPPED, "nothing tells a pod of this node from others"


@pytest.mark.parametrize(
    ("rules", "iif", "own"),
    [
        (
            RulesConfig(detect_local_mode="BridgeInterface", pod_bridge_interface="cni0"),
            "cni0",
            True,
        ),
        (
            RulesConfig(detect_local_mode="BridgeInterface", pod_bridge_interface="cni0"),
            "cni01",
            False,
        ),
        (
            RulesConfig(detect_local_mode="InterfaceNamePrefix", pod_interface_name_prefix="veth"),
            "veth12",
            True,
        ),
        (
            RulesConfig(detect_local_mode="InterfaceNamePrefix", pod_interface_name_prefix="veth"),
            "eth0",
            False,
        ),
    ],
)
def test_pods_told_by_interface(rules: RulesConfig, iif: str, own: bool) -> None:
    machine = machine_with(service(), make_slice([THERE]), rules=rules)
    assert machine.send(saddr=POD, path="forwarded", iif=iif) == evenly(
        "10.0.0.2 8080", masquerade=not own
    )


def test_node_cidr_is_known_when_the_node_is() -> None:
    machine = Machine(rules=RulesConfig(detect_local_mode="NodeCIDR"))
    machine.put(service(), make_slice([THERE]))
    assert send(machine, "outside", "cluster") == evenly("10.0.0.2 8080")
    machine.put(node("", NODE_IP, podCIDRs=["10.0.9.0/24", "fd00::/64"]))
    assert send(machine, "outside", "cluster") == evenly("10.0.0.2 8080", masquerade=True)
    assert send(machine, "pod", "cluster") == evenly("10.0.0.2 8080")


def test_unallocated_cluster_ips_are_dropped_at_once() -> None:
    machine = machine_with(service(), make_slice([THERE]))
    document = {"metadata": {"name": "a"}, "spec": {"cidrs": ["172.30.0.0/24", "fd30::/112"]}}
    cidr = codec.decode(codec.encode(document), ServiceCIDR)
    assert machine.send("172.30.0.77", path="forwarded") == evenly("172.30.0.77 80")
    machine.plane.on_service_cidr("a", cidr, machine.now)
    assert machine.send("172.30.0.77", path="forwarded") == DROPPED
    assert machine.send("172.30.0.77") == DROPPED
    assert machine.send(dport=81, path="forwarded") == REJECT
    assert machine.send(path="forwarded") == evenly("10.0.0.2 8080")
    machine.plane.on_service_cidr("a", None, machine.now)
    assert machine.send("172.30.0.77", path="forwarded") == evenly("172.30.0.77 80")


class TestNodePortAddresses:
    @pytest.mark.parametrize(
        ("wanted", "ip", "interfaces", "expected"),
        [
            (("primary",), "192.168.0.1", (), ("192.168.0.1",)),
            (("primary",), "", (), None),
            ((), "192.168.0.1", (), None),
            (("fd00::/8",), "192.168.0.1", ("192.168.0.1",), None),
            (("0.0.0.0/0",), "192.168.0.1", ("192.168.0.1",), None),
            (
                ("10.0.0.0/8", "172.16.0.0/12"),
                "",
                ("10.9.0.1", "10.1.0.1", "192.168.0.1"),
                ("10.1.0.1", "10.9.0.1"),
            ),
            (("127.0.0.0/8", "10.0.0.0/8"), "", ("127.0.0.1", "10.1.0.1"), ("10.1.0.1",)),
            (("10.0.0.0/8",), "", (), ()),
        ],
    )
    def test_rule(
        self,
        wanted: tuple[str, ...],
        ip: str,
        interfaces: tuple[str, ...],
        expected: tuple[str, ...] | None,
    ) -> None:
        config = RulesConfig(node_port_addresses=wanted)
        network = NodeNetwork(ip=ip, interface_addresses=interfaces)
        assert node_port_addresses(config, "IPv4", network) == expected
        assert build_context(config, "IPv4", network).node_ports_listed == (expected is not None)

    def test_another_address_of_the_node_is_left_alone(self) -> None:
        machine = Machine(rules=PODS, own=(NODE_IP, "192.168.1.1"))
        machine.put(node("", NODE_IP), everything(), make_slice([]))
        assert machine.send("192.168.1.1", NODE_PORT, saddr=OUTSIDE, path="forwarded") == evenly(
            "192.168.1.1 30080"
        )
        machine.put(make_slice([THERE], version=2))
        assert machine.send("192.168.1.1", NODE_PORT, saddr=OUTSIDE, path="forwarded") == evenly(
            "192.168.1.1 30080"
        )

    def test_all_is_all_but_loopback(self) -> None:
        machine = Machine(rules=RulesConfig(node_port_addresses=()), own=(NODE_IP, "192.168.1.1"))
        machine.put(everything(), make_slice([THERE]))
        served = evenly("10.0.0.2 8080", masquerade=True)
        assert machine.send("192.168.1.1", NODE_PORT, saddr=OUTSIDE, path="forwarded") == served
        assert machine.send("127.0.0.1", NODE_PORT, saddr="127.0.0.1") == evenly("127.0.0.1 30080")
        assert machine.send(OUTSIDE, NODE_PORT, path="forwarded") == evenly(f"{OUTSIDE} 30080"), (
            "not this host's"
        )

    def test_an_address_that_comes_is_one_element(self) -> None:
        machine = Machine(rules=RulesConfig(node_port_addresses=("192.168.0.0/16",)))
        machine.plane.on_interfaces((NODE_IP,), 0.0)
        machine.sync()
        machine.plane.on_interfaces((NODE_IP, "192.168.1.1"), 0.0)
        transaction = machine.plane.take_transaction(0.0)
        assert transaction is not None
        assert transaction.commands[1:] == (
            AddElements(NODE_PORT_IPS.name, ((("192.168.1.1",), None),)),
        )


def test_an_endpoint_of_two_services_is_one_hairpin_element() -> None:
    machine = machine_with(
        everything(), make_slice([HERE]), service("twin", 2), make_slice([HERE], "twin")
    )
    machine.sync()
    assert list(machine.kernel.tables[machine.ref].containers[HAIRPIN.name].elements) == [
        ("10.0.0.1", "10.0.0.1", "tcp", 8080)
    ]


class TestAffinity:
    STICKY = {
        "sessionAffinity": "ClientIP",
        "sessionAffinityConfig": {"clientIP": {"timeoutSeconds": 60}},
    }

    def sets(self, machine: Machine) -> dict[str, Any]:
        machine.sync()
        containers = machine.kernel.tables[machine.ref].containers
        return {name: held for name, held in containers.items() if name.startswith("affinity-")}

    def test_who_is_remembered_stays(self) -> None:
        machine = machine_with(everything(**self.STICKY), make_slice([HERE, THERE]))
        assert send(machine, "pod", "cluster") == evenly("10.0.0.1 8080", "10.0.0.2 8080")
        sets = self.sets(machine)
        assert {held.definition.timeout_s for held in sets.values()} == {60}
        name = next(name for name in sets if "__10.0.0.2/8080" in name)
        sets[name].elements[POD,] = None
        for to in DESTINATIONS:
            assert set(send(machine, "pod", to)) <= set(evenly("10.0.0.2 8080")) | set(
                evenly("10.0.0.2 8080", masquerade=True)
            )

    def test_an_endpoint_that_went_is_forgotten(self) -> None:
        machine = machine_with(everything(**self.STICKY), make_slice([HERE, THERE]))
        name = next(name for name in self.sets(machine) if "__10.0.0.2/8080" in name)
        self.sets(machine)[name].elements[POD,] = None
        machine.put(make_slice([HERE], version=2))
        assert send(machine, "pod", "cluster") == evenly("10.0.0.1 8080")
        machine.put(make_slice([HERE, THERE], version=3))
        assert send(machine, "pod", "cluster") == evenly("10.0.0.1 8080", "10.0.0.2 8080")

    def test_others_stay_remembered(self) -> None:
        machine = machine_with(everything(**self.STICKY), make_slice([HERE, THERE]))
        name = next(name for name in self.sets(machine) if "__10.0.0.2/8080" in name)
        self.sets(machine)[name].elements[POD,] = None
        machine.put(make_slice([HERE, THERE, ep("10.0.0.3")], version=2))
        assert send(machine, "pod", "cluster") == evenly("10.0.0.2 8080")

    def test_a_new_table_takes_over_who_is_where(self) -> None:
        machine = machine_with(everything(**self.STICKY), make_slice([HERE, THERE]))
        name = next(name for name in self.sets(machine) if "__10.0.0.2/8080" in name)
        machine.plane.request_full_write(machine.now)
        assert needs_set_contents(machine.plane)
        memory = {name: ((POD, 30), (OUTSIDE, 0)), "affinity-of-nobody": ((POD, 30),)}
        machine.plane.rules.restore_sets(memory)
        transaction = machine.plane.take_transaction(machine.now)
        assert transaction is not None
        assert f"{POD} expires 30s" in transaction.render()
        machine.kernel.run(transaction)
        machine.plane.on_success(machine.now)
        assert send(machine, "pod", "cluster") == evenly("10.0.0.2 8080")
        assert len(send(machine, "outside", "cluster")) == 2
        assert not needs_set_contents(machine.plane)

    def test_coming_and_going_leaves_nothing(self) -> None:
        machine = machine_with(everything(), make_slice([HERE, THERE]))
        plain = self.state(machine)
        machine.put(everything(**self.STICKY))
        assert self.state(machine) != plain
        machine.put(everything(sessionAffinity="ClientIP"))
        assert {held.definition.timeout_s for held in self.sets(machine).values()} == {60, 10800}
        machine.put(everything())
        assert self.state(machine) == plain
        assert self.sets(machine) == {}

    def state(self, machine: Machine) -> Any:
        machine.sync()
        machine.now += 2
        machine.sync()
        table = machine.kernel.tables[machine.ref]
        return (
            sorted(table.chains),
            sorted(table.containers),
            table.containers["service-ips"].elements,
        )


class TestSizeOfChanges:
    """A change of one endpoint is a handful of elements, whatever kind of Service it is."""

    def size(self, machine: Machine) -> int:
        transaction = machine.plane.take_transaction(machine.now)
        assert transaction is not None
        machine.kernel.run(transaction)
        machine.plane.on_success(machine.now)
        kinds = (AddElements, DeleteElements)
        return sum(
            len(getattr(command, "items", getattr(command, "keys", ())))
            if isinstance(command, kinds)
            else 1
            for command in transaction.commands[1:]  # after the look at whose table it is
        )

    def test_external_chains_stay_when_endpoints_change(self) -> None:
        many = [ep(f"10.0.1.{number}") for number in range(100)]
        machine = machine_with(everything(), make_slice([HERE, *many]))
        machine.sync()
        machine.put(make_slice([HERE, THERE, *many[1:]], version=2))
        assert self.size(machine) == 2

    def test_service_and_endpoint_come_and_go(self) -> None:
        """Upstream: 6 operations and 4.  Ours: one element leads to an only endpoint."""
        machine = machine_with()
        machine.sync()
        machine.put(service(), make_slice([HERE]))
        assert self.size(machine) == 3
        machine.drop(service())
        assert self.size(machine) == 3

    def test_service_and_endpoints_come_and_go(self) -> None:
        """With a room, which stays."""
        machine = machine_with()
        machine.sync()
        machine.put(service(), make_slice([HERE, THERE]))
        assert self.size(machine) == 5 + len(bucket_commands(4))
        machine.drop(service())
        assert self.size(machine) == 5
        machine.put(service(), make_slice([HERE, THERE], version=2))
        assert self.size(machine) == 5

    def test_service_for_outside_with_endpoints_comes_and_goes(self) -> None:
        """With a map of targets; the chains are deleted later."""
        machine = machine_with()
        machine.sync()
        machine.put(service(externalIPs=["192.0.2.4"]), make_slice([HERE, THERE]))
        assert self.size(machine) == 12
        machine.drop(service())
        assert self.size(machine) == 6


# The rest: a plain second reading of what upstream's rules do.


@dataclass(frozen=True)
class Setting:
    service: Any
    endpoints: list[Any]
    rules: RulesConfig
    ranges: tuple[str, ...]


def expected(setting: Setting, sender: str, to: str) -> dict[PacketOutcome, Fraction]:
    """Where a packet goes, from the tables of the reference, with no chain in sight."""
    (port,) = service_ports(setting.service, "IPv4")
    saddr, _ = SENDERS[sender]
    if to == "vip" and setting.ranges:
        in_range = any(
            ipaddress.ip_address(saddr) in ipaddress.ip_network(network)
            for network in setting.ranges
        )
        if not in_range:
            return DROPPED
    found = categories(setting, port)
    detector = bool(setting.rules.cluster_cidrs)
    is_pod = saddr.startswith("10.0.")
    if to == "cluster":
        used = found.local if port.internal_local else found.cluster
        masquerade = setting.rules.masquerade_all or (detector and not is_pod)
    elif not port.external_local:
        used, masquerade = found.cluster, True
    elif detector and is_pod:
        used, masquerade = found.cluster, False
    elif sender == "node":
        used, masquerade = found.cluster, True
    else:
        used, masquerade = found.local, False
    if not used:
        return DROPPED if found.has_any else REJECT
    outcomes: dict[PacketOutcome, Fraction] = {}
    for endpoint in used:
        hairpin = endpoint.is_local and endpoint.ip == saddr
        outcome = PacketOutcome("accept", f"{endpoint.ip} 8080", masquerade or hairpin)
        outcomes[outcome] = outcomes.get(outcome, Fraction(0)) + Fraction(1, len(used))
    return dict(sorted(outcomes.items()))


def categories(setting: Setting, port: ServedPort) -> Categories:
    made = []
    for each in sorted(setting.endpoints, key=lambda each: each["addresses"][0]):
        conditions, hints = each.get("conditions", {}), each.get("hints", {}).get("forZones", [])
        made.append(
            NodeEndpoint(
                each["addresses"][0],
                8080,
                conditions.get("ready", True),
                conditions.get("serving", True),
                conditions.get("terminating", False),
                each.get("nodeName") == NODE,
                tuple(zone["name"] for zone in hints),
            )
        )
    return categorize(made, port, Locality(node=NODE, zone="a"))


extras = st.sampled_from([{}, {}, DYING, GONE, {"hints": {"forZones": [{"name": "a"}]}}])
endpoint_rows = st.lists(
    st.tuples(st.sampled_from(["10.0.0.1", "10.0.0.2", "10.0.0.3"]), st.booleans(), extras),
    unique_by=lambda row: row[0],
    max_size=3,
).map(
    lambda rows: [
        ep(ip, **({"nodeName": NODE} if here else {}), **extra) for ip, here, extra in rows
    ]
)
policies = st.sampled_from(["Cluster", "Local"])
settings = st.builds(
    lambda internal, outside, rows, rules, ranges, affinity: Setting(
        everything(
            internalTrafficPolicy=internal,
            externalTrafficPolicy=outside,
            sessionAffinity=affinity,
            loadBalancerSourceRanges=list(ranges),
        ),
        rows,
        rules,
        ranges,
    ),
    policies,
    policies,
    endpoint_rows,
    st.sampled_from(
        [PODS, RulesConfig(), RulesConfig(cluster_cidrs=("10.0.0.0/8",), masquerade_all=True)]
    ),
    st.sampled_from([(), ("198.51.100.0/24",), ("10.0.0.0/8", "192.168.0.1/32")]),
    st.sampled_from(["None", "ClientIP"]),
)


@given(st.lists(settings, min_size=1, max_size=4))
def test_any_service_after_any_history_is_as_the_tables_say(history: list[Setting]) -> None:
    rules = history[0].rules
    machine = Machine(rules=rules)
    machine.put(node("a", NODE_IP))
    for version, setting in enumerate(history, 1):
        machine.put(setting.service, make_slice(setting.endpoints, version=version))
        machine.sync()
        machine.now += 0.6
        if version == 2:
            machine.kernel.run(deletion(machine.ref))  # somebody else's hand
            machine.plane.request_full_write(machine.now)
        seen = Setting(setting.service, setting.endpoints, rules, setting.ranges)
        for sender in SENDERS:
            for to in DESTINATIONS:
                assert send(machine, sender, to) == expected(seen, sender, to), (sender, to)


def test_a_detector_says_one_thing() -> None:
    with pytest.raises(AssertionError):
        match_local(Detector(), local=True)
