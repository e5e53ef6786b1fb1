"""Kernels of the machine that asks."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace
from tests.diagnose.explain.edits import CART, SLICE, Edit, ask, nearly, planted, put, too_young
from tests.diagnose.explain.world import World, add_service, ago, write_slice

from sliceplane.api.discovery import LABEL_FOR_ZONE
from sliceplane.consume.served import ClusterDestination, ServedTarget
from sliceplane.diagnose.explain.kernel import BridgePort, KernelFacts, RuleSet, parse_ipvs
from sliceplane.diagnose.explain.question import ExplainQuestion
from sliceplane.node.conntrack import UdpFlow

OURS = RuleSet("Sliceplane's nftables", True, "sliceplane proxy --cleanup")
LEGACY = RuleSet(
    "KUBE-* of iptables-legacy",
    False,
    "iptables-legacy-save | grep -v KUBE | iptables-legacy-restore",
)
GONE = "10.244.9.9"
LIVE = "10.244.0.3"
#: where the kernel leads cart, as its three Pods are
CART_IP = ClusterDestination("10.96.0.2", "tcp", 80)
TO_CART = frozenset(ServedTarget(f"10.244.0.{number}", 8080) for number in (3, 4, 5))


def bridged(*hairpins: bool) -> tuple[BridgePort, ...]:
    return tuple(
        BridgePort(f"veth{number}", "cni0", hairpin) for number, hairpin in enumerate(hairpins, 1)
    )


#: a node of two Pods on a bridge, as it should be
WELL = KernelFacts(
    flows_count=120,
    flows_max=262_144,
    bridge_ports=bridged(True, True),
    bridge_calls=True,
    rule_sets=(OURS,),
    rules=((CART_IP, TO_CART),),
    flows=(),
)


def kernel(**changes: Any) -> Edit:
    facts = replace(WELL, **changes)
    return lambda world: setattr(world, "kernel", facts)


def leads_to(targets: frozenset[ServedTarget]) -> Edit:
    return kernel(rules=((CART_IP, targets),))


# N5, N6

LOST_ONE = leads_to(TO_CART - {ServedTarget(LIVE, 8080)})
WRITTEN = {"endpoints.kubernetes.io/last-change-trigger-time": ago(3)}


def leads_where_the_pods_are(world: World) -> None:
    addresses = [pod["status"]["podIP"] for pod in world.all("Pod")]
    leads_to(frozenset(ServedTarget(address, 8080) for address in addresses))(world)


planted("N5", "maps_of_the_table_were_flushed", kernel(rules=()))
planted("N5", "the_kernel_refuses_what_has_endpoints", leads_to(frozenset()))
planted("N5", "the_kernel_leads_to_a_pod_of_before", leads_to(TO_CART | {ServedTarget(GONE, 8080)}))
planted("N5", "the_kernel_has_lost_one_endpoint", LOST_ONE)
too_young(
    "N5",
    "a_slice_was_written_a_moment_ago",
    put(f"{SLICE}:metadata.annotations", WRITTEN),
    LOST_ONE,
)
nearly(
    "N5",
    "each_node_reads_the_slices_of_its_zone",
    put(f"{SLICE}:metadata.labels", **{LABEL_FOR_ZONE: "zone-a"}),
    leads_to(frozenset()),
)
nearly("N5", "the_kernel_leads_where_the_slices_say", leads_where_the_pods_are)
nearly(
    "N5",
    "the_kernel_follows_hints",
    put(f"{SLICE}:endpoints.*.hints", {"forZones": [{"name": "zone-a"}]}),
    LOST_ONE,
)
planted("N6", "rules_of_before_are_still_there", kernel(rule_sets=(OURS, LEGACY)))
nearly("N6 N8 N9 N10 N11 N12 N13 N14 D7", "the_kernel_is_as_it_should", kernel())
UNREAD = KernelFacts(unread=("flows (nf_conntrack is not loaded)",))
nearly(
    "N6 N8 N9 N11 N12",
    "nothing_of_the_kernel_could_be_read",
    lambda world: setattr(world, "kernel", UNREAD),
)

# N8

planted("N8", "no_room_for_another_flow", kernel(flows_count=262_144))
planted(
    "N8",
    "a_node_is_asked_about_whose_table_is_almost_full",
    kernel(flows_count=250_000),
    ask("node", "node-1"),
)
nearly("N8", "many_flows_and_room_for_more", kernel(flows_count=200_000))

# N9, D7, N10


def dns(answered_by: str) -> Edit:
    """A UDP Service on cart's Pods, and 17 flows to it."""

    def edit(world: World) -> ExplainQuestion:
        port = {"name": "dns", "port": 53, "protocol": "UDP", "targetPort": 8080}
        service = add_service(world, "dns", selector={"app": "cart"}, ports=[port])
        write_slice(world, "dns")
        address = service["spec"]["clusterIP"]
        flow = UdpFlow((address, 53), (answered_by, 8080))
        rules = ((CART_IP, TO_CART), (ClusterDestination(address, "udp", 53), TO_CART))
        kernel(flows=((flow, 17),), rules=rules)(world)
        return ExplainQuestion("service", "dns", "shop")

    return edit


def open_to(address: str) -> Edit:
    flow = UdpFlow((CART_IP.address, 80), (address, 8080))
    return kernel(connections=((flow, 31),))


def ipvs(address: str, weight: int) -> Edit:
    """As the kernel lists it."""
    text = (
        "IP Virtual Server version 1.2.1 (size=4096)\nProt LocalAddress:Port Scheduler Flags\n"
        "  -> RemoteAddress:Port Forward Weight ActiveConn InActConn\n"
        f"TCP  {_hex(CART_IP.address)}:0050 rr\n  -> {_hex(address)}:1F90 Masq {weight} 0 0\n"
    )
    servers = parse_ipvs(text)
    assert servers
    return kernel(ipvs=servers)


def _hex(address: str) -> str:
    return "".join(f"{int(part):02X}" for part in address.split("."))


planted("N9", "flows_lead_to_a_pod_that_is_gone", dns(GONE))
nearly("N9", "flows_lead_to_an_endpoint", dns(LIVE))
planted("D7", "connections_are_open_to_a_pod_that_is_gone", open_to(GONE))
nearly("D7", "connections_are_open_to_an_endpoint", open_to(LIVE))
planted("N10", "ipvs_keeps_a_pod_that_is_gone", ipvs(GONE, 0))
nearly("N10", "ipvs_drains_an_endpoint", ipvs(LIVE, 0))
nearly("N10", "ipvs_has_what_no_slice_has_yet", ipvs(GONE, 1))

# N11 to N14


def offloads(release: str) -> Edit:
    return kernel(offloading=("flannel.1",), release=release)


def node_port(*addresses: str) -> tuple[Edit, ...]:
    return (
        put(f"{CART}:spec", type="NodePort"),
        put(f"{CART}:spec.ports.0.nodePort", 30080),
        kernel(node_port_addresses=addresses),
    )


planted("N13", "an_old_kernel_counts_checksums_wrongly", offloads("5.4.0-40-generic"))
nearly("N13", "the_kernel_counts_checksums_rightly", offloads("5.15.0-105-generic"))
nearly("N13", "an_old_kernel_took_the_change_over", offloads("4.19.130"))
planted("N14", "node_ports_are_not_served_at_loopback", *node_port("192.168.0.1"))
nearly("N14", "node_ports_are_served_everywhere", *node_port())
planted("N11", "nat_does_not_see_the_bridge", kernel(bridge_calls=False))
nearly(
    "N11 N12",
    "there_is_no_bridge_for_pods",
    kernel(bridge_calls=False, bridge_ports=(BridgePort("vxlan0", "br0", False),)),
)
planted("N12", "hairpin_is_off", kernel(bridge_ports=bridged(False, True)))
nearly(
    "N12",
    "the_bridge_is_promiscuous",
    kernel(bridge_ports=bridged(False, False), promiscuous=frozenset({"cni0"})),
)
