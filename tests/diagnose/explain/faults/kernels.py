"""Kernels of the machine that asks."""

from __future__ import annotations

from msgspec.structs import replace
from tests.diagnose.explain.world import (
    World,
    add_service,
    ago,
    near_miss,
    planted,
    too_young,
    write_slice,
)

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
#: where the kernel leads cart, as its three Pods are
CART = ClusterDestination("10.96.0.2", "tcp", 80)
TO_CART = frozenset(ServedTarget(f"10.244.0.{number}", 8080) for number in (3, 4, 5))
#: a node of two Pods on a bridge, as it should be
WELL = KernelFacts(
    flows_count=120,
    flows_max=262_144,
    bridge_ports=(BridgePort("veth1", "cni0", True), BridgePort("veth2", "cni0", True)),
    bridge_calls=True,
    rule_sets=(OURS,),
    rules=((CART, TO_CART),),
    flows=(),
)


@planted("N5")
def maps_of_the_table_were_flushed(world: World) -> None:
    world.kernel = replace(WELL, rules=())


@planted("N5")
def the_kernel_refuses_what_has_endpoints(world: World) -> None:
    world.kernel = replace(WELL, rules=((CART, frozenset()),))


@planted("N5")
def the_kernel_leads_to_a_pod_of_before(world: World) -> None:
    world.kernel = replace(WELL, rules=((CART, TO_CART | {ServedTarget("10.244.9.9", 8080)}),))


@planted("N5")
def the_kernel_has_lost_one_endpoint(world: World) -> None:
    world.kernel = replace(WELL, rules=((CART, TO_CART - {ServedTarget("10.244.0.3", 8080)}),))


@too_young("N5")
def a_slice_was_written_a_moment_ago(world: World) -> None:
    metadata = world.get("EndpointSlice", "shop", "cart-x7k2p")["metadata"]
    metadata["annotations"] = {"endpoints.kubernetes.io/last-change-trigger-time": ago(3)}
    world.kernel = replace(WELL, rules=((CART, TO_CART - {ServedTarget("10.244.0.3", 8080)}),))


@near_miss("N5")
def each_node_reads_the_slices_of_its_zone(world: World) -> None:
    metadata = world.get("EndpointSlice", "shop", "cart-x7k2p")["metadata"]
    metadata["labels"][LABEL_FOR_ZONE] = "zone-a"
    world.kernel = replace(WELL, rules=((CART, frozenset()),))


@near_miss("N5")
def the_kernel_leads_where_the_slices_say(world: World) -> None:
    addresses = [pod["status"]["podIP"] for pod in world.all("Pod")]
    assert {ServedTarget(address, 8080) for address in addresses} == TO_CART
    world.kernel = replace(WELL, rules=((CART, TO_CART),))


@near_miss("N5")
def the_kernel_follows_hints(world: World) -> None:
    for endpoint in world.get("EndpointSlice", "shop", "cart-x7k2p")["endpoints"]:
        endpoint["hints"] = {"forZones": [{"name": "zone-a"}]}
    world.kernel = replace(WELL, rules=((CART, TO_CART - {ServedTarget("10.244.0.3", 8080)}),))


@planted("N6")
def rules_of_before_are_still_there(world: World) -> None:
    world.kernel = replace(WELL, rule_sets=(OURS, LEGACY))


@near_miss("N6", "N8", "N9", "N10", "N11", "N12", "N13", "N14", "D7")
def the_kernel_is_as_it_should(world: World) -> None:
    world.kernel = WELL


@near_miss("N6", "N8", "N9", "N11", "N12")
def nothing_of_the_kernel_could_be_read(world: World) -> None:
    world.kernel = KernelFacts(unread=("flows (nf_conntrack is not loaded)",))


@planted("N8")
def no_room_for_another_flow(world: World) -> None:
    world.kernel = replace(WELL, flows_count=262_144)


@planted("N8")
def a_node_is_asked_about_whose_table_is_almost_full(world: World) -> ExplainQuestion:
    world.kernel = replace(WELL, flows_count=250_000)
    return ExplainQuestion("node", "node-1")


@near_miss("N8")
def many_flows_and_room_for_more(world: World) -> None:
    world.kernel = replace(WELL, flows_count=200_000)


def _dns(world: World, answered_by: str) -> ExplainQuestion:
    """A UDP Service on cart's Pods, and 17 flows to it."""
    port = {"name": "dns", "port": 53, "protocol": "UDP", "targetPort": 8080}
    service = add_service(world, "dns", selector={"app": "cart"}, ports=[port])
    write_slice(world, "dns")
    address = service["spec"]["clusterIP"]
    flow = UdpFlow((address, 53), (answered_by, 8080))
    rules = ((CART, TO_CART), (ClusterDestination(address, "udp", 53), TO_CART))
    world.kernel = replace(WELL, flows=((flow, 17),), rules=rules)
    return ExplainQuestion("service", "dns", "shop")


@planted("N9")
def flows_lead_to_a_pod_that_is_gone(world: World) -> ExplainQuestion:
    return _dns(world, "10.244.9.9")


@near_miss("N9")
def flows_lead_to_an_endpoint(world: World) -> ExplainQuestion:
    return _dns(world, world.get("Pod", "shop", "cart-0")["status"]["podIP"])


def _open_to(world: World, address: str) -> None:
    service = world.get("Service", "shop", "cart")
    flow = UdpFlow((service["spec"]["clusterIP"], 80), (address, 8080))
    world.kernel = replace(WELL, connections=((flow, 31),))


@planted("D7")
def connections_are_open_to_a_pod_that_is_gone(world: World) -> None:
    _open_to(world, "10.244.9.9")


@near_miss("D7")
def connections_are_open_to_an_endpoint(world: World) -> None:
    _open_to(world, world.get("Pod", "shop", "cart-0")["status"]["podIP"])


def _ipvs(world: World, address: str, weight: int) -> None:
    """As the kernel lists it."""
    behind = f"  -> {_hex(address)}:1F90 Masq {weight} 0 0"
    head = "IP Virtual Server version 1.2.1 (size=4096)\nProt LocalAddress:Port Scheduler Flags"
    ip = _hex(world.get("Service", "shop", "cart")["spec"]["clusterIP"])
    text = (
        f"{head}\n  -> RemoteAddress:Port Forward Weight ActiveConn InActConn\nTCP  {ip}:0050 "
        f"rr\n{behind}\n"
    )
    world.kernel = replace(WELL, ipvs=parse_ipvs(text))
    assert world.kernel.ipvs


def _hex(address: str) -> str:
    return "".join(f"{int(part):02X}" for part in address.split("."))


@planted("N10")
def ipvs_keeps_a_pod_that_is_gone(world: World) -> None:
    _ipvs(world, "10.244.9.9", 0)


@near_miss("N10")
def ipvs_drains_an_endpoint(world: World) -> None:
    _ipvs(world, world.get("Pod", "shop", "cart-0")["status"]["podIP"], 0)


@near_miss("N10")
def ipvs_has_what_no_slice_has_yet(world: World) -> None:
    _ipvs(world, "10.244.9.9", 1)


@planted("N13")
def an_old_kernel_counts_checksums_wrongly(world: World) -> None:
    world.kernel = replace(WELL, offloading=("flannel.1",), release="5.4.0-40-generic")


@near_miss("N13")
def the_kernel_counts_checksums_rightly(world: World) -> None:
    world.kernel = replace(WELL, offloading=("flannel.1",), release="5.15.0-105-generic")


@near_miss("N13")
def an_old_kernel_took_the_change_over(world: World) -> None:
    world.kernel = replace(WELL, offloading=("flannel.1",), release="4.19.130")


def _node_port(world: World, *addresses: str) -> None:
    service = world.get("Service", "shop", "cart")["spec"]
    service.update(type="NodePort", ports=[{**service["ports"][0], "nodePort": 30080}])
    world.kernel = replace(WELL, node_port_addresses=addresses)


@planted("N14")
def node_ports_are_not_served_at_loopback(world: World) -> None:
    _node_port(world, "192.168.0.1")


@near_miss("N14")
def node_ports_are_served_everywhere(world: World) -> None:
    _node_port(world)


@planted("N11")
def nat_does_not_see_the_bridge(world: World) -> None:
    world.kernel = replace(WELL, bridge_calls=False)


@near_miss("N11", "N12")
def there_is_no_bridge_for_pods(world: World) -> None:
    world.kernel = replace(
        WELL, bridge_calls=False, bridge_ports=(BridgePort("vxlan0", "br0", False),)
    )


@planted("N12")
def hairpin_is_off(world: World) -> None:
    ports = (BridgePort("veth1", "cni0", False), BridgePort("veth2", "cni0", True))
    world.kernel = replace(WELL, bridge_ports=ports)


@near_miss("N12")
def the_bridge_is_promiscuous(world: World) -> None:
    ports = (BridgePort("veth1", "cni0", False), BridgePort("veth2", "cni0", False))
    world.kernel = replace(WELL, bridge_ports=ports, promiscuous=frozenset({"cni0"}))
