"""Slices that fall behind, and slices that others write."""

from __future__ import annotations

from typing import Any

from tests.diagnose.explain.edits import (
    CART,
    EVERYTHING,
    SLICE,
    Edit,
    add,
    ask,
    cut,
    do,
    drop,
    nearly,
    planted,
    put,
    refuse,
    too_young,
)
from tests.diagnose.explain.faults.selection import API_ON_LOOPBACK, LEGACY, OF_LEGACY
from tests.diagnose.explain.world import (
    NOW,
    World,
    add_pod,
    add_service,
    ago,
    endpoint_of,
    healthy,
)

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
CONTROLLER = "endpointslice-controller.k8s.io"
MIRRORING = "endpointslicemirroring-controller.k8s.io"


def of_slice(name: str, manager: str, *addresses: str, **more: Any) -> Edit:
    """A slice of cart with one port."""
    endpoints = [{"addresses": [address], "conditions": {"ready": True}} for address in addresses]
    content = {
        "labels": {SERVICE_NAME: "cart", **({MANAGED_BY: manager} if manager else {})},
        "addressType": "IPv4",
        "endpoints": endpoints,
        "ports": [{"name": "http", "port": 8080, "protocol": "TCP"}],
    }
    return add(f"EndpointSlice/{name}", **{**content, **more})


def pod(name: str, namespace: str, node: str, app: str) -> Edit:
    return do(add_pod, name, namespace, node, {"app": app})


# E1, R11


def late(seconds: float) -> tuple[Edit, ...]:
    """A Pod that is ready and in no slice."""
    since = put("Pod/cart-9:status.conditions.*.lastTransitionTime", ago(seconds))
    return pod("cart-9", "shop", "node-1", "cart"), since


def drained(number: int) -> tuple[Edit, ...]:
    """As ``sliceplane drain`` marks it, and the controller heeds it; it stays ready."""
    annotations = {"sliceplane.dev/drain": ago(40)}
    return (
        put(f"Pod/cart-{number}:metadata.annotations", annotations),
        put(f"{SLICE}:endpoints.{number}.conditions", ready=False, serving=False),
    )


UNREADY = put("Pod/cart-1:status.conditions[Ready]", status="False", lastTransitionTime=ago(60))
LATE = late(45)
planted("E1", "a_ready_pod_is_in_no_slice", *LATE)
planted("E1", "a_slice_says_ready_of_a_pod_that_is_not", UNREADY)
planted(
    "E1",
    "a_slice_says_not_ready_of_a_pod_that_is",
    put(f"{SLICE}:endpoints.1.conditions", ready=False, serving=False),
)
ALL_DRAINED = planted("R11", "all_of_them_are_drained", *drained(0), *drained(1), *drained(2))
nearly("E1", ALL_DRAINED)
planted("R11", "the_pod_that_is_asked_about_is_drained", *drained(1), ask("pod", "cart-1"))
nearly("R11 E1", "one_is_drained_and_others_serve", *drained(1))
nearly("E1 E2 E7", "a_pod_turned_ready_a_moment_ago", *late(3))

# E2, E7, E11


def lease(age: float) -> Edit:
    spec = {"holderIdentity": "control-1_4f0d", "leaseDurationSeconds": 15, "renewTime": ago(age)}
    return add("Lease/kube-system/kube-controller-manager", spec=spec)


def quota(hard: str) -> Edit:
    name = "count/endpointslices.discovery.k8s.io"
    status = {"hard": {name: hard}, "used": {name: "20"}}
    return add("ResourceQuota/objects", spec={"hard": {name: hard}}, status=status)


planted("E2", "the_leader_is_gone", *LATE, lease(200))
nearly("E2", "the_leader_renews", *LATE, lease(4))
planted("E7", "a_quota_of_slices_is_used_up", *LATE, quota("20"))
nearly("E7", "a_quota_of_slices_has_room", *LATE, quota("21"))
planted("E11", "the_node_of_a_pod_is_gone", drop("Node/node-1"))
nearly("E11", "the_reader_may_not_read_nodes", drop("Node/node-1"), refuse("nodes"))

# E3, E13

planted("E3", "a_slice_was_left_behind", of_slice("legacy-1", "legacy-sync", "10.9.0.9"))
nearly(
    "E3 E13",
    "a_slice_of_another_manager_lists_the_services_own_pod",
    of_slice("canary-1", "canary", "10.244.0.4"),
)
nearly(
    "E3 E13",
    "a_slice_of_another_manager_lists_a_pod_of_the_namespace",
    pod("green-0", "shop", "node-0", "green"),
    of_slice("green-1", "router", "10.244.0.6"),
)
planted(
    "E13",
    "a_slice_lists_a_pod_of_another_namespace",
    pod("vault-0", "pay", "node-0", "vault"),
    of_slice("shortcut", "by-hand", "10.244.0.6"),
)
nearly(
    "E3 E13",
    "a_slice_lists_a_node_where_a_pod_of_another_namespace_has_the_nodes_network",
    pod("exporter-0", "pay", "node-0", "exporter"),
    put("Pod/pay/exporter-0:spec.hostNetwork", True),
    of_slice("scraped", "by-hand", "10.244.0.6"),
)

# E4, E5, E15

MIRROR = of_slice("cart-m", MIRRORING, "10.9.0.9")
NO_SELECTOR = (cut(f"{CART}:spec.selector"), drop(SLICE))
SUBSET = {
    "addresses": [{"ip": "10.9.0.9"}],
    "ports": [{"name": "http", "port": 8080, "protocol": "TCP"}],
}


def own_endpoints(**labels: str) -> tuple[Edit, ...]:
    return *NO_SELECTOR, add("Endpoints/cart", labels=labels, subsets=[SUBSET])


planted("E4", "a_mirror_stayed_when_the_service_got_a_selector", MIRROR)
nearly("E4", "a_mirror_of_a_service_without_selector", *NO_SELECTOR, MIRROR)
planted("E15", "a_mirror_outlived_its_endpoints", *NO_SELECTOR, MIRROR)
nearly("E15", "a_mirror_has_its_endpoints", *own_endpoints(), MIRROR)
planted(
    "E5",
    "endpoints_are_not_to_be_mirrored",
    *own_endpoints(**{"endpointslice.kubernetes.io/skip-mirror": "true"}),
)
nearly("E5", "endpoints_are_mirrored_in_a_moment", *own_endpoints())

# E6, E8, E9, E10, E12


def many(world: World, replicas: int) -> None:
    world.documents = healthy(replicas).documents


def twice(manager: str) -> Edit:
    def edit(world: World) -> None:
        endpoint = endpoint_of(world.get("Pod", "shop", "cart-1"), {})
        of_slice("cart-2", manager, endpoints=[endpoint])(world)

    return edit


planted(
    "E6",
    "an_own_slice_has_no_label",
    *NO_SELECTOR,
    of_slice("cart-1", "by-hand", "10.9.0.9", labels={}),
)
nearly(
    "E6",
    "a_slice_of_a_like_name_is_anothers",
    *NO_SELECTOR,
    do(add_service, "cart-api"),
    of_slice("cart-api-1", "by-hand", "10.9.0.9", labels={SERVICE_NAME: "cart-api"}),
)
planted(
    "E8",
    "endpoints_are_cut_off",
    do(many, 1100),
    add(
        "Endpoints/cart",
        meta={"annotations": {"endpoints.kubernetes.io/over-capacity": "truncated"}},
        subsets=[{"addresses": [{"ip": "10.9.0.9"}] * 1000}],
    ),
)
nearly("E8", "a_large_service_has_no_endpoints_object", do(many, 1100))
planted("E9", "slices_are_of_the_service_of_before", put(f"{CART}:metadata.uid", "made-anew"))
nearly("E9", "a_slice_has_no_owner", put(f"{SLICE}:metadata.ownerReferences", []))
planted(
    "E10",
    "an_own_slice_has_names",
    *NO_SELECTOR,
    of_slice("cart-1", "by-hand", "db.example.org", addressType="FQDN"),
)
nearly("E10", "an_own_slice_has_addresses", *NO_SELECTOR, of_slice("cart-1", "by-hand", "10.9.0.9"))
planted("E12", "two_managers_list_one_pod", twice("other-sync"))
nearly("E12", "one_manager_moves_an_endpoint", twice(CONTROLLER))

# E16


def in_shadow(*events: tuple[str, SliceDifference]) -> Edit:
    """As ``controllers --shadow --shadow-output`` writes it; the first of two runs reported
    another difference.
    """
    other = SliceDifference(DifferenceKind.READY, "IPv4", "Pod cart-2", "true", "false", "cart-2")
    lines = [
        json_line(News(what, NOW - 40, StandingDifference("shop/cart", difference, NOW - 70)))
        for what, difference in [("appeared", other), *events]
    ]
    lines.insert(1, json_summary(ShadowSummary(1, 1, 1, 1, 0, 0, 1), NOW - 50))
    findings = findings_of_lines([*lines, lines[-1][:40]])
    return lambda world: setattr(world, "shadow", findings)


HINT = SliceDifference(
    DifferenceKind.HINT_MISSING, "IPv4", "Pod cart-1", "zones zone-b", "(none)", "cart-1"
)
planted("E16", "shadow_mode_misses_a_hint", in_shadow(("appeared", HINT)))
nearly(
    "E16 E1",
    "what_shadow_mode_missed_came_later",
    in_shadow(("appeared", HINT), ("resolved", HINT)),
)

# E14

HELD = "the removal of 40 of 60 endpoints is held until 2026-11-22T02:31:00Z, then 6 go each minute"


def guard(status: str, message: str, kind: str = "MassRemovalHeld") -> Edit:
    condition = {"type": kind, "status": status, "reason": kind, "message": message}
    return put(f"{CART}:status.conditions", [condition])


planted("E14", "a_removal_is_held", guard("True", HELD))
nearly("E14", "what_was_held_is_over", guard("False", "nothing is held"))
planted(
    "E14",
    "endpoints_of_agents_are_held",
    guard("True", "6 agents fell silent together", "AgentRemovalHeld"),
)

# E17


def of_agent(state: str, **annotations: str) -> Edit:
    """An endpoint beside the Pods, as ``sliceplane agent`` writes it."""
    manager = "agent.sliceplane.dev"
    written = {f"{manager}/{name}": text for name, text in {"state": state, **annotations}.items()}
    is_ready = state == "passing" and not annotations
    return of_slice(
        "cart-vm-1-4",
        manager,
        labels={SERVICE_NAME: "cart", MANAGED_BY: manager, f"{manager}/name": "vm-1"},
        meta={"annotations": written},
        endpoints=[{"addresses": ["192.0.2.10"], "conditions": {"ready": is_ready}}],
    )


planted("E17", "checks_of_an_agent_fail", of_agent("failing"))
planted("E17", "an_agent_fell_silent", of_agent("lost"))
planted(
    "E17",
    "an_agent_has_the_address_of_a_pod",
    of_agent("failing", refused="192.0.2.10 is the address of Pod shop/cart-1"),
)
nearly("E17 E3", "an_agent_brings_an_endpoint_beside_pods", of_agent("passing"))
nearly("E17 E3", "an_agent_is_being_drained", of_agent("draining"))

# E18

EMPTY = put(f"{SLICE}:endpoints", [])
planted(
    "E18",
    "an_own_slice_says_that_nothing_is_ready",
    LEGACY,
    of_slice("legacy-1", "", "192.0.2.10", labels={SERVICE_NAME: "legacy"}),
    put("EndpointSlice/legacy-1:endpoints.0.conditions.ready", False),
    OF_LEGACY,
)
planted(  # Nothing says why: Pods may not be read, and the slices are empty.
    "E18", "pods_are_ready_and_no_slice_may_be_blamed", EMPTY, refuse("pods")
)
too_young(
    "E18",
    "pods_were_ready_a_moment_ago",
    EMPTY,
    put("Pod:status.conditions.*.lastTransitionTime", ago(4)),
)
nearly("E18", "slices_may_not_be_read", EMPTY, refuse("endpointslices"))
nearly(  # Pods that are not ready (R6) say enough.
    "E18",
    "another_finding_says_why",
    put(
        "Pod:status.conditions[ContainersReady,Ready]",
        status="False",
        lastTransitionTime=ago(700),
    ),
    put("Pod:status.containerStatuses.0", ready=False),
    put(f"{SLICE}:endpoints.*.conditions", ready=False),
)
planted("E18", "the_api_server_is_asked_about_on_loopback", *API_ON_LOOPBACK)
nearly(
    "E18",
    "in_a_list_of_all_services_a_plane_on_loopback_is_no_fault",
    *API_ON_LOOPBACK,
    EVERYTHING,
)


# E19

ADOPTED = {"sliceplane.dev/selector": "app=cart"}
ADOPTED_MANAGER = "endpointslice-controller.sliceplane.dev"


def moving(**annotations: str) -> Edit:
    more = {f"sliceplane.dev/{name}": text for name, text in annotations.items()}
    return put(f"{CART}:metadata.annotations", {**ADOPTED, **more})


NO_SELECTOR = cut(f"{CART}:spec.selector")
OF_OURS = put(f"{SLICE}:metadata.labels", {SERVICE_NAME: "cart", MANAGED_BY: ADOPTED_MANAGER})
planted("E19", "an_adopted_service_was_applied_again", moving())
planted("E19", "an_adoption_was_killed", moving(adoption="adopting"))
planted("E19", "a_release_was_killed", moving(adoption="releasing"))
planted("E19", "nobody_can_read_the_selector", moving(selector="app in (cart)"), NO_SELECTOR)
nearly("E19 E3 E12 T5 B8 B1", "a_service_is_adopted", moving(), NO_SELECTOR, OF_OURS)

# E20


def writers(path: str, **ages: float) -> Edit:
    names = {"upstream": "kube-controller-manager", "ours": "sliceplane-controllers"}
    entries = [
        {"manager": names.get(name, name), "operation": "Update", "time": ago(age)}
        for name, age in ages.items()
    ]
    return put(f"{path}:metadata.managedFields", entries)


planted("E20", "both_controllers_run", writers(SLICE, upstream=30.0, ours=25.0))
nearly("E20", "a_hand_over_was_a_while_ago", writers(SLICE, upstream=900.0, ours=890.0))
nearly("E20", "one_controller_followed_the_other", writers(SLICE, upstream=300.0, ours=20.0))
nearly("E20", "a_person_has_edited_a_slice", writers(SLICE, upstream=30.0, edit=20.0))
