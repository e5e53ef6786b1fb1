"""Types, proxies and addresses of Services, and names that do not exist."""

from __future__ import annotations

from tests.diagnose.explain.world import (
    World,
    add_node,
    add_pod,
    add_service,
    ago,
    near_miss,
    planted,
    too_young,
)

from sliceplane.diagnose.explain.question import ClientPlace, ExplainQuestion

PROXY_LABEL = "service.kubernetes.io/service-proxy-name"


def _cart(world: World) -> dict[str, object]:
    return world.get("Service", "shop", "cart")["spec"]  # type: ignore[no-any-return]


def _balancer(world: World, **spec: object) -> None:
    _cart(world).update(type="LoadBalancer", externalTrafficPolicy="Local", **spec)


# Types and proxies


@planted("S4")
def it_became_an_alias(world: World) -> None:
    _cart(world).update(
        type="ExternalName", externalName="db.example.org", clusterIP="", clusterIPs=None
    )


@near_miss("S4", "S2")
def it_is_an_alias_from_the_first(world: World) -> ExplainQuestion:
    spec = {
        "type": "ExternalName",
        "externalName": "db.example.org",
        "clusterIP": "",
        "clusterIPs": None,
    }
    add_service(world, "db", selector=None, ports=None, **spec)
    return ExplainQuestion("service", "db", "shop", port="5432")


@planted("S5")
def its_proxy_does_not_run(world: World) -> None:
    world.get("Service", "shop", "cart")["metadata"]["labels"] = {PROXY_LABEL: "edge-proxy"}


@near_miss("S5")
def its_proxy_runs(world: World) -> None:
    its_proxy_does_not_run(world)
    container = {"name": "proxy", "image": "mesh:v3", "args": ["--service-proxy-name=edge-proxy"]}
    world.add(
        "DaemonSet", "kube-system", "mesh", spec={"template": {"spec": {"containers": [container]}}}
    )


@near_miss("S5")
def daemon_sets_cannot_be_seen(world: World) -> None:
    its_proxy_does_not_run(world)
    world.refuse.add("daemonsets")


# Outside addresses


@planted("S6")
def no_controller_has_its_class(world: World) -> None:
    _balancer(world, loadBalancerClass="example.org/edge")


@planted("S6")
def the_cloud_has_no_balancer_left(world: World) -> None:
    _balancer(world)
    world.add(
        "Event",
        "shop",
        "cart.1",
        type="Warning",
        reason="SyncLoadBalancerFailed",
        lastTimestamp=ago(40),
        involvedObject={"kind": "Service", "namespace": "shop", "name": "cart"},
        message="Error syncing load balancer: quota of forwarding rules exceeded",
    )


@too_young("S6")
def its_balancer_is_being_made(world: World) -> None:
    _balancer(world)
    world.get("Service", "shop", "cart")["metadata"]["creationTimestamp"] = ago(90)


@near_miss("S6")
def its_balancer_was_made(world: World) -> None:
    _balancer(world)
    world.get("Service", "shop", "cart")["status"] = {
        "loadBalancer": {"ingress": [{"ip": "203.0.113.80"}]}
    }


@near_miss("S6")
def its_balancer_has_a_name(world: World) -> None:
    _balancer(world)
    world.get("Service", "shop", "cart")["status"] = {
        "loadBalancer": {"ingress": [{"hostname": "lb.example.org"}]}
    }


@planted("S7")
def another_has_its_external_address(world: World) -> None:
    _cart(world)["externalIPs"] = ["203.0.113.9"]
    add_service(world, "bets", externalIPs=["203.0.113.9"])


@planted("S7")
def another_has_its_node_port(world: World) -> ExplainQuestion:
    ports = [{"name": "http", "port": 80, "protocol": "TCP", "targetPort": 8080, "nodePort": 30080}]
    _cart(world).update(type="NodePort", ports=ports)
    add_service(world, "bets", type="NodePort", ports=ports)
    return ExplainQuestion("everything")


@near_miss("S7")
def they_share_an_address_on_different_ports(world: World) -> None:
    _cart(world)["externalIPs"] = ["203.0.113.9"]
    ports = [{"name": "https", "port": 443, "protocol": "TCP", "targetPort": 8080}]
    add_service(world, "bets", externalIPs=["203.0.113.9"], ports=ports)


@near_miss("S7")
def the_other_has_no_cluster_ip(world: World) -> None:
    _cart(world)["externalIPs"] = ["203.0.113.9"]
    add_service(world, "bets", externalIPs=["203.0.113.9"], clusterIP="None", clusterIPs=["None"])


@planted("S8")
def its_address_is_of_a_range_of_before(world: World) -> None:
    _cart(world).update(clusterIP="10.9.0.3", clusterIPs=["10.9.0.3"])


@near_miss("S8")
def its_address_is_of_a_second_range(world: World) -> None:
    its_address_is_of_a_range_of_before(world)
    world.add("ServiceCIDR", "", "more", spec={"cidrs": ["10.9.0.0/24"]})


@near_miss("S8")
def no_range_is_told(world: World) -> None:
    its_address_is_of_a_range_of_before(world)
    world.drop("ServiceCIDR", "", "kubernetes")


# Clients


@planted("S9")
def the_client_is_in_no_range(world: World) -> ExplainQuestion:
    _balancer(world, loadBalancerSourceRanges=["198.51.100.0/24", "192.0.2.0/24"])
    world.get("Service", "shop", "cart")["status"] = {
        "loadBalancer": {"ingress": [{"ip": "203.0.113.80"}]}
    }
    return ExplainQuestion("service", "cart", "shop", client=ClientPlace("address", "203.0.113.9"))


@near_miss("S9")
def the_client_is_in_a_range(world: World) -> ExplainQuestion:
    the_client_is_in_no_range(world)
    return ExplainQuestion("service", "cart", "shop", client=ClientPlace("address", "192.0.2.7"))


@planted("S10")
def all_clients_come_through_an_ingress(world: World) -> None:
    _cart(world)["sessionAffinity"] = "ClientIP"
    backend = {"service": {"name": "cart", "port": {"name": "http"}}}
    world.add(
        "Ingress",
        "shop",
        "web",
        spec={"rules": [{"http": {"paths": [{"path": "/", "backend": backend}]}}]},
    )


@planted("S10")
def clients_inside_stick_to_their_pod(world: World) -> None:
    _cart(world)["sessionAffinity"] = "ClientIP"


@near_miss("S10")
def in_a_list_of_all_services_that_is_no_fault(world: World) -> ExplainQuestion:
    _cart(world)["sessionAffinity"] = "ClientIP"
    return ExplainQuestion("everything")


# The end


@planted("S11")
def its_namespace_is_going(world: World) -> None:
    message = (
        "Some content in the namespace has finalizers remaining: example.org/backup in 1 resource "
        "instances"
    )
    namespace = world.get("Namespace", "", "shop")
    namespace["metadata"]["deletionTimestamp"] = ago(1200)
    namespace["status"] = {
        "phase": "Terminating",
        "conditions": [
            {"type": "NamespaceFinalizersRemaining", "status": "True", "message": message}
        ],
    }


@planted("S11")
def its_finalizer_is_not_done(world: World) -> None:
    metadata = world.get("Service", "shop", "cart")["metadata"]
    metadata.update(
        deletionTimestamp=ago(600), finalizers=["service.kubernetes.io/load-balancer-cleanup"]
    )


@near_miss("S11")
def its_namespace_has_just_been_deleted(world: World) -> None:
    world.get("Namespace", "", "shop")["metadata"]["deletionTimestamp"] = ago(15)


# Names


@planted("S12")
def the_pod_is_in_another_namespace(world: World) -> ExplainQuestion:
    add_pod(world, "pay-0", "store", "node-1", {"app": "pay"})
    return ExplainQuestion("pod", "pay-0", "shop")


@planted("S12")
def the_pod_was_replaced(_: World) -> ExplainQuestion:
    return ExplainQuestion("pod", "cart-9", "shop")


@planted("S12")
def the_node_is_mistyped(_: World) -> ExplainQuestion:
    return ExplainQuestion("node", "node1")


@near_miss("S12")
def pods_may_not_be_listed(world: World) -> ExplainQuestion:
    world.refuse.add("pods")
    return ExplainQuestion("pod", "cart-9", "shop")


@near_miss("S12")
def the_node_is_there(world: World) -> ExplainQuestion:
    add_node(world, "node-9", "zone-d")
    return ExplainQuestion("node", "node-9")


# The client


@planted("S12")
def the_client_is_of_another_namespace(world: World) -> ExplainQuestion:
    add_pod(world, "web-1", "front", "node-0", {"app": "web"})
    return ExplainQuestion("service", "cart", "shop", client=ClientPlace("pod", "web-1", "shop"))


@near_miss("S12")
def the_client_is_named_with_its_namespace(world: World) -> ExplainQuestion:
    add_pod(world, "web-1", "front", "node-0", {"app": "web"})
    return ExplainQuestion("service", "cart", "shop", client=ClientPlace("pod", "web-1", "front"))


@planted("S12")
def the_node_of_the_client_is_none(_: World) -> ExplainQuestion:
    return ExplainQuestion("service", "cart", "shop", client=ClientPlace("node", "node-9"))


@planted("S12")
def the_zone_of_the_client_has_no_node(_: World) -> ExplainQuestion:
    return ExplainQuestion("service", "cart", "shop", client=ClientPlace("zone", "zone-d"))


@near_miss("S12")
def the_client_is_outside(_: World) -> ExplainQuestion:
    return ExplainQuestion("service", "cart", "shop", client=ClientPlace("address", "203.0.113.9"))


@near_miss("S12")
def pods_of_the_client_may_not_be_read(world: World) -> ExplainQuestion:
    world.refuse.add("pods")
    return ExplainQuestion("service", "cart", "shop", client=ClientPlace("pod", "web-1", "shop"))
