"""Faults of public issues and post-mortems for which no check was designed: what is said of each,
at the first try or since. Those that are not named are here, too, so that whoever teaches a check
finds them.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tests.diagnose.explain.world import (
    World,
    add_node,
    add_pod,
    add_service,
    add_workload,
    ago,
    healthy,
    pod_spec,
    write_slice,
)

from sliceplane.diagnose.explain.question import ClientReference, ExplainQuestion

CART = ExplainQuestion("service", "cart", "shop")
EXCLUDED = "node.kubernetes.io/exclude-from-external-load-balancers"
FRONT = ClientReference("pod", "cart-0", "shop")


def _balanced(world: World) -> None:
    spec = world.get("Service", "shop", "cart")["spec"]
    spec.update(
        type="LoadBalancer",
        externalTrafficPolicy="Cluster",
        ports=[{**spec["ports"][0], "nodePort": 30080}],
    )


def every_node_is_excluded_from_balancers(world: World) -> ExplainQuestion:
    """cilium/cilium#38793.  At the first try: S6, that nobody gave an address, and not why."""
    _balanced(world)
    for node in world.all("Node"):
        node["metadata"]["labels"][EXCLUDED] = ""
    return CART


def the_balancer_has_no_nodes_to_lead_to(world: World) -> ExplainQuestion:
    """hetznercloud/hcloud-cloud-controller-manager#769.  Named at the first try, in the words of
    its Event.
    """
    _balanced(world)
    about = {"kind": "Service", "namespace": "shop", "name": "cart", "uid": "uid-Service-shop-cart"}
    said = {
        "reason": "UnAvailableLoadBalancer",
        "message": "There are no available nodes for LoadBalancer",
    }
    world.add(
        "Event",
        "shop",
        "cart.1",
        involvedObject=about,
        type="Warning",
        lastTimestamp=ago(30),
        **said,
    )
    return CART


def policies_keep_clients_from_dns(world: World) -> ExplainQuestion:
    """https://www.nine.ch/en/platform-news/posts/postmortem-dns-netpol-block. Named at the first
    try to who asks about kube-dns from a client; who asks about another Service, or lints, does not
    hear of it.
    """
    world.add("Namespace", "", "kube-system", labels={"kind": "own"}, status={"phase": "Active"})
    port = {"name": "dns", "port": 53, "protocol": "UDP", "targetPort": 8080}
    add_service(world, "kube-dns", "kube-system", selector={"k8s-app": "kube-dns"}, ports=[port])
    add_workload(world, "coredns", "kube-system", 2, **{"k8s-app": "kube-dns"})
    write_slice(world, "kube-dns", "kube-system")
    own = {"namespaceSelector": {"matchLabels": {"kind": "own"}}}
    rules = {"podSelector": {}, "policyTypes": ["Ingress"], "ingress": [{"from": [own]}]}
    world.add("NetworkPolicy", "kube-system", "only-own", spec=rules)
    return ExplainQuestion("service", "kube-dns", "kube-system", client=FRONT)


def a_replica_set_of_before_goes_on(world: World) -> ExplainQuestion:
    """helm/helm#2096.  Not named: an older image of the same program looks like a canary."""
    world.get("Service", "shop", "cart")["spec"]["selector"] = {"release": "cart"}
    for kind in ("Deployment", "ReplicaSet"):
        world_template = world.get(kind, "shop", "cart" if kind == "Deployment" else "cart-7d9f")[
            "spec"
        ]["template"]
        world_template["metadata"]["labels"] = {"app": "cart", "release": "cart"}
    for pod in world.all("Pod"):
        pod["metadata"]["labels"]["release"] = "cart"
    labels = {"app": "before", "release": "cart"}
    template = {"metadata": {"labels": labels}, "spec": pod_spec()}
    old = world.add("ReplicaSet", "shop", "cart-59b6", spec={"replicas": 1, "template": template})
    pod = add_pod(world, "cart-old", "shop", "node-1", {**labels, "pod-template-hash": "59b6"}, old)
    pod["spec"]["containers"][0]["image"] = "web:v0"
    world.drop("EndpointSlice", "shop", "cart-x7k2p")
    write_slice(world, "cart")
    return CART


def a_node_without_endpoint_dials_the_balancer(world: World) -> ExplainQuestion:
    """openelb/openelb#188.  Not named: that the address is kept on the node itself is seen in its
    kernel alone.
    """
    _balanced(world)
    service = world.get("Service", "shop", "cart")
    service["spec"].update(externalTrafficPolicy="Local", healthCheckNodePort=31000)
    service["status"] = {"loadBalancer": {"ingress": [{"ip": "203.0.113.9"}]}}
    add_node(world, "node-3", "zone-a")
    return ExplainQuestion("service", "cart", "shop", client=ClientReference("node", "node-3"))


@pytest.mark.parametrize(
    ("plant", "code", "phrase"),
    [
        (
            every_node_is_excluded_from_balancers,
            "S6",
            "3 of 3 nodes are excluded from load balancers by a label",
        ),
        (
            the_balancer_has_no_nodes_to_lead_to,
            "S6",
            "There are no available nodes for LoadBalancer",
        ),
        (policies_keep_clients_from_dns, "X4", "nothing admits shop/cart-0 to 8080/UDP"),
    ],
)
def test_it_is_named(plant: Callable[[World], ExplainQuestion], code: str, phrase: str) -> None:
    world = healthy()
    cause = world.ask(plant(world)).cause
    assert cause is not None
    assert (cause.code, phrase in cause.sentence) == (code, True), cause.sentence


@pytest.mark.parametrize(
    "plant", [a_replica_set_of_before_goes_on, a_node_without_endpoint_dials_the_balancer]
)
def test_nothing_else_is_accused_where_it_is_not_named(
    plant: Callable[[World], ExplainQuestion],
) -> None:
    world = healthy()
    assert world.ask(plant(world)).cause is None
