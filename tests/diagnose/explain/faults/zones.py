"""Traffic that should stay in its zone."""

from __future__ import annotations

from typing import Any

from tests.diagnose.explain.world import (
    World,
    add_node,
    add_pod,
    add_service,
    healthy,
    near_miss,
    planted,
    write_slice,
)

from sliceplane.diagnose.explain.question import ClientPlace, ExplainQuestion

ZONE = "topology.kubernetes.io/zone"


def hinted(world: World, *, skip: str = "") -> None:
    """Every endpoint is for its own zone, as PreferSameZone has it, but those of the Node
    *skip*.
    """
    world.get("Service", "shop", "cart")["spec"]["trafficDistribution"] = "PreferSameZone"
    _hint(world, skip)


def _hint(world: World, skip: str = "") -> None:
    for endpoint in world.get("EndpointSlice", "shop", "cart-x7k2p")["endpoints"]:
        if endpoint.get("zone") and endpoint["nodeName"] != skip:
            endpoint["hints"] = {"forZones": [{"name": endpoint["zone"]}]}


def _auto(world: World) -> None:
    annotations = {"service.kubernetes.io/topology-mode": "Auto"}
    world.get("Service", "shop", "cart")["metadata"]["annotations"] = annotations


def _from(kind: Any, name: str) -> ExplainQuestion:
    return ExplainQuestion("service", "cart", "shop", client=ClientPlace(kind, name))


def _resized(world: World, *zones: str) -> None:
    """One Pod for each of *zones*, and the slice anew."""
    world.documents = healthy(0).documents
    nodes = {f"zone-{letter}": f"node-{number}" for number, letter in enumerate("abc")}
    for number, zone in enumerate(zones):
        add_pod(world, f"cart-{number}", "shop", nodes[zone], {"app": "cart"})
    world.drop("EndpointSlice", "shop", "cart-x7k2p")
    write_slice(world, "cart")


@planted("Z1")
def the_service_asks_for_no_hints(_: World) -> ExplainQuestion:
    return _from("zone", "zone-a")


@near_miss("Z1", "Z2", "Z4", "Z5", "Z11")
def every_endpoint_is_hinted(world: World) -> ExplainQuestion:
    hinted(world)
    return _from("zone", "zone-a")


def _without_zone(world: World, node: str) -> None:
    """Its Pods' endpoints have none either."""
    del world.get("Node", "", node)["metadata"]["labels"][ZONE]
    for endpoint in world.get("EndpointSlice", "shop", "cart-x7k2p")["endpoints"]:
        if endpoint["nodeName"] == node:
            del endpoint["zone"]


def _cilium(world: World, **data: str) -> None:
    hinted(world)
    for node in world.all("Node"):
        node["status"]["conditions"].append(
            {"type": "NetworkUnavailable", "status": "False", "reason": "CiliumIsUp"}
        )
    world.add(
        "ConfigMap", "kube-system", "cilium-config", data={"kube-proxy-replacement": "true", **data}
    )


@planted("Z10")
def cilium_passes_over_hints(world: World) -> None:
    _cilium(world)


@near_miss("Z10")
def cilium_follows_hints(world: World) -> None:
    _cilium(world, **{"enable-service-topology": "true"})


@near_miss("Z10")
def kube_proxy_runs_beside_cilium(world: World) -> None:
    _cilium(world, **{"kube-proxy-replacement": "false"})


def _unhinted(world: World, **members: Any) -> None:
    service = world.get("Service", "shop", "cart")
    service["spec"]["trafficDistribution"] = "example.com/Nearest"
    service["metadata"]["generation"] = 3
    condition = {
        "type": "TrafficDistributionAccepted",
        "status": "False",
        "reason": "UnsupportedValue",
    }
    message = "Z13: no heuristic example.com/Nearest is installed"
    service["status"] = {
        "conditions": [{**condition, "message": message, "observedGeneration": 3, **members}]
    }


@planted("Z13")
def its_heuristic_is_not_installed(world: World) -> None:
    _unhinted(world)


@near_miss("Z13")
def the_condition_is_of_the_value_before(world: World) -> None:
    _unhinted(world, observedGeneration=2)


@near_miss("Z13")
def the_value_is_accepted(world: World) -> None:
    _unhinted(world, status="True", reason="Accepted", message="example.com/Nearest is supported")


@planted("Z2")
def one_node_has_no_zone(world: World) -> None:
    _without_zone(world, "node-1")
    hinted(world)


@near_miss("Z2")
def a_node_without_zone_has_no_endpoint(world: World) -> None:
    add_node(world, "node-9", "")
    hinted(world)


@planted("Z3")
def the_clients_node_has_no_zone(world: World) -> ExplainQuestion:
    add_node(world, "node-9", "")
    hinted(world)
    return _from("node", "node-9")


@planted("Z3")
def a_node_is_asked_about_that_has_no_zone(world: World) -> ExplainQuestion:
    add_node(world, "node-9", "")
    return ExplainQuestion("node", "node-9")


@near_miss("Z3")
def no_node_has_a_zone(world: World) -> ExplainQuestion:
    for name in [node["metadata"]["name"] for node in world.all("Node")]:
        world.drop("Node", "", name)
    add_node(world, "node-9", "")
    return ExplainQuestion("node", "node-9")


@near_miss("Z3")
def the_clients_node_has_a_zone(world: World) -> ExplainQuestion:
    hinted(world)
    return _from("node", "node-0")


@planted("Z4")
def one_endpoint_is_not_hinted(world: World) -> None:
    hinted(world, skip="node-1")


@near_miss("Z4")
def no_hints_were_asked_for(world: World) -> None:
    hinted(world, skip="node-1")
    del world.get("Service", "shop", "cart")["spec"]["trafficDistribution"]


@planted("Z5")
def one_zone_has_no_endpoint(world: World) -> None:
    _resized(world, "zone-a", "zone-b")
    hinted(world)


@near_miss("Z5")
def the_zone_without_endpoint_takes_no_pods(world: World) -> None:
    _resized(world, "zone-a", "zone-b")
    world.get("Node", "", "node-2")["spec"]["unschedulable"] = True
    hinted(world)


@planted("Z6")
def auto_has_two_endpoints_for_three_zones(world: World) -> None:
    _resized(world, "zone-a", "zone-b")
    _auto(world)


@near_miss("Z6", "Z7", "Z8", "Z9")
def auto_gives_hints(world: World) -> None:
    _auto(world)
    _hint(world)


@planted("Z7")
def shares_of_cpu_do_not_come_out(world: World) -> None:
    for number in range(2):
        add_node(world, f"large-{number}", "zone-a")
    _auto(world)


@near_miss("Z7")
def auto_has_enough_endpoints_and_writes_in_a_moment(world: World) -> None:
    _auto(world)


@planted("Z8")
def auto_meets_a_node_without_zone(world: World) -> None:
    add_node(world, "node-9", "")
    _auto(world)


@planted("Z8")
def auto_meets_a_node_without_cpu(world: World) -> None:
    del world.get("Node", "", "node-2")["status"]["allocatable"]
    _auto(world)


@planted("Z9")
def most_nodes_of_a_zone_take_no_pods(world: World) -> None:
    for number in range(3):
        taints = [{"key": "gpu", "effect": "NoSchedule"}]
        add_node(world, f"gpu-{number}", "zone-a")["spec"]["taints"] = taints
    _auto(world)
    _hint(world)


@near_miss("Z9")
def taints_do_not_matter_without_auto(world: World) -> None:
    for number in range(3):
        add_node(world, f"gpu-{number}", "zone-a")["spec"]["taints"] = [
            {"key": "gpu", "effect": "NoSchedule"}
        ]
    hinted(world)


@planted("Z11")
def half_of_the_clients_have_two_of_ten_endpoints(world: World) -> None:
    _resized(world, "zone-a", "zone-a", *["zone-b"] * 4, *["zone-c"] * 4)
    for number in range(2):
        add_node(world, f"node-a{number}", "zone-a")
    hinted(world)


@planted("Z11")
def a_zone_is_asked_about_that_is_overloaded(world: World) -> ExplainQuestion:
    half_of_the_clients_have_two_of_ten_endpoints(world)
    return ExplainQuestion("zone", "zone-a")


@near_miss("Z11")
def four_endpoints_are_as_even_as_three_zones_allow(world: World) -> None:
    _resized(world, "zone-a", "zone-a", "zone-b", "zone-c")
    hinted(world)


@planted("Z12")
def a_slice_is_for_a_zone_that_no_node_has(world: World) -> None:
    labels = world.get("EndpointSlice", "shop", "cart-x7k2p")["metadata"]["labels"]
    labels["endpointslice.kubernetes.io/for-zone"] = "zone-d"


@planted("Z12")
def a_zone_is_asked_about_that_is_none(_: World) -> ExplainQuestion:
    return ExplainQuestion("zone", "zone-d")


@near_miss("Z12")
def a_slice_is_for_a_zone_that_nodes_have(world: World) -> None:
    labels = world.get("EndpointSlice", "shop", "cart-x7k2p")["metadata"]["labels"]
    labels["endpointslice.kubernetes.io/for-zone"] = "zone-b"


@near_miss("Z11", "Z5")
def a_zone_is_asked_about_that_is_well(world: World) -> ExplainQuestion:
    add_service(world, "search")
    hinted(world)
    return ExplainQuestion("zone", "zone-a")
