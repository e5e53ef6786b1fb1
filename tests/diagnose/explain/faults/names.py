"""Names in DNS."""

from __future__ import annotations

from typing import Any

from tests.diagnose.explain.world import (
    World,
    add_pod,
    add_service,
    add_workload,
    near_miss,
    planted,
    write_slice,
)

from sliceplane.diagnose.explain.question import ClientPlace, ExplainQuestion

MATCH = """.:53 {
    template IN A cart.shop {
        match ^cart\\.shop\\.
        rcode NXDOMAIN
    }
    kubernetes cluster.local
}"""


def _dns(
    world: World, replicas: int, corefile: str = ".:53 {\n    kubernetes cluster.local\n}"
) -> None:
    add_service(world, "kube-dns", "kube-system")
    add_workload(world, "kube-dns", "kube-system", replicas)
    write_slice(world, "kube-dns", "kube-system")
    world.add("ConfigMap", "kube-system", "coredns", data={"Corefile": corefile})


@planted("C1")
def the_dns_server_is_down(world: World) -> None:
    _dns(world, 0)


@planted("C1")
def a_template_answers_for_the_name(world: World) -> None:
    _dns(world, 2, MATCH)


@planted("C1")
def a_rewrite_takes_the_name(world: World) -> None:
    _dns(
        world,
        2,
        ".:53 "
        "{\n    rewrite name exact cart.shop.svc.cluster.local other.shop.svc.cluster.local\n}",
    )


@near_miss("C1")
def templates_and_rewrites_are_for_other_names(world: World) -> None:
    rewrite = "    rewrite name suffix .old.local .svc.cluster.local\n"
    _dns(
        world,
        2,
        MATCH.replace("cart", "search").replace("    kubernetes", f"{rewrite}    kubernetes"),
    )


@planted("C2")
def the_client_has_the_nodes_resolver(world: World) -> ExplainQuestion:
    return _client(world, dnsPolicy="Default")


@planted("C2")
def the_client_has_the_nodes_network(world: World) -> ExplainQuestion:
    return _client(world, hostNetwork=True)


@near_miss("C2")
def the_client_asks_the_cluster_from_the_nodes_network(world: World) -> ExplainQuestion:
    return _client(world, hostNetwork=True, dnsPolicy="ClusterFirstWithHostNet")


def _client(world: World, **spec: Any) -> ExplainQuestion:
    add_pod(world, "front", "shop", "node-0", {"app": "front"})["spec"].update(spec)
    return ExplainQuestion("service", "cart", "shop", client=ClientPlace("pod", "front", "shop"))


def _headless(world: World, port: int = 8080) -> dict[str, Any]:
    spec: dict[str, Any] = world.get("Service", "shop", "cart")["spec"]
    spec.update(clusterIP="None", clusterIPs=["None"])
    spec["ports"][0]["port"] = port
    return spec


@planted("C3")
def peers_wait_for_each_other(world: World) -> None:
    _headless(world)
    _young(world)


@near_miss("C3")
def peers_are_published_before_they_are_ready(world: World) -> None:
    _headless(world)["publishNotReadyAddresses"] = True
    _young(world)


def _young(world: World) -> None:
    """Started a moment ago, not ready yet."""
    for pod in world.all("Pod"):
        for condition in pod["status"]["conditions"]:
            if condition["type"] in ("Ready", "ContainersReady"):
                condition.update(status="False", lastTransitionTime=JUST_NOW)
    world.drop("EndpointSlice", "shop", "cart-x7k2p")
    write_slice(world, "cart")


JUST_NOW = "2026-09-21T14:13:18Z"


@planted("C4")
def clients_dial_the_port_of_a_headless_service(world: World) -> None:
    _headless(world, 80)


@near_miss("C4")
def the_port_of_a_headless_service_is_the_pods(world: World) -> None:
    _headless(world)


@planted("C5")
def the_stateful_set_names_another_service(world: World) -> None:
    _stateful(world, "cart-headless")


@near_miss("C5")
def the_stateful_set_names_this_service(world: World) -> None:
    _stateful(world, "cart")


def _stateful(world: World, service_name: str) -> None:
    _headless(world)
    world.add("StatefulSet", "shop", "cart", spec={"replicas": 3, "serviceName": service_name})
    for pod in world.all("Pod"):
        pod["metadata"]["ownerReferences"] = [
            {
                "apiVersion": "apps/v1",
                "kind": "StatefulSet",
                "name": "cart",
                "uid": "s",
                "controller": True,
            }
        ]


@planted("C7")
def an_alias_of_an_address(world: World) -> None:
    _alias(world, "192.0.2.10")


@planted("C7")
def an_alias_of_a_service_that_is_gone(world: World) -> None:
    _alias(world, "db.shop.svc.cluster.local")


@near_miss("C7")
def an_alias_of_a_name(world: World) -> None:
    _alias(world, "db.example.com")


@near_miss("C7")
def an_alias_of_a_service_that_is_there(world: World) -> None:
    add_service(world, "db")
    add_workload(world, "db", "shop", 2)
    write_slice(world, "db")
    _alias(world, "db.shop.svc.cluster.local.")


def _alias(world: World, target: str) -> None:
    spec: dict[str, Any] = world.get("Service", "shop", "cart")["spec"]
    spec.clear()
    spec.update(type="ExternalName", externalName=target)
    world.drop("EndpointSlice", "shop", "cart-x7k2p")
