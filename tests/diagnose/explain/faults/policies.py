"""Policies between clients and endpoints, and what leads to the Service from outside."""

from __future__ import annotations

from typing import Any

from tests.diagnose.explain.edits import (
    CART,
    EVERYTHING,
    SLICE,
    Edit,
    add,
    ask_from,
    do,
    drop,
    nearly,
    planted,
    put,
)
from tests.diagnose.explain.world import World, add_node, add_pod

SPEC = f"{CART}:spec"
AWS = "service.beta.kubernetes.io/aws-load-balancer-nlb-target-type"
ANOTHER_NODE = do(add_node, "node-3", "zone-a")

# X1, X2, X3

LOCAL = put(SPEC, internalTrafficPolicy="Local")
NODE_PORT = put(f"{SPEC}.ports.0.nodePort", 30080)
NO_ENDPOINT = planted("X1", "a_node_has_no_endpoint_of_its_own", LOCAL, ANOTHER_NODE)
nearly("X1", "every_node_has_an_endpoint_of_its_own", LOCAL)
nearly("X1", "the_client_is_on_a_node_with_an_endpoint", NO_ENDPOINT, ask_from("node", "node-0"))


def external(kind: str) -> Edit:
    return put(SPEC, type=kind, externalTrafficPolicy="Local")


def three_more_of_node_0(world: World) -> None:
    endpoints = world.get("EndpointSlice", "shop", "cart-x7k2p")["endpoints"]
    for name in ("cart-3", "cart-4", "cart-5"):
        address = add_pod(world, name, "shop", "node-0", {"app": "cart"})["status"]["podIP"]
        target = {"kind": "Pod", "namespace": "shop", "name": name}
        endpoints.append({**endpoints[0], "addresses": [address], "targetRef": target})


planted("X2", "a_node_port_is_asked_on_any_node", external("NodePort"), NODE_PORT, ANOTHER_NODE)
nearly(
    "X2",
    "a_balancer_asks_the_health_check_port",
    external("LoadBalancer"),
    NODE_PORT,
    ANOTHER_NODE,
    put(SPEC, healthCheckNodePort=31234),
    put(f"{CART}:status", {"loadBalancer": {"ingress": [{"ip": "203.0.113.9"}]}}),
)
planted(
    "X3",
    "one_node_has_four_endpoints_and_others_one",
    external("NodePort"),
    NODE_PORT,
    three_more_of_node_0,
)
nearly("X3", "every_node_has_one", external("NodePort"))

# X4, X9


def policy(name: str, app: str, kind: str, *rules: Any) -> Edit:
    selector = {"matchLabels": {"app": app}}
    spec = {"podSelector": selector, "policyTypes": [kind], kind.lower(): list(rules)}
    return add(f"NetworkPolicy/{name}", spec=spec)


def admits(*rules: Any, selects: str = "cart") -> Edit:
    return policy("deny-all", selects, "Ingress", *rules)


def lets_out(app: str) -> Edit:
    return policy("back-egress", "back", "Egress", {"to": of(app), "ports": port(8080)})


def of(app: str) -> list[Any]:
    return [{"podSelector": {"matchLabels": {"app": app}}}]


def port(port: int | str) -> list[Any]:
    return [{"port": port, "protocol": "TCP"}]


BACK = (do(add_pod, "back", "shop", "node-0", {"app": "back"}), ask_from("pod", "back", "shop"))
BLOCK = {"ipBlock": {"cidr": "10.244.0.0/16", "except": ["10.244.9.0/24"]}}
TEAM = [{"namespaceSelector": {"matchLabels": {"team": "shop"}}}]
planted("X4", "everything_is_denied", admits())
planted(
    "X4",
    "another_client_is_admitted",
    admits({"from": of("front"), "ports": port(8080)}),
    *BACK,
)
planted(
    "X4",
    "the_port_of_the_service_is_admitted_and_not_the_pods",
    admits({"ports": port(80)}),
)
nearly(
    "X4",
    "the_client_is_admitted_by_its_namespace",
    put("Namespace/shop:metadata.labels", {"team": "shop"}),
    admits({"from": TEAM, "ports": port("http")}),
    *BACK,
)
nearly("X4", "the_client_is_admitted_by_its_address", admits({"from": [BLOCK]}), *BACK)
nearly("X4", "the_policy_is_for_others", admits(selects="other"))
nearly(
    "X4",
    "the_policy_is_for_egress",
    admits(),
    put("NetworkPolicy/deny-all:spec", policyTypes=["Egress"], egress=[]),
)
planted(
    "X4",
    "the_client_has_the_nodes_network",
    admits({"from": of("back")}),
    *BACK,
    put("Pod/back:spec", hostNetwork=True, dnsPolicy="ClusterFirstWithHostNet"),
)
planted("X9", "the_client_may_reach_its_database_alone", lets_out("db"), *BACK)
nearly("X9", "the_client_may_reach_the_service_too", lets_out("cart"), *BACK)

# X5


def ingress(**port: Any) -> Edit:
    paths = [{"path": "/cart", "backend": {"service": {"name": "cart", "port": port}}}]
    rules = [{"host": "shop.example", "http": {"paths": paths}}]
    return add("Ingress/shop", spec={"rules": rules})


planted("X5", "an_ingress_names_a_port_that_is_not_there", ingress(name="web"))
DELETED = planted(
    "X5",
    "an_ingress_leads_to_a_service_that_was_deleted",
    ingress(name="http"),
    drop(CART),
    drop(SLICE),
    EVERYTHING,
)
nearly("S1", "only_an_ingress_names_the_service_that_was_deleted", DELETED)
nearly("X5", "an_ingress_names_the_port", ingress(name="http"), ingress(number=80))

# X7, X8


def targets(kind: str) -> Edit:
    gate = "target-health.elbv2.k8s.aws/cart"

    def edit(world: World) -> None:
        put(f"{CART}:metadata.annotations", {AWS: kind})(world)
        for pod in world.all("Pod"):
            pod["spec"]["readinessGates"] = [{"conditionType": gate}]
            pod["status"]["conditions"].append({"type": gate, "status": "True"})

    return edit


def meshed(world: World) -> None:
    for pod in world.all("Pod"):
        pod["spec"]["containers"].append({"name": "istio-proxy", "image": "proxy"})


planted("X7", "gates_wait_for_targets_that_are_nodes", targets("instance"))
nearly("X7", "gates_wait_for_targets_that_are_pods", targets("ip"))
planted("X8", "pods_have_a_sidecar_of_a_mesh", meshed)
nearly("X8", "lint_does_not_speak_of_meshes", meshed, EVERYTHING)
