"""Selectors that match nothing, too few or too much."""

from __future__ import annotations

from typing import Any

from tests.diagnose.explain.world import (
    World,
    add_pod,
    add_service,
    add_workload,
    ago,
    near_miss,
    owner,
    planted,
    too_young,
    write_slice,
)

from sliceplane.diagnose.explain.question import ExplainQuestion


def _service(world: World) -> Any:
    return world.get("Service", "shop", "cart")


def _without_endpoints(world: World) -> None:
    """The controller has done its work: the slice is empty."""
    world.get("EndpointSlice", "shop", "cart-x7k2p")["endpoints"] = []


def _without_pods(world: World) -> None:
    for document in list(world.all("Pod")):
        world.drop("Pod", document["metadata"]["namespace"], document["metadata"]["name"])
    _without_endpoints(world)


def _templates(world: World, **labels: str) -> None:
    """Deployment cart and its Pods get these labels."""
    world.get("Deployment", "shop", "cart")["spec"]["template"]["metadata"]["labels"] = labels
    for pod in world.all("Pod"):
        pod["metadata"]["labels"] = {**labels, "pod-template-hash": "7d9f"}
    _without_endpoints(world)


def _young(world: World) -> None:
    _service(world)["metadata"]["creationTimestamp"] = ago(20)


# B1


@planted("B1")
def a_value_is_mistyped(world: World) -> None:
    _service(world)["spec"]["selector"] = {"app": "catr"}
    add_workload(world, "search", "shop", 4)
    _without_endpoints(world)


@planted("B1")
def one_of_two_pairs_has_another_value(world: World) -> None:
    _service(world)["spec"]["selector"] = {"app": "cart", "track": "stable"}
    _templates(world, app="cart", track="canary")


@planted("B1")
def no_pod_has_a_value_like_it(world: World) -> ExplainQuestion:
    add_service(
        world,
        "scheduler",
        selector={"component": "kube-scheduler"},
        clusterIP="None",
        clusterIPs=["None"],
    )
    return ExplainQuestion("service", "scheduler", "shop")


@planted("B1")
def the_namespace_is_empty(world: World) -> None:
    world.drop("Deployment", "shop", "cart")
    _without_pods(world)


@near_miss("B1", "B5", "B6", "B7", "B8")
def another_workload_has_nearly_its_labels(world: World) -> None:
    add_workload(world, "carts", "shop", 2)


@near_miss("B1")
def pods_may_not_be_read(world: World) -> None:
    a_value_is_mistyped(world)
    world.refuse.add("pods")


@too_young("B1")
def its_pods_may_yet_come(world: World) -> None:
    world.drop("Deployment", "shop", "cart")
    _without_pods(world)
    _young(world)


@planted("B1")
def the_selector_has_the_hash_of_one_rollout(world: World) -> None:
    _service(world)["spec"]["selector"] = {"app": "cart", "pod-template-hash": "5c6b"}
    _without_endpoints(world)


@near_miss("B6", "B8")
def that_hash_stands_in_the_template_too(world: World) -> None:
    """As after a patch of the template, whose value the controller overrules."""
    the_selector_has_the_hash_of_one_rollout(world)
    labels = {"app": "cart", "pod-template-hash": "5c6b"}
    world.get("Deployment", "shop", "cart")["spec"]["template"]["metadata"]["labels"] = labels


# B2


@planted("B2")
def it_has_neither_selector_nor_slice(world: World) -> ExplainQuestion:
    add_service(world, "legacy", selector=None)
    return ExplainQuestion("service", "legacy", "shop")


@near_miss("B2")
def its_slice_is_kept_by_hand(world: World) -> ExplainQuestion:
    add_service(world, "legacy", selector=None)
    document = write_slice(world, "legacy")
    document["metadata"]["labels"] = {"kubernetes.io/service-name": "legacy"}
    document["endpoints"] = [{"addresses": ["192.0.2.10"], "conditions": {"ready": True}}]
    return ExplainQuestion("service", "legacy", "shop")


@near_miss("B2")
def its_endpoints_are_of_an_election(world: World) -> ExplainQuestion:
    add_service(world, "cart-config", selector=None, clusterIP="None", clusterIPs=["None"])
    world.add("Endpoints", "shop", "cart-config", meta={"annotations": {"leader": "cart-0"}})
    return ExplainQuestion("service", "cart-config", "shop")


@too_young("B2")
def it_has_just_been_created(world: World) -> None:
    del _service(world)["spec"]["selector"]
    world.drop("EndpointSlice", "shop", "cart-x7k2p")
    _young(world)


# B3, B4


@planted("B3")
def it_selects_another_program(world: World) -> None:
    add_workload(world, "search", "shop", 1, app="cart", tier="search")
    world.get("Pod", "shop", "search-0")["spec"]["containers"][0]["image"] = (
        "registry:5000/search:v7"
    )
    world.drop("EndpointSlice", "shop", "cart-x7k2p")
    write_slice(world, "cart")


@near_miss("B3")
def it_selects_a_canary(world: World) -> None:
    add_workload(world, "cart-canary", "shop", 1, app="cart", track="canary")
    world.get("Pod", "shop", "cart-canary-0")["spec"]["containers"][0]["image"] = "web:v2"
    world.drop("EndpointSlice", "shop", "cart-x7k2p")
    write_slice(world, "cart")


def _job_pod(world: World, **labels: str) -> Any:
    job = world.add(
        "Job", "shop", "cart-migrate", spec={"template": {"metadata": {"labels": labels}}}
    )
    pod = add_pod(world, "cart-migrate-x7", "shop", "node-1", labels, job)
    world.drop("EndpointSlice", "shop", "cart-x7k2p")
    write_slice(world, "cart")
    return pod


@planted("B4")
def a_job_has_its_labels(world: World) -> None:
    _job_pod(world, app="cart")


@near_miss("B4", "B3")
def the_job_is_done(world: World) -> None:
    _job_pod(world, app="cart")["status"].update(phase="Succeeded")
    world.drop("EndpointSlice", "shop", "cart-x7k2p")
    write_slice(world, "cart")


@near_miss("B4")
def it_is_a_service_of_a_job(world: World) -> None:
    job = world.add(
        "Job", "shop", "train", spec={"template": {"metadata": {"labels": {"app": "cart"}}}}
    )
    for pod in world.all("Pod"):
        pod["metadata"]["ownerReferences"] = [owner(job)]


# B5, B6


@planted("B5")
def its_pods_are_in_another_namespace(world: World) -> None:
    _service(world)["spec"]["selector"] = {"app": "payments"}
    add_workload(world, "payments", "store", 2)
    _without_endpoints(world)


@near_miss("B5")
def another_namespace_has_such_pods_too(world: World) -> None:
    add_workload(world, "cart", "store", 2)


@planted("B6")
def the_template_lacks_a_label(world: World) -> None:
    _service(world)["spec"]["selector"] = {"app": "cart", "tier": "front"}
    _without_endpoints(world)


@near_miss("B6")
def another_template_lacks_it(world: World) -> None:
    _service(world)["spec"]["selector"] = {"app": "cart", "tier": "front"}
    _templates(world, app="cart", tier="front")
    add_workload(world, "back", "shop", 1, app="cart")
    world.drop("EndpointSlice", "shop", "cart-x7k2p")
    write_slice(world, "cart")


@planted("B6")
def the_template_has_the_label_and_its_pods_are_older(world: World) -> None:
    the_template_lacks_a_label(world)
    world.get("Deployment", "shop", "cart")["spec"]["template"]["metadata"]["labels"] = {
        "app": "cart",
        "tier": "front",
    }


@near_miss("B8")
def three_of_three_pods_run_that_the_service_does_not_select(world: World) -> None:
    the_template_has_the_label_and_its_pods_are_older(world)


# B7, B8


@planted("B7")
def its_deployment_is_scaled_down(world: World) -> None:
    deployment = world.get("Deployment", "shop", "cart")
    deployment["spec"]["replicas"] = 0
    deployment["metadata"]["managedFields"] = [
        {
            "manager": "kubectl",
            "operation": "Update",
            "subresource": "scale",
            "time": ago(840),
            "fieldsV1": {"f:spec": {"f:replicas": {}}},
        },
    ]
    _without_pods(world)


@near_miss("B7", "B8")
def the_other_colour_serves(world: World) -> None:
    add_workload(world, "cart-blue", "shop", 0, app="cart", colour="blue")


@planted("B8")
def the_quota_is_used_up(world: World) -> None:
    message = (
        'pods "cart-7d9f-x" is forbidden: exceeded quota: team, requested: memory=1Gi, used: 8Gi, '
        "limited: 8Gi"
    )
    condition = {
        "type": "ReplicaFailure",
        "status": "True",
        "reason": "FailedCreate",
        "message": message,
    }
    world.get("Deployment", "shop", "cart")["status"] = {"replicas": 0, "conditions": [condition]}
    _without_pods(world)


@too_young("B8")
def its_deployment_was_made_a_moment_ago(world: World) -> None:
    world.get("Deployment", "shop", "cart")["metadata"]["creationTimestamp"] = ago(9)
    _without_pods(world)


@planted("B8")
def a_stateful_set_cannot_make_its_third(world: World) -> None:
    _becomes_a_stateful_set(world)
    world.drop("Pod", "shop", "cart-2")
    world.drop("EndpointSlice", "shop", "cart-x7k2p")
    write_slice(world, "cart")
    message = (
        "create Pod cart-2 in StatefulSet cart failed: admission webhook policy.example.org did "
        "not answer"
    )
    world.add(
        "Event",
        "shop",
        "cart.1",
        type="Warning",
        reason="FailedCreate",
        message=message,
        lastTimestamp=ago(30),
        involvedObject={"kind": "StatefulSet", "namespace": "shop", "name": "cart"},
    )


@near_miss("B8", "B7")
def a_stateful_set_makes_one_after_the_other(world: World) -> None:
    _becomes_a_stateful_set(world)
    world.drop("Pod", "shop", "cart-2")
    world.drop("EndpointSlice", "shop", "cart-x7k2p")
    write_slice(world, "cart")


def _becomes_a_stateful_set(world: World) -> None:
    template = world.get("Deployment", "shop", "cart")["spec"]["template"]
    world.drop("Deployment", "shop", "cart")
    stateful_set = world.add(
        "StatefulSet", "shop", "cart", spec={"replicas": 3, "template": template}
    )
    for pod in world.all("Pod"):
        pod["metadata"]["ownerReferences"] = [owner(stateful_set)]


# B9


@planted("B9")
def no_service_selects_the_pod(world: World) -> ExplainQuestion:
    world.get("Pod", "shop", "cart-1")["metadata"]["labels"]["app"] = "carts"
    world.drop("EndpointSlice", "shop", "cart-x7k2p")
    write_slice(world, "cart")
    return ExplainQuestion("pod", "cart-1", "shop")


@planted("B9")
def nothing_is_like_its_labels(world: World) -> ExplainQuestion:
    add_pod(world, "agent-x", "shop", "node-0", {"app": "log-agent"})
    return ExplainQuestion("pod", "agent-x", "shop")


@near_miss("B9", "S12")
def a_service_selects_the_pod(_: World) -> ExplainQuestion:
    return ExplainQuestion("pod", "cart-1", "shop")


@near_miss("B9")
def services_may_not_be_read(world: World) -> ExplainQuestion:
    no_service_selects_the_pod(world)
    world.refuse.add("services")
    return ExplainQuestion("pod", "cart-1", "shop")


@near_miss("B8", "B7")
def a_service_without_selector_has_no_workload(world: World) -> None:
    del world.get("Service", "shop", "cart")["spec"]["selector"]
    for pod in list(world.all("Pod")):
        world.drop("Pod", "shop", pod["metadata"]["name"])


@near_miss("B2")
def the_api_server_listens_on_loopback(world: World) -> ExplainQuestion:
    service = add_service(world, "kubernetes", "default")
    del service["spec"]["selector"]
    return ExplainQuestion("service", "kubernetes", "default")
