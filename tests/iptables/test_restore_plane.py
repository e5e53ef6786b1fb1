"""iptables back end, objects in and text out: what a change writes, what a whole write finds, and
that any history of changes comes to what a fresh start would have written.
"""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.iptables.fake import FakeError, FakeTables
from tests.iptables.restorer import Machine, plain
from tests.nft.machine import DYING, GONE, NODE, NODE_IP, ep, make_slice, node, service

from sliceplane.api.core import Service
from sliceplane.api.discovery import EndpointSlice
from sliceplane.consume.model import ServiceKey, ServicePortName
from sliceplane.node.iptables.layout import JUMPS
from sliceplane.node.iptables.saved import parse_saved, removal
from sliceplane.node.iptables.text import NAME_LENGTH_MAX, chain_name


def unordered(tables: dict[str, dict[str, list[str]]]) -> dict[str, dict[str, list[str]]]:
    """Rules of shared chains are for one destination each, so their order means nothing."""
    shared = (
        "KUBE-SERVICES",
        "KUBE-EXTERNAL-SERVICES",
        "KUBE-NODEPORTS",
        "KUBE-CLUSTER-IPS",
        "KUBE-PROXY-FIREWALL",
    )
    return {
        table: {
            chain: sorted(rules) if chain in shared else rules
            for chain, rules in sorted(chains.items())
        }
        for table, chains in tables.items()
    }


@pytest.mark.parametrize(
    ("service_name", "port", "protocol", "name"),
    [
        ("default/kubernetes", "https", "TCP", "KUBE-SVC-NPX46M4PTMTKRN6Y"),
        ("kube-system/kube-dns", "dns-tcp", "TCP", "KUBE-SVC-ERIFXISQEP7F7OF4"),
        ("kube-system/kube-dns", "dns", "UDP", "KUBE-SVC-TCOU7JCQXEZGVUNU"),
    ],
)
def test_names_are_those_that_people_know(
    service_name: str, port: str, protocol: str, name: str
) -> None:
    namespace, _, own = service_name.partition("/")
    found = ServicePortName(ServiceKey(namespace, own), port, protocol)
    assert chain_name("KUBE-SVC-", found) == name
    assert len(chain_name("KUBE-SEP-", found, "10.0.0.1:80")) <= NAME_LENGTH_MAX


def test_one_changed_endpoint_writes_the_chains_of_its_service() -> None:
    machine = Machine()
    for number in range(1, 30):
        machine.put(
            service(f"s{number}", number),
            make_slice([f"10.0.{number}.1", f"10.0.{number}.2"], f"s{number}"),
        )
    machine.sync()
    machine.put(make_slice(["10.0.7.1", "10.0.7.3"], "s7", version=2))
    machine.sync()
    service_name = ServicePortName(ServiceKey("ns", "s7"), "http", "TCP")
    chain = chain_name("KUBE-SVC-", service_name)
    stays, goes, comes = (
        chain_name("KUBE-SEP-", service_name, f"10.0.7.{n}:8080") for n in (1, 2, 3)
    )
    assert sorted(machine.texts[1].splitlines()) == sorted(
        [
            "*nat",
            f":{chain} - [0:0]",
            f":{comes} - [0:0]",
            f":{goes} - [0:0]",
            f"-A {chain} -m statistic --mode random --probability 0.5000000000 -j {stays}",
            f"-A {chain} -j {comes}",
            f"-A {comes} -p tcp -j DNAT --to-destination 10.0.7.3:8080",
            f"-X {goes}",
            "COMMIT",
        ]
    )


def test_refusals_come_before_translations_go_and_go_after_they_have_come() -> None:
    machine = Machine()
    machine.put(service(), make_slice(["10.0.0.1"]))
    machine.sync()
    machine.put(make_slice([], version=2))
    machine.sync()
    machine.put(make_slice(["10.0.0.1"], version=3))
    machine.sync()

    def steps(text: str) -> list[str]:
        return [line for line in text.splitlines() if line.startswith(("*", "-I", "-D"))]

    refused, served = steps(machine.texts[1]), steps(machine.texts[2])
    assert [line.split()[0] for line in refused] == ["*filter", "-I", "*nat", "-D"]
    assert [line.split()[0] for line in served] == ["*nat", "-I", "*filter", "-D"]
    assert refused[1].endswith("-j KUBE-REJECT")


def test_a_failed_write_makes_the_next_one_whole() -> None:
    machine = Machine()
    machine.put(service(), make_slice(["10.0.0.1"]))
    machine.sync()
    machine.put(make_slice(["10.0.0.2"], version=2))
    machine.failures = 1
    machine.sync()
    assert ":KUBE-POSTROUTING" not in machine.texts[1]
    assert ":KUBE-POSTROUTING" in machine.texts[2]
    assert plain(machine.send()) == {("accept", "10.0.0.2 8080", False): 1}


def test_what_changes_during_a_write_of_everything_is_not_lost() -> None:
    """The node's address arrives while the kernel takes the first write, and changes what is
    static.
    """
    machine = Machine()
    transaction = machine.plane.take_transaction(0.0)
    assert transaction is not None
    machine.put(node("a", NODE_IP))
    machine.kernel.restore(transaction.render(parse_saved(machine.kernel.save())))
    machine.plane.on_success(0.0)
    machine.sync()
    assert machine.kernel.tables["nat"]["KUBE-SERVICES"] == [f"-d {NODE_IP}/32 -j KUBE-NODEPORTS"]


def test_a_restart_takes_over_what_is_there_and_removes_what_is_too_much() -> None:
    before = Machine()
    before.put(service("kept", 1), make_slice(["10.0.0.1"], "kept"))
    before.put(service("gone", 2), make_slice(["10.0.0.2"], "gone"))
    before.sync()
    kernel = before.kernel
    kernel.restore(
        "*nat\n:OTHERS - [0:0]\n-A OTHERS -j RETURN\n-I PREROUTING 1 -j OTHERS\nCOMMIT\n"
    )
    # an older kube-proxy's chain, and its way of spelling a jump
    kernel.restore("*nat\n:KUBE-XLB-AAAA - [0:0]\n-A PREROUTING -j KUBE-SERVICES\nCOMMIT\n")
    after = Machine(kernel=kernel)
    after.put(service("kept", 1), make_slice(["10.0.0.1"], "kept"))
    after.sync()
    fresh = Machine()
    fresh.put(*after.known.values())
    fresh.sync()
    found = {table: dict(chains) for table, chains in kernel.tables.items()}
    assert found["nat"].pop("OTHERS") == ["-j RETURN"]
    assert found["nat"]["PREROUTING"] == [*JUMPS["nat", "PREROUTING"], "-j OTHERS"]
    found["nat"]["PREROUTING"] = fresh.kernel.tables["nat"]["PREROUTING"]
    assert unordered(found) == unordered(fresh.kernel.tables)


def test_clean_up_takes_all_and_nothing_else() -> None:
    machine, untouched = Machine(), FakeTables()
    for kernel in (machine.kernel, untouched):
        kernel.restore(
            "*nat\n:OTHERS - [0:0]\n-A OTHERS -j RETURN\n-I PREROUTING 1 -j OTHERS\nCOMMIT\n"
        )
    machine.put(service(sessionAffinity="ClientIP"), make_slice([ep("10.0.0.1", nodeName=NODE)]))
    machine.sync()
    machine.kernel.restore(removal(parse_saved(machine.kernel.save())))
    assert machine.kernel.tables == untouched.tables
    assert removal(parse_saved(machine.kernel.save())) == ""


def test_an_affine_client_is_looked_for_before_the_draw() -> None:
    machine = Machine()
    machine.put(
        service(
            sessionAffinity="ClientIP", sessionAffinityConfig={"clientIP": {"timeoutSeconds": 77}}
        ),
        make_slice(["10.0.0.1", "10.0.0.2"]),
    )
    machine.sync()
    nat = machine.kernel.tables["nat"]
    (chain,) = (rules for name, rules in nat.items() if name.startswith("KUBE-SVC-"))
    assert [line.split()[1] for line in chain[:3]] == ["recent", "recent", "statistic"]
    assert all("--rcheck --seconds 77 --reap" in line for line in chain[:2])
    endpoints = {name: rules for name, rules in nat.items() if name.startswith("KUBE-SEP-")}
    assert all(f"-m recent --set --name {name} " in rules[-1] for name, rules in endpoints.items())


def test_two_services_on_one_address_the_first_has_it() -> None:
    machine = Machine()
    for name, number in (("b", 2), ("a", 1)):
        machine.put(
            service(name, number, externalIPs=["192.0.2.1"]), make_slice([f"10.0.0.{number}"], name)
        )
        machine.sync()
    assert plain(machine.send("192.0.2.1")) == {("accept", "10.0.0.1 8080", True): 1}
    machine.drop(service("a", 1))
    assert plain(machine.send("192.0.2.1")) == {("accept", "10.0.0.2 8080", True): 1}


def test_names_that_no_server_lets_through_break_no_text() -> None:
    machine = Machine()
    hostile = 'x" -j ACCEPT\n-A INPUT -j ACCEPT\n' + "y" * 300
    machine.put(service(ports=[{"name": hostile, "port": 80, "protocol": "TCP"}]))
    machine.put(
        make_slice(["10.0.0.1"], ports=[{"name": hostile, "port": 8080, "protocol": "TCP"}])
    )
    assert plain(machine.send()) == {("accept", "172.30.0.1 80", False): 1}, "no Service"
    assert all("y" * 9 not in text for text in machine.texts)
    assert machine.kernel.tables["filter"]["INPUT"] == list(JUMPS["filter", "INPUT"])


@pytest.mark.parametrize(
    "text",
    [
        "*nat\n-D PREROUTING -j NONE\nCOMMIT\n",
        "*nat\n-A PREROUTING -j NONE\nCOMMIT\n",
        "*nat\n:A - [0:0]\n-A PREROUTING -j A\n-X A\nCOMMIT\n",
        "*nat\n:A - [0:0]\n-A A -j RETURN\n-X A\nCOMMIT\n",
        "*raw\nCOMMIT\n",
        "*nat\n:A123456789012345678901234567890 - [0:0]\nCOMMIT\n",
        "*nat\n:A - [0:0]\n",
    ],
)
def test_the_fake_kernel_refuses(text: str) -> None:
    kernel = FakeTables()
    with pytest.raises(FakeError):
        kernel.restore(text)
    assert kernel.tables == FakeTables().tables


NAMES = {"svc": 1, "web": 2, "api": 3}
SORTS: dict[str, dict[str, Any]] = {
    "plain": {},
    "local": {"internalTrafficPolicy": "Local"},
    "sticky": {"sessionAffinity": "ClientIP"},
    "shared": {"externalIPs": ["192.0.2.1"]},
    "balanced": {
        "type": "LoadBalancer",
        "externalTrafficPolicy": "Local",
        "ingress": [{"ip": "203.0.113.1"}],
        "loadBalancerSourceRanges": ["8.8.0.0/16"],
        "ports": [{"name": "http", "port": 80, "protocol": "TCP", "nodePort": 30080}],
    },
}
states = st.sampled_from(
    [{}, DYING, GONE, {"nodeName": NODE}, {"hints": {"forZones": [{"name": "a"}]}}]
)
rows = st.lists(
    st.tuples(st.sampled_from([f"10.0.0.{n}" for n in range(1, 5)]), states),
    unique_by=lambda row: row[0],
    max_size=4,
)
steps = st.lists(
    st.one_of(
        st.tuples(
            st.just("service"), st.sampled_from(sorted(NAMES)), st.sampled_from([None, *SORTS])
        ),
        st.tuples(st.just("slice"), st.sampled_from(sorted(NAMES)), st.none() | rows),
        st.tuples(st.just("node"), st.just(""), st.sampled_from(["a", "b"])),
        st.tuples(st.just("sync"), st.just(""), st.integers(0, 2)),
        st.tuples(st.just("damage"), st.just(""), st.sampled_from(["filter", "nat"])),
    ),
    max_size=30,
)


@given(steps)
def test_any_history_comes_to_what_a_fresh_start_writes(
    history: list[tuple[str, str, Any]],
) -> None:
    machine = Machine()
    machine.sync()
    for version, (kind, name, what) in enumerate(history, 1):
        if kind == "service" and what is not None:
            machine.put(service(name, NAMES[name], **SORTS[what]))
        elif kind == "service" and (Service, f"ns/{name}") in machine.known:
            machine.drop(service(name))
        elif kind == "slice" and what is not None:
            machine.put(
                make_slice([ep(address, **extra) for address, extra in what], name, version=version)
            )
        elif kind == "slice" and (EndpointSlice, f"ns/{name}-ipv4") in machine.known:
            machine.drop(make_slice([], name))
        elif kind == "node":
            machine.put(node(what, NODE_IP))
        elif kind == "sync":
            machine.failures = what
            machine.sync()
            machine.failures = 0
        elif kind == "damage":
            machine.kernel.tables[what] = FakeTables().tables[what]
            machine.plane.request_full_write(machine.now)
    machine.sync()
    fresh = Machine()
    fresh.put(*reversed(machine.known.values()))
    fresh.sync()
    assert unordered(machine.kernel.tables) == unordered(fresh.kernel.tables)


def test_churn_leaves_nothing_behind() -> None:
    empty, machine = Machine(), Machine()
    empty.sync()
    for turn in range(3):
        for number, spec in enumerate(SORTS.values(), 1):
            machine.put(service(f"s{number}", number, **spec))
            machine.put(
                make_slice([ep(f"10.0.{turn}.{number}", nodeName=NODE), "10.0.9.1"], f"s{number}")
            )
            machine.sync()
        for number in range(1, len(SORTS) + 1):
            machine.drop(service(f"s{number}", number))
            machine.drop(make_slice([], f"s{number}"))
        machine.sync()
    assert machine.kernel.tables == empty.kernel.tables
    assert machine.plane.schedule.next_deadline() is None
