"""The Service itself: its type, proxy, addresses and ports, and names that do not exist."""

from __future__ import annotations

from typing import Any

from tests.diagnose.explain.edits import (
    CART,
    EVERYTHING,
    Edit,
    add,
    ask,
    ask_from,
    do,
    drop,
    event,
    nearly,
    planted,
    put,
    refuse,
    too_young,
)
from tests.diagnose.explain.world import add_node, add_pod, add_service, ago

PROXY_LABEL = "service.kubernetes.io/service-proxy-name"
SPEC = f"{CART}:spec"
DELETED = "Namespace/shop:metadata.deletionTimestamp"


def service(name: str, namespace: str = "shop", **spec: Any) -> Edit:
    return do(add_service, name, namespace, **spec)


def port(name: str, number: int, protocol: str = "TCP", **more: int) -> dict[str, Any]:
    return {"name": name, "port": number, "protocol": protocol, "targetPort": 8080, **more}


def dialled(port: str, protocol: str = "") -> Edit:
    return ask("service", "cart", port=port, protocol=protocol)


# S1, S2, S3

planted(
    "S1", "it_is_in_another_namespace", service("payments", "store"), ask("service", "payments")
)
planted("S1", "its_name_is_mistyped", ask("service", "carts"))
nearly("S1", "the_reader_may_not_list_services", refuse("services"))
planted("S2", "clients_dial_the_target_port", dialled("8080"))
planted("S3", "clients_dial_another_protocol", dialled("80", "UDP"))
nearly("S2 S3", "clients_dial_a_name", dialled("http", "TCP"))
nearly(
    "S2 S3",
    "both_protocols_are_there",
    put(f"{SPEC}.ports", [port("http", 80), port("quic", 80, "UDP")]),
    dialled("80", "UDP"),
)
planted("S1", "its_namespace_is_being_deleted", drop(CART), put(DELETED, ago(60)))

# Types and proxies

ALIAS: dict[str, Any] = {
    "type": "ExternalName",
    "externalName": "db.example.org",
    "clusterIP": "",
    "clusterIPs": None,
}
OTHER_PROXY = put(f"{CART}:metadata.labels", {PROXY_LABEL: "edge-proxy"})
MESH = {"name": "proxy", "image": "mesh:v3", "args": ["--service-proxy-name=edge-proxy"]}
planted("S4", "it_became_an_alias", put(SPEC, **ALIAS))
nearly(
    "S4 S2",
    "it_is_an_alias_from_the_first",
    service("db", selector=None, ports=None, **ALIAS),
    ask("service", "db", port="5432"),
)
planted("S5", "its_proxy_does_not_run", OTHER_PROXY)
nearly(
    "S5",
    "its_proxy_runs",
    OTHER_PROXY,
    add("DaemonSet/mesh", spec={"template": {"spec": {"containers": [MESH]}}}),
)
nearly("S5", "daemon_sets_cannot_be_seen", OTHER_PROXY, refuse("daemonsets"))

# Outside addresses

BALANCER = put(SPEC, type="LoadBalancer", externalTrafficPolicy="Local")
NO_RULES = "Error syncing load balancer: quota of forwarding rules exceeded"
OUTSIDE = put(SPEC, externalIPs=["203.0.113.9"])
OTHER_RANGE = put(SPEC, clusterIP="10.9.0.3", clusterIPs=["10.9.0.3"])
NODE_PORTS = [port("http", 80, nodePort=30080)]


def given(**ingress: str) -> Edit:
    return put(f"{CART}:status", {"loadBalancer": {"ingress": [ingress]}})


def bets(**spec: Any) -> Edit:
    """Another Service with that external address."""
    return service("bets", externalIPs=["203.0.113.9"], **spec)


planted(
    "S6", "no_controller_has_its_class", BALANCER, put(SPEC, loadBalancerClass="example.org/edge")
)
planted(
    "S6",
    "the_cloud_has_no_balancer_left",
    BALANCER,
    event("Service/cart", "SyncLoadBalancerFailed", NO_RULES, 40),
)
too_young(
    "S6", "its_balancer_is_being_made", BALANCER, put(f"{CART}:metadata.creationTimestamp", ago(90))
)
nearly("S6", "its_balancer_was_made", BALANCER, given(ip="203.0.113.80"))
nearly("S6", "its_balancer_has_a_name", BALANCER, given(hostname="lb.example.org"))
planted("S7", "another_has_its_external_address", OUTSIDE, bets())
planted(
    "S7",
    "another_has_its_node_port",
    put(SPEC, type="NodePort", ports=NODE_PORTS),
    service("bets", type="NodePort", ports=NODE_PORTS),
    EVERYTHING,
)
nearly("S7", "they_share_an_address_on_different_ports", OUTSIDE, bets(ports=[port("https", 443)]))
nearly("S7", "the_other_has_no_cluster_ip", OUTSIDE, bets(clusterIP="None", clusterIPs=["None"]))
planted("S8", "its_address_is_of_a_range_of_before", OTHER_RANGE)
nearly(
    "S8",
    "its_address_is_of_a_second_range",
    OTHER_RANGE,
    add("ServiceCIDR/more", spec={"cidrs": ["10.9.0.0/24"]}),
)
nearly("S8", "no_range_is_told", OTHER_RANGE, drop("ServiceCIDR/kubernetes"))

# Clients

RANGES = put(SPEC, loadBalancerSourceRanges=["198.51.100.0/24", "192.0.2.0/24"])
RANGED = (BALANCER, RANGES, given(ip="203.0.113.80"))
STICKY = put(SPEC, sessionAffinity="ClientIP")
BACKEND = {"service": {"name": "cart", "port": {"name": "http"}}}
PATHS = {"paths": [{"path": "/", "backend": BACKEND}]}
planted("S9", "the_client_is_in_no_range", *RANGED, ask_from("address", "203.0.113.9"))
nearly("S9", "the_client_is_in_a_range", *RANGED, ask_from("address", "192.0.2.7"))
planted(
    "S10",
    "all_clients_come_through_an_ingress",
    STICKY,
    add("Ingress/web", spec={"rules": [{"http": PATHS}]}),
)
planted("S10", "clients_inside_stick_to_their_pod", STICKY)
nearly("S10", "in_a_list_of_all_services_that_is_no_fault", STICKY, EVERYTHING)

# The end

REMAINING = (
    "Some content in the namespace has finalizers remaining: example.org/backup in 1 resource "
    "instances"
)
CONDITION = {"type": "NamespaceFinalizersRemaining", "status": "True", "message": REMAINING}
FINALIZERS = ["service.kubernetes.io/load-balancer-cleanup"]
planted(
    "S11",
    "its_namespace_is_going",
    put(DELETED, ago(1200)),
    put("Namespace/shop:status", {"phase": "Terminating", "conditions": [CONDITION]}),
)
planted(
    "S11",
    "its_finalizer_is_not_done",
    put(f"{CART}:metadata", deletionTimestamp=ago(600), finalizers=FINALIZERS),
)
nearly("S11", "its_namespace_has_just_been_deleted", put(DELETED, ago(15)))

# Names

OF_STRANGER = ask("pod", "cart-9")
WEB = do(add_pod, "web-1", "front", "node-0", {"app": "web"})
planted(
    "S12",
    "the_pod_is_in_another_namespace",
    do(add_pod, "pay-0", "store", "node-1", {"app": "pay"}),
    ask("pod", "pay-0"),
)
planted("S12", "the_pod_was_replaced", OF_STRANGER)
planted("S12", "the_node_is_mistyped", ask("node", "node1"))
nearly("S12", "pods_may_not_be_listed", refuse("pods"), OF_STRANGER)
nearly("S12", "the_node_is_there", do(add_node, "node-9", "zone-d"), ask("node", "node-9"))
planted("S12", "the_client_is_of_another_namespace", WEB, ask_from("pod", "web-1", "shop"))
nearly("S12", "the_client_is_named_with_its_namespace", WEB, ask_from("pod", "web-1", "front"))
planted("S12", "the_node_of_the_client_is_none", ask_from("node", "node-9"))
planted("S12", "the_zone_of_the_client_has_no_node", ask_from("zone", "zone-d"))
nearly("S12", "the_client_is_outside", ask_from("address", "203.0.113.9"))
nearly(
    "S12", "pods_of_the_client_may_not_be_read", refuse("pods"), ask_from("pod", "web-1", "shop")
)
