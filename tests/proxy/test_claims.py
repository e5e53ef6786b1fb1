"""Who gets which external address: compared with a dumb second implementation, and what attackers
tried.
"""

from __future__ import annotations

import ipaddress
import random
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from tests.growth.measure import GROWTH_MAX, Run, assert_linear, growth

from sliceplane.consume.claims import AddressClaims
from sliceplane.consume.grounds import Ground
from sliceplane.consume.model import ServedPort, ServiceKey, ServicePortName

VICTIM, EVIL, OTHER = (
    ServiceKey("prod", "victim"),
    ServiceKey("aaa", "evil"),
    ServiceKey("zzz", "other"),
)
ADDRESSES = (
    "10.96.0.1",
    "10.96.0.2",
    "10.0.0.1",
    "10.1.0.7",
    "203.0.113.1",
    "203.0.113.2",
    "127.0.0.1",
)
CIDR, PODS = Ground((), ("10.96.0.0/16",)), Ground((), ("10.1.0.0/24", "10.1.0.0/16"))
NODE = Ground(("10.0.0.1", "203.0.113.2"))


def port(
    key: ServiceKey, cluster_ip: str = "10.96.9.9", number: int = 80, **more: Any
) -> ServedPort:
    name = ServicePortName(key, f"p{number}", more.pop("protocol", "TCP"))
    return ServedPort(name=name, cluster_ip=cluster_ip, port=number, **more)


class Known:
    """Claims, and what they were told."""

    def __init__(self) -> None:
        self.claims = AddressClaims()
        self.services: dict[ServiceKey, tuple[str, tuple[ServedPort, ...]]] = {}
        self.grounds: dict[str, Ground] = {}
        self.withheld = False
        self.told: dict[ServiceKey, tuple[ServedPort, ...]] = {}

    def put(self, key: ServiceKey, created: str, *ports: ServedPort) -> None:
        _, before = self.services.get(key, ("", ()))
        marked = self.claims.on_service(key, created, before, ports) | (
            {key} if before != ports else set()
        )
        self.services[key] = created, ports
        if not ports:
            del self.services[key]
        self._look(marked)

    def ground(self, owner: str, ground: Ground) -> None:
        self.grounds[owner] = ground
        self._look(self.claims.set_ground(owner, ground))

    def withhold(self, withheld: bool) -> None:
        self.withheld = withheld
        self._look(self.claims.withhold(withheld))

    def _look(self, keys: set[ServiceKey]) -> None:
        for key in keys & self.services.keys():
            self.told[key] = self.claims.honoured(key, self.services[key][1])

    def got(self, key: ServiceKey) -> set[tuple[str, str, int]]:
        return {
            (ip, each.name.protocol, each.port)
            for each in self.claims.honoured(key, self.services[key][1])
            for ip in (*each.external_ips, *each.vips)
        }

    def expected(self, key: ServiceKey) -> tuple[ServedPort, ...]:
        """From the words of the module's docstring, looking through everything."""
        return tuple(
            ServedPort(
                name=each.name,
                cluster_ip=each.cluster_ip,
                port=each.port,
                node_port=each.node_port
                if self._first(("", each.name.protocol, each.node_port)) == key
                else 0,
                external_ips=tuple(
                    ip
                    for ip in each.external_ips
                    if (not self.withheld or ip in each.vips)
                    and not self._spoken_for(ip)
                    and self._first((ip, each.name.protocol, each.port)) == key
                ),
                vips=tuple(
                    ip
                    for ip in each.vips
                    if not self._spoken_for(ip)
                    and self._first((ip, each.name.protocol, each.port)) == key
                ),
            )
            for each in self.services[key][1]
        )

    def _spoken_for(self, ip: str) -> bool:
        address = ipaddress.ip_address(ip)
        if address.is_loopback or any(
            ports[0].cluster_ip == ip for _, ports in self.services.values()
        ):
            return True
        return any(
            ip in ground.addresses
            or any(address in ipaddress.ip_network(text) for text in ground.networks)
            for ground in self.grounds.values()
        )

    def _first(self, place: tuple[str, str, int]) -> ServiceKey | None:
        wanting = []
        for key, (created, ports) in self.services.items():
            for each in ports:
                if (each.name.protocol, each.port) == place[1:] and place[0] in (
                    *each.vips,
                    *each.external_ips,
                ):
                    wanting.append((place[0] not in each.vips, created == "", created, key))
                if not place[0] and (each.name.protocol, each.node_port) == place[1:]:
                    wanting.append((False, created == "", created, key))
        return min(wanting)[3] if wanting else None

    def check(self) -> None:
        self.claims.check((key, ports) for key, (_, ports) in self.services.items())
        for key in self.services:
            expected = self.expected(key)
            assert self.claims.honoured(key, self.services[key][1]) == expected
            assert self.told[key] == expected, f"{key} was not marked"
            lost = self.services[key][1] != expected
            assert bool(self.claims.refusals(key)) == lost, self.claims.refusals(key)


keys = st.sampled_from([VICTIM, EVIL, OTHER])
addresses = st.lists(st.sampled_from(ADDRESSES), max_size=3, unique=True).map(tuple)
ports = st.builds(
    lambda number, protocol, external, vips, node_port: {
        "number": number,
        "protocol": protocol,
        "external_ips": external,
        "vips": vips,
        "node_port": node_port,
    },
    st.sampled_from([80, 443]),
    st.sampled_from(["TCP", "UDP"]),
    addresses,
    addresses,
    st.sampled_from([0, 0, 30080]),
)
events = st.one_of(
    st.tuples(
        st.just("service"),
        keys,
        st.sampled_from(["", "2024-01-01T00:00:00Z", "2025-01-01T00:00:00Z"]),
        st.sampled_from(ADDRESSES[:3]),
        st.lists(ports, max_size=2, unique_by=lambda each: (each["number"], each["protocol"])),
    ),
    st.tuples(
        st.just("ground"),
        st.sampled_from(["Node n", "Node m", "range"]),
        st.sampled_from([Ground(), CIDR, PODS, NODE]),
    ),
    st.tuples(st.just("withhold"), st.booleans()),
)


@given(st.lists(events, max_size=25))
def test_claims_are_what_a_look_through_everything_says(history: list[Any]) -> None:
    known = Known()
    for event in history:
        match event:
            case ("service", key, created, cluster_ip, rows):
                known.put(key, created, *(port(key, cluster_ip, **row) for row in rows))
            case ("ground", owner, ground):
                known.ground(owner, ground)
            case ("withhold", withheld):
                known.withhold(withheld)
        known.check()


def test_a_cluster_ip_is_its_services_alone_whoever_comes_first_and_whatever_the_names() -> None:
    for order in ((EVIL, VICTIM), (VICTIM, EVIL)):
        known = Known()
        for key in order:
            known.put(
                key,
                "",
                port(key, "10.96.0.1") if key == VICTIM else port(key, external_ips=("10.96.0.1",)),
            )
        assert not known.got(EVIL)
        (refusal,) = known.claims.refusals(EVIL)
        assert str(refusal) == "10.96.0.1 is the cluster IP of Service prod/victim"


def test_an_external_ip_does_not_take_what_a_load_balancer_gave_nor_what_is_in_use() -> None:
    known = Known()
    known.put(VICTIM, "2025-01-01T00:00:00Z", port(VICTIM, "10.96.0.1", vips=("203.0.113.1",)))
    known.put(EVIL, "2020-01-01T00:00:00Z", port(EVIL, external_ips=("203.0.113.1",)))
    assert known.got(VICTIM)
    assert not known.got(EVIL)
    known.put(
        VICTIM, "2020-01-01T00:00:00Z", port(VICTIM, "10.96.0.1", external_ips=("203.0.113.2",))
    )
    known.put(EVIL, "2021-01-01T00:00:00Z", port(EVIL, external_ips=("203.0.113.2",)))
    assert known.got(VICTIM) == {("203.0.113.2", "TCP", 80)}
    assert not known.got(EVIL)
    assert (
        str(known.claims.refusals(EVIL)[0])
        == "203.0.113.2 port 80/TCP is served for Service prod/victim"
    )


def test_two_services_may_share_an_address_at_different_ports() -> None:
    known = Known()
    known.put(VICTIM, "", port(VICTIM, "10.96.0.1", external_ips=("203.0.113.1",)))
    known.put(OTHER, "", port(OTHER, number=443, external_ips=("203.0.113.1",)))
    assert known.got(VICTIM) == {("203.0.113.1", "TCP", 80)}
    assert known.got(OTHER) == {("203.0.113.1", "TCP", 443)}


def test_a_node_port_of_the_proxy_itself_is_no_services() -> None:
    claims = AddressClaims()
    claims.reserve_ports("the node proxy", [("TCP", 30256)])
    wanted = (port(EVIL, node_port=30256),)
    claims.on_service(EVIL, "", (), wanted)
    assert claims.honoured(EVIL, wanted)[0].node_port == 0
    assert str(claims.refusals(EVIL)[0]) == "node port 30256/TCP belongs to the node proxy"


def _steps(services: int, nodes: int) -> Run:
    """Seconds for one claim more beside so many, the best of several."""
    claims, rng = AddressClaims(), random.Random(1)
    for number in range(nodes):
        low = f"{number >> 8}.{number & 255}"
        claims.set_ground(
            f"Node {number}", Ground((f"10.200.{low}",), (f"10.{number & 127}.{number >> 7}.0/24",))
        )
    for number in range(services):
        key = ServiceKey("ns", f"s{number}")
        external = f"198.{18 + (number >> 16)}.{number >> 8 & 255}.{number & 255}"
        ip = f"10.250.{number >> 8}.{number & 255}"
        claims.on_service(key, "", (), (port(key, ip, external_ips=(external,)),))
    external = f"203.0.113.{rng.randrange(256)}"
    wanted = (port(EVIL, external_ips=(external, "10.3.0.9", "10.200.0.3")),)

    def run() -> None:
        for _ in range(200):
            claims.on_service(EVIL, "", (), wanted)
            claims.honoured(EVIL, wanted)
            claims.set_ground("Node 3", Ground(("10.200.0.4",)))
            claims.set_ground("Node 3", Ground(("10.200.0.3",)))
            claims.on_service(EVIL, "", wanted, ())

    return run


def test_a_claim_costs_the_same_beside_many() -> None:
    few, many = _steps(1_000, 125), _steps(16_000, 2_000)
    assert growth(lambda: few, lambda: many, too_short_s=0.0) <= GROWTH_MAX


def test_ten_thousand_services_that_ask_for_one_address_cost_each_other_nothing() -> None:
    def make(count: int) -> Run:
        def run() -> None:
            claims = AddressClaims()
            for number in range(count):
                key = ServiceKey("ns", f"s{number:05d}")
                marked = claims.on_service(key, "", (), (port(key, external_ips=("203.0.113.1",)),))
                assert len(marked) <= 2

        return run

    assert_linear(make, 10_000)


def test_a_load_balancers_own_address_among_the_external_ips_is_not_withheld() -> None:
    """It was taken from the external IPs without a word to who writes the rules."""
    known = Known()
    own = port(VICTIM, "10.96.0.1", number=80, external_ips=("192.0.2.9",), vips=("192.0.2.9",))
    known.put(VICTIM, "", own)
    known.withhold(True)
    known.check()
    assert known.claims.honoured(VICTIM, (own,)) == (own,)
