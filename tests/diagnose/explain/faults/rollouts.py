"""How a rollout replaces Pods, and Pods that are published before they are ready."""

from __future__ import annotations

from functools import partial
from typing import Any

from tests.diagnose.explain.edits import (
    CART,
    EVERYTHING,
    SLICE,
    Edit,
    PodEdit,
    cut,
    nearly,
    planted,
    pod,
    pods,
    put,
    rewritten,
    too_young,
)
from tests.diagnose.explain.faults.pods import GATES_CLOSED, unready
from tests.diagnose.explain.world import Doc, World, ago

# Published before they are ready (publishNotReadyAddresses)

PUBLISHED = put(f"{CART}:spec.publishNotReadyAddresses", True)


def starts(since_s: float) -> PodEdit:
    def edit(pod: Doc) -> None:
        running = {"running": {"startedAt": ago(since_s)}}
        unready(since_s=since_s, ready=False, state=running)(pod)
        pod["status"]["startTime"] = ago(since_s)

    return edit


def all_published(world: World, since_s: float) -> None:
    """As the controller writes the slice of such a Service."""
    for edit in (pods(starts(since_s)), PUBLISHED, rewritten):
        edit(world)
    put(f"{SLICE}:endpoints.*.conditions.ready", True)(world)


planted("R14", "one_that_is_not_ready_is_published", PUBLISHED, pod(starts(200)))
nearly("R14", "one_that_starts_is_published", PUBLISHED, pod(starts(20)))
nearly(
    "R14",
    "peers_of_a_headless_service_look_for_one_another",
    PUBLISHED,
    pod(starts(200)),
    put(f"{CART}:spec", clusterIP="None", clusterIPs=["None"]),
    EVERYTHING,
)
planted("R6", "none_is_ready_and_all_are_published", partial(all_published, since_s=200))
too_young("R6", "all_start_and_are_published", partial(all_published, since_s=12))
nearly("R6 R7", "all_are_ready_and_published", PUBLISHED)
planted("R7", "gates_are_closed_and_the_pods_are_published", PUBLISHED, GATES_CLOSED)

# Rollouts

AWS = "service.beta.kubernetes.io/aws-load-balancer-nlb-target-type"


def hook(*command: str) -> Edit:
    return put("Pod:spec.containers.0.lifecycle", {"preStop": {"exec": {"command": [*command]}}})


def strategy(kind: str, **rolling: Any) -> Edit:
    more = {"rollingUpdate": {**rolling, "maxSurge": 1}} if rolling else {}
    return put("Deployment/cart:spec.strategy", {"type": kind, **more})


def annotated(**annotations: str) -> Edit:
    return put(f"{CART}:metadata.annotations", annotations)


def leaving(*numbers: int) -> Edit:
    """They have 52 seconds of their 60 left."""
    left = {"deletionTimestamp": ago(-52), "deletionGracePeriodSeconds": 60}
    edits = [put(f"Pod/cart-{number}:metadata", **left) for number in numbers]
    return lambda world: [edit(world) for edit in (*edits, rewritten)]


planted("D1", "there_is_no_readiness_probe", cut("Pod:spec.containers.0.readinessProbe"))
nearly(
    "D1",
    "the_sidecar_alone_has_none",
    pods(lambda pod: pod["spec"]["containers"].append({"name": "log", "image": "log"})),
)
planted("D2", "there_is_no_pre_stop_hook", cut("Pod:spec.containers.0.lifecycle"))
nearly("D2 D3", "the_hook_runs_a_command", hook("/bin/sh", "-c", "sleep 5 && quit"))
planted(
    "D3",
    "the_hook_takes_the_whole_grace",
    put("Pod:spec.terminationGracePeriodSeconds", 30),
    hook("sh", "-c", "sleep 60"),
)
planted("D4", "everything_is_recreated", strategy("Recreate"))
planted("D4", "all_may_be_unavailable", strategy("RollingUpdate", maxUnavailable="100%"))
nearly("D4", "a_third_may_be_unavailable", strategy("RollingUpdate", maxUnavailable="34%"))
nearly("D4", "two_of_three_may_be_unavailable", strategy("RollingUpdate", maxUnavailable=2))
planted("D5", "the_balancer_leads_to_pods_without_gates", annotated(**{AWS: "ip"}))
nearly("D5", "the_balancer_leads_to_nodes", annotated(**{AWS: "instance"}))
planted("D6", "every_pod_terminates", leaving(0, 1, 2))
nearly("D6", "some_pods_terminate", leaving(0, 1))
