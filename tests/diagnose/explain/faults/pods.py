"""Pods that do not start, are not ready, leave, or are on a node that is silent."""

from __future__ import annotations

from typing import Any

from tests.diagnose.explain.world import (
    NOW,
    World,
    add_pod,
    add_workload,
    ago,
    near_miss,
    owner,
    planted,
    too_young,
    write_slice,
)

from sliceplane.diagnose.explain.question import ExplainQuestion
from sliceplane.kit.times import format_micro_time


def _pod(world: World, number: int = 1) -> Any:
    return world.get("Pod", "shop", f"cart-{number}")


def _settled(world: World) -> None:
    """The controller has written what the Pods say now."""
    world.drop("EndpointSlice", "shop", "cart-x7k2p")
    write_slice(world, "cart")


def _unready(pod: Any, *kinds: str, since_s: float = 720) -> None:
    for condition in pod["status"]["conditions"]:
        if condition["type"] in (kinds or ("ContainersReady", "Ready")):
            condition.update(status="False", lastTransitionTime=ago(since_s))


def _status(pod: Any) -> Any:
    return pod["status"]["containerStatuses"][0]


def _waits(pod: Any, reason: str, message: str = "", since_s: float = 720) -> None:
    _unready(pod, since_s=since_s)
    pod["status"]["phase"] = "Pending"
    pod["status"]["startTime"] = ago(since_s)
    _status(pod).update(
        ready=False, started=False, state={"waiting": {"reason": reason, "message": message}}
    )


def _event(world: World, pod: str, reason: str, message: str, times: int = 1) -> None:
    about = {"kind": "Pod", "namespace": "shop", "name": pod, "uid": f"uid-Pod-shop-{pod}"}
    world.add(
        "Event",
        "shop",
        f"{pod}.{reason}",
        type="Warning",
        reason=reason,
        message=message,
        count=times,
        lastTimestamp=ago(20),
        involvedObject=about,
    )


# R1


def _without_node(pod: Any, message: str, since_s: float = 720) -> None:
    pod["spec"].pop("nodeName")
    pod["metadata"]["creationTimestamp"] = ago(since_s)
    condition = {
        "type": "PodScheduled",
        "status": "False",
        "reason": "Unschedulable",
        "message": message,
    }
    pod["status"] = {
        "phase": "Pending",
        "conditions": [{**condition, "lastTransitionTime": ago(since_s)}],
    }


NO_NODE = "0/3 nodes are available: 3 node(s) didn't have free ports for the requested pod ports."


@planted("R1")
def no_node_takes_them(world: World) -> None:
    for number in range(3):
        _without_node(_pod(world, number), NO_NODE)
    _settled(world)


@planted("R1")
def one_has_no_node_for_long(world: World) -> None:
    _without_node(_pod(world), NO_NODE)
    _settled(world)


@planted("R1")
def no_scheduler_runs(world: World) -> None:
    for number in range(3):
        _without_node(_pod(world, number), "")
        _pod(world, number)["status"]["conditions"] = []
    _settled(world)


@planted("R1")
def the_zone_that_they_ask_for_has_no_node(world: World) -> None:
    """What no Node has is as sure in the first second as later."""
    for number in range(3):
        _without_node(_pod(world, number), "", since_s=5)
        _pod(world, number)["status"]["conditions"] = []
        _pod(world, number)["spec"]["nodeSelector"] = {"topology.kubernetes.io/zone": "zone-d"}
    _settled(world)


@too_young("R1")
def the_scheduler_has_just_refused_them(world: World) -> None:
    for number in range(3):
        _without_node(_pod(world, number), NO_NODE, since_s=8)
    _settled(world)


@near_miss("R1")
def one_was_created_a_moment_ago(world: World) -> None:
    _without_node(_pod(world), NO_NODE, since_s=8)
    _settled(world)


# R2


def _without_address(pod: Any, since_s: float = 240) -> None:
    _waits(pod, "ContainerCreating", since_s=since_s)
    pod["status"].pop("podIP")
    pod["status"].pop("podIPs")


@planted("R2")
def the_pool_of_addresses_is_empty(world: World) -> None:
    message = (
        "Failed to create pod sandbox: plugin type=bridge failed (add): no IP addresses available "
        "in range set"
    )
    for number in range(3):
        _without_address(_pod(world, number))
        _event(world, f"cart-{number}", "FailedCreatePodSandBox", message, 17)
    _settled(world)


@near_miss("R2", "R6")
def one_is_being_created(world: World) -> None:
    _without_address(_pod(world), since_s=12)
    _settled(world)


# R3


def _initializes(pod: Any, since_s: float) -> None:
    _waits(pod, "PodInitializing", since_s=since_s)
    pod["spec"]["initContainers"] = [{"name": "wait-db", "image": "busybox"}]
    running = {"running": {"startedAt": ago(since_s)}}
    pod["status"]["initContainerStatuses"] = [{"name": "wait-db", "ready": False, "state": running}]


@planted("R3")
def an_init_container_waits_for_a_database(world: World) -> None:
    for number in range(3):
        _initializes(_pod(world, number), 720)
    _settled(world)


@near_miss("R3")
def an_init_container_runs_for_a_moment(world: World) -> None:
    _initializes(_pod(world), 30)
    _settled(world)


@near_miss("R3")
def a_sidecar_runs_all_the_time(world: World) -> None:
    for pod in world.all("Pod"):
        pod["spec"]["initContainers"] = [
            {"name": "proxy", "image": "envoy", "restartPolicy": "Always"}
        ]
        running = {"running": {"startedAt": ago(3600)}}
        pod["status"]["initContainerStatuses"] = [
            {"name": "proxy", "ready": True, "state": running}
        ]


# R4


@planted("R4")
def the_image_does_not_exist(world: World) -> None:
    for number in range(3):
        _pod(world, number)["spec"]["containers"][0]["image"] = "web:v2"
        _waits(_pod(world, number), "ImagePullBackOff", 'Back-off pulling image "web:v2"')
    _settled(world)


@planted("R4")
def a_config_map_is_missing(world: World) -> ExplainQuestion:
    _waits(_pod(world), "CreateContainerConfigError", 'configmap "web" not found')
    _settled(world)
    return ExplainQuestion("pod", "cart-1", "shop")


@planted("R4")
def a_volume_cannot_be_mounted(world: World) -> None:
    for number in range(3):
        _without_address(_pod(world, number))
        _event(
            world,
            f"cart-{number}",
            "FailedMount",
            'MountVolume.SetUp failed: secret "tls" not found',
        )
    _settled(world)


@near_miss("R4")
def one_failed_to_pull_once(world: World) -> None:
    _waits(_pod(world), "ErrImagePull", "registry is busy", since_s=10)
    _settled(world)


# R5


def _crashes(pod: Any, restarts: int, finished_s: float) -> None:
    ended = {"reason": "OOMKilled", "exitCode": 137, "finishedAt": ago(finished_s)}
    _status(pod).update(restartCount=restarts, lastState={"terminated": ended})


@planted("R5")
def they_run_out_of_memory(world: World) -> None:
    for number in range(3):
        _waits(
            _pod(world, number), "CrashLoopBackOff", "back-off 5m0s restarting failed container=web"
        )
        _crashes(_pod(world, number), 7 + number, 40)
    _settled(world)


@planted("R5")
def one_comes_and_goes(world: World) -> None:
    _crashes(_pod(world), 12, 90)


@near_miss("R5")
def one_restarted_last_week(world: World) -> None:
    _crashes(_pod(world), 12, 600_000)


# R6


@planted("R6")
def the_probe_asks_another_port(world: World) -> None:
    for number in range(3):
        pod = _pod(world, number)
        pod["spec"]["containers"][0]["readinessProbe"]["httpGet"]["port"] = 8081
        _unready(pod)
        _status(pod)["ready"] = False
        refused = "Readiness probe failed: dial tcp 10.244.0.3:8081: connect: connection refused"
        _event(world, f"cart-{number}", "Unhealthy", refused, 41)
    _settled(world)


@planted("R6")
def they_answer_that_they_are_not_ready(world: World) -> None:
    for number in range(3):
        _unready(_pod(world, number))
        _status(_pod(world, number))["ready"] = False
    _settled(world)


@planted("R6")
def they_were_ready_and_are_no_more(world: World) -> None:
    for number in range(3):
        _unready(_pod(world, number), since_s=12)
        _status(_pod(world, number))["ready"] = False
    _settled(world)


@near_miss("R6")
def one_of_a_rollout_starts(world: World) -> None:
    pod = _pod(world)
    _unready(pod, since_s=45)
    _status(pod).update(ready=False, state={"running": {"startedAt": ago(45)}})
    _settled(world)


# R7


GATE = "target-health.elbv2.k8s.aws/k8s-shop-cart"


def _gated(pod: Any, status: str, since_s: float) -> None:
    pod["spec"]["readinessGates"] = [{"conditionType": GATE}]
    conditions = pod["status"]["conditions"]
    for condition in conditions:
        condition["lastTransitionTime"] = ago(since_s)
    if status:
        conditions.append({"type": GATE, "status": status, "lastTransitionTime": ago(since_s)})
    if status != "True":
        _unready(pod, "Ready", since_s=since_s)


@planted("R7")
def no_controller_opens_the_gate(world: World) -> None:
    for number in range(3):
        _gated(_pod(world, number), "", 540)
    _settled(world)


@too_young("R7")
def every_gate_is_about_to_open(world: World) -> None:
    for number in range(3):
        _gated(_pod(world, number), "", 12)
    _settled(world)


@near_miss("R7")
def the_gate_is_open(world: World) -> None:
    for number in range(3):
        _gated(_pod(world, number), "True", 540)


@near_miss("R7")
def a_gate_is_about_to_open(world: World) -> None:
    _gated(_pod(world), "False", 20)
    _settled(world)


# R8, R9, R12


def _node_is(world: World, status: str, reason: str, message: str, since_s: float = 300) -> None:
    condition = {"type": "Ready", "status": status, "reason": reason, "message": message}
    world.get("Node", "", "node-1")["status"]["conditions"] = [
        {**condition, "lastTransitionTime": ago(since_s)}
    ]


def _lease_is(world: World, node: str, age_s: float) -> None:
    world.get("Lease", "kube-node-lease", node)["spec"]["renewTime"] = format_micro_time(
        NOW - age_s
    )


@planted("R8")
def a_node_is_silent(world: World) -> None:
    _node_is(world, "Unknown", "NodeStatusUnknown", "Kubelet stopped posting node status.")
    _lease_is(world, "node-1", 340)
    _unready(_pod(world), "Ready", since_s=300)
    _settled(world)


@planted("R8")
def a_node_says_that_it_is_not_ready(world: World) -> ExplainQuestion:
    _node_is(
        world,
        "False",
        "KubeletNotReady",
        "container runtime network not ready: cni config uninitialized",
    )
    _unready(_pod(world), "Ready", since_s=300)
    _settled(world)
    return ExplainQuestion("pod", "cart-1", "shop")


@planted("R8")
def the_node_itself_is_asked_about(world: World) -> ExplainQuestion:
    a_node_is_silent(world)
    return ExplainQuestion("node", "node-1")


@near_miss("R8", "R9", "R12")
def the_node_that_is_asked_about_is_well(_: World) -> ExplainQuestion:
    return ExplainQuestion("node", "node-1")


@near_miss("R8")
def a_silent_node_has_none_of_its_pods(world: World) -> None:
    add_workload(world, "search", "shop", 1)
    world.get("Pod", "shop", "search-0")["spec"]["nodeName"] = "node-1"
    for number in range(3):
        _pod(world, number)["spec"]["nodeName"] = "node-0"
    _node_is(world, "Unknown", "NodeStatusUnknown", "Kubelet stopped posting node status.")
    _settled(world)


@planted("R9")
def a_kubelet_falls_silent(world: World) -> None:
    _lease_is(world, "node-1", 26)


@near_miss("R9")
def all_leases_look_old_to_a_clock_that_is_ahead(world: World) -> None:
    for number in range(3):
        _lease_is(world, f"node-{number}", 95 + number)


@planted("R9")
def the_kubelet_of_all_its_pods_falls_silent(world: World) -> None:
    for number in range(3):
        _pod(world, number)["spec"]["nodeName"] = "node-1"
    _settled(world)
    _lease_is(world, "node-1", 26)
    spec = {
        "holderIdentity": "a",
        "leaseDurationSeconds": 15,
        "renewTime": format_micro_time(NOW - 1),
    }
    world.add("Lease", "kube-system", "kube-controller-manager", spec=spec)


@near_miss("R9")
def one_lease_looks_old_to_a_clock_that_is_ahead(world: World) -> None:
    the_kubelet_of_all_its_pods_falls_silent(world)
    world.get("Lease", "kube-system", "kube-controller-manager")["spec"]["renewTime"] = (
        format_micro_time(NOW - 24)
    )


@near_miss("R9")
def leases_may_not_be_read(world: World) -> None:
    a_kubelet_falls_silent(world)
    world.refuse.add("leases")


@planted("R12")
def a_node_shuts_down(world: World) -> None:
    _node_is(world, "False", "KubeletNotReady", "node is shutting down", 12)


@near_miss("R12")
def its_pods_have_left(world: World) -> None:
    _node_is(world, "False", "KubeletNotReady", "node is shutting down", 12)
    _unready(_pod(world), "Ready", since_s=10)
    _settled(world)


# R10, R11


@planted("R10")
def they_were_evicted(world: World) -> None:
    for document in (("Deployment", "cart"), ("ReplicaSet", "cart-7d9f")):
        world.drop(document[0], "shop", document[1])
    for number in range(3):
        pod = _pod(world, number)
        pod["metadata"].pop("ownerReferences")
        pod["status"].update(
            phase="Failed", reason="Evicted", message="The node was low on resource: memory."
        )
    _settled(world)


@planted("R10")
def the_job_behind_the_service_is_done(world: World) -> None:
    job = world.add(
        "Job", "shop", "train", spec={"template": {"metadata": {"labels": {"app": "cart"}}}}
    )
    world.drop("Deployment", "shop", "cart")
    for pod in world.all("Pod"):
        pod["metadata"]["ownerReferences"] = [owner(job)]
        pod["status"]["phase"] = "Succeeded"
    _settled(world)


@near_miss("R10")
def one_was_evicted_and_made_anew(world: World) -> None:
    pod = add_pod(world, "cart-old", "shop", "node-1", {"app": "cart"})
    pod["status"].update(phase="Failed", reason="Evicted")
    _settled(world)


def _leaves(pod: Any, since_s: float, grace: int = 30) -> None:
    pod["metadata"].update(deletionTimestamp=ago(since_s - grace), deletionGracePeriodSeconds=grace)


@planted("R11")
def none_of_them_ends(world: World) -> None:
    for number in range(3):
        _leaves(_pod(world, number), 900)
        _pod(world, number)["metadata"]["finalizers"] = ["example.org/backup"]
    _settled(world)


@planted("R11")
def it_was_deleted_a_moment_ago(world: World) -> ExplainQuestion:
    for number in range(3):
        _leaves(_pod(world, number), 8)
    _settled(world)
    return ExplainQuestion("pod", "cart-1", "shop")


@planted("R11")
def it_does_not_end(world: World) -> ExplainQuestion:
    _leaves(_pod(world), 1200)
    _pod(world)["metadata"]["finalizers"] = ["example.org/backup"]
    _settled(world)
    return ExplainQuestion("pod", "cart-1", "shop")


@near_miss("R11")
def one_leaves_in_a_rollout(world: World) -> None:
    _leaves(_pod(world), 8)
    _settled(world)


# R13, R14


@planted("R13")
def two_live_pods_have_one_address(world: World) -> None:
    _pod(world, 2)["status"].update(podIP="10.244.0.3", podIPs=[{"ip": "10.244.0.3"}])
    _settled(world)


@planted("R13")
def a_dead_pod_keeps_an_address_in_the_slice(world: World) -> None:
    _settled(world)
    _pod(world)["status"].update(phase="Failed")
    add_workload(world, "pay", "store", 1)
    taken = _pod(world)["status"]["podIP"]
    world.get("Pod", "store", "pay-0")["status"].update(podIP=taken, podIPs=[{"ip": taken}])


@near_miss("R13")
def pods_of_the_node_share_its_address(world: World) -> None:
    for number in (0, 1):
        _pod(world, number)["spec"]["hostNetwork"] = True
        _pod(world, number)["status"].update(podIP="192.168.0.1", podIPs=[{"ip": "192.168.0.1"}])
    _settled(world)


@near_miss("R13")
def a_job_that_is_done_had_the_address(world: World) -> None:
    done = add_pod(world, "migrate-x", "shop", "node-1", {"job": "migrate"})
    address = _pod(world)["status"]["podIP"]
    done["status"].update(phase="Succeeded", podIP=address, podIPs=[{"ip": address}])
