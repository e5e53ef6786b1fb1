"""Slices that fall behind, and slices that others write."""

from __future__ import annotations

from typing import Any

from tests.diagnose.explain.world import (
    NOW,
    World,
    add_pod,
    add_service,
    ago,
    endpoint_of,
    healthy,
    near_miss,
    planted,
    too_young,
)

from sliceplane.diagnose.explain.question import ExplainQuestion
from sliceplane.diagnose.shadow.differences import DifferenceKind, SliceDifference
from sliceplane.diagnose.shadow.ledger import News, StandingDifference
from sliceplane.diagnose.shadow.report import (
    ShadowSummary,
    findings_of_lines,
    json_line,
    json_summary,
)

MANAGED_BY = "endpointslice.kubernetes.io/managed-by"
SERVICE_NAME = "kubernetes.io/service-name"


def _late(world: World, seconds: float) -> dict[str, Any]:
    """A Pod that is ready and in no slice."""
    pod = add_pod(world, "cart-9", "shop", "node-1", {"app": "cart"})
    for condition in pod["status"]["conditions"]:
        condition["lastTransitionTime"] = ago(seconds)
    return pod


def _slice(world: World, name: str, manager: str, *addresses: str, **more: Any) -> dict[str, Any]:
    endpoints = [{"addresses": [address], "conditions": {"ready": True}} for address in addresses]
    ports = [{"name": "http", "port": 8080, "protocol": "TCP"}]
    labels = {SERVICE_NAME: "cart", **({MANAGED_BY: manager} if manager else {})}
    return world.add(
        "EndpointSlice",
        "shop",
        name,
        **{"labels": labels, "addressType": "IPv4", "endpoints": endpoints, "ports": ports, **more},
    )


@planted("E1")
def a_ready_pod_is_in_no_slice(world: World) -> None:
    _late(world, 45)


@planted("E1")
def a_slice_says_ready_of_a_pod_that_is_not(world: World) -> None:
    for condition in world.get("Pod", "shop", "cart-1")["status"]["conditions"]:
        if condition["type"] == "Ready":
            condition.update(status="False", lastTransitionTime=ago(60))


@planted("E1")
def a_slice_says_not_ready_of_a_pod_that_is(world: World) -> None:
    world.get("EndpointSlice", "shop", "cart-x7k2p")["endpoints"][1]["conditions"].update(
        ready=False, serving=False
    )


def _drained(world: World, *numbers: int) -> None:
    """As ``sliceplane drain`` marks them, and the controller heeds it; they stay ready."""
    for number in numbers:
        world.get("Pod", "shop", f"cart-{number}")["metadata"]["annotations"] = {
            "sliceplane.dev/drain": ago(40)
        }
        endpoint = world.get("EndpointSlice", "shop", "cart-x7k2p")["endpoints"][number]
        endpoint["conditions"].update(ready=False, serving=False)


@near_miss("E1")
@planted("R11")
def all_of_them_are_drained(world: World) -> None:
    _drained(world, 0, 1, 2)


@planted("R11")
def the_pod_that_is_asked_about_is_drained(world: World) -> ExplainQuestion:
    _drained(world, 1)
    return ExplainQuestion("pod", "cart-1", "shop")


@near_miss("R11", "E1")
def one_is_drained_and_others_serve(world: World) -> None:
    _drained(world, 1)


@near_miss("E1", "E2", "E7")
def a_pod_turned_ready_a_moment_ago(world: World) -> None:
    _late(world, 3)


@planted("E2")
def the_leader_is_gone(world: World) -> None:
    _late(world, 45)
    _lease(world, 200)


@near_miss("E2")
def the_leader_renews(world: World) -> None:
    _late(world, 45)
    _lease(world, 4)


def _lease(world: World, age: float) -> None:
    spec = {"holderIdentity": "control-1_4f0d", "leaseDurationSeconds": 15, "renewTime": ago(age)}
    world.add("Lease", "kube-system", "kube-controller-manager", spec=spec)


@planted("E7")
def a_quota_of_slices_is_used_up(world: World) -> None:
    _late(world, 45)
    _quota(world, "20")


@near_miss("E7")
def a_quota_of_slices_has_room(world: World) -> None:
    _late(world, 45)
    _quota(world, "21")


def _quota(world: World, hard: str) -> None:
    name = "count/endpointslices.discovery.k8s.io"
    status = {"hard": {name: hard}, "used": {name: "20"}}
    world.add("ResourceQuota", "shop", "objects", spec={"hard": {name: hard}}, status=status)


@planted("E11")
def the_node_of_a_pod_is_gone(world: World) -> None:
    world.drop("Node", "", "node-1")


@near_miss("E11")
def the_reader_may_not_read_nodes(world: World) -> None:
    world.drop("Node", "", "node-1")
    world.refuse.add("nodes")


@planted("E3")
def a_slice_was_left_behind(world: World) -> None:
    _slice(world, "legacy-1", "legacy-sync", "10.9.0.9")


@near_miss("E3", "E13")
def a_slice_of_another_manager_lists_the_services_own_pod(world: World) -> None:
    _slice(world, "canary-1", "canary", world.get("Pod", "shop", "cart-1")["status"]["podIP"])


@near_miss("E3", "E13")
def a_slice_of_another_manager_lists_a_pod_of_the_namespace(world: World) -> None:
    pod = add_pod(world, "green-0", "shop", "node-0", {"app": "green"})
    _slice(world, "green-1", "router", pod["status"]["podIP"])


@planted("E13")
def a_slice_lists_a_pod_of_another_namespace(world: World) -> None:
    pod = add_pod(world, "vault-0", "pay", "node-0", {"app": "vault"})
    _slice(world, "shortcut", "by-hand", pod["status"]["podIP"])


@planted("E4")
def a_mirror_stayed_when_the_service_got_a_selector(world: World) -> None:
    _slice(world, "cart-m", "endpointslicemirroring-controller.k8s.io", "10.9.0.9")


@near_miss("E4")
def a_mirror_of_a_service_without_selector(world: World) -> None:
    _no_selector(world)
    _slice(world, "cart-m", "endpointslicemirroring-controller.k8s.io", "10.9.0.9")


@planted("E15")
def a_mirror_outlived_its_endpoints(world: World) -> None:
    a_mirror_of_a_service_without_selector(world)


@near_miss("E15")
def a_mirror_has_its_endpoints(world: World) -> None:
    _own_endpoints(world, {})
    _slice(world, "cart-m", "endpointslicemirroring-controller.k8s.io", "10.9.0.9")


def _no_selector(world: World) -> None:
    del world.get("Service", "shop", "cart")["spec"]["selector"]
    world.drop("EndpointSlice", "shop", "cart-x7k2p")


@planted("E5")
def endpoints_are_not_to_be_mirrored(world: World) -> None:
    _own_endpoints(world, {"endpointslice.kubernetes.io/skip-mirror": "true"})


@near_miss("E5")
def endpoints_are_mirrored_in_a_moment(world: World) -> None:
    _own_endpoints(world, {})


def _own_endpoints(world: World, labels: dict[str, str]) -> None:
    _no_selector(world)
    subsets = [
        {
            "addresses": [{"ip": "10.9.0.9"}],
            "ports": [{"name": "http", "port": 8080, "protocol": "TCP"}],
        }
    ]
    world.add("Endpoints", "shop", "cart", labels=labels, subsets=subsets)


@planted("E6")
def an_own_slice_has_no_label(world: World) -> None:
    _no_selector(world)
    _slice(world, "cart-1", "by-hand", "10.9.0.9", labels={})


@near_miss("E6")
def a_slice_of_a_like_name_is_anothers(world: World) -> None:
    _no_selector(world)
    add_service(world, "cart-api")
    _slice(world, "cart-api-1", "by-hand", "10.9.0.9", labels={SERVICE_NAME: "cart-api"})


@planted("E8")
def endpoints_are_cut_off(world: World) -> None:
    _many(world, 1100, "truncated")


@near_miss("E8")
def a_large_service_has_no_endpoints_object(world: World) -> None:
    _many(world, 1100, "")


def _many(world: World, replicas: int, told: str) -> None:
    world.documents = healthy(replicas).documents
    if told:
        subsets = [{"addresses": [{"ip": "10.9.0.9"}] * 1000}]
        annotations = {"endpoints.kubernetes.io/over-capacity": told}
        world.add("Endpoints", "shop", "cart", meta={"annotations": annotations}, subsets=subsets)


@planted("E9")
def slices_are_of_the_service_of_before(world: World) -> None:
    world.get("Service", "shop", "cart")["metadata"]["uid"] = "made-anew"


@near_miss("E9")
def a_slice_has_no_owner(world: World) -> None:
    world.get("EndpointSlice", "shop", "cart-x7k2p")["metadata"]["ownerReferences"] = []


@planted("E10")
def an_own_slice_has_names(world: World) -> None:
    _no_selector(world)
    _slice(world, "cart-1", "by-hand", "db.example.org", addressType="FQDN")


@near_miss("E10")
def an_own_slice_has_addresses(world: World) -> None:
    _no_selector(world)
    _slice(world, "cart-1", "by-hand", "10.9.0.9")


@planted("E12")
def two_managers_list_one_pod(world: World) -> None:
    _twice(world, "other-sync")


@near_miss("E12")
def one_manager_moves_an_endpoint(world: World) -> None:
    _twice(world, "endpointslice-controller.k8s.io")


def _twice(world: World, manager: str) -> None:
    endpoint = endpoint_of(world.get("Pod", "shop", "cart-1"), {})
    _slice(world, "cart-2", manager, endpoints=[endpoint])


def _in_shadow(world: World, *events: tuple[str, SliceDifference]) -> None:
    """As ``controllers --shadow --shadow-output`` writes it; the first of two runs told of
    something else.
    """
    other = SliceDifference(DifferenceKind.READY, "IPv4", "Pod cart-2", "true", "false", "cart-2")
    lines = [
        json_line(News(what, NOW - 40, StandingDifference("shop/cart", difference, NOW - 70)))
        for what, difference in [("appeared", other), *events]
    ]
    lines.insert(1, json_summary(ShadowSummary(1, 1, 1, 1, 0, 0, 1), NOW - 50))
    world.shadow = findings_of_lines([*lines, lines[-1][:40]])


HINT = SliceDifference(
    DifferenceKind.HINT_MISSING, "IPv4", "Pod cart-1", "zones zone-b", "(none)", "cart-1"
)


@planted("E16")
def shadow_mode_misses_a_hint(world: World) -> None:
    _in_shadow(world, ("appeared", HINT))


@near_miss("E16", "E1")
def what_shadow_mode_missed_came_later(world: World) -> None:
    _in_shadow(world, ("appeared", HINT), ("resolved", HINT))


def _guard(world: World, status: str, message: str, kind: str = "MassRemovalHeld") -> None:
    condition = {"type": kind, "status": status, "reason": kind, "message": message}
    world.get("Service", "shop", "cart").setdefault("status", {})["conditions"] = [condition]


@planted("E14")
def a_removal_is_held(world: World) -> None:
    _guard(
        world,
        "True",
        "the removal of 40 of 60 endpoints is held until 2026-11-22T02:31:00Z, then 6 go each "
        "minute",
    )


@near_miss("E14")
def what_was_held_is_over(world: World) -> None:
    _guard(world, "False", "nothing is held")


@planted("E14")
def endpoints_of_agents_are_held(world: World) -> None:
    _guard(world, "True", "6 agents fell silent together", "AgentRemovalHeld")


def _of_agent(world: World, state: str, **annotations: str) -> None:
    """An endpoint beside the Pods, as ``sliceplane agent`` writes it."""
    manager = "agent.sliceplane.dev"
    written = {f"{manager}/{name}": text for name, text in {"state": state, **annotations}.items()}
    labels = {SERVICE_NAME: "cart", MANAGED_BY: manager, f"{manager}/name": "vm-1"}
    endpoint = {
        "addresses": ["192.0.2.10"],
        "conditions": {"ready": state == "passing" and not annotations},
    }
    _slice(
        world,
        "cart-vm-1-4",
        manager,
        labels=labels,
        meta={"annotations": written},
        endpoints=[endpoint],
    )


@planted("E17")
def checks_of_an_agent_fail(world: World) -> None:
    _of_agent(world, "failing")


@planted("E17")
def an_agent_fell_silent(world: World) -> None:
    _of_agent(world, "lost")


@planted("E17")
def an_agent_has_the_address_of_a_pod(world: World) -> None:
    _of_agent(world, "failing", refused="192.0.2.10 is the address of Pod shop/cart-1")


@near_miss("E17", "E3")
def an_agent_brings_an_endpoint_beside_pods(world: World) -> None:
    _of_agent(world, "passing")


@near_miss("E17", "E3")
def an_agent_is_being_drained(world: World) -> None:
    _of_agent(world, "draining")


# E18


@planted("E18")
def an_own_slice_says_that_nothing_is_ready(world: World) -> ExplainQuestion:
    add_service(world, "legacy", selector=None)
    document = _slice(world, "legacy-1", "", "192.0.2.10")
    document["metadata"]["labels"] = {SERVICE_NAME: "legacy"}
    document["endpoints"][0]["conditions"]["ready"] = False
    return ExplainQuestion("service", "legacy", "shop")


@planted("E18")
def pods_are_ready_and_no_slice_may_be_blamed(world: World) -> None:
    """Nothing says why: Pods may not be read, and the slices are empty."""
    world.get("EndpointSlice", "shop", "cart-x7k2p")["endpoints"] = []
    world.refuse.add("pods")


@too_young("E18")
def pods_were_ready_a_moment_ago(world: World) -> None:
    world.get("EndpointSlice", "shop", "cart-x7k2p")["endpoints"] = []
    for pod in world.all("Pod"):
        for condition in pod["status"]["conditions"]:
            condition["lastTransitionTime"] = ago(4)


@near_miss("E18")
def slices_may_not_be_read(world: World) -> None:
    world.get("EndpointSlice", "shop", "cart-x7k2p")["endpoints"] = []
    world.refuse.add("endpointslices")


@near_miss("E18")
def another_finding_says_why(world: World) -> None:
    """Pods that are not ready (R6) say enough."""
    for pod in world.all("Pod"):
        for condition in pod["status"]["conditions"]:
            if condition["type"] in ("ContainersReady", "Ready"):
                condition.update(status="False", lastTransitionTime=ago(700))
        pod["status"]["containerStatuses"][0].update(ready=False)
    for endpoint in world.get("EndpointSlice", "shop", "cart-x7k2p")["endpoints"]:
        endpoint["conditions"]["ready"] = False


@planted("E18")
def the_api_server_is_asked_about_on_loopback(world: World) -> ExplainQuestion:
    del add_service(world, "kubernetes", "default")["spec"]["selector"]
    return ExplainQuestion("service", "kubernetes", "default")


@near_miss("E18")
def in_a_list_of_all_services_a_plane_on_loopback_is_no_fault(world: World) -> ExplainQuestion:
    the_api_server_is_asked_about_on_loopback(world)
    return ExplainQuestion("everything")
