"""Traffic that should stay in its zone."""

from __future__ import annotations

from typing import Any

from tests.diagnose.explain.edits import (
    CART,
    SLICE,
    Edit,
    add,
    ask,
    ask_from,
    cut,
    do,
    drop,
    nearly,
    planted,
    put,
    rewritten,
)
from tests.diagnose.explain.faults.proxies import add_proxies
from tests.diagnose.explain.world import World, add_node, add_pod, add_service, ago, healthy

ZONE = "topology.kubernetes.io/zone"
SAME_ZONE = put(f"{CART}:spec.trafficDistribution", "PreferSameZone")
AUTO = put(f"{CART}:metadata.annotations", {"service.kubernetes.io/topology-mode": "Auto"})
ZONELESS = do(add_node, "node-9", "")
OF_ZONELESS = ask("node", "node-9")
OF_ZONE = ask("zone", "zone-a")


def hint(world: World, skip: str = "") -> None:
    """Every endpoint is for its own zone, except those of the Node *skip*."""
    for endpoint in world.get("EndpointSlice", "shop", "cart-x7k2p")["endpoints"]:
        if endpoint.get("zone") and endpoint["nodeName"] != skip:
            endpoint["hints"] = {"forZones": [{"name": endpoint["zone"]}]}


def resized(*zones: str) -> Edit:
    """One Pod for each of *zones*, and the slice anew."""

    def edit(world: World) -> None:
        world.documents = healthy(0).documents
        for number, zone in enumerate(zones):
            add_pod(world, f"cart-{number}", "shop", f"node-{'abc'.index(zone)}", {"app": "cart"})
        rewritten(world)

    return edit


def nodes(name: str, *numbers: int) -> list[Edit]:
    return [do(add_node, f"{name}{number}", "zone-a") for number in numbers]


#: as PreferSameZone has it
HINTED = (SAME_ZONE, hint)
planted("Z1", "the_service_asks_for_no_hints", ask_from("zone", "zone-a"))
nearly("Z1 Z2 Z4 Z5 Z11", "every_endpoint_is_hinted", *HINTED, ask_from("zone", "zone-a"))

# Z10, Z13

CILIUM_IS_UP = {"type": "NetworkUnavailable", "status": "False", "reason": "CiliumIsUp"}


def cilium(**data: str) -> tuple[Edit, ...]:
    def edit(world: World) -> None:
        for node in world.all("Node"):
            node["status"]["conditions"].append(CILIUM_IS_UP)

    data = {"kube-proxy-replacement": "true", **data}
    return *HINTED, edit, add("ConfigMap/cilium-config", data=data)


def unhinted(**members: Any) -> tuple[Edit, ...]:
    condition = {
        "type": "TrafficDistributionAccepted",
        "status": "False",
        "reason": "UnsupportedValue",
        "message": "Z13: no heuristic example.com/Nearest is installed",
        "observedGeneration": 3,
    }
    return (
        put(f"{CART}:spec.trafficDistribution", "example.com/Nearest"),
        put(f"{CART}:metadata.generation", 3),
        put(f"{CART}:status", {"conditions": [{**condition, **members}]}),
    )


planted("Z10", "cilium_passes_over_hints", *cilium())
nearly("Z10", "cilium_follows_hints", *cilium(**{"enable-service-topology": "true"}))
nearly("Z10", "kube_proxy_runs_beside_cilium", *cilium(**{"kube-proxy-replacement": "false"}))
planted("Z13", "its_heuristic_is_not_installed", *unhinted())
nearly("Z13", "the_condition_is_of_the_value_before", *unhinted(observedGeneration=2))
SUPPORTED = "example.com/Nearest is supported"
nearly(
    "Z13",
    "the_value_is_accepted",
    *unhinted(status="True", reason="Accepted", message=SUPPORTED),
)

# Z2 to Z5

planted(
    "Z2",
    "one_node_has_no_zone",
    lambda world: world.get("Node", "", "node-1")["metadata"]["labels"].pop(ZONE),
    cut(f"{SLICE}:endpoints.1.zone"),
    *HINTED,
)
nearly("Z2", "a_node_without_zone_has_no_endpoint", ZONELESS, *HINTED)
planted("Z3", "the_clients_node_has_no_zone", ZONELESS, *HINTED, ask_from("node", "node-9"))
planted("Z3", "a_node_is_asked_about_that_has_no_zone", ZONELESS, OF_ZONELESS)
nearly(
    "Z3",
    "no_node_has_a_zone",
    *(drop(f"Node/node-{number}") for number in range(3)),
    ZONELESS,
    OF_ZONELESS,
)
nearly("Z3", "the_clients_node_has_a_zone", *HINTED, ask_from("node", "node-0"))
planted("Z4", "one_endpoint_is_not_hinted", SAME_ZONE, do(hint, "node-1"))
nearly("Z4", "no_hints_were_asked_for", do(hint, "node-1"))
planted("Z5", "one_zone_has_no_endpoint", resized("a", "b"), *HINTED)
nearly(
    "Z5",
    "the_zone_without_endpoint_takes_no_pods",
    resized("a", "b"),
    put("Node/node-2:spec.unschedulable", True),
    *HINTED,
)

# Z6 to Z9

TAINTED = [
    *nodes("gpu-", 0, 1, 2),
    *(
        put(f"Node/gpu-{number}:spec.taints", [{"key": "gpu", "effect": "NoSchedule"}])
        for number in range(3)
    ),
]
planted("Z6", "auto_has_two_endpoints_for_three_zones", resized("a", "b"), AUTO)
nearly("Z6 Z7 Z8 Z9", "auto_gives_hints", AUTO, hint)
planted("Z7", "shares_of_cpu_do_not_come_out", *nodes("large-", 0, 1), AUTO)
nearly("Z7", "auto_has_enough_endpoints_and_writes_in_a_moment", AUTO)
planted("Z8", "auto_meets_a_node_without_zone", ZONELESS, AUTO)
planted("Z8", "auto_meets_a_node_without_cpu", cut("Node/node-2:status.allocatable"), AUTO)
planted("Z9", "most_nodes_of_a_zone_take_no_pods", *TAINTED, AUTO, hint)
nearly("Z9", "taints_do_not_matter_without_auto", *TAINTED, *HINTED)

# Z11, Z12

HALF = planted(
    "Z11",
    "half_of_the_clients_have_two_of_ten_endpoints",
    resized(*"aabbbbcccc"),
    *nodes("node-a", 0, 1),
    *HINTED,
)
planted("Z11", "a_zone_is_asked_about_that_is_overloaded", HALF, OF_ZONE)
nearly(
    "Z11", "four_endpoints_are_as_even_as_three_zones_allow", resized("a", "a", "b", "c"), *HINTED
)


def for_zone(zone: str) -> Edit:
    labels = {"endpointslice.kubernetes.io/for-zone": zone}
    return put(f"{SLICE}:metadata.labels", **labels)


planted("Z12", "a_slice_is_for_a_zone_that_no_node_has", for_zone("zone-d"))
planted("Z12", "a_zone_is_asked_about_that_is_none", ask("zone", "zone-d"))
nearly("Z12", "a_slice_is_for_a_zone_that_nodes_have", for_zone("zone-b"))
nearly("Z11 Z5", "a_zone_is_asked_about_that_is_well", do(add_service, "search"), *HINTED, OF_ZONE)

# Z14 to Z18: measured zones

SHARES = "sliceplane.dev/measured-shares"
DEMAND = "sliceplane.dev/demand"
OVERLOAD = "sliceplane.dev/max-overload"


def measured(reason: str, status: str = "False", *, age: float = 3600, **annotations: str) -> Edit:
    """cart asks for measured zones, and the controller's condition is *reason*; "": none."""

    def edit(world: World) -> None:
        cart = world.get("Service", "shop", "cart")
        names = {"shares": SHARES, "demand": DEMAND, "overload": OVERLOAD}
        cart["metadata"]["annotations"] = {
            "service.kubernetes.io/topology-mode": "sliceplane.dev/Measured",
            **{names[name]: value for name, value in annotations.items()},
        }
        condition = {
            "type": "TrafficDistributionMeasured",
            "status": status,
            "reason": reason,
            "message": "a sentence",
            "lastTransitionTime": ago(age),
        }
        cart["status"]["conditions"] = [condition] if reason else []

    return edit


def counting(*names: str) -> Edit:
    """The proxies of these Nodes report connections."""

    def edit(world: World) -> None:
        add_proxies(world)
        for name in names:
            lease = world.get("Lease", "kube-node-lease", f"sliceplane-proxy-{name}")
            lease["metadata"]["annotations"][DEMAND] = "3f9a12c0:431"

    return edit


IS_MEASURED = measured("Measured", "True", shares="zone-a=32/64,zone-b=16/64,zone-c=16/64")
planted("Z14", "no_node_counts_connections", measured("NotMeasured"))
planted("Z14", "no_xds_server_counts_requests", measured("NotMeasured", demand="requests"))
planted("Z14", "no_controller_measures", measured(""))
nearly("Z14 Z15 Z16 Z17", "zones_are_measured", IS_MEASURED)
nearly("Z14", "nothing_asks_for_measured_zones", put(f"{CART}:status", {"conditions": []}))
nearly("Z14 Z15", "the_first_two_minutes", measured("Warming", "Unknown"))
planted("Z15", "one_node_does_not_count", measured("NodesSilent"), counting("node-0", "node-2"))
nearly("Z15", "all_nodes_count", IS_MEASURED, counting("node-0", "node-1", "node-2"))
planted("Z16", "an_hour_of_little_traffic", measured("TooLittleTraffic"))
nearly("Z16", "little_traffic_for_a_minute", measured("TooLittleTraffic", age=60))
planted("Z17", "the_overload_is_no_number", measured("Measured", "True", overload="lots"))
planted("Z17", "the_source_of_demand_is_none", measured("NotMeasured", demand="latency"))
planted("Z17", "a_weight_is_negative", measured("NotMeasured", demand="weights: zone-a=-1"))
planted("Z17", "shares_do_not_add_up", measured("Measured", "True", shares="zone-a=63/64"))
planted(
    "Z17",
    "the_overload_of_balanced_is_no_number",
    put(f"{CART}:spec.trafficDistribution", "sliceplane.dev/Balanced"),
    put(f"{CART}:metadata.annotations", {OVERLOAD: "-3"}),
)
nearly(
    "Z17",
    "annotations_count_with_measured_alone",
    put(f"{CART}:metadata.annotations", {SHARES: "x", OVERLOAD: "x"}),
)
nearly("Z17", "fixed_weights", measured("Measured", "True", demand="weights: zone-a=3,zone-b=1"))
planted(
    "Z14",
    "the_policy_is_local",
    measured("LocalPolicy"),
    put(f"{CART}:spec.internalTrafficPolicy", "Local"),
)


def event_of_cap(seconds: float, reason: str = "DemandCapped") -> Edit:
    """The controller has reported node-1 so long ago."""
    name = "sliceplane-proxy-node-1"
    about = {"kind": "Lease", "namespace": "kube-node-lease", "name": name}
    return do(
        lambda world: world.add(
            "Event",
            "kube-node-lease",
            f"{name}.1",
            type="Warning",
            reason=reason,
            message="a sentence",
            lastTimestamp=ago(seconds),
            involvedObject=about,
        )
    )


CAPPED = planted("Z18", "a_node_reports_a_million_connections", IS_MEASURED, event_of_cap(600))
IS_COUNTED = counting("node-0", "node-1", "node-2")
planted(
    "Z18", "the_capped_node_is_asked_about", event_of_cap(600), IS_COUNTED, ask("node", "node-1")
)
nearly("Z18", "another_node_is_asked_about", event_of_cap(600), IS_COUNTED, ask("node", "node-0"))
nearly("Z18", "a_node_was_capped_hours_ago", IS_MEASURED, event_of_cap(2 * 3600))
nearly("Z18", "another_warning_about_its_lease", IS_MEASURED, event_of_cap(600, "Failed"))
nearly("Z18", "nothing_is_measured_and_a_node_is_capped", event_of_cap(600))
nearly(
    "Z18",
    "weights_do_not_depend_on_nodes",
    CAPPED,
    measured("Measured", "True", demand="weights: zone-a=3,zone-b=1"),
)
