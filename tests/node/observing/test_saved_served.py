"""Where iptables lead is read from ``iptables-save`` alone, of our rules and of kube-proxy's."""

from __future__ import annotations

import re

import pytest
from tests.nft.test_served import EMPTY, ONE, OUTSIDE, SEVERAL, STICKY, WHOLE, objects

from sliceplane.consume.served import ClusterDestination, ServedTarget
from sliceplane.node.io.render import render
from sliceplane.node.observing.saved import read_hairpins, read_served
from sliceplane.node.plane import NodePlaneConfig

#: as kube-proxy 1.36 has it, in both families
OF_KUBE_PROXY = """\
*nat
-A PREROUTING -m comment --comment "kubernetes service portals" -j KUBE-SERVICES
-A OUTPUT -m comment --comment "kubernetes service portals" -j KUBE-SERVICES
-A KUBE-SEP-A -s fd01::7/128 -m comment --comment "shop/cart:http" -j KUBE-MARK-MASQ
-A KUBE-SEP-A -p tcp -m comment --comment "shop/cart:http" -m tcp -j DNAT --to-destination [fd01::7]:8080
-A KUBE-SERVICES -d fd00::5/128 -p tcp -m comment --comment "shop/cart:http cluster IP" -m tcp --dport 80 -j KUBE-SVC-A
-A KUBE-SERVICES -m comment --comment "node ports" -m addrtype --dst-type LOCAL -j KUBE-NODEPORTS
-A KUBE-SVC-A ! -s fd01::/64 -d fd00::5/128 -p tcp -m comment --comment "x" -m tcp --dport 80 -j KUBE-MARK-MASQ
-A KUBE-SVC-A -m comment --comment "shop/cart:http -> [fd01::7]:8080" -j KUBE-SEP-A
COMMIT
*filter
-A KUBE-SERVICES -d fd00::6/128 -p udp -m comment --comment "has no endpoints" -m udp --dport 53 -j REJECT
COMMIT
"""


def saved() -> str:
    """Our rules as the kernel lists them: what is inserted stands at its place."""
    rendered = render("iptables", "IPv4", NodePlaneConfig(node_name="n"), objects())
    return re.sub(r"^-I (\S+) \d+ ", r"-A \1 ", rendered, flags=re.MULTILINE)


def test_every_shape_of_a_destination_is_read() -> None:
    assert read_served(saved().splitlines(), "IPv4") == WHOLE


def test_rules_of_kube_proxy_are_read() -> None:
    assert read_served(OF_KUBE_PROXY.splitlines(), "IPv6") == {
        ClusterDestination("fd00::5", "tcp", 80): frozenset({ServedTarget("fd01::7", 8080)}),
        ClusterDestination("fd00::6", "udp", 53): frozenset(),
    }


SELF = """\
-A POSTROUTING -m comment --comment "kubernetes postrouting rules" -j KUBE-POSTROUTING
-A KUBE-MARK-MASQ -j MARK --set-xmark 0x4000/0x4000
-A KUBE-POSTROUTING -m mark ! --mark 0x4000/0x4000 -j RETURN
-A KUBE-POSTROUTING -m comment --comment "SNAT" -j MASQUERADE --random-fully
COMMIT
"""


@pytest.mark.parametrize(
    "missing", ["", *SELF.splitlines()[:2], SELF.splitlines()[3], "-s fd01::7"]
)
def test_seeds_115_and_206_a_pod_reaches_itself_if_every_rule_for_it_is_there(missing: str) -> None:
    whole = OF_KUBE_PROXY.replace("COMMIT\n", SELF, 1)
    lines = [line for line in whole.splitlines() if not missing or missing not in line]
    target = frozenset({ServedTarget("fd01::7", 8080)})
    destination = ClusterDestination("fd00::5", "tcp", 80)
    found = read_hairpins(lines, "IPv6").get(destination, frozenset())
    assert found == (frozenset() if missing else target)


@pytest.mark.parametrize(
    ("chain", "lost"),
    [
        (r"PREROUTING", {ONE, SEVERAL, STICKY, OUTSIDE}),
        (r"OUTPUT", {ONE, SEVERAL, STICKY, OUTSIDE}),
        (r"KUBE-SERVICES", {ONE, SEVERAL, STICKY, OUTSIDE, EMPTY}),
        (r"KUBE-SEP-\S+", {ONE, SEVERAL, STICKY, OUTSIDE}),
    ],
)
def test_what_is_flushed_serves_nothing(chain: str, lost: set[ClusterDestination]) -> None:
    remaining = re.sub(rf"^-A {chain} .*\n", "", saved(), flags=re.M)
    left = read_served(remaining.splitlines(), "IPv4")
    assert {
        destination for destination, targets in left.items() if targets or destination == EMPTY
    } == (WHOLE.keys() - lost)
