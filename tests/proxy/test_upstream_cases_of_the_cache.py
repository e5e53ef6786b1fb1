"""Cases that upstream's own tests of its slice cache and trackers cover, where ours had none
yet.
"""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from tests.nft.machine import DYING, GONE, VIP, Machine, ep, evenly, make_slice, service
from tests.proxy.test_slicecache import HTTP, SVC, Cache, make, pod
from tests.proxy.test_tracker import service as plain_service

from sliceplane.api import codec
from sliceplane.consume.model import ServiceKey
from sliceplane.consume.servicemap import service_ports
from sliceplane.kit.ip import Family

PORT = {"name": "http", "port": 80, "protocol": "TCP"}
ADMIN = {"name": "admin", "port": 81, "protocol": "TCP"}


def test_one_address_on_two_ports_of_two_slices_is_kept_four_times() -> None:
    cache = Cache()
    cache.put(make("s1", ["10.0.0.1", "10.0.0.2"]))
    cache.put(make("s2", ["10.0.0.1", "10.0.0.2"], ports=[{**PORT, "port": 8080}]))
    assert cache.http() == ["10.0.0.1:80", "10.0.0.1:8080", "10.0.0.2:80", "10.0.0.2:8080"]


@pytest.mark.parametrize("order", sorted(set(itertools.permutations(("dying", "dying", "live")))))
def test_the_live_one_wins_whatever_the_order(order: tuple[str, ...]) -> None:
    cache = Cache()
    each = {
        "dying": pod("10.0.0.1", ready=False, serving=True, terminating=True),
        "live": pod("10.0.0.1"),
    }
    cache.put(make(endpoints=[each[name] for name in order]))
    (found,) = cache.endpoints(SVC)[HTTP]
    assert (found.ready, found.terminating) == (True, False)


def test_objects_of_the_informers_cache_are_never_changed() -> None:
    subject = make(
        endpoints=[pod("010.0.0.1", "p", ready=False, terminating=True), "10.0.0.2"],
        ports=[PORT, ADMIN],
    )
    before = codec.encode(subject)
    cache = Cache()
    cache.put(subject)
    cache.endpoints(SVC)
    cache.drop(subject)
    assert codec.encode(subject) == before


@pytest.mark.parametrize(
    "ports",
    [
        [ADMIN, PORT],
        [PORT],
        [PORT, ADMIN, {**ADMIN, "name": "more"}],
        [PORT, {**ADMIN, "port": 82}],
    ],
)
def test_ports_reordered_added_or_removed_are_a_change(ports: list[Any]) -> None:
    cache = Cache()
    cache.put(make(endpoints=["10.0.0.1"], ports=[PORT, ADMIN]))
    assert cache.put(make(endpoints=["10.0.0.1"], ports=[PORT, ADMIN], version="2")) == ()
    assert cache.put(make(endpoints=["10.0.0.1"], ports=ports, version="3")) == (SVC,)


@pytest.mark.parametrize("slices", [("ns/s1",), ("ns/s1", "ns/s2"), ("ns/s1", "other/s1")])
def test_the_last_slice_takes_its_service_with_it(slices: tuple[str, ...]) -> None:
    cache = Cache()
    made = [
        make(key.partition("/")[2], ["10.0.0.1"], namespace=key.partition("/")[0]) for key in slices
    ]
    for each in made:
        cache.put(each)
    for number, each in enumerate(made):
        assert set(cache.services()) == {
            ServiceKey(left.metadata.namespace, "svc") for left in made[number:]
        }
        cache.drop(each)
    assert cache.services() == ()


class TestEndpointMaps:
    """Names and numbers of ports, slices, conditions: what each step leaves, and whether UDP flows
    are looked at.
    """

    DNS = {"name": "dns", "port": 53, "protocol": "UDP"}

    def targets(self, machine: Machine) -> tuple[list[str], bool]:
        machine.sync()
        states = machine.plane.tracker.state(ServiceKey("ns", "svc"))
        found = [
            f"{e.ip}:{e.port}/{state.port.name.port}"
            for state in states
            for e in state.categories.cluster
        ]
        return found, bool(machine.plane.post_sync.take_udp())

    @pytest.mark.parametrize("protocol", ["TCP", "UDP"])
    def test_every_step(self, protocol: str) -> None:
        machine, udp = Machine(), protocol == "UDP"
        a, b = ({"name": name, "port": 80 + n, "protocol": protocol} for n, name in enumerate("ab"))
        machine.put(service(ports=[a, b]))
        assert self.targets(machine) == ([], udp)
        machine.put(make_slice(["10.0.0.1"], ports=[a]))
        assert self.targets(machine) == (["10.0.0.1:80/a"], udp)
        machine.put(make_slice(["10.0.0.1"], ports=[a], version=2))
        assert self.targets(machine) == (["10.0.0.1:80/a"], False), "nothing changed"
        machine.put(make_slice(["10.0.0.1"], ports=[{**a, "port": 8080}], version=3))
        assert self.targets(machine) == (["10.0.0.1:8080/a"], udp), "renumbered"
        machine.put(make_slice(["10.0.0.1"], ports=[{**a, "name": "b"}], version=4))
        assert self.targets(machine) == (["10.0.0.1:80/b"], udp), "renamed"
        second = make_slice(["10.0.0.2"], ports=[b], version=5)
        second = codec.decode(codec.encode(second).replace(b"svc-ipv4", b"second"), type(second))
        machine.put(second)
        assert self.targets(machine) == (["10.0.0.1:80/b", "10.0.0.2:81/b"], udp), "a slice more"
        machine.drop(second)
        assert self.targets(machine) == (["10.0.0.1:80/b"], udp), "and less"
        machine.put(make_slice([ep("10.0.0.1", **DYING)], ports=[{**a, "name": "b"}], version=6))
        assert self.targets(machine) == (["10.0.0.1:80/b"], udp), "still serving"
        machine.put(make_slice([ep("10.0.0.1", **GONE)], ports=[{**a, "name": "b"}], version=7))
        assert self.targets(machine) == ([], udp)
        machine.drop(make_slice([]))
        assert self.targets(machine) == ([], udp)


def test_what_came_and_went_between_two_writes_is_not_written() -> None:
    machine = Machine()
    machine.sync()
    writes = machine.plane.writes
    machine.put(service(), make_slice(["10.0.0.1"]))
    machine.drop(service())
    machine.drop(make_slice([]))
    machine.sync()
    assert machine.plane.writes == writes
    assert machine.plane.schedule.freshness.pending_since is None
    assert machine.send() == evenly(f"{VIP} 80")


def test_an_identical_object_marks_no_service() -> None:
    machine = Machine()
    machine.put(service())
    machine.sync()
    machine.put(service())
    assert machine.plane.tracker.pending == 0


@pytest.mark.parametrize("ports", [[], [PORT]])
@pytest.mark.parametrize(
    "spec",
    [{"clusterIP": "None"}, {"type": "ExternalName", "externalName": "example.com"}],
    ids=["headless", "name"],
)
def test_headless_and_external_names_are_not_in_the_map(
    ports: list[Any], spec: dict[str, Any]
) -> None:
    assert service_ports(plain_service(**{"ports": ports, **spec}), "IPv4") == ()


@pytest.mark.parametrize(("family", "other"), [("IPv4", "IPv6"), ("IPv6", "IPv4")])
def test_each_family_gets_only_what_is_its_own(family: Family, other: Family) -> None:
    """Cluster IPs, external IPs, ranges and VIPs."""
    both = service(
        type="LoadBalancer",
        externalIPs=["192.0.2.1", "2001:db8::1"],
        loadBalancerSourceRanges=["198.51.100.0/24", "2001:db8:1::/48"],
        ingress=[{"ip": "203.0.113.5"}, {"ip": "2001:db8::5"}],
    )
    (port,) = service_ports(both, family)
    told = (port.cluster_ip, *port.external_ips, *port.source_ranges, *port.vips)
    assert len(told) == 4
    assert {":" in text for text in told} == {family == "IPv6"}
    single = service(clusterIP=told[0], clusterIPs=[told[0]])
    assert len(service_ports(single, family)) == 1
    assert service_ports(single, other) == ()
