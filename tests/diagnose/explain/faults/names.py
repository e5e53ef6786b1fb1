"""Names in DNS."""

from __future__ import annotations

from typing import Any

from tests.diagnose.explain.edits import (
    CART,
    SLICE,
    Edit,
    add,
    ask_from,
    do,
    drop,
    nearly,
    planted,
    put,
    rewritten,
)
from tests.diagnose.explain.world import World, add_pod, add_service, add_workload, write_slice

MATCH = """.:53 {
    template IN A cart.shop {
        match ^cart\\.shop\\.
        rcode NXDOMAIN
    }
    kubernetes cluster.local
}"""
TO_OTHER = "    rewrite name exact cart.shop.svc.cluster.local other.shop.svc.cluster.local\n"
OLD = "    rewrite name suffix .old.local .svc.cluster.local\n"
OTHERS = MATCH.replace("cart", "search").replace("    kubernetes", f"{OLD}    kubernetes")
JUST_NOW = "2026-09-21T14:13:18Z"


def dns(replicas: int, corefile: str = ".:53 {\n    kubernetes cluster.local\n}") -> Edit:
    def edit(world: World) -> None:
        add_service(world, "kube-dns", "kube-system")
        add_workload(world, "kube-dns", "kube-system", replicas)
        write_slice(world, "kube-dns", "kube-system")
        world.add("ConfigMap", "kube-system", "coredns", data={"Corefile": corefile})

    return edit


planted("C1", "the_dns_server_is_down", dns(0))
planted("C1", "a_template_answers_for_the_name", dns(2, MATCH))
planted("C1", "a_rewrite_takes_the_name", dns(2, f".:53 {{\n{TO_OTHER}}}"))
nearly("C1", "templates_and_rewrites_are_for_other_names", dns(2, OTHERS))

# The client


def front(**spec: Any) -> tuple[Edit, ...]:
    pod = do(add_pod, "front", "shop", "node-0", {"app": "front"})
    return pod, put("Pod/front:spec", **spec), ask_from("pod", "front", "shop")


planted("C2", "the_client_has_the_nodes_resolver", *front(dnsPolicy="Default"))
planted("C2", "the_client_has_the_nodes_network", *front(hostNetwork=True))
nearly(
    "C2",
    "the_client_asks_the_cluster_from_the_nodes_network",
    *front(hostNetwork=True, dnsPolicy="ClusterFirstWithHostNet"),
)

# Headless Services

NO_ADDRESS = put(f"{CART}:spec", clusterIP="None", clusterIPs=["None"])
SAME_PORT = put(f"{CART}:spec.ports.0.port", 8080)
HEADLESS = (NO_ADDRESS, SAME_PORT)
#: started a moment ago, not ready yet
YOUNG = (
    put(
        "Pod:status.conditions[Ready,ContainersReady]", status="False", lastTransitionTime=JUST_NOW
    ),
    rewritten,
)


def stateful(service_name: str) -> tuple[Edit, ...]:
    owner = {"apiVersion": "apps/v1", "kind": "StatefulSet", "name": "cart", "uid": "s"}
    return (
        *HEADLESS,
        add("StatefulSet/cart", spec={"replicas": 3, "serviceName": service_name}),
        put("Pod:metadata.ownerReferences", [{**owner, "controller": True}]),
    )


planted("C3", "peers_wait_for_each_other", *HEADLESS, *YOUNG)
nearly(
    "C3",
    "peers_are_published_before_they_are_ready",
    *HEADLESS,
    put(f"{CART}:spec.publishNotReadyAddresses", True),
    *YOUNG,
)
planted("C4", "clients_dial_the_port_of_a_headless_service", NO_ADDRESS)
nearly("C4", "the_port_of_a_headless_service_is_the_pods", *HEADLESS)
planted("C5", "the_stateful_set_names_another_service", *stateful("cart-headless"))
nearly("C5", "the_stateful_set_names_this_service", *stateful("cart"))

# Aliases


def alias(target: str) -> tuple[Edit, ...]:
    spec = {"type": "ExternalName", "externalName": target}
    return put(f"{CART}:spec", spec), drop(SLICE)


planted("C7", "an_alias_of_an_address", *alias("192.0.2.10"))
planted("C7", "an_alias_of_a_service_that_is_gone", *alias("db.shop.svc.cluster.local"))
nearly("C7", "an_alias_of_a_name", *alias("db.example.com"))
nearly(
    "C7",
    "an_alias_of_a_service_that_is_there",
    do(add_service, "db"),
    do(add_workload, "db", "shop", 2),
    do(write_slice, "db"),
    *alias("db.shop.svc.cluster.local."),
)
