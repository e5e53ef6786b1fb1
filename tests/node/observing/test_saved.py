"""kube-proxy's iptables rules as ``iptables-save`` prints them."""

from __future__ import annotations

import pytest

from sliceplane.node.observing.graph import (
    RuleGraph,
    UnreadableRules,
    destination_key,
    read_destination,
    read_target,
)
from sliceplane.node.observing.saved import read_saved

#: two endpoints, a node port, a Service without endpoints, and a chain that lost its reference
SAVED = """\
*nat
:PREROUTING ACCEPT [0:0]
:OUTPUT ACCEPT [0:0]
:KUBE-SERVICES - [0:0]
-A PREROUTING -m comment --comment "kubernetes service portals" -j KUBE-SERVICES
-A OUTPUT -m comment --comment "kubernetes service portals" -j KUBE-SERVICES
-A KUBE-EXT-A -m comment --comment "masquerade traffic for demo/web" -j KUBE-MARK-MASQ
-A KUBE-EXT-A -j KUBE-SVC-A
-A KUBE-MARK-MASQ -j MARK --set-xmark 0x4000/0x4000
-A KUBE-NODEPORTS -d 127.0.0.0/8 -p tcp -m comment --comment "demo/web" -m tcp --dport 30080 -j KUBE-EXT-A
-A KUBE-NODEPORTS -p tcp -m comment --comment "demo/web" -m tcp --dport 30080 -j KUBE-EXT-A
-A KUBE-SEP-1 -s 10.1.0.1/32 -m comment --comment "demo/web" -j KUBE-MARK-MASQ
-A KUBE-SEP-1 -p tcp -m comment --comment "demo/web" -m tcp -j DNAT --to-destination 10.1.0.1:8080
-A KUBE-SEP-2 -p tcp -m comment --comment "demo/web" -m tcp -j DNAT --to-destination 10.1.0.2:8080
-A KUBE-SEP-3 -p tcp -m comment --comment "demo/web" -m tcp -j DNAT --to-destination 10.1.0.3:8080
-A KUBE-SERVICES -d 10.96.0.9/32 -p tcp -m comment --comment "demo/web cluster IP" -m tcp --dport 80 -j KUBE-SVC-A
-A KUBE-SERVICES -m comment --comment "kubernetes service nodeports" -m addrtype --dst-type LOCAL -j KUBE-NODEPORTS
-A KUBE-SVC-A ! -s 10.1.0.0/16 -d 10.96.0.9/32 -p tcp -m tcp --dport 80 -j KUBE-MARK-MASQ
-A KUBE-SVC-A -m comment --comment "demo/web -> 10.1.0.1:8080" -m statistic --probability 0.5 -j KUBE-SEP-1
-A KUBE-SVC-A -m comment --comment "demo/web -> 10.1.0.2:8080" -j KUBE-SEP-2
COMMIT
"""


def targets(graph: RuleGraph, address: str, port: int) -> list[str]:
    key = destination_key(address, "TCP", port)
    return sorted(str(read_target(target)) for target in graph.targets(key))


def test_a_service_leads_to_its_endpoints_by_every_address() -> None:
    graph = read_saved(SAVED.splitlines(), "IPv4")
    assert graph.is_hooked
    assert targets(graph, "10.96.0.9", 80) == ["10.1.0.1:8080", "10.1.0.2:8080"]
    assert targets(graph, "", 30080) == ["10.1.0.1:8080", "10.1.0.2:8080"]
    assert [read_destination(key) for key in graph.destinations()] == [
        "node port 30080/TCP",
        "10.96.0.9:80/TCP",
    ]


def test_a_chain_without_a_reference_leads_nowhere() -> None:
    saved = SAVED.replace(
        '-A KUBE-SVC-A -m comment --comment "demo/web -> 10.1.0.2:8080" -j KUBE-SEP-2\n', ""
    )
    assert targets(read_saved(saved.splitlines(), "IPv4"), "10.96.0.9", 80) == ["10.1.0.1:8080"]


@pytest.mark.parametrize("hook", ["PREROUTING", "OUTPUT"])
def test_rules_that_one_hook_does_not_enter_are_not_hooked(hook: str) -> None:
    lines = [line for line in SAVED.splitlines() if not line.startswith(f"-A {hook} ")]
    graph = read_saved(lines, "IPv4")
    assert not graph.is_hooked
    assert targets(graph, "10.96.0.9", 80) == []


def test_jumps_of_another_table_are_no_hooks() -> None:
    lines = [line for line in SAVED.splitlines() if not line.startswith("-A OUTPUT ")]
    others = ["*filter", ":OUTPUT ACCEPT [0:0]", "-A OUTPUT -j KUBE-SERVICES", "COMMIT"]
    assert not read_saved([*lines, *others], "IPv4").is_hooked
    assert read_saved([*SAVED.splitlines(), *others], "IPv4").is_hooked


def test_a_target_that_is_not_constant_is_an_error() -> None:
    saved = SAVED.replace("-j DNAT --to-destination 10.1.0.3:8080", "-j REDIRECT --to-ports 80")
    with pytest.raises(UnreadableRules, match="REDIRECT"):
        read_saved(saved.splitlines(), "IPv4")


def test_an_empty_table_has_no_rules_of_kube_proxy() -> None:
    assert not read_saved(["*nat", ":PREROUTING ACCEPT [0:0]", "COMMIT"], "IPv4").is_hooked


def test_a_cluster_without_endpoints_has_kube_proxys_chains_all_the_same() -> None:
    lines = ["*nat", ":KUBE-SERVICES - [0:0]", "-A PREROUTING -j KUBE-SERVICES"]
    assert read_saved([*lines, "-A OUTPUT -j KUBE-SERVICES"], "IPv4").is_hooked


def test_addresses_of_ipv6() -> None:
    saved = (
        SAVED.replace("10.96.0.9/32", "fd00:10:96::9/128")
        .replace("--to-destination 10.1.0.1:8080", "--to-destination [fd00::1]:8080")
        .replace("--to-destination 10.1.0.2:8080", "--to-destination [fd00::2]:8080")
        .replace("--to-destination 10.1.0.3:8080", "--to-destination [fd00::3]:8080")
    )
    graph = read_saved(saved.splitlines(), "IPv6")
    assert targets(graph, "fd00:10:96::9", 80) == ["[fd00::1]:8080", "[fd00::2]:8080"]
