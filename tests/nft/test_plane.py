"""Objects in, packets out: a family's whole data plane against the fake kernel, seen by the packet
tracer.
"""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.nft.machine import (
    CLIENT,
    DROPPED,
    DYING,
    GONE,
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

from sliceplane.api.core import Service
from sliceplane.api.discovery import EndpointSlice
from sliceplane.node.nft.layout import HAIRPIN
from sliceplane.node.nft.objects import deletion
from sliceplane.node.nft.table import nft_plane
from sliceplane.node.nft.trace import Path
from sliceplane.node.plane import NodePlaneConfig


@pytest.mark.parametrize("path", ["local", "forwarded"])
def test_cluster_ip(path: Path) -> None:
    machine = Machine()
    machine.put(service(), make_slice(["10.0.0.1", "10.0.0.2", "10.0.0.3"]))
    assert machine.send(path=path) == evenly("10.0.0.1 8080", "10.0.0.2 8080", "10.0.0.3 8080")
    assert machine.send(dport=81, path=path) == REJECT
    assert machine.send(proto="udp", path=path) == REJECT
    assert machine.send("8.8.8.8", path=path) == evenly("8.8.8.8 80")
    machine.put(make_slice([], version=2))
    assert machine.send(path=path) == REJECT
    machine.drop(service())
    assert machine.send(path=path) == evenly(f"{VIP} 80")  # not ours any more


def test_ipv6_has_a_table_of_its_own() -> None:
    machine = Machine("IPv6")
    machine.put(service(), make_slice(["10.0.0.1"]), make_slice(["FD00::1"], kind="IPv6"))
    assert machine.send("fd30::1", saddr="fd00::9") == evenly("fd00::1 8080")
    assert machine.ref in machine.kernel.tables


def test_protocols_on_one_port_number_go_their_own_ways() -> None:
    machine = Machine()
    protocols = ("TCP", "UDP", "SCTP")
    machine.put(
        service(ports=[{"name": p.lower(), "port": 80, "protocol": p} for p in protocols]),
        make_slice(
            ["10.0.0.1"],
            ports=[
                {"name": p.lower(), "port": 8000 + n, "protocol": p}
                for n, p in enumerate(protocols)
            ],
        ),
    )
    for number, protocol in enumerate(protocols):
        assert machine.send(proto=protocol.lower()) == evenly(f"10.0.0.1 {8000 + number}")


def test_zone_hints_and_their_fallback() -> None:
    machine = Machine()
    hinted = [
        ep("10.0.0.1", hints={"forZones": [{"name": "a"}]}),
        ep("10.0.0.2", hints={"forZones": [{"name": "b"}]}),
    ]
    machine.put(service(), make_slice(hinted), node("a"))
    assert machine.send() == evenly("10.0.0.1 8080")
    machine.put(node("b"))
    assert machine.send() == evenly("10.0.0.2 8080")
    machine.put(node("c"))
    assert machine.send() == evenly("10.0.0.1 8080", "10.0.0.2 8080")


def test_terminating() -> None:
    machine = Machine()
    machine.put(service(), make_slice([ep("10.0.0.1", **DYING), ep("10.0.0.2")]))
    assert machine.send() == evenly("10.0.0.2 8080")
    machine.put(make_slice([ep("10.0.0.1", **DYING)], version=2))
    assert machine.send() == evenly("10.0.0.1 8080")
    machine.put(make_slice([ep("10.0.0.1", **GONE)], version=3))
    assert machine.send() == REJECT


def test_internal_local() -> None:
    machine = Machine()
    machine.put(
        service(internalTrafficPolicy="Local"),
        make_slice([ep("10.0.0.1", nodeName=NODE), ep("10.0.0.2")]),
    )
    assert machine.send() == evenly("10.0.0.1 8080")
    machine.put(make_slice(["10.0.0.2"], version=2))
    assert machine.send() == DROPPED
    machine.drop(make_slice([]))
    assert machine.send() == REJECT
    machine.put(service(), make_slice(["10.0.0.2"], version=3))
    assert machine.send() == evenly("10.0.0.2 8080")


def test_hairpin_is_masqueraded_and_shared() -> None:
    machine = Machine()
    here = make_slice([ep("10.0.0.1", nodeName=NODE)])
    machine.put(
        service(), here, service("twin", 2), make_slice([ep("10.0.0.1", nodeName=NODE)], "twin")
    )
    assert machine.send(saddr="10.0.0.1", path="forwarded") == evenly(
        "10.0.0.1 8080", masquerade=True
    )
    assert machine.send(path="forwarded") == evenly("10.0.0.1 8080")
    assert machine.send("10.0.0.1", 8080, saddr="10.0.0.1") == evenly(
        "10.0.0.1 8080"
    )  # not through a service
    machine.drop(service("twin", 2))
    assert machine.send(saddr="10.0.0.1", path="forwarded") == evenly(
        "10.0.0.1 8080", masquerade=True
    )
    machine.drop(service())
    machine.sync()
    assert machine.kernel.tables[machine.ref].containers[HAIRPIN.name].elements == {}


def test_nothing_is_written_before_the_lists_are_complete() -> None:
    plane = nft_plane("IPv4", NodePlaneConfig(node_name=NODE))
    plane.on_service(None, service(), 0.0)
    assert not plane.schedule.due(100.0)
    assert plane.schedule.next_deadline() is None
    plane.on_synced(100.0)
    assert plane.schedule.due(100.0)


def test_changes_that_mean_nothing_write_nothing() -> None:
    machine = Machine()
    machine.put(service(), make_slice(["10.0.0.1"]))
    machine.sync()
    writes = machine.plane.writes
    machine.put(
        make_slice([ep("10.0.0.1", zone="b")], version=2)
    )  # a change, but not for the rules
    machine.put(service(sessionAffinity="None"))
    machine.sync()
    assert machine.plane.writes == writes
    assert machine.plane.schedule.freshness.pending_since is None


def test_health_sees_that_nothing_can_be_written() -> None:
    """k/k#105742: healthy for days while rules were never updated."""
    machine = Machine()
    machine.put(service(), make_slice(["10.0.0.1"]))
    for attempt in range(5):
        machine.now = machine.plane.schedule.next_deadline() or 0.0
        assert machine.plane.take_transaction(machine.now) is not None
        machine.plane.on_failure(machine.now)
        assert machine.plane.schedule.freshness.failures == attempt + 1
    assert machine.plane.schedule.freshness.last_success is None
    assert machine.plane.schedule.freshness.staleness_s(machine.now + 100) >= 100
    machine.now = machine.plane.schedule.next_deadline() or 0.0
    assert machine.send() == evenly("10.0.0.1 8080")
    assert machine.plane.schedule.freshness.staleness_s(machine.now + 100) == 0


NAMES = {"svc": 1, "web": 2, "api": 3}
addresses = st.lists(st.sampled_from([f"10.0.0.{n}" for n in range(1, 6)]), unique=True, max_size=5)
steps = st.lists(
    st.one_of(
        st.tuples(
            st.just("service"),
            st.sampled_from(sorted(NAMES)),
            st.sampled_from([None, "Cluster", "Local"]),
        ),
        st.tuples(
            st.just("slice"),
            st.sampled_from(sorted(NAMES)),
            st.one_of(
                st.none(),
                st.lists(
                    st.tuples(
                        st.sampled_from([f"10.0.0.{n}" for n in range(1, 5)]),
                        st.sampled_from(
                            [
                                {},
                                DYING,
                                GONE,
                                {"nodeName": NODE},
                                {"hints": {"forZones": [{"name": "a"}]}},
                            ]
                        ),
                    ),
                    unique_by=lambda row: row[0],
                    max_size=4,
                ),
            ),
        ),
        st.tuples(st.just("node"), st.just(""), st.sampled_from(["a", "b"])),
        st.tuples(st.just("sync"), st.just(""), st.just(0)),
        st.tuples(st.just("damage"), st.just(""), st.just(0)),
        st.tuples(st.just("wait"), st.just(""), st.just(0)),
    ),
    max_size=30,
)


@given(steps)
def test_any_history_routes_like_a_fresh_start(history: list[tuple[str, str, Any]]) -> None:
    machine = Machine()
    machine.sync()
    for version, (kind, name, what) in enumerate(history, 1):
        if kind == "service" and what is not None:
            machine.put(service(name, NAMES[name], internalTrafficPolicy=what))
        elif kind == "service" and (Service, f"ns/{name}") in machine.known:
            machine.drop(service(name))
        elif kind == "slice" and what is not None:
            machine.put(
                make_slice([ep(address, **extra) for address, extra in what], name, version=version)
            )
        elif kind == "slice" and (EndpointSlice, f"ns/{name}-ipv4") in machine.known:
            machine.drop(make_slice([], name))
        elif kind == "node":
            machine.put(node(what))
        elif kind == "damage":
            machine.kernel.run(deletion(machine.ref))
        elif kind == "wait":
            machine.now += 0.6
        elif kind == "sync":
            machine.sync()
    machine.put(service("last", 9))  # a difference for sure, so damage is noticed
    machine.sync()
    machine.now += 5
    machine.sync()

    newcomer = Machine()
    newcomer.put(*reversed(machine.known.values()))
    for saddr in (CLIENT, "10.0.0.1", "10.0.0.2"):
        for number in (*NAMES.values(), 9):
            for path in ("local", "forwarded"):
                packet = (f"172.30.0.{number}", 80, "tcp", saddr, path)
                assert machine.send(*packet) == newcomer.send(*packet)  # type: ignore[arg-type]  # path is a Path
    for container in (
        "service-ips",
        "single-endpoints",
        "no-endpoint-services",
        "cluster-ips",
        "hairpin-connections",
    ):
        found, expected = (
            m.kernel.tables[m.ref].containers[container].elements for m in (machine, newcomer)
        )
        assert found == expected
    chains = [set(m.kernel.tables[m.ref].chains) for m in (machine, newcomer)]
    assert chains[0] == chains[1]


def elements_in(machine: Machine) -> dict[str, Any]:
    containers = machine.kernel.tables[machine.ref].containers
    return {name: held.elements for name, held in containers.items() if held.elements}


def test_churn_leaves_nothing_behind() -> None:
    """Every kind of Service comes and goes; then the node holds what it held before, and the rules
    of a room.
    """
    empty, machine = Machine(), Machine()
    empty.put(service(), make_slice(["10.0.0.1", "10.0.0.2"]))
    empty.sync()
    empty.drop(service())
    empty.drop(make_slice([]))
    empty.sync()
    sorts: list[dict[str, Any]] = [
        {},
        {"sessionAffinity": "ClientIP"},
        {"type": "LoadBalancer", "externalTrafficPolicy": "Local", "healthCheckNodePort": 31000},
        {"externalIPs": ["192.0.2.1"], "internalTrafficPolicy": "Local"},
        {"ports": [{"name": "dns", "port": 53, "protocol": "UDP"}]},
    ]
    for turn in range(4):
        for number, spec in enumerate(sorts, 1):
            machine.put(service(f"s{number}", number, **spec))
            for version in range(3):
                rows = [ep(f"10.0.{turn}.{version}", nodeName=NODE), f"10.0.9.{version}"]
                machine.put(make_slice(rows[version % 2 :], f"s{number}", version=1 + version))
                machine.sync()
        for number in range(1, len(sorts) + 1):
            machine.drop(service(f"s{number}", number))
            machine.drop(make_slice([], f"s{number}"))
        machine.sync()
        machine.now += 5
        machine.sync()
    assert machine.kernel.tables == empty.kernel.tables
    assert elements_in(empty) == {}
    assert len(machine.plane.tracker.services()) == 0
    assert machine.plane.post_sync.udp_services() == ()
    assert machine.plane.post_sync.health_checks == {}
    assert machine.plane.schedule.next_deadline() is None
