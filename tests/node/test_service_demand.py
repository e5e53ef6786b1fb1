"""Totals of connections by Service, against a kernel that is told of transactions and of packets,
and an oracle that adds up connections.
"""

from __future__ import annotations

from typing import Final

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from tests.nft import machine
from tests.nft.fake import FakeKernel

from sliceplane.api.core import Service
from sliceplane.api.selectors.distribution import ANNOTATION_TOPOLOGY_MODE
from sliceplane.consume.demand import MEASURED
from sliceplane.kit.ip import FAMILIES, Family
from sliceplane.node.demand import DESTINATIONS_MAX, SERVICES, TABLE, ServiceDemand, demand_table
from sliceplane.node.nft.netlink.containers import pack_key
from sliceplane.node.nft.objects import Key, Transaction
from sliceplane.node.nft.table import NFT_FAMILIES

PORTS: Final = (("TCP", 80), ("UDP", 80), ("SCTP", 5000))


def asking(name: str, number: int, ports: tuple[int, ...] = (0,), uid: str = "") -> Service:
    """A Service on 172.30.0.NUMBER and fd30::NUMBER with some of ``PORTS``; *uid* "-": no UID."""
    listed = [
        {"name": f"p{at}", "protocol": PORTS[at][0], "port": PORTS[at][1]} for at in sorted(ports)
    ]
    plain = machine.service(name, number, ports=listed)
    annotations = {ANNOTATION_TOPOLOGY_MODE: MEASURED}
    uid = uid or f"{name:0>8}"
    return replace(plain, metadata=replace(plain.metadata, uid=uid, annotations=annotations))


def silent(service: Service) -> Service:
    return replace(service, metadata=replace(service.metadata, annotations=None))


def keys_of(service: Service, family: Family) -> list[Key]:
    ips = [ip for ip in service.spec.cluster_ips or () if (":" in ip) == (family == "IPv6")]
    ports = service.spec.ports or ()
    return [(ip, port.protocol.lower(), port.port) for ip in ips for port in ports]


class Kernel:
    """Counts packets to the elements that transactions added."""

    def __init__(self) -> None:
        self.fake = FakeKernel()
        self._counters: dict[Family, dict[Key, int]] = {family: {} for family in FAMILIES}

    def run(self, family: Family, transaction: Transaction) -> None:
        self.fake.run(transaction)
        if transaction.full:
            self._counters[family] = {}
        self.read(family)

    def read(self, family: Family) -> dict[bytes, int] | None:
        table = self.fake.tables.get(demand_table(family))
        if table is None:
            self._counters[family] = {}
            return None
        elements = table.containers[SERVICES.name].elements
        kept = {key: self._counters[family].get(key, 0) for key in elements}
        self._counters[family] = kept
        return {pack_key(key, NFT_FAMILIES[family]): count for key, count in kept.items()}

    def connect(self, family: Family, key: Key, count: int) -> bool:
        """Returns True if the connections were counted."""
        self.read(family)
        counters = self._counters[family]
        if key in counters:
            counters[key] += count
        return key in counters


def update(demand: ServiceDemand, kernel: Kernel, *, fails: bool = False) -> int:
    """Does what the shell does; returns the number of transactions."""
    written = 0
    for family in FAMILIES:
        if demand.is_table_possible(family):
            demand.on_counts(family, kernel.read(family))
        transaction = demand.take_transaction(family)
        if transaction is None:
            continue
        if fails:
            demand.on_failed(family)
            continue
        kernel.run(family, transaction)
        written += 1
    return written


SERVICES_OF_TEST: Final = st.builds(
    asking,
    st.sampled_from("abc"),
    st.integers(1, 3),
    st.frozensets(st.integers(0, 2)).map(tuple),
)


@st.composite
def steps(draw: st.DrawFn) -> tuple[str, object]:
    kind = draw(st.sampled_from(["put", "put", "silence", "remove", "connect", "connect", "lose"]))
    match kind:
        case "put" | "silence":
            return kind, draw(SERVICES_OF_TEST)
        case "remove":
            return kind, draw(st.sampled_from("abc"))
        case "connect":
            at = draw(st.integers(0, 2))
            return kind, (
                draw(st.sampled_from(FAMILIES)),
                draw(st.integers(1, 3)),
                (PORTS[at][0].lower(), PORTS[at][1]),
                draw(st.integers(1, 9)),
            )
        case _:
            return kind, draw(st.sampled_from(FAMILIES))


class World:
    """Services as an informer has them, and each Service's connections added up."""

    def __init__(self) -> None:
        self.demand = ServiceDemand(FAMILIES)
        self.kernel = Kernel()
        self.services: dict[str, Service] = {}
        self.expected: dict[str, int] = {}

    def put(self, name: str, new: Service | None) -> None:
        old = self.services.pop(name, None)
        if new is not None:
            self.services[name] = new
        self.demand.on_service(old, new)
        if new is not None and new.metadata.annotations:
            self.expected.setdefault(f"{name:0>8}", 0)
        else:
            self.expected.pop(f"{name:0>8}", None)

    def owner(self, number: int) -> str:
        """Returns the Service that has the address and asks; "" if none does."""
        ip = f"172.30.0.{number}"
        return next(
            (
                name
                for name, item in self.services.items()
                if item.spec.cluster_ip == ip and item.metadata.annotations
            ),
            "",
        )

    def step(self, kind: str, value: object) -> None:
        match kind, value:
            case ("put" | "silence", Service() as service):
                name = service.metadata.name
                holder = next(
                    (
                        other
                        for other, item in self.services.items()
                        if item.spec.cluster_ip == service.spec.cluster_ip and other != name
                    ),
                    None,
                )
                if holder is None:  # an API server gives an address to one Service
                    self.put(name, silent(service) if kind == "silence" else service)
            case ("remove", str(name)):
                self.put(name, None)
            case ("connect", (family, number, (protocol, port), count)):
                ip = f"172.30.0.{number}" if family == "IPv4" else f"fd30::{number}"
                owner = self.owner(number)
                has_port = owner and (ip, protocol, port) in keys_of(self.services[owner], family)
                counted = self.kernel.connect(family, (ip, protocol, port), count)
                assert counted == bool(has_port)
                if counted:
                    self.expected[f"{owner:0>8}"] += count
            case ("lose", family):
                self.kernel.fake.tables.pop(demand_table(family), None)


@given(st.lists(steps(), max_size=40))
def test_totals_are_the_connections_of_services_that_ask(
    history: list[tuple[str, object]],
) -> None:
    world = World()
    for kind, value in history:
        update(world.demand, world.kernel)
        world.step(kind, value)
    update(world.demand, world.kernel)
    assert world.demand.totals() == world.expected
    for family in FAMILIES:
        keys = {
            key
            for service in world.services.values()
            if service.metadata.annotations
            for key in keys_of(service, family)
        }
        assert (demand_table(family) in world.kernel.fake.tables) == bool(keys)
        assert len(world.kernel.read(family) or {}) == len(keys)


@given(st.lists(st.tuples(steps(), st.booleans()), max_size=40))
def test_totals_never_shrink_while_a_service_asks(
    history: list[tuple[tuple[str, object], bool]],
) -> None:
    """Also if writes fail, and tables are lost between reads."""
    world = World()
    for (kind, value), fails in history:
        before = world.demand.totals()
        if kind == "connect":
            assert isinstance(value, tuple)
            family, number, (protocol, port), count = value
            ip = f"172.30.0.{number}" if family == "IPv4" else f"fd30::{number}"
            world.kernel.connect(family, (ip, protocol, port), count)
        else:
            world.step(kind, value)
        update(world.demand, world.kernel, fails=fails)
        after = world.demand.totals()
        assert all(after[uid] >= count for uid, count in before.items() if uid in after)
        assert after.keys() == world.expected.keys()


def test_an_unchanged_service_costs_no_transaction() -> None:
    demand, kernel = ServiceDemand(FAMILIES), Kernel()
    assert update(demand, kernel) == 0, "no Service asks: nothing is written"
    demand.on_service(None, asking("a", 1, (0, 1)))
    assert update(demand, kernel) == 2
    demand.on_service(asking("a", 1, (0, 1)), asking("a", 1, (0, 1)))
    assert update(demand, kernel) == 0
    demand.on_service(asking("a", 1, (0, 1)), asking("a", 1, (1, 2)))
    assert update(demand, kernel) == 2


def test_counters_of_a_former_process_are_ignored() -> None:
    former, kernel = ServiceDemand(FAMILIES), Kernel()
    former.on_service(None, asking("a", 1))
    update(former, kernel)
    kernel.connect("IPv4", ("172.30.0.1", "tcp", 80), 1000)
    demand = ServiceDemand(FAMILIES)
    demand.on_service(None, asking("a", 1))
    update(demand, kernel)
    assert demand.totals() == {"0000000a": 0}
    kernel.connect("IPv4", ("172.30.0.1", "tcp", 80), 3)
    update(demand, kernel)
    assert demand.totals() == {"0000000a": 3}
    demand.on_service(asking("a", 1), None)
    assert update(demand, kernel) == 2
    assert kernel.fake.tables == {}


def test_a_table_that_no_service_needs_is_removed_at_the_start() -> None:
    former, kernel = ServiceDemand(FAMILIES), Kernel()
    former.on_service(None, asking("a", 1))
    update(former, kernel)
    assert update(ServiceDemand(FAMILIES), kernel) == 2
    assert kernel.fake.tables == {}


def test_a_counter_that_another_program_resets() -> None:
    demand, packed = ServiceDemand(("IPv4",)), pack_key(("172.30.0.1", "tcp", 80), "ip")
    demand.on_service(None, asking("a", 1))
    demand.on_counts("IPv4", None)
    demand.take_transaction("IPv4")
    for count, total in ((7, 7), (2, 9), (2, 9), (5, 12)):
        demand.on_counts("IPv4", {packed: count, b"strange": 99})
        assert demand.totals() == {"0000000a": total}
    assert demand.take_transaction("IPv4") is None, "an element that another program added stays"


def test_a_service_made_anew_begins_at_zero_on_either_order_of_events() -> None:
    first, second = asking("a", 1, uid="aaaaaaaa-1"), asking("a", 1, uid="bbbbbbbb-2")
    packed = pack_key(("172.30.0.1", "tcp", 80), "ip")
    for changes in (((first, second),), ((first, None), (None, second))):
        demand = ServiceDemand(("IPv4",))
        demand.on_service(None, first)
        demand.on_counts("IPv4", None)
        demand.take_transaction("IPv4")
        demand.on_counts("IPv4", {packed: 5})
        for old, new in changes:
            demand.on_service(old, new)
        assert demand.totals() == {"bbbbbbbb": 0}
        demand.on_counts("IPv4", {packed: 7})
        assert demand.totals() == {"bbbbbbbb": 2}


def test_the_table_is_bounded() -> None:
    """What is beyond the bound is counted as soon as there is room, and unchanged Services stay."""
    demand, kernel = ServiceDemand(("IPv4",)), FakeKernel()
    services = []
    for number in range(3):
        ports = [{"port": 1 + at} for at in range(DESTINATIONS_MAX // 2)]
        plain = machine.service(f"{number}", 1 + number, ports=ports)
        service = replace(plain, metadata=asking(f"{number}", 1).metadata)
        demand.on_service(None, service)
        services.append(service)
    demand.on_counts("IPv4", None)

    def counted() -> set[str | int]:
        transaction = demand.take_transaction("IPv4")
        if transaction is not None:
            kernel.run(transaction)
        elements = kernel.tables[demand_table("IPv4")].containers[SERVICES.name].elements
        assert len(elements) == DESTINATIONS_MAX
        return {key[0] for key in elements}

    assert counted() == {"172.30.0.1", "172.30.0.2"}
    assert demand.uncounted == DESTINATIONS_MAX // 2
    demand.on_service(services[0], services[0])
    assert demand.take_transaction("IPv4") is None
    demand.on_service(services[0], None)
    assert counted() == {"172.30.0.2", "172.30.0.3"}
    assert demand.uncounted == 0


@pytest.mark.parametrize("uid", ["-", "short", "0a1b-c3d-x", "0a1b2c3é-x"])
def test_a_uid_that_a_report_cannot_have(uid: str) -> None:
    demand = ServiceDemand(FAMILIES)
    demand.on_service(None, asking("a", 1, uid=uid))
    demand.on_counts("IPv4", None)
    assert demand.totals() == {}
    assert demand.take_transaction("IPv4") is None


def test_what_a_strange_service_asks_for_is_left_out() -> None:
    """Addresses and ports that no API server accepts are not counted, and break nothing."""
    service = asking("a", 1)
    ips = ("None", "", "x; flush ruleset", "10.0.0.1/8", "fd00::1%eth0", "172.030.000.007")
    ports = tuple(
        replace((service.spec.ports or ())[0], protocol=protocol, port=port)
        for protocol, port in (("ICMP", 1), ("TCP", 0), ("TCP", 70_000), ("UDP", -1), ("udp", 53))
    )
    demand = ServiceDemand(FAMILIES)
    demand.on_service(
        None, replace(service, spec=replace(service.spec, cluster_ips=ips, ports=ports))
    )
    demand.on_counts("IPv4", None)
    demand.on_counts("IPv6", None)
    assert demand.take_transaction("IPv6") is None
    transaction = demand.take_transaction("IPv4")
    assert transaction is not None
    assert transaction.render().count("add element") == 1
    assert f"add element ip {TABLE} services {{ 172.30.0.7 . udp . 53 }}" in transaction.render()
