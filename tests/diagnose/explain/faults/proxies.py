"""Node proxies of ours and what they tell."""

from __future__ import annotations

import json
from typing import Any

from tests.diagnose.explain.world import NOW, World, ago, near_miss, planted

from sliceplane.api.discovery import LABEL_FOR_ZONE
from sliceplane.diagnose.explain.question import ExplainQuestion

DIGEST = "0" * 16


def add_proxies(world: World, held: int = 1000) -> None:
    """One on each Node, which holds everything."""
    for node in list(world.all("Node")):
        name = node["metadata"]["name"]
        add_proxy(world, name, held, owner=node)


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


def lease_of(world: World, node: str) -> Any:
    return world.get("Lease", "kube-node-lease", f"sliceplane-proxy-{node}")


def report(world: World, node: str, **members: Any) -> None:
    annotations = lease_of(world, node)["metadata"]["annotations"]
    changed = {**json.loads(annotations["sliceplane.dev/progress"]), **members}
    annotations["sliceplane.dev/progress"] = json.dumps(changed)
    annotations["sliceplane.dev/endpointslices-revision"] = str(
        min(held for held, _ in changed["endpointslices"].values())
    )


def changed(world: World, seconds: float, version: int = 900) -> None:
    """The slice of cart was written for a change so long ago."""
    metadata = world.get("EndpointSlice", "shop", "cart-x7k2p")["metadata"]
    metadata["annotations"] = {"endpoints.kubernetes.io/last-change-trigger-time": ago(seconds)}
    metadata["resourceVersion"] = str(version)


@planted("N1")
def a_proxy_has_stopped(world: World) -> None:
    add_proxies(world)
    lease_of(world, "node-1")["spec"]["renewTime"] = ago(240)


@planted("N1")
def a_node_has_no_proxy(world: World) -> ExplainQuestion:
    add_proxies(world)
    world.drop("Lease", "kube-node-lease", "sliceplane-proxy-node-1")
    return ExplainQuestion("node", "node-1")


@near_miss("N1")
def proxies_are_not_ours(_: World) -> ExplainQuestion:
    return ExplainQuestion("node", "node-1")


@near_miss("N1", "N7")
def a_node_is_gone_and_its_lease_still_there(world: World) -> None:
    add_proxies(world)
    lease_of(world, "node-1")["spec"]["renewTime"] = ago(240)
    world.drop("Node", "", "node-1")


@near_miss("N1")
def a_report_is_a_little_late(world: World) -> None:
    add_proxies(world)
    lease_of(world, "node-1")["spec"]["renewTime"] = ago(40)


@planted("N1")
def a_proxy_stands_still_though_its_lease_lasts(world: World) -> None:
    """As after SIGSTOP: it reports every 30 s at the least."""
    add_proxies(world)
    lease_of(world, "node-1")["spec"]["renewTime"] = ago(50)


@planted("N2")
def a_node_does_not_hold_the_change(world: World) -> None:
    add_proxies(world)
    changed(world, 34)
    report(world, "node-1", endpointslices={"all": [812, DIGEST]})


@planted("N2")
def the_node_is_asked_about(world: World) -> ExplainQuestion:
    a_node_does_not_hold_the_change(world)
    return ExplainQuestion("node", "node-1")


@planted("N2")
def a_proxy_of_an_older_release_is_behind(world: World) -> None:
    add_proxies(world)
    changed(world, 34)
    annotations = lease_of(world, "node-1")["metadata"]["annotations"]
    del annotations["sliceplane.dev/progress"]
    annotations["sliceplane.dev/endpointslices-revision"] = "812"


@near_miss("N2")
def the_change_is_on_its_way(world: World) -> None:
    add_proxies(world)
    changed(world, 6)
    report(world, "node-1", endpointslices={"all": [812, DIGEST]})


@near_miss("N2")
def the_slice_is_for_another_zone(world: World) -> None:
    add_proxies(world)
    changed(world, 34)
    labels = world.get("EndpointSlice", "shop", "cart-x7k2p")["metadata"]["labels"]
    labels[LABEL_FOR_ZONE] = "zone-a"
    for number in range(3):
        zone = f"zone={'zone-' + 'abc'[number]}"
        held = 950 if number == 0 else 812
        report(
            world, f"node-{number}", endpointslices={"shared": [held, DIGEST], zone: [held, DIGEST]}
        )


@planted("N3")
def the_kernel_refuses(world: World) -> None:
    add_proxies(world)
    report(world, "node-1", problems=["IPv4 rules are refused: No buffer space available"])


@near_miss("N3")
def somebody_took_rules_away(world: World) -> None:
    add_proxies(world)
    report(world, "node-1", problems=["IPv4 rules were gone"])


@planted("N5")
def rules_were_gone(world: World) -> None:
    somebody_took_rules_away(world)


@near_miss("N5")
def rules_are_as_they_should(world: World) -> None:
    add_proxies(world)


@planted("N4")
def a_cache_lost_an_event(world: World) -> None:
    add_proxies(world)
    report(world, "node-1", endpointslices={"all": [1000, "1" * 16]})


@near_miss("N4")
def a_cache_is_of_another_version(world: World) -> None:
    add_proxies(world)
    report(world, "node-1", endpointslices={"all": [990, "1" * 16]})


@near_miss("N4")
def of_two_nodes_it_cannot_be_told_which(world: World) -> None:
    world.drop("Node", "", "node-2")
    a_cache_lost_an_event(world)


@planted("N15")
def a_proxy_hears_nothing(world: World) -> None:
    add_proxies(world)
    report(world, "node-1", inputs_since=int(NOW) - 540)


@planted("N15")
def it_is_behind_because_it_hears_nothing(world: World) -> None:
    a_node_does_not_hold_the_change(world)
    report(world, "node-1", inputs_since=int(NOW) - 540)


@near_miss("N15")
def every_proxy_hears_of_changes(world: World) -> None:
    add_proxies(world)


@planted("N7")
def a_proxy_uses_the_long_name_of_its_host(world: World) -> None:
    add_proxies(world)
    world.drop("Lease", "kube-node-lease", "sliceplane-proxy-node-1")
    add_proxy(world, "node-1.corp.example")


@near_miss("N7")
def a_plane_without_nodes_has_a_proxy(world: World) -> None:
    """As on machines outside Kubernetes: there is no Node whose name it could have."""
    for name in [node["metadata"]["name"] for node in world.all("Node")]:
        world.drop("Node", "", name)
    add_proxy(world, "vm")


@planted("N7")
def a_proxy_has_a_name_that_no_node_has_or_resembles(world: World) -> None:
    add_proxies(world)
    add_proxy(world, "laptop")


@near_miss("N7")
def a_proxy_does_not_own_its_lease_yet(world: World) -> None:
    add_proxies(world)
    del lease_of(world, "node-1")["metadata"]["ownerReferences"]


def add_view(world: World, held: int, *, renewed: float = 8, of: str = "cart") -> None:
    """A Python view that tells, of the Service *of*."""
    report = {"endpointslices": {f"service/shop/{of}": [held, DIGEST]}}
    world.add(
        "Lease",
        "shop",
        f"sliceplane-view-{of}-router-1",
        labels={"sliceplane.dev/component": "view"},
        meta={"annotations": {"sliceplane.dev/progress": json.dumps(report)}},
        spec={
            "holderIdentity": f"{of}-router-1",
            "leaseDurationSeconds": 90,
            "renewTime": ago(renewed),
        },
    )


@planted("C6")
def a_view_does_not_hold_the_change(world: World) -> None:
    changed(world, 45)
    add_view(world, 790)


@near_miss("C6")
def a_view_holds_the_change(world: World) -> None:
    changed(world, 45)
    add_view(world, 900)


@near_miss("C6")
def a_view_has_not_had_the_time(world: World) -> None:
    changed(world, 12)
    add_view(world, 790)


@near_miss("C6")
def a_view_that_was_behind_has_ended(world: World) -> None:
    changed(world, 45)
    add_view(world, 790, renewed=200)


@near_miss("C6")
def a_view_of_another_service_is_behind(world: World) -> None:
    changed(world, 45)
    add_view(world, 790, of="search")


def balanced(world: World, *unasked: int) -> None:
    """Each node's proxy tells that these ports were not asked."""
    add_proxies(world)
    service = world.get("Service", "shop", "cart")
    service["spec"].update(
        type="LoadBalancer", externalTrafficPolicy="Local", healthCheckNodePort=31234
    )
    service["spec"]["ports"][0]["nodePort"] = 30080
    service["status"] = {"loadBalancer": {"ingress": [{"ip": "203.0.113.9"}]}}
    for node in world.all("Node"):
        report(world, node["metadata"]["name"], unasked=unasked)


@planted("X6")
def no_node_is_asked_whether_it_is_healthy(world: World) -> None:
    balanced(world, 30999, 31234)


@near_miss("X6")
def one_node_is_asked(world: World) -> None:
    balanced(world, 31234)
    report(world, "node-0", unasked=())


@near_miss("X6")
def another_port_is_not_asked(world: World) -> None:
    balanced(world, 30999)
