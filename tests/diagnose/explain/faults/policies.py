"""Policies between clients and endpoints, and what leads to the Service from outside."""

from __future__ import annotations

from typing import Any

from tests.diagnose.explain.world import World, add_node, add_pod, near_miss, planted

from sliceplane.diagnose.explain.question import ClientPlace, ExplainQuestion

AWS = "service.beta.kubernetes.io/aws-load-balancer-nlb-target-type"


def _spec(world: World) -> dict[str, Any]:
    spec: dict[str, Any] = world.get("Service", "shop", "cart")["spec"]
    return spec


@planted("X1")
def a_node_has_no_endpoint_of_its_own(world: World) -> None:
    _spec(world)["internalTrafficPolicy"] = "Local"
    add_node(world, "node-3", "zone-a")


@near_miss("X1")
def every_node_has_an_endpoint_of_its_own(world: World) -> None:
    _spec(world)["internalTrafficPolicy"] = "Local"


@near_miss("X1")
def the_client_is_on_a_node_with_an_endpoint(world: World) -> ExplainQuestion:
    a_node_has_no_endpoint_of_its_own(world)
    return ExplainQuestion("service", "cart", "shop", client=ClientPlace("node", "node-0"))


@planted("X2")
def a_node_port_is_asked_on_any_node(world: World) -> None:
    _external(world, "NodePort")


@near_miss("X2")
def a_balancer_asks_the_health_check_port(world: World) -> None:
    _external(world, "LoadBalancer")
    _spec(world)["healthCheckNodePort"] = 31234
    world.get("Service", "shop", "cart")["status"] = {
        "loadBalancer": {"ingress": [{"ip": "203.0.113.9"}]}
    }


def _external(world: World, kind: str) -> None:
    spec = _spec(world)
    spec.update(type=kind, externalTrafficPolicy="Local")
    spec["ports"][0]["nodePort"] = 30080
    add_node(world, "node-3", "zone-a")


@planted("X3")
def one_node_has_four_endpoints_and_others_one(world: World) -> None:
    endpoints = world.get("EndpointSlice", "shop", "cart-x7k2p")["endpoints"]
    spec = _spec(world)
    spec.update(type="NodePort", externalTrafficPolicy="Local")
    spec["ports"][0]["nodePort"] = 30080
    for number in range(3):
        pod = add_pod(world, f"cart-{number + 3}", "shop", "node-0", {"app": "cart"})
        target = {"kind": "Pod", "namespace": "shop", "name": f"cart-{number + 3}"}
        endpoints.append(
            {**endpoints[0], "addresses": [pod["status"]["podIP"]], "targetRef": target}
        )


@near_miss("X3")
def every_node_has_one(world: World) -> None:
    _spec(world).update(type="NodePort", externalTrafficPolicy="Local")


@planted("X4")
def everything_is_denied(world: World) -> None:
    _policy(world)


@planted("X4")
def another_client_is_admitted(world: World) -> ExplainQuestion:
    peers = [{"podSelector": {"matchLabels": {"app": "front"}}}]
    _policy(world, {"from": peers, "ports": [{"port": 8080, "protocol": "TCP"}]})
    return _client(world, "back")


@planted("X4")
def the_port_of_the_service_is_admitted_and_not_the_pods(world: World) -> None:
    _policy(world, {"ports": [{"port": 80, "protocol": "TCP"}]})


@near_miss("X4")
def the_client_is_admitted_by_its_namespace(world: World) -> ExplainQuestion:
    world.get("Namespace", "", "shop")["metadata"]["labels"] = {"team": "shop"}
    peers = [{"namespaceSelector": {"matchLabels": {"team": "shop"}}}]
    _policy(world, {"from": peers, "ports": [{"port": "http", "protocol": "TCP"}]})
    return _client(world, "back")


@near_miss("X4")
def the_client_is_admitted_by_its_address(world: World) -> ExplainQuestion:
    _policy(world, {"from": [{"ipBlock": {"cidr": "10.244.0.0/16", "except": ["10.244.9.0/24"]}}]})
    return _client(world, "back")


@near_miss("X4")
def the_policy_is_for_others(world: World) -> None:
    _policy(world, selects="other")


@near_miss("X4")
def the_policy_is_for_egress(world: World) -> None:
    _policy(world)["spec"].update(policyTypes=["Egress"], egress=[])


def _policy(world: World, *rules: dict[str, Any], selects: str = "cart") -> dict[str, Any]:
    spec = {
        "podSelector": {"matchLabels": {"app": selects}},
        "policyTypes": ["Ingress"],
        "ingress": list(rules),
    }
    return world.add("NetworkPolicy", "shop", "deny-all", spec=spec)


def _client(world: World, name: str) -> ExplainQuestion:
    add_pod(world, name, "shop", "node-0", {"app": name})
    return ExplainQuestion("service", "cart", "shop", client=ClientPlace("pod", name, "shop"))


@planted("X5")
def an_ingress_names_a_port_that_is_not_there(world: World) -> None:
    _ingress(world, {"name": "web"})


@planted("X5")
def an_ingress_leads_to_a_service_that_was_deleted(world: World) -> ExplainQuestion:
    _ingress(world, {"name": "http"})
    world.drop("Service", "shop", "cart")
    world.drop("EndpointSlice", "shop", "cart-x7k2p")
    return ExplainQuestion("everything")


@near_miss("S1")
def only_an_ingress_names_the_service_that_was_deleted(world: World) -> ExplainQuestion:
    return an_ingress_leads_to_a_service_that_was_deleted(world)


@near_miss("X5")
def an_ingress_names_the_port(world: World) -> None:
    _ingress(world, {"name": "http"})
    _ingress(world, {"number": 80})


def _ingress(world: World, port: dict[str, Any]) -> None:
    paths = [{"path": "/cart", "backend": {"service": {"name": "cart", "port": port}}}]
    world.add(
        "Ingress",
        "shop",
        "shop",
        spec={"rules": [{"host": "shop.example", "http": {"paths": paths}}]},
    )


@planted("X7")
def gates_wait_for_targets_that_are_nodes(world: World) -> None:
    _targets(world, "instance")


@near_miss("X7")
def gates_wait_for_targets_that_are_pods(world: World) -> None:
    _targets(world, "ip")


def _targets(world: World, kind: str) -> None:
    world.get("Service", "shop", "cart")["metadata"]["annotations"] = {AWS: kind}
    gate = "target-health.elbv2.k8s.aws/cart"
    for pod in world.all("Pod"):
        pod["spec"]["readinessGates"] = [{"conditionType": gate}]
        pod["status"]["conditions"].append({"type": gate, "status": "True"})


@planted("X8")
def pods_have_a_sidecar_of_a_mesh(world: World) -> None:
    for pod in world.all("Pod"):
        pod["spec"]["containers"].append({"name": "istio-proxy", "image": "proxy"})


@near_miss("X8")
def lint_does_not_speak_of_meshes(world: World) -> ExplainQuestion:
    pods_have_a_sidecar_of_a_mesh(world)
    return ExplainQuestion("everything")


@planted("X9")
def the_client_may_reach_its_database_alone(world: World) -> ExplainQuestion:
    return _let_out(world, {"app": "db"})


@near_miss("X9")
def the_client_may_reach_the_service_too(world: World) -> ExplainQuestion:
    return _let_out(world, {"app": "cart"})


def _let_out(world: World, labels: dict[str, str]) -> ExplainQuestion:
    rules = [
        {
            "to": [{"podSelector": {"matchLabels": labels}}],
            "ports": [{"port": 8080, "protocol": "TCP"}],
        }
    ]
    spec = {
        "podSelector": {"matchLabels": {"app": "back"}},
        "policyTypes": ["Egress"],
        "egress": rules,
    }
    world.add("NetworkPolicy", "shop", "back-egress", spec=spec)
    return _client(world, "back")


@planted("X4")
def the_client_has_the_nodes_network(world: World) -> ExplainQuestion:
    _policy(world, {"from": [{"podSelector": {"matchLabels": {"app": "back"}}}]})
    question = _client(world, "back")
    world.get("Pod", "shop", "back")["spec"].update(
        hostNetwork=True, dnsPolicy="ClusterFirstWithHostNet"
    )
    return question
