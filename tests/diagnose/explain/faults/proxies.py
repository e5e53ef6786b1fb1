"""Node proxies of ours and what they report."""

from __future__ import annotations

import json
from typing import Any

from tests.diagnose.explain.edits import (
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
)
from tests.diagnose.explain.world import NOW, World, ago

from sliceplane.api.discovery import LABEL_FOR_ZONE

DIGEST = "0" * 16
LEASE_1 = "Lease/sliceplane-proxy-node-1"
RENEWED = f"{LEASE_1}:spec.renewTime"
OF_NODE = ask("node", "node-1")


def add_proxies(world: World, held: int = 1000) -> None:
    """One on each Node, which holds everything."""
    for node in list(world.all("Node")):
        add_proxy(world, node["metadata"]["name"], held, owner=node)


def add_proxy(world: World, name: str, held: int = 1000, *, owner: Any = None) -> None:
    report = {"endpointslices": {"all": [held, DIGEST]}, "services": {"all": [held, DIGEST]}}
    meta: dict[str, Any] = {
        "annotations": {
            "sliceplane.dev/endpointslices-revision": str(held),
            "sliceplane.dev/progress": json.dumps(report),
        }
    }
    if owner is not None:
        uid = owner["metadata"]["uid"]
        meta["ownerReferences"] = [{"apiVersion": "v1", "kind": "Node", "name": name, "uid": uid}]
    world.add(
        "Lease",
        "kube-node-lease",
        f"sliceplane-proxy-{name}",
        meta=meta,
        labels={"sliceplane.dev/component": "node-proxy"},
        spec={"holderIdentity": name, "leaseDurationSeconds": 90, "renewTime": ago(8)},
    )


def reports(node: str, **members: Any) -> Edit:
    def edit(world: World) -> None:
        lease = world.get("Lease", "kube-node-lease", f"sliceplane-proxy-{node}")
        annotations = lease["metadata"]["annotations"]
        changed = {**json.loads(annotations["sliceplane.dev/progress"]), **members}
        annotations["sliceplane.dev/progress"] = json.dumps(changed)
        annotations["sliceplane.dev/endpointslices-revision"] = str(
            min(held for held, _ in changed["endpointslices"].values())
        )

    return edit


def changed(seconds: float) -> Edit:
    """The slice of cart was written for a change so long ago."""
    annotations = {"endpoints.kubernetes.io/last-change-trigger-time": ago(seconds)}
    return put(f"{SLICE}:metadata", annotations=annotations, resourceVersion="900")


# N1

nearly("N1", "proxies_are_not_ours", OF_NODE)
STOPPED = planted("N1", "a_proxy_has_stopped", add_proxies, put(RENEWED, ago(240)))
planted("N1", "a_node_has_no_proxy", add_proxies, drop(LEASE_1), OF_NODE)
nearly("N1 N7", "a_node_is_gone_and_its_lease_still_there", STOPPED, drop("Node/node-1"))
nearly("N1", "a_report_is_a_little_late", add_proxies, put(RENEWED, ago(40)))
planted(  # As after SIGSTOP: it reports every 30 s at the least.
    "N1", "a_proxy_stands_still_though_its_lease_lasts", add_proxies, put(RENEWED, ago(50))
)

# N2

BEHIND = reports("node-1", endpointslices={"all": [812, DIGEST]})
NOT_HELD = planted("N2", "a_node_does_not_hold_the_change", add_proxies, changed(34), BEHIND)
planted("N2", "the_node_is_asked_about", NOT_HELD, OF_NODE)
planted(
    "N2",
    "a_proxy_of_an_older_release_is_behind",
    add_proxies,
    changed(34),
    put(f"{LEASE_1}:metadata.annotations", {"sliceplane.dev/endpointslices-revision": "812"}),
)
nearly("N2", "the_change_is_on_its_way", add_proxies, changed(6), BEHIND)


def zonal(number: int, held: int) -> Edit:
    zone = f"zone=zone-{'abc'[number]}"
    return reports(
        f"node-{number}", endpointslices={"shared": [held, DIGEST], zone: [held, DIGEST]}
    )


nearly(
    "N2",
    "the_slice_is_for_another_zone",
    add_proxies,
    changed(34),
    put(f"{SLICE}:metadata.labels", **{LABEL_FOR_ZONE: "zone-a"}),
    zonal(0, 950),
    zonal(1, 812),
    zonal(2, 812),
)

# N3, N4, N5

REFUSED = "IPv4 rules are refused: No buffer space available"
GONE = (add_proxies, reports("node-1", problems=["IPv4 rules were gone"]))
LOST = (add_proxies, reports("node-1", endpointslices={"all": [1000, "1" * 16]}))
planted("N3", "the_kernel_refuses", add_proxies, reports("node-1", problems=[REFUSED]))
nearly("N3", "somebody_took_rules_away", *GONE)
planted("N5", "rules_were_gone", *GONE)
nearly("N5", "rules_are_as_they_should", add_proxies)


def observed(problem: str) -> Edit:
    """Reports of ``sliceplane observe`` on node-1, which kube-proxy serves."""
    problems = [problem] if problem else []
    return reports("node-1", observed="kube-proxy nftables", problems=problems)


STILL_SENDS = (
    "its proxy still sends shop/cart:http (10.96.0.7:80/TCP) to 10.1.2.3:8080, removed at "
    "2026-09-21T13:46:06Z"
)
planted("N2", "kube_proxy_still_sends_to_a_removed_endpoint", add_proxies, observed(STILL_SENDS))
planted("N5", "the_table_of_kube_proxy_is_gone", add_proxies, observed("the kernel has no rules"))
nearly("N2 N3 N5", "kube_proxy_is_observed_and_in_step", add_proxies, observed(""))
planted("N4", "a_cache_lost_an_event", *LOST)
nearly(
    "N4",
    "a_cache_is_of_another_version",
    add_proxies,
    reports("node-1", endpointslices={"all": [990, "1" * 16]}),
)
nearly("N4", "of_two_nodes_it_cannot_be_told_which", drop("Node/node-2"), *LOST)

# N7, N15

DEAF = reports("node-1", inputs_since=int(NOW) - 540)
planted("N15", "a_proxy_hears_nothing", add_proxies, DEAF)
planted("N15", "it_is_behind_because_it_hears_nothing", NOT_HELD, DEAF)
nearly("N15", "every_proxy_hears_of_changes", add_proxies)
LONG_NAME = planted(
    "N7",
    "a_proxy_uses_the_long_name_of_its_host",
    add_proxies,
    drop(LEASE_1),
    do(add_proxy, "node-1.corp.example"),
)
nearly(  # As on machines outside Kubernetes: there is no Node whose name it could have.
    "N7",
    "a_plane_without_nodes_has_a_proxy",
    *(drop(f"Node/node-{number}") for number in range(3)),
    do(add_proxy, "vm"),
)
planted(
    "N7",
    "a_proxy_has_a_name_that_no_node_has_or_resembles",
    add_proxies,
    do(add_proxy, "laptop"),
)
nearly(
    "N7",
    "a_proxy_does_not_own_its_lease_yet",
    add_proxies,
    cut(f"{LEASE_1}:metadata.ownerReferences"),
)

# C6


def view(held: int, *, renewed: float = 8, of: str = "cart") -> Edit:
    """A Python view that reports, of the Service *of*."""
    report = {"endpointslices": {f"service/shop/{of}": [held, DIGEST]}}
    holder = {"holderIdentity": f"{of}-router-1", "leaseDurationSeconds": 90}
    return add(
        f"Lease/shop/sliceplane-view-{of}-router-1",
        labels={"sliceplane.dev/component": "view"},
        meta={"annotations": {"sliceplane.dev/progress": json.dumps(report)}},
        spec={**holder, "renewTime": ago(renewed)},
    )


planted("C6", "a_view_does_not_hold_the_change", changed(45), view(790))
nearly("C6", "a_view_holds_the_change", changed(45), view(900))
nearly("C6", "a_view_has_not_had_the_time", changed(12), view(790))
nearly("C6", "a_view_that_was_behind_has_ended", changed(45), view(790, renewed=200))
nearly("C6", "a_view_of_another_service_is_behind", changed(45), view(790, of="search"))

# X6


def balanced(world: World, *unasked: int) -> None:
    """Each node's proxy reports that these ports were not asked."""
    add_proxies(world)
    service = world.get("Service", "shop", "cart")
    service["spec"].update(
        type="LoadBalancer", externalTrafficPolicy="Local", healthCheckNodePort=31234
    )
    service["spec"]["ports"][0]["nodePort"] = 30080
    service["status"] = {"loadBalancer": {"ingress": [{"ip": "203.0.113.9"}]}}
    for node in world.all("Node"):
        reports(node["metadata"]["name"], unasked=unasked)(world)


planted("X6", "no_node_is_asked_whether_it_is_healthy", do(balanced, 30999, 31234))
nearly("X6", "one_node_is_asked", do(balanced, 31234), reports("node-0", unasked=()))
nearly("X6", "another_port_is_not_asked", do(balanced, 30999))
