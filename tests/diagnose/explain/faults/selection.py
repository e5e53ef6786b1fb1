"""Selectors that match nothing, too few or too much."""

from __future__ import annotations

from typing import Any

from tests.diagnose.explain.edits import (
    CART,
    SLICE,
    Edit,
    add,
    ask,
    cut,
    do,
    drop,
    event,
    nearly,
    owned_by,
    planted,
    put,
    refuse,
    rewritten,
    too_young,
)
from tests.diagnose.explain.world import World, add_pod, add_service, add_workload, ago, write_slice

SELECTOR = f"{CART}:spec.selector"
TEMPLATE = "Deployment/cart:spec.template.metadata.labels"
HEADLESS = {"clusterIP": "None", "clusterIPs": ["None"]}
FRONT = {"app": "cart", "tier": "front"}
#: the controller has done its work: the slice is empty
EMPTY = put(f"{SLICE}:endpoints", [])
YOUNG = put(f"{CART}:metadata.creationTimestamp", ago(20))
NO_DEPLOYMENT = drop("Deployment/cart")


def service(name: str, namespace: str = "shop", **spec: Any) -> Edit:
    return do(add_service, name, namespace, **spec)


def workload(name: str, namespace: str, replicas: int, **labels: str) -> Edit:
    return do(add_workload, name, namespace, replicas, **labels)


def selects(**labels: str) -> Edit:
    return put(SELECTOR, labels)


def no_pods(world: World) -> None:
    for pod in list(world.all("Pod")):
        world.drop("Pod", "shop", pod["metadata"]["name"])
    EMPTY(world)


def templates(**labels: str) -> Edit:
    """Deployment cart and its Pods get these labels."""
    of_pods = {**labels, "pod-template-hash": "7d9f"}
    edits = (put(TEMPLATE, labels), put("Pod:metadata.labels", of_pods), EMPTY)
    return lambda world: [edit(world) for edit in edits]


# B1

MISTYPED = planted(
    "B1", "a_value_is_mistyped", selects(app="catr"), workload("search", "shop", 4), EMPTY
)
planted(
    "B1",
    "one_of_two_pairs_has_another_value",
    selects(app="cart", track="stable"),
    templates(app="cart", track="canary"),
)
planted(
    "B1",
    "no_pod_has_a_value_like_it",
    service("scheduler", selector={"component": "kube-scheduler"}, **HEADLESS),
    ask("service", "scheduler"),
)
planted("B1", "the_namespace_is_empty", NO_DEPLOYMENT, no_pods)
nearly("B1 B5 B6 B7 B8", "another_workload_has_nearly_its_labels", workload("carts", "shop", 2))
nearly("B1", "pods_may_not_be_read", MISTYPED, refuse("pods"))
too_young("B1", "its_pods_may_yet_come", NO_DEPLOYMENT, no_pods, YOUNG)
HASHED = {"app": "cart", "pod-template-hash": "5c6b"}
ONE_ROLLOUT = planted(
    "B1", "the_selector_has_the_hash_of_one_rollout", put(SELECTOR, HASHED), EMPTY
)
nearly(  # As after a patch of the template, whose value the controller overrules.
    "B6 B8", "that_hash_stands_in_the_template_too", ONE_ROLLOUT, put(TEMPLATE, HASHED)
)

# B2

LEGACY = service("legacy", selector=None)
OF_LEGACY = ask("service", "legacy")
BY_HAND = {"addresses": ["192.0.2.10"], "conditions": {"ready": True}}
planted("B2", "it_has_neither_selector_nor_slice", LEGACY, OF_LEGACY)
nearly(
    "B2",
    "its_slice_is_kept_by_hand",
    LEGACY,
    do(write_slice, "legacy"),
    put("EndpointSlice/legacy-x7k2p", endpoints=[BY_HAND]),
    put("EndpointSlice/legacy-x7k2p:metadata.labels", {"kubernetes.io/service-name": "legacy"}),
    OF_LEGACY,
)
nearly(
    "B2",
    "its_endpoints_are_of_an_election",
    service("cart-config", selector=None, **HEADLESS),
    add("Endpoints/cart-config", meta={"annotations": {"leader": "cart-0"}}),
    ask("service", "cart-config"),
)
too_young("B2", "it_has_just_been_created", cut(SELECTOR), drop(SLICE), YOUNG)

# B3, B4


def job_pod(world: World) -> None:
    job = world.add(
        "Job", "shop", "cart-migrate", spec={"template": {"metadata": {"labels": {"app": "cart"}}}}
    )
    add_pod(world, "cart-migrate-x7", "shop", "node-1", {"app": "cart"}, job)
    rewritten(world)


planted(
    "B3",
    "it_selects_another_program",
    workload("search", "shop", 1, app="cart", tier="search"),
    put("Pod/search-0:spec.containers.0.image", "registry:5000/search:v7"),
    rewritten,
)
nearly(
    "B3",
    "it_selects_a_canary",
    workload("cart-canary", "shop", 1, app="cart", track="canary"),
    put("Pod/cart-canary-0:spec.containers.0.image", "web:v2"),
    rewritten,
)
planted("B4", "a_job_has_its_labels", job_pod)
nearly(
    "B4 B3",
    "the_job_is_done",
    job_pod,
    put("Pod/cart-migrate-x7:status", phase="Succeeded"),
    rewritten,
)
nearly(
    "B4",
    "it_is_a_service_of_a_job",
    add("Job/train", spec={"template": {"metadata": {"labels": {"app": "cart"}}}}),
    owned_by("Job/train"),
)

# B5, B6

planted(
    "B5",
    "its_pods_are_in_another_namespace",
    selects(app="payments"),
    workload("payments", "store", 2),
    EMPTY,
)
nearly("B5", "another_namespace_has_such_pods_too", workload("cart", "store", 2))
NO_LABEL = planted("B6", "the_template_lacks_a_label", selects(**FRONT), EMPTY)
nearly(
    "B6",
    "another_template_lacks_it",
    selects(**FRONT),
    templates(**FRONT),
    workload("back", "shop", 1, app="cart"),
    rewritten,
)
OLDER_PODS = planted(
    "B6", "the_template_has_the_label_and_its_pods_are_older", NO_LABEL, put(TEMPLATE, FRONT)
)
nearly("B8", "three_of_three_pods_run_that_the_service_does_not_select", OLDER_PODS)

# B7, B8

SCALED = {
    "manager": "kubectl",
    "operation": "Update",
    "subresource": "scale",
    "time": ago(840),
    "fieldsV1": {"f:spec": {"f:replicas": {}}},
}
QUOTA = (
    'pods "cart-7d9f-x" is forbidden: exceeded quota: team, requested: memory=1Gi, used: 8Gi, '
    "limited: 8Gi"
)
FAILS = {"type": "ReplicaFailure", "status": "True", "reason": "FailedCreate", "message": QUOTA}
WEBHOOK = (
    "create Pod cart-2 in StatefulSet cart failed: admission webhook policy.example.org did "
    "not answer"
)


def two_of_a_stateful_set(world: World) -> None:
    template = world.get("Deployment", "shop", "cart")["spec"]["template"]
    world.drop("Deployment", "shop", "cart")
    world.add("StatefulSet", "shop", "cart", spec={"replicas": 3, "template": template})
    owned_by("StatefulSet/cart")(world)
    world.drop("Pod", "shop", "cart-2")
    rewritten(world)


planted(
    "B7",
    "its_deployment_is_scaled_down",
    put("Deployment/cart:spec.replicas", 0),
    put("Deployment/cart:metadata.managedFields", [SCALED]),
    no_pods,
)
nearly(
    "B7 B8",
    "the_other_colour_serves",
    workload("cart-blue", "shop", 0, app="cart", colour="blue"),
)
planted(
    "B8",
    "the_quota_is_used_up",
    put("Deployment/cart:status", {"replicas": 0, "conditions": [FAILS]}),
    no_pods,
)
too_young(
    "B8",
    "its_deployment_was_made_a_moment_ago",
    put("Deployment/cart:metadata.creationTimestamp", ago(9)),
    no_pods,
)
planted(
    "B8",
    "a_stateful_set_cannot_make_its_third",
    two_of_a_stateful_set,
    event("StatefulSet/cart", "FailedCreate", WEBHOOK, 30),
)
nearly("B8 B7", "a_stateful_set_makes_one_after_the_other", two_of_a_stateful_set)

# B9

OF_POD = ask("pod", "cart-1")
API_ON_LOOPBACK: tuple[Edit, ...] = (
    service("kubernetes", "default"),
    cut("Service/default/kubernetes:spec.selector"),
    ask("service", "kubernetes", "default"),
)
UNSELECTED = planted(
    "B9",
    "no_service_selects_the_pod",
    put("Pod/cart-1:metadata.labels", app="carts"),
    rewritten,
    OF_POD,
)
planted(
    "B9",
    "nothing_is_like_its_labels",
    do(add_pod, "agent-x", "shop", "node-0", {"app": "log-agent"}),
    ask("pod", "agent-x"),
)
nearly("B9 S12", "a_service_selects_the_pod", OF_POD)
nearly("B9", "services_may_not_be_read", UNSELECTED, refuse("services"))
nearly(
    "B8 B7",
    "a_service_without_selector_has_no_workload",
    cut(SELECTOR),
    *(drop(f"Pod/cart-{number}") for number in range(3)),
)
nearly("B2", "the_api_server_listens_on_loopback", *API_ON_LOOPBACK)
