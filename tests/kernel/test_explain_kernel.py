"""``explain --kernel`` reads a kernel: faults planted in a network namespace, and one where all is
well.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.diagnose.explain.world import World, add_service, healthy, write_slice
from tests.kernel.netns import Host, Net

from sliceplane.api.core import Service
from sliceplane.api.discovery import EndpointSlice
from sliceplane.consume.served import ClusterDestination
from sliceplane.diagnose.explain.kernel import KernelFacts
from sliceplane.diagnose.explain.question import ExplainQuestion
from sliceplane.node.configuration.fields import Mode
from sliceplane.node.io.render import render
from sliceplane.node.plane import NodePlaneConfig
from sliceplane.node.snapshot import NodeObjects

pytestmark = pytest.mark.kernel
ROOT = Path(__file__).parents[2]
#: every mount of /sys shows the interfaces of the namespace in which it was made
READ = """
import asyncio, sys, msgspec
sys.path.insert(0, sys.argv[1])
from sliceplane.diagnose.io.kernel import read_kernel
print(msgspec.json.encode(asyncio.run(read_kernel())).decode())
"""
LEGACY = ("iptables-legacy", "-t", "nat")


@pytest.fixture(scope="module")
def host(net: Net) -> Host:
    """A bridge of two Pods, as a CNI plug-in makes it, and our table."""
    host = net.add_host("explained", ip4="10.10.0.1/16", ip6="fd10::1/64")
    host.exec(["ip", "link", "add", "cni0", "type", "bridge"])
    for number in (1, 2):
        host.exec(
            ["ip", "link", "add", f"veth{number}", "type", "veth", "peer", "name", f"pod{number}"]
        )
        host.exec(["ip", "link", "set", f"veth{number}", "master", "cni0", "up"])
        host.exec(["ip", "link", "set", f"veth{number}", "type", "bridge_slave", "hairpin", "on"])
    host.exec(["nft", "-f", "-"], stdin=rules_of(healthy()))
    return host


def rules_of(world: World, mode: Mode = "nftables") -> str:
    """What a node proxy of ours writes of the world's Services."""

    def every(kind: str, projection: Any) -> tuple[Any, ...]:
        return tuple(msgspec.convert(document, projection) for document in world.all(kind))

    objects = NodeObjects(
        services=every("Service", Service), slices=every("EndpointSlice", EndpointSlice)
    )
    return render(mode, "IPv4", NodePlaneConfig(node_name="node-1"), objects)


def look(host: Host) -> KernelFacts:
    done = host.python(READ, str(ROOT / "src"))
    return msgspec.json.decode(done.stdout, type=KernelFacts)


def codes(facts: KernelFacts, world: World | None = None, name: str = "cart") -> list[str]:
    world = world or healthy()
    world.kernel = facts
    return [
        finding.code for finding in world.ask(ExplainQuestion("service", name, "shop")).findings
    ]


def test_a_node_as_it_should_be(host: Host) -> None:
    facts = look(host)
    assert facts.unread == ()
    assert [(port.name, port.bridge, port.hairpin) for port in facts.bridge_ports or ()] == [
        ("veth1", "cni0", True),
        ("veth2", "cni0", True),
    ]
    assert [entry.ours for entry in facts.rule_sets or ()] == [True]
    assert facts.flows_max
    assert set(codes(facts)) <= {"N11"}, "br_netfilter is this machine's"


@pytest.mark.parametrize(
    "command",
    [
        "flush map ip sliceplane endpoints-4",
        "flush set ip sliceplane room-4",
        "flush set ip sliceplane cluster-ips",
        "flush chain ip sliceplane nat-output",
        "flush chain ip sliceplane services",
        "delete table ip sliceplane",
    ],
)
def test_a_table_that_somebody_flushed_is_not_well(host: Host, command: str) -> None:
    """Whether a proxy runs or not; a table that is gone cannot be compared, and nothing is said to
    be well then.
    """
    host.exec(["nft", command])
    try:
        facts = look(host)
        world = healthy()
        world.kernel = facts
        answer = world.ask(ExplainQuestion("service", "cart", "shop"))
        if command.startswith("delete"):
            assert answer.is_blind
            assert "kernel: rules of Services (no proxy wrote any here)" in answer.unchecked
        else:
            assert answer.findings[0].code == "N5", answer.findings
        assert "kernel" not in answer.well
    finally:
        host.exec(["nft", "add table ip sliceplane; delete table ip sliceplane"])
        host.exec(["nft", "-f", "-"], stdin=rules_of(healthy()))


def test_a_table_as_it_was_written_is_well(host: Host) -> None:
    world = healthy()
    world.kernel = look(host)
    assert dict(world.kernel.rules or ()).keys() == {("10.96.0.2", "tcp", 80)}
    answer = world.ask(ExplainQuestion("service", "cart", "shop"))
    assert {finding.code for finding in answer.findings} <= {"N11"}
    assert not answer.is_blind


def test_rules_of_iptables_are_compared_too(net: Net) -> None:
    """Ours and kube-proxy's have the same chains."""
    host = net.add_host("byiptables", ip4="10.10.0.2/16", ip6="fd10::2/64")
    host.exec(["iptables-nft-restore", "--noflush"], stdin=rules_of(healthy(), "iptables"))
    facts = look(host)
    assert dict(facts.rules or ())[ClusterDestination("10.96.0.2", "tcp", 80)]
    assert "N5" not in codes(facts)
    host.exec(["iptables-nft", "-t", "nat", "-F", "KUBE-SERVICES"])
    assert "N5" in codes(look(host))


#: a Service of two endpoints, one of them of this node
KUBE_PROXY = """
table ip kube-proxy {
  set hairpin-connections {
    type ipv4_addr . ipv4_addr . inet_proto . inet_service
    elements = { 10.1.0.1 . 10.1.0.1 . tcp . 8080 }
  }
  map service-ips {
    type ipv4_addr . inet_proto . inet_service : verdict
    elements = { 10.96.0.10 . tcp . 80 : goto service-1 }
  }
  chain service-1 {
    meta l4proto tcp dnat ip to numgen random mod 2 map { 0 : 10.1.0.1 . 8080, 1 : 10.1.0.2 . 8080 }
  }
  chain services { ip daddr . meta l4proto . th dport vmap @service-ips; }
  chain masquerading {
    ip saddr . ip daddr . meta l4proto . th dport @hairpin-connections masquerade
  }
  chain nat-prerouting { type nat hook prerouting priority -100; jump services; }
  chain nat-output { type nat hook output priority -100; jump services; }
  chain nat-postrouting { type nat hook postrouting priority 100; jump masquerading; }
}
"""


def test_seed_2194_a_pod_reaches_itself_by_rules_of_kube_proxy_if_its_set_has_it(net: Net) -> None:
    host = net.add_host("proxied", ip4="10.11.0.1/16", ip6="fd11::1/64")

    def reaching() -> set[str] | None:
        facts = look(host)
        targets = dict(facts.rules or ())[ClusterDestination("10.96.0.10", "tcp", 80)]
        assert {str(target) for target in targets} == {"10.1.0.1:8080", "10.1.0.2:8080"}
        if facts.hairpins is None:
            return None
        return {str(target) for _, targets in facts.hairpins for target in targets}

    host.exec(["nft", "-f", "-"], stdin=KUBE_PROXY)
    assert reaching() == {"10.1.0.1:8080"}
    host.exec(["nft", "flush", "set", "ip", "kube-proxy", "hairpin-connections"])
    assert reaching() == set()
    host.exec(["nft", "flush", "chain", "ip", "kube-proxy", "masquerading"])
    host.exec(["nft", "delete", "set", "ip", "kube-proxy", "hairpin-connections"])
    assert reaching() is None, "an older kube-proxy has no such set"


def test_rules_of_another_proxy_are_seen(host: Host) -> None:
    host.exec([*LEGACY, "-N", "KUBE-SERVICES"])
    try:
        assert codes(look(host))[0] == "N6"
    finally:
        host.exec([*LEGACY, "-X", "KUBE-SERVICES"])
    host.exec(["nft", "add table ip nat; add chain ip nat KUBE-KUBELET-CANARY"])
    assert "N6" not in codes(look(host)), "the kubelet's own chains are no proxy's"


def test_a_bridge_without_hairpin_is_seen_unless_it_is_promiscuous(host: Host) -> None:
    host.exec(["ip", "link", "set", "veth1", "type", "bridge_slave", "hairpin", "off"])
    try:
        assert "N12" in codes(look(host))
        host.exec(["ip", "link", "set", "cni0", "promisc", "on"])
        assert "N12" not in codes(look(host))
    finally:
        host.exec(["ip", "link", "set", "cni0", "promisc", "off"])
        host.exec(["ip", "link", "set", "veth1", "type", "bridge_slave", "hairpin", "on"])


def test_a_bridge_that_nat_does_not_see_is_found(host: Host) -> None:
    """Whether this machine has br_netfilter or not: without it no bridge is seen."""
    switch = "net.bridge.bridge-nf-call-iptables"
    if "bridge" not in host.exec(["ls", "/proc/sys/net"]).stdout.split():
        assert "N11" in codes(look(host))
        return
    host.exec(["sysctl", "-q", "-w", f"{switch}=0"])
    assert "N11" in codes(look(host))
    host.exec(["sysctl", "-q", "-w", f"{switch}=1"])
    assert "N11" not in codes(look(host))


def test_a_flow_to_what_is_no_endpoint_is_seen_and_counted(host: Host) -> None:
    world = healthy()
    ports = [{"name": "dns", "port": 53, "protocol": "UDP", "targetPort": 8080}]
    vip = add_service(world, "dns", selector={"app": "cart"}, ports=ports)["spec"]["clusterIP"]
    write_slice(world, "dns")
    before = look(host).flows_count
    assert before is not None
    for client in ("10.10.0.7", "10.10.0.8"):
        host.exec(
            [
                "conntrack",
                "-I",
                "-p",
                "udp",
                "-t",
                "120",
                "-s",
                client,
                "-d",
                vip,
                "--sport",
                "4000",
                "--dport",
                "53",
                "--reply-src",
                "10.244.9.9",
                "--reply-dst",
                client,
                "--reply-port-src",
                "8080",
                "--reply-port-dst",
                "4000",
            ]
        )
    facts = look(host)
    assert (facts.flows_count or 0) >= before + 2
    world.kernel = facts
    found = world.ask(ExplainQuestion("service", "dns", "shop")).findings
    assert next(entry for entry in found if entry.code == "N9").sentence.startswith(
        "2 UDP flows of dns to 10.244.9.9"
    )
    host.exec(["conntrack", "-D", "-p", "udp", "--orig-dst", vip, "--reply-src", "10.244.9.9"])
    assert "N9" not in codes(look(host), world, "dns")


def test_a_connection_that_stays_with_a_pod_that_left_is_seen(host: Host) -> None:
    world = healthy()
    vip, client = world.get("Service", "shop", "cart")["spec"]["clusterIP"], "10.10.0.7"
    flow = ["-p", "tcp", "-s", client, "-d", vip, "--sport", "4000", "--dport", "80"]
    back = [
        "--reply-src",
        "10.244.9.9",
        "--reply-dst",
        client,
        "--reply-port-src",
        "8080",
        "--reply-port-dst",
        "4000",
    ]
    host.exec(["conntrack", "-I", *flow, "--state", "ESTABLISHED", "-t", "120", *back])
    assert "D7" in codes(look(host), world)
    host.exec(["conntrack", "-D", "-p", "tcp", "--orig-dst", vip])
    assert "D7" not in codes(look(host), world)


def test_where_node_ports_are_served_is_seen(host: Host) -> None:
    host.exec(
        ["nft", "add set ip sliceplane nodeport-ips { type ipv4_addr; elements = { 192.0.2.7 } }"]
    )
    try:
        assert look(host).node_port_addresses == ("192.0.2.7",)
    finally:
        host.exec(["nft", "delete set ip sliceplane nodeport-ips"])


def test_a_program_that_is_missing_is_told_and_the_rest_is_read(host: Host, tmp_path: Path) -> None:
    (tmp_path / "nft").symlink_to("/bin/false")
    path = f"PATH={tmp_path}"
    done = host.exec(["env", path, sys.executable, "-I", "-c", READ, str(ROOT / "src")])
    facts = msgspec.json.decode(done.stdout, type=KernelFacts)
    unread = [phrase.split(" (")[0] for phrase in facts.unread]
    assert unread == ["what nft lists", "what conntrack lists", "rules of Services"]
    assert facts.rules is None
    assert facts.rule_sets is None
    assert facts.bridge_ports
