"""Kernels of the machine that asks."""

from __future__ import annotations

from dataclasses import replace

from tests.explain.world import World, add_service, near_miss, planted, write_slice

from sliceplane.explain.kernel import BridgePort, KernelFacts, RuleSet
from sliceplane.explain.question import ExplainQuestion
from sliceplane.proxy.conntrack import UdpFlow

OURS = RuleSet("Sliceplane's nftables", True, "sliceplane proxy --cleanup")
LEGACY = RuleSet("KUBE-* of iptables-legacy", False, "iptables-legacy-save | grep -v KUBE | iptables-legacy-restore")
#: a node of two Pods on a bridge, as it should be
WELL = KernelFacts(
    flows_count=120,
    flows_max=262_144,
    bridge_ports=(BridgePort("veth1", "cni0", True), BridgePort("veth2", "cni0", True)),
    bridge_calls=True,
    rule_sets=(OURS,),
    flows=(),
)


@planted("N6")
def rules_of_before_are_still_there(world: World) -> None:
    world.kernel = replace(WELL, rule_sets=(OURS, LEGACY))


@near_miss("N6", "N8", "N9", "N11", "N12")
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
    flow = UdpFlow((service["spec"]["clusterIP"], 53), (answered_by, 8080))
    world.kernel = replace(WELL, flows=((flow, 17),))
    return ExplainQuestion("service", "dns", "shop")


@planted("N9")
def flows_lead_to_a_pod_that_is_gone(world: World) -> ExplainQuestion:
    return _dns(world, "10.244.9.9")


@near_miss("N9")
def flows_lead_to_an_endpoint(world: World) -> ExplainQuestion:
    return _dns(world, world.get("Pod", "shop", "cart-0")["status"]["podIP"])


@planted("N11")
def nat_does_not_see_the_bridge(world: World) -> None:
    world.kernel = replace(WELL, bridge_calls=False)


@near_miss("N11", "N12")
def there_is_no_bridge_for_pods(world: World) -> None:
    world.kernel = replace(WELL, bridge_calls=False, bridge_ports=(BridgePort("vxlan0", "br0", False),))


@planted("N12")
def hairpin_is_off(world: World) -> None:
    ports = (BridgePort("veth1", "cni0", False), BridgePort("veth2", "cni0", True))
    world.kernel = replace(WELL, bridge_ports=ports)


@near_miss("N12")
def the_bridge_is_promiscuous(world: World) -> None:
    ports = (BridgePort("veth1", "cni0", False), BridgePort("veth2", "cni0", False))
    world.kernel = replace(WELL, bridge_ports=ports, promiscuous=frozenset({"cni0"}))
