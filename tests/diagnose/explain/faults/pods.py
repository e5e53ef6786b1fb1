"""Pods that do not start, are not ready, leave, or are on a node that is silent."""

from __future__ import annotations

from typing import Any

from tests.diagnose.explain.edits import (
    Edit,
    PodEdit,
    add,
    ask,
    cut,
    do,
    drop,
    nearly,
    owned_by,
    planted,
    pod,
    pods,
    put,
    refuse,
    rewritten,
    too_young,
)
from tests.diagnose.explain.world import NOW, Doc, add_pod, add_workload, ago

from sliceplane.kit.times import format_micro_time

OF_POD = ask("pod", "cart-1")


def unready(*kinds: str, since_s: float = 720, **status: Any) -> PodEdit:
    def edit(pod: Doc) -> None:
        for condition in pod["status"]["conditions"]:
            if condition["type"] in (kinds or ("ContainersReady", "Ready")):
                condition.update(status="False", lastTransitionTime=ago(since_s))
        pod["status"]["containerStatuses"][0].update(status)

    return edit


def waits(reason: str, message: str = "", since_s: float = 720) -> PodEdit:
    def edit(pod: Doc) -> None:
        state = {"waiting": {"reason": reason, "message": message}}
        unready(since_s=since_s, ready=False, started=False, state=state)(pod)
        pod["status"].update(phase="Pending", startTime=ago(since_s))

    return edit


def event(pod: str, reason: str, message: str, times: int = 1) -> Edit:
    about = {"kind": "Pod", "namespace": "shop", "name": pod, "uid": f"uid-Pod-shop-{pod}"}
    return add(
        f"Event/{pod}.{reason}",
        type="Warning",
        reason=reason,
        message=message,
        count=times,
        lastTimestamp=ago(20),
        involvedObject=about,
    )


def events(reason: str, message: str, times: int = 1) -> tuple[Edit, ...]:
    return tuple(event(f"cart-{number}", reason, message, times) for number in range(3))


# R1


def without_node(message: str, since_s: float = 720) -> PodEdit:
    """With no message, no scheduler has a condition about it."""
    condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}
    since = {"message": message, "lastTransitionTime": ago(since_s)}

    def edit(pod: Doc) -> None:
        pod["spec"].pop("nodeName")
        pod["metadata"]["creationTimestamp"] = ago(since_s)
        conditions = [{**condition, **since}] if message else []
        pod["status"] = {"phase": "Pending", "conditions": conditions}

    return edit


NO_NODE = "0/3 nodes are available: 3 node(s) didn't have free ports for the requested pod ports."
planted("R1", "no_node_takes_them", pods(without_node(NO_NODE)), rewritten)
planted("R1", "one_has_no_node_for_long", pod(without_node(NO_NODE)), rewritten)
planted("R1", "no_scheduler_runs", pods(without_node("")), rewritten)
planted(  # What no Node has is as sure in the first second as later.
    "R1",
    "the_zone_that_they_ask_for_has_no_node",
    pods(without_node("", since_s=5)),
    put("Pod:spec.nodeSelector", {"topology.kubernetes.io/zone": "zone-d"}),
    rewritten,
)
too_young(
    "R1", "the_scheduler_has_just_refused_them", pods(without_node(NO_NODE, since_s=8)), rewritten
)
nearly("R1", "one_was_created_a_moment_ago", pod(without_node(NO_NODE, since_s=8)), rewritten)

# R2


def without_address(since_s: float = 240) -> PodEdit:
    def edit(pod: Doc) -> None:
        waits("ContainerCreating", since_s=since_s)(pod)
        pod["status"].pop("podIP")
        pod["status"].pop("podIPs")

    return edit


NO_ADDRESS = (
    "Failed to create pod sandbox: plugin type=bridge failed (add): no IP addresses available "
    "in range set"
)
planted(
    "R2",
    "the_pool_of_addresses_is_empty",
    pods(without_address()),
    *events("FailedCreatePodSandBox", NO_ADDRESS, 17),
    rewritten,
)
nearly("R2 R6", "one_is_being_created", pod(without_address(since_s=12)), rewritten)

# R3


def initializes(since_s: float) -> PodEdit:
    running = {"running": {"startedAt": ago(since_s)}}

    def edit(pod: Doc) -> None:
        waits("PodInitializing", since_s=since_s)(pod)
        pod["spec"]["initContainers"] = [{"name": "wait-db", "image": "busybox"}]
        pod["status"]["initContainerStatuses"] = [
            {"name": "wait-db", "ready": False, "state": running}
        ]

    return edit


SIDECAR = {"name": "proxy", "ready": True, "state": {"running": {"startedAt": ago(3600)}}}
planted("R3", "an_init_container_waits_for_a_database", pods(initializes(720)), rewritten)
nearly("R3", "an_init_container_runs_for_a_moment", pod(initializes(30)), rewritten)
nearly(
    "R3",
    "a_sidecar_runs_all_the_time",
    put(
        "Pod:spec", initContainers=[{"name": "proxy", "image": "envoy", "restartPolicy": "Always"}]
    ),
    put("Pod:status", initContainerStatuses=[SIDECAR]),
)

# R4

planted(
    "R4",
    "the_image_does_not_exist",
    put("Pod:spec.containers.0.image", "web:v2"),
    pods(waits("ImagePullBackOff", 'Back-off pulling image "web:v2"')),
    rewritten,
)
planted(
    "R4",
    "a_config_map_is_missing",
    pod(waits("CreateContainerConfigError", 'configmap "web" not found')),
    rewritten,
    OF_POD,
)
planted(
    "R4",
    "a_volume_cannot_be_mounted",
    pods(without_address()),
    *events("FailedMount", 'MountVolume.SetUp failed: secret "tls" not found'),
    rewritten,
)
nearly(
    "R4",
    "one_failed_to_pull_once",
    pod(waits("ErrImagePull", "registry is busy", since_s=10)),
    rewritten,
)

# R5


def crashed(number: int, restarts: int, finished_s: float) -> Edit:
    ended = {"reason": "OOMKilled", "exitCode": 137, "finishedAt": ago(finished_s)}
    container = f"Pod/cart-{number}:status.containerStatuses.0"
    return put(container, restartCount=restarts, lastState={"terminated": ended})


planted(
    "R5",
    "they_run_out_of_memory",
    pods(waits("CrashLoopBackOff", "back-off 5m0s restarting failed container=web")),
    *(crashed(number, 7 + number, 40) for number in range(3)),
    rewritten,
)
planted("R5", "one_comes_and_goes", crashed(1, 12, 90))
nearly("R5", "one_restarted_last_week", crashed(1, 12, 600_000))

# R6

REFUSED = "Readiness probe failed: dial tcp 10.244.0.3:8081: connect: connection refused"
planted(
    "R6",
    "the_probe_asks_another_port",
    put("Pod:spec.containers.0.readinessProbe.httpGet.port", 8081),
    pods(unready(ready=False)),
    *events("Unhealthy", REFUSED, 41),
    rewritten,
)
planted("R6", "they_answer_that_they_are_not_ready", pods(unready(ready=False)), rewritten)
planted("R6", "they_were_ready_and_are_no_more", pods(unready(since_s=12, ready=False)), rewritten)
STARTS = unready(since_s=45, ready=False, state={"running": {"startedAt": ago(45)}})
nearly("R6", "one_of_a_rollout_starts", pod(STARTS), rewritten)

# R7

GATE = "target-health.elbv2.k8s.aws/k8s-shop-cart"


def gated(status: str, since_s: float) -> PodEdit:
    def edit(pod: Doc) -> None:
        pod["spec"]["readinessGates"] = [{"conditionType": GATE}]
        conditions = pod["status"]["conditions"]
        if status:
            conditions.append({"type": GATE, "status": status})
        for condition in conditions:
            condition["lastTransitionTime"] = ago(since_s)
        if status != "True":
            unready("Ready", since_s=since_s)(pod)

    return edit


GATES_CLOSED = planted("R7", "no_controller_opens_the_gate", pods(gated("", 540)), rewritten)
too_young("R7", "every_gate_is_about_to_open", pods(gated("", 12)), rewritten)
nearly("R7", "the_gate_is_open", pods(gated("True", 540)))
nearly("R7", "a_gate_is_about_to_open", pod(gated("False", 20)), rewritten)

# R8, R9, R12


def node_is(status: str, reason: str, message: str, since_s: float = 300) -> Edit:
    condition = {"type": "Ready", "status": status, "reason": reason, "message": message}
    return put("Node/node-1:status.conditions", [{**condition, "lastTransitionTime": ago(since_s)}])


def lease_is(lease: str, age_s: float) -> Edit:
    return put(f"Lease/{lease}:spec.renewTime", format_micro_time(NOW - age_s))


SILENT = node_is("Unknown", "NodeStatusUnknown", "Kubelet stopped posting node status.")
SHUTS_DOWN = node_is("False", "KubeletNotReady", "node is shutting down", 12)
NO_NETWORK = "container runtime network not ready: cni config uninitialized"
MANAGER = "kube-system/kube-controller-manager"
OF_NODE = ask("node", "node-1")
NOT_READY = pod(unready("Ready", since_s=300))

NODE_SILENT = planted(
    "R8", "a_node_is_silent", SILENT, lease_is("node-1", 340), NOT_READY, rewritten
)
planted(
    "R8",
    "a_node_says_that_it_is_not_ready",
    node_is("False", "KubeletNotReady", NO_NETWORK),
    NOT_READY,
    rewritten,
    OF_POD,
)
planted("R8", "the_node_itself_is_asked_about", NODE_SILENT, OF_NODE)
nearly("R8 R9 R12", "the_node_that_is_asked_about_is_well", OF_NODE)
nearly(
    "R8",
    "a_silent_node_has_none_of_its_pods",
    do(add_workload, "search", "shop", 1),
    put("Pod/search-0:spec.nodeName", "node-1"),
    pods(lambda pod: pod["spec"].update(nodeName="node-0")),
    SILENT,
    rewritten,
)
KUBELET_SILENT = planted("R9", "a_kubelet_falls_silent", lease_is("node-1", 26))
nearly(
    "R9",
    "all_leases_look_old_to_a_clock_that_is_ahead",
    *(lease_is(f"node-{number}", 95 + number) for number in range(3)),
)
ONLY_KUBELET_SILENT = planted(
    "R9",
    "the_kubelet_of_all_its_pods_falls_silent",
    put("Pod:spec.nodeName", "node-1"),
    rewritten,
    lease_is("node-1", 26),
    add(f"Lease/{MANAGER}", spec={"holderIdentity": "a", "leaseDurationSeconds": 15}),
    lease_is(MANAGER, 1),
)
nearly(
    "R9",
    "one_lease_looks_old_to_a_clock_that_is_ahead",
    ONLY_KUBELET_SILENT,
    lease_is(MANAGER, 24),
)
nearly("R9", "leases_may_not_be_read", KUBELET_SILENT, refuse("leases"))
planted("R12", "a_node_shuts_down", SHUTS_DOWN)
nearly("R12", "its_pods_have_left", SHUTS_DOWN, pod(unready("Ready", since_s=10)), rewritten)

# R10, R11

EVICTED = {"phase": "Failed", "reason": "Evicted"}
FINALIZER = ["example.org/backup"]


def leaves(since_s: float, grace: int = 30, **more: Any) -> PodEdit:
    return lambda pod: pod["metadata"].update(
        deletionTimestamp=ago(since_s - grace), deletionGracePeriodSeconds=grace, **more
    )


planted(
    "R10",
    "they_were_evicted",
    drop("Deployment/cart"),
    drop("ReplicaSet/cart-7d9f"),
    cut("Pod:metadata.ownerReferences"),
    put("Pod:status", **EVICTED, message="The node was low on resource: memory."),
    rewritten,
)
planted(
    "R10",
    "the_job_behind_the_service_is_done",
    add("Job/train", spec={"template": {"metadata": {"labels": {"app": "cart"}}}}),
    drop("Deployment/cart"),
    owned_by("Job/train"),
    put("Pod:status", phase="Succeeded"),
    rewritten,
)
nearly(
    "R10",
    "one_was_evicted_and_made_anew",
    do(add_pod, "cart-old", "shop", "node-1", {"app": "cart"}),
    put("Pod/cart-old:status", **EVICTED),
    rewritten,
)
planted("R11", "none_of_them_ends", pods(leaves(900, finalizers=FINALIZER)), rewritten)
planted("R11", "it_was_deleted_a_moment_ago", pods(leaves(8)), rewritten, OF_POD)
planted("R11", "it_does_not_end", pod(leaves(1200, finalizers=FINALIZER)), rewritten, OF_POD)
nearly("R11", "one_leaves_in_a_rollout", pod(leaves(8)), rewritten)

# R13, R14


def address_is(pod: str, address: str, **more: Any) -> Edit:
    return put(f"Pod/{pod}:status", podIP=address, podIPs=[{"ip": address}], **more)


planted("R13", "two_live_pods_have_one_address", address_is("cart-2", "10.244.0.3"), rewritten)
planted(
    "R13",
    "a_dead_pod_keeps_an_address_in_the_slice",
    rewritten,
    put("Pod/cart-1:status", phase="Failed"),
    do(add_workload, "pay", "store", 1),
    address_is("store/pay-0", "10.244.0.4"),
)
nearly(
    "R13",
    "pods_of_the_node_share_its_address",
    *(put(f"Pod/cart-{number}:spec", hostNetwork=True) for number in (0, 1)),
    *(address_is(f"cart-{number}", "192.168.0.1") for number in (0, 1)),
    rewritten,
)
nearly(
    "R13",
    "a_job_that_is_done_had_the_address",
    do(add_pod, "migrate-x", "shop", "node-1", {"job": "migrate"}),
    address_is("migrate-x", "10.244.0.4", phase="Succeeded"),
)
